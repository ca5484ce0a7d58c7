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


def make_gateway() -> Any:
    """The gateway's own OpenAPI document."""
    return _described(_gateway().openapi())


def make_controller() -> Any:
    """The controller's."""
    return _described(_controller().openapi())


def make_merged() -> Any:
    """What `GET /openapi.json` has of both: paths with the ids of their operations, and names of components."""
    merged = _merged()
    return {
        "paths": {
            path: {method: operation.get("operationId") for method, operation in item.items()}
            for path, item in merged["paths"].items()
        },
        "components": {kind: sorted(items) for kind, items in merged["components"].items()},
        "tags": [tag["name"] for tag in merged["tags"]],
    }


def make_merged_types() -> Any:
    """All that `GET /openapi.json` says, but prose and errors, which have one form."""
    merged = _described(_merged())
    for item in merged["paths"].values():
        for operation in item.values():
            responses = operation["responses"]
            operation["responses"] = {status: each for status, each in responses.items() if status < "4"}
    return _without_titles(merged)


def make_routes() -> Any:
    """Every route that is served, also those that no document names."""
    return {"controller": _routes(_controller()), "gateway": _routes(_gateway())}


def make_schema() -> Any:
    """`roundhouse schema`."""
    return without_prose(json.loads(schema_text()))


def _without_titles(part: Any) -> Any:
    """Titles of schemas say again what the names of fields say; a field of that name has an object as its value."""
    if isinstance(part, list):
        return [_without_titles(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {key: _without_titles(each) for key, each in part.items() if key != "title" or isinstance(each, dict)}


def _merged() -> dict[str, Any]:
    return merge_documents(_gateway().openapi(), _controller().openapi(), admin_errors())


def _described(document: dict[str, Any]) -> Any:
    # Of each release another one.
    document["info"] = {key: value for key, value in document["info"].items() if key != "version"}
    return without_prose(document)


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
