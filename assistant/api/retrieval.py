"""/v1/documents, /v1/search, /v1/tenants, /v1/files, /v1/vector_stores: the retrieval program's routes.

The gateway authenticates, resolves the tenant, and forwards a request's body and its answer part by part.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import Response

from assistant.documents.document_search import check_token_accepted
from common.program_client import ProgramClient, ProgramGoneError
from contract.errors import RoundhouseError
from contract.retrieval import (
    ADMIN_HEADER,
    ANSWERED_TENANT_HEADER,
    COMMON_CODES,
    FILES,
    ROUTES,
    TENANT_HEADER,
)
from gateway.api.declare import HttpRoutes, list_path_parameters
from gateway.api.forwarding import (
    ForwardedAnswer,
    Lifetime,
    RunningForwards,
    forwarded_headers,
    forwarded_target,
    stopping_error,
)
from gateway.ingress.access_rules import AdminGate
from gateway.server.asgi import ClientGoneError, Header, Message, Receive, Scope, Send, local_address_of, request_id_of
from gateway.tenancy.api_keys import find_document_tenant

_UPLOAD_PATHS: Final = ("/v1/documents", FILES)
"""Paths whose bodies may be as large as a document."""
FORM_BYTES: Final = 2 * 1024 * 1024
"""Most bytes that a form with a file may have besides the file."""
ESCAPED_BYTES: Final = 6
"""Most bytes of JSON for one byte of a document's text."""

_REQUEST_HEADERS: Final = (b"content-type", b"content-length", b"accept", b"last-event-id")
"""Request headers that are forwarded to retrieval. Never credentials, nor what a client claims to be."""
_RESPONSE_HEADERS: Final = (
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
    "retrieval_disabled",
    "gateway_stopping",
    "request_timeout",
    "body_too_large",
    *COMMON_CODES,
)


def upload_limits(max_file_bytes: int) -> dict[str, int]:
    """Return the largest body in bytes by path, for files of `max_file_bytes`. Other paths are absent."""
    # JSON may take six bytes for one of the text; retrieval itself counts the text.
    return dict.fromkeys(_UPLOAD_PATHS, max_file_bytes * ESCAPED_BYTES + FORM_BYTES)


def declare(routes: HttpRoutes, forward: RetrievalForward) -> None:
    """Add the routes of `contract.retrieval.ROUTES`; `forward` serves all of them."""
    for spec in ROUTES:

        async def endpoint(request: Request) -> Response:
            return _ForwardedResponse(forward)

        routes.add(
            replace(spec, query=(*list_path_parameters(spec), *spec.query), codes=(*spec.codes, *_CODES)),
            name=f"{spec.method.lower()}_{re.sub(r'[{}]|:path', '', spec.path).removeprefix('/v1/')}".replace("/", "_"),
            response_class=_ForwardedResponse if spec.answer is None else Response,
        )(endpoint)


class RetrievalForward(RunningForwards):
    """Forwards requests to retrieval, the program of documents and searches, and its answers to the client.

    It does not check access, but tells retrieval the caller's tenant, and whether the caller may see other tenants. One
    object serves all requests of the gateway.
    """

    def __init__(self, retrieval: ProgramClient | None, gate: AdminGate) -> None:
        """`retrieval`: None: the program is turned off, and every request is refused. `gate`: tells which callers may
        see other tenants."""
        super().__init__()
        self._retrieval = retrieval
        self._gate = gate

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
        client_answer = ForwardedAnswer(send, request_id_of(scope), _RESPONSE_HEADERS, answered_tenant)
        body = _BodyStream(receive)
        target, headers = forwarded_target(scope), self._headers_of(scope, tenant)
        try:
            with Lifetime(None) as lifetime, self.hold(lifetime):
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
                    self.mark_endless(lifetime)
                await client_answer.relay_answer(answer)
        except ProgramGoneError as error:
            if body.failure is not None:
                raise body.failure from None
            message = f"Retrieval does not answer: {error}. Inference goes on without it."
            raise RoundhouseError("retrieval_unavailable", message) from error

    def _headers_of(self, scope: Scope, tenant: str) -> dict[str, str]:
        is_admin = self._gate.allows_admin(scope["state"]["caller"], local_address_of(scope))
        return {
            **forwarded_headers(scope, _REQUEST_HEADERS),
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
