"""The ids that clients give their streams. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gateway.streams.errors import id_unfit

LONGEST_ID: Final = 512
"""Characters."""
MODEL_SEPARATOR: Final = "::"
"""Between an id and the model that it names: `conv_id::model`."""
_HEADER: Final = b"x-conversation-id"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def find_stream_id(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return the id of a request's stream, by its headers, whose names are in lower case; None: it wants none.

    Raises:
        RoundhouseError: `invalid_request`.
    """
    for name, value in headers:
        if name == _HEADER:
            return _decode(value.strip()) or None
    return None


def name_model(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return the model that the id in a request's headers names; None: it names none, or there is no id."""
    stream_id = find_stream_id(headers) or ""
    return stream_id.partition(MODEL_SEPARATOR)[2] or None


def list_prefixes(stream_id: str) -> Sequence[str]:
    """Return what stands before each separator in an id: the ids by which it is looked up, too."""
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
        raise id_unfit("is not UTF-8") from None
    if len(stream_id) > LONGEST_ID:
        raise id_unfit(f"is longer than {LONGEST_ID} characters")
    if _CONTROL.search(stream_id):
        raise id_unfit("holds control characters")
    return stream_id
