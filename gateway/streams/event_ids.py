"""Offsets as ids of events, for clients that resume by `Last-Event-ID` as browsers' EventSource does. Pure."""

from __future__ import annotations

import re
from typing import Final

_BLANK_LINE: Final = re.compile(rb"\n(\r?\n)")


def add_ids(events: bytes, offset: int) -> bytes:
    """Return `events` with an `id: N` line in each event. N is the offset after the event, counted without `id:` lines.

    `events` is a part of a stream that begins at `offset`, which may lie within an event, and ends with a whole event.
    The `id:` line is the event's last line, so an event whose beginning is not in `events` gets one, too.
    """
    parts, start = [], 0
    for match in _BLANK_LINE.finditer(events):
        parts += [events[start : match.start(1)], b"id: %d\n" % (offset + match.end()), match.group(1)]
        start = match.end()
    parts.append(events[start:])
    return b"".join(parts)
