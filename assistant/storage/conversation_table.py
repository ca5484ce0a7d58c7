"""Queries of the tables of conversations, their lists and searches. All wait for the disk, and may raise sqlite3.Error.

Call methods that write within a transaction. `RoundhouseError` without a code means `conversation_not_found` or
`conversation_item_not_found`.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from assistant.storage.conversation_records import (
    ACTIVE_BRANCH,
    Branch,
    BranchSize,
    ConversationChange,
    ConversationTurn,
    FoundConversation,
    ItemListForm,
    Link,
    NewItem,
    StoredConversation,
    conversation_not_found,
    conversation_too_long,
    duplicate_item,
    find_hit,
    find_outer_parents,
    fold_text,
    item_not_found,
    longest_branch,
    measure_branches,
    parents_of,
    size_of,
    text_of,
)
from assistant.storage.pagination import ListQuery, paginate_items, unknown_cursor
from assistant.storage.records import PARENT_PLACE, HistoryBounds, is_id, too_long
from assistant.storage.table_file import TableFile
from common.sqlite_files import insert_rows
from gateway.exchange.plain_responses import TOKEN_LENGTH
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.responses.items import BranchStart

COLUMNS: Final = "number, id, created_at, used_at, metadata, model, active_item, settings"
"""The columns of a `ConversationRow`, in its order, for SQL."""


class ConversationRow(NamedTuple):
    """A row of the table `conversations`: metadata and settings are JSON, times Unix seconds, `model` None until one
    has answered, `active_item` None where no item is active."""

    number: int
    id: str
    created_at: float
    used_at: float
    metadata: bytes
    model: str | None
    active_item: str | None
    settings: bytes | None


def load_conversation(db: sqlite3.Connection, row: ConversationRow) -> StoredConversation:
    """Return the conversation of a row, whose items are counted now. Blocks; may raise sqlite3.Error."""
    statement = "SELECT count(*) FROM conversation_items WHERE conversation = ?"
    [item_count] = db.execute(statement, (row.number,)).fetchone()
    return StoredConversation(
        id=row.id,
        created_at=row.created_at,
        metadata=json.loads(row.metadata),
        model=row.model,
        used_at=row.used_at,
        active_item=row.active_item,
        item_count=item_count,
        settings=row.settings,
    )


SLICE_S: Final = 0.01
"""Seconds after which a search pauses, so that other work of the database's thread is not kept waiting."""
TITLE: Final = "title"
"""The name in `metadata` under which clients keep a conversation's title."""

_LIST: Final = f"SELECT {COLUMNS} FROM conversations WHERE tenant = ? AND used_at >= ?"  # noqa: S608 - ours
_AFTER: Final = " AND (used_at, number) {} (?, ?)"
_POSITION: Final = "SELECT used_at, number, model FROM conversations WHERE id = ? AND tenant = ? AND used_at >= ?"
# `max` makes SQLite take the other columns from the same row: the newest item that has all words.
_SEARCH: Final = """
SELECT coalesce(o.item, i.item), i.id, max(i.number)
FROM conversation_items AS i JOIN item_outlines AS o ON o.number = i.number
WHERE i.conversation = ?
"""
_HAS_WORD: Final = " AND instr(o.text, ?)"


class ListPosition(NamedTuple):
    """Where a list of conversations goes on: after the conversation with these values."""

    used_at: float
    number: int


class ConversationSearch(NamedTuple):
    """The conversations that a list has, all of them or those with certain words, and their order."""

    words: tuple[bytes, ...] = ()
    """Folded words (`fold_words`) that the title, or the text of one item, must have, all of them. Empty: every
    conversation is listed."""
    is_ascending: bool = False
    """Whether the conversation that was used longest ago comes first, and not the one used last."""


class ListPart(NamedTuple):
    """The conversations that one job of the database found, and where the next job goes on: a long search is done in
    several jobs."""

    found: list[FoundConversation]
    position: ListPosition | None
    """Where to go on; None: there are no further conversations."""


class ConversationListing:
    """Lists the conversations of a tenant by their last use. Used in the store's thread; all methods only read.

    Methods do not find conversations of other tenants, nor expired ones, and do not count as a use.
    """

    def __init__(self, file: TableFile) -> None:
        self._file = file
        self._db = file.db

    def find_position(
        self, tenant: str, conversation_id: str, is_visible: Callable[[str | None], bool]
    ) -> ListPosition:
        """Return the position of a conversation in lists. `is_visible`: whether to list the conversations in which a
        model answered last, by its own name; None: none has answered.

        Raises:
            RoundhouseError: `invalid_request` if the tenant has no such conversation that is visible.
            sqlite3.Error: the database fails.
        """
        row = self._db.execute(_POSITION, (conversation_id, tenant, self._file.cutoff())).fetchone()
        if row is None or not is_visible(row[2]):
            raise unknown_cursor(conversation_id)
        return ListPosition(row[0], row[1])

    def list_part(
        self,
        tenant: str,
        search: ConversationSearch,
        position: ListPosition | None,
        count: int,
        is_visible: Callable[[str | None], bool],
    ) -> ListPart:
        """Return at most `count` conversations after a position (None: from the beginning of the list).

        There may be fewer, even none, though more follow: a search pauses after `SLICE_S`. `is_visible`: as in
        `find_position`. Blocks; raises sqlite3.Error if the database fails.
        """
        statement = _LIST
        values: list[object] = [tenant, self._file.cutoff()]
        if position is not None:
            statement += _AFTER.format(">" if search.is_ascending else "<")
            values += position
        order = "ASC" if search.is_ascending else "DESC"
        rows = self._db.execute(f"{statement} ORDER BY used_at {order}, number {order}", values)
        pause_at = time.monotonic() + SLICE_S
        found: list[FoundConversation] = []
        for values_of_row in rows:
            row = ConversationRow(*values_of_row)
            if is_visible(row.model):
                match = self._match(row, search.words)
                found += [] if match is None else [match]
            if len(found) == count or time.monotonic() >= pause_at:
                return ListPart(found, ListPosition(row.used_at, row.number))
        return ListPart(found, None)

    def _match(self, row: ConversationRow, words: tuple[bytes, ...]) -> FoundConversation | None:
        """Return the conversation with the hit in its title, or else in the newest of its items; None: no hit."""
        if not words:
            return FoundConversation(load_conversation(self._db, row))
        hit, item_id = find_hit(json.loads(row.metadata).get(TITLE, ""), words), None
        if hit is None:
            item, item_id, _ = self._db.execute(_SEARCH + _HAS_WORD * len(words), (row.number, *words)).fetchone()
            hit = None if item is None else find_hit(text_of(json.loads(item)), words)
        return None if hit is None else FoundConversation(load_conversation(self._db, row), item_id, hit)


_ItemRow: TypeAlias = tuple[bytes, str | None, bytes | None]
"""JSON of an item, the id of its parent, and JSON of how a response made it (None: a client added it)."""
_ROWS_APART: Final = 16
"""Rows that are counted as if each needed pages of its own."""

_FIND: Final = f"SELECT {COLUMNS} FROM conversations WHERE id = ? AND tenant = ? AND used_at >= ?"  # noqa: S608 - ours
_BRANCH: Final = """
WITH RECURSIVE branch (id, parent_id, bytes, depth) AS (
    SELECT id, parent_id, length(item), 1 FROM conversation_items WHERE conversation = :number AND id = :last
    UNION ALL
    SELECT i.id, i.parent_id, length(i.item), depth + 1
    FROM branch JOIN conversation_items AS i ON i.conversation = :number AND i.id = branch.parent_id
)
SELECT id, parent_id, bytes FROM branch ORDER BY depth DESC
"""
_TREE: Final = "SELECT id, parent_id, length(item) FROM conversation_items WHERE conversation = ? ORDER BY number"
_ITEM: Final = "SELECT item, parent_id, answer FROM conversation_items WHERE conversation = ? AND id = ?"
_INSERT: Final = """
INSERT INTO conversations (id, tenant, created_at, used_at, metadata, settings) VALUES (?, ?, ?, ?, ?, ?)
"""
_INSERT_ITEMS: Final = """
INSERT INTO conversation_items (number, conversation, id, parent_id, created_at, item, answer)
"""
_INSERT_OUTLINES: Final = "INSERT INTO item_outlines (number, text, item)"
_TAKEN: Final = "SELECT id FROM conversation_items WHERE conversation = ? AND id IN ({})"
_OUTLINED: Final = """
SELECT coalesce(o.item, i.item), parent_id, answer
FROM conversation_items AS i LEFT JOIN item_outlines AS o USING (number)
WHERE conversation = ? AND id = ?
"""
_REFERENCED: Final = """
SELECT i.item, c.model, c.number FROM conversation_items AS i JOIN conversations AS c ON c.number = i.conversation
WHERE i.id = ? AND c.tenant = ? AND c.used_at >= ?
"""


_NOTHING: Final = BranchSize(0, 0)


class ConversationTable:
    """The conversations of all tenants in the database. Used in the store's thread.

    Methods do not find conversations of other tenants, nor expired ones. All may raise sqlite3.Error. Call those that
    write, or count a conversation as used, within a transaction.
    """

    def __init__(self, file: TableFile) -> None:
        self._file = file
        self._db = file.db
        self._next_item = file.find_next_number("conversation_items")

    def create(
        self,
        tenant: str,
        conversation_id: str,
        metadata: Mapping[str, str],
        items: Sequence[NewItem],
        settings: bytes | None = None,
        bounds: HistoryBounds | None = None,
    ) -> StoredConversation:
        """Write a new conversation with its first items. The last one becomes the active item.

        An item without a place of its own follows the one before it. `items` may be empty. `settings`: a JSON object;
        None: none. `bounds`: limits of each branch; None: no limits. Call within a transaction.

        Raises:
            RoundhouseError: `conversation_item_not_found` for a parent that is no earlier item; `invalid_request` if a
                branch would exceed `bounds`.
            DatabaseFullError: there is no room, even without all other objects.
            sqlite3.IntegrityError: the conversation's id exists, or two items have the same id.
            sqlite3.Error: the database fails.
        """
        now = self._file.clock()
        encoded_metadata = json_bytes(metadata)
        size = size_of(items) + len(encoded_metadata) + len(settings or b"")
        self._file.make_room(size, 1 + _rows_of(items))
        row = (conversation_id, tenant, now, now, encoded_metadata, settings)
        number = self._db.execute(_INSERT, row).lastrowid
        assert number is not None
        parent_ids = self._place_items(number, conversation_id, items, None, bounds)
        self._insert_items(number, items, parent_ids)
        return load_conversation(self._db, self._require_row(tenant, conversation_id))

    def find(self, tenant: str, conversation_id: str) -> StoredConversation | None:
        """Return a tenant's conversation; None: the tenant has no conversation with this id.

        Does not count as a use. Blocks; raises sqlite3.Error if the database fails.
        """
        row = self._find_row(tenant, conversation_id)
        return None if row is None else load_conversation(self._db, row)

    def update(self, tenant: str, conversation_id: str, change: ConversationChange) -> StoredConversation:
        """Change what `change` names, and return the conversation as it is then. It counts as used now.

        Call within a transaction.

        Raises:
            RoundhouseError: `conversation_not_found`; `conversation_item_not_found` for the item to be active.
            DatabaseFullError: there is no room, even without all other objects.
            sqlite3.Error: the database fails.
        """
        row = self._require_row(tenant, conversation_id)
        self._mark_used(row.number)
        columns: dict[str, bytes | str | None] = {}
        if change.metadata is not None:
            columns["metadata"] = json_bytes(change.metadata)
        if change.settings is not None:
            columns["settings"] = change.settings.settings
            self._file.make_room(len(change.settings.settings or b""), 1)
        if change.active_item is not None:
            item_id = columns["active_item"] = change.active_item.item_id
            if item_id is not None and self._find_item(row.number, item_id) is None:
                raise item_not_found(conversation_id, item_id, "active_item_id")
        for column, value in columns.items():
            statement = f"UPDATE conversations SET {column} = ? WHERE number = ?"  # noqa: S608 - ours
            self._db.execute(statement, (value, row.number))
        return load_conversation(self._db, self._require_row(tenant, conversation_id))

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
        """Add items. The last one becomes the active item. Call within a transaction.

        An item without a place of its own follows the one before it, the first one follows the item that `start` names,
        or the active item if `start` is None. Returns the items as clients see them, with `parent_id`. The conversation
        counts as used now. `bounds`: limits of each branch through a new item.

        Raises:
            RoundhouseError: `conversation_not_found`; `conversation_item_not_found` for a parent that is neither stored
                nor an earlier one of these items; `invalid_request` if an item's id exists in the conversation, or a
                branch would exceed `bounds`.
            DatabaseFullError: there is no room, even without all other objects.
            sqlite3.Error: the database fails.
        """
        row = self._require_row(tenant, conversation_id)
        first_parent = row.active_item if start is None else start.parent_id
        if first_parent is not None and self._find_item(row.number, first_parent) is None:
            raise item_not_found(conversation_id, first_parent, "parent_id")
        parent_ids = self._place_items(row.number, conversation_id, items, first_parent, bounds)
        self._require_new(row.number, items)
        self._mark_used(row.number)
        self._file.make_room(size_of(items), _rows_of(items))
        self._insert_items(row.number, items, parent_ids)
        return [_shown_item(*each) for each in zip((item.item for item in items), parent_ids, strict=True)]

    def add_turns(self, turns: Sequence[ConversationTurn]) -> None:
        """Add the items of responses to their conversations, each after the item that its turn names, or else the
        active one.

        The last item becomes active, unless the turn names another item than the active one. The turn's `model` becomes
        the one that answered last. Call within a transaction, in the order of the answers. Turns of conversations that
        do not exist any more are skipped. An item whose id is taken or has a wrong form gets a new id.

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
            self._file.make_room(size_of(items), _rows_of(items))
            self._db.execute("UPDATE conversations SET model = ? WHERE number = ?", (turn.model, row.number))
            parent = row.active_item if turn.start is None else turn.start.parent_id
            self._insert_items(row.number, items, parents_of(items, parent), moves_end=parent == row.active_item)
            turn.written[:] = [each.id for each in items]

    def list_items(
        self, tenant: str, conversation_id: str, query: ListQuery, form: ItemListForm = ACTIVE_BRANCH
    ) -> Fields:
        """Return a page of the items of the active branch or of all branches, each with `parent_id`, as a list object.

        The newest item comes first unless `query.is_ascending`; items of all branches are in the order in which they
        were added. Does not count as a use.

        Raises:
            RoundhouseError: `conversation_not_found`; `invalid_request` if `query.after` is no item of the list.
            sqlite3.Error: the database fails.
        """
        row = self._require_row(tenant, conversation_id)
        has_all = form.has_all_branches
        links = self._load_tree(row.number) if has_all else self._load_links(row.number, row.active_item)
        page = paginate_items([{"id": link.id} for link in links], query)
        statement = _OUTLINED if form.omits_media else _ITEM
        shown_rows = (self._db.execute(statement, (row.number, entry["id"])).fetchone() for entry in page["data"])
        page["data"] = [_shown_item(*each) for each in shown_rows]
        return page

    def find_item(self, tenant: str, conversation_id: str, item_id: str) -> Fields:
        """Return an item of any branch of a conversation, with `parent_id`. Does not count as a use.

        Blocks. Raises RoundhouseError `conversation_not_found` or `conversation_item_not_found`, or sqlite3.Error if
        the database fails.
        """
        _, found = self._require_item(tenant, conversation_id, item_id)
        return _shown_item(*found)

    def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> StoredConversation:
        """Delete an item of any branch, and return its conversation, which counts as used now.

        Call within a transaction.

        Items that followed the deleted one then follow its parent. If it was the active item, its parent becomes that.
        Responses that were made after it are continued from its parent.

        Blocks. Raises RoundhouseError `conversation_not_found` or `conversation_item_not_found`, or sqlite3.Error if
        the database fails.
        """
        row, found = self._require_item(tenant, conversation_id, item_id)
        self._mark_used(row.number)
        moved = (found[1], row.number, item_id)
        self._db.execute("DELETE FROM conversation_items WHERE conversation = ? AND id = ?", moved[1:])
        self._db.execute("UPDATE conversation_items SET parent_id = ? WHERE conversation = ? AND parent_id = ?", moved)
        self._db.execute("UPDATE conversations SET active_item = ? WHERE number = ? AND active_item = ?", moved)
        self._db.execute(
            "UPDATE responses SET conversation_item = ? WHERE conversation = ? AND conversation_item = ?",
            (found[1], conversation_id, item_id),
        )
        return load_conversation(self._db, self._require_row(tenant, conversation_id))

    # For responses

    def load_branch(
        self, tenant: str, conversation_id: str, start: BranchStart | None, bounds: HistoryBounds
    ) -> Branch:
        """Load the branch of a conversation that a response continues. Call within a transaction.

        It ends with the item that `start` names; None: it is the active branch. The conversation counts as used now.

        Raises:
            RoundhouseError: `conversation_not_found`; `conversation_item_not_found` for the item of `start`;
                `invalid_request` if the branch exceeds `bounds`.
            sqlite3.Error: the database fails.
        """
        row = self._find_row(tenant, conversation_id)
        if row is None:
            raise conversation_not_found(conversation_id, "conversation")
        self._mark_used(row.number)
        last_id = row.active_item if start is None else start.parent_id
        links = self._load_links(row.number, last_id)
        if start is not None and last_id is not None and not links:
            raise item_not_found(conversation_id, last_id, PARENT_PLACE)
        size = _measure(links)
        if size.items > bounds.items or size.bytes > bounds.bytes:
            raise conversation_too_long(bounds.items, bounds.bytes, "conversation")
        return Branch(row.model, last_id, tuple(self._load_items(row.number, links)), size.bytes)

    def load_until(
        self,
        tenant: str,
        conversation_id: str,
        item_id: str | None,
        bounds: HistoryBounds | None = None,
        after: BranchSize = _NOTHING,
    ) -> Branch | None:
        """Return the branch of a conversation that ends with `item_id`; None: the conversation or the item is not there
        any more. It has no items if `item_id` is None.

        `after`: size of the responses that continue the branch. Does not count as a use. Blocks.

        Raises:
            RoundhouseError: `invalid_request` if the branch with what continues it exceeds `bounds`.
            sqlite3.Error: the database fails.
        """
        row = self._find_row(tenant, conversation_id)
        links = [] if row is None else self._load_links(row.number, item_id)
        if row is None or (item_id is not None and not links):
            return None
        size = _measure(links)
        if bounds is not None and (size.items + after.items > bounds.items or size.bytes + after.bytes > bounds.bytes):
            raise too_long(bounds, "previous_response_id")
        return Branch(row.model, item_id, tuple(self._load_items(row.number, links)), size.bytes)

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

    def _find_row(self, tenant: str, conversation_id: str) -> ConversationRow | None:
        row = self._db.execute(_FIND, (conversation_id, tenant, self._file.cutoff())).fetchone()
        return None if row is None else ConversationRow(*row)

    def _require_row(self, tenant: str, conversation_id: str) -> ConversationRow:
        row = self._find_row(tenant, conversation_id)
        if row is None:
            raise conversation_not_found(conversation_id)
        return row

    def _mark_used(self, number: int) -> None:
        now = self._file.clock()
        self._db.execute("UPDATE conversations SET used_at = max(used_at, ?) WHERE number = ?", (now, number))

    def _load_tree(self, number: int) -> list[Link]:
        """Return all items of a conversation, in the order in which they were added."""
        return [Link(*row) for row in self._db.execute(_TREE, (number,))]

    def _load_links(self, number: int, last_id: str | None) -> list[Link]:
        """Return the branch that ends with an item, oldest first; empty if the item is not there."""
        if last_id is None:
            return []
        return [Link(*row) for row in self._db.execute(_BRANCH, {"number": number, "last": last_id})]

    def _find_item(self, number: int, item_id: str) -> _ItemRow | None:
        """Return an item of a conversation; None: there is no such item."""
        found: _ItemRow | None = self._db.execute(_ITEM, (number, item_id)).fetchone()
        return found

    def _require_item(self, tenant: str, conversation_id: str, item_id: str) -> tuple[ConversationRow, _ItemRow]:
        row = self._require_row(tenant, conversation_id)
        found = self._find_item(row.number, item_id)
        if found is None:
            raise item_not_found(conversation_id, item_id)
        return row, found

    def _load_item(self, number: int, item_id: str) -> _ItemRow:
        found = self._find_item(number, item_id)
        assert found is not None, "a link of a branch is an item"
        return found

    def _load_items(self, number: int, links: Sequence[Link]) -> list[Fields]:
        return [json.loads(self._load_item(number, link.id)[0]) for link in links]

    def _place_items(
        self,
        number: int,
        conversation_id: str,
        items: Sequence[NewItem],
        first_parent: str | None,
        bounds: HistoryBounds | None,
    ) -> list[str | None]:
        """Return the ids of the new items' parents. Raises RoundhouseError if a parent is missing, or for a branch
        beyond `bounds`."""
        parent_ids = parents_of(items, first_parent)
        outer_parents = find_outer_parents(items, parent_ids)
        if len(outer_parents) > 1:
            links = self._load_tree(number)
        else:
            links = self._load_links(number, next(iter(outer_parents), None))
        outer_sizes = measure_branches(links, outer_parents)
        for item_id, place in outer_parents.items():
            if item_id not in outer_sizes:
                raise item_not_found(conversation_id, item_id, place)
        longest = longest_branch(items, parent_ids, outer_sizes)
        if bounds is not None and (longest.items > bounds.items or longest.bytes > bounds.bytes):
            raise conversation_too_long(bounds.items, bounds.bytes, "items")
        return parent_ids

    def _require_new(self, number: int, items: Sequence[NewItem]) -> None:
        """Raise RoundhouseError `invalid_request` if the conversation has an item with the id of a new one."""
        statement = _TAKEN.format(", ".join("?" * len(items)))
        taken_ids = {item_id for [item_id] in self._db.execute(statement, (number, *(item.id for item in items)))}
        for index, item in enumerate(items):
            if item.id in taken_ids:
                raise duplicate_item(item.id, f"items[{index}].id")

    def _insert_items(
        self, number: int, items: Sequence[NewItem], parent_ids: Sequence[str | None], *, moves_end: bool = True
    ) -> None:
        """Write items below their parents. `moves_end`: whether the last one becomes the active item."""
        if not items:
            return
        now, first_number = self._file.clock(), self._next_item
        self._next_item += len(items)
        rows, outlines = [], []
        for item_number, (item, parent_id) in enumerate(zip(items, parent_ids, strict=True), first_number):
            rows.append((item_number, number, item.id, parent_id, now, item.item, item.answer))
            outlines.append((item_number, fold_text(item.text), item.outline))
        insert_rows(self._db, _INSERT_ITEMS, rows)
        insert_rows(self._db, _INSERT_OUTLINES, outlines)
        if moves_end:
            self._db.execute("UPDATE conversations SET active_item = ? WHERE number = ?", (items[-1].id, number))

    def _with_new_ids(self, number: int, items: Sequence[NewItem]) -> list[NewItem]:
        """Return the items with a new id for each whose own is taken or has characters that ids must not have."""
        taken_ids: set[str] = set()
        fresh_items = []
        for item in items:
            fresh_item = item
            if not is_id(item.id) or item.id in taken_ids or self._find_item(number, item.id) is not None:
                new_id = f"item_{secrets.token_hex(TOKEN_LENGTH // 2)}"
                fresh_item = _with_id(item, new_id)
            taken_ids.add(fresh_item.id)
            fresh_items.append(fresh_item)
        return fresh_items


def _measure(links: Sequence[Link]) -> BranchSize:
    return BranchSize(len(links), sum(link.bytes for link in links))


def _rows_of(items: Sequence[NewItem]) -> int:
    """Return for how many rows to make room: many items at once share the pages of the tables and indexes."""
    return min(len(items), _ROWS_APART) + max(0, len(items) - _ROWS_APART) // 4


def _with_id(item: NewItem, new_id: str) -> NewItem:
    outline = item.outline
    return item._replace(
        id=new_id,
        item=json_bytes({**json.loads(item.item), "id": new_id}),
        outline=None if outline is None else json_bytes({**json.loads(outline), "id": new_id}),
    )


def _shown_item(item: bytes, parent_id: str | None, answer: bytes | None = None) -> Fields:
    shown = {**json.loads(item), "parent_id": parent_id}
    return shown if answer is None else {**shown, "answer": json.loads(answer)}
