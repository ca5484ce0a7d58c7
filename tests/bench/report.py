"""Figures of a benchmark, and how they are shown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

WIDTH = 110


@dataclass(frozen=True, slots=True)
class Figure:
    """One median or ratio. `aim` is what the project wants; nothing asserts it."""

    name: str
    value: float
    unit: str
    aim: str = ""


def show(title: str, figures: Iterable[Figure], *, as_json: bool) -> None:
    """A table, or one JSON object per line."""
    if as_json:
        for figure in figures:
            print(json.dumps({"bench": title, **asdict(figure)}))
        return
    table = Table(title=title, title_justify="left")
    for column in ("figure", "value", "unit", "aim"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for figure in figures:
        table.add_row(figure.name, f"{figure.value:,.2f}", figure.unit, figure.aim)
    console = Console()
    # Piped into a file it would be cut to 80 columns.
    Console(width=max(console.width, WIDTH)).print(table)
