"""`python -m gateway` as a process: exit codes, one-line refusals, a stop that lets requests finish."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.fakes.fake_controller import FakeController, route
from tests.fakes.gateway_harness import House, engines, until

SETTINGS = {"ROUNDHOUSE_CONTROLLER_URL": "unix:/nowhere/controller.sock"}


async def start(**settings: str) -> asyncio.subprocess.Process:
    """The process; its settings are only these."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        env={**clean, **SETTINGS, **settings},
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """Exit code, and all that was said."""
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, (out + err).decode()


def free_port() -> str:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def running(**settings: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, House]]:
    """A gateway process that knows a fake controller. Its state goes with it, unless `settings` name a folder."""
    controller = FakeController()
    await controller.start()
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        own = {"ROUNDHOUSE_PORT": port, "ROUNDHOUSE_CONTROLLER_URL": controller.url, "ROUNDHOUSE_STATE": folder}
        process = await start(**{**own, **settings})
        try:
            async with aiohttp.ClientSession() as client:
                await until(lambda: bool(controller.reports), "the gateway connects")
                yield process, House(controller, f"http://127.0.0.1:{port}", client)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await controller.stop()


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
    async with running() as (process, here), engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        streaming: Any = here.chat(stream=True, fault="pause_until_release")
        async with streaming as answer:
            await answer.content.readany()
            blocking = asyncio.create_task(here.chat(fault="hold").__aenter__())
            await until(lambda: engine.running == 2)
            process.send_signal(number)
            await refused(here)
            engine.release.set()
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
            async with await blocking as other:
                assert other.status == 200
        code, said = await ended(process)
        assert code == 0, said
        assert "Traceback" not in said
        assert here.controller.reports[-1].ending
        assert not any(report.ending for report in here.controller.reports if report.inflight)


async def test_after_the_grace_a_stream_is_told_and_the_process_ends() -> None:
    async with running(ROUNDHOUSE_SHUTDOWN_GRACE_S="0") as (process, here), engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        streaming: Any = here.chat(stream=True, fault="stall")
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


async def refused(here: House) -> None:
    """Wait until the gateway accepts no new connection."""
    async with asyncio.timeout(20):
        while True:
            try:
                async with aiohttp.ClientSession() as fresh, fresh.get(here.url + "/health"):
                    await asyncio.sleep(0.02)
            except aiohttp.ClientConnectorError:
                return
