"""Errors of requests about conversations. Pure."""

from __future__ import annotations

from controller.schema.errors import RoundhouseError


def conversation_not_found(conversation_id: str, param: str = "conversation_id") -> RoundhouseError:
    """Return, without raising it, `conversation_not_found` (404) for a conversation that the caller cannot see.

    `param`: the parameter of the request that has the id.
    """
    message = f"Conversation with id {conversation_id!r:.100} not found."
    return RoundhouseError("conversation_not_found", message, param=param)


def item_not_found(conversation_id: str, item_id: str, param: str = "item_id") -> RoundhouseError:
    """Return, without raising it, `conversation_item_not_found` (404) for an item that the conversation lacks.

    `param`: the parameter of the request that has the item's id.
    """
    message = f"Item with id {item_id!r:.100} not found in conversation {conversation_id!r:.100}."
    return RoundhouseError("conversation_item_not_found", message, param=param)


def conversation_locked(conversation_id: str, response_id: str) -> RoundhouseError:
    """Return `conversation_locked` (400) for a change of a conversation in which the response `response_id` is
    running."""
    message = (
        f"Another process is currently operating on the conversation {conversation_id!r:.100}: the response "
        f"{response_id} is being made in it. Retry when that is over, or cancel it."
    )
    return RoundhouseError("conversation_locked", message, param="conversation")


def conversation_too_long(most_items: int, most_bytes: int, param: str) -> RoundhouseError:
    """Return `invalid_request` for a conversation that is longer than the limits, or would be with added items.

    `param`: the field of the request that continues the conversation or adds to it.
    """
    message = (
        f"The conversation is longer than what may be continued: {most_items} items, {most_bytes} bytes. Delete some "
        "of its items, or begin a new one with what matters of it."
    )
    return RoundhouseError("invalid_request", message, param=param)


def wrong_item_id(item_id: str, place: str) -> RoundhouseError:
    """Return `invalid_request` for an item whose id has a wrong form. `place`: path of the id in the request."""
    message = f"`{place}` must have letters, digits, - and _ only, at most 128; it is {item_id!r:.100}."
    return RoundhouseError("invalid_request", message, param=place)


def duplicate_item(item_id: str, place: str) -> RoundhouseError:
    """Return `invalid_request` for a new item whose id the conversation has already. `place`: path of the id."""
    message = f"Duplicate item found with id {item_id!r:.100}. Leave its id out, or the item."
    return RoundhouseError("invalid_request", message, param=place)


def storage_disabled() -> RoundhouseError:
    """Return `storage_disabled` (403) for a new conversation on a gateway that stores nothing."""
    message = "This gateway stores nothing (ROUNDHOUSE_RESPONSES_RETENTION_H is 0), so there are no conversations."
    return RoundhouseError("storage_disabled", message)
