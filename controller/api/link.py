"""A gateway's link: one WebSocket, routing tables down, reports up."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from pydantic import ValidationError

from controller.assembly import Controller
from controller.observe.gateway_hub import GatewayHub
from controller.schema.routing import GatewayReport, LinkRefusal

log = logging.getLogger(__name__)

CLOSE_REFUSED = 1008
"""Code of the closing frame after a refusal: policy violation (RFC 6455)."""


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

    async def run(self) -> None:
        """Serve the link until the gateway disconnects, which raises nothing. The first report says which gateway it
        is; one that the hub refuses is told why, gets no table, and the link ends. A report that cannot be read is
        logged and ignored. Call once."""
        with suppress(WebSocketDisconnect):
            report = await self._receive_report()
            if (reason := self._hub.admit_gateway(report)) is not None:
                await self._refuse(reason)
                return
            self._hub.open_link(report.gateway_id)
            try:
                await self._serve(report)
            finally:
                self._hub.close_link(report.gateway_id)

    async def _serve(self, report: GatewayReport) -> None:
        self._controller.take_report(report)
        sender = asyncio.create_task(self._send_tables())
        try:
            while True:
                self._controller.take_report(await self._receive_report())
        finally:
            sender.cancel()
            with suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                await sender

    async def _refuse(self, reason: str) -> None:
        with suppress(RuntimeError):  # the gateway has left
            await self._socket.send_text(LinkRefusal(reason=reason).model_dump_json())
            await self._socket.close(CLOSE_REFUSED)

    async def _send_tables(self) -> None:
        sent_stamp = None
        while True:
            table = await self._hub.wait_for_table(sent_stamp)
            await self._socket.send_text(table.model_dump_json())
            sent_stamp = table.stamp

    async def _receive_report(self) -> GatewayReport:
        while True:
            text = await self._socket.receive_text()
            try:
                return GatewayReport.model_validate_json(text)
            except ValidationError as error:
                log.warning("a gateway sent a report that cannot be read: %s", error.errors(include_input=False))
