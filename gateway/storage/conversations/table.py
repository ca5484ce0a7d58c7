"""Queries of the tables of conversations. Methods wait for the disk, and may raise sqlite3.Error.

Call methods that write within a transaction. `RoundhouseError` without a code means `conversation_not_found` or
`conversation_item_not_found`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.storage.conversations.errors import (
    conversation_not_found,
    conversation_too_long,
    duplicate_item,
    item_not_found,
)
from gateway.storage.conversations.records import (
    ActiveBranch,
    BranchStart,
    ConversationTurn,
    NewItem,
    StoredConversation,
    size_of,
)
from gateway.storage.pagination import ListQuery, paginate_items
from gateway.storage.responses.records import TOKEN_LENGTH, HistoryBounds
from gateway.storage.responses.request_options import is_id
from gateway.storage.table_file import TableFile

_FIND: Final = """
SELECT number, id, created_at, metadata, model, active_item FROM conversations
WHERE id = ? AND tenant = ? AND used_at >= ?
"""
_BRANCH: Final = """
WITH RECURSIVE branch (id, parent_id, bytes, depth) AS (
    SELECT id, parent_id, length(item), 1 FROM conversation_items WHERE conversation = :number AND id = :last
    UNION ALL
    SELECT i.id, i.parent_id, length(i.item), depth + 1
    FROM branch JOIN conversation_items AS i ON i.conversation = :number AND i.id = branch.parent_id
)
SELECT id, bytes FROM branch ORDER BY depth DESC
"""
_ITEM: Final = "SELECT item, parent_id FROM conversation_items WHERE conversation = ? AND id = ?"
_INSERT: Final = "INSERT INTO conversations (id, tenant, created_at, used_at, metadata) VALUES (?, ?, ?, ?, ?)"
_INSERT_ITEMS: Final = "INSERT INTO conversation_items (conversation, id, parent_id, created_at, item) VALUES {}"
_REFERENCED: Final = """
SELECT i.item, c.model, c.number FROM conversation_items AS i JOIN conversations AS c ON c.number = i.conversation
WHERE i.id = ? AND c.tenant = ? AND c.used_at >= ?
"""


class _Row(NamedTuple):
    """A row of the table of conversations."""

    number: int
    id: str
    created_at: float
    metadata: bytes
    model: str | None
    active_item: str | None

    @property
    def conversation(self) -> StoredConversation:
        return StoredConversation(self.id, self.created_at, json.loads(self.metadata), self.model)


class _Link(NamedTuple):
    """An item of a branch, without its content."""

    id: str
    bytes: int


class ConversationTable:
    """The conversations of all tenants in the database. Used in the store's thread.

    Methods do not find conversations of other tenants, nor expired ones. All may raise sqlite3.Error. Call those that
    write, or count a conversation as used, within a transaction.
    """

    def __init__(self, file: TableFile) -> None:
        self._file = file
        self._db = file.db

    def create(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str], items: Sequence[NewItem]
    ) -> StoredConversation:
        """Write a new conversation with its first items, each below the one before. The last becomes the active item.

        `items` may be empty. Call within a transaction.

        Raises:
            DatabaseFullError: there is no room, even without all other objects.
            sqlite3.IntegrityError: the conversation's id exists, or two items have the same id.
            sqlite3.Error: the database fails.
        """
        now = self._file.clock()
        encoded_metadata = json_bytes(metadata)
        self._file.make_room(size_of(items) + len(encoded_metadata), 1 + len(items))
        cursor = self._db.execute(_INSERT, (conversation_id, tenant, now, now, encoded_metadata))
        assert cursor.lastrowid is not None
        self._insert_items(cursor.lastrowid, items, None)
        return StoredConversation(conversation_id, now, metadata, None)

    def find(self, tenant: str, conversation_id: str) -> StoredConversation | None:
        """Return a tenant's conversation; None: the tenant has no conversation with this id.

        Does not count as a use. Blocks; raises sqlite3.Error if the database fails.
        """
        row = self._find_row(tenant, conversation_id)
        return None if row is None else row.conversation

    def update_metadata(self, tenant: str, conversation_id: str, metadata: Mapping[str, str]) -> StoredConversation:
        """Replace a conversation's metadata, and return the conversation, which counts as used now.

        Call within a transaction. Blocks. Raises RoundhouseError `conversation_not_found`, or sqlite3.Error if the
        database fails.
        """
        row = self._require_row(tenant, conversation_id)
        self._mark_used(row.number)
        self._db.execute("UPDATE conversations SET metadata = ? WHERE number = ?", (json_bytes(metadata), row.number))
        return row.conversation._replace(metadata=metadata)

    def delete(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation with all its items, and return whether there was one. Call within a transaction.

        Blocks; raises sqlite3.Error if the database fails.
        """
        row = self._find_row(tenant, conversation_id)
        if row is not None:
            self._db.execute("DELETE FROM conversations WHERE number = ?", (row.number,))
        return row is not None

    # Items

    def add_items(
        self,
        tenant: str,
        conversation_id: str,
        items: Sequence[NewItem],
        start: BranchStart | None,
        bounds: HistoryBounds,
    ) -> list[Fields]:
        """Add items, each as the child of the one before. The last becomes the active item. Call within a transaction.

        Returns the items as clients see them, with `parent_id`. The conversation counts as used now. `start`: the
        parent of the first item; None: the active item. `bounds`: limits of the branch including the items.

        Raises:
            RoundhouseError: `conversation_not_found`; `conversation_item_not_found` if the parent does not exist;
                `invalid_request` if an item's id exists in the conversation, or the branch would exceed `bounds`.
            DatabaseFullError: there is no room, even without all other objects.
            sqlite3.Error: the database fails.
        """
        row = self._require_row(tenant, conversation_id)
        parent_id = row.active_item if start is None else start.parent_id
        links = self._load_links(row.number, parent_id)
        if parent_id is not None and not links:
            raise item_not_found(conversation_id, parent_id, "parent_id")
        if _is_too_long(links, bounds, items):
            raise conversation_too_long(bounds.items, bounds.bytes, "items")
        for index, item in enumerate(items):
            if self._find_item(row.number, item.id) is not None:
                raise duplicate_item(item.id, f"items[{index}].id")
        self._mark_used(row.number)
        self._file.make_room(size_of(items), len(items))
        parent_ids = self._insert_items(row.number, items, parent_id)
        return [_shown_item(*each) for each in zip((item.item for item in items), parent_ids, strict=True)]

    def add_turns(self, turns: Sequence[ConversationTurn]) -> None:
        """Add the items of responses to their conversations, after the active items; the last item becomes active.

        The turn's `model` becomes the one that answered last. Call within a transaction, in the order of the answers.
        Turns of conversations that do not exist any more are skipped. An item whose id is taken or has a wrong form
        gets a new id.

        Raises:
            DatabaseFullError: there is no room, even without all other objects.
            sqlite3.Error: the database fails.
        """
        for turn in turns:
            row = self._find_row(turn.tenant, turn.conversation_id)
            if row is None:
                continue
            items = self._with_new_ids(row.number, turn.items)
            self._mark_used(row.number)
            self._file.make_room(size_of(items), len(items))
            self._db.execute("UPDATE conversations SET model = ? WHERE number = ?", (turn.model, row.number))
            self._insert_items(row.number, items, row.active_item)

    def list_items(self, tenant: str, conversation_id: str, query: ListQuery) -> Fields:
        """Return a page of the items of the active branch, each with `parent_id`, as a list object.

        The newest item comes first unless `query.is_ascending`. Does not count as a use.

        Raises:
            RoundhouseError: `conversation_not_found`; `invalid_request` if `query.after` is no item of the branch.
            sqlite3.Error: the database fails.
        """
        row = self._require_row(tenant, conversation_id)
        links = self._load_links(row.number, row.active_item)
        page = paginate_items([{"id": link.id} for link in links], query)
        page["data"] = [_shown_item(*self._load_item(row.number, entry["id"])) for entry in page["data"]]
        return page

    def find_item(self, tenant: str, conversation_id: str, item_id: str) -> Fields:
        """Return an item of any branch of a conversation, with `parent_id`. Does not count as a use.

        Blocks. Raises RoundhouseError `conversation_not_found` or `conversation_item_not_found`, or sqlite3.Error if
        the database fails.
        """
        row = self._require_row(tenant, conversation_id)
        found = self._find_item(row.number, item_id)
        if found is None:
            raise item_not_found(conversation_id, item_id)
        return _shown_item(*found)

    def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> StoredConversation:
        """Delete an item of any branch, and return its conversation, which counts as used now.

        Call within a transaction.

        Items that followed the deleted one then follow its parent. If it was the active item, its parent becomes that.
        Responses that were made after it are continued from its parent.

        Blocks. Raises RoundhouseError `conversation_not_found` or `conversation_item_not_found`, or sqlite3.Error if
        the database fails.
        """
        row = self._require_row(tenant, conversation_id)
        found = self._find_item(row.number, item_id)
        if found is None:
            raise item_not_found(conversation_id, item_id)
        self._mark_used(row.number)
        moved = (found[1], row.number, item_id)
        self._db.execute("DELETE FROM conversation_items WHERE conversation = ? AND id = ?", moved[1:])
        self._db.execute("UPDATE conversation_items SET parent_id = ? WHERE conversation = ? AND parent_id = ?", moved)
        self._db.execute("UPDATE conversations SET active_item = ? WHERE number = ? AND active_item = ?", moved)
        self._db.execute(
            "UPDATE responses SET conversation_item = ? WHERE conversation = ? AND conversation_item = ?",
            (found[1], conversation_id, item_id),
        )
        return row.conversation

    # For responses

    def load_active(self, tenant: str, conversation_id: str, bounds: HistoryBounds) -> ActiveBranch:
        """Load the active branch of a conversation that a response continues. Call within a transaction.

        The conversation counts as used now.

        Raises:
            RoundhouseError: `conversation_not_found`; `invalid_request` if the branch exceeds `bounds`.
            sqlite3.Error: the database fails.
        """
        row = self._find_row(tenant, conversation_id)
        if row is None:
            raise conversation_not_found(conversation_id, "conversation")
        self._mark_used(row.number)
        links = self._load_links(row.number, row.active_item)
        if _is_too_long(links, bounds):
            raise conversation_too_long(bounds.items, bounds.bytes, "conversation")
        return ActiveBranch(row.model, row.active_item, tuple(self._load_items(row.number, links)))

    def load_until(self, tenant: str, conversation_id: str, item_id: str | None) -> list[Fields] | None:
        """Return the items of the branch of a conversation that ends with `item_id`, oldest first.

        Empty if `item_id` is None. None: the conversation or the item is not there any more. Does not count as a use.
        Blocks; raises sqlite3.Error if the database fails.
        """
        row = self._find_row(tenant, conversation_id)
        links = [] if row is None else self._load_links(row.number, item_id)
        if row is None or (item_id is not None and not links):
            return None
        return self._load_items(row.number, links)

    def mark_used(self, tenant: str, conversation_id: str) -> None:
        """Count a conversation as used now. Call within a transaction.

        Does nothing if the tenant has no such conversation. Blocks; raises sqlite3.Error if the database fails.
        """
        row = self._find_row(tenant, conversation_id)
        if row is not None:
            self._mark_used(row.number)

    def find_referenced(self, tenant: str, item_id: str) -> tuple[bytes, str | None] | None:
        """Find an item in any conversation of a tenant; None: there is none with this id. Call within a transaction.

        Returns the item's JSON, and the name of the model that last answered in its conversation (None: none has). That
        conversation counts as used now. If several conversations have such an item, any one of them is taken. Blocks;
        raises sqlite3.Error if the database fails.
        """
        found = self._db.execute(_REFERENCED, (item_id, tenant, self._file.cutoff())).fetchone()
        if found is None:
            return None
        item, model, number = found
        self._mark_used(number)
        return item, model

    # Internal

    def _find_row(self, tenant: str, conversation_id: str) -> _Row | None:
        row = self._db.execute(_FIND, (conversation_id, tenant, self._file.cutoff())).fetchone()
        return None if row is None else _Row(*row)

    def _require_row(self, tenant: str, conversation_id: str) -> _Row:
        row = self._find_row(tenant, conversation_id)
        if row is None:
            raise conversation_not_found(conversation_id)
        return row

    def _mark_used(self, number: int) -> None:
        now = self._file.clock()
        self._db.execute("UPDATE conversations SET used_at = max(used_at, ?) WHERE number = ?", (now, number))

    def _load_links(self, number: int, last_id: str | None) -> list[_Link]:
        """Return the branch that ends with an item, oldest first; empty if the item is not there."""
        if last_id is None:
            return []
        return [_Link(*row) for row in self._db.execute(_BRANCH, {"number": number, "last": last_id})]

    def _find_item(self, number: int, item_id: str) -> tuple[bytes, str | None] | None:
        """Return the JSON of an item and the id of its parent; None: there is no such item."""
        found: tuple[bytes, str | None] | None = self._db.execute(_ITEM, (number, item_id)).fetchone()
        return found

    def _load_item(self, number: int, item_id: str) -> tuple[bytes, str | None]:
        found = self._find_item(number, item_id)
        assert found is not None, "a link of a branch is an item"
        return found

    def _load_items(self, number: int, links: Sequence[_Link]) -> list[Fields]:
        return [json.loads(self._load_item(number, link.id)[0]) for link in links]

    def _insert_items(self, number: int, items: Sequence[NewItem], parent_id: str | None) -> list[str | None]:
        """Write items one below the other. The last becomes the active item. Returns the id of each item's parent."""
        if not items:
            return []
        now = self._file.clock()
        parent_ids = [parent_id, *(item.id for item in items[:-1])]
        rows = [(number, item.id, parent, now, item.item) for item, parent in zip(items, parent_ids, strict=True)]
        self._file.run_with_rows(_INSERT_ITEMS, rows)
        self._db.execute("UPDATE conversations SET active_item = ? WHERE number = ?", (items[-1].id, number))
        return parent_ids

    def _with_new_ids(self, number: int, items: Sequence[NewItem]) -> list[NewItem]:
        """Return the items with a new id for each whose own is taken or has characters that ids must not have."""
        taken_ids: set[str] = set()
        fresh_items = []
        for item in items:
            fresh_item = item
            if not is_id(item.id) or item.id in taken_ids or self._find_item(number, item.id) is not None:
                new_id = f"item_{secrets.token_hex(TOKEN_LENGTH // 2)}"
                fresh_item = NewItem(new_id, json_bytes({**json.loads(item.item), "id": new_id}))
            taken_ids.add(fresh_item.id)
            fresh_items.append(fresh_item)
        return fresh_items


def _is_too_long(links: Sequence[_Link], bounds: HistoryBounds, more: Sequence[NewItem] = ()) -> bool:
    size = sum(link.bytes for link in links) + size_of(more)
    return len(links) + len(more) > bounds.items or size > bounds.bytes


def _shown_item(item: bytes, parent_id: str | None) -> Fields:
    return {**json.loads(item), "parent_id": parent_id}
