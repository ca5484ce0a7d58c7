"""What commands print, for people or as JSON, and how they end. docs/cli.md lists the exit codes; a test compares."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TextIO

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from contract.admin import AdminModel


class ExitCode(IntEnum):
    """Exit codes of `roundhouse`, with the same meaning in every command. `meaning`: that meaning as a sentence."""

    meaning: str

    def __new__(cls, number: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, number)
        member._value_ = number
        member.meaning = meaning
        return member

    DONE = 0, "Done; as wanted; nothing to do."
    FAILED = 1, "Something is wrong: the files have problems, a model failed, or the command could not do its work."
    PENDING = (
        2,
        "Not there yet: something loads or unloads, is missing, is to be done, or differs from what is declared.",
    )
    NO_CONTROLLER = 3, "No controller answers."
    LOCKED = 4, "The state folder is in use by another controller or another `roundhouse up`."
    ADDRESS_TAKEN = 5, "The address to listen on is taken."
    USAGE = 64, "The command line or a `ROUNDHOUSE_` variable is wrong."
    INTERRUPTED = 130, "Ended by Ctrl-C before it was done (`up` that stopped everything ends with 0)."


SECTIONS = ("Serve", "Watch", "Models", "Documents", "Service")
"""Sections of commands in `roundhouse --help`, in their order."""


class HelpGroup(TyperGroup):
    """A group of commands whose help lists them in sections, by the `rich_help_panel` of each, in the order of
    `SECTIONS`, with the whole first sentence of each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the group's commands to the help page, a heading for each section that has any. Overrides click's
        method, which writes one list."""
        sections: dict[str, list[tuple[str, str]]] = {each: [] for each in SECTIONS}
        for name in self.list_commands(ctx):
            if (command := self.get_command(ctx, name)) is not None and not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                row = (name, command.get_short_help_str(limit=1000))  # 1000: not cut
                sections.setdefault(panel if isinstance(panel, str) else "Commands", []).append(row)
        for section, rows in sections.items():
            if rows:
                formatter.write_paragraph()
                formatter.write_heading(section)
                with formatter.indentation():
                    formatter.write_dl([(name.ljust(max(map(len, self.commands))), words) for name, words in rows])


class CommandError(Exception):
    """A command cannot do its work. The message is one plain line for the operator; `code` is the exit code. `app.run`
    prints the message to stderr and returns the code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code


STATE_COLOURS = {
    "loaded": "green",
    "loading": "yellow",
    "unloading": "yellow",
    "failed": "red",
    "unloaded": "dim",
    "sleeping": "dim",
}
"""Model state to its colour in tables."""
LOG_FOLLOWS = " Last log lines:"
"""End of an error's first line, where the engine's log lines follow."""
_CODE: Final = re.compile(r"`([^`\n]+)`")
"""What Markdown shows as code."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PIPE_WIDTH = 400
"""Columns of a table that is not shown on a terminal: wide enough to keep each row on one line, for grep."""


def print_line(text: str) -> None:
    """Print a line of the result to stdout. Raises BrokenPipeError where the reader of stdout is gone."""
    typer.echo(text)


def print_error(text: str) -> None:
    """Print a line about the work to stderr, after `roundhouse: `. On a terminal, what stands in backticks is bold
    instead. A line that cannot be written is dropped; nothing is raised."""
    if is_terminal(sys.stderr):
        text = _CODE.sub(lambda code: typer.style(code[1], bold=True), text)
    with suppress(OSError):
        typer.echo(f"roundhouse: {text}", err=True)


def print_blocked(row: AdminModel) -> None:
    """Print to stdout what keeps replicas of a model from starting, one line per reason; nothing where there is none.
    Raises BrokenPipeError where the reader of stdout is gone."""
    for reason in row.blocked:
        print_line(f"{row.name}: {one_line(reason)}")


def print_json(value: BaseModel | Any) -> None:
    """Print the whole result to stdout as indented JSON: a pydantic model, or a value that `json` can write. Raises
    TypeError for another value, and BrokenPipeError where the reader of stdout is gone."""
    dump = getattr(value, "model_dump_json", None)
    typer.echo(dump(indent=2) if dump is not None else json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """Print one of several results to stdout as JSON on one line. Raises TypeError for a value that `json` cannot
    write, and BrokenPipeError where the reader of stdout is gone."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether people read this standard stream; None: the process was started without it."""
    return stream is not None and stream.isatty()


def print_piece(text: str) -> None:
    """Print part of a text of others to stdout, without a line break after it. A terminal gets no control characters
    but tabs and line breaks: they could repaint lines or write the clipboard. Raises BrokenPipeError where the
    reader of stdout is gone."""
    typer.echo(_CONTROL.sub("", text) if is_terminal(sys.stdout) else text, nl=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], styles: dict[str, str] | None = None) -> None:
    """Print a table to stdout. `styles` maps the text of a cell to its rich style, which only a terminal shows. Where
    stdout is no terminal, lines have up to 400 columns (`PIPE_WIDTH`); longer cells are folded to further lines.
    Raises BrokenPipeError where the reader of stdout is gone."""
    from rich.console import Console  # 50 ms that most commands do not need

    console = Console(width=None if is_terminal(sys.stdout) else PIPE_WIDTH)
    with console.capture() as capture:
        console.print(table_of(columns, rows, styles))
    for line in capture.get().splitlines():
        typer.echo(line.rstrip())


def table_of(columns: Sequence[str], rows: Iterable[Sequence[str]], styles: dict[str, str] | None = None) -> Table:
    """Return a table for rich; nothing is printed. Each row has as many cells as there are columns. `styles` maps the
    text of a cell to its rich style. Markup in cells is shown as it is."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    return table


def one_line(text: str) -> str:
    """Return the lines of a text as one, stripped and separated by ` | `; empty lines are left out."""
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())


def explain_error(
    message: str, code: str | None, given: Sequence[str], fields: Mapping[str, object]
) -> tuple[str, list[str]]:
    """Return what is wrong, and what to do in the order to try, in the words of the command line: an error code's own
    for it, else those of the answer, all without backticks.

    `message`, `code`, `given`: of the answer; `given` are its next steps. `code` None: it has none. `fields`: what the
    error says of itself, for placeholders (see `contract.errors.fill_steps`).
    """
    from contract.errors import ERROR_CODES, fill_steps  # reads the table

    entry = ERROR_CODES.get(code or "")
    steps = given if entry is None or entry.cli_steps is None else fill_steps(entry.cli_steps, fields)
    return without_backticks(message), [without_backticks(step) for step in steps]


def without_backticks(text: str) -> str:
    """Return a text in which nothing stands in backticks, as Markdown marks code."""
    return _CODE.sub(r"\1", text)


def value_words(value: object) -> str:
    """Return a field's value as JSON on one line, with characters beyond ASCII as they are. Raises TypeError for a
    value that `json` cannot write."""
    return json.dumps(value, ensure_ascii=False)


def plain_words(value: object) -> str:
    """Return a field's value, as decoded from JSON, on one line in plain words.

    `-` for None and for an empty list or object; `true` or `false`; the lines of a text as `one_line` joins them; the
    elements of a list, and the `key=value` of an object, separated by spaces.
    """
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
    """Return the first line of a text, stripped, and cut to `width` characters, with `...` as the last three, if it is
    longer.

    Where the text has further lines, ` ...` follows the first one before it is cut, and the words that announce an
    engine's log (`LOG_FOLLOWS`) are removed from its end.
    """
    first, _, other_lines = text.strip().partition("\n")
    line = f"{first.strip().removesuffix(LOG_FOLLOWS)} ..." if other_lines.strip() else first.strip()
    return line if len(line) <= width else f"{line[: width - 3]}..."


def count_words(number: int, word: str) -> str:
    """Return a number with the noun `word`, given in the singular, with an `s` unless the number is 1: `1 replica`, `2
    replicas`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def ends_by_unload(name: str) -> str:
    """Return words for an operator: which command ends a load that is tried again and again."""
    return f"`roundhouse unload {name}` ends that"


def ends_by_reset(name: str) -> str:
    """Return words for an operator: which command takes back a load whose new values a serving model cannot apply."""
    return f"`roundhouse reset {name}` ends that"


def size_words(size: float) -> str:
    """Return a number of bytes in the largest unit of which there is at least one: `512 B`, `1.5 KiB`, `2.32 GiB`."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        # Not rounded up to 1024 of a unit.
        if size < 1023.95:
            return f"{size:.2f} {unit}" if unit == "GiB" else f"{size:.1f} {unit}"
    return f"{size / 1024:.2f} TiB"


def duration_words(seconds: float) -> str:
    """Return a duration, rounded to whole seconds: `5 s`, `2 min 5 s`; from one hour on without the seconds: `1 h 10
    min`. A negative one is `0 s`."""
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return f"{rest} s"
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left} min" if hours else f"{minutes} min {rest} s"


def time_words(at: float) -> str:
    """Return a Unix time in seconds as local date and time: `2026-11-23 14:05:09`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def clock_words(at: float) -> str:
    """Return a Unix time in seconds as local time of day, without the date: `14:05:09`."""
    return time.strftime("%H:%M:%S", time.localtime(at))


class WorkBar:
    """Shows how much of some work is done, within the block of `open_work_bar`, which makes it. Shows nothing where
    stderr is no terminal."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress = progress
        self._task = task

    def advance(self, amount: float, words: str | None = None) -> None:
        """Note that `amount` more is done, in the unit of the total. `words`: what is under way, shown beside the bar;
        None: as before."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, amount)
            if words is not None:
                self._progress.update(self._task, words=words)

    def set_total(self, total: float | None) -> None:
        """Note how much there is to do; None: it is not known."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=total)


@contextmanager
def open_work_bar(name: str, total: float | None) -> Iterator[WorkBar]:
    """Context manager that shows a bar on stderr within the block, if that is a terminal, and yields the object that
    moves it. `total`: how much there is to do; None: it is not known."""
    if not is_terminal(sys.stderr):
        yield WorkBar(None, None)
        return
    from rich.console import Console  # 50 ms
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield WorkBar(progress, progress.add_task(name, total=total, words=""))
