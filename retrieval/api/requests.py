"""What handlers read of requests, and how they answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from controller.schema.errors import RoundhouseError
from retrieval.schema.headers import ADMIN_HEADER, ANSWERED_TENANT_HEADER, TENANT_HEADER

Handler = Callable[[Request], Awaitable[Response]]
Handlers = Mapping[tuple[str, str], Handler]
"""Handlers by method and path, as `RouteSpec` has them."""

MIB: Final = 1024 * 1024
_TRUE: Final = ("true", "1")
_FALSE: Final = ("false", "0")

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class RequestCaller:
    """For whom the gateway asks."""

    tenant: str
    is_admin: bool
    """Whether the caller may see and delete other tenants."""


def read_caller(request: Request) -> RequestCaller:
    """Return for whom the gateway asks. Raises RoundhouseError `invalid_request` where a request names no tenant, which
    the gateway's never do."""
    tenant = request.headers.get(TENANT_HEADER)
    if not tenant:
        raise RoundhouseError("invalid_request", f"The header {TENANT_HEADER} is missing.")
    return RequestCaller(unquote(tenant), request.headers.get(ADMIN_HEADER) == "1")


async def read_body(request: Request, most: int) -> bytes:
    """Return the whole body. Raises RoundhouseError `body_too_large` beyond `most` bytes, and ClientDisconnect."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise RoundhouseError("body_too_large", f"The body is larger than {most / MIB:g} MiB.")
        parts.append(part)
    return b"".join(parts)


def parse_body(model: type[Model], body: bytes) -> Model:
    """Parse a JSON body. Raises RoundhouseError `invalid_json`, or `invalid_request` for the first wrong field."""
    try:
        json.loads(body)
    except ValueError as error:
        raise RoundhouseError("invalid_json", f"The body is no JSON: {error}.") from None
    return parse_fields(model, body)


def parse_fields(model: type[Model], body: bytes | str, prefix: str = "") -> Model:
    """Validate JSON text. Raises RoundhouseError `invalid_request` for the first wrong field; `prefix` is put in front
    of its name."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = prefix + ".".join(str(part) for part in first["loc"])
        raise RoundhouseError("invalid_request", f"`{field or 'body'}`: {first['msg']}.", param=field or None) from None


def read_boolean(request: Request, name: str) -> bool:
    """Return a parameter of the query that is `true` or `false`; False where it is missing. Raises RoundhouseError
    `invalid_request`."""
    value = request.query_params.get(name, "false").lower()
    if value not in (*_TRUE, *_FALSE):
        raise RoundhouseError("invalid_request", f"`{name}` must be true or false.", param=name)
    return value in _TRUE


def read_integer(request: Request, name: str, default: int, low: int, high: int) -> int:
    """Return a parameter of the query that is an integer from `low` to `high`. Raises RoundhouseError
    `invalid_request`."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18 or not low <= int(text) <= high:
        raise RoundhouseError("invalid_request", f"`{name}` must be an integer from {low} to {high}.", param=name)
    return int(text)


def read_choice(request: Request, name: str, choices: tuple[str, ...]) -> str | None:
    """Return a parameter of the query that is one of `choices`; None where it is missing. Raises RoundhouseError
    `invalid_request`."""
    value = request.query_params.get(name)
    if value is not None and value not in choices:
        raise RoundhouseError("invalid_request", f"`{name}` must be one of {', '.join(choices)}.", param=name)
    return value


def read_json_parameter(request: Request, name: str) -> Any:
    """Return a parameter of the query that is JSON; None where it is missing. Raises RoundhouseError
    `invalid_request`."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise RoundhouseError("invalid_request", f"`{name}` must be JSON.", param=name) from None


def answer_model(model: BaseModel, caller: RequestCaller, status: int = 200, **headers: str) -> Response:
    """Return a JSON answer, with the tenant in its headers."""
    return Response(
        model.model_dump_json(),
        status,
        headers={**tenant_headers(caller), **headers},
        media_type="application/json",
    )


def tenant_headers(caller: RequestCaller) -> dict[str, str]:
    """Return the header that tells a client its tenant."""
    return {ANSWERED_TENANT_HEADER: header_text(caller.tenant)}


def header_text(text: str) -> str:
    """Return text that a header can carry: printable ASCII, everything else as `?`."""
    return "".join(each if " " <= each <= "~" else "?" for each in text)


async def stream_body(request: Request) -> AsyncIterator[bytes]:
    """Yield the body's parts as they come. Raises ClientDisconnect."""
    async for part in request.stream():
        if part:
            yield part
