"""Stored responses, and the history that a request continues, as values. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.storage.conversations.records import ConversationTurn

TOKEN_LENGTH: Final = 48
"""Letters of the random part of ids."""
RUNNING: Final = frozenset({"queued", "in_progress"})
"""Statuses of a response that is being made."""
CONTINUABLE: Final = frozenset({"completed", "incomplete"})
"""Statuses of a response that another may continue: it has an answer, perhaps a truncated one."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response to be written, made by `of`. It holds JSON that is encoded already, so that later changes of the
    response have no effect."""

    id: str
    tenant: str
    model: str
    """The model's own name."""
    created_at: float
    """Unix time in seconds."""
    previous_id: str | None
    """Id of the response that it continues; None: it continues none."""
    status: str
    response: bytes
    """The response object as JSON, with an empty `output`."""
    input: bytes
    """Its own input items, a JSON array."""
    output: bytes
    """Its `output`, a JSON array."""
    items: int
    """Number of items in `input` and `output`."""
    conversation_id: str | None = None
    """The conversation that it was made in; None: none."""
    conversation_item: str | None = None
    """The item of that conversation that the response follows; None: it follows none."""
    turn: ConversationTurn | None = None
    """Items that it adds to the conversation; both are written, or neither."""
    events: bytes = b""
    """Its events (`EventLog.to_stored`); empty: none are stored."""

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
        """Encode a response object to be stored. `response`: has at least `id`, `created_at`, `status` and `output`.
        `model`: the model's own name. `input_items`: its own input items, without those that it continues. The other
        arguments are the fields of the same names.

        Raises:
            RecursionError: the object or an item is nested too deeply.
        """
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
        """Bytes of the input and output items as JSON."""
        return len(self.input) + len(self.output)

    @property
    def size(self) -> int:
        """Bytes of everything that is written for the response."""
        turn_size = 0 if self.turn is None else self.turn.size
        return len(self.response) + self.items_size + turn_size + len(self.events)


class FoundResponse(NamedTuple):
    """A response that was read."""

    model: str
    """The model's own name."""
    response: Fields
    """The response object."""


class History(NamedTuple):
    """The response or conversation that a request continues, and the stored items that it refers to."""

    model: str | None = None
    """Own name of the model that made the continued response, or last answered in the continued conversation; None:
    the request continues nothing, or no model has answered."""
    items: tuple[Fields, ...] = ()
    """Input and output of the responses that the request continues, or the items of the conversation; oldest first."""
    referenced_items: Mapping[str, Fields] = {}
    """The items that the request refers to, by id; those that are not stored are absent."""
    referred_models: Mapping[str, str] = {}
    """For these ids, the own name of the model whose response the item belongs to, or that last answered in its
    conversation; absent if none has."""
    conversation_item: str | None = None
    """Id of the last of `items` if they are a conversation's."""


class HistoryBounds(NamedTuple):
    """Limits of what a request may continue."""

    bytes: int
    """Maximum number of bytes of the items as JSON."""
    items: int = 10_000
    """Maximum number of items."""
    responses: int = 2_000
    """Maximum number of responses that continue each other."""


class StoredTotals(NamedTuple):
    """Number and size of the stored objects."""

    responses: int = 0
    bytes: int = 0
    """Bytes of the database without its unused pages."""
    completions: int = 0
    conversations: int = 0


def id_of(token: str) -> str:
    """Return the id of a response.

    `token`: `TOKEN_LENGTH` random hex digits, which the ids of its items contain, too.
    """
    return f"resp_{token}"


def item_ids(token: str) -> Callable[[str], str]:
    """Return a function that makes a new id of an item of a response from a prefix, such as `msg`.

    Each call returns another id. `token`: as in `id_of`. The id contains the token, so that `response_of` finds the
    response that the item is stored with.
    """
    numbers = itertools.count()
    return lambda prefix: f"{prefix}_{token}{next(numbers):04x}"


def response_of(item_id: str) -> str | None:
    """Return the id of the response that the item is stored with, if its id is from `item_ids`; None: the part after
    the last `_` is too short to hold a token. The form is not checked further. Nothing is looked up: the response need
    not exist."""
    token_and_number = item_id.rpartition("_")[2]
    return id_of(token_and_number[:TOKEN_LENGTH]) if len(token_and_number) > TOKEN_LENGTH else None
