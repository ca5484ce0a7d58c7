"""A request's body on its way in, and an answer that is broken off."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any, cast

import pytest
import uvloop

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.large_body import LargeBody
from gateway.server.body_budget import BodyRoom
from gateway.server.call import ClientCall


class Taker:
    """A handler that keeps what it is told."""

    def __init__(self) -> None:
        self.body: bytes | None = None
        self.error: RoundhouseError | None = None

    def take_body(self, body: bytes | LargeBody) -> None:
        self.body = body if isinstance(body, bytes) else body.join()

    def fail_request(self, error: RoundhouseError) -> None:
        self.error = error

    def client_gone(self) -> None:
        raise AssertionError

    client_full = client_ready = client_gone


class Line:
    """The connection's side: a transport, or none."""

    client = None
    default_lines = b""
    local_address = None

    def __init__(self, transport: Any = None, max_body_bytes: int = 4 * 2**20) -> None:
        self.transport = transport
        self.max_body_bytes = max_body_bytes

    def send_continue(self) -> None:
        raise AssertionError

    def reserve_body(self, size: int) -> BodyRoom:
        return BodyRoom(lambda: None, lambda *_: True)

    def finish_call(self, call: ClientCall) -> None:
        raise AssertionError


def call_on(line: Line, taker: Taker, *, chunked: bool = True) -> ClientCall:
    """A call, its headers read."""
    return ClientCall(line, lambda _: taker, b"POST", b"/", b"", [], keep_alive=True, is_http_1_1=chunked)


@pytest.mark.parametrize("parts", [[], [b"abc"], [b"a", b"bc"], [b"", b"a", b"", b"bc"]])
def test_the_parts_of_a_body_come_together(parts: list[bytes]) -> None:
    taker = Taker()
    call = call_on(Line(), taker)
    for part in parts:
        call.take_body(part)
    call.body_complete = True
    call.serve_request()
    assert taker.body == b"".join(parts)
    assert type(taker.body) is bytes


def test_a_body_in_one_part_is_not_copied() -> None:
    taker, part = Taker(), b"x" * 1000
    call = call_on(Line(), taker)
    call.take_body(part)
    call.body_complete = True
    call.serve_request()
    assert taker.body is part


def test_a_body_in_tiny_parts_takes_little_more_memory_than_its_bytes() -> None:
    size = 2**18
    call = call_on(Line(), Taker())
    tracemalloc.start()
    try:
        for number in range(size // 2):
            call.take_body(number.to_bytes(4, "big")[2:])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * size


def test_of_a_body_that_is_too_large_nothing_is_kept() -> None:
    taker = Taker()
    call = call_on(Line(max_body_bytes=3), taker)
    for part in (b"ab", b"cd", b"e"):
        call.take_body(part)
    call.body_complete = True
    call.serve_request()
    assert taker.error is not None
    assert taker.error.entry.code == "body_too_large"
    assert taker.body is None
    assert not call._body


class Breaking(asyncio.Protocol):
    """Breaks its answer off as soon as a client has come."""

    def __init__(self, *, chunked: bool) -> None:
        self._chunked = chunked

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        line = Line(cast("asyncio.Transport", transport))
        call = call_on(line, Taker(), chunked=self._chunked)
        call.start_response(200, b"", b"some")
        call.break_off()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_answer_whose_end_is_the_connections_end_is_broken_off_by_a_reset(new_loop: Any) -> None:
    async def ask(*, chunked: bool) -> bytes:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Breaking(chunked=chunked), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            try:
                return await reader.read()
            finally:
                writer.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        answer = runner.run(ask(chunked=True))
        assert answer.endswith(b"4\r\nsome\r\n"), "the last chunk is missing"
        with pytest.raises(ConnectionResetError):
            runner.run(ask(chunked=False))
