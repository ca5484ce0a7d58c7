"""Encodes values and texts as compact JSON. Pure."""

from __future__ import annotations

import json
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

import orjson


def json_bytes(value: Any) -> bytes:
    """Return compact JSON in UTF-8. A value that orjson refuses, such as half a surrogate pair or an integer of more
    than 64 bits, gives ASCII with escapes. NaN and infinite numbers become `null`.

    Raises:
        RecursionError: the value is nested too deeply.
        TypeError: the value, or a key in it, is of a type that JSON does not have.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        # Also integers of more than 64 bits, and more than 254 levels.
        text = json.dumps(value, separators=(",", ":"))
        if "NaN" in text or "Infinity" in text:
            text = json.dumps(json.loads(text, parse_constant=lambda _: None), separators=(",", ":"))
        return text.encode()


def quote_text(text: str) -> bytes:
    """Return a string as a JSON string with its quotes: in UTF-8, or in ASCII if it holds half a surrogate pair, which
    only an escape can express."""
    try:
        return encode_basestring(text).encode()
    except UnicodeEncodeError:
        return encode_basestring_ascii(text).encode()
