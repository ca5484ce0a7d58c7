"""Reads the `settings` that clients keep with a conversation: an object that the gateway does not look into. Pure."""

from __future__ import annotations

from typing import Final

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import field_error, optional_field
from gateway.protocols.common.json_bytes import json_bytes

MOST_BYTES: Final = 65_536
"""Maximum bytes of the settings as compact JSON."""


def read_settings(fields: Fields) -> bytes | None:
    """Return the `settings` of a request as JSON; None if they are missing or null.

    Raises:
        RoundhouseError: `invalid_request` if they are no object, nested too deeply, or longer than `MOST_BYTES`.
    """
    settings = optional_field(fields, "settings", dict)
    if settings is None:
        return None
    try:
        encoded = json_bytes(settings)
    except RecursionError:
        raise field_error("settings", "must not be nested so deeply") from None
    if len(encoded) > MOST_BYTES:
        raise field_error("settings", f"must have at most {MOST_BYTES} bytes of JSON; it has {len(encoded)}")
    return encoded
