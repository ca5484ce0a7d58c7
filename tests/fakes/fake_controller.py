"""A fake: the controller's end of the gateway link, publishing what a test tells it and keeping the reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from contract.admin import Capabilities
from contract.keys import Key
from contract.routing import Endpoint, GatewayReport, LinkRefusal, ModelRoute, RoutingTable, Stamp
from contract.status import ModelState
from contract.tools import McpServerRoute, ToolRoute
from tests.fakes.fake_admin import FakeAdmin

DEADLINE_S = 60.0
"""So long is waited for what must come; it only bounds a hang."""


def route(
    name: str,
    urls: Iterable[str] = (),
    *,
    backend: str = "stub",
    state: ModelState = ModelState.LOADED,
    aliases: tuple[str, ...] = (),
    served_name: str | None = None,
    token: str | None = None,
    apis: tuple[str, ...] = (),
    autoload: bool = False,
    last_error: str | None = None,
    retry_at: float | None = None,
    progress: float | None = None,
    capabilities: Capabilities | None = None,
    target_inflight: int = 64,
    queue_limit: int | None = None,
    **more: Any,
) -> ModelRoute:
    """A model whose replicas listen at `urls`; they are named `<model>-0`, `<model>-1`, ... `more`: further fields."""
    endpoints = [{"replica": f"{name}-{number}", "base_url": url, "token": token} for number, url in enumerate(urls)]
    return ModelRoute(
        name=name,
        backend=backend,
        state=state,
        created=1700000000,
        aliases=aliases,
        served_name=served_name or name,
        endpoints=tuple(Endpoint.model_validate(endpoint) for endpoint in endpoints),
        apis=apis,
        autoload=autoload,
        last_error=last_error,
        retry_at=retry_at,
        progress=progress,
        capabilities=capabilities or Capabilities(),
        target_inflight=target_inflight,
        queue_limit=queue_limit,
        **more,
    )


class FakeController:
    """Serves `/internal/link` and a fake of the admin routes, on TCP or on a Unix socket."""

    def __init__(self, instance: str = "test", epoch: int = 1) -> None:
        self.instance = instance
        self.epoch = epoch
        self.seq = 0
        self.reports: list[GatewayReport] = []
        self.message: str | None = None
        """What a gateway is sent when it connects: the last table."""
        self.refusal: str | None = None
        """Why gateways are refused; None: they are taken."""
        self.connections = 0
        self.admin = FakeAdmin()
        self.url = ""
        self._port = 0
        self._sockets: set[web.WebSocketResponse] = set()
        self._runner: web.AppRunner | None = None
        self._reported = asyncio.Condition()

    async def start(self, unix_path: Path | None = None) -> None:
        """Listen; after a stop, at the same place again."""
        app = web.Application()
        app.router.add_get("/internal/link", self._link)
        self.admin.declare(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        if unix_path is not None:
            await web.UnixSite(self._runner, str(unix_path)).start()
            self.url = f"unix:{unix_path}"
            return
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Break every connection and close the port."""
        if self._runner is not None:
            self.admin.drop_connections()
            for socket in list(self._sockets):
                await socket.close()
            await self._runner.cleanup()
            self._runner = None

    def table(
        self,
        *models: ModelRoute,
        keys: tuple[Key, ...] = (),
        tools: tuple[ToolRoute, ...] = (),
        mcp_servers: tuple[McpServerRoute, ...] = (),
    ) -> RoutingTable:
        self.seq += 1
        stamp = Stamp(epoch=self.epoch, seq=self.seq)
        return RoutingTable(
            instance=self.instance, stamp=stamp, models=models, keys=keys, tools=tools, mcp_servers=mcp_servers
        )

    async def publish(
        self,
        *models: ModelRoute,
        keys: tuple[Key, ...] = (),
        tools: tuple[ToolRoute, ...] = (),
        mcp_servers: tuple[McpServerRoute, ...] = (),
    ) -> Stamp:
        """Send the next table to all gateways, and to those that come later."""
        table = self.table(*models, keys=keys, tools=tools, mcp_servers=mcp_servers)
        await self.send(table.model_dump_json())
        return table.stamp

    async def send(self, message: str) -> None:
        self.message = message
        for socket in list(self._sockets):
            await socket.send_str(message)

    async def refuse(self, reason: str | None) -> None:
        """Refuse the gateways that are connected, and those that come, or take them again."""
        self.refusal = reason
        for socket in list(self._sockets):
            if reason is not None:
                await socket.send_str(LinkRefusal(reason=reason).model_dump_json())
                await socket.close()

    async def report_where(self, holds: Callable[[GatewayReport], bool]) -> GatewayReport:
        """Wait for a report, or find the last one, of which `holds` is true."""

        def last_holds() -> bool:
            return bool(self.reports) and holds(self.reports[-1])

        async with self._reported, asyncio.timeout(DEADLINE_S):
            await self._reported.wait_for(last_holds)
            return self.reports[-1]

    async def acknowledged(self, stamp: Stamp) -> GatewayReport:
        """Wait until a gateway reports under the table of `stamp`."""
        return await self.report_where(lambda report: report.stamp == stamp)

    async def _link(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.connections += 1
        if self.refusal is not None:
            await socket.send_str(LinkRefusal(reason=self.refusal).model_dump_json())
            await socket.close()
            return socket
        self._sockets.add(socket)
        try:
            if self.message is not None:
                await socket.send_str(self.message)
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    async with self._reported:
                        self.reports.append(GatewayReport.model_validate_json(message.data))
                        self._reported.notify_all()
        finally:
            self._sockets.discard(socket)
        return socket
