"""Makes OpenAI's answer objects from an engine's pieces."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from worker.engine import FinishReason, Job, Piece

Object = dict[str, Any]
DONE = b"data: [DONE]\n\n"


def encode_event(content: Object) -> bytes:
    """Return one server-sent event with this content as JSON, the empty line at its end included. Raises ValueError for
    NaN and infinity, which JSON does not have."""
    return b"data: " + encode_json(content) + b"\n\n"


def encode_json(content: Object) -> bytes:
    """Return compact JSON in UTF-8. Half of a surrogate pair, which UTF-8 cannot encode, becomes `?`. Raises
    ValueError for NaN and infinity, which JSON does not have."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")


def usage_object(job: Job) -> Object:
    """Return the token counts of a job, as far as it has come, as OpenAI's `usage`: `prompt_tokens`,
    `completion_tokens`, `total_tokens` and, if the engine tells it, `prompt_tokens_details.cached_tokens`."""
    total = job.prompt_tokens + job.completion_tokens
    usage = {"prompt_tokens": job.prompt_tokens, "completion_tokens": job.completion_tokens, "total_tokens": total}
    return (
        usage if job.cached_tokens is None else usage | {"prompt_tokens_details": {"cached_tokens": job.cached_tokens}}
    )


def error_object(message: str, code: str, status: int, param: str | None = None) -> Object:
    """Return an error in OpenAI's form. Its `type` is `invalid_request_error` for a `status` below 500, else
    `server_error`; the status itself is not part of it. `param`: the request's field that is at fault; None: no single
    one."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "code": code, "param": param}}


def merge_tool_calls(deltas: Iterable[Object]) -> list[Object]:
    """Return whole tool calls from the deltas of a stream, in the order of their index. Each delta must have an
    `index`; ids, names and arguments of one index are joined."""
    calls: dict[int, Object] = {}
    for delta in deltas:
        call = calls.setdefault(
            delta["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] += delta.get("id") or ""
        for key in ("name", "arguments"):
            call["function"][key] += delta.get("function", {}).get(key) or ""
    return [calls[index] for index in sorted(calls)]


class Shape(Protocol):
    """How one API writes its answers to one request, as JSON objects. With `include_usage`, every event but the last
    has `usage` null."""

    def opening_event(self) -> Object | None:
        """Return the event of a stream before the first piece; None: the API has no such event."""

    def chunk_event(self, piece: Piece) -> Object:
        """Return the event of a stream for one piece, also for an empty one."""

    def counts_event(self, job: Job) -> Object:
        """Return the last event of a stream, which holds token counts and no choice. Send it only if the request asks
        for usage."""

    def whole_answer(self, pieces: Sequence[Piece], job: Job) -> Object:
        """Return the answer to a request that does not stream, with token counts. `pieces`: all pieces of the answer.
        If none of them has a finish reason, the answer's is `stop`."""


@dataclass(frozen=True, slots=True)
class _Envelope:
    id: str
    model: str
    created: int
    with_usage: bool

    def wrap(self, kind: str, choices: list[Object]) -> Object:
        # With include_usage, every event but the last has a usage of null.
        null = {"usage": None} if self.with_usage else {}
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **null,
        }


@dataclass(frozen=True, slots=True)
class ChatShape(_Envelope):
    """Writes the answers of `/v1/chat/completions`: `chat.completion` and `chat.completion.chunk` objects. See
    `Shape`."""

    def opening_event(self) -> Object | None:
        return self._chunk({"role": "assistant", "content": ""}, None)

    def chunk_event(self, piece: Piece) -> Object:
        delta = _thought(piece.thought)
        if piece.text:
            delta["content"] = piece.text
        if piece.tool_calls:
            delta["tool_calls"] = list(piece.tool_calls)
        return self._chunk(delta, piece.finish_reason, piece.stop_reason)

    def counts_event(self, job: Job) -> Object:
        return {**self.wrap("chat.completion.chunk", []), "usage": usage_object(job)}

    def whole_answer(self, pieces: Sequence[Piece], job: Job) -> Object:
        """Return the `chat.completion` object. Its content is null if there are tool calls and no text."""
        message: Object = {"role": "assistant", "content": "".join(piece.text for piece in pieces)}
        message |= _thought("".join(piece.thought for piece in pieces))
        calls = merge_tool_calls(delta for piece in pieces for delta in piece.tool_calls)
        if calls:
            message |= {"content": message["content"] or None, "tool_calls": calls}
        choice = {"index": 0, "message": message, "logprobs": None, **_end(*_end_of(pieces))}
        return {**self.wrap("chat.completion", [choice]), "usage": usage_object(job)}

    def _chunk(self, delta: Object, finish_reason: FinishReason | None, stop_reason: str | None = None) -> Object:
        choice = {"index": 0, "delta": delta, "logprobs": None, **_end(finish_reason, stop_reason)}
        return self.wrap("chat.completion.chunk", [choice])


@dataclass(frozen=True, slots=True)
class CompletionShape(_Envelope):
    """Writes the answers of `/v1/completions`: `text_completion` objects, for streams too. Thoughts and tool calls are
    left out."""

    def opening_event(self) -> Object | None:
        return None

    def chunk_event(self, piece: Piece) -> Object:
        choice = _text_choice(piece.text, piece.finish_reason, piece.stop_reason)
        return self.wrap("text_completion", [choice])

    def counts_event(self, job: Job) -> Object:
        return {**self.wrap("text_completion", []), "usage": usage_object(job)}

    def whole_answer(self, pieces: Sequence[Piece], job: Job) -> Object:
        text = "".join(piece.text for piece in pieces)
        return {**self.wrap("text_completion", [_text_choice(text, *_end_of(pieces))]), "usage": usage_object(job)}


def _text_choice(text: str, finish_reason: FinishReason | None, stop_reason: str | None) -> Object:
    return {"index": 0, "text": text, "logprobs": None, **_end(finish_reason, stop_reason)}


def _end(finish_reason: FinishReason | None, stop_reason: str | None) -> Object:
    """Return the fields that say why a choice ended. `stop_reason` is vLLM's field for the stop string."""
    stop = {} if stop_reason is None else {"stop_reason": stop_reason}
    return {"finish_reason": finish_reason, **stop}


def _end_of(pieces: Sequence[Piece]) -> tuple[FinishReason, str | None]:
    last = next((piece for piece in reversed(pieces) if piece.finish_reason), Piece())
    return last.finish_reason or "stop", last.stop_reason


def _thought(text: str) -> Object:
    """Return the fields of a thought, under both names that clients read."""
    return {"reasoning_content": text, "reasoning": text} if text else {}


def embeddings_object(vectors: list[list[float]], model: str, encoding: Literal["float", "base64"], job: Job) -> Object:
    """Return the answer of `/v1/embeddings`, with the vectors in order. `base64` encodes each as float32,
    little-endian; `float` is a list of numbers. `job` gives the token counts."""
    data = [
        {"object": "embedding", "index": index, "embedding": vector if encoding == "float" else _base64(vector)}
        for index, vector in enumerate(vectors)
    ]
    counts = {"prompt_tokens": job.prompt_tokens, "total_tokens": job.prompt_tokens}
    return {"object": "list", "data": data, "model": model, "usage": counts}


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
