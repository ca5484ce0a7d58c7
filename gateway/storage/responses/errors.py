"""Errors of requests about stored responses. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from controller.schema.errors import RoundhouseError
from gateway.storage.responses.records import RUNNING, HistoryBounds

_PREVIOUS = "previous_response_id"


def previous_not_found(response_id: str, missing_id: str) -> RoundhouseError:
    """Return `previous_response_not_found` (400) for a request that continues the response `response_id`.

    `missing_id`: the response that is not stored: `response_id` itself, or an earlier one that it continues.
    """
    if missing_id == response_id:
        message = f"Previous response with id {response_id!r:.100} not found."
    else:
        message = f"The response {missing_id!r:.100}, which {response_id!r:.100} continues, is not stored any more."
    return RoundhouseError("previous_response_not_found", message, param=_PREVIOUS)


def conversation_gone(response_id: str, conversation_id: str) -> RoundhouseError:
    """Return `previous_response_not_found` (400) for a response whose conversation, or items of it, are not stored."""
    message = (
        f"The conversation {conversation_id!r:.100}, in which {response_id!r:.100} or a response before it was made, "
        "is not stored any more."
    )
    return RoundhouseError("previous_response_not_found", message, param=_PREVIOUS)


def responses_not_stored() -> RoundhouseError:
    """Return `previous_response_not_found` (400) for a gateway that stores no responses."""
    message = "This gateway stores no responses (ROUNDHOUSE_RESPONSES_RETENTION_H is 0), so none can be continued."
    return RoundhouseError("previous_response_not_found", message, param=_PREVIOUS)


def not_continuable(response_id: str, status: str) -> RoundhouseError:
    """Return `invalid_request` for a request that continues a response whose `status` is not in `CONTINUABLE`."""
    next_step = "wait until it is complete" if status in RUNNING else "continue the response before it, or begin anew"
    message = f"The response {response_id!r:.100} cannot be continued, because it is {status}: {next_step}."
    return RoundhouseError("invalid_request", message, param=_PREVIOUS)


def too_long(bounds: HistoryBounds, param: str) -> RoundhouseError:
    """Return `invalid_request` for a request whose history or referenced items exceed `bounds`.

    `param`: the field of the request that refers to them.
    """
    message = (
        f"The stored conversation is longer than what may be continued: {bounds.responses} responses, {bounds.items} "
        f"items, {bounds.bytes} bytes. Begin a new one, with what matters of it in `input`."
    )
    return RoundhouseError("invalid_request", message, param=param)


def too_many_references(ids: Sequence[str], limit: int) -> RoundhouseError:
    """Return `invalid_request` for a request whose input refers to more stored items than `limit`."""
    message = f"`input` refers to {len(ids)} stored items, and {limit} are the most."
    return RoundhouseError("invalid_request", message, param="input")


def not_in_background(response_id: str) -> RoundhouseError:
    """Return `invalid_request` for reading the events of a response that was not made in the background."""
    message = (
        f"The response {response_id!r:.100} was not made in the background: its events are sent to the request that "
        "makes it alone. Leave `stream` out, or send `background: true` with the request."
    )
    return RoundhouseError("invalid_request", message, param="stream")


def response_not_found(response_id: str) -> RoundhouseError:
    """Return `response_not_found` (404) for a response that the caller cannot see."""
    message = f"Response with id {response_id!r:.100} not found."
    return RoundhouseError("response_not_found", message, param="response_id")
