"""Stored conversations, as the routes below /v1/conversations create, read and change them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from assistant.storage.conversation_records import (
    ACTIVE_BRANCH,
    BranchEnd,
    ConversationChange,
    FoundConversation,
    ItemListForm,
    NewItem,
    NewSettings,
    StoredConversation,
    conversation_not_found,
    encode_added_items,
    fold_words,
    item_not_found,
    read_settings,
    storage_disabled,
    wrong_item_id,
)
from assistant.storage.conversation_table import ConversationSearch, ListPart, ListPosition
from assistant.storage.database import StateDatabase
from assistant.storage.pagination import ListQuery, list_object, may_see_model
from assistant.storage.records import HistoryBounds, RequestOptions, is_id
from assistant.storage.responses import StoredResponses
from assistant.storage.store import StateStore
from contract.errors import RoundhouseError
from gateway.exchange.plain_responses import TOKEN_LENGTH, item_ids
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import optional_field, read_metadata
from gateway.protocols.responses.items import BranchStart, read_added_items, read_start
from gateway.routing.table import LiveRoutes
from gateway.tenancy.api_keys import Caller

_PREFIX: Final = "conv_"


class Conversations:
    """All conversations of a gateway. Belongs to the event loop.

    A conversation belongs to its tenant. A key that is limited to some models sees the conversations in which one of
    these models, or none, answered last. Methods raise RoundhouseError: `conversation_not_found` if the caller sees no
    conversation with the id, or nothing is stored; `conversation_item_not_found`; `conversation_locked` if items are
    added or deleted where a response is running (`ConversationLocks`); `invalid_request` for a wrong body or query;
    `response_store_failed` if the database fails.
    """

    def __init__(
        self, store: StateStore | None, responses: StoredResponses, live: LiveRoutes, bounds: HistoryBounds
    ) -> None:
        """`store` None: nothing is stored, and no conversation is found. `bounds`: maximum length of a branch."""
        self._store = store
        self._responses = responses
        self._live = live
        self._bounds = bounds

    async def create(self, caller: Caller, fields: Fields) -> Fields:
        """Create a conversation with the `metadata`, `settings` and `items` of a request's body. Returns the
        conversation object.

        All fields may be missing. Items that refer to stored items are replaced by these.

        Raises:
            RoundhouseError: `storage_disabled` if the gateway stores nothing; `invalid_request`,
                `conversation_item_not_found` or `modality_unsupported` for wrong fields; `response_store_failed`.
        """
        if self._store is None:
            raise storage_disabled()
        metadata, settings = read_metadata(fields), read_settings(fields)
        items = await self._read_items(caller, fields.get("items") or [])
        conversation_id = _PREFIX + secrets.token_hex(TOKEN_LENGTH // 2)
        made = await self._store.submit_change(
            lambda database: database.conversations.create(
                caller.tenant, conversation_id, metadata, items, settings, self._bounds
            )
        )
        return self._shown(caller, made)

    async def list_page(self, caller: Caller, query: ListQuery, words: str = "") -> Fields:
        """Return a page of the conversations that the caller may see, as a list object. It is empty if nothing is
        stored.

        The conversation that was used last comes first unless `query.is_ascending`. `words`: what the title, or the
        text of one item, must have, each of them; blank: all conversations are listed. After a search an entry has
        `hit`. Other work of the database comes in between.

        Raises:
            RoundhouseError: `invalid_request` if `query.after` is no conversation that the caller may see;
                `response_store_failed`.
        """
        if self._store is None:
            return list_object([], has_more=False)
        store, routes = self._store, self._live.current
        search = ConversationSearch(fold_words(words), query.is_ascending)
        position: ListPosition | None = None

        def is_visible(model: str | None) -> bool:
            return may_see_model(routes, caller, model)

        if query.after is not None:
            after = query.after
            position = await store.submit_job(
                lambda database: database.listing.find_position(caller.tenant, after, is_visible)
            )
        found: dict[str, FoundConversation] = {}
        is_over = False
        while not is_over and len(found) <= query.limit:
            part = await store.submit_job(
                partial(_list_part, caller.tenant, search, position, query.limit + 1 - len(found), is_visible)
            )
            found |= {each.conversation.id: each for each in part.found}
            position, is_over = part.position, part.position is None
        data = [
            {**each.fields, "running_response_id": self._running(caller, each.conversation.id)}
            for each in list(found.values())[: query.limit]
        ]
        return list_object(data, has_more=len(found) > query.limit)

    async def get(self, caller: Caller, conversation_id: str) -> Fields:
        """Return the conversation object, without its items. Raises RoundhouseError `conversation_not_found` if the
        caller sees no such conversation, or `response_store_failed`."""
        return self._shown(caller, await self._require(caller, conversation_id))

    async def update(self, caller: Caller, conversation_id: str, fields: Fields) -> Fields:
        """Change a conversation by `fields`, a request's body. Returns the new conversation object.

        `settings` replaces the settings (null removes them), `active_item_id` makes exactly that item the active one
        (null: none), `metadata` replaces the metadata (null removes it). What is missing stays, but a body without any
        of the three removes all metadata.

        Raises:
            RoundhouseError: `invalid_request` for wrong fields; `conversation_not_found`;
                `conversation_item_not_found`; `conversation_locked` for `active_item_id` while a response continues the
                active branch; `response_store_failed`.
        """
        change = _read_change(conversation_id, fields)
        await self._require(caller, conversation_id)
        if change.active_item is not None:
            self._responses.conversation_locks.require_free_end(caller.tenant, conversation_id)
        updated = await self._store_of(conversation_id).submit_change(
            lambda database: database.conversations.update(caller.tenant, conversation_id, change)
        )
        return self._shown(caller, updated)

    async def delete(self, caller: Caller, conversation_id: str) -> None:
        """Delete a conversation with its items, even while a response runs in it; that response then adds no items.

        Raises RoundhouseError `conversation_not_found` or `response_store_failed`.
        """
        await self._require(caller, conversation_id)
        is_deleted = await self._store_of(conversation_id).submit_change(
            lambda database: database.conversations.delete(caller.tenant, conversation_id)
        )
        if not is_deleted:
            raise conversation_not_found(conversation_id)

    # Items

    async def add_items(self, caller: Caller, conversation_id: str, fields: Fields) -> list[Fields]:
        """Add the `items` of `fields`, a request's body. Returns the items as clients see them, with their ids.

        An item with a `parent_id` of its own follows that item, which is stored or comes earlier in the request; any
        other follows the item before it. The first one follows the item `parent_id` of the body (null: it begins a
        branch at the root), or the active item if the body has no `parent_id`. The last one becomes the active item.
        Either all items are added or none.

        Raises:
            RoundhouseError: `conversation_not_found`; `conversation_item_not_found` for a `parent_id`;
                `conversation_locked` while a response runs in the conversation, or, for a body with `parent_id`, one
                that continues the active branch or follows that item; `invalid_request`, also for a branch beyond the
                bounds; `modality_unsupported`; `response_store_failed`.
        """
        await self._require(caller, conversation_id)
        start = _read_start(conversation_id, fields)
        items = await self._read_items(caller, fields.get("items"))
        self._require_free(caller, conversation_id, start)
        return await self._store_of(conversation_id).submit_change(
            lambda database: database.conversations.add_items(
                caller.tenant, conversation_id, items, start, self._bounds
            )
        )

    async def list_items(
        self, caller: Caller, conversation_id: str, query: ListQuery, form: ItemListForm = ACTIVE_BRANCH
    ) -> Fields:
        """Return a page of the items of the active branch or of all, each with `parent_id`, as a list object.

        The newest item comes first unless `query.is_ascending`.

        Raises:
            RoundhouseError: `conversation_not_found`; `invalid_request` if `query.after` is no item of the branch;
                `response_store_failed`.
        """
        await self._require(caller, conversation_id)
        return await self._store_of(conversation_id).submit_job(
            lambda database: database.conversations.list_items(caller.tenant, conversation_id, query, form)
        )

    async def get_item(self, caller: Caller, conversation_id: str, item_id: str) -> Fields:
        """Return an item of any branch, with its `parent_id` (None: it is a first item).

        Raises RoundhouseError `conversation_not_found`, `conversation_item_not_found` or `response_store_failed`.
        """
        await self._require(caller, conversation_id)
        _require_item_id(conversation_id, item_id)
        return await self._store_of(conversation_id).submit_job(
            lambda database: database.conversations.find_item(caller.tenant, conversation_id, item_id)
        )

    async def delete_item(self, caller: Caller, conversation_id: str, item_id: str) -> Fields:
        """Delete an item of any branch. Items that followed it then follow its parent, which becomes the active item if
        the deleted one was. Returns the conversation object.

        Raises:
            RoundhouseError: `conversation_not_found`; `conversation_item_not_found`; `conversation_locked` while a
                response runs in the conversation; `response_store_failed`.
        """
        await self._require(caller, conversation_id)
        _require_item_id(conversation_id, item_id)
        self._require_free(caller, conversation_id)
        conversation = await self._store_of(conversation_id).submit_change(
            lambda database: database.conversations.delete_item(caller.tenant, conversation_id, item_id)
        )
        return self._shown(caller, conversation)

    # Internal

    def _shown(self, caller: Caller, conversation: StoredConversation) -> Fields:
        return {**conversation.fields, "running_response_id": self._running(caller, conversation.id)}

    def _running(self, caller: Caller, conversation_id: str) -> str | None:
        return self._responses.conversation_locks.find_response(caller.tenant, conversation_id)

    async def _require(self, caller: Caller, conversation_id: str) -> StoredConversation:
        found = await self._store_of(conversation_id).submit_job(
            lambda database: database.conversations.find(caller.tenant, conversation_id)
        )
        if found is None or not may_see_model(self._live.current, caller, found.model):
            raise conversation_not_found(conversation_id)
        return found

    def _require_free(self, caller: Caller, conversation_id: str, start: BranchStart | None = None) -> None:
        """Check that no response is being made in the conversation, or where `start` begins a branch. Submit the change
        without awaiting in between."""
        self._responses.conversation_locks.require_free(caller.tenant, conversation_id, start)

    async def _read_items(self, caller: Caller, values: Any) -> Sequence[NewItem]:
        options = RequestOptions.of_references({"input": values})
        history = await self._responses.load_history(caller, options)
        referenced_items = self._responses.visible_items(caller, history)
        items = read_added_items(values, referenced_items, item_ids(secrets.token_hex(TOKEN_LENGTH // 2)))
        for index, (item, start) in enumerate(items):
            if not is_id(item["id"]):
                raise wrong_item_id(item["id"], f"items[{index}].id")
            if start is not None and start.parent_id is not None:
                _require_item_id("", start.parent_id, f"items[{index}].parent_id")
        try:
            return encode_added_items(items)
        except RecursionError:
            message = "The items are nested too deeply to be stored."
            raise RoundhouseError("invalid_request", message, param="items") from None

    def _store_of(self, conversation_id: str) -> StateStore:
        if self._store is None or not is_id(conversation_id):
            raise conversation_not_found(conversation_id)
        return self._store


def _require_item_id(conversation_id: str, item_id: str, param: str = "item_id") -> None:
    if not is_id(item_id):
        raise item_not_found(conversation_id, item_id, param)


def _read_start(conversation_id: str, fields: Fields) -> BranchStart | None:
    """Read where the items of a request's body begin a branch; None: they continue the active one."""
    start = read_start(fields)
    if start is not None and start.parent_id is not None:
        _require_item_id(conversation_id, start.parent_id, "parent_id")
    return start


def _read_change(conversation_id: str, fields: Fields) -> ConversationChange:
    settings = NewSettings(read_settings(fields)) if "settings" in fields else None
    active_item = None
    if "active_item_id" in fields:
        active_item = BranchEnd(optional_field(fields, "active_item_id", str))
        if active_item.item_id is not None:
            _require_item_id(conversation_id, active_item.item_id, "active_item_id")
    is_metadata_alone = settings is None and active_item is None
    metadata = read_metadata(fields) if "metadata" in fields or is_metadata_alone else None
    return ConversationChange(metadata, settings, active_item)


def _list_part(
    tenant: str,
    search: ConversationSearch,
    position: ListPosition | None,
    count: int,
    is_visible: Callable[[str | None], bool],
    database: StateDatabase,
) -> ListPart:
    return database.listing.list_part(tenant, search, position, count, is_visible)
