"""What requests about resumable streams are refused with, and what ends such a stream. Pure."""

from __future__ import annotations

from typing import Final

from controller.schema.errors import RoundhouseError

ID_HEADER: Final = "X-Conversation-Id"
RETRY_LOADING_S: Final = 1.0
"""How soon a reader of a stream that waits for a load should ask again."""


def stream_not_found(stream_id: str) -> RoundhouseError:
    """The tenant has no such stream."""
    message = f"There is no stream of the id {stream_id!r:.100}, or it is kept no longer."
    return RoundhouseError("stream_not_found", message, param="conv_id")


def offset_lost(offset: int, first_offset: int) -> RoundhouseError:
    """The bytes at `offset` are kept no longer."""
    message = (
        f"The stream is kept from byte {first_offset} on, and byte {offset} was asked for: read it from there, or ask "
        "anew."
    )
    return RoundhouseError("stream_offset_lost", message, param="from")


def offset_ahead(offset: int, end_offset: int) -> RoundhouseError:
    """No reader can have had the bytes before `offset`."""
    message = f"The stream has {end_offset} bytes, and byte {offset} was asked for: is it another stream of this id?"
    return RoundhouseError("stream_offset_lost", message, param="from")


def reader_too_slow() -> RoundhouseError:
    """A reader has not read what is kept no longer."""
    message = "The reader was so slow that bytes that it had not read are kept no longer."
    return RoundhouseError("stream_offset_lost", message)


def reading_stopped() -> RoundhouseError:
    """The gateway ends while a stream is read."""
    return RoundhouseError("gateway_stopping", "The gateway was stopped: read on from here when it is back.")


def stream_loading(model: str) -> RoundhouseError:
    """The stream has not begun, and its request may still be refused."""
    message = f"The stream begins when the model {model!r} is loaded."
    return RoundhouseError("model_loading", message, retry_after_s=RETRY_LOADING_S)


def stream_stopped() -> RoundhouseError:
    """A client has stopped the stream."""
    return RoundhouseError("stream_stopped", "The request was cancelled: a client has stopped its stream.")


def stream_replaced() -> RoundhouseError:
    """A client has begun another stream of the id."""
    message = f"The request was cancelled: another one has the same {ID_HEADER}, and an id has one stream at a time."
    return RoundhouseError("stream_replaced", message)


def streams_full(max_bytes: int) -> RoundhouseError:
    """No room for another stream can be made."""
    message = (
        f"All resumable streams together may take {max_bytes // 1024} KiB, and those that are live take all of it: try "
        f"again later, or without {ID_HEADER}."
    )
    return RoundhouseError("streams_full", message)


def gateway_restarted() -> RoundhouseError:
    """The process that made the stream ended without a word."""
    return RoundhouseError(
        "gateway_restarted", "The gateway ended before the answer was complete. All that was sent of it is kept."
    )


def id_unfit(reason: str) -> RoundhouseError:
    """The header cannot be an id."""
    return RoundhouseError("invalid_request", f"`{ID_HEADER}` {reason}.", param=ID_HEADER)
