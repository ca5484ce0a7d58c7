"""Encodings of text files."""

from __future__ import annotations

import codecs

import pytest

from retrieval.parsing.base import ParsingError
from retrieval.parsing.encoding import decode_text

TEXT = "Grüße, naïve “quotes”, 5 €\n" * 5


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (TEXT.encode(), TEXT),
        (codecs.BOM_UTF8 + TEXT.encode(), "\ufeff" + TEXT),
        (TEXT.encode("utf-16"), TEXT),
        (codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), TEXT),
        (TEXT.encode("utf-32"), TEXT),
        (TEXT.encode("utf-16-le"), TEXT),
        (TEXT.encode("utf-16-be"), TEXT),
        (TEXT.encode("cp1252"), TEXT),
        ("Grüße\n".encode("latin-1"), "Grüße\n"),
        ("漢字かな。".encode() + b"\xe6", "漢字かな。\ufffd"),
        (b"a\x1b[0m\x08\x0c\x07", "a\x1b[0m\x08\x0c\x07"),
        (b"", ""),
    ],
)
def test_encodings_are_recognised(data: bytes, text: str) -> None:
    assert decode_text(data) == text


@pytest.mark.parametrize("declared", ["koi8-r", "KOI8-R"])
def test_a_declared_encoding_is_used(declared: str) -> None:
    assert decode_text("Привет, мир".encode("koi8-r"), declared) == "Привет, мир"


@pytest.mark.parametrize("declared", ["unknown", "hex", "ascii", "utf-7", "punycode", "", "\x00"])
def test_a_declared_encoding_that_is_unknown_or_wrong_is_passed_over(declared: str) -> None:
    assert decode_text("Grüße".encode("latin-1"), declared) == "Grüße"


def test_utf_8_wins_over_a_declared_encoding() -> None:
    assert decode_text("Grüße".encode(), "latin-1") == "Grüße"


@pytest.mark.parametrize(
    "data", [bytes(100), b"text" + bytes(4), bytes(range(256)) * 4, b"\xff\xfe\x00", b"\x81" * 100]
)
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(ParsingError) as raised:
        decode_text(data)
    assert raised.value.code == "document_not_text"
