"""Streams that a killed gateway left unfinished: which events are whole, and which events end the stream. Pure."""

from __future__ import annotations

import re
from typing import Final

from controller.schema.errors import RoundhouseError
from gateway.protocols.api_matrix import SERVING_OPTIONS
from gateway.protocols.common.sse import data_of, end_of_events, last_event
from gateway.protocols.responses.interrupted_events import end_interrupted

_DONE: Final = b"[DONE]"
_MESSAGE_STOP: Final = re.compile(rb'\A\s*\{\s*"type"\s*:\s*"(message_stop|error)"')
_RESPONSES: Final = "/v1/responses"
_MESSAGES: Final = "/v1/messages"


def cut_torn_event(sent: bytes) -> bytes:
    """Return `sent` without a torn event at its end. A killed process may have written a part of an event to the file;
    no reader got that part, since readers get whole events only."""
    return sent[: end_of_events(sent)]


def is_complete(path: str, events: bytes) -> bool:
    """Return whether `events` end with the final event of the API at `path`: `message_stop` or `error` for
    `/v1/messages`, `[DONE]` for every other path. False for a stream that was cut, or has no events."""
    data = data_of(last_event(events))
    return _MESSAGE_STOP.search(data) is not None if path == _MESSAGES else data.strip() == _DONE


def error_events(path: str, error: RoundhouseError, request_id: str) -> bytes:
    """Return the bytes of the events that report `error` in the form of the API at `path`, terminator included. Nothing
    may follow them. `path` must be the path of an API that streams, such as `/v1/messages`; a path of no API raises
    KeyError."""
    dialect = SERVING_OPTIONS[path][0].dialect
    return dialect.error_as_events(dialect.error_body(error, request_id))


def end_events(path: str, events: bytes, error: RoundhouseError, request_id: str) -> bytes:
    """Return the bytes that end a stream of the API at `path` with `error`. `events`: all that was sent of it, from
    which `/v1/responses` takes the response's id, the next sequence number and the output so far; for other APIs they
    do not matter. Raises KeyError for a path of no API."""
    if path == _RESPONSES:
        return end_interrupted(events, error.build_envelope(request_id).error.model_dump())
    return error_events(path, error, request_id)
