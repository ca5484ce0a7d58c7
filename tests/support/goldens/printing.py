"""How goldens print JSON: as a person would fold it, so that a file is short and a difference is read line by line."""

from __future__ import annotations

import json
from typing import Any, Final

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
