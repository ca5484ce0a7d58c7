"""Lists of conversations, and the search in them. Functions wait for the disk, and may raise sqlite3.Error."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.storage.conversations.item_outline import find_hit, text_of
from gateway.storage.conversations.records import FoundConversation
from gateway.storage.conversations.rows import COLUMNS, ConversationRow, load_conversation
from gateway.storage.pagination import unknown_cursor
from gateway.storage.table_file import TableFile

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
    """The conversations that a list has, and their order."""

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
