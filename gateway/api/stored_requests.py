"""Shared by the routes of stored objects: JSON bodies, pages of lists, and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

from controller.schema.errors import RoundhouseError
from gateway.api.declare import INGRESS_CODES
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import encode_json
from gateway.protocols.common.metadata import LONGEST_KEY, LONGEST_VALUE, MOST_PAIRS
from gateway.protocols.common.request import parse_object
from gateway.server.asgi import ClientGoneError, read_body
from gateway.storage.pagination import MOST_LISTED, USUALLY_LISTED, ListQuery

ASKING_CODES: Final = ("scope_required", "response_store_failed", *INGRESS_CODES)
"""Error codes of every route of stored objects."""
BODY_CODES: Final = ("invalid_json", "body_too_large", "request_timeout")
"""Further error codes of routes that read a body."""
METADATA_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "maxProperties": MOST_PAIRS,
    "propertyNames": {"maxLength": LONGEST_KEY},
    "additionalProperties": {"type": "string", "maxLength": LONGEST_VALUE},
}


class ItemList(BaseModel):
    """OpenAI's list object: one page of a list. `first_id` and `last_id` are the ids of its first and last entry; null:
    the page is empty. `has_more`: whether entries follow after the page."""

    object: str
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


def list_parameters(usual_order: str, most: int = MOST_LISTED) -> list[dict[str, Any]]:
    """Return the paging parameters of a list route for the OpenAPI document: `after`, `limit` and `order`.

    `usual_order`: default of `order`, `asc` or `desc`; `most`: highest `limit`. Give the same ones to
    `read_list_query`.
    """
    return [
        query_parameter("after", {"type": "string"}, "Id of the entry after which the list begins."),
        query_parameter(
            "limit",
            {"type": "integer", "minimum": 1, "maximum": most, "default": USUALLY_LISTED},
            "Most entries of the list.",
        ),
        query_parameter(
            "order", {"type": "string", "enum": ["asc", "desc"], "default": usual_order}, "`asc`: the oldest first."
        ),
    ]


def query_parameter(name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    """Return an optional query parameter for the OpenAPI document. `schema`: JSON Schema. `text`: its description."""
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": text}


def body_of(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """Return a JSON request body with these properties for the OpenAPI document, as `openapi_extra` of a route.

    `properties`: JSON Schema by name. `required`: names that must be there; the body is optional if there are none.
    """
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"requestBody": {"required": bool(required), "content": {"application/json": {"schema": schema}}}}


def read_choice(query: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Return the query parameter `name`, which must be one of `choices`; the first one if it is missing.

    Raises RoundhouseError `invalid_request` for any other value.
    """
    value = query.get(name, choices[0])
    if value not in choices:
        message = f"`{name}` must be {' or '.join(choices)}; it is {value!r:.60}."
        raise RoundhouseError("invalid_request", message, param=name)
    return value


def read_list_query(query: Mapping[str, str], usual_order: str, most: int = MOST_LISTED) -> ListQuery:
    """Read from the query which page of a list is wanted. `usual_order`: `asc` or `desc`, if the query has no `order`.

    Without a `limit`, the page has at most `USUALLY_LISTED` (20) entries.

    Raises:
        RoundhouseError: `invalid_request` for an `order` that is neither `asc` nor `desc`, or a `limit` that is no
            number from 1 to `most`. `after` is not checked.
    """
    order = query.get("order", usual_order)
    if order not in ("asc", "desc"):
        message = f"`order` must be asc or desc; it is {order!r:.60}."
        raise RoundhouseError("invalid_request", message, param="order")
    return ListQuery(query.get("after"), _limit(query.get("limit"), most), is_ascending=order == "asc")


async def read_fields(request: Request, max_bytes: int) -> Fields:
    """Read the JSON object in a request's body; an empty body has no fields. `max_bytes`: largest body.

    Raises:
        RoundhouseError: `invalid_json` if the body is no JSON object, `invalid_request` if a number in it is too large,
            `body_too_large`, or `request_timeout` if the client left before the end or was too slow.
    """
    try:
        body = await read_body(request.scope, request.receive, max_bytes)
    except ClientGoneError:
        raise RoundhouseError("request_timeout", "The client left before it had sent its body.") from None
    return parse_object(body)


def answer_json(content: Fields | Sequence[Fields]) -> Response:
    """Return a response of status 200 with an object, or an array of objects, as its JSON body, without checking it
    against a schema."""
    return Response(encode_json(content), media_type="application/json")


def _limit(text: str | None, most: int) -> int:
    if text is None:
        return USUALLY_LISTED
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= most):
        message = f"`limit` must be a whole number from 1 to {most}; it is {text!r:.60}."
        raise RoundhouseError("invalid_request", message, param="limit")
    return int(text)
