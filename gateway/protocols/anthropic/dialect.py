"""Anthropic's messages, as engines that speak them answer. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.chat.stream_collector import merge_values
from gateway.protocols.common import bodies, errors
from gateway.protocols.common.bodies import MESSAGE_FIELDS
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.dialect import EventStream, PassthroughDialect, StreamCollector, usage_of
from gateway.protocols.common.errors import find_overflow
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.request_fields import rename_error
from gateway.protocols.common.streams import (
    EventCollector,
    PassthroughStream,
    data_of,
    differs_as_stream,
    wants_probabilities,
)

_UNKNOWN_ID: Final = "msg_unknown"
_PARTS: Final = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""Type of a delta to its field whose strings are joined."""


class MessagesCollector(EventCollector):
    """`StreamCollector` of one Anthropic message, from typed events. Content blocks are ordered by their index. The
    stream is complete once `message_stop` has come."""

    __slots__ = ("_blocks", "_is_stopped", "_message", "_model", "_usage")

    def __init__(self, model: str) -> None:
        """`model` is the model's name for a stream that lacks `message_start`."""
        super().__init__()
        self._model = model
        self._message: Fields = {}
        self._usage: Fields = {}
        self._blocks: dict[int, _Block] = {}
        self._is_stopped = False

    def _take_event(self, fields: Fields) -> None:
        kind = fields.get("type")
        if kind == "content_block_delta":
            self._add_delta(fields.get("index"), fields.get("delta"))
        elif kind == "content_block_start":
            # llama-server starts a block a second time in its last events.
            index, block = fields.get("index"), fields.get("content_block")
            if isinstance(index, int) and isinstance(block, dict) and index not in self._blocks:
                self._blocks[index] = _Block(block)
        elif kind == "message_start" and isinstance(fields.get("message"), dict):
            self._message |= fields["message"]
            self._note_usage(fields["message"].get("usage"))
        elif kind == "message_delta":
            if isinstance(fields.get("delta"), dict):
                self._message |= fields["delta"]
            self._note_usage(fields.get("usage"))
        elif kind == "message_stop":
            self._is_stopped = True

    def _add_delta(self, index: Any, delta: Any) -> None:
        if not isinstance(index, int) or not isinstance(delta, dict):
            return
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = _Block({})
        block.add_delta(delta)

    def _note_usage(self, counts: Any) -> None:
        if isinstance(counts, dict):
            self._usage |= {name: value for name, value in counts.items() if value is not None}
            self.usage = usage_of(self._usage)

    def _build_answer(self) -> Any:
        if not self._is_stopped:
            return None
        # llama-server leaves `message_start` out if the first token is only a part of a character.
        start = {"id": _UNKNOWN_ID, "type": "message", "role": "assistant", "content": [], "model": self._model}
        content = [self._blocks[index].build_block() for index in sorted(self._blocks)]
        return {**start, **self._message, "content": content, "usage": {"input_tokens": 0, **self._usage}}


class _Block:
    """A content block that grows with each delta."""

    __slots__ = ("_fields", "_texts")

    def __init__(self, start: Fields) -> None:
        self._fields = start
        self._texts: dict[str, list[str]] = {}

    def add_delta(self, delta: Fields) -> None:
        """Add one delta to the block."""
        name = _PARTS.get(str(delta.get("type")))
        if name is not None and isinstance(delta.get(name), str):
            self._texts.setdefault(name, []).append(delta[name])
            return
        for field, value in delta.items():
            if field == "citation":
                self._fields["citations"] = merge_values(self._fields.get("citations") or [], [value])
            elif field != "type":
                self._fields[field] = merge_values(self._fields.get(field), value)

    def build_block(self) -> Fields:
        """Return the block as a blocking answer holds it."""
        block = dict(self._fields)
        for name in ("text", "thinking"):
            if name in self._texts:
                block.setdefault("type", name)
                block[name] = str(block.get(name) or "") + "".join(self._texts[name])
        if block.get("type") == "tool_use" or "partial_json" in self._texts:
            block["input"] = _input("".join(self._texts.get("partial_json", ()))) or block.get("input") or {}
        return block


def _input(text: str) -> Fields | None:
    """Return a tool call's arguments; None if the model's text is not a JSON object."""
    fields = errors.decode_json(text)
    return fields if isinstance(fields, dict) else None


_STOP: Final = re.compile(rb'"type"\s*:\s*"message_stop"')
_NO_THREADS: Final = {"error_code": "thread_unsupported_request"}
"""Error details that tell the agents of Anthropic's packages to send the whole conversation in each request."""


class MessagesStream(PassthroughStream):
    """`EventStream` of Anthropic's typed events, passed through; error events get Anthropic's form and a request id. It
    is complete after `message_stop` or an error. `message_start` reports input tokens, later events output tokens."""

    __slots__ = ("_told",)

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self._told: Fields = {}

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        return b"" if self.is_complete else as_error_event(own_body(error, request_id))

    def _note_usage(self, event: bytes) -> bool:
        fields = errors.decode_json(data_of(event))
        if isinstance(fields, dict):
            message = fields.get("message")  # of `message_start`
            counts = (message if isinstance(message, dict) else fields).get("usage")
            if isinstance(counts, dict):
                self._told |= {name: value for name, value in counts.items() if value is not None}
                self.usage = usage_of(self._told)
        return True

    def _rewrite_error(self, event: bytes, error: Fields) -> bytes:
        """Return the error event in Anthropic's form, with a request id."""
        fields = errors.decode_json(data_of(event))
        if errors.is_anthropic(fields) and _may_pass(error):
            named_fields = {**fields, "request_id": self._request_id}
            return event if fields.get("request_id") else as_error_event(errors.encode_json(named_fields))
        envelope = errors.engine_body(errors.status_of(error), errors.encode_json({"error": error}), self._request_id)
        return as_error_event(errors.anthropic_body(envelope, self._request_id))

    def _is_last(self, event: bytes) -> bool:
        return _STOP.search(event) is not None


class MessagesDialect(PassthroughDialect):
    """Dialect of `/v1/messages` and `/v1/messages/count_tokens`, for engines that serve them: both are passed
    through."""

    id_header: bytes | None = b"request-id"
    heartbeat: bytes = b'event: ping\ndata: {"type": "ping"}\n\n'

    def can_serve(self, request: InferenceRequest) -> bool:
        """Return False for a string in `thinking`, which no engine knows: it is Roundhouse's own form."""
        return not isinstance(request.outline_fields.get("thinking"), str)

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        request = bodies.without_foreign_fields(request, MESSAGE_FIELDS, route)
        if as_stream:
            return bodies.as_stream(request, route.served_name, ask_for_usage=False)
        return bodies.as_named(request, route.served_name)

    def open_stream(self, request: InferenceRequest) -> EventStream:
        return MessagesStream(request.id)

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        fields = request.outline_fields
        if differs_as_stream(fields) or wants_probabilities(fields):
            return None
        return MessagesCollector(request.model)

    def error_body(self, error: RoundhouseError, request_id: str) -> bytes:
        return own_body(error, request_id)

    def engine_error_body(self, status: int, body: bytes, request_id: str) -> bytes:
        """Return an engine's error as JSON in Anthropic's form. An error that has that form passes unchanged, unless it
        holds a network address or reports a context overflow in other words than Anthropic's."""
        fields = errors.decode_json(body)
        if errors.is_anthropic(fields) and _may_pass(fields["error"]):
            return body
        envelope = rename_error(errors.engine_body(status, body, request_id), self.form)
        return errors.anthropic_body(envelope, request_id)

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        return as_error_event(body)


MESSAGES: Final = MessagesDialect()


def own_body(error: RoundhouseError, request_id: str | None) -> bytes:
    """Return an error of Roundhouse as JSON in Anthropic's form, with the further fields of our error envelope and, for
    a refused `thread`, the details by which Anthropic's agents send the whole conversation instead. `request_id` None:
    the error names no request."""
    envelope = error.build_envelope(request_id).model_dump()
    if error.param == "thread":
        envelope["error"]["details"] = _NO_THREADS
    return errors.anthropic_body(errors.encode_json(envelope), request_id)


def as_error_event(body: bytes) -> bytes:
    """Return the JSON of an error in Anthropic's form as an event named `error`."""
    return b"event: error\n" + errors.as_event(body)


def _may_pass(error: Fields) -> bool:
    """Whether an engine's error object may pass unchanged: it holds no address, and if it reports a context overflow,
    it does so in the words that Anthropic's clients look for."""
    overflow = find_overflow(error)
    is_in_other_words = overflow is not None and error["message"] != overflow.describe_for_anthropic()
    return not (is_in_other_words or errors.tells_address(error))
