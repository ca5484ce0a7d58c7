"""/v1/conversations: stored conversations and their items."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from assistant.api.stored import ASKING_CODES, METADATA_SCHEMA, list_parameters, read_list_query
from assistant.storage.conversation_records import ItemListForm
from assistant.storage.conversations import Conversations
from assistant.storage.pagination import list_object
from contract.errors import RoundhouseError
from contract.route_spec import Parameter, RouteSpec
from gateway.api.declare import (
    HttpRoutes,
    answer_json,
    body_schema,
    read_choice,
)
from gateway.protocols.common.conversation import Fields
from gateway.protocols.responses.items import MOST_ADDED

LIST_PATH: Final = "/v1/conversations"
PATH: Final = "/v1/conversations/{conversation_id}"
ITEMS_PATH: Final = f"{PATH}/items"
ITEM_PATH: Final = f"{ITEMS_PATH}/{{item_id}}"
_CODES: Final = ("conversation_not_found", *ASKING_CODES)
_ITEM_CODES: Final = ("conversation_item_not_found", *_CODES)
_ADDED_CODES: Final = ("conversation_item_not_found", "modality_unsupported")
_CREATE_CODES: Final = ("storage_disabled", *_ADDED_CODES, *ASKING_CODES)
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
    "becomes the active branch; null: a branch from the beginning. If the field is missing, the new items are added to "
    "the end of the active branch.",
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
    Parameter(
        "branch",
        "Extension of OpenAI's API. `all`: the items of all branches.",
        {"type": "string", "enum": list(_BRANCHES), "default": "active"},
    ),
    Parameter(
        "content",
        "Extension of OpenAI's API. `references`: parts with images, sounds or files have `omitted` (`media_type`, "
        "`bytes`) in place of the data, which the route of the item returns.",
        {"type": "string", "enum": list(_CONTENTS), "default": "full"},
    ),
)
_stored = partial(RouteSpec, tag="stored")


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


def declare(routes: HttpRoutes, conversations: Conversations) -> None:
    """Add the routes of conversations and their items, `/v1/conversations` and below, which are served from
    `conversations`."""
    _declare_conversations(routes, conversations)
    _declare_items(routes, conversations)


def _declare_conversations(routes: HttpRoutes, conversations: Conversations) -> None:
    @routes.add(
        _stored(
            "GET",
            LIST_PATH,
            "Conversations",
            answer=ConversationList,
            query=(
                *list_parameters("desc"),
                Parameter(
                    "q",
                    "Words, all of which the title (`metadata.title`) or the text of one item must have, in any case "
                    "of letters.",
                    {"type": "string", "maxLength": _MOST_WORDS},
                ),
            ),
            codes=ASKING_CODES,
        )
    )
    async def list_conversations(request: Request) -> Response:
        """Extension of OpenAI's API: lists the tenant's conversations, the one used last first."""
        words = request.query_params.get("q", "")
        if len(words) > _MOST_WORDS:
            message = f"`q` must have at most {_MOST_WORDS} characters; it has {len(words)}."
            raise RoundhouseError("invalid_request", message, param="q")
        page = read_list_query(request.query_params, "desc")
        return answer_json(await conversations.list_page(request.state.caller, page, words))

    @routes.add(
        _stored(
            "POST",
            LIST_PATH,
            "Create a conversation",
            answer=Conversation,
            body=body_schema({"items": _ITEMS_SCHEMA, "metadata": METADATA_SCHEMA, "settings": _SETTINGS_SCHEMA}),
            codes=_CREATE_CODES,
        )
    )
    async def create_conversation(request: Request, body: Fields) -> Response:
        """Creates a conversation with its first items, if there are any."""
        return answer_json(await conversations.create(request.state.caller, body))

    @routes.add(_stored("GET", PATH, "A conversation", answer=Conversation, codes=_CODES))
    async def get_conversation(request: Request, conversation_id: ConversationId) -> Response:
        return answer_json(await conversations.get(request.state.caller, conversation_id))

    @routes.add(
        _stored(
            "POST",
            PATH,
            "Update a conversation",
            answer=Conversation,
            body=body_schema(
                {"metadata": METADATA_SCHEMA, "settings": _SETTINGS_SCHEMA, "active_item_id": _ACTIVE_SCHEMA}
            ),
            codes=("conversation_locked", *_ITEM_CODES),
        )
    )
    async def update_conversation(request: Request, conversation_id: ConversationId, body: Fields) -> Response:
        """Replaces the `metadata` or the `settings` of the conversation, or makes another item the active one. What is
        missing stays; a body without any of these removes the metadata."""
        return answer_json(await conversations.update(request.state.caller, conversation_id, body))

    @routes.add(_stored("DELETE", PATH, "Delete a conversation", answer=DeletedConversation, codes=_CODES))
    async def delete_conversation(request: Request, conversation_id: ConversationId) -> Response:
        """Deletes the conversation and its items. Responses that were made in it are kept."""
        await conversations.delete(request.state.caller, conversation_id)
        return answer_json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


def _declare_items(routes: HttpRoutes, conversations: Conversations) -> None:
    @routes.add(
        _stored(
            "POST",
            ITEMS_PATH,
            "Add items to a conversation",
            answer=ConversationItemList,
            body=body_schema({"items": _ITEMS_SCHEMA, "parent_id": _PARENT_SCHEMA}, "items"),
            codes=_ADD_CODES,
        )
    )
    async def add_items(request: Request, conversation_id: ConversationId, body: Fields) -> Response:
        """Adds items in this order, in the form of `input` of a response."""
        items = await conversations.add_items(request.state.caller, conversation_id, body)
        return answer_json(list_object(items, has_more=False))

    @routes.add(
        _stored(
            "GET",
            ITEMS_PATH,
            "Items of a conversation",
            answer=ConversationItemList,
            query=(*list_parameters("desc", _MOST_OF_TREE), *_FORM_PARAMETERS),
            codes=_CODES,
        )
    )
    async def list_items(request: Request, conversation_id: ConversationId) -> Response:
        """Lists the items of the active branch; with `branch=all` those of all branches, by default in the order in
        which they were added (`order` is `asc`), and up to 1,000 a page."""
        query = request.query_params
        has_all = read_choice(query, "branch", _BRANCHES) == "all"
        form = ItemListForm(has_all, read_choice(query, "content", _CONTENTS) == "references")
        page = read_list_query(query, "asc", _MOST_OF_TREE) if has_all else read_list_query(query, "desc")
        return answer_json(await conversations.list_items(request.state.caller, conversation_id, page, form))

    @routes.add(_stored("GET", ITEM_PATH, "An item of a conversation", answer=ConversationItem, codes=_ITEM_CODES))
    async def get_item(request: Request, conversation_id: ConversationId, item_id: ItemId) -> Response:
        """Returns an item of any branch."""
        return answer_json(await conversations.get_item(request.state.caller, conversation_id, item_id))

    @routes.add(
        _stored(
            "DELETE",
            ITEM_PATH,
            "Delete an item of a conversation",
            answer=Conversation,
            codes=("conversation_locked", *_ITEM_CODES),
        )
    )
    async def delete_item(request: Request, conversation_id: ConversationId, item_id: ItemId) -> Response:
        """Deletes the item. The items after it then follow the item before it."""
        return answer_json(await conversations.delete_item(request.state.caller, conversation_id, item_id))
