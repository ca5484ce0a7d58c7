"""The documents that describe the APIs and the files. Without descriptions and summaries, which are prose."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

from tests.support.goldens.golden import without_prose
from tests.support.goldens.product import (
    CollectorRegistry,
    FastAPI,
    GatewaySettings,
    admin_errors,
    create_app,
    create_gateway,
    merge_documents,
    schema_text,
)


def make_document() -> Any:
    """What `GET /openapi.json` says: the gateway's own document, with the admin routes of the controller's."""
    document = merge_documents(_gateway().openapi(), _controller().openapi(), admin_errors())
    # Of each release another one.
    document["info"] = {key: value for key, value in document["info"].items() if key != "version"}
    return without_prose(document)


def make_routes() -> Any:
    """Every route that is served, also those that no document names."""
    return {"controller": _routes(_controller()), "gateway": _routes(_gateway())}


def make_schema() -> Any:
    return without_prose(json.loads(schema_text()))


def _routes(app: FastAPI) -> list[str]:
    return sorted(
        f"{path} {' '.join(sorted(getattr(route, 'methods', None) or ['websocket']))}"
        for route in app.routes
        if (path := getattr(route, "path", None)) is not None
    )


def _gateway() -> FastAPI:
    framework: Any = create_gateway(GatewaySettings(controller_url="unix:/nowhere"), None).app._framework
    assert isinstance(framework, FastAPI)
    return framework


def _controller() -> FastAPI:
    # Declaring routes calls nothing of it.
    return create_app(Mock(), CollectorRegistry())
