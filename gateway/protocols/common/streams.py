"""The base of all streams that are passed through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.dialect import Usage
from gateway.protocols.common.sse import EventCutter, last_event, split_events

_COMMENT = 0x3A  # ":" starts a comment; a field's name starts with a letter, which is greater


class PassthroughStream(EventCutter, ABC):
    """Base of the `EventStream`s that send an engine's events as they are; a subclass may rewrite or drop some.

    One instance serves one stream. It decodes only events that contain a mark (`_usage_mark`, `_error_mark`), and keeps
    the last events to know how the stream ended. A mark in quotes never matches text of the model: inside a JSON
    string, a quote follows a backslash.
    """

    __slots__ = ("_last", "usage")

    _usage_mark: ClassVar[bytes]
    """Bytes that occur in every event with token counts."""
    _error_mark: ClassVar[bytes]
    """Bytes that occur in every event that is an error."""

    def __init__(self) -> None:
        super().__init__()
        self._last = b""
        self.usage: Usage | None = None

    def feed_data(self, chunk: bytes) -> bytes:
        """Return the whole events that `chunk` completes, as the subclass rewrites them. Raises EventTooLongError if an
        event does not end within `HOLD_LIMIT` bytes. See `dialect.EventStream`."""
        events = chunk if not self._held and chunk.endswith(b"\n\n") else self._cut_events(chunk)
        if self._usage_mark in events or self._error_mark in events:
            return self._filter_events(events)
        if events:
            if events[0] > _COMMENT:
                self._last = events
            else:
                self._keep_last(events)
        return events

    def finish_stream(self) -> bytes:
        """Return the event that no blank line closed, if it is the stream's last event or an error; drop any other,
        because it may be incomplete. See `EventStream`."""
        held_event = self._take_held()
        if held_event and (self._is_last(held_event) or self._is_error(held_event)):
            held_event = self._filter_event(held_event)
            self._last = held_event or self._last
            return held_event
        return b""

    def _filter_events(self, events: bytes) -> bytes:
        passed_events = []
        for event in split_events(events):
            passed_event = self._filter_event(event)
            if passed_event:
                self._keep_last(passed_event)
                passed_events.append(passed_event)
        return b"".join(passed_events)

    def _keep_last(self, events: bytes) -> None:
        if events[0] > _COMMENT:
            self._last = events
        else:
            self._last = last_event(events) or self._last

    @property
    def is_complete(self) -> bool:
        """Whether the latest event that was passed on ends a stream of this API family, or is an error.

        Comments do not count. False before the first event.
        """
        last = last_event(self._last)
        return self._is_last(last) or self._is_error(last)

    @abstractmethod
    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return the last events of a stream that ends here with `error`. See `EventStream`."""

    @abstractmethod
    def _filter_event(self, event: bytes) -> bytes:
        """Note what the event reports, and return what to send in its place; empty to drop it."""

    @abstractmethod
    def _is_last(self, event: bytes) -> bool:
        """Whether this event is the proper end of a stream."""

    @abstractmethod
    def _is_error(self, event: bytes) -> bool:
        """Whether this event is an error, after which no other comes."""
