"""Figures of a benchmark, and how they are shown."""

from __future__ import annotations

import json
import statistics
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
    of: str = ""
    """Whose it is, where the same figure of several stands side by side."""


def percentile(values: Iterable[float], part: float) -> float:
    """The smallest value that this part (0 to 1) of the values does not exceed. Raises ValueError: there are none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing was measured")
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def median_ratio(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """Of what was measured in pairs."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def show(title: str, figures: Iterable[Figure], *, as_json: bool) -> None:
    """A table, or one JSON object per line."""
    shown = list(figures)
    if as_json:
        for figure in shown:
            print(json.dumps({"bench": title, **asdict(figure)}))
        return
    # Piped into a file it would be cut to 80 columns.
    console = Console(width=max(Console().width, WIDTH))
    compared, single = [at for at in shown if at.of], [at for at in shown if not at.of]
    if compared:
        console.print(_side_by_side(title, compared))
    if single:
        console.print(_listed(title, single))


def _listed(title: str, figures: list[Figure]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("figure", "value", "unit", "aim"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for figure in figures:
        table.add_row(figure.name, f"{figure.value:,.2f}", figure.unit, figure.aim)
    return table


def _side_by_side(title: str, figures: list[Figure]) -> Table:
    table = Table(title=title, title_justify="left")
    owners = list(dict.fromkeys(figure.of for figure in figures))
    table.add_column("figure")
    for owner in owners:
        table.add_column(owner, justify="right")
    table.add_column("unit")
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for figure in figures:
        rows.setdefault((figure.name, figure.unit), {})[figure.of] = figure.value
    for (name, unit), values in rows.items():
        table.add_row(name, *(f"{values[owner]:,.2f}" if owner in values else "" for owner in owners), unit)
    return table
