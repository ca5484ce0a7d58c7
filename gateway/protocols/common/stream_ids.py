"""Stream ids, as clients send them in `X-Conversation-Id`: `conv_id` or `conv_id::model`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from contract.errors import RoundhouseError

ID_HEADER: Final = "X-Conversation-Id"
LONGEST_ID: Final = 512
"""Most characters of an id."""
MODEL_SEPARATOR: Final = "::"
"""Separates the conversation id from the model's name: `conv_id::model`."""
HEADER: Final = b"x-conversation-id"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def find_stream_id(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return the value of `X-Conversation-Id`, without surrounding blanks. None: the header is missing or empty, so the
    request asks for no resumable stream.

    `headers`: name and value pairs, names in lower case; of several such headers the first counts.

    Raises:
        RoundhouseError: `invalid_request`: not UTF-8, longer than LONGEST_ID, or with control characters.
    """
    for name, value in headers:
        if name == HEADER:
            return _decode(value.strip()) or None
    return None


def name_model(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return the model named in `X-Conversation-Id`: what follows the first `::`. None: the id names no model, or there
    is no such header. Raises RoundhouseError as `find_stream_id`."""
    stream_id = find_stream_id(headers) or ""
    return stream_id.partition(MODEL_SEPARATOR)[2] or None


def list_prefixes(stream_id: str) -> Sequence[str]:
    """Return the shorter ids under which a lookup finds `stream_id`, too: what stands before each `::`, unless that is
    empty. For `a::b::c` these are `a` and `a::b`; for an id without `::` there are none."""
    prefixes, position = [], stream_id.find(MODEL_SEPARATOR)
    while position >= 0:
        if position:
            prefixes.append(stream_id[:position])
        position = stream_id.find(MODEL_SEPARATOR, position + len(MODEL_SEPARATOR))
    return prefixes


def _decode(value: bytes) -> str:
    try:
        stream_id = value.decode()
    except UnicodeDecodeError:
        raise _unfit("is not UTF-8") from None
    if len(stream_id) > LONGEST_ID:
        raise _unfit(f"is longer than {LONGEST_ID} characters")
    if _CONTROL.search(stream_id):
        raise _unfit("holds control characters")
    return stream_id


def _unfit(reason: str) -> RoundhouseError:
    return RoundhouseError("invalid_request", f"`{ID_HEADER}` {reason}.", param=ID_HEADER)
