"""The routes of stored responses and chat completions, and what they share with those of conversations: pages of
lists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import Path, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from assistant.api.streams import read_stream
from assistant.storage.completions import StoredCompletions
from assistant.storage.pagination import MOST_LISTED, USUALLY_LISTED, ListQuery, paginate_items
from assistant.storage.records import CompletionFilter
from assistant.storage.responses import StoredResponses, follow_events
from assistant.streams.resumable_streams import ResumableStreams
from assistant.streams.stream import StreamState, find_offset
from contract.errors import RoundhouseError
from contract.route_spec import Parameter, RouteSpec
from gateway.api.declare import HttpRoutes, answer_json, body_schema
from gateway.exchange.plain_responses import expects_open_responses
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import LONGEST_KEY, LONGEST_VALUE, MOST_PAIRS

ASKING_CODES: Final = ("response_store_failed",)
"""Error codes of every route of stored objects, besides those of its access."""
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


def list_parameters(usual_order: str, most: int = MOST_LISTED) -> tuple[Parameter, ...]:
    """Return the paging parameters of a list route for the OpenAPI document: `after`, `limit` and `order`.

    `usual_order`: default of `order`, `asc` or `desc`; `most`: highest `limit`. Give the same ones to
    `read_list_query`.
    """
    return (
        Parameter("after", "Id of the entry after which the list begins.", {"type": "string"}),
        Parameter(
            "limit",
            "Most entries of the list.",
            {"type": "integer", "minimum": 1, "maximum": most, "default": USUALLY_LISTED},
        ),
        Parameter(
            "order", "`asc`: the oldest first.", {"type": "string", "enum": ["asc", "desc"], "default": usual_order}
        ),
    )


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


def _limit(text: str | None, most: int) -> int:
    if text is None:
        return USUALLY_LISTED
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= most):
        message = f"`limit` must be a whole number from 1 to {most}; it is {text!r:.60}."
        raise RoundhouseError("invalid_request", message, param="limit")
    return int(text)


RESPONSE_PATH: Final = "/v1/responses/{response_id}"
_RESPONSE_CODES: Final = ("response_not_found", *ASKING_CODES)
_STREAM_PARAMETERS: Final = (
    Parameter(
        "stream",
        "true: return the server-sent events of a background response, from the first event on, both while the "
        "response runs and after its end.",
        {"type": "boolean", "default": False},
    ),
    Parameter(
        "starting_after",
        "With `stream`: return only events whose `sequence_number` is greater.",
        {"minimum": 0, "type": "integer"},
    ),
)
_response_route = partial(RouteSpec, tag="responses")
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


def declare_responses(
    routes: HttpRoutes, responses: StoredResponses, streams: ResumableStreams, *, heartbeat_s: float
) -> None:
    """Add the routes of `/v1/responses/{response_id}`, and of its `cancel` and `input_items`.

    The routes are served from `responses`; an event stream is served from `streams` while the wanted events are kept
    there. `heartbeat_s`: seconds of silence before a comment is sent in an event stream that is served from
    `responses`.
    """

    @routes.add(
        _response_route(
            "GET",
            RESPONSE_PATH,
            "A response",
            answer=StoredResponseObject,
            query=_STREAM_PARAMETERS,
            codes=_RESPONSE_CODES,
        )
    )
    async def get_response(request: Request, response_id: ResponseId) -> Response:
        """Returns a stored response, or the present state of a running one. With `stream=true` it returns the
        server-sent events of a background response."""
        query, caller = request.query_params, request.state.caller
        if query.get("stream", "").lower() not in ("true", "1"):
            return answer_json(await responses.get_response(caller, response_id))
        first_number = _first_number(query.get("starting_after"))
        is_being_made = responses.is_being_made(caller, response_id)
        resumed = _resume_stream(request, streams, response_id, first_number, is_being_made=is_being_made)
        if resumed is not None:
            return resumed
        is_open_responses = expects_open_responses(request.headers.raw)
        events = await responses.open_events(caller, response_id, first_number, is_open_responses=is_open_responses)
        stream = follow_events(events, first_number, heartbeat_s)
        return StreamingResponse(stream, media_type="text/event-stream", headers=_EVENT_STREAM_HEADERS)

    @routes.add(
        _response_route("DELETE", RESPONSE_PATH, "Delete a response", answer=DeletedResponse, codes=_RESPONSE_CODES)
    )
    async def delete_response(request: Request, response_id: ResponseId) -> Response:
        """Deletes a response. A running response is cancelled first. Responses that continue the deleted one can no
        longer be continued."""
        await responses.delete_response(request.state.caller, response_id)
        streams.remove_response_stream(request.state.caller, response_id)
        return answer_json({"id": response_id, "object": "response", "deleted": True})

    @routes.add(
        _response_route(
            "POST", f"{RESPONSE_PATH}/cancel", "Cancel a response", answer=StoredResponseObject, codes=_RESPONSE_CODES
        )
    )
    async def cancel_response(request: Request, response_id: ResponseId) -> Response:
        """Cancels a running response, in the background or as a stream, and returns it. A response that has ended stays
        as it is."""
        return answer_json(await responses.cancel_response(request.state.caller, response_id))

    @routes.add(
        _response_route(
            "GET",
            f"{RESPONSE_PATH}/input_items",
            "Input items of a response",
            answer=ItemList,
            query=list_parameters("desc"),
            codes=_RESPONSE_CODES,
        )
    )
    async def list_input_items(request: Request, response_id: ResponseId) -> Response:
        """Lists the input items of a response, after the items of the responses that it continues, as far as these are
        still stored."""
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


COMPLETIONS_PATH: Final = "/v1/chat/completions"
COMPLETION_PATH: Final = "/v1/chat/completions/{completion_id}"
_COMPLETION_CODES: Final = ("completion_not_found", *ASKING_CODES)
_METADATA_PARAMETER: Final = Parameter(
    "metadata",
    "Metadata that a listed completion must have, as `metadata[key]=value`.",
    METADATA_SCHEMA,
    style={"style": "deepObject", "explode": True},
)
_completion_route = partial(RouteSpec, tag="stored")
_PAIR: Final = re.compile(r"metadata\[(.*)\]", re.DOTALL)


class StoredChatCompletion(BaseModel):
    """OpenAI's chat completion object, with parameters of its request, such as `temperature`, but not the messages.
    `created` is Unix time in seconds."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    metadata: dict[str, str]


class DeletedCompletion(BaseModel):
    """Confirmation that a chat completion was deleted."""

    id: str
    object: Literal["chat.completion.deleted"]
    deleted: Literal[True]


CompletionId = Annotated[str, Path(description="Id of the chat completion.")]


def declare_completions(routes: HttpRoutes, completions: StoredCompletions) -> None:
    """Add `GET /v1/chat/completions` and the routes below `/v1/chat/completions/{completion_id}`, which are
    served from `completions`."""

    @routes.add(
        _completion_route(
            "GET",
            COMPLETIONS_PATH,
            "Stored chat completions",
            answer=ItemList,
            query=(
                *list_parameters("asc"),
                Parameter("model", "Name or alias of the model that made the listed completions.", {"type": "string"}),
                _METADATA_PARAMETER,
            ),
            codes=ASKING_CODES,
        )
    )
    async def list_completions(request: Request) -> Response:
        """Lists the completions that were made with `store: true`, in the order in which they were made."""
        query = request.query_params
        wanted = CompletionFilter(query.get("model"), _read_pairs(query.multi_items()))
        page = read_list_query(query, "asc")
        return answer_json(await completions.list_page(request.state.caller, wanted, page))

    @routes.add(
        _completion_route(
            "GET", COMPLETION_PATH, "A stored chat completion", answer=StoredChatCompletion, codes=_COMPLETION_CODES
        )
    )
    async def get_completion(request: Request, completion_id: CompletionId) -> Response:
        return answer_json(await completions.get(request.state.caller, completion_id))

    @routes.add(
        _completion_route(
            "POST",
            COMPLETION_PATH,
            "Update a stored chat completion",
            answer=StoredChatCompletion,
            body=body_schema({"metadata": METADATA_SCHEMA}, "metadata"),
            codes=_COMPLETION_CODES,
        )
    )
    async def update_completion(request: Request, completion_id: CompletionId, body: Fields) -> Response:
        """Replaces the `metadata` of the completion, and nothing else."""
        return answer_json(await completions.update(request.state.caller, completion_id, body))

    @routes.add(
        _completion_route(
            "DELETE",
            COMPLETION_PATH,
            "Delete a stored chat completion",
            answer=DeletedCompletion,
            codes=_COMPLETION_CODES,
        )
    )
    async def delete_completion(request: Request, completion_id: CompletionId) -> Response:
        await completions.delete(request.state.caller, completion_id)
        return answer_json({"id": completion_id, "object": "chat.completion.deleted", "deleted": True})

    @routes.add(
        _completion_route(
            "GET",
            f"{COMPLETION_PATH}/messages",
            "Messages of a chat completion",
            answer=ItemList,
            query=list_parameters("asc"),
            codes=_COMPLETION_CODES,
        )
    )
    async def list_messages(request: Request, completion_id: CompletionId) -> Response:
        """Lists the messages of the completion's request, each with an id."""
        page = read_list_query(request.query_params, "asc")
        return answer_json(await completions.list_messages(request.state.caller, completion_id, page))


def _read_pairs(parameters: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    pairs = [(match[1], value) for name, value in parameters if (match := _PAIR.fullmatch(name))]
    if len(pairs) > MOST_PAIRS:
        message = f"`metadata` must have at most {MOST_PAIRS} pairs; it has {len(pairs)}."
        raise RoundhouseError("invalid_request", message, param="metadata")
    return pairs
