"""The last benchmark of each model, in one file of the state folder."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any, Final

from common.atomic_write import write_atomic

logger = logging.getLogger(__name__)

FILE_NAME: Final = "benchmarks.json"
MOST_MODELS: Final = 1000
"""Models whose result is kept; the one that was measured longest ago goes first."""


class BenchmarkResults:
    """Results of benchmarks by model, in memory and in a file, of the `MOST_MODELS` models that were measured last.

    Where the file cannot be read, it begins empty; where it cannot be written, the results stay in memory. Either is
    logged as a warning, and not raised. Safe for threads.
    """

    def __init__(self, state: Path) -> None:
        """`state`: the state folder. The file is read at once."""
        self._path = state / FILE_NAME
        self._results = self._read_file()
        self._lock = threading.Lock()
        """Held while the results are replaced and written."""

    def find_result(self, model: str) -> dict[str, Any] | None:
        """Return the fields of the model's last result, as `save_result` got them; None: none is kept. Do not change
        them. `model`: the model's own name."""
        return self._results.get(model)

    def save_result(self, model: str, result: dict[str, Any]) -> None:
        """Keep `result`, a JSON object, as the last one of the model, and write the file before the return. Blocks.

        Beyond `MOST_MODELS`, the result of the model that was measured longest ago is dropped. A file that cannot be
        written is logged as a warning; nothing is raised.
        """
        with self._lock:
            others = [(name, each) for name, each in self._results.items() if name != model]
            self._results = dict([*others, (model, result)][-MOST_MODELS:])
            try:
                write_atomic(self._path, json.dumps(self._results).encode(), durable=False)
            except OSError as error:
                logger.warning("the results of benchmarks cannot be written to %s: %s", self._path, error)

    def _read_file(self) -> dict[str, dict[str, Any]]:
        try:
            results = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("the results of benchmarks in %s cannot be read: %s", self._path, error)
            return {}
        if not isinstance(results, dict):
            return {}
        return {model: result for model, result in results.items() if isinstance(result, dict)}
