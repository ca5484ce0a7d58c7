"""Rows of the table of conversations. Functions wait for the disk, and may raise sqlite3.Error."""

from __future__ import annotations

import json
import sqlite3
from typing import Final, NamedTuple

from gateway.storage.conversations.records import StoredConversation

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
