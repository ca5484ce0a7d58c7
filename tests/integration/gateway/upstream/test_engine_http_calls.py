"""The engine client over real sockets when callers cancel, pause, raise or close it: no hang, no leak, no late word."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream.client import EngineClient
from tests.fakes.fake_scripted_engine import OK, Script, nobody_accepts, script, scripted
from tests.support.engine_calls import Recorder, client_of, endpoint, post, well_after
from tests.support.wait import until

LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_a_call_that_is_cancelled_while_its_connection_comes_about(how: str) -> None:
    async with nobody_accepts() as base_url:
        client = EngineClient(30)
        at_once, later = (post(client, endpoint(base_url)) for _ in range(2))
        at_once.call.cancel()
        await asyncio.sleep(0)
        assert client.connecting_requests >= 1
        if how == "cancel":
            later.call.pause()
            later.call.cancel()
            later.call.cancel()
            await until("no connection is under way", lambda: client.connecting_requests == 0)
        await client.close()
        assert (client.open_connections, client.connecting_requests, at_once.ending, later.ending) == (0, 0, "", "")


async def test_endpoints_of_old_tables_do_not_add_up_while_a_connection_comes_about() -> None:
    async with nobody_accepts() as base_url, scripted() as engine, client_of(connect_timeout_s=30) as client:
        far = endpoint(base_url)
        pending = post(client, far)
        origin = client._routes[id(far)].origin
        for _ in range(1100):
            assert await post(client, endpoint(engine.url)).outcome() == "end"
        assert client.connecting_requests == 1
        assert len(client._routes) <= 1024
        assert client._pool.origin_of(origin.address) is origin, "its connection is to be kept where it is looked for"
        pending.call.cancel()


async def test_what_clients_write_into_paths_is_not_kept() -> None:
    async with scripted() as engine, client_of() as client:
        where = endpoint(engine.url)
        paths = ["/tokenize", "/slots/1", "/tokenize?a=b", f"/tokenize?{'x' * 30_000}", f"/slots/{'1' * 30_000}"]
        for path in paths:
            got = Recorder()
            client.send_request(where, "POST", path, b"", b"{}", got, fresh=False)
            assert await got.outcome() == "end"
        assert [sent.split(b" ")[1].decode() for sent in engine.requests] == paths
        assert [path for _, path in client._routes[id(where)].heads] == ["/tokenize", "/slots/1"]


async def test_a_call_that_is_cancelled_while_it_waits() -> None:
    async with scripted(Script((), "stall"), script(LENGTH + b"hal", "stall")) as engine, client_of() as client:
        for _ in range(2):
            got = post(client, endpoint(engine.url))
            seen = len(engine.requests)
            await until("the engine works on it", lambda seen=seen: len(engine.requests) > seen)  # type: ignore[misc]
            if engine.scripts == []:
                await until("half of it is here", lambda got=got: got.body)  # type: ignore[misc]
            got.call.cancel()
            await until("the engine sees it", lambda: not engine.peers)
            assert got.ending == ""
            got.call.cancel()
            got.call.pause()
            got.call.resume()
        await well_after(engine, client)


@pytest.mark.parametrize("where", ["head", "data", "end"])
async def test_a_call_that_is_cancelled_from_a_callback(where: str, caplog: pytest.LogCaptureFixture) -> None:
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
            assert (got.ending, got.body) == ("", b"" if where == "head" else got.body[:2])
        assert await post(client, endpoint(engine.url)).outcome() == "end"

    assert caplog.records == []


async def test_a_late_cancel_does_not_hit_the_next_request_on_the_connection() -> None:
    async with scripted() as engine, client_of() as client:
        first = post(client, endpoint(engine.url))
        await first.outcome()
        second = post(client, endpoint(engine.url))
        first.call.cancel()
        first.call.pause()
        assert await second.outcome() == "end"
        assert engine.connections == 1


@pytest.mark.parametrize("where", ["head", "data", "end"])
async def test_a_listener_that_raises_is_told_of_the_failure(where: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise LookupError("a bug of the caller")

    async with scripted() as engine, client_of() as client:
        recorder = Recorder()
        setattr(recorder, f"on_{where}", fail)
        got = post(client, endpoint(engine.url), recorder)
        assert await got.outcome() == ("end" if where == "end" else "EngineDiedError")
        if where == "end":
            assert client.idle_connections == 1
        else:
            await well_after(engine, client)
    assert "a bug of the caller" in caplog.text


async def test_a_paused_answer_stays_in_the_socket_and_loses_nothing() -> None:
    size = 20_000_000
    big = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (size, b"x" * size)

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
            assert got.ending == ""
            got.call.resume()
            assert (await got.outcome(), len(got.body)) == ("end", size)
        await until("the second is closed", lambda: client.open_connections == 0)


async def test_a_connection_that_is_paused_at_its_end_is_read_again() -> None:
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


async def test_closing_cancels_what_is_under_way() -> None:
    async with scripted(Script(), Script((), "stall"), script(LENGTH, "stall")) as engine:
        client = EngineClient(30)
        where = endpoint(engine.url)
        await post(client, where).outcome()
        busy = [post(client, where), post(client, where)]
        await until("both are inside", lambda: len(engine.requests) == 3)
        await client.close()
        assert (client.open_connections, client.idle_connections) == (0, 0)
        await until("the engine sees it", lambda: not engine.peers)
        assert [got.ending for got in busy] == ["", ""]
        assert await post(client, where).outcome() == "EngineRefusedError"
        await client.close()
