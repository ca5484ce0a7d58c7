"""/v1/documents, /v1/search, /v1/tenants, /v1/files, /v1/vector_stores: the retrieval program's routes.

The gateway authenticates, resolves the tenant, and forwards a request's body and its answer part by part.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel

from common.program_client import ProgramClient, ProgramGoneError
from controller.schema.errors import RoundhouseError
from gateway.api.deadline import Lifetime
from gateway.api.declare import ADMIN_SCOPE_CODES, ANY_OTHER, INGRESS_CODES, codes_paragraph, error_responses
from gateway.api.forwarding import (
    ForwardedAnswer,
    RunningForwards,
    forwarded_headers,
    forwarded_target,
    stopping_error,
)
from gateway.exchange.document_search import check_token_accepted
from gateway.ingress.admin_gate import AdminGate
from gateway.ingress.route_access import require_access
from gateway.server.asgi import ClientGoneError, Header, Message, Receive, Scope, Send, local_address_of, request_id_of
from gateway.tenancy.clients import find_document_tenant
from retrieval.schema.headers import ADMIN_HEADER, ANSWERED_TENANT_HEADER, TENANT_HEADER
from retrieval.schema.routes import COMMON_CODES, FILES, ROUTES, RouteSpec

UPLOAD_PATHS: Final = ("/v1/documents", FILES)
"""Paths whose bodies may be as large as a document."""
FORM_BYTES: Final = 2 * 1024 * 1024
"""Most bytes that a form with a file may have besides the file."""
ESCAPED_BYTES: Final = 6
"""Most bytes of JSON for one byte of a document's text."""

_ASKED: Final = (b"content-type", b"content-length", b"accept", b"last-event-id")
"""Request headers that are forwarded to retrieval. Never credentials, nor what a client claims to be."""
_ANSWERED: Final = (
    "content-type",
    "content-length",
    "content-disposition",
    "x-content-type-options",
    "retry-after",
    "x-should-retry",
    "cache-control",
    "location",
    "etag",
    "last-modified",
)
"""Response headers of retrieval that are forwarded to the client."""
_CODES: Final = (
    "scope_required",
    "retrieval_disabled",
    "gateway_stopping",
    "request_timeout",
    "body_too_large",
    *COMMON_CODES,
    *INGRESS_CODES,
)
_PARAMETER: Final = re.compile(r"\{(\w+)(?::path)?\}")


def declare(app: FastAPI, forward: RetrievalForward) -> None:
    """Add the routes of `retrieval.schema.routes.ROUTES` to `app`; `forward` serves all of them.

    Their access, which `IngressMiddleware` enforces, is `admin` where the route's `is_admin` is True, else `inference`.
    """
    for spec in ROUTES:
        _declare_route(app, spec, forward)


class RetrievalForward:
    """Forwards requests to retrieval, the program of documents and searches, and its answers to the client.

    It does not check access, but tells retrieval the caller's tenant, and whether the caller may see other tenants. One
    object serves all requests of the gateway.
    """

    def __init__(self, retrieval: ProgramClient | None, gate: AdminGate) -> None:
        """`retrieval`: None: the program is turned off, and every request is refused. `gate`: tells which callers may
        see other tenants."""
        self._retrieval = retrieval
        self._gate = gate
        self._running = RunningForwards()

    def begin_stop(self) -> None:
        """End running answers without a Content-Length, such as event streams, with `gateway_stopping`.

        Call when the gateway begins to stop. Other requests go on until `end_all`; new ones are still served.
        """
        self._running.begin_stop()

    def end_all(self) -> None:
        """End every running request with `gateway_stopping`, and return before they have ended.

        Call when the grace period of a stop is over. Requests whose body is still being sent are ended, too.
        """
        self._running.end_all()

    async def forward_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request, its body part by part, and its answer. Returns when the answer, which has no time limit,
        is sent, or the client has left.

        `scope["state"]["caller"]` must be a caller that has been authorized for the route.

        Raises:
            RoundhouseError: before anything was sent to the client: `retrieval_disabled` (the program is turned off),
                `retrieval_unavailable`, `unknown_route`, `gateway_stopping`, or what `receive` raises of a body that is
                too large or late. A later failure ends the answer that has begun. Retrieval may have carried out the
                request in either case, unless the code is `retrieval_disabled` or `unknown_route`.
        """
        if self._retrieval is None:
            raise RoundhouseError("retrieval_disabled", "This Roundhouse keeps no documents.")
        tenant = find_document_tenant(scope["state"]["caller"], scope["headers"])
        answered_tenant: list[Header] = [(ANSWERED_TENANT_HEADER.encode(), tenant.encode("ascii", "replace"))]
        client_answer = ForwardedAnswer(send, request_id_of(scope), _ANSWERED, answered_tenant)
        body = _BodyStream(receive)
        target, headers = forwarded_target(scope), self._headers_of(scope, tenant)
        try:
            with Lifetime(None) as lifetime, self._running.hold(lifetime):
                await self._forward(scope["method"], target, headers, body, client_answer, lifetime)
        except ClientGoneError:
            pass
        except RoundhouseError as error:
            await client_answer.fail_request(error)
        except asyncio.CancelledError:
            await client_answer.fail_request(stopping_error())  # not raised again: the task ends here

    async def _forward(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: _BodyStream,
        client_answer: ForwardedAnswer,
        lifetime: Lifetime,
    ) -> None:
        assert self._retrieval is not None
        has_body = method != "GET"
        try:
            async with await self._retrieval.send_request(
                method, target, headers, body.parts() if has_body else b""
            ) as answer:
                check_token_accepted(answer)
                if body.failure is None and (body.is_complete or not has_body):
                    lifetime.watch_client(body.receive, lambda: client_answer.is_ended)
                if "content-length" not in answer.headers:
                    self._running.mark_endless(lifetime)
                await client_answer.relay_answer(answer)
        except ProgramGoneError as error:
            if body.failure is not None:
                raise body.failure from None
            message = f"Retrieval does not answer: {error}. Inference goes on without it."
            raise RoundhouseError("retrieval_unavailable", message) from error

    def _headers_of(self, scope: Scope, tenant: str) -> dict[str, str]:
        is_admin = self._gate.allows_admin(scope["state"]["caller"], local_address_of(scope))
        return {
            **forwarded_headers(scope, _ASKED),
            TENANT_HEADER: quote(tenant, safe=""),
            ADMIN_HEADER: "1" if is_admin else "0",
        }


class _BodyStream:
    """A request's body, read as it is sent on."""

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self.is_complete = False
        self.failure: Exception | None = None
        """Why the body could not be read; None: it could."""

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts. The reason of an end before the body's is kept in `failure`, and raised."""
        try:
            while not self.is_complete:
                message = await self.receive()
                _check_connected(message)
                self.is_complete = not message.get("more_body", False)
                if message["body"]:
                    yield message["body"]
        except (ClientGoneError, RoundhouseError) as error:
            self.failure = error
            raise


def _check_connected(message: Message) -> None:
    if message["type"] == "http.disconnect":
        raise ClientGoneError


class _ForwardedResponse(Response):
    """A response that FastAPI calls with the request's scope, so that nothing is held in between."""

    def __init__(self, forward: RetrievalForward) -> None:
        super().__init__()
        self._forward = forward

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._forward.forward_request(scope, receive, send)


def _declare_route(app: FastAPI, spec: RouteSpec, forward: RetrievalForward) -> None:
    @require_access("admin" if spec.is_admin else "inference")
    async def endpoint(request: Request) -> Response:
        return _ForwardedResponse(forward)

    scope_codes = ADMIN_SCOPE_CODES if spec.is_admin else ()
    codes = (*spec.codes, *scope_codes, *(code for code in _CODES if code not in spec.codes))
    app.add_api_route(
        spec.path,
        endpoint,
        methods=[spec.method],
        status_code=spec.status,
        summary=spec.summary,
        description=f"{spec.description}\n\n{codes_paragraph(codes)}",
        name=_name_of(spec),
        tags=["retrieval"],
        response_model=spec.answer,
        response_class=_ForwardedResponse if spec.answer is None else Response,
        responses=error_responses(*codes) | ANY_OTHER,
        openapi_extra=_openapi_of(spec),
    )


def _name_of(spec: RouteSpec) -> str:
    path = _PARAMETER.sub(r"\1", spec.path).removeprefix("/v1/")
    return f"{spec.method.lower()}_{path}".replace("/", "_")


def _openapi_of(spec: RouteSpec) -> dict[str, Any]:
    extra: dict[str, Any] = {
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": "Its id."}
            for name in _PARAMETER.findall(spec.path)
        ]
        + [
            {
                "name": each.name,
                "in": "query",
                "required": False,
                "schema": each.schema,
                "description": each.description,
            }
            for each in spec.query
        ]
    }
    content: dict[str, Any] = {}
    if spec.body is not None:
        content["application/json"] = {"schema": _inline_schema(spec.body)}
    if spec.takes_file:
        content["multipart/form-data"] = {"schema": _FORM}
    if content:
        extra["requestBody"] = {"required": True, "content": content}
    return extra


def _inline_schema(body: type[BaseModel]) -> dict[str, Any]:
    """Return a body's JSON Schema with its definitions in place: a body has none that refers to itself."""
    schema = body.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inline(value: Any) -> Any:
        if isinstance(value, list):
            return [inline(each) for each in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            rest = {key: inline(each) for key, each in value.items() if key != "$ref"}
            return {**inline(definitions[value["$ref"].rpartition("/")[2]]), **rest}
        return {key: inline(each) for key, each in value.items()}

    inlined: dict[str, Any] = inline(schema)
    return inlined


_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["file"],
    "properties": {"file": {"type": "string", "format": "binary"}},
    "additionalProperties": {"type": "string"},
}
