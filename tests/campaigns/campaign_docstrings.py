"""Whether a stranger understands a public docstring without its code."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.campaigns.record import PAGES, REPOSITORY, Outcome, Table, current_commit
from tests.support.packages import PACKAGES

ABOUT = """
Twenty public docstrings, drawn at random from the commit's id. A reader who does not know the code writes down what
each says, then compares it with the code: right, or missed something that a caller must know. At most one may be
missed. The campaign writes the table with empty cells; run again on the same commit, it keeps the cells and counts.
"""
DRAWN: Final = 20
MOST_MISSED: Final = 1
READINGS: Final = "Readings"
COLUMNS: Final = ("where", "understood from the docstring alone", "what the code does", "right or missed")
EMPTY: Final = ("", "", "")


@dataclass(frozen=True, slots=True)
class Docstring:
    """A public docstring. `where` is `path:Class.method`; `signature` is the code's head on one line. A class has the
    signature of its `__init__`, too, and that one's docstring follows its own, as documentation shows a class."""

    where: str
    signature: str
    text: str


def list_docstrings(root: Path) -> list[Docstring]:
    """Return the docstrings of public classes, functions and methods of the programs below `root`, sorted by place."""
    found: list[Docstring] = []
    for program in PACKAGES:
        for path in sorted((root / program).rglob("*.py")):
            found += _docstrings_in(ast.parse(path.read_text()), f"{path.relative_to(root)}:")
    return found


def _docstrings_in(node: ast.Module | ast.ClassDef, place: str) -> Iterator[Docstring]:
    for each in node.body:
        if not isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or each.name.startswith("_"):
            continue
        if ast.get_docstring(each) is not None:
            yield Docstring(f"{place}{each.name}", _signature_of(each), _text_of(each))
        if isinstance(each, ast.ClassDef):
            yield from _docstrings_in(each, f"{place}{each.name}.")


def _signature_of(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if isinstance(node, ast.ClassDef):
        maker = _find_init(node)
        return f"class {node.name}" + ("" if maker is None else f": {_signature_of(maker)}")
    asynchronous = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"{asynchronous}{node.name}({ast.unparse(node.args)}){returns}"


def _text_of(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = " ".join((ast.get_docstring(node) or "").split())
    maker = _find_init(node) if isinstance(node, ast.ClassDef) else None
    return text if maker is None or ast.get_docstring(maker) is None else f"{text} `__init__`: {_text_of(maker)}"


def _find_init(node: ast.ClassDef) -> ast.FunctionDef | None:
    return next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)


def draw_docstrings(found: Sequence[Docstring], commit: str, seed: int) -> list[Docstring]:
    """Return `DRAWN` of the docstrings, the same for the same commit and seed, in the order of `found`."""
    drawn = random.Random(f"{commit} {seed}").sample(range(len(found)), DRAWN)
    return [found[number] for number in sorted(drawn)]


def read_cells(page: str, commit: str) -> dict[str, tuple[str, ...]]:
    """Return what was filled in of a page's readings, by place; nothing where the page is of another commit."""
    if f"| commit | `{commit}` |" not in page:
        return {}
    rows = page.partition(f"## {READINGS}\n")[2].partition("\n## ")[0].splitlines()
    cells = ([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows)
    return {row[0].strip("`"): tuple(row[1:]) for row in cells if len(row) == len(COLUMNS)}


def judge_readings(readings: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return what does not hold: docstrings that nobody has read yet, and more missed ones than may be. A verdict is
    `right`, `missed`, or `missed: ` and what was missed."""
    missed = [where for where, cells in readings.items() if cells[-1].partition(":")[0] == "missed"]
    unread = [where for where, cells in readings.items() if where not in missed and cells[-1] != "right"]
    failures = [f"{len(unread)} of {len(readings)} docstrings are not judged yet"] if unread else []
    if len(missed) > MOST_MISSED:
        failures.append(f"{len(missed)} of {len(readings)} docstrings are missed, not {MOST_MISSED} at most")
    return failures


def run(seed: int) -> Outcome:
    """Draw docstrings of the work tree's commit, and keep what the page says of them."""
    commit = current_commit()
    drawn = draw_docstrings(list_docstrings(REPOSITORY), commit, seed)
    page = PAGES / "docstrings.md"
    kept = read_cells(page.read_text(), commit) if page.exists() else {}
    readings = {each.where: kept.get(each.where, EMPTY) for each in drawn}
    return Outcome(
        (
            Table("Docstrings", ("where", "signature", "docstring"), [_show(each) for each in drawn]),
            Table(READINGS, COLUMNS, [(f"`{where}`", *cells) for where, cells in readings.items()]),
        ),
        judge_readings(readings),
    )


def _show(docstring: Docstring) -> tuple[str, str, str]:
    return f"`{docstring.where}`", f"`{docstring.signature}`", docstring.text
