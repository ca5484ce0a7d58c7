"""A real gateway on a real socket, in the test's own event loop, between a fake controller and fake engines."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from assistant.extension import Assistant, open_store
from common.listening import bind_listeners
from contract.keys import Key
from contract.routing import ModelRoute
from contract.tools import McpServerRoute, ToolRoute
from gateway.__main__ import Server, limit_unsent, server_of
from gateway.app import Gateway, create_gateway, open_certificate, open_clock
from gateway.exchange.services import Services
from gateway.extension import Extension, GatewayParts, add_nothing
from gateway.settings import GatewaySettings
from tests.fakes.fake_controller import DEADLINE_S, FakeController
from tests.fakes.mock_engine import MockEngine
from tests.support.http_client import HttpClient


async def until(condition: Callable[[], bool], what: str = "condition") -> None:
    """Wait for `condition`, with a deadline."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110 - the condition is anything, so nothing signals it
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"never came true: {what}") from None


def assemble_gateway(settings: GatewaySettings) -> Gateway:
    """A gateway with an assistant that stores nothing. It does not run."""
    return create_gateway(settings, lambda parts: Assistant(parts, None).describe_extension())


@contextlib.asynccontextmanager
async def serving(settings: GatewaySettings) -> AsyncIterator[str]:
    """A gateway with these settings; gives its base URL. Its port is free, whatever the settings say."""
    async with server_running(settings) as (url, _):
        yield url


@contextlib.asynccontextmanager
async def server_running(
    settings: GatewaySettings, assistants: list[Assistant] | None = None
) -> AsyncIterator[tuple[str, Server]]:
    """The same, with the server itself, for who looks inside; `assistants` gets the assistant. Its responses are stored
    in a folder of its own, where the settings name none."""
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        if "state" not in settings.model_fields_set:
            settings = settings.model_copy(update={"state": Path(folder)})
        # Nothing of a test goes to the machine's network.
        settings = settings.model_copy(update={"mdns": False})
        listeners = bind_listeners(settings.hosts, 0)
        limit_unsent(listeners)
        clock = open_clock(settings)
        store = open_store(settings, clock) if settings.assistant else None

        def extend(parts: GatewayParts) -> Extension:
            assistant = Assistant(parts, store)
            if assistants is not None:
                assistants.append(assistant)
            return assistant.describe_extension()

        server = server_of(settings, extend if settings.assistant else add_nothing, open_certificate(settings), clock)
        setattr(server, "capture_signals", contextlib.nullcontext)  # noqa: B010 - signals are the test runner's
        task = asyncio.create_task(server.serve(sockets=listeners))
        await until(lambda: server.started or task.done(), "the gateway starts")
        try:
            host, port = listeners[0].getsockname()[:2]
            scheme = "https" if settings.tls_cert else "http"
            yield f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}", server
        finally:
            server.should_exit = True
            await task


@dataclass
class GatewayHarness(HttpClient):
    """What most tests need: a gateway that knows a controller, and a client of it."""

    controller: FakeController
    url: str
    client: aiohttp.ClientSession
    server: Server | None = None
    """None: the gateway is a process of its own."""
    assistants: list[Assistant] = field(default_factory=list)
    """The assistant of a gateway in this process; empty: it has none."""

    @property
    def app(self) -> Gateway:
        """The gateway itself, for who looks inside."""
        assert self.server is not None, "the gateway is a process of its own"
        return self.server.gateway

    @property
    def connections(self) -> set[Any]:
        """Those of its clients."""
        assert self.server is not None, "the gateway is a process of its own"
        return self.server.server_state.connections

    def stop(self) -> None:
        """Let it end, as a signal would."""
        assert self.server is not None, "the gateway is a process of its own"
        self.server.should_exit = True

    @property
    def assistant(self) -> Assistant:
        """What is added to the gateway, for who looks inside."""
        [assistant] = self.assistants
        return assistant

    @property
    def services(self) -> Services:
        return self.app.inference._services

    async def publish(
        self,
        *models: ModelRoute,
        keys: tuple[Key, ...] = (),
        tools: tuple[ToolRoute, ...] = (),
        mcp_servers: tuple[McpServerRoute, ...] = (),
    ) -> None:
        """Put a table in force in the gateway."""
        stamp = await self.controller.publish(*models, keys=keys, tools=tools, mcp_servers=mcp_servers)
        await self.controller.acknowledged(stamp)

    async def metrics(self) -> str:
        return str((await self.get("/metrics")).body)

    async def idle(self) -> None:
        """Wait until the gateway reports nothing inside and nothing queued."""
        await self.controller.report_where(lambda report: not report.inflight and not report.queued)


@contextlib.asynccontextmanager
async def gateway_harness(*, with_table: bool = True, **settings: Any) -> AsyncIterator[GatewayHarness]:
    """A gateway with these settings, connected to a fake controller, whose first table has no models.

    The machine may be busy: engines are given `DEADLINE_S` to accept a connection, unless the test sets another time.
    What may be gathered is, however short the answers were before: a test that is about that sets a time, too.
    """
    settings = {"connect_timeout_s": DEADLINE_S, "gather_after_s": 0} | settings
    controller, assistants = FakeController(), list[Assistant]()
    await controller.start()
    try:
        async with (
            server_running(GatewaySettings(controller_url=controller.url, **settings), assistants) as (url, server),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
        ):
            await until(lambda: bool(controller.reports), "the gateway connects")
            gateway = GatewayHarness(controller, url, client, server, assistants)
            if with_table:
                await gateway.publish()
            yield gateway
    finally:
        await controller.stop()


@contextlib.asynccontextmanager
async def engines(count: int) -> AsyncIterator[list[MockEngine]]:
    started = [MockEngine() for _ in range(count)]
    for engine in started:
        await engine.start()
    try:
        yield started
    finally:
        for engine in started:
            await engine.stop()
