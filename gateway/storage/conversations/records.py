"""Stored conversations and their items, as values. Pure.

The items of a conversation form a tree: each has the id of its parent, the item before it, or None if it is a first
one. The active branch leads from a first item to the conversation's active item. OpenAI's routes show that branch, and
a response continues it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes


class StoredConversation(NamedTuple):
    """A stored conversation, without its items."""

    id: str
    created_at: float
    """Unix time in seconds."""
    metadata: Mapping[str, str]
    model: str | None
    """Own name of the model that last answered in the conversation; None: none has."""

    @property
    def fields(self) -> Fields:
        """OpenAI's conversation object: `id`, `object`, `created_at` in whole seconds, `metadata`."""
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": int(self.created_at),
            "metadata": dict(self.metadata),
        }


class NewItem(NamedTuple):
    """An item to be written. It holds JSON that is encoded already, so that later changes of the item have no effect.
    Made by `encode_items`."""

    id: str
    item: bytes
    """JSON of the item with its id."""


class BranchStart(NamedTuple):
    """Where added items begin a new branch, instead of continuing the active one."""

    parent_id: str | None
    """Id of the item below which they are added; None: they begin a branch of their own at the root."""


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """The items that a response adds to the conversation that it was made in: its input and its output."""

    id: str
    """The response's id."""
    conversation_id: str
    tenant: str
    model: str
    """Own name of the model that answered."""
    items: tuple[NewItem, ...]

    @property
    def size(self) -> int:
        """Bytes of the items."""
        return size_of(self.items)


class ActiveBranch(NamedTuple):
    """The active branch of a conversation, which a response continues."""

    model: str | None
    """Own name of the model that last answered in the conversation; None: none has."""
    active_item: str | None
    """Id of the last item; None: there are no items."""
    items: tuple[Fields, ...]
    """The items, oldest first."""


def encode_items(items: Sequence[Fields]) -> tuple[NewItem, ...]:
    """Encode items, each of which has an `id`, to be written.

    Raises:
        RecursionError: an item is nested too deeply.
    """
    return tuple([NewItem(item["id"], json_bytes(item)) for item in items])


def size_of(items: Sequence[NewItem]) -> int:
    """Return the bytes of the items' JSON."""
    return sum(len(item.item) for item in items)
