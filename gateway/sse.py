"""What the gateway knows of server-sent events: where they end, which one holds the usage. Pure.

The path of a chunk is short: one that ends an event and does not speak of usage goes through as it came.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.dialects.base import HOLD_LIMIT, EventTooLongError, Usage

_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_USAGE_SPAN = 4096
"""Bytes within which a usage object ends."""
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_DONE = re.compile(rb"data:\s*\[DONE\]\s*\Z")
_DECODER = json.JSONDecoder()


class EventCutter:
    """Whole events out of bytes that are cut anywhere. Line ends are LF or CRLF."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def _cut(self, chunk: bytes) -> bytes:
        """The events that `chunk` completes, in one piece; the rest is held.

        Raises:
            EventTooLongError: an event does not end within `HOLD_LIMIT` bytes.
        """
        held = self._held
        if not held and chunk.endswith(b"\n\n"):
            return chunk
        buffer = held + chunk
        # What is held has no end in it, so an end begins within its last line end at the earliest.
        end = end_of_events(buffer, max(0, len(held) - 3))
        if len(buffer) - end > HOLD_LIMIT:
            raise EventTooLongError(f"an event of more than {HOLD_LIMIT} bytes")
        self._held = buffer[end:]
        return buffer[:end]

    def _take_held(self) -> bytes:
        """What is held, closed with a blank line: the last event of a stream that left it out, or a part of one."""
        held, self._held = self._held, b""
        held = held.rstrip(b"\r\n")
        return held + b"\n\n" if held else b""


class EventFilter:
    """Passes whole events on, notes the usage and, unless the client asked for it, takes its event out.

    OpenAI's form: the usage event is the last one before `data: [DONE]`, and its `choices` are empty. An event
    that has choices too always passes, whatever it says of usage.
    """

    def __init__(self, *, strip_usage: bool) -> None:
        self._strip = strip_usage
        self._held = b""
        self._last = b""
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        """What to pass on now: whole events, as many as `chunk` completes. Perhaps nothing.

        Raises:
            EventTooLongError: an event does not end within `HOLD_LIMIT` bytes.
        """
        whole = not self._held and chunk.endswith(b"\n\n")
        events = chunk if whole else self._complete(self._held + chunk)
        if b'"usage"' in events:
            events = self._note_usage(events)
        if events:
            self._last = events
        return events

    def finish(self) -> bytes:
        """What is still to be passed on once the stream is over: a `[DONE]` that lacks its blank line.

        Anything else that is held is part of an event, and worth nothing.
        """
        held, self._held = self._held, b""
        if not _DONE.fullmatch(held):
            return b""
        self._last = b"data: [DONE]\n\n"
        return self._last

    @property
    def is_done(self) -> bool:
        """Whether the last event passed on was `[DONE]`."""
        return _DONE.search(self._last, max(0, len(self._last) - 64)) is not None

    @property
    def is_error(self) -> bool:
        """Whether the last event passed on was an error."""
        return (
            self._last[_last_start(self._last) :].lstrip().startswith((b'data: {"error"', b"error:", b"event: error"))
        )

    def _complete(self, buffer: bytes) -> bytes:
        end = end_of_events(buffer)
        if len(buffer) - end > HOLD_LIMIT:
            raise EventTooLongError(f"an event of more than {HOLD_LIMIT} bytes")
        self._held = buffer[end:]
        return buffer[:end]

    def _note_usage(self, events: bytes) -> bytes:
        kept = []
        for event in split_events(events):
            found = _USAGE.search(event)
            usage, only = _read_usage(event) if found else (None, False)
            if usage is not None:
                self.usage = usage
            if not (only and self._strip):
                kept.append(event)
        return b"".join(kept)


def split_events(events: bytes) -> list[bytes]:
    """Cut after each blank line; joined, the parts are `events` again."""
    ends = [match.end() for match in _BLANK_LINE.finditer(events)]
    starts = [0, *ends]
    return [part for start, end in zip(starts, [*ends, len(events)], strict=True) if (part := events[start:end])]


def last_event(events: bytes) -> bytes:
    """The last event that is not empty and not a comment alone; nothing if there is none."""
    end = len(events)
    while end:
        start = end_of_events(events[:end].rstrip())
        event = events[start:end]
        if any(line and not line.startswith(b":") for line in event.splitlines()):
            return event
        end = start
    return b""


def data_of(event: bytes) -> bytes:
    """The lines of an event's data, joined as the specification says."""
    return b"\n".join(line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:"))


def end_of_events(buffer: bytes, start: int = 0) -> int:
    """Offset after the last blank line from `start` on, where the last whole event ends; 0 if there is none."""
    # The line before the blank one ends with "\n" in both styles, so these two cover them.
    after_lf = buffer.rfind(b"\n\n", start) + 2
    after_crlf = buffer.rfind(b"\n\r\n", start) + 3
    return max(after_lf if after_lf > 1 else 0, after_crlf if after_crlf > 2 else 0)


def usage_in(body: bytes) -> Usage | None:
    """The usage that a blocking answer tells, without decoding the rest of it.

    Inside a JSON string each quote has a backslash in front, so `"usage":{` can only be a key and its object. The
    last one counts.
    """
    end = len(body)
    while (start := body.rfind(b'"usage"', 0, end)) >= 0:
        key = _USAGE.match(body, start)
        if key is not None:
            span = body[key.end() - 1 : key.end() + _USAGE_SPAN].decode(errors="replace")
            try:
                return _usage_of(_DECODER.raw_decode(span)[0])
            except ValueError:
                return None
        end = start
    return None


def _read_usage(event: bytes) -> tuple[Usage | None, bool]:
    """The usage an event tells, and whether it tells nothing else."""
    data = b"".join(line[len(b"data:") :] for line in event.splitlines() if line.startswith(b"data:"))
    try:
        fields = json.loads(data)
    except ValueError:
        return None, False
    if not isinstance(fields, dict) or not isinstance(fields.get("usage"), dict):
        return None, False
    return _usage_of(fields["usage"]), fields.get("choices") == []


def _usage_of(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    return Usage(_count(value.get("prompt_tokens")), _count(value.get("completion_tokens")))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _last_start(events: bytes) -> int:
    """Offset where the last whole event starts."""
    return end_of_events(events.rstrip())
