"""Responses: writes the client's answer, as a stream of events or whole. Pure.

A stream adds each item, adds its parts, lets each part grow and completes it, and completes the item before it adds the
next one. Only tool calls may overlap, because some engines continue a call after they began the next: a call whose
arguments are not JSON yet stays open.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from gateway.protocols.common.conversation import Answer, Fields, Finish, Tokens
from gateway.protocols.common.errors import decode_json, encode_json
from gateway.protocols.common.json_bytes import quote_text
from gateway.protocols.common.sse import data_of, split_events
from gateway.protocols.responses import response_object as made
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.file_search import ITEM_TYPE
from gateway.protocols.responses.growing_items import (
    REFUSAL,
    TEXT,
    THOUGHT,
    CallItem,
    ContentItem,
    ContentPart,
    PartKind,
    SearchItem,
    delta_start,
)
from gateway.protocols.responses.items import custom_input
from gateway.protocols.responses.mcp_items import McpCallItem, WholeItem
from gateway.protocols.responses.tools import custom_names

DONE: Final = b"data: [DONE]\n\n"
OutputItem: TypeAlias = ContentItem | CallItem | SearchItem | McpCallItem | WholeItem
_END_STARTS: Final = tuple(b"event: response.%b\n" % status for status in (b"completed", b"incomplete", b"failed"))
_SEARCH_STEPS: Final = ("in_progress", "searching", "completed")


class ResponseWriter:
    """`AnswerWriter` for one response of OpenAI's Responses API.

    Sets `context.response` when the response begins and again when it ends, and `context.cancel` when a stream begins.
    """

    def __init__(self, fields: Fields, context: ResponseContext) -> None:
        """`fields` are those of the request, which a dialect has read. `context` supplies ids and the time."""
        self._fields = fields
        self._context = context
        context.times.restart()
        self._response: Fields | None = None
        self._custom_names: frozenset[str] = frozenset()
        self._sequence_number = 0
        """Number of the next event."""
        self._items: list[OutputItem] = []
        """All items of the output, in order."""
        self._open_item: ContentItem | None = None
        """The message or reasoning item that is open; None if none is."""
        self._open_part: ContentPart | None = None
        """The part of the open item that grows; None if none does."""
        self._calls: dict[int, CallItem] = {}
        """Tool calls by the index that the engine gave them."""

    def begin_answer(self, answer_id: str, tokens: Tokens | None = None) -> bytes:
        """Return the events `response.created` and `response.in_progress`, and those of the search in vector stores if
        there was one, and set `context.cancel`. `answer_id` is ignored, because the response has an id of its own, and
        so is `tokens`."""
        response = self._ensure_response()
        self._context.cancel = self._cancel_answer
        encoded_response = encode_json(response)
        out = self._state_event("created", encoded_response) + self._state_event("in_progress", encoded_response)
        if self._context.found_files is None:
            return out
        item = self._context.found_files.describe_search(self._context.new_id("fs"))
        return out + self._write_search(SearchItem(item, len(self._items)))

    def write_text(self, text: str, logprobs: list[Fields] | None) -> bytes:
        """Return events that add text to the open text part, or complete what is open and start a new part. See
        `AnswerWriter`."""
        return self._grow_part(TEXT, text, logprobs)

    def write_reasoning(self, text: str) -> bytes:
        """Return events that add thoughts to the open reasoning part, or complete what is open and start a new part.
        See `AnswerWriter`."""
        return self._grow_part(THOUGHT, text, None)

    def write_refusal(self, text: str) -> bytes:
        """Return events that add to the open refusal, or complete what is open and start a new part. See
        `AnswerWriter`."""
        return self._grow_part(REFUSAL, text, None)

    def write_tool_call(self, index: int, call_id: str | None, name: str | None, arguments: str) -> bytes:
        """Return events that start a tool call or add to its arguments. A custom tool's input is part of its JSON
        arguments, so it is sent in one piece when they end. Arguments that come after the call was completed are
        dropped. See `AnswerWriter`."""
        out = b""
        item = self._calls.get(index)
        if item is None:
            out = self._close_items()
            is_custom = name in self._custom_names
            item_id = self.name_call("ctc" if is_custom else "fc")
            call_id = call_id or self._context.new_id("call")
            item = CallItem(item_id, len(self._items), call_id, name or "", is_custom=is_custom)
            self._calls[index] = item
            self._add_item(item, is_said=True)
            out += self._event("response.output_item.added", output_index=item.index, item=item.item)
        if not arguments or item.status != "in_progress":
            return out
        item.append_arguments(arguments)
        return out if item.is_custom else out + self._delta_event(item.start, arguments, b"")

    def name_call(self, prefix: str) -> str:
        """Return a fresh id for the item of a call. `prefix`: of its kind, such as `fc`."""
        return self._context.new_id(prefix)

    def end_answer(self, finish: Finish, stop_sequence: str | None, tokens: Tokens | None) -> bytes:
        """Return the events that complete all open items and the response, and `[DONE]`. Sets `context.response` to the
        complete response. If the token limit or a content filter cut the answer short, the last item and the response
        are `incomplete`. `stop_sequence` is ignored: the API has no place for it."""
        last = self._items[-1] if made.is_cut(finish) and self._items else None
        out = [self._close_item(item, "incomplete" if item is last else "completed") for item in self._items]
        output = [item.item for item in self._items]
        response = made.end_response(self._ensure_response(), output, finish, tokens, self._context)
        self._context.response = response
        out.append(self._state_event(response["status"], encode_json(response)))
        return b"".join(out) + DONE

    def fail_answer(self, error: Fields) -> bytes:
        """Return the last events of a stream that fails: an `error` event, `response.failed` with the output so far,
        and `[DONE]`. If the stream has not begun, the events of `begin_answer` come first. Call it in place of
        `end_answer`, once.

        Sets `context.response` to the failed response. Items that are open become `incomplete` in its output, without
        events of their own. `error` must have every field of our error envelope.
        """
        out = b"" if self._response is not None else self.begin_answer("")
        response = made.fail_response(self._ensure_response(), self._cut_output(), error)
        self._context.response = response
        out += error_event(error, self._sequence_number)
        self._sequence_number += 1
        return out + self._state_event("failed", encode_json(response)) + DONE

    def build_answer(self, answer: Answer) -> Fields:
        """Return the whole response object, and set `context.response` to it."""
        response = self._ensure_response()
        output = self._build_output(answer)
        if output and made.is_cut(answer.finish):
            output[-1]["status"] = "incomplete"
        self._context.response = response = made.end_response(
            response, output, answer.finish, answer.tokens, self._context
        )
        return response

    # Calls that the gateway runs

    def write_whole(self, item: Fields) -> bytes:
        """Return the events of an item `mcp_list_tools` or `mcp_approval_request`."""
        whole_item = WholeItem(item, len(self._items))
        self._add_item(whole_item, is_said=False)
        index = whole_item.index
        out = [self._event("response.output_item.added", output_index=index, item=whole_item.beginning)]
        out += [self._event(f"response.{item['type']}.{step}", **whole_item.place) for step in whole_item.steps]
        out.append(self._event("response.output_item.done", output_index=index, item=item))
        return b"".join(out)

    def add_call(self, item: McpCallItem) -> bytes:
        """Return the events that add a call without arguments."""
        self._add_item(item, is_said=item.approval_id is None)
        out = self._event("response.output_item.added", output_index=item.index, item=item.item)
        return out + self._event("response.mcp_call.in_progress", **item.place)

    def grow_call(self, item: McpCallItem, arguments: str) -> bytes:
        """Return the event that adds to the arguments of a call, which are not empty."""
        item.append_arguments(arguments)
        return self._delta_event(delta_start("response.mcp_call_arguments", item.place), arguments, b"")

    def end_arguments(self, item: McpCallItem) -> bytes:
        """Return the event that ends the arguments of a call."""
        return self._event("response.mcp_call_arguments.done", **item.place, arguments=item.arguments)

    def end_call(self, item: McpCallItem, output: str | None, error: Fields | None) -> bytes:
        """Return the events that end a call with its output, or with its error."""
        item.output, item.error = output, error
        item.status = status = "completed" if error is None else "failed"
        out = self._event(f"response.mcp_call.{status}", **item.place)
        return out + self._event("response.output_item.done", output_index=item.index, item=item.item)

    def leave_call(self, item: McpCallItem) -> bytes:
        """Return the event that ends a call which is not run, because the answer was cut short."""
        item.status = "incomplete"
        return self._event("response.output_item.done", output_index=item.index, item=item.item)

    # Internal

    def _add_item(self, item: OutputItem, *, is_said: bool) -> None:
        """Add an item to the output. `is_said`: whether the model writes it."""
        self._items.append(item)
        self._context.times.begin_item(self._context.clock(), is_said=is_said)

    def _write_search(self, search: SearchItem) -> bytes:
        self._add_item(search, is_said=False)
        place = {"item_id": search.name, "output_index": search.index}
        out = [self._event("response.output_item.added", output_index=search.index, item=search.beginning)]
        out += [self._event(f"response.{ITEM_TYPE}.{step}", **place) for step in _SEARCH_STEPS]
        out.append(self._event("response.output_item.done", output_index=search.index, item=search.item))
        return b"".join(out)

    def _cancel_answer(self) -> bytes:
        """Return the last events of a cancelled stream (`ResponseContext.cancel`). No API has an event for this end, so
        it is `response.incomplete`."""
        self._context.response = response = {
            **self._ensure_response(),
            "status": "cancelled",
            "output": self._cut_output(),
        }
        return self._state_event("incomplete", encode_json(response)) + DONE

    def _cut_output(self) -> list[Fields]:
        """Return the output as far as it came; open items become `incomplete`."""
        if self._open_item is not None and self._open_part is not None:
            self._annotate(self._open_part)
            self._open_item.parts.append(self._open_part.part)
        for item in self._items:
            if item.status == "in_progress":
                item.status = "incomplete"
        return [item.item for item in self._items]

    def _ensure_response(self) -> Fields:
        if self._response is None:
            self._custom_names = custom_names(self._fields)
            self._response = made.begin_response(self._fields, self._context)
            self._context.response = self._response
        return self._response

    def _build_output(self, answer: Answer) -> list[Fields]:
        new_id = self._context.new_id
        found, output = self._context.found_files, []
        if found is not None:
            output.append(found.describe_search(new_id("fs")))
        if answer.thought:
            output.append(made.reasoning_item(new_id("rs"), [made.reasoning_part(answer.thought)], "completed"))
        parts = []
        if answer.text:
            annotations = [] if found is None else found.annotate_text(answer.text)
            parts.append(made.text_part(answer.text, made.logprobs_of(answer.logprobs), annotations))
        if answer.refusal:
            parts.append(made.refusal_part(answer.refusal))
        if parts:
            output.append(made.message_item(new_id("msg"), parts, "completed"))
        for call in answer.calls:
            if call.name in self._custom_names:
                input_text = custom_input(call.arguments)
                output.append(made.custom_call_item(new_id("ctc"), call.id, call.name, input_text, "completed"))
            else:
                output.append(made.function_call_item(new_id("fc"), call.id, call.name, call.arguments, "completed"))
        return output

    def _grow_part(self, kind: PartKind, text: str, logprobs: list[Fields] | None) -> bytes:
        content = self._open_part
        out = b""
        if content is None or content.kind is not kind:
            out = self._begin_part(kind)
            content = self._open_part
            assert content is not None
        content.append_text(text)
        if kind is not TEXT:
            return out + self._delta_event(content.start, text, b"")
        encoded_logprobs = b"[]"
        if logprobs:
            probabilities = made.logprobs_of(logprobs)
            content.logprobs += probabilities
            encoded_logprobs = encode_json(probabilities)
        return out + self._delta_event(content.start, text, content.tail + encoded_logprobs)

    def _begin_part(self, kind: PartKind) -> bytes:
        item = self._open_item
        if item is not None and item.kind == kind.item:
            out = self._close_part()
        else:
            out = self._close_items()
            name = self._context.new_id("msg" if kind.item == "message" else "rs")
            self._open_item = item = ContentItem(kind.item, name, len(self._items))
            self._add_item(item, is_said=True)
            out += self._event("response.output_item.added", output_index=item.index, item=item.item)
        place = {"item_id": item.name, "output_index": item.index, "content_index": len(item.parts)}
        self._open_part = content = ContentPart(kind, place)
        return out + self._event("response.content_part.added", **place, part=content.part)

    def _close_items(self) -> bytes:
        """Complete, before another item begins, the open item and the calls whose arguments are whole."""
        out = [
            self._close_item(item, "completed")
            for item in self._items
            if item is self._open_item or (isinstance(item, CallItem) and item.is_whole)
        ]
        return b"".join(out)

    def _close_item(self, item: OutputItem, status: str) -> bytes:
        if item.status != "in_progress" or not isinstance(item, ContentItem | CallItem):
            return b""  # others are closed by what they wait for
        if isinstance(item, ContentItem):
            out = self._close_part()
            self._open_item = None
        else:
            out = self._close_call(item)
        item.status = status
        return out + self._event("response.output_item.done", output_index=item.index, item=item.item)

    def _close_part(self) -> bytes:
        content, item = self._open_part, self._open_item
        assert content is not None
        assert item is not None
        self._open_part = None
        self._annotate(content)
        part = content.part
        item.parts.append(part)
        fields: Fields = {content.kind.field: content.text}
        if content.kind is TEXT:
            fields["logprobs"] = content.logprobs
        out = [
            self._event("response.output_text.annotation.added", **content.place, annotation_index=n, annotation=each)
            for n, each in enumerate(content.annotations)
        ]
        out.append(self._event(f"{content.kind.event}.done", **content.place, **fields))
        out.append(self._event("response.content_part.done", **content.place, part=part))
        return b"".join(out)

    def _annotate(self, content: ContentPart) -> None:
        if content.kind is TEXT and self._context.found_files is not None:
            content.annotations = self._context.found_files.annotate_text(content.text)

    def _close_call(self, item: CallItem) -> bytes:
        arguments = item.input_text
        if not item.is_custom:
            return self._event("response.function_call_arguments.done", **item.place, arguments=arguments)
        event = "response.custom_tool_call_input"
        out = self._event(f"{event}.delta", **item.place, delta=arguments) if arguments else b""
        return out + self._event(f"{event}.done", **item.place, input=arguments)

    def _delta_event(self, start: bytes, text: str, tail: bytes) -> bytes:
        number = self._sequence_number
        self._sequence_number = number + 1
        return b'%b%b%b,"sequence_number":%d}\n\n' % (start, quote_text(text), tail, number)

    def _state_event(self, status: str, response: bytes) -> bytes:
        number = self._sequence_number
        self._sequence_number = number + 1
        kind = f"response.{status}".encode()
        start = b'event: %b\ndata: {"type":"%b","sequence_number":%d,"response":' % (kind, kind, number)
        return b"%b%b}\n\n" % (start, response)

    def _event(self, event: str, **fields: Any) -> bytes:
        number = self._sequence_number
        self._sequence_number = number + 1
        data = encode_json({"type": event, "sequence_number": number, **fields})
        return b"event: %b\ndata: %b\n\n" % (event.encode(), data)


def error_event(error: Fields, number: int) -> bytes:
    """Return an `error` event with `code`, `message` and `param` at its top level, as OpenAI has them, and the whole
    error in `error`, as Open Responses has it. `error` has the fields of our error envelope; `number` is the event's
    sequence number."""
    own_fields = {name: error.get(name) for name in ("code", "message", "param")}
    data = encode_json({"type": "error", "sequence_number": number, **own_fields, "error": error})
    return b"event: error\ndata: %b\n\n" % data


def replace_end(events: bytes, response: Fields, error: Fields) -> bytes:
    """Return the last events of a stream with another final response object in the event that ends it.

    If `response` is failed and the events do not end so, that event becomes an `error` event with `error`, followed by
    `response.failed`. `error` has the fields of our error envelope.
    """
    parts = split_events(events)
    for index, event in enumerate(parts):
        if not event.startswith(_END_STARTS):
            continue
        end = decode_json(data_of(event))
        kind, number, start = end["type"], end["sequence_number"], b""
        if response["status"] == "failed" and kind != "response.failed":
            start, kind, number = error_event(error, number), "response.failed", number + 1
        data = encode_json({"type": kind, "sequence_number": number, "response": response})
        parts[index] = start + b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
    return b"".join(parts)
