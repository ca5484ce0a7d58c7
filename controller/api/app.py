"""The controller's HTTP interface as an ASGI application.

It listens on a unix socket in the state folder, or on the `control` network of a compose project. Its clients are
gateways, which forward the admin API, and the command line. Never publish it.
"""

from __future__ import annotations

from fastapi import Depends, FastAPI
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller import __version__
from controller.api import (
    admin_declarations,
    admin_downloads,
    admin_journal,
    admin_logs,
    admin_models,
    admin_plans,
    internal,
    link,
)
from controller.api.requests import check_parameters, declare_errors
from controller.assembly import Controller


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
    internal.declare(app, controller, registry)
    link.declare(app, controller, controller.hub)
    admin_plans.declare(app, controller)
    admin_declarations.declare(app, controller.declaration_service)
    admin_downloads.declare(app, controller.downloads, controller.model_files)
    admin_journal.declare(app, controller.journal, controller.admin_service)
    admin_logs.declare(app, controller.admin_service, controller.logs)
    admin_models.declare(app, controller.admin_service)
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
