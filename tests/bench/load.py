"""A load generator in raw asyncio: lean, so that what it measures is the other side. HTTP/1.1, one host."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, cast

_CHUNKED_END = b"0\r\n\r\n"


def request_bytes(port: int, **fields: Any) -> bytes:
    """A chat completion request as it goes over the wire."""
    body = json.dumps({"model": "bench", "messages": [{"role": "user", "content": "x" * 100}], **fields}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer none\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """One connection that asks again and again."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._buffer = b""
        self._needs = -1
        self._done: asyncio.Future[None] | None = None
        self.events = 0
        self._streaming = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        """A closed connection is a failed measurement."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("closed by the server"))

    async def ask(self, request: bytes) -> None:
        """Send a request and wait for the whole answer. Anything but 200 is an error."""
        self._buffer = b""
        self._needs = -1
        self._streaming = False
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        await self._done

    def data_received(self, data: bytes) -> None:
        """Count events, notice the end."""
        if self._streaming:
            self._take_events(data)
            return
        self._buffer += data
        if self._needs < 0:
            self._read_head()
        if 0 <= self._needs <= len(self._buffer):
            self._finish()

    def _read_head(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        assert self._done is not None
        if not head.startswith(b"http/1.1 200"):
            self._done.set_exception(RuntimeError(self._buffer[:300].decode()))
        elif b"transfer-encoding: chunked" in head:
            self._streaming = True
            self._take_events(self._buffer)
        else:
            length = head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]
            self._needs = end + 4 + int(length)

    def _take_events(self, data: bytes) -> None:
        self.events += data.count(b"data: ")
        if data.endswith(_CHUNKED_END):
            self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


async def connect(port: int, count: int) -> list[Connection]:
    """So many connections to a port of this machine."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(count)]


async def sequential_p50_ms(port: int, requests: int) -> float:
    """Median milliseconds of one request after the other."""
    (connection,) = await connect(port, 1)
    request = request_bytes(port)
    times = []
    for _ in range(requests):
        start = time.perf_counter()
        await connection.ask(request)
        times.append(time.perf_counter() - start)
    connection.transport.close()
    return sorted(times)[len(times) // 2] * 1000


async def requests_per_second(port: int, connections: int, seconds: float) -> tuple[float, int]:
    """Blocking requests answered per second, every connection always busy; and how many they were."""
    opened = await connect(port, connections)
    request = request_bytes(port)
    answered = 0
    end = time.perf_counter() + seconds

    async def work(connection: Connection) -> None:
        nonlocal answered
        while time.perf_counter() < end:
            await connection.ask(request)
            answered += 1

    start = time.perf_counter()
    await asyncio.gather(*(work(connection) for connection in opened))
    taken = time.perf_counter() - start
    for connection in opened:
        connection.transport.close()
    return answered / taken, answered


async def events_per_second(port: int, streams: int, events: int) -> float:
    """Events received per second over so many streams of so many events each."""
    opened = await connect(port, streams)
    request = request_bytes(port, stream=True, max_tokens=events)
    start = time.perf_counter()
    await asyncio.gather(*(connection.ask(request) for connection in opened))
    taken = time.perf_counter() - start
    received = sum(connection.events for connection in opened)
    for connection in opened:
        connection.transport.close()
    assert received >= streams * events, f"{received} events of {streams * events}"
    return received / taken
