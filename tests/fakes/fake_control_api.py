"""A fake of the controller's internal interface: fixed answers on a real unix socket, for the command line's tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from controller.schema.errors import RoundhouseError
from controller.schema.status import (
    ControllerStatus,
    ModelState,
    ModelStatus,
    PlanView,
    StatementView,
)


def model(name: str, state: str = "loaded", *, wanted: int = 1, **more: Any) -> ModelStatus:
    """One model's status; as many replicas are loaded as are wanted if it is."""
    return ModelStatus(
        name=name,
        backend="stub",
        state=ModelState(state),
        wanted_replicas=wanted,
        loaded_replicas=wanted if state == "loaded" else 0,
        statement=StatementView(kind="file", since=1000.0, reason="enabled in the files"),
        **more,
    )


def status(*models: ModelStatus, **more: Any) -> ControllerStatus:
    """A controller's status after its first observation."""
    fields = {"observed_at": 1000.0, "gateways": ["gw-1"], "gpus": [], **more}
    return ControllerStatus(
        instance="abc123", version="0.1.0", runtime="process", generation=3, models=list(models), **fields
    )


class FakeControlApi:
    """Answers what it was told to, and remembers what it was asked."""

    def __init__(self, socket: Path) -> None:
        self.url = f"unix:{socket}"
        self.status = status(model("chat"))
        self.plan: PlanView | None = PlanView(generation=3)
        self.asked: list[tuple[str, Any]] = []
        self.raw: web.Response | None = None
        """Answered to everything, where it is set."""
        self.changed = asyncio.Event()
        self._socket = socket

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/internal/status", self._status)
        app.router.add_get("/internal/plan", self._plan)
        app.router.add_post("/internal/pause", self._pause)
        app.router.add_post("/internal/shutdown", self._shutdown)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self._socket)).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()
        self._socket.unlink(missing_ok=True)

    async def _status(self, _request: web.Request) -> web.Response:
        self.asked.append(("status", None))
        return self.raw or _json(self.status.model_dump_json())

    async def _plan(self, _request: web.Request) -> web.Response:
        self.asked.append(("plan", None))
        if self.plan is None:
            error = RoundhouseError("controller_unavailable", "the controller has not made its first observation yet")
            return web.Response(body=error.json_bytes(), status=503, content_type="application/json")
        return self.raw or _json(self.plan.model_dump_json())

    async def _pause(self, request: web.Request) -> web.Response:
        self.asked.append(("pause", await request.json()))
        return self.raw or _json(self.status.model_dump_json())

    async def _shutdown(self, request: web.Request) -> web.Response:
        self.asked.append(("shutdown", await request.json()))
        self.changed.set()
        return self.raw or web.json_response({"stop_engines": True}, status=202)


def _json(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/json")
