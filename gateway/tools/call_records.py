"""The latest calls of tools, as reports tell the controller of them for its history. Arguments are redacted."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from typing import Final

from controller.schema.routing import MOST_TOOL_CALLS
from controller.schema.tools import ToolCallRecord
from gateway.protocols.common.conversation import Fields

LONGEST_ARGUMENTS: Final = 4096
"""Characters of the arguments of a call that a report has. The history has 200 of them: the controller cuts them when
it has masked the secrets that it knows, which it would not find in halves."""
_MOST_PARTS: Final = 200
"""Fields of an object, elements of a list, and characters of a field's name that are looked at."""
LONGEST_NAME: Final = 200
"""Characters of a tool's name that the history has: it may be a client's text."""
MASK: Final = "***"
_SECRET_NAMES: Final = re.compile(
    r"pass(word|phrase|wd)?$|secret|token|api.?key|authori[sz]ation|credential|cookie|private.?key", re.IGNORECASE
)
_SECRET_TEXTS: Final = re.compile(
    r"(?i:\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"
    r"|\b(?:sk|pk|rk|rh|ghp|gho|ghs|github_pat|glpat|hf|xox[abprs])[-_][A-Za-z0-9_-]{12,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"
    r"|(?<=://)[^/\s:@]{1,100}:[^/\s@]{1,100}(?=@)"
    r"|(?i:\b(?:password|secret|token|api_?key|access_?key)\s*[=:]\s*)[^\s&,;\"']{4,}"
)
"""Texts that look like credentials: of HTTP, of well-known services, in addresses, and where a name says so."""
_MOST_MASKED: Final = 2 * LONGEST_ARGUMENTS
"""Characters of a call's texts that are looked at: what comes later is not shown. More than are shown, so that a secret
at the end of what is shown is masked whole."""


def redact_arguments(arguments: Fields) -> str:
    """Return arguments as JSON for people: values that may be secrets masked, and at most `LONGEST_ARGUMENTS`
    characters, the last three of which are `...` where it is cut."""
    masked = _Masker().mask_value(arguments, 0)
    text = json.dumps(masked, ensure_ascii=False, separators=(", ", ": "))
    printable = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[:_MOST_MASKED])
    return printable if len(printable) <= LONGEST_ARGUMENTS else printable[: LONGEST_ARGUMENTS - 3] + "..."


class _Masker:
    """Masks the values of one call's arguments, of which it looks at `_MOST_MASKED` characters together: it takes the
    event loop's time."""

    def __init__(self) -> None:
        self._left = _MOST_MASKED
        """Characters that are looked at yet."""

    def mask_value(self, value: object, depth: int) -> object:
        """Return the value masked, and cut where it has too many parts. `depth`: of objects and lists around it."""
        if isinstance(value, str):
            looked_at = value[: self._left]
            self._left -= len(looked_at)
            return _SECRET_TEXTS.sub(MASK, looked_at)
        if depth > 4 and isinstance(value, dict | list):
            return MASK
        if isinstance(value, dict):
            shown = list(value.items())[:_MOST_PARTS]
            return {
                name[:_MOST_PARTS]: MASK if _SECRET_NAMES.search(name) else self.mask_value(each, depth + 1)
                for name, each in shown
            }
        if isinstance(value, list):
            return [self.mask_value(each, depth + 1) for each in value[:_MOST_PARTS]]
        return value


class ToolCallLog:
    """The latest `MOST_TOOL_CALLS` calls, numbered from the gateway's start. Used in the event loop."""

    def __init__(self) -> None:
        self._latest: deque[ToolCallRecord] = deque(maxlen=MOST_TOOL_CALLS)
        self._count = 0
        self.on_change: Callable[[], None] = lambda: None
        """Called after each call that is added."""

    def add(self, record: ToolCallRecord) -> None:
        """Add a copy of an ended call with the next `sequence`, drop the oldest call where there are too many, and call
        `on_change`."""
        self._count += 1
        self._latest.append(record.model_copy(update={"sequence": self._count}))
        self.on_change()

    def list_latest(self) -> tuple[ToolCallRecord, ...]:
        """Return the latest calls, at most `MOST_TOOL_CALLS`, oldest first."""
        return tuple(self._latest)
