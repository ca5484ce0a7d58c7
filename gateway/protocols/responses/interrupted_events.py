"""How a stream of a response ends that nobody goes on with: by what was sent of it, and nothing else. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import decode_json
from gateway.protocols.common.sse import data_of, last_event, split_events
from gateway.protocols.responses.answer_stream import DONE, error_event
from gateway.protocols.responses.replayed_events import replay_end
from gateway.protocols.responses.response_object import fail_response

_NUMBER: Final = re.compile(rb'"sequence_number":(\d+)')
"""In what a client or a model says, quotes have backslashes before them."""
_CREATED: Final = b"event: response.created\n"


def read_number(event: bytes) -> int | None:
    """Return the `sequence_number` of an event of a response's stream; None if it has none, such as a comment or
    `[DONE]`."""
    match = _NUMBER.search(event)
    return None if match is None else int(match.group(1))


def end_interrupted(events: bytes, error: Fields) -> bytes:
    """Return the events that end the stream of a response whose writer is gone: `error`, `response.failed`, `[DONE]`.

    `events` are the whole events that were sent before, perhaps without the first of them; their numbers go on. Without
    the event `response.created` in their first 64 KiB, `response.failed` is left out. `error` has every field of our
    envelope.
    """
    last_number = read_number(last_event(events))
    number = 0 if last_number is None else last_number + 1
    out = error_event(error, number)
    response = _find_response(events)
    if response is not None:
        out += replay_end(fail_response(response, [], error), number + 1)
    return out + DONE


def _find_response(events: bytes) -> dict[str, Any] | None:
    """Return the response object that the first event tells, if that is there."""
    start = events.find(_CREATED, 0, 64 * 1024)
    if start < 0:
        return None
    fields = decode_json(data_of(split_events(events[start:])[0]))
    response = fields.get("response") if isinstance(fields, dict) else None
    return response if isinstance(response, dict) and "id" in response and "created_at" in response else None
