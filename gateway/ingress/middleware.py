"""Access control of the routes that FastAPI serves. Each route declares what it demands where it is defined; a route
without a declaration is not open: the gateway does not start. Every failure is answered with the error envelope.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from starlette.routing import BaseRoute, Route

from common.log_formats import tag_request
from contract.errors import RoundhouseError
from contract.route_spec import Access
from gateway.ingress.access_rules import AdminGate, Cors, refusal_headers
from gateway.ingress.authenticator import Authenticator
from gateway.server.asgi import (
    AsgiApp,
    ClientGoneError,
    Header,
    Message,
    Receive,
    Scope,
    Send,
    limit_body,
    local_address_of,
    request_id_of,
    send_error,
    send_whole,
)
from gateway.server.compressed_body import decompress_request
from gateway.server.request_head import with_declared_path, without_spare_slashes
from gateway.tenancy.api_keys import Caller
from gateway.tenancy.rate_limits import RateLimitEntry, RateLimits, client_headers

logger = logging.getLogger(__name__)


UNKNOWN_ROUTE_ACCESS: Final[Access] = "any_key"
"""Access of paths and methods that no route has, so that clients without a key cannot learn which routes exist."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class UndeclaredRouteError(Exception):
    """Some routes declare no access. The text names all of them. Raised at start, so that the gateway does not
    start."""


@dataclass(frozen=True, slots=True)
class RouteDeclaration:
    """Access rule of one route, which `require_access` attaches to the function that serves the route."""

    access: Access
    """Who may call the route."""
    is_direct: bool = False
    """Whether `gateway.server` serves the route's requests itself, so that they never reach the framework."""


def require_access(access: Access, *, is_direct: bool = False) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator that declares the access of an endpoint's route. Put it below FastAPI's decorator.

    It sets an attribute of the function, which `find_declaration` reads, and returns the same function; the access is
    enforced by `IngressMiddleware`. `is_direct`: as `RouteDeclaration.is_direct`.
    """

    def declare(endpoint: Endpoint) -> Endpoint:
        endpoint.route_declaration = RouteDeclaration(access, is_direct)  # type: ignore[attr-defined] # FastAPI has no place for it
        return endpoint

    return declare


def find_declaration(route: BaseRoute) -> RouteDeclaration | None:
    """Return what the endpoint of a route declares by `require_access`; None: nothing, or the route has none."""
    found: RouteDeclaration | None = getattr(getattr(route, "endpoint", None), "route_declaration", None)
    return found


class RouteAccess:
    """The access that each route of FastAPI declares, looked up by method and path. Made once, of all routes, at
    start."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        """Collect the declarations of `routes`.

        Raises:
            UndeclaredRouteError: a route declares no access, or is no `starlette.routing.Route` (a mount, a WebSocket).
        """
        declared_routes: list[tuple[Route, RouteDeclaration]] = []
        undeclared_routes: list[str] = []
        for route in routes:
            declaration = find_declaration(route)
            if isinstance(route, Route) and declaration is not None:
                declared_routes.append((route, declaration))
            else:
                undeclared_routes.append(_describe_route(route))
        if undeclared_routes:
            raise UndeclaredRouteError(f"no access is declared for {', '.join(undeclared_routes)}")
        self._declared_routes: Sequence[tuple[Route, RouteDeclaration]] = declared_routes

    def list_declarations(self) -> list[tuple[str, str, Access]]:
        """Return (method, path as declared, access) of each route and method, sorted by method, then path. Method `*`:
        the route serves every method."""
        return sorted(
            (method, route.path, declaration.access)
            for route, declaration in self._declared_routes
            for method in (route.methods or ("*",))
        )

    def find_access(self, method: str, path: str) -> Access | None:
        """Return the access of the first route for this method and path; None if there is none.

        `path`: percent-decoded, without the query.
        """
        found = self._find_route(method, path)
        return None if found is None else found[0]

    def is_served(self, method: str, path: str) -> bool:
        """Return whether a route serves this method and path, and nothing that it leaves open is empty in the path, as
        in `/v1/models/`. False for a route that bypasses FastAPI."""
        found = self._find_route(method, path)
        return found is not None and found[1]

    def _find_route(self, method: str, path: str) -> tuple[Access, bool] | None:
        for route, declaration in self._declared_routes:
            if (not route.methods or method in route.methods) and (match := route.path_regex.match(path)):
                return declaration.access, all(match.groupdict().values()) and not declaration.is_direct
        return None


def _describe_route(route: BaseRoute) -> str:
    methods = ",".join(sorted(getattr(route, "methods", None) or ("*",)))
    return f"{methods} {getattr(route, 'path', route)}"


def respell_request(access: RouteAccess, method: str, raw_path: bytes) -> tuple[str, bytes] | None:
    """Return the method and the path of a route that a request means which no route serves; None: it means none. Pure.

    HEAD is served where GET is, and so are paths with doubled slashes or one at their end. But not for PUT and DELETE,
    nor for a POST whose last part is empty: these would then change the whole of what the client meant to change a
    part of. `raw_path`: percent-encoded.
    """
    methods = ("HEAD", "GET") if method == "HEAD" else (method,)
    lacks_part = method == "POST" and access.find_access(method, unquote(raw_path.decode("latin-1"))) is not None
    is_kept = lacks_part or method in ("PUT", "DELETE")
    tidy = raw_path if is_kept else without_spare_slashes(raw_path)
    paths = (raw_path,) if tidy == raw_path else (raw_path, with_declared_path(method.encode(), tidy))
    for path in paths:
        for known in methods:
            if access.is_served(known, unquote(path.decode("latin-1"))):
                return known, path
    return None


class _HeadAnswer:
    """The answer to a HEAD request that is served as a GET: it ends with its head, also where the body would be a
    stream without end."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send_message(self, message: Message) -> None:
        """Send the head, and end the answer. Raises ClientGoneError for what follows of a body that goes on."""
        if message["type"] == "http.response.start":
            await self._send(message)
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        elif message.get("more_body", False):
            raise ClientGoneError


_READING_METHODS: Final = ("GET", "HEAD")
_STREAM_PATHS: Final = "/v1/stream"
"""Of requests that read, stop or look up a stream: the stream itself is counted as a request at a time."""


def request_id_source() -> Callable[[], str]:
    """Return a function that makes request ids, such as `req-1f2e3d4c-a`: a random part, and a counter in hex.

    Each call of `request_id_source` draws another random part: call it once per process. The returned function never
    makes an id twice.
    """
    process = secrets.token_hex(4)
    numbers = itertools.count(1)
    return lambda: f"req-{process}-{next(numbers):x}"


@dataclass(frozen=True, slots=True)
class IngressChecks:
    """What decides whether a request comes in."""

    authenticator: Authenticator
    gate: AdminGate
    limits: RateLimits
    cors: Cors


class IngressMiddleware:
    """The outermost ASGI application: authenticates, authorizes and counts each request before FastAPI serves it.

    Routes with the access `open`, `metrics` or `page` and CORS preflights need no declared key and are not counted.
    Inference requests bypass it: see `gateway.server.connection`. It sets `request_id` in the state of the scope, and
    `caller` for authenticated requests. Errors of a request are answered and never raised; bodies above the limit of
    their path get `body_too_large`. Every answer has `x-request-id` and the CORS headers; answers to authenticated
    requests have the headers of the rate limits, too.
    """

    def __init__(
        self,
        framework: AsgiApp,
        checks: IngressChecks,
        access: RouteAccess,
        *,
        max_body_bytes: Callable[[str], int],
        next_id: Callable[[], str],
        now: Callable[[], float],
    ) -> None:
        """`framework`: the FastAPI application. `access`: what each route requires. `max_body_bytes`: returns the
        largest body in bytes of a path. `next_id`: makes request ids, see `request_id_source`. `now`: monotonic
        seconds."""
        self._framework = framework
        self._authenticator = checks.authenticator
        self._gate = checks.gate
        self._limits = checks.limits
        self._cors = checks.cors
        self.access = access
        self._max_body_bytes = max_body_bytes
        self._next_id = next_id
        self._now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request, or pass the lifespan events on to FastAPI.

        Errors of the request are answered and never raised: those of the ingress as themselves, an exception of FastAPI
        as `internal_error`, or only logged if the answer has begun.
        """
        if scope["type"] != "http":
            await self._framework(scope, receive, send)
            return
        request_id = self._next_id()
        scope.setdefault("state", {})["request_id"] = request_id
        headers: list[Header] = scope["headers"]
        answer_headers = [(b"x-request-id", request_id.encode()), *self._cors.response_headers(headers)]
        if scope["method"] == "OPTIONS" and (preflight := self._cors.answer_preflight(headers)):
            await send_whole(send, 204, [answer_headers[0], *preflight], b"")
            return
        access = self.access.find_access(scope["method"], scope["path"])
        if access is None or (
            scope["path"].endswith("/") and not self.access.is_served(scope["method"], scope["path"])
        ):
            if (meant := respell_request(self.access, scope["method"], scope["raw_path"])) is not None:
                await self._serve_respelled(scope, receive, send, *meant)
                return
            access = access or UNKNOWN_ROUTE_ACCESS
        if access == "open":
            await self._through_framework(scope, receive, send, answer_headers)
            return
        try:
            if access == "metrics":
                self._authenticator.check_metrics_request(headers)
                await self._through_framework(scope, receive, send, answer_headers)
                return
            if access == "page":
                self._authenticator.check_page_request(headers, is_http_1_1=scope["http_version"] == "1.1")
                # The page's files say themselves which origins may read them; two such headers would forbid all.
                await self._through_framework(scope, receive, send, answer_headers[:1])
                return
            caller = self._authenticator.authenticate_request(
                headers, scope["method"], scope["path"], is_http_1_1=scope["http_version"] == "1.1"
            )
        except RoundhouseError as error:
            await send_error(scope, send, error, [*answer_headers[1:], *refusal_headers(error)])
            return
        await self._let_in(scope, receive, send, answer_headers, caller, access)

    async def _serve_respelled(self, scope: Scope, receive: Receive, send: Send, method: str, raw_path: bytes) -> None:
        path = unquote(raw_path.decode("latin-1"))
        meant = {**scope, "method": method, "path": path, "raw_path": raw_path}
        if method == scope["method"]:
            await self(meant, receive, send)
            return
        answer = _HeadAnswer(send)
        await self(meant, receive, answer.send_message)

    async def _let_in(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        answer_headers: list[Header],
        caller: Caller,
        access: Access,
    ) -> None:
        """Serve an authenticated request, which counts against the caller's rate limits until its answer ends."""
        scope["state"]["caller"] = caller
        try:
            if access in ("inference", "admin"):
                self._gate.authorize_request(caller, access, local_address_of(scope))
            entry = self._count_request(caller, scope["method"], scope["path"])
        except RoundhouseError as error:
            error_headers = [*answer_headers[1:], *self._limits.response_headers(caller, self._now())]
            if error.entry.code == "rate_limit_exceeded":
                error_headers += client_headers(caller)
            await send_error(scope, send, error, error_headers)
            return
        try:
            answer_headers += self._limits.response_headers(caller, self._now())
            await self._through_framework(scope, receive, send, answer_headers)
        finally:
            entry.release_request(self._now(), 0)

    def _count_request(self, caller: Caller, method: str, path: str) -> RateLimitEntry:
        if path.startswith(_STREAM_PATHS):
            return self._limits.admit_read(caller, self._now(), is_concurrent=False)
        if method in _READING_METHODS:
            return self._limits.admit_read(caller, self._now())
        return self._limits.admit_request(caller, 0, self._now())

    async def _through_framework(
        self, scope: Scope, receive: Receive, send: Send, answer_headers: list[Header]
    ) -> None:
        is_started = False

        async def with_headers(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                message["headers"] = [*message.get("headers", ()), *answer_headers]
            await send(message)

        limit = self._max_body_bytes(scope["path"])
        try:
            scope, receive = decompress_request(scope, receive, limit)
        except RoundhouseError as refusal:
            await send_error(scope, send, refusal, answer_headers[1:])
            return
        try:
            await self._framework(scope, limit_body(receive, limit), with_headers)
        except ClientGoneError:
            pass  # an answer to HEAD, whose body nobody reads
        except Exception:
            request_id = request_id_of(scope)
            logger.exception("request %s failed", request_id, extra=tag_request(request_id))
            if not is_started:
                error = RoundhouseError("internal_error", "The gateway failed on this request.")
                await send_error(scope, send, error, answer_headers[1:])
