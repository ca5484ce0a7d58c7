"""The engine client over real sockets when engines fail and callers cancel, pause or raise: no hang, no leak."""

from __future__ import annotations

import asyncio
import logging

import pytest
from pydantic import SecretStr

from gateway.engine_http import EngineCall, EngineClient
from tests.fakes.fake_scripted_engine import OK, Script, ScriptedEngine, Then, nobody_accepts, script, scripted
from tests.support.engine_calls import Recorder, client_of, each_loop, endpoint, on, post
from tests.support.wait import until

LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
HALVES: dict[str, tuple[tuple[bytes, ...], Then, str, bytes]] = {
    # pieces, what the engine does then, what the caller is told, the body that came
    "nothing": ((), "close", "BrokenError", b""),
    "nothing_reset": ((), "reset", "BrokenError", b""),
    "nothing_deaf": ((), "deaf", "BrokenError", b""),
    "half_a_head": ((b"HTTP/1.1 200 OK\r\nconte",), "close", "GarbledError", b""),
    "half_a_head_reset": ((b"HTTP/1.1 200 OK\r\nconte",), "reset", "GarbledError", b""),
    "one_byte": ((b"H",), "deaf", "GarbledError", b""),
    "only_informed": ((b"HTTP/1.1 100 Continue\r\n\r\n",), "close", "GarbledError", b""),
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


async def well_after(engine: ScriptedEngine, client: EngineClient) -> None:
    """The failed connection is closed on both sides, and the next request gets its answer."""
    await until("closed here", lambda: client.open_connections == 0)
    await until("closed there", lambda: not engine.peers)
    got = post(client, endpoint(engine.url))
    assert (await got.outcome(), got.body) == ("end", b"ok")
    assert (client.open_connections, client.idle_connections) == (1, 1)


@each_loop
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("half", list(HALVES))
def test_an_answer_that_ends_too_early(half: str, kept: bool, loop: str) -> None:
    pieces, then, told, body = HALVES[half]

    async def scenario() -> None:
        before = [Script()] if kept else []
        async with scripted(*before, Script(pieces, then)) as engine, client_of() as client:
            for _ in before:
                await post(client, endpoint(engine.url)).outcome()
            got = post(client, endpoint(engine.url))
            assert (await got.outcome(), got.body) == (told, body)
            if then == "deaf":
                engine.reset_connections()  # it does not look whether its peer is gone
            await well_after(engine, client)

    on(loop, scenario)


@each_loop
@pytest.mark.parametrize("garbage", list(GARBAGE))
def test_what_is_not_an_answer(garbage: str, loop: str) -> None:
    answer = GARBAGE[garbage]

    async def scenario() -> None:
        cuts = [[], [1], [len(answer) // 2], range(0, len(answer), 1 + len(answer) // 100)]
        async with scripted(*(script(answer, cuts=cut) for cut in cuts)) as engine, client_of() as client:
            for _ in cuts:
                got = post(client, endpoint(engine.url))
                assert (await got.outcome(), got.status) == ("GarbledError", 0)
            await well_after(engine, client)

    on(loop, scenario)


@each_loop
@pytest.mark.parametrize("garbage", list(LATE_GARBAGE))
def test_garbage_after_the_head_was_told(garbage: str, loop: str) -> None:
    good, bad = LATE_GARBAGE[garbage]

    async def scenario() -> None:
        head_end = good.index(b"\r\n\r\n") + 4
        cuts = [[head_end], [head_end, len(good)], [head_end, *range(head_end, len(good + bad), 1 + len(bad) // 30)]]
        async with scripted(*(script(good + bad, cuts=cut) for cut in cuts)) as engine, client_of() as client:
            for _ in cuts:
                got = post(client, endpoint(engine.url))
                assert (await got.outcome(), got.status, got.body) == ("EngineDiedError", 200, b"hello")
            await well_after(engine, client)

    on(loop, scenario)


@pytest.mark.parametrize(
    ("base_url", "token"),
    [("http://user:hunter2@127.0.0.1:1", None), ("ftp://h", None), ("http://h:70000", None), ("http://h", "a\r\nb: c")],
)
async def test_an_endpoint_that_cannot_be_used_is_refused_without_its_secrets(base_url: str, token: str | None) -> None:
    async with client_of() as client:
        got = post(client, endpoint(base_url, token=token and SecretStr(token)))
        assert await got.outcome() == "RefusedError"
        assert "hunter2" not in repr(got.failure)
        assert "b: c" not in repr(got.failure)
        cancelled = post(client, endpoint(base_url))
        cancelled.call.cancel()
        await post(client, endpoint(base_url)).outcome()
        assert cancelled.told == ""


@each_loop
def test_a_refused_connection_and_an_unknown_name(loop: str) -> None:
    async def scenario() -> None:
        async with scripted() as engine:
            gone = engine.url
        async with client_of() as client:
            for base_url in (gone, "http://no-such-engine.invalid:80", f"http://{'x' * 70}.invalid"):
                got = post(client, endpoint(base_url))
                assert await got.outcome() == "RefusedError"
                assert got.failure is not None
                assert got.failure.__cause__ is not None

    on(loop, scenario)


@each_loop
def test_a_connection_that_never_comes_about(loop: str) -> None:
    async def scenario() -> None:
        async with nobody_accepts() as base_url, client_of(connect_timeout_s=0.05) as client:
            got = post(client, endpoint(base_url))
            assert client.connecting == 1
            assert await got.outcome() == "RefusedError"
            assert "0.05 s" in str(got.failure)

    on(loop, scenario)


@each_loop
@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_call_that_is_cancelled_while_its_connection_comes_about(how: str, loop: str) -> None:
    async def scenario() -> None:
        async with nobody_accepts() as base_url:
            client = EngineClient(30)
            at_once, later = (post(client, endpoint(base_url)) for _ in range(2))
            at_once.call.cancel()
            await asyncio.sleep(0)
            assert client.connecting >= 1
            if how == "cancel":
                later.call.pause()
                later.call.cancel()
                later.call.cancel()
                await until("no connection is under way", lambda: client.connecting == 0)
            await client.close()
            assert (client.open_connections, client.connecting, at_once.told, later.told) == (0, 0, "", "")

    on(loop, scenario)


@each_loop
def test_a_call_that_is_cancelled_while_it_waits(loop: str) -> None:
    async def scenario() -> None:
        async with scripted(Script((), "stall"), script(LENGTH + b"hal", "stall")) as engine, client_of() as client:
            for _ in range(2):
                got = post(client, endpoint(engine.url))
                seen = len(engine.requests)
                await until("the engine works on it", lambda seen=seen: len(engine.requests) > seen)  # type: ignore[misc]
                if engine.scripts == []:
                    await until("half of it is here", lambda got=got: got.body)  # type: ignore[misc]
                got.call.cancel()
                await until("the engine sees it", lambda: not engine.peers)
                assert got.told == ""
                got.call.cancel()
                got.call.pause()
                got.call.resume()
            await well_after(engine, client)

    on(loop, scenario)


@each_loop
@pytest.mark.parametrize("where", ["head", "data", "end"])
def test_a_call_that_is_cancelled_from_a_callback(where: str, loop: str) -> None:
    async def scenario() -> None:
        async with scripted(Script(), script(OK, cuts=range(len(OK)))) as engine, client_of() as client:
            for _ in range(2):
                recorder = Recorder()
                setattr(recorder, f"on_{where}", lambda recorder=recorder: recorder.call.cancel())
                got = post(client, endpoint(engine.url), recorder)
                await until("cancelled", lambda got=got: got.call.listener is None)  # type: ignore[misc]
                if where == "end":
                    assert client.idle_connections == 1, "it was over: cancelling takes no connection from the next"
                    continue
                await until("closed", lambda: client.open_connections == 0)
                assert (got.told, got.body) == ("", b"" if where == "head" else got.body[:2])
            assert await post(client, endpoint(engine.url)).outcome() == "end"

    on(loop, scenario)


@each_loop
def test_a_late_cancel_does_not_hit_the_next_request_on_the_connection(loop: str) -> None:
    async def scenario() -> None:
        async with scripted() as engine, client_of() as client:
            first = post(client, endpoint(engine.url))
            await first.outcome()
            second = post(client, endpoint(engine.url))
            first.call.cancel()
            first.call.pause()
            assert await second.outcome() == "end"
            assert engine.connections == 1

    on(loop, scenario)


@each_loop
@pytest.mark.parametrize("where", ["head", "data", "end"])
def test_a_listener_that_raises_is_told_of_the_failure(where: str, loop: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise LookupError("a bug of the caller")

    async def scenario() -> None:
        async with scripted() as engine, client_of() as client:
            recorder = Recorder()
            setattr(recorder, f"on_{where}", fail)
            got = post(client, endpoint(engine.url), recorder)
            assert await got.outcome() == ("end" if where == "end" else "EngineDiedError")
            if where == "end":
                assert client.idle_connections == 1
            else:
                await well_after(engine, client)

    with caplog.at_level(logging.ERROR):
        on(loop, scenario)
    assert "a bug of the caller" in caplog.text


@each_loop
def test_a_paused_answer_stays_in_the_socket_and_loses_nothing(loop: str) -> None:
    size = 20_000_000
    big = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (size, b"x" * size)

    async def scenario() -> None:
        async with scripted(script(big), script(big, "close")) as engine, client_of() as client:
            for _ in range(2):
                got = Recorder()
                got.on_head = lambda got=got: got.call.pause()  # type: ignore[misc]
                post(client, endpoint(engine.url), got)
                await until("the head is here", lambda got=got: got.status)  # type: ignore[misc]
                had = len(got.body)
                assert had < size
                for _ in range(20):
                    await asyncio.sleep(0)
                assert len(got.body) == had
                assert got.told == ""
                got.call.resume()
                assert (await got.outcome(), len(got.body)) == ("end", size)
            await until("the second is closed", lambda: client.open_connections == 0)

    on(loop, scenario)


@each_loop
def test_a_connection_that_is_paused_at_its_end_is_read_again(loop: str) -> None:
    async def scenario() -> None:
        async with scripted() as engine, client_of() as client:
            paused = Recorder()
            paused.on_data = lambda: paused.call.pause()  # noqa: PLW0108 - there is no call yet
            assert await post(client, endpoint(engine.url), paused).outcome() == "end"
            assert await post(client, endpoint(engine.url)).outcome() == "end"
            assert engine.connections == 1
            early = post(client, endpoint(engine.url), fresh=True)
            early.call.pause()  # while its connection comes about
            await until("the engine answered", lambda: len(engine.requests) == 3)
            for _ in range(20):
                await asyncio.sleep(0)
            assert early.status == 0
            early.call.resume()
            assert await early.outcome() == "end"

    on(loop, scenario)


@each_loop
def test_closing_cancels_what_is_under_way(loop: str) -> None:
    async def scenario() -> None:
        async with scripted(Script(), Script((), "stall"), script(LENGTH, "stall")) as engine:
            client = EngineClient(30)
            where = endpoint(engine.url)
            await post(client, where).outcome()
            busy = [post(client, where), post(client, where)]
            await until("both are inside", lambda: len(engine.requests) == 3)
            await client.close()
            assert (client.open_connections, client.idle_connections) == (0, 0)
            await until("the engine sees it", lambda: not engine.peers)
            assert [got.told for got in busy] == ["", ""]
            assert await post(client, where).outcome() == "RefusedError"
            await client.close()

    on(loop, scenario)


def test_a_call_without_a_connection_takes_every_order() -> None:
    call = EngineCall(Recorder())
    call.pause()
    call.resume()
    call.cancel()
    call.cancel()
