"""What is stored of a conversation. Pure values.

The items of a conversation are a tree: each has the id of its parent, the item that was said before it, or None where
it is the first. The active branch leads from the first item to the conversation's active item; OpenAI's routes show
that branch, and a response continues it.
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
    """The own name of the model that answered last in it; None: none has."""

    @property
    def fields(self) -> Fields:
        """The conversation object."""
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": int(self.created_at),
            "metadata": dict(self.metadata),
        }


class NewItem(NamedTuple):
    """One item as it is written. Encoded where it is made, so that nobody changes it any more."""

    id: str
    item: bytes
    """JSON of the item with its id."""


class BranchStart(NamedTuple):
    """The item below which others are added, where that is not the active item."""

    parent_id: str | None
    """None: they begin the conversation anew."""


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """What a response adds to the conversation that it was made in: its input and its output."""

    id: str
    """Of the response."""
    conversation_id: str
    tenant: str
    model: str
    """The own name of the model that answered."""
    items: tuple[NewItem, ...]

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return size_of(self.items)


class ActiveBranch(NamedTuple):
    """What a response continues."""

    model: str | None
    """The own name of the model that answered last in the conversation; None: none has."""
    active_item: str | None
    """The id of the last item; None: there is none."""
    items: tuple[Fields, ...]
    """The oldest first."""


def encode_items(items: Sequence[Fields]) -> tuple[NewItem, ...]:
    """Items as they are written; each has an id. Raises RecursionError: one is nested too deeply."""
    return tuple([NewItem(item["id"], json_bytes(item)) for item in items])


def size_of(items: Sequence[NewItem]) -> int:
    """Bytes of items."""
    return sum(len(item.item) for item in items)
