"""Stored chat completions: GET /v1/chat/completions lists them; read, update and delete one, and list its messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from controller.schema.errors import RoundhouseError
from gateway.api.declare import ANY_OTHER, codes_paragraph, error_responses
from gateway.api.stored_requests import (
    ASKING_CODES,
    BODY_CODES,
    METADATA_SCHEMA,
    ItemList,
    answer_json,
    body_of,
    list_parameters,
    query_parameter,
    read_fields,
    read_list_query,
)
from gateway.ingress.route_access import require_access
from gateway.protocols.common.metadata import MOST_PAIRS
from gateway.storage.completions.records import CompletionFilter
from gateway.storage.completions.registry import StoredCompletions

LIST_PATH: Final = "/v1/chat/completions"
PATH: Final = "/v1/chat/completions/{completion_id}"
_CODES: Final = ("completion_not_found", *ASKING_CODES)
_METADATA_PARAMETER: Final[dict[str, Any]] = {
    **query_parameter(
        "metadata", METADATA_SCHEMA, "Metadata that a listed completion must have, as `metadata[key]=value`."
    ),
    "style": "deepObject",
    "explode": True,
}
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


def declare(app: FastAPI, completions: StoredCompletions, max_body_bytes: int) -> None:
    """Add `GET /v1/chat/completions` and the routes below `/v1/chat/completions/{completion_id}` to `app`.

    The routes are served from `completions`. `max_body_bytes`: largest request body.
    """

    @app.get(
        LIST_PATH,
        summary="Stored chat completions",
        description="Lists the completions that were made with `store: true`, in the order in which they were "
        "made.\n\n" + codes_paragraph(ASKING_CODES),
        tags=["stored"],
        responses=error_responses(*ASKING_CODES) | ANY_OTHER,
        response_model=ItemList,
        openapi_extra={
            "parameters": [
                *list_parameters("asc"),
                query_parameter(
                    "model", {"type": "string"}, "Name or alias of the model that made the listed completions."
                ),
                _METADATA_PARAMETER,
            ]
        },
    )
    @require_access("inference")
    async def list_completions(request: Request) -> Response:
        query = request.query_params
        wanted = CompletionFilter(query.get("model"), _read_pairs(query.multi_items()))
        page = read_list_query(query, "asc")
        return answer_json(await completions.list_page(request.state.caller, wanted, page))

    @app.get(
        PATH,
        summary="A stored chat completion",
        description=codes_paragraph(_CODES),
        tags=["stored"],
        responses=error_responses(*_CODES) | ANY_OTHER,
        response_model=StoredChatCompletion,
    )
    @require_access("inference")
    async def get_completion(request: Request, completion_id: CompletionId) -> Response:
        return answer_json(await completions.get(request.state.caller, completion_id))

    @app.post(
        PATH,
        summary="Update a stored chat completion",
        description="Replaces the `metadata` of the completion, and nothing else.\n\n"
        + codes_paragraph((*BODY_CODES, *_CODES)),
        tags=["stored"],
        responses=error_responses(*BODY_CODES, *_CODES) | ANY_OTHER,
        response_model=StoredChatCompletion,
        openapi_extra=body_of({"metadata": METADATA_SCHEMA}, "metadata"),
    )
    @require_access("inference")
    async def update_completion(request: Request, completion_id: CompletionId) -> Response:
        fields = await read_fields(request, max_body_bytes)
        return answer_json(await completions.update(request.state.caller, completion_id, fields))

    @app.delete(
        PATH,
        summary="Delete a stored chat completion",
        description=codes_paragraph(_CODES),
        tags=["stored"],
        responses=error_responses(*_CODES) | ANY_OTHER,
        response_model=DeletedCompletion,
    )
    @require_access("inference")
    async def delete_completion(request: Request, completion_id: CompletionId) -> Response:
        await completions.delete(request.state.caller, completion_id)
        return answer_json({"id": completion_id, "object": "chat.completion.deleted", "deleted": True})

    @app.get(
        f"{PATH}/messages",
        summary="Messages of a chat completion",
        description="Lists the messages of the completion's request, each with an id.\n\n" + codes_paragraph(_CODES),
        tags=["stored"],
        responses=error_responses(*_CODES) | ANY_OTHER,
        response_model=ItemList,
        openapi_extra={"parameters": list_parameters("asc")},
    )
    @require_access("inference")
    async def list_messages(request: Request, completion_id: CompletionId) -> Response:
        page = read_list_query(request.query_params, "asc")
        return answer_json(await completions.list_messages(request.state.caller, completion_id, page))


def _read_pairs(parameters: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    pairs = [(match[1], value) for name, value in parameters if (match := _PAIR.fullmatch(name))]
    if len(pairs) > MOST_PAIRS:
        message = f"`metadata` must have at most {MOST_PAIRS} pairs; it has {len(pairs)}."
        raise RoundhouseError("invalid_request", message, param="metadata")
    return pairs
