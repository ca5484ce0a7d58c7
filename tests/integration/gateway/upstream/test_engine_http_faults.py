"""The engine client over real sockets when engines fail and callers cancel, pause or raise: no hang, no leak."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from gateway.upstream.connection import EngineConnection, Origin
from tests.fakes.fake_scripted_engine import OK, Script, Then, nobody_accepts, script, scripted
from tests.support.engine_calls import client_of, endpoint, post, soon, well_after

LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ENDS_WITHOUT_BODY = CHUNKED + b"2\r\nok\r\n0\r\nx: y\r\n\r\n"
HALVES: dict[str, tuple[tuple[bytes, ...], Then, str, bytes]] = {
    # pieces, what the engine does then, what the caller is told, the body that came
    "nothing": ((), "close", "EngineBrokenError", b""),
    "nothing_reset": ((), "reset", "EngineBrokenError", b""),
    "nothing_deaf": ((), "deaf", "EngineBrokenError", b""),
    "half_a_head": ((b"HTTP/1.1 200 OK\r\nconte",), "close", "EngineGarbledError", b""),
    "half_a_head_reset": ((b"HTTP/1.1 200 OK\r\nconte",), "reset", "EngineGarbledError", b""),
    "one_byte": ((b"H",), "deaf", "EngineGarbledError", b""),
    "only_informed": ((b"HTTP/1.1 100 Continue\r\n\r\n",), "close", "EngineGarbledError", b""),
    "short": ((LENGTH + b"hello",), "close", "EngineDiedError", b"hello"),
    "short_reset": ((LENGTH, b"hello"), "reset", "EngineDiedError", b"hello"),
    "short_deaf": ((LENGTH + b"hello",), "deaf", "EngineDiedError", b"hello"),
    "head_only": ((LENGTH,), "close", "EngineDiedError", b""),
    "half_a_chunk": ((CHUNKED + b"5\r\nhel",), "close", "EngineDiedError", b"hel"),
    "half_a_chunk_size": ((CHUNKED + b"5\r\nhello\r\n1",), "reset", "EngineDiedError", b"hello"),
    "no_last_chunk": ((CHUNKED + b"5\r\nhello\r\n",), "close", "EngineDiedError", b"hello"),
    "half_of_trailers": ((CHUNKED + b"5\r\nhello\r\n0\r\nx: ",), "close", "EngineDiedError", b"hello"),
    "no_length_reset": ((b"HTTP/1.1 200 OK\r\n\r\n", b"hello"), "reset", "EngineDiedError", b"hello"),
}
GARBAGE: dict[str, bytes] = {
    "no_http": b"this is not HTTP\r\n\r\n",
    "binary": bytes(range(256)),
    "tls_alert": b"\x15\x03\x01\x00\x02\x02\x46",
    "status": b"HTTP/1.1 20x OK\r\n\r\n",
    "status_099": b"HTTP/1.1 099 OK\r\ncontent-length: 0\r\n\r\n" + OK,
    "status_999": b"HTTP/1.1 999 OK\r\ncontent-length: 0\r\n\r\n",
    "version": b"HTTP/7.7 200 OK\r\n\r\n",
    "header": b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    "nul": b"HTTP/1.1 200 OK\r\na: b\x00c\r\n\r\n",
    "bare_newline": b"HTTP/1.1 200 OK\r\na: b\nset-cookie: c\r\n\r\n",
    "folded": b"HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n",
    "space_before_colon": b"HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\nok",
    "two_lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
    "length_and_chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "negative_length": b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok",
    "huge_length": b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n",
    "coded": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nok",
    "coded_last": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "switching": b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nbytes",
    "switching_bare": b"HTTP/1.1 101 Switching\r\n\r\n" + OK,
    "long_line": b"HTTP/1.1 200 OK\r\nx: " + b"v" * 70_000 + b"\r\ncontent-length: 0\r\n\r\n",
    "many_headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000 + b"content-length: 2\r\n\r\nok",
    "endless_headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
    "endless_name": b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000,
    "endless_informing": b"HTTP/1.1 100 Continue\r\n\r\n" * 5_000,
}
LATE_GARBAGE: dict[str, tuple[bytes, bytes]] = {
    # what is good of the answer, and what is not
    "chunk_size": (CHUNKED + b"5\r\nhello\r\n", b"zz\r\n"),
    "chunk_size_space": (CHUNKED + b"5\r\nhello\r\n", b"5 \r\nhello\r\n"),
    "chunk_size_huge": (CHUNKED + b"5\r\nhello\r\n", b"f" * 17 + b"\r\n"),
    "chunk_end": (CHUNKED + b"5\r\nhello", b"xx"),
    "last_chunk": (CHUNKED + b"5\r\nhello\r\n", b"0\r\nno colon\r\n\r\n"),
    "trailers": (CHUNKED + b"5\r\nhello\r\n", b"0\r\n" + b"x: y\r\n" * 60_000),
}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("half", list(HALVES))
async def test_an_answer_that_ends_too_early(half: str, kept: bool) -> None:
    pieces, then, told, body = HALVES[half]

    before = [script(ENDS_WITHOUT_BODY, cuts=range(100))] if kept else []
    async with scripted(*before, Script(pieces, then)) as engine, client_of() as client:
        for _ in before:
            await post(client, endpoint(engine.url)).outcome()
        got = post(client, endpoint(engine.url))
        assert (await got.outcome(), got.body) == (told, body)
        if then == "deaf":
            engine.reset_connections()  # it does not look whether its peer is gone
        await well_after(engine, client)


async def test_an_engine_that_stops_talking_while_it_is_still_being_sent_to() -> None:
    async with scripted(Script((), "deaf", early=True)) as engine, client_of() as client:
        got = post(client, endpoint(engine.url), body=b"x" * 20_000_000)
        assert await got.outcome() == "EngineBrokenError"
        engine.reset_connections()
        await well_after(engine, client)


@pytest.mark.parametrize("garbage", list(GARBAGE))
async def test_what_is_not_an_answer(garbage: str) -> None:
    response = GARBAGE[garbage]

    cuts = [[], [1], [len(response) // 2], range(0, len(response), 1 + len(response) // 100)]
    async with scripted(*(script(response, cuts=cut) for cut in cuts)) as engine, client_of() as client:
        for _ in cuts:
            got = post(client, endpoint(engine.url))
            assert (await got.outcome(), got.status) == ("EngineGarbledError", 0)
        await well_after(engine, client)


@pytest.mark.parametrize("garbage", list(LATE_GARBAGE))
async def test_garbage_after_the_head_was_told(garbage: str) -> None:
    good, bad = LATE_GARBAGE[garbage]

    head_end = good.index(b"\r\n\r\n") + 4
    cuts = [[head_end], [head_end, len(good)], [head_end, *range(head_end, len(good + bad), 1 + len(bad) // 30)]]
    async with scripted(*(script(good + bad, cuts=cut) for cut in cuts)) as engine, client_of() as client:
        for _ in cuts:
            got = post(client, endpoint(engine.url))
            assert (await got.outcome(), got.status, got.body) == ("EngineDiedError", 200, b"hello")
        await well_after(engine, client)


@pytest.mark.parametrize(
    ("base_url", "token"),
    [("http://user:hunter2@127.0.0.1:1", None), ("ftp://h", None), ("http://h:70000", None), ("http://h", "a\r\nb: c")],
)
async def test_an_endpoint_that_cannot_be_used_is_refused_without_its_secrets(base_url: str, token: str | None) -> None:
    async with client_of() as client:
        got = post(client, endpoint(base_url, token=token and SecretStr(token)))
        assert await got.outcome() == "EngineRefusedError"
        assert "hunter2" not in repr(got.failure)
        assert "b: c" not in repr(got.failure)
        cancelled = post(client, endpoint(base_url))
        cancelled.call.cancel()
        await post(client, endpoint(base_url)).outcome()
        assert cancelled.ending == ""


async def test_a_refused_connection_and_an_unknown_name(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted() as engine:
        gone = engine.url
    async with client_of() as client:
        for base_url in (gone, "http://no-such-engine.invalid:80", f"http://{'x' * 70}.invalid"):
            got = post(client, endpoint(base_url))
            assert await got.outcome() == "EngineRefusedError"
            assert got.failure is not None
            assert got.failure.__cause__ is not None

    assert caplog.records == []


@pytest.mark.interpreted
async def test_a_connection_that_is_lost_before_the_request_was_sent() -> None:
    async with scripted() as engine, client_of() as client:
        opened = client._open_connection

        async def open_and_lose(origin: Origin[EngineConnection]) -> EngineConnection:
            connection = await opened(origin)
            await soon("the engine knows it", lambda: engine.peers)
            engine.reset_connections()
            await soon("it is lost", lambda: connection.is_lost)
            return connection

        client._open_connection = open_and_lose  # type: ignore[method-assign]
        got = post(client, endpoint(engine.url))
        assert await got.outcome() == "EngineBrokenError"
        client._open_connection = opened  # type: ignore[method-assign]
        await well_after(engine, client)


async def test_a_connection_that_never_comes_about() -> None:
    async with nobody_accepts() as base_url, client_of(connect_timeout_s=0.05) as client:
        got = post(client, endpoint(base_url))
        assert client.connecting_requests == 1
        assert await got.outcome() == "EngineRefusedError"
        assert "0.05 s" in str(got.failure)


async def test_a_connection_to_a_replica_that_has_left_the_table_is_not_waited_for() -> None:
    async with nobody_accepts() as base_url, scripted() as engine, client_of(connect_timeout_s=30) as client:
        stays, gone = post(client, endpoint(base_url)), post(client, endpoint(base_url, replica="m-1"))
        cancelled = post(client, endpoint(base_url, replica="m-1"))
        served = post(client, endpoint(engine.url, replica="m-1"))
        client.refuse_absent({"m-0"})
        cancelled.call.cancel()
        assert await gone.outcome() == "EngineRefusedError"
        assert str(gone.failure) == "it has ended"
        assert await served.outcome() == "end", "it drains, and accepts at once"
        await soon("the other one still connects", lambda: client.connecting_requests == 1)
        assert (stays.ending, cancelled.ending) == ("", "")
        stays.call.cancel()
