"""Decodes the events of a stream as they come."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any, Final

from gateway.protocols.common.dialect import Usage
from gateway.protocols.common.errors import encode_json, status_of
from gateway.protocols.common.sse import EventCutter

Fields = dict[str, Any]

_DECODE: Final = json.JSONDecoder().raw_decode
_ERROR_STARTS: Final = ("event: error", "event:error", "error:")


class EventReader(EventCutter, ABC):
    """Base of classes that decode an engine's stream; subclasses say what an event does. One instance serves one
    stream. Each event is decoded once, when it is whole; data that is no JSON object is skipped without an error.

    `usage` holds the token counts reported so far; None: none yet.
    """

    __slots__ = ("_is_done", "usage")

    def __init__(self) -> None:
        super().__init__()
        self._is_done = False
        """Whether `[DONE]` has come."""
        self.usage: Usage | None = None

    @property
    def is_done(self) -> bool:
        """Whether the event `data: [DONE]` has come, with which OpenAI's streams end."""
        return self._is_done

    @abstractmethod
    def _take_event(self, fields: Fields) -> None:
        """Handle the data of an event."""

    @abstractmethod
    def _take_error(self, error: Any) -> None:
        """Handle an error event. `error` is what the engine sent, usually an object."""

    def _read_events(self, events: bytes) -> None:
        text = events.decode("utf-8", "replace")
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        for event in text.split("\n\n"):
            if event:
                try:
                    self._read_event(event)
                except RecursionError:
                    continue  # JSON nested a thousand levels deep: no engine sends that

    def _read_event(self, event: str) -> None:
        # Fast path: nearly always only the last line has data, and the data is an object.
        start = 0 if event.startswith("data:") else event.find("\ndata:") + 1
        opening = start + 6 if event.startswith(" ", start + 5) else start + 5
        if event.startswith("data:", start) and event.startswith("{", opening) and event.find("\n", opening) < 0:
            try:
                fields = _DECODE(event, opening)[0]
            except ValueError:
                return
        else:
            fields = self._read_slowly(event)
            if not isinstance(fields, dict):
                return
        if event.startswith(_ERROR_STARTS):
            error = fields.get("error")
            self._take_error(error if isinstance(error, dict) else fields)
        else:
            self._take_event(fields)

    def _read_slowly(self, event: str) -> Any:
        lines = [line.split(":", 1) for line in event.split("\n") if line.startswith(("data:", "error:"))]
        data = "\n".join([value.removeprefix(" ") for _, value in lines]).strip()
        if data == "[DONE]":
            self._is_done = True
            return None
        try:
            return json.loads(data)
        except ValueError:
            return None


class EventCollector(EventReader):
    """Base of the `StreamCollector`s: builds one blocking answer from the events of one stream. Subclasses take the
    events and build the body."""

    __slots__ = ("_failure",)

    def __init__(self) -> None:
        super().__init__()
        self._failure: tuple[int, bytes] | None = None

    def feed_data(self, chunk: bytes) -> None:
        """Add bytes of the stream, cut anywhere. Raises EventTooLongError if an event does not end within `HOLD_LIMIT`
        bytes. See `dialect.StreamCollector`."""
        if events := self._cut_events(chunk):
            self._read_events(events)

    def build_result(self) -> tuple[int, bytes] | None:
        """Return HTTP status and JSON body of the blocking answer: 200 and the answer, or those of the first error
        event, whose body is still in the engine's form. None if the stream broke off. Call once, at the end of the
        stream. See `dialect.StreamCollector`."""
        if held_events := self._take_held():
            self._read_events(held_events)
        if self._failure is not None:
            return self._failure
        answer = self._build_answer()
        return None if answer is None else (200, encode_json(answer))

    @abstractmethod
    def _build_answer(self) -> Any:
        """Return the body of the blocking answer; None if the stream has not reached its end."""

    def _take_error(self, error: Any) -> None:
        """Make the error the result, as the engine would have answered a blocking request."""
        if self._failure is None:
            self._failure = status_of(error), encode_json({"error": error})
