"""Whatever bytes a client sends, however cut and ended: whole answers in a form of ours or a closed connection, never a
hang, never a 500, nothing left, and the next client is served."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.server.connection import _is_incomplete
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.properties.gateway.upstream.test_client import Edit
from tests.support.campaign import campaign_count
from tests.support.loop_clock import LoopClock, moved_by_hand
from tests.support.queueing import key
from tests.support.raw_http import Answer, RawClient, chat_body, raw, request, spotless

KEY = "authorization: Bearer secret-alice"
BODY = chat_body()
CHUNKED = b"5;a=b\r\n%b\r\n%x\r\n%b\r\n0\r\nx: y\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])
HEAD = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n{KEY}\r\n".encode()
VALID = [
    request(headers=[KEY]),
    request(body=chat_body(stream=True), headers=[KEY]),
    request("GET", "/v1/models", headers=[KEY]),
    request("POST", "/v1/admin/plan", b'{"a": 1}', [KEY]),
    request("POST", "/v1/messages", chat_body(), [KEY]),
    request("POST", "/tokenize?model=m", b'{"content": "Hi"}', [KEY]),
    request("GET", "/health"),
    request(body=chat_body(fault="bad_request"), headers=[KEY]),
    HEAD + b"transfer-encoding: chunked\r\n\r\n" + CHUNKED,
    request(headers=[KEY, "expect: 100-continue"]),
    request(headers=[KEY, "connection: Upgrade, HTTP2-Settings", "upgrade: h2c"]),
    request("POST", "/v1/admin/plan", b"{}", [KEY, "connection: upgrade", "upgrade: websocket"]),
    request(headers=[KEY, "connection: close"]),
    request(headers=[KEY]).replace(b"HTTP/1.1", b"HTTP/1.0"),
    request(target="http://localhost/v1/chat/completions", headers=[KEY]),
]
inserted = st.one_of(
    st.binary(min_size=1, max_size=6),
    st.sampled_from(
        [
            b"\r\n",
            b"\r\n\r\n",
            b"0\r\n\r\n",
            b"\n",
            b"\0",
            b"transfer-encoding: chunked\r\n",
            b"content-length: 3\r\n",
            b"connection: close\r\n",
            b"connection: upgrade\r\nupgrade: h2c\r\n",
            b"expect: 100-continue\r\n",
            b"HTTP/1.1",
            b"a" * 5000,
            request("GET", "/v1/models/smuggled"),
        ]
    ),
)
edits = st.builds(
    Edit, st.sampled_from(["delete", "duplicate", "flip", "insert"]), st.integers(0, 500), st.integers(1, 40), inserted
)
cuts: st.SearchStrategy[list[int]] = st.one_of(
    st.just(list(range(2000))), st.just([]), st.lists(st.integers(1, 600), max_size=12)
)
End = Literal["close", "half-close", "reset", "stall"]
ends: st.SearchStrategy[End] = st.sampled_from(["close", "half-close", "reset", "stall"])


@dataclass
class Bench:
    """One gateway for all examples, on a loop that runs during each."""

    runner: asyncio.Runner
    clock: LoopClock
    gateway: GatewayHarness
    engine: MockEngine
    told: list[str]
    """What nobody caught, and errors in the log."""


class _Kept(logging.Handler):
    def __init__(self, told: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        self._told.append(record.getMessage())


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """The gateway, with a key and an engine. Its patience ends when the clock is moved, not on a slow machine."""
    told: list[str] = []
    handler, stack = _Kept(told), contextlib.AsyncExitStack()
    logging.getLogger().addHandler(handler)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def start() -> Bench:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context)))
            gateway = await stack.enter_async_context(
                gateway_harness(client_timeout_s=10, keep_alive_s=10, max_header_kib=4)
            )
            (engine,) = await stack.enter_async_context(engines(1))
            await gateway.publish(route("m", [engine.url]), keys=(key("alice", scopes=("inference", "admin")),))
            return Bench(runner, clock, gateway, engine, told)

        with moved_by_hand(runner.get_loop()) as clock:
            yield runner.run(start())
            runner.run(stack.aclose())
    logging.getLogger().removeHandler(handler)


def parts_of(sent: bytes, places: list[int]) -> list[bytes]:
    """Cut there."""
    at = sorted({0, len(sent), *(place for place in places if place < len(sent))})
    return [sent[begin:end] for begin, end in itertools.pairwise(at)]


async def scenario(bench: Bench, sent: bytes, places: list[int], end: End) -> RawClient:
    """One client, from its first byte until nothing of it is left."""
    async with raw(bench.gateway) as client:
        await client.send(*parts_of(sent, places))
        if end == "half-close":
            client.half_close()
        elif end == "reset":
            client.reset()
        if end != "close" and end != "reset":
            reading = asyncio.create_task(client.to_the_end())
            while not reading.done():
                # Time goes on only while it is the client's turn.
                await (asyncio.sleep(0) if is_being_served(bench.gateway) else bench.clock.skip(0.5))
            await reading
    await spotless(bench.gateway)
    return client


def is_being_served(gateway: GatewayHarness) -> bool:
    """Whether some client's request is there and its answer is not."""
    assert gateway.server is not None
    connections: Any = gateway.server.server_state.connections
    return any(each._current_call is not None and not _is_incomplete(each._current_call) for each in connections)


def check(answer: Answer) -> None:
    """It is one of ours, and no 500."""
    assert answer.status != 500, answer
    if answer.status >= 400 and answer.whole:
        assert answer.error["code"], answer
        assert isinstance(answer.error["message"], str)
    assert not [value for name, value in answer.headers if name == "x-injected" or "\r" in value or "\n" in value]


def build_request(body: Any) -> bytes:
    """A chat with that body."""
    return request(body=json.dumps(body).encode(), headers=[KEY])


@settings(max_examples=campaign_count(50, 2_000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(VALID), st.lists(edits, max_size=3)), min_size=1, max_size=4), cuts, ends)
@example([(VALID[0], []), (b"garbage\r\n\r\n", [])], [], "stall")
@example([(request("GET", "/" + "a" * 5000), []), (VALID[0], [])], [], "stall")
@example([(VALID[0], []), (request("POST", "/" + "a" * 5000, b"{}"), []), (VALID[0], [])], [], "stall")
@example([(VALID[10], []), (VALID[11], []), (VALID[2], [])], [], "stall")
@example(
    [(build_request([]), []), (build_request(None), []), (build_request({"model": "m", "stream": 1}), [])], [], "close"
)
def test_any_bytes_any_cuts_any_ending(
    bench: Bench, requests: list[tuple[bytes, list[Edit]]], places: list[int], end: End
) -> None:
    sent = b""
    for valid, changes in requests:
        for change in changes:
            valid = change.of(valid)  # noqa: PLW2901
        sent += valid
    client = bench.runner.run(scenario(bench, sent, places, end))
    for answer in client.answers:
        check(answer)
    if end == "stall":
        assert all(answer.whole for answer in client.answers)
    assert len(client.answers) <= sent.count(b"HTTP/1") + 1, "one for each, and one refusal"
    assert [answer.status for answer in bench.runner.run(scenario(bench, VALID[0], [], "stall")).answers] == [200]
    assert bench.told == []
    bench.engine.requests.clear()


@settings(max_examples=campaign_count(5, 200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(VALID[:12]), min_size=1, max_size=5), st.lists(st.integers(1, 2000), max_size=40))
def test_cuts_change_nothing_of_valid_requests(bench: Bench, requests: list[bytes], places: list[int]) -> None:
    results = []
    for cut in ([], places):
        client = bench.runner.run(scenario(bench, b"".join(requests), cut, "stall"))
        results.append([(answer.status, answer.whole) for answer in client.answers])
    assert results[0] == results[1]
    assert len(results[0]) == len(requests)
    assert bench.told == []
