"""The results of the steps, in a file that the next run goes on from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.gpu.step import Outcome, Step

SCHEMA: Final = 1
FILE: Final = "results.json"


class OtherHostError(Exception):
    """The folder holds the results of another host. The message says what to do."""


class Results:
    """One host's results by step, written after each step.

    `host` says whose they are: the device, the runtime, the uuids of the GPUs. A step that passed or failed has a
    result; one that was not tried has none, and is looked at again in every run.
    """

    def __init__(self, folder: Path, host: Mapping[str, Any], commit: str) -> None:
        self.path = folder / FILE
        self._host = dict(host)
        self._commit = commit
        self._steps: dict[str, dict[str, Any]] = {}

    @classmethod
    def open_folder(cls, folder: Path, host: Mapping[str, Any], commit: str) -> Results:
        """The results in `folder`; none where there is no file. Raises OtherHostError."""
        results = cls(folder, host, commit)
        if not results.path.exists():
            return results
        try:
            content = json.loads(results.path.read_text())
            steps, found = content["steps"], content["host"]
        except (ValueError, KeyError, TypeError) as error:
            raise OtherHostError(f"{results.path} is no file of results ({error}): name another --folder") from error
        if content.get("schema") != SCHEMA or found != results._host:
            raise OtherHostError(f"{results.path} is of another host or another way to run: name another --folder")
        results._steps = steps
        return results

    def find(self, step: Step) -> Outcome | None:
        """What came of a step in an earlier run; None: it has no result."""
        found = self._steps.get(step.name)
        if found is None or found["status"] == "not tried":
            return None
        return Outcome(found["status"], found["reason"], found["figures"], found["seconds"])

    def forget(self, names: list[str]) -> None:
        """Drop the results of these steps, and of all whose names begin with one of them and a dot."""
        beginnings = tuple(f"{name}." for name in names)
        for known in [*self._steps]:
            if known in names or known.startswith(beginnings):
                del self._steps[known]
        self._write()

    def add(self, step: Step, outcome: Outcome) -> None:
        """Keep a step's result, at once."""
        self._steps[step.name] = {"title": step.title, **asdict(outcome), "commit": self._commit}
        self._write()

    def _write(self) -> None:
        content = {"schema": SCHEMA, "host": self._host, "steps": self._steps}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".tmp")
        draft.write_text(json.dumps(content, indent=1, default=str) + "\n")
        draft.replace(self.path)
