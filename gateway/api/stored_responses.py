"""GET and DELETE /v1/responses/{response_id}, its cancellation, and its input items."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from controller.schema.errors import RoundhouseError
from gateway.api.declare import ANY_OTHER, INGRESS_CODES, codes_paragraph, error_responses
from gateway.api.stored_requests import ItemList, answer_json, list_parameters, read_list_query
from gateway.ingress.route_access import require_access
from gateway.stored_responses.pagination import paginate_items
from gateway.stored_responses.registry import StoredResponses

PATH: Final = "/v1/responses/{response_id}"
_CODES: Final = ("scope_required", "response_not_found", "response_store_failed", *INGRESS_CODES)
_ASKING: Final = ("invalid_request", *_CODES)
_STREAM_PARAMETER: Final[list[dict[str, Any]]] = [
    {
        "name": "stream",
        "in": "query",
        "required": False,
        "schema": {"type": "boolean", "const": False},
        "description": "Only `false`: a response's events are sent to the request that makes it.",
    }
]


class StoredResponseObject(BaseModel):
    """OpenAI's response object, with all its fields."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Unix time in seconds.")
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[dict[str, Any]] = Field(description="Items; none while it is being made.")
    error: dict[str, Any] | None = Field(description="Why it failed.")


class DeletedResponse(BaseModel):
    """What is said of a response that is no more."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


ResponseId = Annotated[str, Path(description="As the response's `id`.")]


def declare(app: FastAPI, responses: StoredResponses) -> None:
    """Declare the routes."""

    @app.get(
        PATH,
        summary="A response",
        description="A stored response, or one that is being made, as far as it has come.\n\n"
        + codes_paragraph(_ASKING),
        tags=["responses"],
        responses=error_responses(*_ASKING) | ANY_OTHER,
        response_model=StoredResponseObject,
        openapi_extra={"parameters": _STREAM_PARAMETER},
    )
    @require_access("inference")
    async def get_response(request: Request, response_id: ResponseId) -> Response:
        if request.query_params.get("stream", "").lower() in ("true", "1"):
            message = "`stream` must be false: a response's events are sent to the request that makes it."
            raise RoundhouseError("invalid_request", message, param="stream")
        return answer_json(await responses.get_response(request.state.caller, response_id))

    @app.delete(
        PATH,
        summary="Delete a response",
        description="What is being made is cancelled first. What continues the response cannot be continued any "
        "more.\n\n" + codes_paragraph(_CODES),
        tags=["responses"],
        responses=error_responses(*_CODES) | ANY_OTHER,
        response_model=DeletedResponse,
    )
    @require_access("inference")
    async def delete_response(request: Request, response_id: ResponseId) -> Response:
        await responses.delete_response(request.state.caller, response_id)
        return answer_json({"id": response_id, "object": "response", "deleted": True})

    @app.post(
        f"{PATH}/cancel",
        summary="Cancel a response",
        description="Ends one that is being made, in the background or as a stream, and answers what it is then. One "
        "that is over stays as it is.\n\n" + codes_paragraph(_CODES),
        tags=["responses"],
        responses=error_responses(*_CODES) | ANY_OTHER,
        response_model=StoredResponseObject,
    )
    @require_access("inference")
    async def cancel_response(request: Request, response_id: ResponseId) -> Response:
        return answer_json(await responses.cancel_response(request.state.caller, response_id))

    @app.get(
        f"{PATH}/input_items",
        summary="What a response was made of",
        description="Its own input, and before it the items of the responses that it continues, as far as they are "
        "still stored.\n\n" + codes_paragraph(_ASKING),
        tags=["responses"],
        responses=error_responses(*_ASKING) | ANY_OTHER,
        response_model=ItemList,
        openapi_extra={"parameters": list_parameters("desc")},
    )
    @require_access("inference")
    async def list_input_items(request: Request, response_id: ResponseId) -> Response:
        page = read_list_query(request.query_params, "desc")
        items = await responses.list_input_items(request.state.caller, response_id)
        return answer_json(paginate_items(items, page))
