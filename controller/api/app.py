"""The controller's HTTP interface as an ASGI application.

It listens on a unix socket in the state folder, or on the `control` network of a compose project. Its clients are
gateways, which forward the admin API, and the command line. Never publish it.
"""

from __future__ import annotations

from fastapi import Depends, FastAPI
from prometheus_client import CollectorRegistry

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
    return app
