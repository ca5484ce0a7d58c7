"""Reads the `metadata` that clients attach to what is stored: pairs of strings within OpenAI's limits. Pure."""

from __future__ import annotations

from typing import Final

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import field_error, optional_field, require_value

MOST_PAIRS: Final = 16
LONGEST_KEY: Final = 64
"""Maximum characters of a key."""
LONGEST_VALUE: Final = 512
"""Maximum characters of a value."""


def read_metadata(fields: Fields) -> dict[str, str]:
    """Return the `metadata` of a request; empty if it is missing or null.

    Raises:
        RoundhouseError: `invalid_request`: it is no object of strings, has more than `MOST_PAIRS` (16) pairs, a key of
            more than `LONGEST_KEY` (64) or a value of more than `LONGEST_VALUE` (512) characters, or holds half a
            surrogate pair.
    """
    metadata: dict[str, str] = optional_field(fields, "metadata", dict) or {}
    if len(metadata) > MOST_PAIRS:
        raise field_error("metadata", f"must have at most {MOST_PAIRS} pairs; it has {len(metadata)}")
    for name, value in metadata.items():
        place = f"metadata.{name:.64}"
        if len(name) > LONGEST_KEY:
            raise field_error(place, f"must have a name of at most {LONGEST_KEY} characters")
        if len(require_value(value, str, place)) > LONGEST_VALUE:
            raise field_error(place, f"must be at most {LONGEST_VALUE} characters long; it has {len(value)}")
        if not (_is_unicode(name) and _is_unicode(value)):
            raise field_error("metadata", "must be texts without halves of surrogate pairs")
    return metadata


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
