"""`python -m gateway` as a process of its own, with these settings and no others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator

import aiohttp

from cli.up.supervisor import pass_on
from tests.fakes.fake_controller import FakeController
from tests.fakes.gateway_harness import GatewayHarness, until
from tests.support.ports import free_port

SETTINGS = {"ROUNDHOUSE_CONTROLLER_URL": "unix:/nowhere/controller.sock", "ROUNDHOUSE_MDNS": "off"}


async def start(*files: tuple[str, int], **settings: str) -> asyncio.subprocess.Process:
    """A gateway that is passed these descriptors, each with its name."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    argv, variables = pass_on((sys.executable, "-m", "gateway"), files)
    return await asyncio.create_subprocess_exec(
        *argv,
        env={**clean, **SETTINGS, **settings, **variables},
        pass_fds=[descriptor for _, descriptor in files],
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """Exit code, and all that was said."""
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()  # one that should have ended, and serves
    assert process.returncode is not None
    return process.returncode, (out + err).decode()


@contextlib.asynccontextmanager
async def running(
    *files: tuple[str, int], **settings: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, GatewayHarness]]:
    """A gateway process that knows a fake controller. Its state goes with it, unless `settings` name a folder."""
    controller = FakeController()
    await controller.start()
    port = str(free_port())
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        own = {"ROUNDHOUSE_PORT": port, "ROUNDHOUSE_CONTROLLER_URL": controller.url, "ROUNDHOUSE_STATE": folder}
        process = await start(*files, **{**own, **settings})
        try:
            async with aiohttp.ClientSession() as client:
                await until(lambda: bool(controller.reports) or process.returncode is not None, "the gateway connects")
                assert process.returncode is None, (await process.communicate())[1].decode()
                yield (
                    process,
                    GatewayHarness(controller, f"http://127.0.0.1:{settings.get('ROUNDHOUSE_PORT', port)}", client),
                )
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await controller.stop()


async def refused(gateway: GatewayHarness) -> None:
    """Wait until the gateway accepts no new connection."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with aiohttp.ClientSession() as fresh, fresh.get(gateway.url + "/health"):
                    pass
            except aiohttp.ClientConnectorError:
                return
            except aiohttp.ClientConnectionError:
                pass  # it was accepted just before, and closed
            await asyncio.sleep(0.02)
