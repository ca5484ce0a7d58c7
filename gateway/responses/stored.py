"""What is stored of a response, and what a request may ask of it. Pure values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gateway.translation.conversation import Fields

RUNNING: Final = frozenset({"queued", "in_progress"})
"""Status of a response that is not over."""
CONTINUABLE: Final = frozenset({"completed", "incomplete"})
"""Status of a response that another may continue: it has an answer, perhaps one that was cut."""


class StoredItem(NamedTuple):
    """One item of a response, input or output."""

    is_output: bool
    id: str | None
    json: str


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response as it is written. Encoded where it is made, so that nobody changes it any more."""

    id: str
    tenant: str
    model: str
    """The model's own name."""
    created_at: float
    """Unix time in seconds."""
    previous: str | None
    status: str
    response: str
    """The response object as JSON, its `output` empty."""
    items: tuple[StoredItem, ...]
    """Input before output, in order."""

    @classmethod
    def of(cls, tenant: str, model: str, response: Fields, input_items: Iterable[Fields]) -> StoredResponse:
        """What `response`, with this input of its own, is stored as."""
        items = [_item(item, is_output=False) for item in input_items]
        items += (_item(item, is_output=True) for item in response["output"])
        return cls(
            id=response["id"],
            tenant=tenant,
            model=model,
            created_at=response["created_at"],
            previous=response.get("previous_response_id"),
            status=response["status"],
            response=encoded({**response, "output": []}),
            items=tuple(items),
        )

    @property
    def size(self) -> int:
        """Bytes of its JSON."""
        return len(self.response) + sum(len(item.json) for item in self.items)


class Found(NamedTuple):
    """A stored response, read."""

    model: str
    response: Fields


class History(NamedTuple):
    """What a request continues and refers to."""

    model: str | None = None
    """The own name of the model that made the response which is continued; None: none is."""
    items: tuple[Fields, ...] = ()
    """Of the responses that it continues, input and output, the oldest first."""
    referenced: Mapping[str, Fields] = {}
    """Those of the items referred to that there are, by their id."""


class Bounds(NamedTuple):
    """What one conversation may come to."""

    bytes: int
    """JSON of its items."""
    items: int = 10_000
    responses: int = 2_000


class Stored(NamedTuple):
    """How much is stored."""

    responses: int = 0
    bytes: int = 0
    """Of the database, without what is free in it."""


def encoded(fields: Mapping[str, Any]) -> str:
    """JSON. ASCII, so that lone surrogates, which JSON can write and UTF-8 cannot, survive."""
    return json.dumps(fields, separators=(",", ":"))


def _item(item: Fields, *, is_output: bool) -> StoredItem:
    item_id = item.get("id")
    return StoredItem(is_output, item_id if isinstance(item_id, str) else None, encoded(item))
