"""What commands print: plain text for people, `--json` for scripts, errors as one line on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.table import Table

    from controller.schema.admin import AdminModel

STATE_COLOURS = {"loaded": "green", "loading": "yellow", "unloading": "yellow", "failed": "red", "unloaded": "dim"}
LOG_FOLLOWS = " Last log lines:"
"""Ends the plain words of an error where the engine's own follow."""
PIPE_WIDTH = 400
"""Columns of a table that goes to no terminal: nothing is folded, so that lines can be searched."""


def print_line(text: str) -> None:
    """A line of the result."""
    typer.echo(text)


def print_error(text: str) -> None:
    """A line about the work, not of the result. Where it cannot be written, the work goes on without it."""
    with suppress(OSError):
        typer.echo(f"roundhouse: {text}", err=True)


def print_blocked(row: AdminModel) -> None:
    """What a model waits for, a line each."""
    for reason in row.blocked:
        print_line(f"{row.name}: {one_line(reason)}")


def print_json(value: BaseModel | Any) -> None:
    """The whole result, as JSON."""
    dump = getattr(value, "model_dump_json", None)
    typer.echo(dump(indent=2) if dump is not None else json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """One of many results, as JSON on a line of its own."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def print_piece(text: str) -> None:
    """Text as it comes, which may end within a line."""
    typer.echo(text, nl=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], styles: dict[str, str] | None = None) -> None:
    """A table. `styles` colours cells by their text, on a terminal only."""
    from rich.console import Console  # 50 ms that most commands do not need

    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    with console.capture() as capture:
        console.print(table_of(columns, rows, styles))
    for line in capture.get().splitlines():
        typer.echo(line.rstrip())


def table_of(columns: Sequence[str], rows: Iterable[Sequence[str]], styles: dict[str, str] | None = None) -> Table:
    """The table, for whoever shows it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    return table


def one_line(text: str) -> str:
    """Several lines as one."""
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())


def value_words(value: object) -> str:
    """A field's value as JSON writes it."""
    return json.dumps(value, ensure_ascii=False)


def plain_words(value: object) -> str:
    """A field's value as one would write it on paper; `-` where there is none."""
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case str():
            return one_line(value)
        case dict():
            return " ".join(f"{key}={plain_words(each)}" for key, each in value.items()) or "-"
        case list():
            return " ".join(plain_words(each) for each in value) or "-"
        case _:
            return str(value)


def first_line(text: str, width: int) -> str:
    """The first line of several, at most so long; `...` stands for what is left out."""
    first, _, other_lines = text.strip().partition("\n")
    line = f"{first.strip().removesuffix(LOG_FOLLOWS)} ..." if other_lines.strip() else first.strip()
    return line if len(line) <= width else f"{line[: width - 3]}..."


def count_words(number: int, word: str) -> str:
    """`1 replica`, `2 replicas`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def ends_by_unload(name: str) -> str:
    """How an operator ends attempts that go on and on."""
    return f"`roundhouse unload {name}` ends that"


def ends_by_reset(name: str) -> str:
    """How an operator takes back a load that a model which serves cannot follow."""
    return f"`roundhouse reset {name}` ends that"


def time_words(at: float) -> str:
    """A Unix time as a clock here shows it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def clock_words(at: float) -> str:
    """A Unix time that is near, without its day."""
    return time.strftime("%H:%M:%S", time.localtime(at))
