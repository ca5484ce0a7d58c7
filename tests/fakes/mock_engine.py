"""A fake: an engine that speaks OpenAI's API without a model, as fast as asyncio allows, and fails on request.

A request names its fault in the field `"fault"`; unknown fields reach engines, so a gateway in between passes it on.
The answer to anything is `WORDS`, one event a word; `max_tokens` sets their number.

    python -m tests.fakes.mock_engine --port 0     prints its port, then serves until SIGTERM
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

WORDS = ["The", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog.", "And", "then", "it", "sleeps!"]
PROMPT_TOKENS = 7
HTML_ERROR = b"<html><head><title>x</title></head><body><h1>It broke</h1><p>badly</p></body></html>"
_ERRORS: dict[str, tuple[int, str, bytes]] = {
    "bad_request": (
        400,
        "application/json",
        b'{"error":{"message":"too hot","type":"invalid_request_error","code":400}}',
    ),
    "error_json": (500, "application/json", b'{"error":{"message":"exploded","type":"server_error","code":500}}'),
    "error_detail": (422, "application/json", b'{"detail":"no such temperature"}'),
    "error_html": (500, "text/html", HTML_ERROR),
    "busy": (503, "application/json", b'{"error":{"message":"busy","type":"server_error","code":503}}'),
    "redirect": (307, "text/plain", b""),
}


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.raw)
        return fields


@dataclass
class MockEngine:
    """One engine. What it saw can be read off it; `release` lets requests with the fault `hold` go on."""

    words: list[str] = field(default_factory=lambda: list(WORDS))
    requests: list[Request] = field(default_factory=list)
    running: int = 0
    cancelled: int = 0
    connections: int = 0
    keep: bool = True
    """Remember requests. Off for benchmarks."""
    breaks_all: bool = False
    """It accepts connections and closes each at its next request, as docker-proxy does before a container that dies."""
    release: asyncio.Event = field(default_factory=asyncio.Event)
    open_transports: set[asyncio.Transport] = field(default_factory=set)
    _server: asyncio.Server | None = None
    port: int = 0
    answers: dict[str, bytes] = field(default_factory=dict)
    """Blocking answers with their headers, by path."""

    @property
    def client_requests(self) -> list[Request]:
        """The requests but those for `/metrics`, which a gateway sends of its own, at most once in 5 s."""
        return [each for each in self.requests if each.path != "/metrics"]

    async def start(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Close the port and every connection, as a killed process would."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop_connections()
        await asyncio.sleep(0)

    def drop_connections(self) -> None:
        for transport in list(self.open_transports):
            transport.abort()


class _Connection(asyncio.Protocol):
    def __init__(self, engine: MockEngine) -> None:
        self.engine = engine
        self.buffer = b""
        self.requests = 0
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self.engine.connections += 1
        self.engine.open_transports.add(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.open_transports.discard(self.transport)
        if self.task is not None and not self.task.done():
            self.engine.cancelled += 1
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, blank, rest = self.buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        length = _content_length(head)
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        request_line, _, lines = head.decode("latin-1").partition("\r\n")
        self.answer(Request(request_line.split(" ")[1], _headers(lines) if self.engine.keep else {}, rest[:length]))

    def answer(self, request: Request) -> None:
        """Answer a plain blocking request at once, anything else in a task."""
        self.requests += 1
        if self.engine.keep:
            self.engine.requests.append(request)
        if self.engine.breaks_all:
            self.transport.close()
            return
        if b'"fault"' not in request.raw and b'"stream":true' not in request.raw.replace(b" ", b""):
            self.transport.write(self.whole(request))
            return
        self.engine.running += 1
        self.task = asyncio.get_running_loop().create_task(self.run(request))

    async def run(self, request: Request) -> None:
        """Answer as the request's fault says."""
        try:
            body = request.body
            fault = str(body.get("fault", ""))
            if fault == "hold":
                await self.engine.release.wait()
                fault = str(body.get("then", ""))
            if fault == "die_before_answer" or (fault == "die_if_kept" and self.requests > 1):
                self.transport.close()
            elif fault == "garbage":
                self.transport.write(b"this is not HTTP\r\n\r\n")
                self.transport.close()
            elif fault in _ERRORS:
                self.transport.write(_error(fault))
            elif body.get("stream") and fault != "no_stream":
                await self.stream(body, fault)
            else:
                await self.blocking(request, fault)
        finally:
            self.engine.running -= 1

    async def blocking(self, request: Request, fault: str) -> None:
        """A whole answer, or what the fault makes of it."""
        whole = self.whole(request)
        if fault == "die_mid_body":
            self.transport.write(whole[:-20])
            self.transport.abort()
        elif fault == "wrong_length":
            self.transport.write(whole[:-20])
            self.transport.close()
        elif fault == "stall":
            self.transport.write(whole[:-20])
            await asyncio.Event().wait()
        elif fault == "huge":
            await self.huge(int(request.body["bytes"]), dies=bool(request.body.get("dies")))
        else:
            self.transport.write(whole)

    async def huge(self, size: int, *, dies: bool) -> None:
        """A JSON string of `size` bytes; `dies` breaks it off in the middle."""
        self.transport.write(_head(200, "application/json", size) + b'"')
        half = (size - 2) // 2
        self.transport.write(b"x" * half)
        await asyncio.sleep(0.05)
        if dies:
            self.transport.abort()
        else:
            self.transport.write(b"x" * (size - 2 - half) + b'"')

    def whole(self, request: Request) -> bytes:
        """A blocking answer with its headers."""
        known = self.engine.answers.get(request.path)
        if known is not None:
            return known
        payload = _ANSWERS.get(request.path.rpartition("/")[2])
        if payload is None:
            payload = _completion(request.path, " ".join(self.engine.words), len(self.engine.words))
        body = json.dumps(payload, separators=(",", ":")).encode()
        answer = self.engine.answers[request.path] = _head(200, "application/json", len(body)) + body
        return answer

    async def stream(self, body: dict[str, Any], fault: str) -> None:
        """Events, one a word, or what the fault makes of them."""
        line = b"\r\n" if fault == "crlf" else b"\n"
        self.write_head_of_stream()
        count = int(body.get("max_tokens") or len(self.engine.words))
        tail = [_done_event()]
        if (body.get("stream_options") or {}).get("include_usage"):
            tail.insert(0, _usage_event(count))
        after = int(body.get("after", 3))
        for number in range(count):
            if number == after and await self.fails_mid_stream(fault):
                return
            word = self.engine.words[number % len(self.engine.words)]
            self.chunk(_word_event(word, is_last=number == count - 1).replace(b"\n", line), fault)
            await asyncio.sleep(float(body.get("pause", 0)))
        if fault == "no_done":
            tail.pop()
        for event in tail:
            self.chunk(event.replace(b"\n", line), fault)
        if fault == "late_end":
            await self.engine.release.wait()
        self.transport.write(b"0\r\n\r\n")

    def write_head_of_stream(self) -> None:
        """Headers of a chunked event stream, and some that must not reach a client."""
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
            b"server: mock\r\naccess-control-allow-origin: *\r\nset-cookie: a=b\r\n\r\n"
        )

    async def fails_mid_stream(self, fault: str) -> bool:
        """Fail in the way that `fault` names, if it is one of these; True if the stream is over."""
        if fault == "die_mid_stream":
            self.transport.abort()
            return True
        if fault == "end_early":
            self.transport.write(b"0\r\n\r\n")
            return True
        if fault == "error_event":
            self.chunk(b'data: {"error":{"message":"out of cells","type":"server_error","code":500}}\n\n', "")
            self.transport.write(b"0\r\n\r\n")
            return True
        if fault == "stall":
            await asyncio.Event().wait()
        if fault == "pause_until_release":
            await self.engine.release.wait()
        return False

    def chunk(self, event: bytes, fault: str) -> None:
        """One event as an HTTP chunk; `half_chunks` cuts it in two."""
        parts = [event[:9], event[9:]] if fault == "half_chunks" else [event]
        for part in parts:
            self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))


def _headers(lines: str) -> dict[str, str]:
    parted = (line.partition(":") for line in lines.split("\r\n"))
    return {name.lower(): value.strip() for name, _, value in parted}


def _content_length(head: bytes) -> int:
    lower = head.lower()
    at = lower.find(b"\r\ncontent-length:")
    return int(lower[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


def _head(status: int, content_type: str, length: int, extra: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status} X\r\nserver: mock\r\naccess-control-allow-origin: *\r\nset-cookie: a=b\r\n"
        f"content-type: {content_type}\r\n{extra}content-length: {length}\r\n\r\n"
    ).encode()


def _error(fault: str) -> bytes:
    status, content_type, body = _ERRORS[fault]
    extra = {"busy": "retry-after: 17\r\n", "redirect": "location: http://127.0.0.1:1/\r\n"}.get(fault, "")
    return _head(status, content_type, len(body), extra) + body


_COUNTED = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS}
_VECTOR = {"object": "embedding", "index": 0, "embedding": [0.25, -0.5, 1.0]}
_ANSWERS: dict[str, dict[str, Any]] = {
    "embeddings": {"object": "list", "data": [_VECTOR], "model": "mock", "usage": _COUNTED},
    "input_tokens": {"object": "response.input_tokens", "input_tokens": PROMPT_TOKENS},
    "rerank": {"model": "mock", "usage": _COUNTED, "results": [{"index": 0, "relevance_score": 0.5}]},
}
"""By the end of a path; of others, completions."""


def _completion(path: str, text: str, tokens: int) -> dict[str, Any]:
    chat = path.endswith("/chat/completions")
    content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {
        "id": "mock-1",
        "object": "chat.completion" if chat else "text_completion",
        "created": 1,
        "model": "mock",
        "choices": [{"index": 0, **content, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens, "total_tokens": PROMPT_TOKENS + tokens},
    }


def _event(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


def _chunk_payload(choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "mock-1", "object": "chat.completion.chunk", "created": 1, "model": "mock", "choices": choices}


def _word_event(word: str, *, is_last: bool) -> bytes:
    finish = "stop" if is_last else None
    choice = {"index": 0, "delta": {"content": f"{word} "}, "text": f"{word} ", "finish_reason": finish}
    return _event(_chunk_payload([choice]))


def _usage_event(tokens: int) -> bytes:
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens, "total_tokens": PROMPT_TOKENS + tokens}
    return _event({**_chunk_payload([]), "usage": usage})


def _done_event() -> bytes:
    return b"data: [DONE]\n\n"


async def _serve(port: int, announce: Callable[[int], None]) -> None:
    engine = MockEngine(keep=False)
    await engine.start(port)
    announce(engine.port)
    await asyncio.Event().wait()


def main() -> None:
    """Serve as a process of its own."""
    import uvloop

    parser = argparse.ArgumentParser(description="a fake engine")
    parser.add_argument("--port", type=int, default=0)
    port = parser.parse_args().port

    def announce(bound: int) -> None:
        print(bound, flush=True)

    try:
        uvloop.run(_serve(port, announce))
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
