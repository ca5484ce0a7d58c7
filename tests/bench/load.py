"""A load generator in raw asyncio: lean, so that what it measures is the other side. HTTP/1.1, one host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, cast

import psutil

_CHUNKED_END = b"0\r\n\r\n"
_EVENT = b"data: "
_KEPT = len(_EVENT) - 1
"""Bytes that are looked at again with the next read: what is searched for may lie across two."""


TEXT = "x" * 100
CHAT = "/v1/chat/completions"


def request_bytes(port: int, secret: str, **fields: Any) -> bytes:
    """A chat completion request as it goes over the wire."""
    return post_bytes(port, secret, CHAT, messages=[{"role": "user", "content": TEXT}], **fields)


def post_bytes(port: int, secret: str, path: str, **fields: Any) -> bytes:
    body = json.dumps({"model": "bench", **fields}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {secret}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._buffer = b""
        self._needs = -1
        self._done: asyncio.Future[None] | None = None
        self._begun: asyncio.Future[None] | None = None
        self.events = 0
        """Events of the last answer, if it is a stream."""
        self.first_event_at = 0.0
        """`time.perf_counter()` when the first of them came."""
        self._streaming = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        """A closed connection is a failed measurement."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("closed by the server"))

    def ask(self, request: bytes) -> asyncio.Future[None]:
        """Send a request; done with the whole answer. Anything but 200 is an error."""
        self._buffer = b""
        self._needs = -1
        self._streaming = False
        self.events = 0
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._done

    def begin(self, request: bytes) -> asyncio.Future[None]:
        """Send a stream's request; done with its first event. Nobody waits for its end."""
        self.ask(request)
        self._done, self._begun = None, asyncio.get_running_loop().create_future()
        return self._begun

    def data_received(self, data: bytes) -> None:
        """Count events, notice the end."""
        if self._streaming:
            self._take_events(self._buffer + data)
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
        if not head.startswith(b"http/1.1 200"):
            if self._done is not None and not self._done.done():
                self._done.set_exception(RuntimeError(self._buffer[:300].decode()))
        elif b"\r\ntransfer-encoding: chunked" in head:
            self._streaming = True
            self._take_events(self._buffer[end + 4 :])
        else:
            length = head.split(b"\r\ncontent-length:", 1)[1].split(b"\r\n", 1)[0]
            self._needs = end + 4 + int(length)

    def _take_events(self, data: bytes) -> None:
        count = data.count(_EVENT)
        if count and not self.events:
            self.first_event_at = time.perf_counter()
            if self._begun is not None and not self._begun.done():
                self._begun.set_result(None)
        self.events += count
        self._buffer = data[-_KEPT:]
        if data.endswith(_CHUNKED_END):
            self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


async def connect(port: int, count: int) -> list[Connection]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(count)]


def close(connections: Sequence[Connection]) -> None:
    for connection in connections:
        connection.transport.close()


async def sequential_p50_ms(port: int, request: bytes, requests: int, limit_s: float) -> float:
    """Median milliseconds of one request after the other, so many of them or as many as `limit_s` allows."""
    return await _median_ms(port, request, requests, limit_s, lambda _: time.perf_counter())


async def first_event_p50_ms(port: int, request: bytes, requests: int, limit_s: float) -> float:
    """Median milliseconds from a stream's request to its first event, one stream after the other."""
    return await _median_ms(port, request, requests, limit_s, lambda connection: connection.first_event_at)


async def _median_ms(
    port: int, request: bytes, requests: int, limit_s: float, read_end: Callable[[Connection], float]
) -> float:
    (connection,) = await connect(port, 1)
    times: list[float] = []
    end = time.perf_counter() + limit_s
    while len(times) < requests:
        start = time.perf_counter()
        await connection.ask(request)
        ended = read_end(connection)
        times.append(ended - start)
        if ended > end:
            break
    close([connection])
    return sorted(times)[len(times) // 2] * 1000


async def requests_per_second(port: int, request: bytes, connections: int, seconds: float) -> tuple[float, int]:
    """Blocking requests answered per second, every connection always busy; and how many they were."""
    opened = await connect(port, connections)
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
    close(opened)
    return answered / taken, answered


async def events_per_second(port: int, request: bytes, streams: int, events: int) -> float:
    """Events per second over so many streams at a time of so many events each, their beginnings and ends included."""
    opened = await connect(port, streams)
    start = time.perf_counter()
    await asyncio.gather(*(connection.ask(request) for connection in opened))
    taken = time.perf_counter() - start
    fewest = min(connection.events for connection in opened)
    close(opened)
    assert fewest >= events, f"{fewest} events of {events}"
    return streams * events / taken


async def open_streams(port: int, request: bytes, streams: int, limit_s: float) -> list[Connection]:
    """Streams that have begun and go on; fewer than asked for if `limit_s` is over before."""
    opened: list[Connection] = []
    end = time.perf_counter() + limit_s
    while len(opened) < streams and time.perf_counter() < end:
        batch = await connect(port, min(50, streams - len(opened)))
        begun = [connection.begin(request) for connection in batch]
        await asyncio.wait(begun, timeout=max(0.0, end - time.perf_counter()))
        opened += [connection for connection in batch if connection.events]
        close([connection for connection in batch if not connection.events])
    return opened


async def wait_until_answered(port: int, request: bytes, limit_s: float) -> None:
    """Until the request is answered with 200. Raises TimeoutError."""
    async with asyncio.timeout(limit_s):
        while True:
            try:
                (connection,) = await connect(port, 1)
                await connection.ask(request)
            except (OSError, RuntimeError):
                await asyncio.sleep(0.05)
            else:
                close([connection])
                return


def allow_many_files() -> None:
    """As many as this process may open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def with_own_core(*measured: int, others: Collection[int] = ()) -> Iterator[None]:
    """Let the measured processes (ids) have one core for themselves while the block runs; they share it.

    This process, `others`, and what this process starts meanwhile run on the other cores. Children of either, and all
    their threads, go with them. Without a second core, nothing is changed.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield
        return
    for pid in measured:
        _pin(pid, cores[:1])
    for pid in others:
        _pin(pid, cores[1:])
    os.sched_setaffinity(0, cores[1:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _pin(pid: int, cores: Sequence[int]) -> None:
    own = psutil.Process(pid)
    for process in (own, *own.children(recursive=True)):
        for thread in process.threads():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread.id, cores)
