"""Clients that mean no good, each kind a coroutine: it does its worst once, from an address of its own, and is gone.

No kind minds what it is answered, and none fails: whoever runs them looks at the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TOKENIZE = "/tokenize"
MODEL, NARROW, COLD, GONE = "m", "narrow", "cold", "gone"
"""A model with two replicas, one with a single slot, one that is not loaded, and one whose engine nobody runs."""
_RESET = struct.pack("ii", 1, 0)
_SMALL_BUFFER = 4096
_ENGINE_FAULTS = (
    "bad_request",
    "busy",
    "die_before_answer",
    "die_if_kept",
    "die_mid_body",
    "die_mid_stream",
    "end_early",
    "error_detail",
    "error_event",
    "error_html",
    "error_json",
    "garbage",
    "no_done",
    "redirect",
    "wrong_length",
)
"""What `tests.fakes.mock_engine` does when it is asked to."""


@dataclass(frozen=True, slots=True)
class Target:
    """The gateway that the hostile clients attack: where it listens, one of its API keys, and its limits."""

    port: int
    secret: str
    """Of a key that it knows, while it knows any."""
    max_body_bytes: int
    hold_s: float
    """So long a client stays that waits for the gateway to lose patience."""


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_all(self, limit_s: float) -> bytes:
        """Until the gateway closes, or for so long."""
        received = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while data := await self.reader.read(65536):
                    received = received[-4096:] + data
        return received

    async def read_some(self, limit_s: float) -> bytes:
        """What comes next; empty where nothing does."""
        try:
            async with asyncio.timeout(limit_s):
                return await self.reader.read(65536)
        except TimeoutError:
            return b""

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def _connected(target: Target, rng: random.Random, *, buffer: int | None = None) -> AsyncIterator[_Connection]:
    """A connection from an address of this machine that is drawn anew each time."""
    sock = socket.socket()
    try:
        sock.setblocking(False)
        if buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.bind((f"127.{rng.randrange(1, 255)}.{rng.randrange(256)}.{rng.randrange(1, 255)}", 0))
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", target.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=buffer or 65536)
    except BaseException:
        sock.close()
        raise
    try:
        yield _Connection(reader, writer)
    finally:
        writer.transport.abort()


def _word(rng: random.Random, longest: int = 24) -> str:
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=rng.randrange(1, longest + 1)))


def _chat(rng: random.Random, model: str = MODEL, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": _word(rng)}], **fields}


def _request(
    target: Target,
    body: bytes | dict[str, Any] = b"",
    *,
    method: str = "POST",
    path: str = CHAT,
    headers: tuple[str, ...] = (),
    host: str = "127.0.0.1",
    secret: str | None = None,
    length: int | None = None,
) -> bytes:
    sent = json.dumps(body).encode() if isinstance(body, dict) else body
    lines = [
        f"{method} {path} HTTP/1.1",
        f"host: {host}",
        f"authorization: Bearer {target.secret if secret is None else secret}",
        "content-type: application/json",
        f"content-length: {len(sent) if length is None else length}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + sent


async def _send(target: Target, rng: random.Random, request: bytes) -> bytes:
    """Send and wait for the beginning of the answer."""
    async with _connected(target, rng) as connection:
        await connection.send(request)
        return await connection.read_some(target.hold_s)


async def slow_headers(target: Target, rng: random.Random) -> None:
    """Headers, some bytes at a time, without an end."""
    async with _connected(target, rng) as connection:
        await connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        for _ in range(rng.randrange(2, 6)):
            await connection.send(f"x-{_word(rng)}: {_word(rng)}\r\n".encode())
            if await connection.read_some(target.hold_s / 4):
                return


async def half_body(target: Target, rng: random.Random) -> None:
    """Half of a body, and then nothing, a close or a reset."""
    body = json.dumps(_chat(rng, padding=_word(rng, 20_000))).encode()
    async with _connected(target, rng) as connection:
        await connection.send(_request(target, body[: len(body) // 2], length=len(body)))
        end = rng.randrange(3)
        if end == 0:
            await connection.read_all(target.hold_s)
        elif end == 1:
            connection.reset()


async def reset_in_stream(target: Target, rng: random.Random) -> None:
    """A stream of any API, reset after its first bytes."""
    path = rng.choice((CHAT, CHAT, MESSAGES, RESPONSES))
    body: dict[str, Any] = _chat(rng, stream=True, max_tokens=200, pause=0.02)
    if path == RESPONSES:
        body = {"model": MODEL, "input": _word(rng), "stream": True}
    async with _connected(target, rng) as connection:
        await connection.send(_request(target, body, path=path))
        await connection.read_some(target.hold_s)
        connection.reset()


async def leave_waiting(target: Target, rng: random.Random) -> None:
    """A request whose engine never answers, or that waits in the queue before one slot; its client leaves."""
    model = rng.choice((MODEL, NARROW))
    async with _connected(target, rng) as connection:
        await connection.send(_request(target, _chat(rng, model, fault="stall", stream=rng.random() < 0.5)))
        await connection.read_some(rng.random() * 0.5)
        if rng.random() < 0.5:
            connection.reset()


async def huge_headers(target: Target, rng: random.Random) -> None:
    """One header that is too long, or very many, or just short enough."""
    kind = rng.randrange(3)
    headers: tuple[str, ...]
    if kind == 0:
        headers = (f"x-{_word(rng)}: {'a' * 40_000}",)
    elif kind == 1:
        headers = tuple(f"x-{_word(rng)}-{number}: {number}" for number in range(2000))
    else:
        headers = (f"x-{_word(rng)}: {_word(rng) * 1000}"[:30_000],)
    await _send(target, rng, _request(target, _chat(rng), headers=headers))


async def bad_http(target: Target, rng: random.Random) -> None:
    """A request with bytes flipped, cut and repeated; or none at all."""
    data = bytearray(_request(target, _chat(rng)))
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data))
        match rng.randrange(3):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case _:
                data[at:at] = data[at : at + rng.randrange(1, 40)]
    await _send(
        target, rng, rng.choice((bytes(data), rng.randbytes(200), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"))
    )


async def bad_json(target: Target, rng: random.Random) -> None:
    word = _word(rng).encode()
    body = rng.choice(
        (
            b"{" + word,
            b"[" * 5000,
            b'{"model": "\xff\xfe' + word + b'"}',
            b'{"model": ["' + word + b'"]}',
            b'{"model": "m", "messages": "' + word + b'"}',
            b'{"model": "m", "max_tokens": 1e999, "messages": {"' + word + b'": null}}',
            b'"' + word + b'"',
            b"",
        )
    )
    await _send(target, rng, _request(target, body, path=rng.choice((CHAT, MESSAGES, RESPONSES, "/v1/embeddings"))))


async def unknown_model(target: Target, rng: random.Random) -> None:
    """A model that never was, by a name that never comes again."""
    await _send(target, rng, _request(target, _chat(rng, _word(rng, rng.choice((24, 2000))))))


async def unknown_key(target: Target, rng: random.Random) -> None:
    secret = f"sk-{rng.randbytes(rng.randrange(1, 64)).hex()}"
    headers = (f"x-api-key: {_word(rng)}",) if rng.random() < 0.3 else ()
    await _send(target, rng, _request(target, _chat(rng), secret=secret, headers=headers))


async def unknown_host(target: Target, rng: random.Random) -> None:
    """A Host, and an Origin, that the gateway does not go by; or with a port of many digits."""
    host = rng.choice((f"{_word(rng)}.example", f"127.0.0.1:{rng.randrange(10**40)}", f"[{_word(rng)}]", ""))
    headers = (f"origin: https://{_word(rng)}.example",) if rng.random() < 0.5 else ()
    method, path = rng.choice((("POST", CHAT), ("GET", "/v1/models"), ("OPTIONS", CHAT)))
    body: Any = _chat(rng) if method == "POST" else b""
    await _send(target, rng, _request(target, body, method=method, path=path, host=host, headers=headers))


async def unknown_path(target: Target, rng: random.Random) -> None:
    """Paths and queries that never come again, on routes that there are and others."""
    path = rng.choice(
        (
            f"/{_word(rng)}/{_word(rng)}",
            f"/v1/models/{_word(rng, 400)}",
            f"/v1/responses/resp_{_word(rng, 40)}",
            f"/v1/responses/resp_{_word(rng, 40)}/input_items?after={_word(rng)}",
            f"/v1/models?{_word(rng)}={_word(rng)}",
            f"/health?{_word(rng)}",
            f"/v1/admin/models/{_word(rng)}",
            f"/props?model={_word(rng)}",
        )
    )
    method = rng.choice(("GET", "GET", "GET", "DELETE", "PUT", _word(rng).upper()))
    await _send(target, rng, _request(target, method=method, path=path))


async def new_prefix(target: Target, rng: random.Random) -> None:
    """A conversation that no other one begins like, with ids of its own."""
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": _word(rng, 200)}
        for number in range(rng.randrange(1, 41))
    ]
    fields = {"prompt_cache_key": _word(rng), "user": _word(rng), "metadata": {_word(rng): _word(rng)}}
    await _send(target, rng, _request(target, {"model": MODEL, "messages": turns, **fields}))


async def stored_response(target: Target, rng: random.Random) -> None:
    """A response that is stored, continued, and perhaps read and deleted; perhaps in the background."""
    body: dict[str, Any] = {"model": MODEL, "input": _word(rng, 2000), "store": True}
    if rng.random() < 0.2:
        body["background"] = True
    answer = await _send(target, rng, _request(target, body, path=RESPONSES))
    begin = answer.find(b'"id":"resp_')
    if begin < 0:
        begin = answer.find(b'"id": "resp_')
    if begin < 0:
        return
    response_id = answer[begin:].split(b'"')[3].decode()
    path = f"{RESPONSES}/{response_id}"
    again = {"model": MODEL, "input": _word(rng), "previous_response_id": response_id}
    await _send(target, rng, _request(target, again, path=RESPONSES))
    await _send(target, rng, _request(target, method="GET", path=path))
    if rng.random() < 0.5:
        await _send(target, rng, _request(target, method="DELETE", path=path))


async def refused_body(target: Target, rng: random.Random) -> None:
    """A long body that is read whole and then refused: for its model, its engine, or what it continues."""
    text = _word(rng) * 10_000
    if rng.random() < 0.5:
        model = rng.choice((COLD, GONE))
        body, path = {"model": model, "messages": [{"role": "user", "content": text}]}, CHAT
    else:
        unknown = f"resp_{rng.randbytes(24).hex()}"
        body, path = {"model": MODEL, "input": text, "previous_response_id": unknown}, RESPONSES
    await _send(target, rng, _request(target, body, path=path))


async def long_words(target: Target, rng: random.Random) -> None:
    """A query that its engine is asked with, and a name of the client's own, as long as they may be."""
    query, agent = (f"{_word(rng)}{'x' * rng.randrange(10_000)}" for _ in range(2))
    path, headers = f"{TOKENIZE}?{query}={query}", (f"user-agent: {agent}",)
    await _send(target, rng, _request(target, {"model": MODEL, "content": "x"}, path=path, headers=headers))


async def oversized_body(target: Target, rng: random.Random) -> None:
    """More than may be, announced or in chunks."""
    size = target.max_body_bytes + 1
    async with _connected(target, rng) as connection:
        if rng.random() < 0.7:
            await connection.send(_request(target, b"{" * 1000, length=size, headers=("expect: 100-continue",)))
        else:
            head = _request(target, b"", length=0).replace(b"content-length: 0", b"transfer-encoding: chunked")
            part = b"%x\r\n%b\r\n" % (65536, b" " * 65536)
            await connection.send(head)
            for _ in range(size // 65536 + 1):
                await connection.send(part)
        await connection.read_all(target.hold_s)


async def upgrade(target: Target, rng: random.Random) -> None:
    """A WebSocket that nobody offers."""
    headers = (
        "connection: Upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        f"sec-websocket-key: {_word(rng)}",
    )
    path = rng.choice((CHAT, "/v1/realtime", "/internal/link", f"/{_word(rng)}"))
    await _send(target, rng, _request(target, method="GET", path=path, headers=headers))


async def never_reads(target: Target, rng: random.Random) -> None:
    """A stream that nobody reads, until the gateway closes or its patience should be over."""
    body = _chat(rng, stream=True, max_tokens=3000)
    async with _connected(target, rng, buffer=_SMALL_BUFFER) as connection:
        await connection.send(_request(target, body))
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket's transport has it
        await asyncio.sleep(target.hold_s)


async def dying_engine(target: Target, rng: random.Random) -> None:
    """A request under which its engine fails in one of the ways that engines do."""
    path = rng.choice((CHAT, CHAT, MESSAGES, RESPONSES, "/v1/completions"))
    body: dict[str, Any] = _chat(rng, fault=rng.choice(_ENGINE_FAULTS), stream=rng.random() < 0.5, prompt=_word(rng))
    if path == RESPONSES:
        del body["messages"]
        body["input"] = _word(rng)
    if path == MESSAGES:
        body["max_tokens"] = 20
    async with _connected(target, rng) as connection:
        await connection.send(_request(target, body, path=path, headers=("connection: close",)))
        await connection.read_all(target.hold_s)


async def huge_answer(target: Target, rng: random.Random) -> None:
    """A long answer, whole or broken off by its engine, of which the client reads the beginning."""
    body = _chat(rng, fault="huge", bytes=rng.randrange(300_000, 1_500_000), dies=rng.random() < 0.5)
    await _send(target, rng, _request(target, body))


async def pipelined(target: Target, rng: random.Random) -> None:
    """Many requests in one write, and a reset among their answers."""
    requests = b"".join(_request(target, _chat(rng)) for _ in range(rng.randrange(2, 12)))
    async with _connected(target, rng) as connection:
        await connection.send(requests)
        await connection.read_some(target.hold_s)
        connection.reset()


async def says_nothing(target: Target, rng: random.Random) -> None:
    """A connection without a byte, closed at once or left open."""
    async with _connected(target, rng) as connection:
        if rng.random() < 0.3:
            await connection.read_all(target.hold_s)


KINDS: dict[str, tuple[int, Callable[[Target, random.Random], Awaitable[None]]]] = {
    kind.__name__: (weight, kind)
    for weight, kind in (
        (2, slow_headers),
        (4, half_body),
        (6, reset_in_stream),
        (6, leave_waiting),
        (4, huge_headers),
        (8, bad_http),
        (8, bad_json),
        (8, unknown_model),
        (8, unknown_key),
        (8, unknown_host),
        (8, unknown_path),
        (8, new_prefix),
        (4, stored_response),
        (4, refused_body),
        (2, long_words),
        (1, oversized_body),
        (3, upgrade),
        (1, never_reads),
        (8, dying_engine),
        (1, huge_answer),
        (2, pipelined),
        (3, says_nothing),
    )
}
"""Name to how often it comes, relative to the others, and the client."""


async def torment(name: str, target: Target, rng: random.Random) -> None:
    """Let one client do its worst. A connection that is refused or breaks under it is its own affair."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await KINDS[name][1](target, rng)
