"""/v1/conversations: stored conversations and their items."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.api.declare import ANY_OTHER, codes_paragraph, error_responses
from gateway.api.stored_requests import (
    ASKING_CODES,
    BODY_CODES,
    METADATA_SCHEMA,
    ItemList,
    answer_json,
    body_of,
    list_parameters,
    read_fields,
    read_list_query,
)
from gateway.ingress.route_access import require_access
from gateway.protocols.responses.conversation_items import MOST_ADDED
from gateway.storage.conversations.registry import Conversations
from gateway.storage.pagination import list_object

LIST_PATH: Final = "/v1/conversations"
PATH: Final = "/v1/conversations/{conversation_id}"
ITEMS_PATH: Final = f"{PATH}/items"
ITEM_PATH: Final = f"{ITEMS_PATH}/{{item_id}}"
_CODES: Final = ("conversation_not_found", *ASKING_CODES)
_ITEM_CODES: Final = ("conversation_item_not_found", *_CODES)
_CREATE_CODES: Final = ("storage_disabled", "modality_unsupported", *BODY_CODES, *ASKING_CODES)
_ADD_CODES: Final = ("conversation_locked", "modality_unsupported", *BODY_CODES, *_ITEM_CODES)
_ITEMS_SCHEMA: Final[dict[str, Any]] = {
    "type": "array",
    "maxItems": MOST_ADDED,
    "items": {"type": "object"},
    "description": "Items, in the form of `input` of a response.",
}
_PARENT_SCHEMA: Final[dict[str, Any]] = {
    "type": ["string", "null"],
    "description": "Extension of OpenAI's API: id of the item after which the new items begin a branch, which "
    "becomes the active branch; null: a branch from the beginning. If the field is missing, the new items are "
    "added to the end of the active branch.",
}


class Conversation(BaseModel):
    """OpenAI's conversation object, which does not hold the items."""

    id: str
    object: Literal["conversation"]
    created_at: int = Field(description="Unix time in seconds.")
    metadata: dict[str, str]


class DeletedConversation(BaseModel):
    """Confirmation that a conversation was deleted."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class ConversationItem(BaseModel):
    """An item of a conversation, with all the fields that items of its `type` have."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: str
    parent_id: str | None = Field(
        description="Id of the item before this one in its branch; null: this is the first item."
    )


ConversationId = Annotated[str, Path(description="Id of the conversation.")]
ItemId = Annotated[str, Path(description="Id of the item.")]


def declare(app: FastAPI, conversations: Conversations, max_body_bytes: int) -> None:
    """Add the routes of conversations and their items, `/v1/conversations` and below, to `app`.

    The routes are served from `conversations`. `max_body_bytes`: largest request body.
    """
    _declare_conversations(app, conversations, max_body_bytes)
    _declare_items(app, conversations, max_body_bytes)


def _declare_conversations(app: FastAPI, conversations: Conversations, max_body_bytes: int) -> None:
    @app.post(
        LIST_PATH,
        summary="Create a conversation",
        description="Creates a conversation with its first items, if there are any.\n\n"
        + codes_paragraph(_CREATE_CODES),
        tags=["stored"],
        responses=error_responses(*_CREATE_CODES) | ANY_OTHER,
        response_model=Conversation,
        openapi_extra=body_of({"items": _ITEMS_SCHEMA, "metadata": METADATA_SCHEMA}),
    )
    @require_access("inference")
    async def create_conversation(request: Request) -> Response:
        fields = await read_fields(request, max_body_bytes)
        return answer_json(await conversations.create(request.state.caller, fields))

    @app.get(
        PATH,
        summary="A conversation",
        description=codes_paragraph(_CODES),
        tags=["stored"],
        responses=error_responses(*_CODES) | ANY_OTHER,
        response_model=Conversation,
    )
    @require_access("inference")
    async def get_conversation(request: Request, conversation_id: ConversationId) -> Response:
        return answer_json(await conversations.get(request.state.caller, conversation_id))

    @app.post(
        PATH,
        summary="Update a conversation",
        description="Replaces the `metadata` of the conversation, and nothing else.\n\n"
        + codes_paragraph((*BODY_CODES, *_CODES)),
        tags=["stored"],
        responses=error_responses(*BODY_CODES, *_CODES) | ANY_OTHER,
        response_model=Conversation,
        openapi_extra=body_of({"metadata": METADATA_SCHEMA}, "metadata"),
    )
    @require_access("inference")
    async def update_conversation(request: Request, conversation_id: ConversationId) -> Response:
        fields = await read_fields(request, max_body_bytes)
        return answer_json(await conversations.update(request.state.caller, conversation_id, fields))

    @app.delete(
        PATH,
        summary="Delete a conversation",
        description="Deletes the conversation and its items. Responses that were made in it are kept.\n\n"
        + codes_paragraph(_CODES),
        tags=["stored"],
        responses=error_responses(*_CODES) | ANY_OTHER,
        response_model=DeletedConversation,
    )
    @require_access("inference")
    async def delete_conversation(request: Request, conversation_id: ConversationId) -> Response:
        await conversations.delete(request.state.caller, conversation_id)
        return answer_json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


def _declare_items(app: FastAPI, conversations: Conversations, max_body_bytes: int) -> None:
    @app.post(
        ITEMS_PATH,
        summary="Add items to a conversation",
        description="Adds items in this order, in the form of `input` of a response.\n\n" + codes_paragraph(_ADD_CODES),
        tags=["stored"],
        responses=error_responses(*_ADD_CODES) | ANY_OTHER,
        response_model=ItemList,
        openapi_extra=body_of({"items": _ITEMS_SCHEMA, "parent_id": _PARENT_SCHEMA}, "items"),
    )
    @require_access("inference")
    async def add_items(request: Request, conversation_id: ConversationId) -> Response:
        fields = await read_fields(request, max_body_bytes)
        items = await conversations.add_items(request.state.caller, conversation_id, fields)
        return answer_json(list_object(items, has_more=False))

    @app.get(
        ITEMS_PATH,
        summary="Items of a conversation",
        description="Lists the items of the active branch.\n\n" + codes_paragraph(_CODES),
        tags=["stored"],
        responses=error_responses(*_CODES) | ANY_OTHER,
        response_model=ItemList,
        openapi_extra={"parameters": list_parameters("desc")},
    )
    @require_access("inference")
    async def list_items(request: Request, conversation_id: ConversationId) -> Response:
        page = read_list_query(request.query_params, "desc")
        return answer_json(await conversations.list_items(request.state.caller, conversation_id, page))

    @app.get(
        ITEM_PATH,
        summary="An item of a conversation",
        description="Returns an item of any branch.\n\n" + codes_paragraph(_ITEM_CODES),
        tags=["stored"],
        responses=error_responses(*_ITEM_CODES) | ANY_OTHER,
        response_model=ConversationItem,
    )
    @require_access("inference")
    async def get_item(request: Request, conversation_id: ConversationId, item_id: ItemId) -> Response:
        return answer_json(await conversations.get_item(request.state.caller, conversation_id, item_id))

    @app.delete(
        ITEM_PATH,
        summary="Delete an item of a conversation",
        description="Deletes the item. The items after it then follow the item before it.\n\n"
        + codes_paragraph(("conversation_locked", *_ITEM_CODES)),
        tags=["stored"],
        responses=error_responses("conversation_locked", *_ITEM_CODES) | ANY_OTHER,
        response_model=Conversation,
    )
    @require_access("inference")
    async def delete_item(request: Request, conversation_id: ConversationId, item_id: ItemId) -> Response:
        return answer_json(await conversations.delete_item(request.state.caller, conversation_id, item_id))
