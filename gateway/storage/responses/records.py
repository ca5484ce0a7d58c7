"""What is stored of a response, and what a request may ask of it. Pure values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.storage.conversations.records import ConversationTurn

TOKEN_LENGTH: Final = 48
RUNNING: Final = frozenset({"queued", "in_progress"})
"""Status of a response that is not over."""
CONTINUABLE: Final = frozenset({"completed", "incomplete"})
"""Status of a response that another may continue: it has an answer, perhaps one that was cut."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response as it is written. Encoded where it is made, so that nobody changes it any more."""

    id: str
    tenant: str
    model: str
    """The model's own name."""
    created_at: float
    """Unix time in seconds."""
    previous_id: str | None
    status: str
    response: bytes
    """The response object as JSON, its `output` empty."""
    input: bytes
    """Its own input items, a JSON array."""
    output: bytes
    """Its `output`."""
    items: int
    """How many there are in both."""
    conversation_id: str | None = None
    """The conversation that it was made in."""
    conversation_item: str | None = None
    """The active item of that conversation when it was made; None: the conversation had no items."""
    turn: ConversationTurn | None = None
    """What it adds to that conversation, written with it or not at all."""
    events: bytes = b""
    """Its events (`EventLog.to_stored`); empty: none are kept."""

    @classmethod
    def of(
        cls,
        tenant: str,
        model: str,
        response: Fields,
        input_items: Sequence[Fields],
        conversation_item: str | None = None,
        turn: ConversationTurn | None = None,
        events: bytes = b"",
    ) -> StoredResponse:
        """What `response`, with this input of its own and these events, is stored as."""
        output = response["output"]
        conversation = response.get("conversation")
        return cls(
            id=response["id"],
            tenant=tenant,
            model=model,
            created_at=response["created_at"],
            previous_id=response.get("previous_response_id"),
            status=response["status"],
            response=json_bytes({**response, "output": []}),
            input=json_bytes(input_items),
            output=json_bytes(output),
            items=len(input_items) + len(output),
            conversation_id=None if conversation is None else conversation["id"],
            conversation_item=conversation_item,
            turn=turn,
            events=events,
        )

    @property
    def items_size(self) -> int:
        """Bytes of its items."""
        return len(self.input) + len(self.output)

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        turn_size = 0 if self.turn is None else self.turn.size
        return len(self.response) + self.items_size + turn_size + len(self.events)


class FoundResponse(NamedTuple):
    """A stored response, read."""

    model: str
    response: Fields


class History(NamedTuple):
    """What a request continues and refers to."""

    model: str | None = None
    """The own name of the model that made the response which is continued, or that answered last in the conversation
    which is; None: none is, or none has."""
    items: tuple[Fields, ...] = ()
    """Of the responses that it continues, input and output, or of the conversation, the oldest first."""
    referenced_items: Mapping[str, Fields] = {}
    """Those of the items referred to that there are, by their id."""
    referred_models: Mapping[str, str] = {}
    """By such an id the own name of the model whose response it belongs to, or that answered last in the item's
    conversation; without those of conversations in which none has."""
    conversation_item: str | None = None
    """The id of the last of `items`, where they are a conversation's."""


class HistoryBounds(NamedTuple):
    """What one conversation may come to."""

    bytes: int
    """JSON of its items."""
    items: int = 10_000
    responses: int = 2_000


class StoredTotals(NamedTuple):
    """How much is stored."""

    responses: int = 0
    bytes: int = 0
    """Of the database, without what is free in it."""
    completions: int = 0
    conversations: int = 0


def id_of(token: str) -> str:
    """Of a response whose ids are made with this token, which has `TOKEN_LENGTH` letters and cannot be guessed."""
    return f"resp_{token}"


def item_ids(token: str) -> Callable[[str], str]:
    """Makes ids for the items of that response, by their prefix. They tell where an item is stored."""
    numbers = itertools.count()
    return lambda prefix: f"{prefix}_{token}{next(numbers):04x}"


def response_of(item_id: str) -> str | None:
    """The id of the response that an item of this id would belong to."""
    token_and_number = item_id.rpartition("_")[2]
    return id_of(token_and_number[:TOKEN_LENGTH]) if len(token_and_number) > TOKEN_LENGTH else None
