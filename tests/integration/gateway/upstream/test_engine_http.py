"""The engine client over real sockets: every form of an answer, however it is cut; what is sent; connections kept."""

from __future__ import annotations

import random
import socket

import pytest
from pydantic import SecretStr

from contract.routing import Endpoint
from gateway.upstream.client import EngineClient
from gateway.upstream.connection import MAX_HEAD_BYTES, ConnectionPool
from tests.fakes.fake_scripted_engine import OK, Script, Then, script, scripted
from tests.support.campaign import campaign_count
from tests.support.engine_calls import Recorder, client_of, endpoint, post
from tests.support.wait import until

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FORMS: dict[str, tuple[bytes, int, bytes, Then, bool]] = {
    # answer, status, body, what the engine does then, whether the connection may be kept
    "length": (b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", "keep", True),
    "empty": (b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n", 500, b"", "keep", True),
    "chunks": (CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", 200, b"hello", "keep", True),
    "trailers": (CHUNKED + b"5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n", 200, b"hello", "keep", True),
    "eof": (b"HTTP/1.1 200 OK\r\nx: y\r\n\r\nhello", 200, b"hello", "close", False),
    "eof_empty": (b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n", 200, b"", "close", False),
    "http10": (b"HTTP/1.0 200 OK\r\n\r\nhello", 200, b"hello", "close", False),
    "http10_length": (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", 200, b"hello", "keep", False),
    "closes": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello", 200, b"hello", "keep", False),
    "no_content": (b"HTTP/1.1 204 No\r\nx: y\r\n\r\n", 204, b"", "keep", True),
    "not_modified": (b"HTTP/1.1 304 No\r\ncontent-length: 5\r\n\r\n", 304, b"", "keep", True),
    "informed": (b"HTTP/1.1 100 Go\r\na: b\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n" + OK, 200, b"ok", "keep", True),
}


@pytest.mark.parametrize("form", list(FORMS))
async def test_each_form_of_an_answer_however_it_is_cut(form: str) -> None:
    response, status, body, then, keeps = FORMS[form]
    dice = random.Random(form)
    answers = [script(response, then), script(response, then, cuts=range(len(response)))]
    answers += [script(response, then, cuts=[cut]) for cut in range(1, len(response))]
    answers += [
        script(response, then, cuts=[dice.randrange(len(response)) for _ in range(4)])
        for _ in range(campaign_count(5, 300))
    ]

    async with scripted(*answers) as engine, client_of() as client:
        where = endpoint(engine.url)
        for each in answers:
            got = post(client, where)
            assert await got.outcome() == "end", each
            assert (got.status, got.body) == (status, body), each
            assert all(name == name.lower() for name, _ in got.headers)
            assert not any(name.startswith(b"x-") for name, _ in got.headers), "trailers are no headers"
            assert client.idle_connections == (1 if keeps else 0)
        assert engine.connections == (1 if keeps else len(answers))


async def test_what_one_read_brings_is_told_at_once() -> None:
    whole = CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    async with scripted(script(whole), script(OK, cuts=range(len(OK)))) as engine, client_of() as client:
        joined = post(client, endpoint(engine.url))
        await joined.outcome()
        assert joined.parts == [b"hello"]
        cut = post(client, endpoint(engine.url))
        await cut.outcome()
        assert cut.parts == [b"o", b"k"]


@pytest.mark.parametrize("size", [0, 1, 40_000, 3_000_000])
async def test_the_request_as_the_engine_sees_it(size: int) -> None:
    async with scripted() as engine, client_of() as client:
        where = endpoint(f"{engine.url}/base", api_prefix="/openai", token=SecretStr("the-token"))
        assert await post(client, where, body=b"x" * size).outcome() == "end"
        head, _, body = engine.requests[0].partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        assert lines[0] == b"POST /base/openai/chat/completions HTTP/1.1"
        assert sorted(lines[1:]) == [
            b"accept-encoding: identity",
            b"accept: */*",
            b"authorization: Bearer the-token",
            b"content-length: %d" % size,
            b"content-type: application/json",
            b"host: 127.0.0.1:%d" % engine.port,
            b"user-agent: roundhouse",
            b"x-request-id: req-1",
        ]
        assert body == b"x" * size


async def send_path(client: EngineClient, where: Endpoint, method: str, path: str, body: bytes = b"{}") -> None:
    got = Recorder()
    client.send_request(where, method, path, b"", body, got, fresh=False)
    assert await got.outcome() == "end"


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_methods_other_than_post_are_sent_to_the_engine(method: str) -> None:
    async with scripted() as engine, client_of() as client:
        await send_path(client, endpoint(engine.url), method, "/slots?x=1", b"")
        head = engine.requests[0]
        assert head.startswith(b"%b /slots?x=1 HTTP/1.1\r\n" % method.encode())
        assert (b"content-length: 0" in head) == (method == "PUT")


async def test_connections_are_kept_and_the_newest_is_taken_first() -> None:
    async with scripted(*[Script()] * 3) as engine, client_of() as client:
        where = endpoint(engine.url)
        first = [post(client, where) for _ in range(3)]
        assert client.connecting_requests == 3
        for got in first:
            await got.outcome()
        assert (client.open_connections, client.idle_connections, client.busy_connections) == (3, 3, 0)
        for _ in range(4):
            got = post(client, where)
            assert client.busy_connections == 1
            await got.outcome()
        assert len(set(engine.served_on[3:])) == 1
        assert engine.connections == 3
        assert await post(client, where, fresh=True).outcome() == "end"
        assert engine.connections == 4
        # Another endpoint object for the same address, as each routing table brings, shares them.
        assert await post(client, endpoint(engine.url)).outcome() == "end"
        assert engine.connections == 4


async def test_the_next_request_may_be_sent_from_the_end_of_the_last() -> None:
    async with scripted() as engine, client_of() as client:
        where = endpoint(engine.url)
        later: list[Recorder] = []
        first = post(client, where, Recorder(on_end=lambda: later.append(post(client, where))))
        await first.outcome()
        assert await later[0].outcome() == "end"
        assert engine.connections == 1


async def test_no_more_than_some_connections_are_kept() -> None:
    async with scripted() as engine, client_of(pool=ConnectionPool(keep_per_origin=2)) as client:
        for got in [post(client, endpoint(engine.url)) for _ in range(5)]:
            assert await got.outcome() == "end"
        await until("the others are closed", lambda: client.open_connections == 2)
        assert client.idle_connections == 2


async def test_idle_connections_are_closed_after_a_while() -> None:
    async with scripted() as engine, client_of(pool=ConnectionPool(keep_s=0.04)) as client:
        for got in [post(client, endpoint(engine.url)) for _ in range(3)]:
            await got.outcome()
        await until("the engine sees them closed", lambda: not engine.peers)
        await until("the client knows it, too", lambda: client.open_connections == 0)
        assert await post(client, endpoint(engine.url)).outcome() == "end"


@pytest.mark.parametrize("how", ["close", "reset", "speak"])
async def test_an_idle_connection_that_ends_or_speaks_is_closed_at_once(how: str) -> None:
    async with scripted() as engine, client_of() as client:
        where = endpoint(engine.url)
        await post(client, where).outcome()
        if how == "close":
            engine.close_connections()
        elif how == "reset":
            engine.reset_connections()
        else:
            engine.say(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
        await until("it is closed", lambda: client.open_connections == 0)
        got = post(client, where)
        assert (await got.outcome(), got.body, engine.connections) == ("end", b"ok", 2)


async def test_a_connection_that_is_just_closing_is_not_taken() -> None:
    async with scripted() as engine, client_of() as client:
        await post(client, endpoint(engine.url)).outcome()
        [origin] = client._pool._origins.values()
        origin.idle_connections[0].eof_received()
        assert await post(client, endpoint(engine.url)).outcome() == "end"
        assert engine.connections == 2


@pytest.mark.parametrize(
    "extra", [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil", b"H", b"\x00", b"0\r\n\r\n"], ids=str
)
@pytest.mark.parametrize("answer", ["length", "chunks", "trailers", "closes", "no_content"])
async def test_what_follows_an_answer_never_meets_the_next_request(answer: str, extra: bytes) -> None:
    whole, status, body, _, _ = FORMS[answer]
    cuts: list[list[int]] = [[], [len(whole)], [len(whole) - 1], [len(whole) + 1]]
    async with scripted(*(script(whole + extra, cuts=cut) for cut in cuts)) as engine, client_of() as client:
        for number, _ in enumerate(cuts):
            got = post(client, endpoint(engine.url), fresh=True)
            assert (await got.outcome(), got.status, got.body) == ("end", status, body)
            await until("its connection is closed", lambda: client.open_connections == 0)
            assert engine.connections == number + 1


async def test_an_answer_before_the_whole_request_was_sent() -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig"

    early = [script(refusal, early=True), script(refusal, "close", early=True)]
    async with scripted(*early) as engine, client_of() as client:
        for _ in early:
            got = post(client, endpoint(engine.url), body=b"x" * 20_000_000)
            assert (await got.outcome(), got.status, got.body) == ("end", 413, b"big")
            assert client.idle_connections == 0, "the rest of the request must not precede the next"
        assert await post(client, endpoint(engine.url)).outcome() == "end"
        assert engine.connections == 3


async def test_headers_up_to_the_limit_pass() -> None:
    long = b"HTTP/1.1 200 OK\r\nx: %b\r\ncontent-length: 200000\r\n\r\n%b" % (b"v" * 60_000, b"b" * 200_000)
    assert len(long) > 2 * MAX_HEAD_BYTES
    async with scripted(script(long), script(long, cuts=[50_000, 61_000])) as engine, client_of() as client:
        for _ in range(2):
            got = post(client, endpoint(engine.url))
            assert (await got.outcome(), len(got.body)) == ("end", 200_000)
            assert got.headers[0] == (b"x", b"v" * 60_000)


async def test_small_requests_are_not_delayed() -> None:
    async with scripted() as engine, client_of() as client:
        await post(client, endpoint(engine.url)).outcome()
        [origin] = client._pool._origins.values()
        sock = origin.idle_connections[0]._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


@pytest.mark.parametrize(("host", "named"), [("127.0.0.1", "localhost"), ("::1", "[::1]")])
async def test_engines_are_reached_by_name_and_by_ipv6(host: str, named: str) -> None:
    async with scripted(host=host) as engine, client_of() as client:
        assert await post(client, endpoint(f"http://{named}:{engine.port}")).outcome() == "end"
        assert b"\r\nhost: %b:%d\r\n" % (named.encode(), engine.port) in engine.requests[0]


async def test_many_endpoints_come_and_go() -> None:
    async with scripted() as engine, client_of() as client:
        for number in range(1030):
            await send_path(client, endpoint(engine.url), "POST", f"/x?{number}")
        assert len(client._routes) <= 1024
        where = endpoint(engine.url)
        for number in range(70):
            await send_path(client, where, "POST", f"/x/{number}")
        assert len(client._routes[id(where)].heads) <= 64
        assert engine.connections == 1
