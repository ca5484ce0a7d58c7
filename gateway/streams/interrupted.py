"""Streams whose process ended without a word: how much of them is whole, and how they end. Pure."""

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
    """Return the whole events of `sent`. A process that is killed may have written a part of one, which nobody got."""
    return sent[: end_of_events(sent)]


def is_complete(path: str, events: bytes) -> bool:
    """Whether the events of an API's stream are all that it has."""
    data = data_of(last_event(events))
    return _MESSAGE_STOP.search(data) is not None if path == _MESSAGES else data.strip() == _DONE


def error_events(path: str, error: RoundhouseError, request_id: str) -> bytes:
    """Return the events that tell a reader of the API's stream of an error, and are the last for the reader."""
    dialect = SERVING_OPTIONS[path][0].dialect
    return dialect.error_as_events(dialect.error_body(error, request_id))


def end_events(path: str, events: bytes, error: RoundhouseError, request_id: str) -> bytes:
    """Return the events that end a stream of the API at `path` with `error`, after `events`."""
    if path == _RESPONSES:
        return end_interrupted(events, error.build_envelope(request_id).error.model_dump())
    return error_events(path, error, request_id)
