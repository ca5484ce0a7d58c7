"""The results of the steps, in a file that the next run goes on from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

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


_COLOURS = {"passed": "green", "failed": "red", "not tried": "yellow"}
_LENGTH = 400


def print_report(title: str, rows: Sequence[tuple[Step, Outcome]], console: Console | None = None) -> None:
    """One row for each step, then how many passed, failed and were not tried."""
    # As wide as its longest row where nobody looks at a terminal: a folded cell cannot be searched.
    console = console or (Console() if Console().is_terminal else Console(width=200))
    table = Table(title=title, title_justify="left")
    for column in ("step", "what", "result", "seen"):
        table.add_column(column, overflow="fold")
    table.add_column("s", justify="right")
    for step, outcome in rows:
        result = f"[{_COLOURS[outcome.status]}]{outcome.status}[/]"
        table.add_row(step.name, step.title, result, _escape(describe(outcome)), f"{outcome.seconds:.1f}")
    console.print(table)
    console.print(count_results([outcome for _, outcome in rows]))


def describe(outcome: Outcome) -> str:
    """The reason, then the figures, in one cell."""
    figures = ", ".join(f"{name} {_show(value)}" for name, value in outcome.figures.items() if value is not None)
    text = " ".join("; ".join(text for text in (outcome.reason, figures) if text).split())
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]} ..."


def count_results(outcomes: Sequence[Outcome]) -> str:
    """`12 passed, 1 failed, 20 not tried`."""
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in _COLOURS}
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _show(value: Any) -> str:
    match value:
        case Mapping():
            return "{" + ", ".join(f"{name}: {_show(each)}" for name, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(_show(each) for each in value) + "]"
        case float():
            return f"{value:.2f}"
    return str(value)


def _escape(text: str) -> str:
    """Brackets are rich's markup."""
    return text.replace("[", r"\[")
