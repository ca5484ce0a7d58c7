"""What a request asks of stored responses. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import optional, wrong
from gateway.stored_responses.errors import previous_not_found, too_many_references

MOST_REFERENCES: Final = 1000
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""What an id may look like. Others are nobody's, and some could not even be looked up: halves of surrogate pairs."""


class Asked(NamedTuple):
    """Of one request."""

    previous: str | None
    """The response that it continues."""
    references: tuple[str, ...]
    """Ids of stored items that its input refers to."""
    stores: bool = False
    """Its response is to be stored."""
    background: bool = False
    """Its response is to be made without its client."""

    @property
    def loads(self) -> bool:
        """Whether it needs something that is stored."""
        return self.previous is not None or bool(self.references)

    @classmethod
    def of(cls, fields: Fields, *, can_store: bool) -> Asked:
        """By a request for a response. `can_store`: this gateway stores responses.

        Raises:
            RoundhouseError: `invalid_request` or `previous_response_not_found`.
        """
        options = cls.to_load(fields)
        wants_store = optional(fields, "store", bool) is not False
        background = optional(fields, "background", bool) is True
        if background and not wants_store:
            raise wrong("background", "needs a response that is stored: leave `store` out")
        if background and not can_store:
            raise wrong("background", "needs a response that is stored, and this gateway stores none")
        return options._replace(stores=wants_store and can_store, background=background)

    @classmethod
    def to_load(cls, fields: Fields) -> Asked:
        """By a request that makes no response."""
        references = tuple(dict.fromkeys(_references(fields.get("input"))))
        if len(references) > MOST_REFERENCES:
            raise too_many_references(references, MOST_REFERENCES)
        previous_id = optional(fields, "previous_response_id", str)
        if previous_id is not None and not _ID.fullmatch(previous_id):
            raise previous_not_found(previous_id, previous_id)
        return cls(previous_id, references)


def _references(items: Any) -> Iterator[str]:
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and (item.get("type") or "item_reference") == "item_reference":
            item_id = item.get("id")
            if isinstance(item_id, str) and "role" not in item and _ID.fullmatch(item_id):
                yield item_id
