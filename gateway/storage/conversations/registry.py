"""Stored conversations, as the routes below /v1/conversations create, read and change them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import optional_field
from gateway.protocols.common.metadata import read_metadata
from gateway.protocols.responses.conversation_items import read_added_items
from gateway.routing.live_routes import LiveRoutes
from gateway.storage.conversations.errors import (
    conversation_not_found,
    item_not_found,
    storage_disabled,
    wrong_item_id,
)
from gateway.storage.conversations.records import BranchStart, NewItem, StoredConversation, encode_items
from gateway.storage.pagination import ListQuery
from gateway.storage.responses.records import TOKEN_LENGTH, HistoryBounds, item_ids
from gateway.storage.responses.registry import StoredResponses
from gateway.storage.responses.request_options import RequestOptions, is_id
from gateway.storage.store import StateStore
from gateway.storage.visibility import may_see_model
from gateway.tenancy.api_keys import Caller

_PREFIX: Final = "conv_"


class Conversations:
    """All conversations of a gateway. Belongs to the event loop.

    A conversation belongs to its tenant. A key that is limited to some models sees the conversations in which one of
    these models, or none, answered last. Methods raise RoundhouseError: `conversation_not_found` if the caller sees no
    conversation with the id, or nothing is stored; `conversation_item_not_found`; `conversation_locked` if items are
    added or deleted while a response is running in the conversation; `invalid_request` for a wrong body or query;
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
        """Create a conversation with the `metadata` and `items` of a request's body. Returns the conversation object.

        Both fields may be missing. Items that refer to stored items are replaced by these.

        Raises:
            RoundhouseError: `storage_disabled` if the gateway stores nothing; `invalid_request` or
                `modality_unsupported` for wrong fields; `response_store_failed`.
        """
        if self._store is None:
            raise storage_disabled()
        metadata = read_metadata(fields)
        items = await self._read_items(caller, fields.get("items") or [])
        conversation_id = _PREFIX + secrets.token_hex(TOKEN_LENGTH // 2)
        made = await self._store.submit_change(
            lambda database: database.conversations.create(caller.tenant, conversation_id, metadata, items)
        )
        return made.fields

    async def get(self, caller: Caller, conversation_id: str) -> Fields:
        """Return the conversation object, without its items. Raises RoundhouseError `conversation_not_found` if the
        caller sees no such conversation, or `response_store_failed`."""
        return (await self._require(caller, conversation_id)).fields

    async def update(self, caller: Caller, conversation_id: str, fields: Fields) -> Fields:
        """Replace a conversation's metadata by the `metadata` of `fields`, a request's body.

        Returns the new conversation object. A body without `metadata`, or with null, removes all metadata.

        Raises:
            RoundhouseError: `invalid_request` for wrong metadata; `conversation_not_found`; `response_store_failed`.
        """
        metadata = read_metadata(fields)
        await self._require(caller, conversation_id)
        updated = await self._store_of(conversation_id).submit_change(
            lambda database: database.conversations.update_metadata(caller.tenant, conversation_id, metadata)
        )
        return updated.fields

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

        The items follow the item `parent_id` of the body (null: they begin a branch at the root), or the active item if
        the body has no `parent_id`. The last one becomes the active item. Either all items are added or none.

        Raises:
            RoundhouseError: `conversation_not_found`; `conversation_item_not_found` for `parent_id`;
                `conversation_locked` while a response runs in the conversation; `invalid_request`, also for a branch
                beyond the bounds; `modality_unsupported`; `response_store_failed`.
        """
        await self._require(caller, conversation_id)
        start = _read_start(conversation_id, fields)
        items = await self._read_items(caller, fields.get("items"))
        self._require_free(caller, conversation_id)
        return await self._store_of(conversation_id).submit_change(
            lambda database: database.conversations.add_items(
                caller.tenant, conversation_id, items, start, self._bounds
            )
        )

    async def list_items(self, caller: Caller, conversation_id: str, query: ListQuery) -> Fields:
        """Return a page of the items of the active branch, each with `parent_id`, as a list object.

        The newest item comes first unless `query.is_ascending`.

        Raises:
            RoundhouseError: `conversation_not_found`; `invalid_request` if `query.after` is no item of the branch;
                `response_store_failed`.
        """
        await self._require(caller, conversation_id)
        return await self._store_of(conversation_id).submit_job(
            lambda database: database.conversations.list_items(caller.tenant, conversation_id, query)
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
        """Delete an item of any branch. Items that followed it then follow its parent; if it was the active item, the
        parent is. Returns the conversation object.

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
        return conversation.fields

    # Internal

    async def _require(self, caller: Caller, conversation_id: str) -> StoredConversation:
        found = await self._store_of(conversation_id).submit_job(
            lambda database: database.conversations.find(caller.tenant, conversation_id)
        )
        if found is None or not may_see_model(self._live.current, caller, found.model):
            raise conversation_not_found(conversation_id)
        return found

    def _require_free(self, caller: Caller, conversation_id: str) -> None:
        """Check that no response is being made in the conversation. Submit the change without awaiting in between."""
        self._responses.conversation_locks.require_free(caller.tenant, conversation_id)

    async def _read_items(self, caller: Caller, values: Any) -> Sequence[NewItem]:
        options = RequestOptions.of_references({"input": values})
        history = await self._responses.load_history(caller, options)
        referenced_items = self._responses.visible_items(caller, history)
        items = read_added_items(values, referenced_items, item_ids(secrets.token_hex(TOKEN_LENGTH // 2)))
        for index, item in enumerate(items):
            if not is_id(item["id"]):
                raise wrong_item_id(item["id"], f"items[{index}].id")
        try:
            return encode_items(items)
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
    if "parent_id" not in fields:
        return None
    parent_id = optional_field(fields, "parent_id", str)
    if parent_id is not None:
        _require_item_id(conversation_id, parent_id, "parent_id")
    return BranchStart(parent_id)
