"""/v1/conversations: stored conversations and their items."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from controller.schema.errors import RoundhouseError
from gateway.api.declare import ANY_OTHER, codes_paragraph, error_responses
from gateway.api.stored_requests import (
    ASKING_CODES,
    BODY_CODES,
    METADATA_SCHEMA,
    answer_json,
    body_of,
    list_parameters,
    query_parameter,
    read_choice,
    read_fields,
    read_list_query,
)
from gateway.ingress.route_access import require_access
from gateway.protocols.responses.conversation_items import MOST_ADDED
from gateway.storage.conversations.records import ItemListForm
from gateway.storage.conversations.registry import Conversations
from gateway.storage.pagination import list_object

LIST_PATH: Final = "/v1/conversations"
PATH: Final = "/v1/conversations/{conversation_id}"
ITEMS_PATH: Final = f"{PATH}/items"
ITEM_PATH: Final = f"{ITEMS_PATH}/{{item_id}}"
_CODES: Final = ("conversation_not_found", *ASKING_CODES)
_ITEM_CODES: Final = ("conversation_item_not_found", *_CODES)
_ADDED_CODES: Final = ("conversation_item_not_found", "modality_unsupported", *BODY_CODES)
_CREATE_CODES: Final = ("storage_disabled", *_ADDED_CODES, *ASKING_CODES)
_UPDATE_CODES: Final = ("conversation_locked", *BODY_CODES, *_ITEM_CODES)
_ADD_CODES: Final = ("conversation_locked", *_ADDED_CODES, *_CODES)
_BRANCHES: Final = ("active", "all")
_CONTENTS: Final = ("full", "references")
_MOST_WORDS: Final = 400
"""Maximum characters of a search."""
_MOST_OF_TREE: Final = 1000
"""Maximum items of a page of all branches."""
_ITEMS_SCHEMA: Final[dict[str, Any]] = {
    "type": "array",
    "maxItems": MOST_ADDED,
    "items": {
        "type": "object",
        "properties": {
            "parent_id": {
                "type": ["string", "null"],
                "description": "Extension of OpenAI's API: id of the item that this one follows, which comes earlier "
                "in `items` or is in the conversation; null: the item is a first one. If the field is missing, the "
                "item follows the one before it.",
            }
        },
    },
    "description": "Items, in the form of `input` of a response. The last one becomes the active item.",
}
_PARENT_SCHEMA: Final[dict[str, Any]] = {
    "type": ["string", "null"],
    "description": "Extension of OpenAI's API: id of the item after which the new items begin a branch, which "
    "becomes the active branch; null: a branch from the beginning. If the field is missing, the new items are "
    "added to the end of the active branch.",
}
_SETTINGS_SCHEMA: Final[dict[str, Any]] = {
    "type": ["object", "null"],
    "description": "Extension of OpenAI's API: what a client keeps with the conversation, at most 64 KiB of JSON, "
    "which the gateway does not look into; null: nothing.",
}
_ACTIVE_SCHEMA: Final[dict[str, Any]] = {
    "type": ["string", "null"],
    "description": "Extension of OpenAI's API: id of the item that becomes the active one, and the end of the active "
    "branch, whether or not items follow it; null: no item is active.",
}

_FORM_PARAMETERS: Final = (
    query_parameter(
        "branch",
        {"type": "string", "enum": list(_BRANCHES), "default": "active"},
        "Extension of OpenAI's API. `all`: the items of all branches.",
    ),
    query_parameter(
        "content",
        {"type": "string", "enum": list(_CONTENTS), "default": "full"},
        "Extension of OpenAI's API. `references`: parts with images, sounds or files have `omitted` (`media_type`, "
        "`bytes`) in place of the data, which the route of the item returns.",
    ),
)


class Conversation(BaseModel):
    """OpenAI's conversation object, which does not hold the items, with fields of ours."""

    id: str
    object: Literal["conversation"]
    created_at: int = Field(description="Unix time in seconds.")
    last_used_at: int = Field(description="When it was last continued or changed, as Unix time in seconds.")
    metadata: dict[str, str]
    model: str | None = Field(description="Name of the model that answered last; null: none has.")
    item_count: int = Field(description="Number of items, of all branches.")
    active_item_id: str | None = Field(description="Id of the last item of the active branch; null: it has none.")
    running_response_id: str | None = Field(description="Id of the response that is being made in it; null: none is.")
    settings: dict[str, Any] | None = Field(description="What a client keeps with it; null: nothing.")


class ConversationHit(BaseModel):
    """Where a search found its first word: in an item, or in the title (`metadata.title`) if `item_id` is null."""

    item_id: str | None
    before: str = Field(description="At most 80 characters before the match.")
    match: str
    after: str = Field(description="At most 80 characters after the match.")


class ListedConversation(BaseModel):
    """A conversation of a list, without its `settings`."""

    id: str
    object: Literal["conversation"]
    created_at: int
    last_used_at: int
    metadata: dict[str, str]
    model: str | None
    item_count: int
    active_item_id: str | None
    running_response_id: str | None
    hit: ConversationHit | None = Field(default=None, description="With `q` only.")


class ConversationList(BaseModel):
    """One page of the caller's conversations, the one used last first unless asked otherwise."""

    object: Literal["list"]
    data: list[ListedConversation]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedConversation(BaseModel):
    """Confirmation that a conversation was deleted."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class AnswerFigures(BaseModel):
    """Figures of a response. Times are milliseconds since its request."""

    model: str
    usage: dict[str, Any] | None = Field(description="As in the response object; null: the engine reported none.")
    first_token_ms: int | None = Field(description="Until the model's first item began; null: not known.")
    total_ms: int | None


class ItemAnswer(BaseModel):
    """The response that made an item of a conversation, and how long the item took. The response's last item has the
    figures of the whole response."""

    response_id: str
    took_ms: int | None = Field(
        description="Milliseconds from the item's beginning to the next one's, or to the end; null: the answer was no "
        "stream."
    )
    figures: AnswerFigures | None = Field(description="Of the whole response; null for all of its items but the last.")


class ConversationItem(BaseModel):
    """An item of a conversation, with all the fields that items of its `type` have."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: str
    parent_id: str | None = Field(
        description="Id of the item before this one in its branch; null: this is the first item."
    )
    answer: ItemAnswer | None = Field(None, description="Extension of OpenAI's API. Missing: a client added the item.")


class ConversationItemList(BaseModel):
    """One page of items of a conversation: of its active branch, or of all branches."""

    object: Literal["list"]
    data: list[ConversationItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


ConversationId = Annotated[str, Path(description="Id of the conversation.")]
ItemId = Annotated[str, Path(description="Id of the item.")]


def declare(app: FastAPI, conversations: Conversations, max_body_bytes: int) -> None:
    """Add the routes of conversations and their items, `/v1/conversations` and below, to `app`.

    The routes are served from `conversations`. `max_body_bytes`: largest request body.
    """
    _declare_conversations(app, conversations, max_body_bytes)
    _declare_items(app, conversations, max_body_bytes)


def _declare_conversations(app: FastAPI, conversations: Conversations, max_body_bytes: int) -> None:
    @app.get(
        LIST_PATH,
        summary="Conversations",
        description="Extension of OpenAI's API: lists the tenant's conversations, the one used last first.\n\n"
        + codes_paragraph(ASKING_CODES),
        tags=["stored"],
        responses=error_responses(*ASKING_CODES) | ANY_OTHER,
        response_model=ConversationList,
        openapi_extra={
            "parameters": [
                *list_parameters("desc"),
                query_parameter(
                    "q",
                    {"type": "string", "maxLength": _MOST_WORDS},
                    "Words, all of which the title (`metadata.title`) or the text of one item must have, in any case "
                    "of letters.",
                ),
            ]
        },
    )
    @require_access("inference")
    async def list_conversations(request: Request) -> Response:
        words = request.query_params.get("q", "")
        if len(words) > _MOST_WORDS:
            message = f"`q` must have at most {_MOST_WORDS} characters; it has {len(words)}."
            raise RoundhouseError("invalid_request", message, param="q")
        page = read_list_query(request.query_params, "desc")
        return answer_json(await conversations.list_page(request.state.caller, page, words))

    @app.post(
        LIST_PATH,
        summary="Create a conversation",
        description="Creates a conversation with its first items, if there are any.\n\n"
        + codes_paragraph(_CREATE_CODES),
        tags=["stored"],
        responses=error_responses(*_CREATE_CODES) | ANY_OTHER,
        response_model=Conversation,
        openapi_extra=body_of({"items": _ITEMS_SCHEMA, "metadata": METADATA_SCHEMA, "settings": _SETTINGS_SCHEMA}),
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
        description="Replaces the `metadata` or the `settings` of the conversation, or makes another item the active "
        "one. What is missing stays; a body without any of these removes the metadata.\n\n"
        + codes_paragraph(_UPDATE_CODES),
        tags=["stored"],
        responses=error_responses(*_UPDATE_CODES) | ANY_OTHER,
        response_model=Conversation,
        openapi_extra=body_of(
            {"metadata": METADATA_SCHEMA, "settings": _SETTINGS_SCHEMA, "active_item_id": _ACTIVE_SCHEMA}
        ),
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
        response_model=ConversationItemList,
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
        description="Lists the items of the active branch; with `branch=all` those of all branches, by default in the "
        "order in which they were added (`order` is `asc`), and up to 1,000 a page.\n\n" + codes_paragraph(_CODES),
        tags=["stored"],
        responses=error_responses(*_CODES) | ANY_OTHER,
        response_model=ConversationItemList,
        openapi_extra={"parameters": [*list_parameters("desc", _MOST_OF_TREE), *_FORM_PARAMETERS]},
    )
    @require_access("inference")
    async def list_items(request: Request, conversation_id: ConversationId) -> Response:
        query = request.query_params
        has_all = read_choice(query, "branch", _BRANCHES) == "all"
        form = ItemListForm(has_all, read_choice(query, "content", _CONTENTS) == "references")
        page = read_list_query(query, "asc", _MOST_OF_TREE) if has_all else read_list_query(query, "desc")
        return answer_json(await conversations.list_items(request.state.caller, conversation_id, page, form))

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
