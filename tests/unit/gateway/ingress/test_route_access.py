"""Routes declare what a request must show; one that does not is no open one."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from starlette.routing import Mount, Route

from gateway.ingress.route_access import RouteAccess, UndeclaredRouteError, require_access


@require_access("admin")
async def admin_only() -> None:
    """An endpoint."""


@require_access("open")
async def open_to_all() -> None:
    """Another one."""


async def undeclared() -> None:
    """One whose author forgot it."""


def test_the_first_route_of_method_and_path_tells() -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.get("/things/{name:path}")(admin_only)
    app.post("/things/{name:path}")(open_to_all)
    every_method = Route("/all/{rest:path}", admin_only)
    every_method.methods = None  # as of an ASGI application: every method is its own to judge
    app.router.routes.append(every_method)
    access = RouteAccess(app.routes)
    assert access.find_access("GET", "/things/a/b") == "admin"
    assert access.find_access("POST", "/things/a/b") == "open"
    assert access.find_access("BREW", "/all/x") == "admin"
    for method, path in (("PUT", "/things/a"), ("GET", "/things"), ("GET", "/Things/a"), ("GET", "/all"), ("GET", "")):
        assert access.find_access(method, path) == "any_key", (method, path)
    assert access.list_declarations() == [
        ("*", "/all/{rest:path}", "admin"),
        ("GET", "/things/{name:path}", "admin"),
        ("POST", "/things/{name:path}", "open"),
    ]


def test_a_route_without_a_declaration_is_an_error_that_names_it() -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.get("/fine")(open_to_all)
    app.delete("/models/{name}")(undeclared)
    app.router.routes.append(Mount("/assets", app=FastAPI()))
    with pytest.raises(UndeclaredRouteError) as raised:
        RouteAccess(app.routes)
    assert str(raised.value) == "no access is declared for DELETE /models/{name}, * /assets"
