"""A whole controller in the test's own event loop, on a socket of its own, over a fake runtime."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from controller.api.app import create_app
from controller.api.requests import StopMiddleware
from controller.assembly import Controller
from controller.settings import ControllerSettings
from controller.state_dir import StateDir
from tests.fakes.fake_runtime import FakeRuntime
from tests.support.wait import until


@dataclass
class Running:
    """The controller, what it runs on, and where it answers."""

    controller: Controller
    runtime: FakeRuntime
    url: str


@contextlib.asynccontextmanager
async def running(root: Path, models: Mapping[str, Any], **settings: Any) -> AsyncIterator[Running]:
    """A controller of these models, which has made its first observation. Its engines never become ready."""
    (root / "desired").mkdir(exist_ok=True)
    (root / "desired" / "models.yaml").write_text(json.dumps({"models": models}))
    own_settings = ControllerSettings(
        desired=root / "desired", state=root / "state", models=root, runtime="process", **settings
    )
    runtime = FakeRuntime(time.time)
    with contextlib.closing(StateDir.open_folder(own_settings.state, "i")) as store:
        async with (
            aiohttp.ClientSession() as session,
            Controller(own_settings, store, runtime, session) as controller,
            serve_controller(controller) as url,
        ):
            await until("the first observation", lambda: controller.get_plan() is not None)
            yield Running(controller, runtime, url)


@contextlib.asynccontextmanager
async def serve_controller(controller: Controller) -> AsyncIterator[str]:
    """Serve it as `python -m controller` does, until it was asked to end or the test is done with it. Gives its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = StopMiddleware(create_app(controller, controller.registry), controller.wait_for_end)
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="websockets-sansio")
    )
    setattr(server, "capture_signals", contextlib.nullcontext)  # noqa: B010 - signals are the test runner's
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        controller.shut_down(stop_engines=False)
        server.should_exit = server.force_exit = True
        await serving
