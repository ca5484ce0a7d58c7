"""What a request of the web framework's routes must show: each route declares it, per method and path, where it stands.

A route without a declaration does not become an open one: the gateway does not start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeVar

from starlette.routing import BaseRoute, Route

Access = Literal["open", "any_key", "inference", "admin"]
"""`open`: nothing. `any_key`: any valid key. `inference`, `admin`: a key of that scope."""

UNKNOWN_ROUTE_ACCESS: Final[Access] = "any_key"
"""Of paths and methods that no route has: who has no key is not told which there are."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class UndeclaredRouteError(Exception):
    """Routes that declare no access. The text names them."""


def require_access(access: Access) -> Callable[[Endpoint], Endpoint]:
    """A decorator that declares the access of an endpoint's route; it stands below the framework's own."""

    def declare(endpoint: Endpoint) -> Endpoint:
        endpoint.required_access = access  # type: ignore[attr-defined] # functions take attributes
        return endpoint

    return declare


class RouteAccess:
    """The access that each route of the web framework declares, looked up by method and path."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        """Raises UndeclaredRouteError."""
        declared_routes: list[tuple[Route, Access]] = []
        undeclared_routes: list[str] = []
        for route in routes:
            access = getattr(getattr(route, "endpoint", None), "required_access", None)
            if isinstance(route, Route) and access is not None:
                declared_routes.append((route, access))
            else:
                undeclared_routes.append(_describe_route(route))
        if undeclared_routes:
            raise UndeclaredRouteError(f"no access is declared for {', '.join(undeclared_routes)}")
        self._declared_routes: Sequence[tuple[Route, Access]] = declared_routes

    def list_declarations(self) -> list[tuple[str, str, Access]]:
        """Method (`*`: every one), path as declared, and access of each route, sorted."""
        return sorted(
            (method, route.path, access)
            for route, access in self._declared_routes
            for method in (route.methods or ("*",))
        )

    def find_access(self, method: str, path: str) -> Access:
        """The access that the route of this method and path declares. `path` is decoded, without the query."""
        for route, access in self._declared_routes:
            if (not route.methods or method in route.methods) and route.path_regex.match(path):
                return access
        return UNKNOWN_ROUTE_ACCESS


def _describe_route(route: BaseRoute) -> str:
    methods = ",".join(sorted(getattr(route, "methods", None) or ("*",)))
    return f"{methods} {getattr(route, 'path', route)}"
