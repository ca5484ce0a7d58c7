"""The ends of ended replicas' logs, of both runtimes: `<state>/logs/ended/<name>.log`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from controller.runtimes.naming import names_of
from controller.storage.atomic_write import write_atomic

KEPT_BYTES: Final = 64 * 1024
"""Of an ended replica's log."""
KEPT_LOGS: Final = 50
"""How many ended replicas' logs are kept; the oldest go first."""

log = logging.getLogger(__name__)


class EndedLogs:
    """The folder, readable by the controller's user alone. Names are not checked here: they are the callers' own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save_log(self, name: str, data: bytes) -> None:
        """Keep the last part, from the start of a line; the oldest files go.

        Without success when the disk is full: that must not keep a replica from being forgotten.
        """
        if not data:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self.log_path(name), _last(data), durable=False)
        except OSError as error:
            log.warning("the log of %s is not kept: %s", name, error.strerror or error)
        for path in self._newest_first()[KEPT_LOGS:]:
            path.unlink(missing_ok=True)

    def read_log(self, name: str) -> bytes | None:
        """What was kept; None: nothing was."""
        try:
            return self.log_path(name).read_bytes()
        except FileNotFoundError:
            return None

    def list_names(self, instance: str, model: str) -> list[str]:
        """The model's replicas whose logs are kept, the newest first."""
        name_pattern = names_of(instance, model)
        return [path.stem for path in self._newest_first() if name_pattern.fullmatch(path.stem)]

    def highest_attempt(self) -> int:
        """The highest number of an attempt whose log is kept; 0: none is."""
        numbers = (path.stem.rpartition("-")[2] for path in self._folder.glob("*.log"))
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def log_path(self, name: str) -> Path:
        """Where a replica's log is kept."""
        return self._folder / f"{name}.log"

    def _newest_first(self) -> list[Path]:
        times = {}
        for path in self._folder.glob("*.log"):
            try:
                times[path] = path.stat().st_mtime
            except FileNotFoundError:  # it went meanwhile
                continue
        return sorted(times, key=times.__getitem__, reverse=True)


def _last(data: bytes) -> bytes:
    if len(data) <= KEPT_BYTES:
        return data
    _, _, lines = data[-KEPT_BYTES - 1 :].partition(b"\n")
    return lines or data[-KEPT_BYTES:]
