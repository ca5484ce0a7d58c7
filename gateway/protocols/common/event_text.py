"""Text in the JSON of an event. Pure."""

from __future__ import annotations

from json.encoder import encode_basestring, encode_basestring_ascii


def quote_text(text: str) -> bytes:
    """A string as JSON. UTF-8, unless it holds half a surrogate pair: then ASCII, which can write that."""
    try:
        return encode_basestring(text).encode()
    except UnicodeEncodeError:
        return encode_basestring_ascii(text).encode()
