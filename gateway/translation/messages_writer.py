"""Anthropic's messages: an answer, whole or event by event. Pure.

A message is a row of content blocks: thoughts, text, tool calls. In a stream each is begun, grows, and is ended before
the next one begins.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.dialects import errors
from gateway.translation.conversation import Answer, Call, Fields, Finish, Tokens
from gateway.translation.events import quoted

_STOP_REASONS: Final[dict[Finish, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_DELTA_END: Final = b"}}\n\n"
_BLOCKS: Final = {
    "text": ({"type": "text", "text": ""}, b"text_delta", b"text"),
    "thinking": ({"type": "thinking", "thinking": "", "signature": ""}, b"thinking_delta", b"thinking"),
}
"""Kind of a block to the block as it begins, its delta's type, and the delta's field."""


class MessagesWriter:
    """One message."""

    __slots__ = ("_calls", "_delta_start", "_index", "_is_refused", "_kind", "_model", "_repeated", "_to_repeat")

    def __init__(self, model: str, prefill: str = "") -> None:
        """`model`: as the client named it. `prefill`: what the answer goes on with, which some engines send again."""
        self._model = model
        self._to_repeat = prefill
        self._repeated = ""
        """What has come of the prefill again, and is held back."""
        self._index = -1
        """Of the last block that was begun."""
        self._kind: str | None = None
        """Of the block that is open."""
        self._delta_start = b""
        """How an event of that block begins, up to the text."""
        self._calls: dict[int, int] = {}
        """The engine's number of a call to the index of its block."""
        self._is_refused = False

    def begin(self, answer_id: str) -> bytes:
        """See AnswerWriter. What the engine counts is known at the end only."""
        usage = {"input_tokens": 0, "output_tokens": 0}
        return _event("message_start", {"message": self._message(answer_id, [], None, None, usage)})

    def text(self, text: str, logprobs: list[Fields] | None) -> bytes:
        """See AnswerWriter."""
        if self._to_repeat:
            text = self._without_prefill(text)
            if not text:
                return b""
        if self._kind != "text":
            return self._opened("text") + self._delta_start + quoted(text) + _DELTA_END
        return self._delta_start + quoted(text) + _DELTA_END

    def thought(self, text: str) -> bytes:
        """See AnswerWriter."""
        if self._kind != "thinking":
            return self._opened("thinking") + self._delta_start + quoted(text) + _DELTA_END
        return self._delta_start + quoted(text) + _DELTA_END

    def refusal(self, text: str) -> bytes:
        """See AnswerWriter. It is text, and the reason why the message ends."""
        self._is_refused = True
        return self.text(text, None)

    def call(self, index: int, call_id: str | None, name: str | None, arguments: str) -> bytes:
        """See AnswerWriter."""
        known = self._calls.get(index)
        if known is None:
            opened = self._opened_call(index, call_id or f"call_{index}", name or "")
            known = self._index
        else:
            opened = b""
        return opened + _call_delta_start(known) + quoted(arguments) + _DELTA_END if arguments else opened

    def end(self, finish: Finish, stop_sequence: str | None, tokens: Tokens | None) -> bytes:
        """See AnswerWriter."""
        delta = {"stop_reason": self._stop_reason(finish, stop_sequence), "stop_sequence": stop_sequence}
        usage = {"output_tokens": 0} if tokens is None else _usage(tokens)
        last = _event("message_delta", {"delta": delta, "usage": usage}) + _event("message_stop", {})
        return self._held() + self._closed() + last

    def failure(self, error: Fields) -> bytes:
        """See AnswerWriter."""
        return b"event: error\n" + errors.as_event(errors.anthropic_body(errors.encoded({"error": error}), None))

    def whole(self, answer: Answer) -> Fields:
        """See AnswerWriter."""
        self._is_refused = bool(answer.refusal)
        blocks: list[Fields] = []
        if answer.thought:
            blocks.append({**_BLOCKS["thinking"][0], "thinking": answer.thought})
        if text := answer.text.removeprefix(self._to_repeat) + answer.refusal:
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

    def _opened(self, kind: str) -> bytes:
        block, delta, name = _BLOCKS[kind]
        events = self._begun(kind, block)
        place = b'{"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":' % (self._index, delta, name)
        self._delta_start = b"event: content_block_delta\ndata: " + place
        return events

    def _opened_call(self, index: int, call_id: str, name: str) -> bytes:
        events = self._begun("tool_use", _tool_use(call_id, name, {}))
        self._calls[index] = self._index
        return events

    def _begun(self, kind: str, block: Fields) -> bytes:
        closed = self._held() + self._closed()
        self._index += 1
        self._kind = kind
        return closed + _event("content_block_start", {"index": self._index, "content_block": block})

    def _closed(self) -> bytes:
        if self._kind is None:
            return b""
        # Thoughts are signed, so that they can be trusted when they come back; nobody here signs or checks.
        signed = b""
        if self._kind == "thinking":
            delta = {"type": "signature_delta", "signature": ""}
            signed = _event("content_block_delta", {"index": self._index, "delta": delta})
        self._kind = None
        return signed + _event("content_block_stop", {"index": self._index})

    def _without_prefill(self, text: str) -> str:
        """What is new in a part of the text. It is held back as long as it may be the prefill's beginning."""
        prefill, text = self._to_repeat, self._repeated + text
        if len(text) < len(prefill) and prefill.startswith(text):
            self._repeated = text
            return ""
        self._to_repeat = self._repeated = ""
        return text.removeprefix(prefill)

    def _held(self) -> bytes:
        """What was held back for nothing."""
        held = self._repeated
        if not held:
            return b""
        self._to_repeat = self._repeated = ""
        return self.text(held, None)


def _event(kind: str, fields: Fields) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), errors.encoded({"type": kind, **fields}))


def _call_delta_start(index: int) -> bytes:
    delta = b'{"type":"content_block_delta","index":%d,"delta":{"type":"input_json_delta","partial_json":' % index
    return b"event: content_block_delta\ndata: " + delta


def _tool_use(call_id: str, name: str, arguments: Any) -> Fields:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _input(call: Call) -> Fields:
    """Nothing where the model's arguments are no JSON object: a block can hold no other."""
    arguments = errors.decoded(call.arguments.encode(errors="replace"))
    return arguments if isinstance(arguments, dict) else {}


def _usage(tokens: Tokens) -> Fields:
    """Anthropic's input tokens are those that no cache had."""
    usage: Fields = {
        "input_tokens": max(0, tokens.prompt - tokens.cached),
        "cache_read_input_tokens": tokens.cached,
        "output_tokens": tokens.completion,
    }
    if tokens.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": tokens.reasoning}
    return usage
