"""`python -m gateway` as a process: exit codes, refusals in one line, stops that let requests finish, addresses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, until
from tests.support.gateway_process import ended, refused, running, start
from tests.support.ports import free_port


async def until_served(host: str, port: int) -> None:
    """Wait until a request for this address, by the name of it, is served."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as client:
        while True:
            with contextlib.suppress(aiohttp.ClientConnectorError):
                async with client.get(f"http://{host}:{port}/v1/models") as response:
                    assert response.status == 200
                    return


CANNOT_BE: list[tuple[dict[str, str], list[str]]] = [
    ({"ROUNDHOUSE_TLS_CERT": "/nowhere.pem"}, ["ROUNDHOUSE_TLS_CERT", "/nowhere.pem"]),
    ({"ROUNDHOUSE_PORT": "many"}, ["ROUNDHOUSE_PORT"]),
    ({"ROUNDHOUSE_CONTROLLER_URL": "controller"}, ["ROUNDHOUSE_CONTROLLER_URL", "unix:/path"]),
    ({"ROUNDHOUSE_HEARTBEAT_S": "0"}, ["ROUNDHOUSE_HEARTBEAT_S"]),
    ({"ROUNDHOUSE_HOST": " , "}, ["ROUNDHOUSE_HOST"]),
]
NOT_HERE = [
    ({"ROUNDHOUSE_HOST": "no-such-host.invalid", "ROUNDHOUSE_OPEN": "1"}, ["no-such-host.invalid"]),
    ({"ROUNDHOUSE_HOST": "127.0.0.1,no-such-host.invalid"}, ["cannot listen on no-such-host.invalid:0"]),
    # An address of no machine (RFC 5737).
    ({"ROUNDHOUSE_HOST": "127.0.0.1,203.0.113.1"}, ["cannot listen on 203.0.113.1:0"]),
]


@pytest.mark.parametrize(
    ("code", "settings", "words"), [*((2, *case) for case in CANNOT_BE), *((3, *case) for case in NOT_HERE)]
)
async def test_settings_that_cannot_be_are_told_in_one_line(
    code: int, settings: dict[str, str], words: list[str]
) -> None:
    exit_code, output = await ended(await start(**{"ROUNDHOUSE_PORT": "0", **settings}))
    assert (exit_code, output.count("\n")) == (code, 1), output
    assert all(word in output for word in words)


@pytest.mark.parametrize("hosts", ["127.0.0.1", "127.0.0.2,127.0.0.1"])
async def test_a_taken_port_is_told_in_one_line(hosts: str) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        code, output = await ended(await start(ROUNDHOUSE_HOST=hosts, ROUNDHOUSE_PORT=str(port)))
    assert (code, output.count("\n")) == (3, 1), output
    assert f"127.0.0.1:{port}: Address already in use" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_lets_requests_finish(number: signal.Signals) -> None:
    async with running() as (process, gateway), engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        streaming: Any = gateway.chat(stream=True, fault="pause_until_release")
        async with streaming as response:
            await response.content.readany()
            blocking = asyncio.create_task(gateway.chat(fault="hold").__aenter__())
            await until(lambda: engine.running == 2)
            process.send_signal(number)
            await refused(gateway)
            engine.release.set()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
            async with await blocking as other:
                assert other.status == 200
        code, output = await ended(process)
        assert code == 0, output
        assert "Traceback" not in output
        assert gateway.controller.reports[-1].ending
        assert not any(report.ending for report in gateway.controller.reports if report.inflight)


async def test_after_the_grace_a_stream_is_told_and_the_process_ends() -> None:
    async with running(ROUNDHOUSE_SHUTDOWN_GRACE_S="0") as (process, gateway), engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        streaming: Any = gateway.chat(stream=True, fault="stall")
        async with streaming as response:
            await response.content.readany()
            process.terminate()
            last = await response.read()
        assert b"The gateway was stopped" in last
        assert last.endswith(b"data: [DONE]\n\n")
        code, output = await ended(process)
        assert code == 0, output
        assert "Traceback" not in output
        await until(lambda: engine.cancelled == 1)


async def test_a_connection_that_was_just_opened_gets_its_answer_though_the_stop_has_begun() -> None:
    async with running() as (process, gateway):
        await gateway.publish()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        assert await gateway.get("/health")  # another connection, accepted later
        process.terminate()
        await until(lambda: gateway.controller.reports[-1].draining, "the stop has begun")
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert (await ended(process))[0] == 0


@contextlib.asynccontextmanager
async def taking_over(
    listener: socket.socket, **settings: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.StreamReader]]:
    """A process that takes over, and what it writes once it serves."""
    read_end, write_end = os.pipe()
    process = await start(("listener", listener.fileno()), ("ready", write_end), **settings)
    os.close(write_end)
    ready = asyncio.StreamReader()
    with open(read_end, "rb", buffering=0) as pipe:  # noqa: PTH123, ASYNC230 - a descriptor
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(ready), pipe)
        try:
            yield process, ready
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_a_process_that_takes_over_serves_at_once_and_waits_for_what_the_old_one_stores(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = {"ROUNDHOUSE_PORT": str(listener.getsockname()[1]), "ROUNDHOUSE_STATE": str(folder)}
        async with running(("listener", listener.fileno()), **settings) as (old, gateway), engines(1) as (engine,):
            await gateway.publish(route("m", [engine.url]))
            named = {"x-conversation-id": "talk"}
            stream: Any = gateway.post(
                "/v1/chat/completions",
                {"model": "m", "messages": [], "stream": True, "fault": "pause_until_release"},
                headers=named,
            )
            async with stream as response:
                first = await response.content.readany()
                settings["ROUNDHOUSE_CONTROLLER_URL"] = gateway.controller.url
                async with taking_over(listener, **settings) as (new, ready):
                    assert await ready.readline()
                    await until(lambda: any(each.takes_over for each in gateway.controller.reports), "it says so")
                    old.terminate()
                    await until(lambda: any(each.draining for each in gateway.controller.reports), "the old one ends")
                    async with gateway.chat() as answer:  # the new one needs nothing of the old one for it
                        assert answer.status == 200
                    read = asyncio.create_task(gateway.get("/v1/stream/talk").__aenter__())
                    kept = asyncio.create_task(gateway.post("/v1/responses", model="m", input="Hi").__aenter__())
                    looked_up = asyncio.create_task(gateway.get("/v1/responses/resp_none").__aenter__())
                    async with gateway.chat() as answer:
                        assert answer.status == 200
                    assert [read.done(), looked_up.done()] == [False, False]
                    engine.release.set()
                    told = first + await response.read()
                    async with await read as again:
                        assert await again.read() == told
                    async with await looked_up as answer:
                        assert answer.status == 404
                    async with await kept as answer:
                        made = await answer.json()
                    async with gateway.get(f"/v1/responses/{made['id']}") as answer:
                        assert (await answer.json())["output"] == made["output"]
                    assert (await ended(old))[0] == 0
                    new.terminate()
                    assert (await ended(new))[0] == 0


async def test_a_process_that_gets_no_table_takes_nothing_over(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = {"ROUNDHOUSE_PORT": str(listener.getsockname()[1]), "ROUNDHOUSE_STATE": str(folder)}
        async with taking_over(listener, **settings) as (process, ready):
            code, output = await ended(process)
            assert code == 1
            assert "no routing table came from the controller: nothing is taken over" in output
            assert await ready.read() == b""


async def test_it_answers_at_each_address_and_connections_to_others_are_refused() -> None:
    port = free_port()
    async with running(ROUNDHOUSE_HOST="127.0.0.2, 127.0.0.3", ROUNDHOUSE_PORT=str(port)) as (process, gateway):
        await gateway.publish()
        for host in ("127.0.0.2", "127.0.0.3"):
            await until_served(host, port)
        for host in ("127.0.0.1", "127.0.0.4"):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, port))
        process.terminate()
        _, output = await ended(process)
    assert f"http://127.0.0.2:{port}" in output
    assert f"http://127.0.0.3:{port}" in output
    assert "requests are refused" not in output, "all are loopback"


async def test_a_name_stands_for_all_its_addresses_of_this_machine() -> None:
    found = socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)
    hosts = {f"[{address[0]}]" if family == socket.AF_INET6 else str(address[0]) for family, *_, address in found}
    assert "127.0.0.1" in hosts
    port = free_port()
    async with running(ROUNDHOUSE_HOST="127.0.0.2,localhost", ROUNDHOUSE_PORT=str(port)) as (_, gateway):
        await gateway.publish()
        for host in ("127.0.0.2", "127.0.0.1"):
            await until_served(host, port)


async def test_port_0_is_the_same_port_everywhere() -> None:
    process = await start(
        ROUNDHOUSE_HOST="127.0.0.2,127.0.0.3", ROUNDHOUSE_PORT="0", ROUNDHOUSE_RESPONSES_RETENTION_H="0"
    )
    try:
        assert process.stderr is not None
        ports: list[str] = []
        while len(ports) < 2:
            line = (await process.stderr.readline()).decode()
            assert line, "it ended"
            if "listening on" in line:
                ports.append(line.rstrip().rpartition(":")[2])
    finally:
        process.kill()
        await ended(process)
    assert ports[0] == ports[1] != "0"
