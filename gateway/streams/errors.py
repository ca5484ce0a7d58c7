"""Errors of resumable streams: refusals of requests for them, and errors that end a stream early. Pure.

Each function returns a RoundhouseError, which the caller raises or renders as the last event of a stream.
"""

from __future__ import annotations

from typing import Final

from controller.schema.errors import RoundhouseError

ID_HEADER: Final = "X-Conversation-Id"
RETRY_LOADING_S: Final = 1.0
"""Seconds in the `Retry-After` of `stream_loading`."""


def stream_not_found(stream_id: str) -> RoundhouseError:
    """Return 404 `stream_not_found`: the tenant has no stream of this id, or the key may not see its model."""
    message = f"There is no stream of the id {stream_id!r:.100}, or it is kept no longer."
    return RoundhouseError("stream_not_found", message, param="conv_id")


def offset_lost(offset: int, first_offset: int) -> RoundhouseError:
    """Return 400 `stream_offset_lost`: the reader asked for `offset`, which is less than the first kept byte."""
    message = (
        f"The stream is kept from byte {first_offset} on, and byte {offset} was asked for: read it from there, or ask "
        "anew."
    )
    return RoundhouseError("stream_offset_lost", message, param="from")


def offset_ahead(offset: int, end_offset: int) -> RoundhouseError:
    """Return 400 `stream_offset_lost`: the reader asked for `offset`, which is greater than the length so far. A reader
    cannot have received those bytes, so it probably read an earlier stream of the same id."""
    message = f"The stream has {end_offset} bytes, and byte {offset} was asked for: is it another stream of this id?"
    return RoundhouseError("stream_offset_lost", message, param="from")


def reader_too_slow() -> RoundhouseError:
    """Return `stream_offset_lost` for a reader so slow that the ring dropped bytes before the reader got them. It is
    rendered as that reader's last event."""
    message = "The reader was so slow that bytes that it had not read are kept no longer."
    return RoundhouseError("stream_offset_lost", message)


def reading_stopped() -> RoundhouseError:
    """Return `gateway_stopping`, the last event of a reader that is still behind when the gateway shuts down."""
    return RoundhouseError("gateway_stopping", "The gateway was stopped: read on from here when it is back.")


def stream_loading(model: str) -> RoundhouseError:
    """Return 503 `model_loading` with `Retry-After`: the request waits for its model to load, and may be refused."""
    message = f"The stream begins when the model {model!r} is loaded."
    return RoundhouseError("model_loading", message, retry_after_s=RETRY_LOADING_S)


def stream_stopped() -> RoundhouseError:
    """Return `stream_stopped`, the last event of a live stream that a client has stopped with DELETE."""
    return RoundhouseError("stream_stopped", "The request was cancelled: a client has stopped its stream.")


def stream_replaced() -> RoundhouseError:
    """Return `stream_replaced`, the last event of a live stream that ends because a later request of the same tenant
    has taken its id."""
    message = f"The request was cancelled: another one has the same {ID_HEADER}, and an id has one stream at a time."
    return RoundhouseError("stream_replaced", message)


def streams_full(max_bytes: int) -> RoundhouseError:
    """Return 503 `streams_full`: live streams alone take all of `max_bytes`, so that no ended stream can make room."""
    message = (
        f"All resumable streams together may take {max_bytes // 1024} KiB, and those that are live take all of it: try "
        f"again later, or without {ID_HEADER}."
    )
    return RoundhouseError("streams_full", message)


def gateway_restarted() -> RoundhouseError:
    """Return `gateway_restarted`, the last event of a stream whose gateway was killed before the end."""
    return RoundhouseError(
        "gateway_restarted", "The gateway ended before the answer was complete. All that was sent of it is kept."
    )


def id_unfit(reason: str) -> RoundhouseError:
    """Return 400 `invalid_request` for an `X-Conversation-Id` that cannot be an id. `reason` continues the sentence
    that begins with the header's name, for example "is not UTF-8"."""
    return RoundhouseError("invalid_request", f"`{ID_HEADER}` {reason}.", param=ID_HEADER)
