"""One golden: a file, and what makes its content now."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

COLUMNS: Final = 118
"""The longest line, where a single value is not longer by itself."""
_INDENT: Final = "  "


def print_json(value: Any) -> str:
    """Print a value of JSON, with a newline at the end. Keys are sorted.

    An object or a list that fits into the rest of a line of `COLUMNS` stands on one line, else it has a line per entry.
    """
    plain_value = json.loads(json.dumps(value, sort_keys=True))
    return "\n".join(_lines(plain_value, "", 0)) + "\n"


def _lines(value: Any, before: str, after: int) -> list[str]:
    """The lines of a value. `before`: what stands before it on its first line; `after`: columns to leave free after
    it."""
    line = before + json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, dict | list) or len(line) + after <= COLUMNS:
        return [line]
    indent = before[: len(before) - len(before.lstrip())] + _INDENT
    if isinstance(value, dict):
        first, last = "{", "}"
        entries = [(f"{json.dumps(key, ensure_ascii=False)}: ", each) for key, each in value.items()]
    else:
        first, last = "[", "]"
        entries = [("", each) for each in value]
    lines = [before + first]
    for number, (key, each) in enumerate(entries, 1):
        comma = "," if number < len(entries) else ""
        entry_lines = _lines(each, indent + key, len(comma))
        entry_lines[-1] += comma
        lines += entry_lines
    lines.append(indent[: -len(_INDENT)] + last)
    return lines


FOLDER: Final = Path(__file__).resolve().parents[2] / "golden"
REWRITE: Final = "python -m tests.support.goldens --write"
_MOST_LINES: Final = 200
"""Of a difference that is shown."""


@dataclass(frozen=True, slots=True)
class Golden:
    """`make` gives a JSON value: mappings in any order, lists in an order that means something or is sorted."""

    subject: str
    name: str
    make: Callable[[], Any]

    def __str__(self) -> str:
        return f"{self.subject}/{self.name}"

    @property
    def path(self) -> Path:
        return FOLDER / self.subject / f"{self.name}.json"

    def text(self) -> str:
        """What the file would hold if it was written now."""
        with _no_settings():
            content = self.make()
        return print_json(content)

    def difference(self) -> str | None:
        """What the code makes now that the file does not say, and what to do; None: they are the same."""
        expected = self.path.read_text() if self.path.exists() else ""
        actual = self.text()
        if actual == expected:
            return None
        only_form = ", in its form alone" if _is_same_value(actual, expected) else ""
        name = self.path.relative_to(FOLDER.parents[1])
        lines = list(
            difflib.unified_diff(expected.splitlines(), actual.splitlines(), f"{name}", "made now", lineterm="")
        )
        more = [f"... {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
        return "\n".join(
            [
                f"golden {self} differs from what the code makes{only_form}.",
                *lines[:_MOST_LINES],
                *more,
                "Others rely on what it records: operators' files, running engines, clients. If the change is meant,",
                f"run `{REWRITE} {self.subject}`,",
                "commit the file with the change, and say in CHANGELOG.md what an upgrade brings.",
            ]
        )

    def write(self) -> bool:
        """Replace the file. Whether it changed."""
        text = self.text()
        if self.path.exists() and self.path.read_text() == text:
            return False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text)
        return True


def _is_same_value(actual: str, expected: str) -> bool:
    try:
        return bool(json.loads(actual) == json.loads(expected))
    except ValueError:  # of the file, which is missing or no JSON
        return False


@contextmanager
def _no_settings() -> Iterator[None]:
    """What an operator has set here is none of a golden's business."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    with patch.dict(os.environ, kept, clear=True):
        yield


def without_prose(value: Any, *, named: bool = False) -> Any:
    """A JSON Schema or OpenAPI document without its descriptions and summaries. `named`: the keys of `value` are names,
    as those of `properties` are, and no keywords."""
    if isinstance(value, dict):
        return {
            key: without_prose(each, named=not named and key in ("properties", "$defs", "schemas", "paths"))
            for key, each in value.items()
            if named or key not in ("description", "summary", "markdownDescription")
        }
    if isinstance(value, list):
        return [without_prose(each) for each in value]
    return value
