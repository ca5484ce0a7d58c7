"""Stored responses: GET and DELETE /v1/responses/{response_id}, POST its /cancel, GET its /input_items."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Path, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from controller.schema.errors import RoundhouseError
from gateway.api.declare import ANY_OTHER, INGRESS_CODES, codes_paragraph, error_responses
from gateway.api.stored_requests import ItemList, answer_json, list_parameters, read_list_query
from gateway.api.streams import read_stream
from gateway.ingress.route_access import require_access
from gateway.storage.pagination import paginate_items
from gateway.storage.responses.event_log import follow_events
from gateway.storage.responses.registry import OPEN_RESPONSES, StoredResponses
from gateway.streams.resumable_streams import ResumableStreams
from gateway.streams.sequence_numbers import find_offset
from gateway.streams.stream import StreamState

PATH: Final = "/v1/responses/{response_id}"
_CODES: Final = ("scope_required", "response_not_found", "response_store_failed", *INGRESS_CODES)
_ASKING: Final = ("invalid_request", *_CODES)
_STREAM_PARAMETERS: Final[list[dict[str, Any]]] = [
    {
        "name": "stream",
        "in": "query",
        "required": False,
        "schema": {"type": "boolean", "default": False},
        "description": "true: return the server-sent events of a background response, from the first event on, both "
        "while the response runs and after its end.",
    },
    {
        "name": "starting_after",
        "in": "query",
        "required": False,
        "schema": {"minimum": 0, "type": "integer"},
        "description": "With `stream`: return only events whose `sequence_number` is greater.",
    },
]
_EVENT_STREAM_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class StoredResponseObject(BaseModel):
    """OpenAI's response object, with all its fields."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Unix time in seconds.")
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[dict[str, Any]] = Field(description="Output items; empty while the response runs.")
    error: dict[str, Any] | None = Field(description="Why the response failed; null: it has not failed.")


class DeletedResponse(BaseModel):
    """Confirmation that a response was deleted."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


ResponseId = Annotated[str, Path(description="Id of the response.")]


def declare(app: FastAPI, responses: StoredResponses, streams: ResumableStreams, *, heartbeat_s: float) -> None:
    """Add the routes of `/v1/responses/{response_id}`, and of its `cancel` and `input_items`, to `app`.

    The routes are served from `responses`; an event stream is served from `streams` while the wanted events are kept
    there. `heartbeat_s`: seconds of silence before a comment is sent in an event stream that is served from
    `responses`.
    """

    @app.get(
        PATH,
        summary="A response",
        description="Returns a stored response, or the present state of a running one. With `stream=true` it returns "
        "the server-sent events of a background response.\n\n" + codes_paragraph(_ASKING),
        tags=["responses"],
        responses=error_responses(*_ASKING) | ANY_OTHER,
        response_model=StoredResponseObject,
        openapi_extra={"parameters": _STREAM_PARAMETERS},
    )
    @require_access("inference")
    async def get_response(request: Request, response_id: ResponseId) -> Response:
        query, caller = request.query_params, request.state.caller
        if query.get("stream", "").lower() not in ("true", "1"):
            return answer_json(await responses.get_response(caller, response_id))
        first_number = _first_number(query.get("starting_after"))
        is_being_made = responses.is_being_made(caller, response_id)
        resumed = _resume_stream(request, streams, response_id, first_number, is_being_made=is_being_made)
        if resumed is not None:
            return resumed
        is_open_responses = OPEN_RESPONSES.decode() in request.headers
        events = await responses.open_events(caller, response_id, first_number, is_open_responses=is_open_responses)
        stream = follow_events(events, first_number, heartbeat_s)
        return StreamingResponse(stream, media_type="text/event-stream", headers=_EVENT_STREAM_HEADERS)

    @app.delete(
        PATH,
        summary="Delete a response",
        description="Deletes a response. A running response is cancelled first. Responses that continue the deleted "
        "one can no longer be continued.\n\n" + codes_paragraph(_CODES),
        tags=["responses"],
        responses=error_responses(*_CODES) | ANY_OTHER,
        response_model=DeletedResponse,
    )
    @require_access("inference")
    async def delete_response(request: Request, response_id: ResponseId) -> Response:
        await responses.delete_response(request.state.caller, response_id)
        streams.remove_response_stream(request.state.caller, response_id)
        return answer_json({"id": response_id, "object": "response", "deleted": True})

    @app.post(
        f"{PATH}/cancel",
        summary="Cancel a response",
        description="Cancels a running response, in the background or as a stream, and returns it. A response that "
        "has ended stays as it is.\n\n" + codes_paragraph(_CODES),
        tags=["responses"],
        responses=error_responses(*_CODES) | ANY_OTHER,
        response_model=StoredResponseObject,
    )
    @require_access("inference")
    async def cancel_response(request: Request, response_id: ResponseId) -> Response:
        return answer_json(await responses.cancel_response(request.state.caller, response_id))

    @app.get(
        f"{PATH}/input_items",
        summary="Input items of a response",
        description="Lists the input items of a response, after the items of the responses that it continues, as far "
        "as these are still stored.\n\n" + codes_paragraph(_ASKING),
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


def _resume_stream(
    request: Request, streams: ResumableStreams, response_id: str, first_number: int, *, is_being_made: bool
) -> Response | None:
    """Return the events of a background response from its resumable stream; None: answer from the stored response.

    None where the stream is not kept, or not from the event `first_number` on, and where the response is complete but
    its engine has not closed the connection: the stream ends with the connection, the stored response has all events.
    """
    stream = streams.find_response_stream(request.state.caller, response_id)
    if stream is None or not stream.ring.end_offset or (stream.state is StreamState.LIVE and not is_being_made):
        return None
    offset = find_offset(stream.ring, first_number)
    return None if offset is None else read_stream(request, streams, stream, offset)


def _first_number(starting_after: str | None) -> int:
    if starting_after is None:
        return 0
    if not (starting_after.isascii() and starting_after.isdigit() and len(starting_after) <= 15):
        message = f"`starting_after` must be the `sequence_number` of an event; it is {starting_after!r:.60}."
        raise RoundhouseError("invalid_request", message, param="starting_after")
    return int(starting_after) + 1
