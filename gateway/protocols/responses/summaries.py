"""Summaries of conversations that were compacted, as clients keep them between requests. Pure.

`encrypted_content` of a `compaction` item is opaque to clients. It is encoded, not encrypted: it says nothing that its
client has not sent or been told.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from gateway.protocols.common.field_reader import describe_value, field_error, require_text

INTRODUCTION: Final = "Summary of the conversation so far, which was compacted here:\n\n"
_MARK: Final = "roundhouse-summary-1:"


def encode_summary(summary: str) -> str:
    """A summary as clients keep it."""
    return _MARK + base64.b64encode(summary.encode(errors="replace")).decode()


def decode_summary(content: Any, place: str) -> str:
    """The summary in an item's `encrypted_content`. Raises RoundhouseError `invalid_request`: it was not made here."""
    encoded = require_text(content, place)
    try:
        if encoded.startswith(_MARK):
            return base64.b64decode(encoded.removeprefix(_MARK), validate=True).decode()
    except (binascii.Error, ValueError):
        pass
    raise field_error(place, f"must be as /v1/responses/compact of this gateway told it; {describe_value(encoded)}")
