"""Parser of server-sent events, for clients of ours. The gateway cuts engines' streams itself. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event. `kind` is `message` where the event has none; `data` are its data lines, joined by line breaks. `id`
    is the last id that the stream has sent so far; None means none yet."""

    kind: str
    data: str
    id: str | None


@dataclass(slots=True)
class SseReader:
    """Incremental parser of one stream: takes bytes as the network delivers them, and returns complete events. Use a
    new one for each connection. Lines end with LF or CRLF."""

    on_comment: Callable[[str], None] | None = None
    """Called with each comment's text as it is read; None: comments are ignored."""
    _partial_line: bytes = b""
    _kind: str = ""
    _data: list[str] = field(default_factory=list)
    _id: str | None = None

    @property
    def pending_bytes(self) -> int:
        """Number of bytes of the line that is not complete yet."""
        return len(self._partial_line)

    @property
    def last_id(self) -> str | None:
        """The last id that the stream has sent, of an event or without one; None: none yet."""
        return self._id

    def feed_bytes(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that end in this chunk, in order; an event that the chunk leaves incomplete is kept for the
        next call. Bytes that are no UTF-8 are replaced; nothing is raised."""
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        events = (self._read_line(line.removesuffix(b"\r").decode("utf-8", "replace")) for line in lines)
        return [event for event in events if event is not None]

    def _read_line(self, line: str) -> SseEvent | None:
        if not line:
            return self._take_event()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not name and self.on_comment is not None:
            self.on_comment(value)
        elif name == "id":
            self._id = value
        elif name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        return None

    def _take_event(self) -> SseEvent | None:
        event = SseEvent(self._kind or "message", "\n".join(self._data), self._id)
        result = event if self._kind or self._data else None
        self._kind, self._data = "", []
        return result
