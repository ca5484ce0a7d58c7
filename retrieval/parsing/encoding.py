"""Decode the bytes of a text file. Pure."""

from __future__ import annotations

import codecs
import re
from typing import Final

from retrieval.parsing.base import ParsingError

_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NOT_OF_FILES: Final = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7")
"""Encodings that Python knows and that no file is in. Some take quadratic time."""
_SAMPLE_BYTES: Final = 4096
_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_CONTROL: Final = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
"""Control characters that texts do not have: not bell to carriage return (terminals' logs), and not escape."""
_MOST_CONTROLS: Final = 0.001
"""Part of the characters that may be controls, for texts with a stray one."""


def decode_text(data: bytes, declared: str | None = None) -> str:
    """Return the characters of a text file, decoded by the first of these that fits: a byte order mark of UTF-16 or
    UTF-32, UTF-8, the declared encoding, UTF-16 without a mark, UTF-8 with some damage, cp1252.

    A byte order mark of UTF-8 stays in the text as its first character, so that offsets hold in the file. Bytes that
    cannot be decoded become U+FFFD if they are few. Empty data gives empty text.

    `declared`: name of an encoding, from the media type or the content, that may be wrong or unknown; None if nothing
    was declared.

    Raises:
        ParsingError: `document_not_text`: no encoding fits, or the characters are those of a binary file.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _check_text(_decode(data, encoding))
    text = _decode(data, "utf-8")
    if text is None and declared is not None:
        text = _decode(data, declared)
    if text is None or "\x00" in text[:_SAMPLE_BYTES]:
        text = _decode(data, _guess_utf_16(data)) or text
    if text is None:
        text = _decode_damaged_utf_8(data)
    if text is None:
        text = data.decode("cp1252", "replace")
        if text.count("\ufffd") > _MOST_CONTROLS * len(text):
            text = None
    return _check_text(text)


def _decode(data: bytes, encoding: str | None) -> str | None:
    """Return None where the bytes are not in that encoding, or it is unknown or none of texts."""
    if encoding is None:
        return None
    try:
        return None if codecs.lookup(encoding).name in _NOT_OF_FILES else data.decode(encoding)
    except (LookupError, ValueError):
        return None


def _decode_damaged_utf_8(data: bytes) -> str | None:
    """Return None unless most of the characters beyond ASCII are intact; those that are not become U+FFFD."""
    text = data.decode("utf-8", "replace")
    damaged = text.count("\ufffd")
    intact = len(_BEYOND_ASCII.findall(text)) - damaged
    return text if damaged * 4 < intact else None


def _guess_utf_16(data: bytes) -> str | None:
    """Return the byte order of UTF-16 if every other byte is zero in much of the text."""
    sample = data[:_SAMPLE_BYTES]
    if len(data) % 2 or len(sample) < 4:
        return None
    pairs = len(sample) // 2
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if odd > 0.4 * pairs and even < 0.05 * pairs:
        return "utf-16-le"
    if even > 0.4 * pairs and odd < 0.05 * pairs:
        return "utf-16-be"
    return None


def _check_text(text: str | None) -> str:
    if text is None or "\x00" in text or len(_CONTROL.findall(text)) > max(1, _MOST_CONTROLS * len(text)):
        raise ParsingError("document_not_text", "the file is binary, or text in an encoding that is not recognised")
    return text
