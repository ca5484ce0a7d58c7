"""The table at the end of the first hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.gpu.step import Outcome, Step

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
