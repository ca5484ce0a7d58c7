"""A fake engine for benchmarks: chat completions from ready-made bytes, no task and no JSON on the way.

Whatever it costs is taken from the machine that is measured. It waits for a reader that is slow, as engines do. A
stream has `max_tokens` events, as fast as they go; the field `user`, which every proxy passes on, changes that:
`pace:0.05` puts seconds between events, `step:0.002` gives all such streams their next event at once, each time so many
seconds are over, and `idle` ends the stream after the first one without closing it.

    python -m tests.bench.engine     prints its port, then serves until SIGTERM
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import cycle
from typing import Any, cast

import uvloop

WORDS = ("The", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog.", "And", "then", "it", "sleeps!")
PROMPT_TOKENS = 7
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(choices: list[dict[str, Any]], **fields: Any) -> bytes:
    payload = {"id": "bench-1", "object": "chat.completion.chunk", "created": 1, "model": "bench", "choices": choices}
    return _chunk(b"data: " + json.dumps(payload | fields, separators=(",", ":")).encode() + b"\n\n")


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens, "total_tokens": PROMPT_TOKENS + tokens}


def _whole() -> bytes:
    message = {"role": "assistant", "content": " ".join(WORDS)}
    payload = {
        "id": "bench-1",
        "object": "chat.completion",
        "created": 1,
        "model": "bench",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": _usage(len(WORDS)),
    }
    body = json.dumps(payload, separators=(",", ":")).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


WHOLE = _whole()
EVENTS = [_event([{"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}]) for word in WORDS]
LAST_EVENT = _event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Batch:
    """Streams that get their next event in the same step."""

    def __init__(self, step_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._step_s = step_s
        self._waiting: list[Callable[[], None]] = []
        self._next_at = self._loop.time()
        self._run()

    def call_next(self, step: Callable[[], None]) -> None:
        self._waiting.append(step)

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []
        for step in waiting:
            step()
        self._next_at += self._step_s
        self._loop.call_at(self._next_at, self._run)


class Engine(asyncio.Protocol):
    """One connection: one request at a time."""

    def __init__(self, batches: dict[float, Batch]) -> None:
        """`batches`: of all connections, by the seconds of a step."""
        self._loop = asyncio.get_running_loop()
        self._batches = batches
        self._transport: asyncio.Transport
        self._buffer = b""
        self._events = cycle(EVENTS)
        self._left = 0
        self._tokens = 0
        self._pace_s = self._step_s = 0.0
        self._wants_usage = False
        self._stopped = False
        """The reader is slow, or gone."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        self._stopped, self._left = True, 0

    def pause_writing(self) -> None:
        self._stopped = True

    def resume_writing(self) -> None:
        self._stopped = False
        if self._left:
            self._loop.call_soon(self._step)

    def data_received(self, data: bytes) -> None:
        """Answer once the request is whole."""
        self._buffer += data
        head, blank, body = self._buffer.partition(b"\r\n\r\n")
        if not blank or len(body) < _content_length(head):
            return
        self._buffer = b""
        fields = json.loads(body) if b'"stream"' in body else {}
        if fields.get("stream"):
            self._start(fields)
        else:
            self._transport.write(WHOLE)

    def _start(self, fields: dict[str, Any]) -> None:
        self._left = self._tokens = int(fields.get("max_tokens") or len(WORDS))
        self._wants_usage = bool((fields.get("stream_options") or {}).get("include_usage"))
        mode, _, value = str(fields.get("user") or "").partition(":")
        self._pace_s = float(value) if mode == "pace" else 0.0
        self._step_s = float(value) if mode == "step" else 0.0
        self._transport.write(_STREAM_HEAD)
        if mode == "idle":
            self._left = 0
            self._transport.write(EVENTS[0])
        elif self._step_s:
            self._join_batch()
        else:
            self._step()

    def _step(self) -> None:
        """One event, and the next one later: each is its own write, as an engine's are."""
        if self._stopped or not self._left:
            return
        self._transport.write(next(self._events))
        self._left -= 1
        if not self._left:
            usage = _event([], usage=_usage(self._tokens)) if self._wants_usage else b""
            self._transport.write(LAST_EVENT + usage + END)
        elif self._pace_s:
            self._loop.call_later(self._pace_s, self._step)
        elif self._step_s:
            self._join_batch()
        else:
            self._loop.call_soon(self._step)

    def _join_batch(self) -> None:
        if self._step_s not in self._batches:
            self._batches[self._step_s] = Batch(self._step_s)
        self._batches[self._step_s].call_next(self._step)


def _content_length(head: bytes) -> int:
    lower = head.lower()
    at = lower.find(b"\r\ncontent-length:")
    return int(lower[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


async def _serve() -> None:
    batches: dict[float, Batch] = {}
    server = await asyncio.get_running_loop().create_server(lambda: Engine(batches), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
