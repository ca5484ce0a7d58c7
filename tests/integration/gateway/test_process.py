"""`python -m gateway` as a process: exit codes, one-line refusals, a stop that lets requests finish."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import Any

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, until
from tests.support.gateway_process import ended, refused, running, start


async def test_a_taken_port_is_told_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = await ended(await start(ROUNDHOUSE_PORT=str(port)))
    assert code == 3
    assert said.count("\n") == 1
    assert f"127.0.0.1:{port}" in said
    assert "Address already in use" in said


async def test_an_address_that_is_not_here_is_told_in_one_line() -> None:
    code, said = await ended(await start(ROUNDHOUSE_HOST="no-such-host.invalid", ROUNDHOUSE_OPEN="1"))
    assert code == 3
    assert said.count("\n") == 1
    assert "no-such-host.invalid" in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ROUNDHOUSE_TLS_CERT": "/nowhere.pem"}, ["ROUNDHOUSE_TLS_CERT", "/nowhere.pem"]),
        ({"ROUNDHOUSE_PORT": "many"}, ["ROUNDHOUSE_PORT"]),
        ({"ROUNDHOUSE_CONTROLLER_URL": "controller"}, ["ROUNDHOUSE_CONTROLLER_URL", "unix:/path"]),
        ({"ROUNDHOUSE_HEARTBEAT_S": "0"}, ["ROUNDHOUSE_HEARTBEAT_S"]),
    ],
)
async def test_settings_that_cannot_be_are_told_in_one_line(settings: dict[str, str], words: list[str]) -> None:
    code, said = await ended(await start(**settings))
    assert code == 2
    assert said.count("\n") == 1
    assert all(word in said for word in words)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_lets_requests_finish(number: signal.Signals) -> None:
    async with running() as (process, gateway), engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        streaming: Any = gateway.chat(stream=True, fault="pause_until_release")
        async with streaming as answer:
            await answer.content.readany()
            blocking = asyncio.create_task(gateway.chat(fault="hold").__aenter__())
            await until(lambda: engine.running == 2)
            process.send_signal(number)
            await refused(gateway)
            engine.release.set()
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
            async with await blocking as other:
                assert other.status == 200
        code, said = await ended(process)
        assert code == 0, said
        assert "Traceback" not in said
        assert gateway.controller.reports[-1].ending
        assert not any(report.ending for report in gateway.controller.reports if report.inflight)


async def test_after_the_grace_a_stream_is_told_and_the_process_ends() -> None:
    async with running(ROUNDHOUSE_SHUTDOWN_GRACE_S="0") as (process, gateway), engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        streaming: Any = gateway.chat(stream=True, fault="stall")
        async with streaming as answer:
            await answer.content.readany()
            process.terminate()
            last = await answer.read()
        assert b"The gateway was stopped" in last
        assert last.endswith(b"data: [DONE]\n\n")
        code, said = await ended(process)
        assert code == 0, said
        assert "Traceback" not in said
        await until(lambda: engine.cancelled == 1)
