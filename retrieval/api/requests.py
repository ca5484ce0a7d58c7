"""What handlers read of requests, and how they answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
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
"""Handlers by (method, path), both as `RouteSpec` has them."""

MIB: Final = 1024 * 1024
_TRUE: Final = ("true", "1")
_FALSE: Final = ("false", "0")

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class RequestCaller:
    """The client for whom the gateway asks: its tenant, and whether it has the scope `admin`."""

    tenant: str
    is_admin: bool
    """Whether the caller may see and delete other tenants."""


def read_caller(request: Request) -> RequestCaller:
    """Return the client for whom the gateway asks, from the gateway's headers, which are trusted. Raises
    RoundhouseError `invalid_request` where a request names no tenant; the gateway's always name one."""
    tenant = request.headers.get(TENANT_HEADER)
    if not tenant:
        raise RoundhouseError("invalid_request", f"The header {TENANT_HEADER} is missing.")
    return RequestCaller(unquote(tenant), request.headers.get(ADMIN_HEADER) == "1")


async def read_body(request: Request, most: int) -> bytes:
    """Return the whole body, empty where there is none. Raises RoundhouseError `body_too_large` as soon as more than
    `most` bytes have come, and ClientDisconnect where the client leaves before the end."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise RoundhouseError("body_too_large", f"The body is larger than {most / MIB:g} MiB.")
        parts.append(part)
    return b"".join(parts)


def parse_body(model: type[Model], body: bytes) -> Model:
    """Parse a JSON body into the model. Raises RoundhouseError `invalid_json` for a body that is not JSON (an empty one
    too), and `invalid_request` for the first wrong field."""
    try:
        json.loads(body)
    except ValueError as error:
        raise RoundhouseError("invalid_json", f"The body is no JSON: {error}.") from None
    except RecursionError:
        raise RoundhouseError("invalid_json", "The body is nested too deeply.") from None
    return parse_fields(model, body)


def parse_fields(model: type[Model], body: bytes | str, prefix: str = "") -> Model:
    """Parse JSON text into the model. Raises RoundhouseError `invalid_request` for the first wrong field, and for text
    that is not JSON. `prefix` is put in front of the field's name in the error."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = prefix + ".".join(str(part) for part in first["loc"])
        raise RoundhouseError("invalid_request", f"`{field or 'body'}`: {first['msg']}.", param=field or None) from None


def read_boolean(request: Request, name: str) -> bool:
    """Return a boolean parameter of the query string: `true`, `false`, `1` or `0` in any case; False where it is
    missing. Raises RoundhouseError `invalid_request` for any other value."""
    value = request.query_params.get(name, "false").lower()
    if value not in (*_TRUE, *_FALSE):
        raise RoundhouseError("invalid_request", f"`{name}` must be true or false.", param=name)
    return value in _TRUE


def read_integer(request: Request, name: str, default: int, low: int, high: int) -> int:
    """Return an integer parameter of the query string; `default`, unchecked, where it is missing. Raises
    RoundhouseError `invalid_request` for any other text than a decimal integer without a sign, from `low` to `high`,
    both included."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18 or not low <= int(text) <= high:
        raise RoundhouseError("invalid_request", f"`{name}` must be an integer from {low} to {high}.", param=name)
    return int(text)


def read_choice(request: Request, name: str, choices: tuple[str, ...]) -> str | None:
    """Return a parameter of the query string that is one of `choices`; None where it is missing. Raises RoundhouseError
    `invalid_request` for any other value, also an empty one."""
    value = request.query_params.get(name)
    if value is not None and value not in choices:
        raise RoundhouseError("invalid_request", f"`{name}` must be one of {', '.join(choices)}.", param=name)
    return value


def read_json_parameter(request: Request, name: str) -> Any:
    """Return the decoded value of a JSON parameter of the query string; None where it is missing, or is `null`. Raises
    RoundhouseError `invalid_request` for text that is not JSON."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RoundhouseError("invalid_request", f"`{name}` must be JSON.", param=name) from None


def answer_model(model: BaseModel, caller: RequestCaller, status: int = 200, **headers: str) -> Response:
    """Return an answer with the model as JSON, the header `x-tenant-id` with the caller's tenant, and `headers`. A
    header among `headers` replaces one of the same name."""
    return Response(
        model.model_dump_json(),
        status,
        headers={**tenant_headers(caller), **headers},
        media_type="application/json",
    )


def tenant_headers(caller: RequestCaller) -> dict[str, str]:
    """Return the header `x-tenant-id` for an answer: the caller's tenant, with `?` for every character that is not
    printable ASCII."""
    return {ANSWERED_TENANT_HEADER: header_text(caller.tenant)}


def header_text(text: str) -> str:
    """Return `text` with `?` for every character that is not printable ASCII, so that a header can carry it."""
    return "".join(each if " " <= each <= "~" else "?" for each in text)
