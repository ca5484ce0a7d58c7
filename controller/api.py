"""The controller's own HTTP and WebSocket interface: for gateways and the command line, never published.

It listens on a unix socket in the state folder, or on the `control` network of a compose project.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Annotated, Protocol

from fastapi import Body, FastAPI, Response, WebSocket, WebSocketDisconnect
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel, Field, ValidationError

from controller import __version__
from controller.gateways import GatewayHub
from controller.schema.errors import RoundhouseError
from controller.schema.routing import GatewayReport
from controller.schema.status import ControllerStatus, PlanView

log = logging.getLogger(__name__)


class Controls(Protocol):
    """What the routes may do with the controller."""

    def status(self) -> ControllerStatus:
        """What there is."""

    def plan(self) -> PlanView | None:
        """What is being done, or would be done were it not paused; None before the first observation."""

    def pause(self, paused: bool) -> None:
        """Observe and never act, or act again."""

    def shut_down(self, *, stop_engines: bool) -> None:
        """Begin to end the controller."""

    def take(self, report: GatewayReport) -> None:
        """A gateway's report."""


class PauseRequest(BaseModel):
    """Body of POST /internal/pause."""

    paused: bool = Field(description="true: observe and never act.")


class ShutdownRequest(BaseModel):
    """Body of POST /internal/shutdown."""

    stop_engines: bool = Field(default=False, description="true: end every engine first.")


def create_app(controls: Controls, hub: GatewayHub, registry: CollectorRegistry) -> FastAPI:
    """The controller's interface as an ASGI application."""
    app = FastAPI(title="Roundhouse controller", version=__version__, docs_url=None, redoc_url=None)

    @app.exception_handler(RoundhouseError)
    async def on_error(_request: object, error: RoundhouseError) -> Response:
        return Response(error.json_bytes(), error.entry.status, error.headers(), "application/json")

    @app.get("/internal/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "version": __version__}

    @app.get("/internal/status")
    async def status() -> ControllerStatus:
        return controls.status()

    @app.get("/internal/plan")
    async def plan() -> PlanView:
        view = controls.plan()
        if view is None:
            raise RoundhouseError("controller_unavailable", "the controller has not made its first observation yet")
        return view

    @app.post("/internal/pause")
    async def pause(request: Annotated[PauseRequest, Body()]) -> ControllerStatus:
        controls.pause(request.paused)
        return controls.status()

    @app.post("/internal/shutdown", status_code=202)
    async def shutdown(request: Annotated[ShutdownRequest, Body()]) -> dict[str, bool]:
        controls.shut_down(stop_engines=request.stop_engines)
        return {"stop_engines": request.stop_engines}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.websocket("/internal/link")
    async def link(socket: WebSocket) -> None:
        await socket.accept()
        await _Link(socket, controls, hub).run()

    return app


class _Link:
    """One gateway's link: tables down, reports up."""

    def __init__(self, socket: WebSocket, controls: Controls, hub: GatewayHub) -> None:
        self._socket = socket
        self._controls = controls
        self._hub = hub
        self._gateway_id: str | None = None

    async def run(self) -> None:
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
                self._hub.link_down(self._gateway_id)

    async def _send_tables(self) -> None:
        sent = None
        while True:
            table = await self._hub.next_table(sent)
            await self._socket.send_text(table.model_dump_json())
            sent = table.stamp

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
                self._hub.link_up(report.gateway_id)
            self._controls.take(report)
