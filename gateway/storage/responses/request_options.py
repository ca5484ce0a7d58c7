"""The fields of a request that concern stored responses and conversations. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import field_error, optional_field, require_text
from gateway.protocols.responses.conversation_items import BranchStart, read_start
from gateway.storage.conversations.errors import conversation_not_found, item_not_found
from gateway.storage.responses.errors import previous_not_found, too_many_references

MOST_REFERENCES: Final = 1000
"""Stored items that the input of a request may refer to."""
PARENT_PLACE: Final = "conversation.parent_id"
"""Path in a request of the id of the item that its response follows."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""Form of ids. No object has another, and some texts, such as half surrogate pairs, could not even be searched for."""


class RequestOptions(NamedTuple):
    """What one request continues and refers to, and whether its response is stored."""

    previous_id: str | None
    """Id of the response that the request continues; None: none."""
    references: tuple[str, ...]
    """Ids of stored items that the input refers to."""
    is_stored: bool = False
    """Whether the response is to be stored."""
    is_background: bool = False
    """Whether the response is made without a connection to its client."""
    conversation_id: str | None = None
    """Id of the conversation that the request continues; None: none."""
    conversation_start: BranchStart | None = None
    """The item of the conversation that the response follows (`conversation.parent_id`); None: the active one."""

    @property
    def needs_stored(self) -> bool:
        """Whether the request continues or refers to anything that is stored."""
        return self.previous_id is not None or self.conversation_id is not None or bool(self.references)

    @classmethod
    def of(cls, fields: Fields, *, can_store: bool) -> RequestOptions:
        """Read the options of a request for a response. `can_store`: whether this gateway stores responses.

        Nothing is looked up. On a gateway that stores none, `is_stored` is False whatever the request says.

        Raises:
            RoundhouseError: `invalid_request` if a field has a wrong type, `background` is set without storing, the
                request continues both a response and a conversation, or refers to more than `MOST_REFERENCES` items;
                `previous_response_not_found`, `conversation_not_found` or `conversation_item_not_found` if an id has a
                wrong form.
        """
        options = cls.of_references(fields)
        wants_store = optional_field(fields, "store", bool) is not False
        background = optional_field(fields, "background", bool) is True
        if background and not wants_store:
            raise field_error("background", "needs a response that is stored: leave `store` out")
        if background and not can_store:
            raise field_error("background", "needs a response that is stored, and this gateway stores none")
        return options._replace(is_stored=wants_store and can_store, is_background=background)

    @classmethod
    def of_references(cls, fields: Fields) -> RequestOptions:
        """Read what a request refers to that makes no response itself, for example one that counts tokens.

        Nothing is looked up. `store` and `background` are not read, and stay False. Item ids of a wrong form are left
        out.

        Raises:
            RoundhouseError: `invalid_request` if a field has a wrong type, the request continues both a response and a
                conversation, or refers to more than `MOST_REFERENCES` items; `previous_response_not_found`,
                `conversation_not_found` or `conversation_item_not_found` if an id has a wrong form.
        """
        references = tuple(dict.fromkeys(_references(fields.get("input"))))
        if len(references) > MOST_REFERENCES:
            raise too_many_references(references, MOST_REFERENCES)
        previous_id = optional_field(fields, "previous_response_id", str)
        if previous_id is not None and not _ID.fullmatch(previous_id):
            raise previous_not_found(previous_id, previous_id)
        conversation_id = _conversation_id(fields.get("conversation"))
        if conversation_id is not None and previous_id is not None:
            rule = "cannot be used together with `previous_response_id`: the conversation has the earlier responses"
            raise field_error("conversation", rule)
        start = None if conversation_id is None else _conversation_start(fields["conversation"], conversation_id)
        return cls(previous_id, references, conversation_id=conversation_id, conversation_start=start)


def is_id(value: str) -> bool:
    """Return whether `value` has the form of an id: 1 to 128 letters, digits, `-` and `_` (ASCII)."""
    return _ID.fullmatch(value) is not None


def _conversation_id(value: Any) -> str | None:
    """Read the field `conversation`, which is an id or an object with one; None: there is none."""
    if value is None:
        return None
    if isinstance(value, dict):
        value, place = value.get("id"), "conversation.id"
    else:
        place = "conversation"
    conversation_id = require_text(value, place)
    if not is_id(conversation_id):
        raise conversation_not_found(conversation_id, "conversation")
    return conversation_id


def _conversation_start(value: Any, conversation_id: str) -> BranchStart | None:
    """Read which item of its conversation a request names in the field `conversation`; None: it names none."""
    start = read_start(value, "conversation.") if isinstance(value, dict) else None
    if start is not None and start.parent_id is not None and not is_id(start.parent_id):
        raise item_not_found(conversation_id, start.parent_id, PARENT_PLACE)
    return start


def _references(items: Any) -> Iterator[str]:
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and (item.get("type") or "item_reference") == "item_reference":
            item_id = item.get("id")
            if isinstance(item_id, str) and "role" not in item and _ID.fullmatch(item_id):
                yield item_id
