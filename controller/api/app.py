"""The controller's HTTP interface as an ASGI application, with its internal routes and the link of gateways.

It listens on a unix socket in the state folder, or on the `control` network of a compose project. Its clients are
gateways, which forward the admin API, and the command line. Never publish it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Annotated, NoReturn

from fastapi import Body, Depends, FastAPI, Response, WebSocket, WebSocketDisconnect
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel, Field, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contract.errors import RoundhouseError
from contract.routing import GatewayReport, LinkRefusal
from contract.status import ControllerStatus, PlanView
from controller import __version__
from controller.admin.service import NOT_YET
from controller.api.admin_downloads import declare_downloads
from controller.api.admin_hosts import declare_hosts
from controller.api.admin_journal import declare_journal
from controller.api.admin_models import declare_logs, declare_models
from controller.api.admin_plans import declare_declarations, declare_plans
from controller.api.requests import Actor, check_parameters, declare_errors
from controller.assembly import Controller
from controller.observe.gateway_hub import GatewayHub

log = logging.getLogger(__name__)


def create_app(controller: Controller, registry: CollectorRegistry) -> FastAPI:
    """Build the ASGI application with all routes of the controller and their error handlers, without authentication.
    `registry` holds the metrics that `/metrics` exposes."""
    app = FastAPI(
        title="Roundhouse admin API",
        version=__version__,
        description="Load, unload and inspect models while the appliance runs.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(check_parameters)],
        openapi_tags=[{"name": "admin", "description": "Models at run time: states, loads, unloads and plans."}],
    )
    declare_errors(app)
    _declare_internal(app, controller, registry)
    _declare_link(app, controller, controller.hub)
    declare_plans(app, controller)
    declare_declarations(app, controller.declaration_service)
    declare_downloads(app, controller.downloads, controller.model_files)
    declare_hosts(app, controller.host_service)
    declare_journal(app, controller.journal, controller.admin_service)
    declare_logs(app, controller.admin_service, controller.logs)
    declare_models(app, controller.admin_service)
    app.add_middleware(UnsavedHeader, controller=controller)
    return app


class UnsavedHeader:
    """Adds the header `x-unsaved` to answers of requests that change something, while the state folder cannot be
    written: what they acknowledge is in force, and a restart would not know it."""

    def __init__(self, app: ASGIApp, controller: Controller) -> None:
        self._app = app
        self._controller = controller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as ASGI has it."""

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start" and (unsaved := self._controller.list_unsaved()):
                header = (b"x-unsaved", ", ".join(unsaved).encode())
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        changes = scope["type"] == "http" and scope["method"] not in ("GET", "HEAD")
        await self._app(scope, receive, send_marked if changes else send)


class PauseRequest(BaseModel):
    """Body of POST /internal/pause, which pauses or resumes the controller; the answer is its `ControllerStatus`.

    The state survives a restart of the controller. Asking for the present state again is no error.
    """

    paused: bool = Field(description="true: the controller observes and changes nothing. false: it acts.")


class ShutdownRequest(BaseModel):
    """Body of POST /internal/shutdown, which is answered with 202 before the controller begins to exit.

    Without `stop_engines`, the engines go on running for the next controller.
    """

    stop_engines: bool = Field(default=False, description="true: stop every engine before the controller exits.")
    engines_grace_s: float | None = Field(
        default=None,
        ge=0,
        description="Seconds between SIGTERM and SIGKILL of each engine; null: `ROUNDHOUSE_STOP_TIMEOUT_S`.",
    )


def _declare_internal(app: FastAPI, controller: Controller, registry: CollectorRegistry) -> None:
    """Add the routes `/internal/...` and `/metrics` to `app`. `/metrics` exposes `registry`. The routes are left out of
    the OpenAPI document, because only local clients reach them."""

    @app.get("/internal/health", include_in_schema=False)
    async def health(response: Response) -> dict[str, str]:
        error = controller.get_health_error()
        if error is None:
            return {"status": "ok", "version": __version__}
        response.status_code = 503
        return {"status": "unhealthy", "version": __version__, "error": error}

    @app.get("/internal/status", include_in_schema=False)
    async def status() -> ControllerStatus:
        return controller.get_status()

    @app.get("/internal/plan", include_in_schema=False)
    async def plan() -> PlanView:
        view = controller.get_plan()
        if view is None:
            raise RoundhouseError("controller_unavailable", NOT_YET)
        return view

    @app.post("/internal/pause", include_in_schema=False)
    async def pause(request: Annotated[PauseRequest, Body()], actor: Actor) -> ControllerStatus:
        controller.set_paused(request.paused, actor=actor)
        return controller.get_status()

    @app.post("/internal/shutdown", status_code=202, include_in_schema=False)
    async def shutdown(request: Annotated[ShutdownRequest, Body()]) -> dict[str, bool]:
        controller.shut_down(stop_engines=request.stop_engines, engines_grace_s=request.engines_grace_s)
        return {"stop_engines": request.stop_engines}

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


CLOSE_REFUSED = 1008
"""Code of the closing frame after a refusal: policy violation (RFC 6455)."""
CLOSE_FAILED = 1011
"""Code of the closing frame after a fault of the controller: internal error."""


def _declare_link(app: FastAPI, controller: Controller, hub: GatewayHub) -> None:
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
        tasks = (asyncio.create_task(self._send_tables()), asyncio.create_task(self._take_reports()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            fault, end = await asyncio.gather(*tasks, return_exceptions=True)
        if not isinstance(end, asyncio.CancelledError):
            raise end
        if not isinstance(fault, WebSocketDisconnect | RuntimeError):  # the gateway has left
            # A gateway that is sent no more tables must not look connected.
            log.error("gateway %s cannot be sent a table, and its link ends", report.gateway_id, exc_info=fault)
            with suppress(RuntimeError):  # the gateway has left
                await self._socket.close(CLOSE_FAILED)

    async def _refuse(self, reason: str) -> None:
        with suppress(RuntimeError):  # the gateway has left
            await self._socket.send_text(LinkRefusal(reason=reason).model_dump_json())
            await self._socket.close(CLOSE_REFUSED)

    async def _send_tables(self) -> NoReturn:
        sent_stamp = None
        while True:
            table = await self._hub.wait_for_table(sent_stamp)
            await self._socket.send_text(table.model_dump_json())
            sent_stamp = table.stamp

    async def _take_reports(self) -> NoReturn:
        while True:
            self._controller.take_report(await self._receive_report())

    async def _receive_report(self) -> GatewayReport:
        while True:
            text = await self._socket.receive_text()
            try:
                return GatewayReport.model_validate_json(text)
            except ValidationError as error:
                log.warning("a gateway sent a report that cannot be read: %s", error.errors(include_input=False))
