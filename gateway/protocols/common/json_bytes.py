"""Values and texts as compact JSON. Pure."""

from __future__ import annotations

import json
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

import orjson


def json_bytes(value: Any) -> bytes:
    """UTF-8; ASCII where a string holds half a surrogate pair, which only that can write.

    Raises:
        RecursionError: it is nested too deeply.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        # Also integers of more than 64 bits, and more than 254 levels.
        return json.dumps(value, separators=(",", ":")).encode()


def quote_text(text: str) -> bytes:
    """A string as JSON. UTF-8, unless it holds half a surrogate pair: then ASCII, which can write that."""
    try:
        return encode_basestring(text).encode()
    except UnicodeEncodeError:
        return encode_basestring_ascii(text).encode()
