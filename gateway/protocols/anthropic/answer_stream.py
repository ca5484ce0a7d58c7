"""Anthropic's messages: an answer, whole or event by event. Pure.

A message is a row of content blocks: thoughts, text, tool calls. In a stream each is begun, grows, and is ended before
the next one begins.
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
"""Kind of a block to its delta's type and the field of that."""


class _Block:
    """A call, or whatever waits for one to end."""

    __slots__ = ("beginning", "kind", "parts")

    def __init__(self, beginning: Fields) -> None:
        self.kind: str = beginning["type"]
        self.beginning = beginning
        self.parts: list[str] = []

    @property
    def is_whole(self) -> bool:
        """Nothing can be added, or must be."""
        return self.kind != "tool_use" or isinstance(_json("".join(self.parts)), dict)


class MessagesWriter:
    """One message."""

    __slots__ = ("_call", "_calls", "_delta_start", "_index", "_is_refused", "_kind", "_model", "_waiting")

    def __init__(self, model: str) -> None:
        """`model`: as the client named it."""
        self._model = model
        self._index = -1
        """Of the last block that was begun."""
        self._kind: str | None = None
        """Of the block that is open."""
        self._delta_start = b""
        """How an event of that block begins, up to the text."""
        self._calls: dict[int, _Block] = {}
        """By the engine's number."""
        self._call: _Block | None = None
        """The one that is open."""
        self._waiting: list[_Block] = []
        """What came before the open call was whole."""
        self._is_refused = False

    def begin_answer(self, answer_id: str, tokens: Tokens | None = None) -> bytes:
        """See AnswerWriter. What the engine has generated, it tells at the end."""
        usage: Fields = {"input_tokens": 0, "output_tokens": 0}
        if tokens is not None:
            usage = _usage(Tokens(prompt=tokens.prompt, cached=tokens.cached))
        return _event("message_start", {"message": self._message(answer_id, [], None, None, usage)})

    def write_text(self, text: str, logprobs: list[Fields] | None) -> bytes:
        """See AnswerWriter."""
        opening_events = b"" if self._kind == "text" else self._open_or_queue("text", text)
        return b"" if opening_events is None else opening_events + self._delta_start + quote_text(text) + _DELTA_END

    def write_reasoning(self, text: str) -> bytes:
        """See AnswerWriter."""
        opening_events = b"" if self._kind == "thinking" else self._open_or_queue("thinking", text)
        return b"" if opening_events is None else opening_events + self._delta_start + quote_text(text) + _DELTA_END

    def write_refusal(self, text: str) -> bytes:
        """See AnswerWriter. It is text, and the reason why the message ends."""
        self._is_refused = True
        return self.write_text(text, None)

    def write_tool_call(self, index: int, call_id: str | None, name: str | None, arguments: str) -> bytes:
        """See AnswerWriter."""
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
        """See AnswerWriter."""
        delta = {"stop_reason": self._stop_reason(finish, stop_sequence), "stop_sequence": stop_sequence}
        last = _event("message_delta", {"delta": delta, "usage": _usage(tokens)}) + _event("message_stop", {})
        return self._release_blocks(is_end=True) + self._close_block() + last

    def fail_answer(self, error: Fields) -> bytes:
        """See AnswerWriter."""
        return b"event: error\n" + errors.as_event(errors.anthropic_body(errors.encode_json({"error": error}), None))

    def build_answer(self, answer: Answer) -> Fields:
        """See AnswerWriter."""
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
        """Blocks do not overlap, and to the open one something may still be added."""
        return bool(self._waiting) or (self._call is not None and not self._call.is_whole)

    def _open_or_queue(self, kind: str, text: str) -> bytes | None:
        """A block begins; None: it waits, and so does its text."""
        if not self._must_wait:
            return self._begin_block(_Block(_BEGINNINGS[kind]))
        if not self._waiting or self._waiting[-1].kind != kind:
            self._waiting.append(_Block(_BEGINNINGS[kind]))
        self._waiting[-1].parts.append(text)
        return None

    def _release_blocks(self, *, is_end: bool = False) -> bytes:
        """What has waited, up to the next call that is not whole."""
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
        return closing_events + _event("content_block_start", {"index": self._index, "content_block": block.beginning})

    def _close_block(self) -> bytes:
        if self._kind is None:
            return b""
        # Thoughts are signed, so that they can be trusted when they come back; nobody here signs or checks.
        signature_event = b""
        if self._kind == "thinking":
            delta = {"type": "signature_delta", "signature": ""}
            signature_event = _event("content_block_delta", {"index": self._index, "delta": delta})
        self._kind = None
        return signature_event + _event("content_block_stop", {"index": self._index})


def _event(kind: str, fields: Fields) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), errors.encode_json({"type": kind, **fields}))


def _tool_use(call_id: str, name: str, arguments: Any) -> Fields:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _input(call: Call) -> Fields:
    """Nothing where the model's arguments are no JSON object: a block can hold no other."""
    arguments = _json(call.arguments)
    return arguments if isinstance(arguments, dict) else {}


def _json(text: str) -> Any:
    return errors.decode_json(text.encode(errors="replace"))


def _usage(reported_tokens: Tokens | None) -> Fields:
    """Anthropic's input tokens are those that no cache had. There must be numbers, whether they are known or not."""
    tokens = reported_tokens or Tokens()
    usage: Fields = {
        "input_tokens": max(0, tokens.prompt - tokens.cached),
        "cache_read_input_tokens": tokens.cached,
        "output_tokens": tokens.completion,
    }
    if tokens.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": tokens.reasoning}
    return usage
