"""Stored conversations and their items, as values. Pure.

The items of a conversation form a tree: each has the id of its parent, the item before it, or None if it is a first
one. The active branch leads from a first item to the conversation's active item. OpenAI's routes show that branch, and
a response continues it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.responses.conversation_items import AddedItem, BranchStart
from gateway.storage.conversations.item_outline import Hit, text_of, without_media


class StoredConversation(NamedTuple):
    """A stored conversation, without its items."""

    id: str
    created_at: float
    """Unix time in seconds."""
    metadata: Mapping[str, str]
    model: str | None
    """Own name of the model that last answered in the conversation; None: none has."""
    used_at: float
    """When it was last continued or changed, as Unix time in seconds."""
    active_item: str | None
    """Id of the active item; None: none is active."""
    item_count: int
    """Number of its items, of all branches."""
    settings: bytes | None
    """JSON object that clients keep with it; None: there is none."""

    @property
    def fields(self) -> Fields:
        """OpenAI's conversation object (`id`, `object`, `created_at` in whole seconds, `metadata`), and ours:
        `last_used_at` in whole seconds, `active_item_id`, `item_count`, `model`, `settings`."""
        return {**self.listed_fields, "settings": None if self.settings is None else json.loads(self.settings)}

    @property
    def listed_fields(self) -> Fields:
        """The fields without `settings`, as a list of conversations shows them."""
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": int(self.created_at),
            "last_used_at": int(self.used_at),
            "metadata": dict(self.metadata),
            "model": self.model,
            "item_count": self.item_count,
            "active_item_id": self.active_item,
        }


class FoundConversation(NamedTuple):
    """A conversation of a list, and where a search found what it looked for."""

    conversation: StoredConversation
    item_id: str | None = None
    """Id of the item that the search found; None: it found the title, or nothing was searched for."""
    hit: Hit | None = None
    """None: nothing was searched for."""

    @property
    def fields(self) -> Fields:
        """The conversation as a list shows it; after a search with `hit`: `item_id`, `before`, `match`, `after`."""
        fields = self.conversation.listed_fields
        return fields if self.hit is None else {**fields, "hit": {"item_id": self.item_id, **self.hit._asdict()}}


class NewSettings(NamedTuple):
    """Settings that replace those of a conversation."""

    settings: bytes | None
    """A JSON object; None removes the settings."""


class BranchEnd(NamedTuple):
    """A request to move the end of a conversation's active branch to an item."""

    item_id: str | None
    """None: no item is active, so that the next one begins a branch at the root."""


class ConversationChange(NamedTuple):
    """New metadata, settings and active item of a conversation, as a request gives them. None: that part stays as it
    is."""

    metadata: Mapping[str, str] | None = None
    settings: NewSettings | None = None
    active_item: BranchEnd | None = None


class ItemListForm(NamedTuple):
    """Which items of a conversation a list has, and whether they are shown with their media."""

    has_all_branches: bool = False
    """Whether it has the items of all branches, and not of the active one alone."""
    omits_media: bool = False
    """Whether items are shown without their media (`without_media`)."""


ACTIVE_BRANCH: Final = ItemListForm()
"""The list that OpenAI's API has."""


class NewItem(NamedTuple):
    """An item to be written. It holds JSON that is encoded already, so that later changes of the item have no effect.
    Made by `encode_items`."""

    id: str
    item: bytes
    """JSON of the item with its id."""
    text: str = ""
    """What a search finds in it."""
    outline: bytes | None = None
    """JSON of the item without its media (`without_media`); None: it has none."""
    start: BranchStart | None = None
    """Where it begins a branch; None: it follows the item before it."""
    answer: bytes | None = None
    """JSON of how a response made it (`AnswerTimes.describe_items`); None: a client added it."""


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
    start: BranchStart | None = None
    """The item that they follow, by the request; None: they continue the active branch."""

    @property
    def size(self) -> int:
        """Bytes of the items."""
        return size_of(self.items)


class Branch(NamedTuple):
    """The branch of a conversation that a response continues."""

    model: str | None
    """Own name of the model that last answered in the conversation; None: none has."""
    last_item: str | None
    """Id of the last item; None: there are no items."""
    items: tuple[Fields, ...]
    """The items, oldest first."""


def encode_items(items: Sequence[Fields], answers: Sequence[Fields] = ()) -> tuple[NewItem, ...]:
    """Encode items, each of which has an `id`, to be written one below the other.

    `answers`: how a response made each of them, as clients see it; empty: no response did.

    Raises:
        RecursionError: an item is nested too deeply.
    """
    encoded = [_encode(item) for item in items]
    if answers:
        pairs = zip(encoded, answers, strict=True)
        encoded = [item._replace(answer=json_bytes(answer)) for item, answer in pairs]
    return tuple(encoded)


def encode_added_items(items: Sequence[AddedItem]) -> tuple[NewItem, ...]:
    """Encode items of a client, to be written where each of them says. Raises RecursionError as `encode_items`."""
    return tuple([_encode(added.item)._replace(start=added.start) for added in items])


def size_of(items: Sequence[NewItem]) -> int:
    """Return the bytes that the items take in the database, without those of its indexes."""
    return sum(len(each.item) + len(each.text) + len(each.outline or b"") + len(each.answer or b"") for each in items)


def _encode(item: Fields) -> NewItem:
    outline: Any = without_media(item)
    return NewItem(item["id"], json_bytes(item), text_of(item), None if outline is None else json_bytes(outline))
