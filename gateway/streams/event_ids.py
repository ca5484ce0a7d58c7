"""Offsets as ids of events, for clients that resume by `Last-Event-ID` as browsers' EventSource does. Pure."""

from __future__ import annotations

import re
from typing import Final

_BLANK_LINE: Final = re.compile(rb"\n(\r?\n)")


def add_ids(events: bytes, offset: int) -> bytes:
    """Give each event its `id:` line: the offset after it, in the stream without such lines. `events` begin at
    `offset`, perhaps within an event, and end with one.

    The line is the last of its event, so that the rest of an event that was cut gets one, too.
    """
    parts, start = [], 0
    for match in _BLANK_LINE.finditer(events):
        parts += [events[start : match.start(1)], b"id: %d\n" % (offset + match.end()), match.group(1)]
        start = match.end()
    parts.append(events[start:])
    return b"".join(parts)
