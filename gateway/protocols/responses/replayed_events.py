"""Events of a response that are made again from its object, or that end a stream which broke off. Pure.

Each part comes in one piece, so events are numbered as in a stream whose engine sent every part at once.
"""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.protocols.chat.tool_forms import custom_arguments
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import decode_json, encode_json
from gateway.protocols.common.streams import DONE, data_of, last_event, split_events
from gateway.protocols.responses.answer import (
    PART_KINDS,
    TEXT,
    THOUGHT,
    CallItem,
    ContentItem,
    ContentPart,
    ResponseWriter,
    error_event,
    fail_response,
)
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.file_search import ITEM_TYPE
from gateway.protocols.responses.mcp import CALL_TYPE, LIST_TYPE, REQUEST_TYPE, McpCallItem

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


_AT_BEGIN: Fields = {
    "status": "in_progress",
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "output": [],
    "usage": None,
}


def replay_events(response: Fields, *, is_open_responses: bool) -> bytes:
    """Return all events of a finished response, without `[DONE]`, numbered from 0 (`sequence_number`).

    `response` is a whole response object of this gateway, with a final status. `is_open_responses` is as in
    `ResponseContext`. Raises KeyError if the object lacks a field.
    """
    return _ReplayingWriter(response, is_open_responses=is_open_responses).write_events()


def replay_end(response: Fields, number: int) -> bytes:
    """Return the last event of a finished response, such as `response.failed`, with the sequence number `number` and
    the whole response object, without `[DONE]`. `response.incomplete` if it was cancelled."""
    return _ReplayingWriter(response, is_open_responses=False).write_end(number)


class _ReplayingWriter(ResponseWriter):
    """Writes what `ResponseWriter` would have written, with the ids of a finished response."""

    def __init__(self, response: Fields, *, is_open_responses: bool) -> None:
        context = ResponseContext(
            id=response["id"],
            created_at=response["created_at"],
            clock=lambda: 0.0,
            new_id=lambda prefix: prefix,
            is_open_responses=is_open_responses,
        )
        super().__init__({}, context)
        self._whole = response
        self._response = {**response, **_AT_BEGIN}

    def write_events(self) -> bytes:
        """Return all events of the response."""
        response = self._whole
        out = [self.begin_answer("")]
        self._context.cancel = None  # a reference to this writer
        out += [self._replay_item(index, item) for index, item in enumerate(response["output"])]
        if response["status"] == "failed":
            error = response["error"] or {}
            out.append(error_event({**error, "code": error.get("reason", error.get("code"))}, self._sequence_number))
            self._sequence_number += 1
        out.append(self.write_end(self._sequence_number))
        return b"".join(out)

    def write_end(self, number: int) -> bytes:
        """Return the last event, with the sequence number `number`."""
        self._sequence_number = number
        status = self._whole["status"]
        # No API has an event for the end of a cancelled response.
        return self._state_event("incomplete" if status == "cancelled" else status, encode_json(self._whole))

    def _replay_item(self, index: int, item: Fields) -> bytes:
        if "call_id" in item:
            return self._replay_call(index, item)
        if item["type"] == CALL_TYPE:
            return self._replay_run_call(McpCallItem.of(item, index), item)
        if item["type"] in (ITEM_TYPE, LIST_TYPE, REQUEST_TYPE):
            return self.write_whole(item)
        content_item = ContentItem(item["type"], item["id"], index)
        self._items.append(content_item)
        self._open_item = content_item
        out = [self._event("response.output_item.added", output_index=index, item=content_item.item)]
        for number, part in enumerate(item["content"]):
            kind = PART_KINDS[part["type"]]
            kind = self._thought if kind is THOUGHT else kind
            place = {"item_id": item["id"], "output_index": index, "content_index": number}
            # A response that was stored before summaries were written has none.
            self._open_part = content_part = ContentPart(kind, place, has_summary=bool(item.get("summary")))
            out.append(self._part_added(content_part))
            content_part.append_text(part[kind.field])
            content_part.logprobs = part.get("logprobs", [])
            content_part.annotations = part.get("annotations", [])
            if part[kind.field]:
                if kind is TEXT:
                    tail = content_part.tail + encode_json(content_part.logprobs)
                    out.append(self._delta_event(content_part.start, part[kind.field], tail))
                else:
                    out.append(self._part_events(content_part, part[kind.field]))
            out.append(self._close_part())
        self._open_item = None
        return b"".join(out) + self._item_done(content_item, item)

    def _replay_call(self, index: int, item: Fields) -> bytes:
        is_custom = item["type"] == "custom_tool_call"
        arguments = custom_arguments(item["input"]) if is_custom else item["arguments"]
        call = CallItem(item["id"], index, item["call_id"], item["name"], is_custom=is_custom)
        self._items.append(call)
        out = self._event("response.output_item.added", output_index=index, item=call.item)
        if arguments:
            call.append_arguments(arguments)
            out += b"" if is_custom else self._delta_event(call.start, arguments, b"")
        return out + self._close_call(call) + self._item_done(call, item)

    def _replay_run_call(self, call: McpCallItem, item: Fields) -> bytes:
        out = self.add_call(call)
        if item["arguments"]:
            out += self.grow_call(call, item["arguments"])
        out += self.end_arguments(call)
        if item["status"] == "incomplete":
            return out + self.leave_call(call)
        return out + self.end_call(call, item["output"], item["error"])

    def _item_done(self, item: ContentItem | CallItem, told_item: Fields) -> bytes:
        item.status = told_item["status"]
        return self._event("response.output_item.done", output_index=item.index, item=told_item)
