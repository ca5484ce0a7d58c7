"""Internal routes of the controller, for gateways, the command line and `roundhouse up`. Never published."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, FastAPI, Response
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel, Field

from controller import __version__
from controller.admin.service import NOT_YET
from controller.api.requests import Actor
from controller.assembly import Controller
from controller.schema.errors import RoundhouseError
from controller.schema.status import ControllerStatus, PlanView


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


def declare(app: FastAPI, controller: Controller, registry: CollectorRegistry) -> None:
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
