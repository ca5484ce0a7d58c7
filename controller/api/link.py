"""A gateway's link: one WebSocket, routing tables down, reports up."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from pydantic import ValidationError

from controller.assembly import Controller
from controller.observe.gateway_hub import GatewayHub
from controller.schema.routing import GatewayReport

log = logging.getLogger(__name__)


def declare(app: FastAPI, controller: Controller, hub: GatewayHub) -> None:
    """Add the WebSocket route `/internal/link`, through which gateways connect, to `app`."""

    @app.websocket("/internal/link")
    async def link(socket: WebSocket) -> None:
        await socket.accept()
        await GatewayLink(socket, controller, hub).run()


class GatewayLink:
    """One gateway's connection. Sends it the routing tables of `hub`, and passes its reports to `controller`. The
    socket is accepted already."""

    def __init__(self, socket: WebSocket, controller: Controller, hub: GatewayHub) -> None:
        self._socket = socket
        self._controller = controller
        self._hub = hub
        self._gateway_id: str | None = None

    async def run(self) -> None:
        """Serve the link until the gateway disconnects, which raises nothing. The first report tells the hub which
        gateway it is, and the end of the link is told to the hub, too. A report that cannot be read is logged and
        ignored. Call once."""
        sender = asyncio.create_task(self._send_tables())
        try:
            await self._take_reports()
        except WebSocketDisconnect:
            pass
        finally:
            sender.cancel()
            with suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                await sender
            if self._gateway_id is not None:
                self._hub.close_link(self._gateway_id)

    async def _send_tables(self) -> None:
        sent_stamp = None
        while True:
            table = await self._hub.wait_for_table(sent_stamp)
            await self._socket.send_text(table.model_dump_json())
            sent_stamp = table.stamp

    async def _take_reports(self) -> None:
        while True:
            text = await self._socket.receive_text()
            try:
                report = GatewayReport.model_validate_json(text)
            except ValidationError as error:
                log.warning("a gateway sent a report that cannot be read: %s", error.errors(include_input=False))
                continue
            if self._gateway_id is None:
                self._gateway_id = report.gateway_id
                self._hub.open_link(report.gateway_id)
            self._controller.take_report(report)
