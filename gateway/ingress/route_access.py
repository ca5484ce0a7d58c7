"""Which access the routes of the web framework require. Each route declares it where it is defined.

A route without a declaration is not open: the gateway does not start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeVar

from starlette.routing import BaseRoute, Route

Access = Literal["open", "metrics", "page", "any_key", "inference", "admin"]
"""What a route requires. `open`: nothing. `metrics`: nothing unless `ROUNDHOUSE_METRICS_KEY` is set, then that key or
one of the scope `admin`. `page`: a Host header that this gateway goes by. `any_key`: any valid key.
`inference`, `admin`: a key of that scope."""

UNKNOWN_ROUTE_ACCESS: Final[Access] = "any_key"
"""Access of paths and methods that no route has, so that clients without a key cannot learn which routes exist."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class UndeclaredRouteError(Exception):
    """Some routes declare no access. The text names all of them.

    Raised at start, so that the gateway does not start.
    """


def require_access(access: Access) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator that declares the access of an endpoint's route. Put it below FastAPI's decorator.

    It sets an attribute of the function and returns the same function; the access is enforced by `IngressMiddleware`.
    """

    def declare(endpoint: Endpoint) -> Endpoint:
        endpoint.required_access = access  # type: ignore[attr-defined] # functions take attributes
        return endpoint

    return declare


class RouteAccess:
    """The access that each route of FastAPI declares, looked up by method and path.

    Made once, of all routes, at start.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        """Collect the declarations of `routes`.

        Raises:
            UndeclaredRouteError: a route declares no access, or is no `starlette.routing.Route` (a mount, a WebSocket).
        """
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
        """Return (method, path as declared, access) of each route and method, sorted by method, then path. Method `*`:
        the route serves every method."""
        return sorted(
            (method, route.path, access)
            for route, access in self._declared_routes
            for method in (route.methods or ("*",))
        )

    def find_access(self, method: str, path: str) -> Access:
        """Return the access of the first route for this method and path; `UNKNOWN_ROUTE_ACCESS` if there is none.

        `path`: percent-decoded, without the query.
        """
        for route, access in self._declared_routes:
            if (not route.methods or method in route.methods) and route.path_regex.match(path):
                return access
        return UNKNOWN_ROUTE_ACCESS


def _describe_route(route: BaseRoute) -> str:
    methods = ",".join(sorted(getattr(route, "methods", None) or ("*",)))
    return f"{methods} {getattr(route, 'path', route)}"
