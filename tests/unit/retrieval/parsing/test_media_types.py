"""What a file is."""

from __future__ import annotations

import pytest

from retrieval.parsing.base import ParsingError
from retrieval.parsing.media_types import detect_file
from tests.support.document_files import make_docx
from tests.support.pdf_files import make_pdf

MAIL = b"Received: from x\r\n by y\r\nFrom: a@b.org\r\nX-Other: 1\r\n\r\nbody"


@pytest.mark.parametrize(
    ("data", "filename", "media_type", "expected"),
    [
        (b"text", None, None, ("text", "text/plain", "prose")),
        (b"text", "a.txt", None, ("text", "text/plain", "prose")),
        (b"text", "README.MD", None, ("text", "text/markdown", "markdown")),
        (b"text", "folder/a.py", None, ("text", "text/x-python", "lines")),
        (b"text", "Makefile", None, ("text", "text/x-makefile", "lines")),
        (b"text", "a.unknown", None, ("text", "text/plain", "prose")),
        (b"text", "a.json", "text/plain", ("text", "application/json", "lines")),
        (b"a,b", "a.csv", None, ("text", "text/csv", "lines")),
        (b"<svg/>", "a.svg", None, ("text", "image/svg+xml", "lines")),
        (b"text", None, "text/markdown; charset=utf-8", ("text", "text/markdown", "markdown")),
        (b"text", "a", "Text/X-Python", ("text", "text/x-python", "lines")),
        (b"text", None, "application/octet-stream", ("text", "text/plain", "prose")),
        (b"#!/bin/sh\n", "run", None, ("text", "text/x-script", "lines")),
        (b"text", "a.html", None, ("html", "text/html", "prose")),
        (b" <!-- c --> <!DOCTYPE HTML><p>", None, None, ("html", "text/html", "prose")),
        (b"<?xml version='1.0'?>\n<html xmlns=''>", "a.txt", None, ("html", "text/html", "prose")),
        (b"<html>", "a.py", None, ("text", "text/x-python", "lines")),
        (b"text <html>", None, None, ("text", "text/plain", "prose")),
        (b"text", "a.eml", None, ("mail", "message/rfc822", "prose")),
        (MAIL, None, None, ("mail", "message/rfc822", "prose")),
        (MAIL, "a.txt", None, ("text", "text/plain", "prose")),
        (b"Note: a\nFrom: b\n\n", None, None, ("text", "text/plain", "prose")),
        (make_pdf("text"), "a.txt", "text/plain", ("pdf", "application/pdf", "prose")),
        (b"\n\n" + make_pdf("text"), None, None, ("pdf", "application/pdf", "prose")),
        (b"# %PDF-1.7 is what a PDF begins with", "a.py", None, ("text", "text/x-python", "lines")),
        (b"junk" + make_pdf("text"), "a.bin", None, ("pdf", "application/pdf", "prose")),
        (b"ID3,Name\n1,a", "a.csv", None, ("text", "text/csv", "lines")),
        (b"GIF8 is a mark, as RIFF and BZh are", None, None, ("text", "text/plain", "prose")),
        (make_docx("text"), "a.pdf", "application/pdf", ("zip", "application/zip", "prose")),
    ],
)
def test_content_counts_before_the_name_and_the_name_before_the_declared_type(
    data: bytes, filename: str | None, media_type: str | None, expected: tuple[str, str, str]
) -> None:
    found = detect_file(data, filename, media_type)
    assert (found.format, found.media_type, found.structure) == expected


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x89PNG\r\n", "unsupported_media_type"),
        (b"\x7fELF", "unsupported_media_type"),
        (b"{\\rtf1", "unsupported_media_type"),
        (b"GIF89a\x01\x00", "unsupported_media_type"),
        (b"RIFF\x24\x08\x00\x00WAVEfmt ", "unsupported_media_type"),
        (b"ID3\x04\x00", "unsupported_media_type"),
        (b"BZh91AY&SY", "unsupported_media_type"),
        (bytes.fromhex("d0cf11e0a1b11ae1"), "unsupported_media_type"),
        (bytes.fromhex("d0cf11e0a1b11ae1") + "EncryptedPackage".encode("utf-16-le"), "document_encrypted"),
    ],
)
def test_known_binaries_are_refused(data: bytes, code: str) -> None:
    with pytest.raises(ParsingError) as raised:
        detect_file(data, "a.txt", "text/plain")
    assert raised.value.code == code


def test_many_comments_before_a_page_take_no_time() -> None:
    assert detect_file(b"<!--a-->" * 10_000 + b"text", None, None).format == "text"
