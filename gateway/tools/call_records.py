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

LONGEST_ARGUMENTS: Final = 200
"""Characters of the arguments of a call that the history has."""
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
_MOST_MASKED: Final = 4096
"""Characters of a text that are looked at: what comes later is not shown."""


def redact_arguments(arguments: Fields) -> str:
    """Return arguments as JSON for people: values that may be secrets masked, and at most `LONGEST_ARGUMENTS`
    characters, the last three of which are `...` where it is cut."""
    text = json.dumps(_mask_value(arguments, 0), ensure_ascii=False, separators=(", ", ": "))
    printable = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[:_MOST_MASKED])
    return printable if len(printable) <= LONGEST_ARGUMENTS else printable[: LONGEST_ARGUMENTS - 3] + "..."


def _mask_value(value: object, depth: int) -> object:
    if isinstance(value, str):
        return _SECRET_TEXTS.sub(MASK, value[:_MOST_MASKED])
    if depth > 4 and isinstance(value, dict | list):
        return MASK
    if isinstance(value, dict):
        shown = list(value.items())[:LONGEST_ARGUMENTS]
        return {
            name[:LONGEST_ARGUMENTS]: MASK if _SECRET_NAMES.search(name) else _mask_value(each, depth + 1)
            for name, each in shown
        }
    if isinstance(value, list):
        return [_mask_value(each, depth + 1) for each in value[:LONGEST_ARGUMENTS]]
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
