"""The answer of a response: its object, and its events. Pure.

It has every field that Open Responses and OpenAI's SDK require. `error.code` is one of OpenAI's closed list, or
`context_length_exceeded`, which OpenAI's servers send beside that list and Codex looks for; `error.reason` is our own
code.

A stream adds each item, adds its parts, lets each part grow and completes it, and completes the item before it adds the
next one. Only tool calls may overlap, because some engines continue a call after they began the next: a call whose
arguments are not JSON yet stays open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from gateway.protocols.chat.tool_forms import custom_input
from gateway.protocols.common.conversation import Answer, Fields, Finish, Tokens
from gateway.protocols.common.errors import OVERFLOW_CODE, decode_json, encode_json
from gateway.protocols.common.json_bytes import quote_text
from gateway.protocols.common.streams import DONE, data_of, split_events
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.file_search import ITEM_TYPE
from gateway.protocols.responses.mcp import LIST_TYPE, McpCallItem
from gateway.protocols.responses.request import custom_names, echo_tools, output_format_of

_REASONS: Final[dict[Finish, str]] = {"length": "max_output_tokens", "content_filter": "content_filter"}
_UNLIKELY: Final = -9999.0
"""OpenAI's log probability for a token that is hardly possible."""
_TIERS: Final = ("default", "flex", "priority")


def begin_response(fields: Fields, context: ResponseContext) -> Fields:
    """Return the response object of a response in progress, with no output. `fields` are those of a request that was
    read without an error (`responses.request.read_prompt`), because they are not checked again."""
    tools, choice = echo_tools(fields, context.mcp)
    return {
        "id": context.id,
        "object": "response",
        "created_at": context.created_at,
        "completed_at": None,
        "status": "in_progress",
        "background": bool(fields.get("background")),
        "error": None,
        "incomplete_details": None,
        "instructions": fields.get("instructions"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "max_tool_calls": fields.get("max_tool_calls"),
        "metadata": fields.get("metadata") or {},
        "model": fields["model"],
        "output": [],
        "parallel_tool_calls": _field_or(fields, "parallel_tool_calls", True),
        "presence_penalty": _field_or(fields, "presence_penalty", 0.0),
        "frequency_penalty": _field_or(fields, "frequency_penalty", 0.0),
        "previous_response_id": fields.get("previous_response_id"),
        "prompt_cache_key": fields.get("prompt_cache_key"),
        "reasoning": _reasoning(fields),
        "safety_identifier": fields.get("safety_identifier"),
        "service_tier": fields["service_tier"] if fields.get("service_tier") in _TIERS else "default",
        "store": context.stores,
        "temperature": _field_or(fields, "temperature", 1.0),
        "text": _text(fields, context),
        "tool_choice": choice,
        "tools": tools,
        "top_logprobs": fields.get("top_logprobs") or 0,
        "top_p": _field_or(fields, "top_p", 1.0),
        "truncation": fields.get("truncation") or "disabled",
        "usage": None,
        "user": fields.get("user"),
        **_conversation(context),
    }


def _conversation(context: ResponseContext) -> Fields:
    """Return the field `conversation`, with the item that the response follows if the request named it; empty if the
    response continues no conversation."""
    if context.conversation_id is None:
        return {}
    parent = {"parent_id": context.conversation_item} if context.names_parent else {}
    return {"conversation": {"id": context.conversation_id, **parent}}


def end_response(
    response: Fields, output: list[Fields], finish: Finish, tokens: Tokens | None, context: ResponseContext
) -> Fields:
    """Return a copy of `response` that is `completed`, or `incomplete` if `finish` cut the answer short; the caller
    marks the last item of `output` then. `completed_at` is Unix time in seconds by `context.clock`, and is noted in
    `context.times`. `tokens` None: the usage is null."""
    context.times.ended_at = ended_at = context.clock()
    reason = _REASONS.get(finish)
    if reason is None:
        end_fields: Fields = {"status": "completed", "completed_at": int(ended_at)}
    else:
        end_fields = {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return {**response, **end_fields, "output": output, "usage": None if tokens is None else usage_fields(tokens)}


def fail_response(response: Fields, output: list[Fields], error: Fields) -> Fields:
    """Return a copy of `response` that is `failed`, with the output so far. `error` has every field of our error
    envelope. In the copy, `error.code` is one of OpenAI's, chosen by the error's status (or `context_length_exceeded`),
    and `error.reason` is our own code."""
    status = error["status"]
    code = "rate_limit_exceeded" if status == 429 else "server_error" if status >= 500 else "invalid_prompt"
    if error["code"] == OVERFLOW_CODE:
        code = OVERFLOW_CODE
    error_fields = {name: error.get(name) for name in ("message", "type", "param")}
    return {
        **response,
        "status": "failed",
        "error": {"code": code, **error_fields, "reason": error["code"]},
        "output": output,
    }


def is_cut(finish: Finish) -> bool:
    """Whether an answer that ends for this reason is incomplete: at the token limit, or by a content filter."""
    return finish in _REASONS


class PartKind(NamedTuple):
    """A kind of content part: where it stands in a response, and the names of its events. One of `PART_KINDS`."""

    item: str
    """Type of the item that holds the part."""
    event: str
    """Name of its events, without `.delta` and `.done`."""
    type: str
    field: str
    """Field that holds its text."""


TEXT: Final = PartKind("message", "response.output_text", "output_text", "text")
REFUSAL: Final = PartKind("message", "response.refusal", "refusal", "refusal")
THOUGHT: Final = PartKind("reasoning", "response.reasoning_text", "reasoning_text", "text")
"""Thoughts, under OpenAI's event names."""
OPEN_THOUGHT: Final = THOUGHT._replace(event="response.reasoning")
"""Thoughts, under Open Responses' event names."""
PART_KINDS: Final = {kind.type: kind for kind in (TEXT, REFUSAL, THOUGHT)}
_SUMMARY: Final = "response.reasoning_summary"
"""Start of the names of a summary's events, which both specifications have."""


def part_of(kind: PartKind, text: str, logprobs: Sequence[Fields] = (), annotations: Sequence[Fields] = ()) -> Fields:
    """Return a part of a message or of thoughts. `logprobs`, in the form of `logprobs_of`, and `annotations` are of a
    text."""
    notes = {"annotations": annotations, "logprobs": logprobs} if kind is TEXT else {}
    return {"type": kind.type, kind.field: text, **notes}


def content_item(kind: str, name: str, parts: list[Fields], status: str) -> Fields:
    """Return a `message` of the assistant or a `reasoning`, whose summary repeats the thoughts, because most clients
    show the summary alone. `name` is the item's id; `status` is `in_progress`, `completed` or `incomplete`, as for all
    items."""
    own_fields: Fields = (
        {"role": "assistant"} if kind == "message" else {"summary": [_summary_part(part["text"]) for part in parts]}
    )
    return {"id": name, "type": kind, "status": status, **own_fields, "content": parts}


def _summary_part(text: str) -> Fields:
    return {"type": "summary_text", "text": text}


def call_item(name: str, call_id: str, tool: str, text: str, status: str, *, is_custom: bool) -> Fields:
    """Return the call of a function or of a custom tool. `name` is the item's id, `call_id` the id that the call's
    result refers to, and `text` the JSON text of the arguments, or the custom tool's input."""
    kind, field = ("custom_tool_call", "input") if is_custom else ("function_call", "arguments")
    return {"id": name, "type": kind, "status": status, "call_id": call_id, "name": tool, field: text}


def logprobs_of(logprobs: Iterable[Fields]) -> list[Fields]:
    """Return log probabilities in the form of responses, an object for each token in order. `logprobs` has the form of
    chat completions; fields that an engine adds are dropped, and a missing `logprob` is -9999."""
    return [
        {
            **_probability(each),
            "top_logprobs": [_probability(alternative) for alternative in _objects(each.get("top_logprobs"))],
        }
        for each in logprobs
    ]


def usage_fields(tokens: Tokens) -> Fields:
    """Return a usage object in the form of responses."""
    return {
        "input_tokens": tokens.prompt,
        "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": 0},
        "output_tokens": tokens.completion,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.prompt + tokens.completion,
    }


def _probability(entry: Fields) -> Fields:
    token = entry.get("token")
    token = token if isinstance(token, str) else ""
    content = entry.get("bytes")
    if not isinstance(content, list):
        content = list(token.encode(errors="replace"))
    logprob = entry.get("logprob")
    known_logprob = logprob if isinstance(logprob, int | float) else _UNLIKELY
    return {"token": token, "logprob": known_logprob, "bytes": content}


def _objects(value: Any) -> list[Fields]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _reasoning(fields: Fields) -> Fields:
    reasoning = fields.get("reasoning") or {}
    return {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")}


def _text(fields: Fields, context: ResponseContext) -> Fields:
    form = output_format_of(fields)
    if form["type"] == "json_schema":
        schema_fields = {name: form.get(name) for name in ("name", "description", "schema")}
        # `schema` must be null in Open Responses, and an object in OpenAI's API.
        schema = {"schema": None} if context.is_open_responses else {}
        form = {"type": "json_schema", **schema_fields, **schema, "strict": bool(form.get("strict"))}
    verbosity = (fields.get("text") or {}).get("verbosity")
    return {"format": form} if verbosity is None else {"format": form, "verbosity": verbosity}


def _field_or(fields: Fields, name: str, default: Any) -> Any:
    value = fields.get(name)
    return default if value is None else value


class ContentPart:
    """A content part of a message or reasoning item while its text grows. `ResponseWriter` holds the open one."""

    __slots__ = ("_texts", "annotations", "kind", "logprobs", "place", "start", "summary", "summary_start", "tail")

    def __init__(self, kind: PartKind, place: Fields, *, has_summary: bool) -> None:
        """`place` holds the fields that say where the part is (`item_id`, `output_index`, `content_index`); each of its
        events repeats them. `has_summary`: a part of the item's summary repeats it."""
        self.kind = kind
        self.place = place
        self.start = delta_start(kind.event, place)
        self.summary: Fields | None = None
        """Where the part of the summary is that repeats this one; None: nothing does."""
        self.summary_start = b""
        if has_summary:
            fields = {name: place[name] for name in ("item_id", "output_index")}
            self.summary = {**fields, "summary_index": place["content_index"]}
            self.summary_start = delta_start(f"{_SUMMARY}_text", self.summary)
        self.tail = b',"logprobs":' if kind is TEXT else b""
        self._texts: list[str] = []
        self.logprobs: list[Fields] = []
        self.annotations: list[Fields] = []
        """Citations in the text; set when the text is whole."""

    def append_text(self, text: str) -> None:
        """Add text to the part."""
        self._texts.append(text)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @property
    def part(self) -> Fields:
        """The part, with the text so far, as the item's content holds it. A new object at each call."""
        return part_of(self.kind, self.text, self.logprobs, self.annotations)


class ContentItem:
    """A message or reasoning item while it grows: its complete content parts, without the open one. `name` is its id,
    `index` its position in the output."""

    __slots__ = ("index", "kind", "name", "parts", "status")

    def __init__(self, kind: str, name: str, index: int) -> None:
        self.kind = kind
        self.name = name
        self.index = index
        self.parts: list[Fields] = []
        self.status = "in_progress"

    @property
    def item(self) -> Fields:
        """The item, with its complete parts, as events and responses hold it. A new object at each call."""
        return content_item(self.kind, self.name, list(self.parts), self.status)


class WholeItem:
    """An item that is whole when it is added: a search in vector stores, which was over before the answer began, a list
    of tools, or a request for an approval. `index` is its position in the output."""

    __slots__ = ("index", "item", "name", "status")

    def __init__(self, item: Fields, index: int) -> None:
        self.item = item
        self.name: str = item["id"]
        self.index = index
        self.status: str = item.get("status", "completed")

    @property
    def steps(self) -> tuple[str, ...]:
        """Last parts of the names of its own events, such as `searching`, in order; empty: it has no events of its
        own."""
        if self.item["type"] == ITEM_TYPE:
            return "in_progress", "searching", "completed"
        if self.item["type"] == LIST_TYPE:
            return "in_progress", "completed" if self.item["error"] is None else "failed"
        return ()

    @property
    def beginning(self) -> Fields:
        """The item as the event that adds it shows it: a search without queries and results, a list without its tools.
        A new object at each call."""
        if self.item["type"] == ITEM_TYPE:
            return {**self.item, "status": "in_progress", "queries": [], "results": None}
        return {**self.item, "tools": [], "error": None} if self.item["type"] == LIST_TYPE else dict(self.item)


class CallItem:
    """A call of a function or of a custom tool while its arguments grow. `name` is the item's id, `index` its position
    in the output."""

    __slots__ = ("_arguments", "_call_id", "_tool", "index", "is_custom", "name", "place", "start", "status")

    def __init__(self, name: str, index: int, call_id: str, tool: str, *, is_custom: bool) -> None:
        self.name = name
        self.index = index
        self.is_custom = is_custom
        self.place = {"item_id": name, "output_index": index}
        self.start = delta_start("response.function_call_arguments", self.place)
        self.status = "in_progress"
        self._call_id = call_id
        self._tool = tool
        self._arguments: list[str] = []

    def append_arguments(self, arguments: str) -> None:
        """Add a part of the JSON arguments, cut anywhere; for a custom tool, those of the function that stands for
        it."""
        self._arguments.append(arguments)

    @property
    def input_text(self) -> str:
        """The JSON arguments so far. For a custom tool, its input; while the arguments are not whole, their JSON."""
        arguments = "".join(self._arguments)
        return custom_input(arguments) if self.is_custom else arguments

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are a complete JSON object, to which nothing can be added."""
        return isinstance(decode_json("".join(self._arguments)), dict)

    @property
    def item(self) -> Fields:
        """The item, with the arguments so far, as events and responses hold it. A new object at each call."""
        return call_item(self.name, self._call_id, self._tool, self.input_text, self.status, is_custom=self.is_custom)


def delta_start(event: str, place: Fields) -> bytes:
    """Return the bytes of a delta event up to its text; the caller appends the text as JSON, and the rest of the event.
    `event`: its name without `.delta`. `place`: further fields."""
    data = encode_json({"type": f"{event}.delta", **place})
    return b'event: %b.delta\ndata: %b,"delta":' % (event.encode(), data[:-1])


OutputItem: TypeAlias = ContentItem | CallItem | McpCallItem | WholeItem
_END_STARTS: Final = tuple(b"event: response.%b\n" % status for status in (b"completed", b"incomplete", b"failed"))


class ResponseWriter:
    """`AnswerWriter` for one response of OpenAI's Responses API.

    Sets `context.response` when the response begins and again when it ends, and `context.cancel` when a stream begins.
    """

    def __init__(self, fields: Fields, context: ResponseContext) -> None:
        """`fields` are those of the request, which a dialect has read. `context` supplies ids and the time."""
        self._fields = fields
        self._context = context
        self._thought = OPEN_THOUGHT if context.is_open_responses else THOUGHT
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
        """Return the first events, those of the search in vector stores included, and set `context.cancel`. The
        response has an id of its own; `answer_id` and `tokens` are ignored."""
        response = self._ensure_response()
        self._context.cancel = self._cancel_answer
        encoded_response = encode_json(response)
        out = self._state_event("created", encoded_response) + self._state_event("in_progress", encoded_response)
        if self._context.found_files is None:
            return out
        return out + self.write_whole(self._context.found_files.describe_search(self._context.new_id("fs")))

    def write_text(self, text: str, logprobs: list[Fields] | None) -> bytes:
        return self._grow_part(TEXT, text, logprobs)

    def write_reasoning(self, text: str) -> bytes:
        return self._grow_part(self._thought, text, None)

    def write_refusal(self, text: str) -> bytes:
        return self._grow_part(REFUSAL, text, None)

    def write_tool_call(self, index: int, call_id: str | None, name: str | None, arguments: str) -> bytes:
        """Return the events of the call. A custom tool's input is part of its JSON arguments, so it is sent in one
        piece when they end. Arguments that come after the call was completed are dropped."""
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
        """Return the events that complete all open items and the response, and `[DONE]`, and set `context.response`. If
        the token limit or a content filter cut the answer short, the last item and the response are `incomplete`."""
        last = self._items[-1] if is_cut(finish) and self._items else None
        out = [self._close_item(item, "incomplete" if item is last else "completed") for item in self._items]
        output = [item.item for item in self._items]
        response = end_response(self._ensure_response(), output, finish, tokens, self._context)
        self._context.response = response
        out.append(self._state_event(response["status"], encode_json(response)))
        return b"".join(out) + DONE

    def fail_answer(self, error: Fields) -> bytes:
        """Return the last events of a stream that fails: an `error` event, `response.failed` with the output so far,
        and `[DONE]`; those of `begin_answer` before them, if it has not begun. Sets `context.response` to the failed
        response. Items that are open become `incomplete` in its output, without events of their own."""
        out = b"" if self._response is not None else self.begin_answer("")
        response = fail_response(self._ensure_response(), self._cut_output(), error)
        self._context.response = response
        out += error_event(error, self._sequence_number)
        self._sequence_number += 1
        return out + self._state_event("failed", encode_json(response)) + DONE

    def build_answer(self, answer: Answer) -> Fields:
        """Return the whole response object, and set `context.response` to it."""
        response = self._ensure_response()
        output = self._build_output(answer)
        if output and is_cut(answer.finish):
            output[-1]["status"] = "incomplete"
        self._context.response = response = end_response(response, output, answer.finish, answer.tokens, self._context)
        return response

    # Calls that the gateway runs

    def write_whole(self, item: Fields) -> bytes:
        """Add an item that is whole to the output, and return its events (see `WholeItem`)."""
        whole_item = WholeItem(item, len(self._items))
        self._add_item(whole_item, is_said=False)
        index = whole_item.index
        place = {"item_id": whole_item.name, "output_index": index}
        out = [self._event("response.output_item.added", output_index=index, item=whole_item.beginning)]
        out += [self._event(f"response.{item['type']}.{step}", **place) for step in whole_item.steps]
        out.append(self._event("response.output_item.done", output_index=index, item=item))
        return b"".join(out)

    def add_call(self, item: McpCallItem) -> bytes:
        """Add a call without arguments to the output, and return the events that say so."""
        self._add_item(item, is_said=item.approval_id is None)
        out = self._event("response.output_item.added", output_index=item.index, item=item.item)
        return out + self._event("response.mcp_call.in_progress", **item.place)

    def grow_call(self, item: McpCallItem, arguments: str) -> bytes:
        """Add `arguments`, which are not empty, to those of a call, and return the event that says so."""
        item.append_arguments(arguments)
        return self._delta_event(delta_start("response.mcp_call_arguments", item.place), arguments, b"")

    def end_arguments(self, item: McpCallItem) -> bytes:
        """Return the event that ends the arguments of a call, and repeats all of them. Call once."""
        return self._event("response.mcp_call_arguments.done", **item.place, arguments=item.arguments)

    def end_call(self, item: McpCallItem, output: str | None, error: Fields | None) -> bytes:
        """End a call with its output, or with its error, which makes it `failed`; return the events that say so. One of
        `output` and `error` is None."""
        item.output, item.error = output, error
        item.status = status = "completed" if error is None else "failed"
        out = self._event(f"response.mcp_call.{status}", **item.place)
        return out + self._event("response.output_item.done", output_index=item.index, item=item.item)

    def leave_call(self, item: McpCallItem) -> bytes:
        """Make a call `incomplete` that is not run, because the answer was cut short; return the event that says so."""
        item.status = "incomplete"
        return self._event("response.output_item.done", output_index=item.index, item=item.item)

    # Internal

    def _add_item(self, item: OutputItem, *, is_said: bool) -> None:
        """Add an item to the output. `is_said`: whether the model writes it."""
        self._items.append(item)
        self._context.times.begin_item(self._context.clock(), is_said=is_said)

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
            self._response = begin_response(self._fields, self._context)
            self._context.response = self._response
        return self._response

    def _build_output(self, answer: Answer) -> list[Fields]:
        new_id = self._context.new_id
        found, output = self._context.found_files, []
        if found is not None:
            output.append(found.describe_search(new_id("fs")))
        if answer.thought:
            output.append(content_item("reasoning", new_id("rs"), [part_of(THOUGHT, answer.thought)], "completed"))
        parts = []
        if answer.text:
            annotations = [] if found is None else found.annotate_text(answer.text)
            parts.append(part_of(TEXT, answer.text, logprobs_of(answer.logprobs), annotations))
        if answer.refusal:
            parts.append(part_of(REFUSAL, answer.refusal))
        if parts:
            output.append(content_item("message", new_id("msg"), parts, "completed"))
        for call in answer.calls:
            is_custom = call.name in self._custom_names
            text = custom_input(call.arguments) if is_custom else call.arguments
            item_id = new_id("ctc" if is_custom else "fc")
            output.append(call_item(item_id, call.id, call.name, text, "completed", is_custom=is_custom))
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
            return out + self._part_events(content, text)
        encoded_logprobs = b"[]"
        if logprobs:
            probabilities = logprobs_of(logprobs)
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
        self._open_part = content = ContentPart(kind, place, has_summary=kind is self._thought)
        return out + self._part_added(content)

    def _part_added(self, content: ContentPart) -> bytes:
        out = self._event("response.content_part.added", **content.place, part=content.part)
        if content.summary is None:
            return out
        return out + self._event(f"{_SUMMARY}_part.added", **content.summary, part=_summary_part(""))

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
        if content.summary is not None:
            out.append(self._event(f"{_SUMMARY}_text.done", **content.summary, text=content.text))
            summary_part = _summary_part(content.text)
            out.append(self._event(f"{_SUMMARY}_part.done", **content.summary, part=summary_part))
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

    def _part_events(self, content: ContentPart, text: str) -> bytes:
        """Return the delta of a part that is no text and, of thoughts, that of their summary; quoted once."""
        number = self._sequence_number
        if not content.summary_start:
            return self._delta_event(content.start, text, b"")
        self._sequence_number = number + 2
        quoted, next_number = quote_text(text), number + 1
        return b'%b%b,"sequence_number":%d}\n\n%b%b,"sequence_number":%d}\n\n' % (
            *(content.start, quoted, number),
            *(content.summary_start, quoted, next_number),
        )

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
