"""Anthropic's messages: writes an answer, whole or as a stream of events. Pure.

A message is a list of content blocks: thinking, text and tool calls. In a stream, each block is started, filled by
deltas and stopped before the next block starts.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.protocols.common import errors
from gateway.protocols.common.conversation import Answer, Call, Fields, Finish, Tokens
from gateway.protocols.common.json_bytes import quote_text

_STOP_REASONS: Final[dict[Finish, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_DELTA_END: Final = b"}}\n\n"
_BEGINNINGS: Final[dict[str, Fields]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
_DELTAS: Final = {
    "text": (b"text_delta", b"text"),
    "thinking": (b"thinking_delta", b"thinking"),
    "tool_use": (b"input_json_delta", b"partial_json"),
}
"""Type of a block to the type of its deltas and the delta's field that holds the text."""


class _Block:
    """A content block: its start fields, and the text parts that were queued or, for a tool call, received so far."""

    __slots__ = ("beginning", "kind", "parts")

    def __init__(self, beginning: Fields) -> None:
        self.kind: str = beginning["type"]
        self.beginning = beginning
        self.parts: list[str] = []

    @property
    def is_whole(self) -> bool:
        """Whether the block is complete. A tool call is complete once its arguments are a JSON object; other blocks
        always are."""
        return self.kind != "tool_use" or isinstance(_json("".join(self.parts)), dict)


class MessagesWriter:
    """`AnswerWriter` for one Anthropic message. Content blocks do not overlap in a stream: what comes while a tool call
    is incomplete waits, in order, and is sent once the call's arguments are a JSON object or the answer ends."""

    __slots__ = ("_call", "_calls", "_delta_start", "_index", "_is_refused", "_kind", "_model", "_waiting")

    def __init__(self, model: str) -> None:
        """`model` is the name that the client used; the message repeats it."""
        self._model = model
        self._index = -1
        """Index of the block that was started last; -1 before the first."""
        self._kind: str | None = None
        """Type of the open block; None if no block is open."""
        self._delta_start = b""
        """Bytes of a delta event of the open block, up to its text."""
        self._calls: dict[int, _Block] = {}
        """Tool calls by the index that the engine gave them."""
        self._call: _Block | None = None
        """The open block, if it is a tool call."""
        self._waiting: list[_Block] = []
        """Blocks that arrived while the open tool call was incomplete, in order."""
        self._is_refused = False

    def begin_answer(self, answer_id: str, tokens: Tokens | None = None) -> bytes:
        """Return the `message_start` event. Output tokens follow in `message_delta`."""
        usage: Fields = {"input_tokens": 0, "output_tokens": 0}
        if tokens is not None:
            usage = _usage(Tokens(prompt=tokens.prompt, cached=tokens.cached))
        return encode_event("message_start", {"message": self._message(answer_id, [], None, None, usage)})

    def write_text(self, text: str, logprobs: list[Fields] | None) -> bytes:
        opening_events = b"" if self._kind == "text" else self._open_or_queue("text", text)
        return b"" if opening_events is None else opening_events + self._delta_start + quote_text(text) + _DELTA_END

    def write_reasoning(self, text: str) -> bytes:
        opening_events = b"" if self._kind == "thinking" else self._open_or_queue("thinking", text)
        return b"" if opening_events is None else opening_events + self._delta_start + quote_text(text) + _DELTA_END

    def write_refusal(self, text: str) -> bytes:
        """Return the refusal as text; it makes `refusal` the stop reason of the message."""
        self._is_refused = True
        return self.write_text(text, None)

    def write_tool_call(self, index: int, call_id: str | None, name: str | None, arguments: str) -> bytes:
        """Return the events of the call, and of the blocks that waited for its end. Arguments for a call whose block
        has ended are dropped."""
        call = self._calls.get(index)
        out = b""
        if call is None:
            call = self._calls[index] = _Block(_tool_use(call_id or f"call_{index}", name or "", {}))
            if self._must_wait:
                self._waiting.append(call)
            else:
                out = self._begin_block(call)
        if not arguments:
            return out
        call.parts.append(arguments)
        if call is not self._call:
            return out
        out += self._delta_start + quote_text(arguments) + _DELTA_END
        return out + self._release_blocks() if self._waiting and call.is_whole else out

    def end_answer(self, finish: Finish, stop_sequence: str | None, tokens: Tokens | None) -> bytes:
        """Return the last events. Anthropic's form requires counts: they are 0 where `tokens` is None."""
        delta = {"stop_reason": self._stop_reason(finish, stop_sequence), "stop_sequence": stop_sequence}
        delta_event = encode_event("message_delta", {"delta": delta, "usage": _usage(tokens)})
        return b"".join(
            (self._release_blocks(is_end=True), self._close_block(), delta_event, encode_event("message_stop", {}))
        )

    def fail_answer(self, error: Fields) -> bytes:
        """Return an `error` event. Blocks that wait are not sent, and the open block is not stopped."""
        return b"event: error\n" + errors.as_event(errors.anthropic_body(errors.encode_json({"error": error}), None))

    def build_answer(self, answer: Answer) -> Fields:
        """Return the whole message, its blocks in the order thinking, text, tool calls. A refusal is appended to the
        text, and makes `refusal` the stop reason. Arguments of a call that are no JSON object become an empty object.
        Unknown token counts are 0."""
        self._is_refused = bool(answer.refusal)
        blocks: list[Fields] = []
        if answer.thought:
            blocks.append({**_BEGINNINGS["thinking"], "thinking": answer.thought})
        if text := answer.text + answer.refusal:
            blocks.append({"type": "text", "text": text})
        blocks += [_tool_use(call.id, call.name, _input(call)) for call in answer.calls]
        reason = self._stop_reason(answer.finish, answer.stop_sequence)
        return self._message(answer.id, blocks, reason, answer.stop_sequence, _usage(answer.tokens))

    def _message(
        self, answer_id: str, content: list[Fields], reason: str | None, sequence: str | None, usage: Fields
    ) -> Fields:
        return {
            "id": f"msg_{answer_id.removeprefix('chatcmpl-') or 'unknown'}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        }

    def _stop_reason(self, finish: Finish, stop_sequence: str | None) -> str:
        if self._is_refused:
            return "refusal"
        return "stop_sequence" if finish == "stop" and stop_sequence is not None else _STOP_REASONS[finish]

    @property
    def _must_wait(self) -> bool:
        """Whether a new block must wait: blocks do not overlap, and the open tool call may still grow."""
        return bool(self._waiting) or (self._call is not None and not self._call.is_whole)

    def _open_or_queue(self, kind: str, text: str) -> bytes | None:
        """Start a block of this type and return its events. None: the block must wait, and `text` was queued with
        it."""
        if not self._must_wait:
            return self._begin_block(_Block(_BEGINNINGS[kind]))
        if not self._waiting or self._waiting[-1].kind != kind:
            self._waiting.append(_Block(_BEGINNINGS[kind]))
        self._waiting[-1].parts.append(text)
        return None

    def _release_blocks(self, *, is_end: bool = False) -> bytes:
        """Send waiting blocks, up to and including the next incomplete tool call; all of them at the end of the
        answer."""
        out = []
        while self._waiting and (is_end or self._call is None or self._call.is_whole):
            block = self._waiting.pop(0)
            out.append(self._begin_block(block))
            if text := "".join(block.parts):
                out.append(self._delta_start + quote_text(text) + _DELTA_END)
        return b"".join(out)

    def _begin_block(self, block: _Block) -> bytes:
        closing_events = self._close_block()
        self._index += 1
        self._kind = kind = block.kind
        self._call = block if kind == "tool_use" else None
        delta, name = _DELTAS[kind]
        start = b'{"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":' % (self._index, delta, name)
        self._delta_start = b"event: content_block_delta\ndata: " + start
        opening_fields = {"index": self._index, "content_block": block.beginning}
        return closing_events + encode_event("content_block_start", opening_fields)

    def _close_block(self) -> bytes:
        if self._kind is None:
            return b""
        # Anthropic signs thoughts to verify them when they come back; here nothing does, so the signature is empty.
        signature_event = b""
        if self._kind == "thinking":
            delta = {"type": "signature_delta", "signature": ""}
            signature_event = encode_event("content_block_delta", {"index": self._index, "delta": delta})
        self._kind = None
        return signature_event + encode_event("content_block_stop", {"index": self._index})


def encode_event(kind: str, fields: Fields) -> bytes:
    """Return a server-sent event named `kind`, whose data is a JSON object with `kind` as `type`, followed by
    `fields`."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), errors.encode_json({"type": kind, **fields}))


def _tool_use(call_id: str, name: str, arguments: Any) -> Fields:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _input(call: Call) -> Fields:
    """Return a call's arguments; an empty object if they are not a JSON object, the only form that a block can hold."""
    arguments = _json(call.arguments)
    return arguments if isinstance(arguments, dict) else {}


def _json(text: str) -> Any:
    return errors.decode_json(text.encode(errors="replace"))


def _usage(reported_tokens: Tokens | None) -> Fields:
    """Return Anthropic's usage object. Its `input_tokens` exclude cached tokens. Its fields are required, so unknown
    counts are zero."""
    tokens = reported_tokens or Tokens()
    usage: Fields = {
        "input_tokens": max(0, tokens.prompt - tokens.cached),
        "cache_read_input_tokens": tokens.cached,
        "output_tokens": tokens.completion,
    }
    if tokens.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": tokens.reasoning}
    return usage
