"""Bad files, each given to the real parser in its real process: a clear error, and the next file is parsed."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from retrieval.parsing.base import MIB, ChunkingOptions, ParsingError, ParsingLimits
from retrieval.parsing.pool import ParserPool
from tests.support.document_files import (
    make_bomb,
    make_bomb_docx,
    make_docx,
    make_docx_of,
    make_encrypted_pdf,
    make_epub,
    make_odf,
    make_pdf,
    make_pdf_with_annotations,
    make_pptx,
    make_xlsx,
    make_zip,
)

CHUNKING = ChunkingOptions(200, 20)
LIMITS = ParsingLimits(max_text_bytes=MIB, timeout_s=60, memory_bytes=512 * MIB)
LAUGHS = (
    '<!DOCTYPE d [<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10)) + "]>"
)
"""Entities of which the last is a billion words long."""
OUTSIDE = '<!DOCTYPE d [<!ENTITY a9 SYSTEM "file:///etc/passwd">]>'
USE = "<w:p><w:r><w:t>&a9;</w:t></w:r></w:p>"


def _pdf_with_loop() -> bytes:
    """A PDF whose page tree has itself for a child."""
    return make_pdf("a", "b").replace(b"/Kids [4 0 R 6 0 R]", b"/Kids [2 0 R 4 0 R]")


def _binary() -> bytes:
    return random.Random(1).randbytes(20_000)


UNSUPPORTED, TOO_LARGE, MALFORMED = "unsupported_media_type", "document_too_large", "document_malformed"
ENCRYPTED, EMPTY, NOT_TEXT = "document_encrypted", "document_empty", "document_not_text"
OLD_OFFICE = bytes.fromhex("d0cf11e0a1b11ae1")
PACKAGE = "EncryptedPackage".encode("utf-16-le")
LAUGHING = {"META-INF/container.xml": LAUGHS + "<d>&a9;</d>"}
ODF_LAUGHS = {"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": LAUGHS + "<d>&a9;</d>"}
_CELL = '<table:table-cell table:number-columns-repeated="9999"><text:p>x</text:p></table:table-cell>'
REPEATED = f'<table:table><table:table-row table:number-rows-repeated="999999">{_CELL}</table:table-row></table:table>'
MERGED = "<table>" + f"<tr><td rowspan=9999 colspan=1000>{'x' * 199}<td>" * 999
"""Tables whose merged cells are far larger than themselves."""
NO_DOCUMENT = {"_rels/.rels": "<Relationships/>", "word/x": ""}
BAD: dict[str, tuple[Callable[[], bytes], str, str, str]] = {
    # What makes the file, its name, the code, what the message says.
    "blank": (lambda: b" \n\t\n", "a.txt", EMPTY, "no text"),
    "byte order mark": (lambda: b"\xef\xbb\xbf", "a.txt", EMPTY, "no text"),
    "binary as text": (_binary, "a.txt", NOT_TEXT, "binary"),
    "zeros as text": (lambda: b"some text\n" + bytes(1000), "a.md", NOT_TEXT, "binary"),
    "program as text": (lambda: Path("/bin/true").read_bytes(), "a.txt", UNSUPPORTED, "a program"),
    "image": (lambda: b"\x89PNG\r\n\x1a\n" + bytes(100), "a.png", UNSUPPORTED, "PNG"),
    "archive": (lambda: make_zip({"a.txt": "text"}), "a.zip", UNSUPPORTED, "ZIP"),
    "old Office": (lambda: OLD_OFFICE + bytes(5000), "a.doc", UNSUPPORTED, "old binary"),
    "encrypted DOCX": (lambda: OLD_OFFICE + bytes(500) + PACKAGE, "a.docx", ENCRYPTED, "password"),
    "encrypted PDF": (lambda: make_encrypted_pdf("secret"), "a.pdf", ENCRYPTED, "password"),
    "PDF of images": (lambda: make_pdf("", ""), "a.pdf", EMPTY, "images"),
    "PDF of many pages": (lambda: make_pdf(*["text"] * 10_000), "a.pdf", TOO_LARGE, "10000 pages"),
    "PDF that is cut": (lambda: make_pdf(*["text"] * 100)[:8000], "a.pdf", MALFORMED, "no PDF"),
    "PDF without content": (lambda: b"%PDF-1.7\n" + bytes(100), "a.pdf", MALFORMED, "no PDF"),
    "DOCX without document": (lambda: make_zip(NO_DOCUMENT), "a.docx", UNSUPPORTED, "no DOCX"),
    "DOCX that is cut": (lambda: make_docx("text" * 1000)[:-200], "a.docx", MALFORMED, "ZIP"),
    "DOCX of no XML": (lambda: make_docx_of("<w:document"), "a.docx", MALFORMED, "well-formed"),
    "DOCX that expands": (lambda: make_bomb_docx(256 * MIB), "a.docx", TOO_LARGE, "expands"),
    "DOCX of empty elements": (lambda: make_docx_of(b"<d>" + b"<w/>" * (4 * MIB)), "a.docx", TOO_LARGE, "expands"),
    "DOCX of a giant attribute": (lambda: make_docx_of(b'<d a="' + b"x" * (16 * MIB)), "a.docx", TOO_LARGE, "expands"),
    "XLSX of one string": (lambda: make_xlsx({"S": [["x" * 100_000] * 20] * 100}), "a.xlsx", TOO_LARGE, "larger than"),
    "DOCX of a billion laughs": (lambda: make_docx("t", prolog=LAUGHS, body=USE), "a.docx", MALFORMED, "entities"),
    "DOCX of an outer entity": (lambda: make_docx("t", prolog=OUTSIDE, body=USE), "a.docx", MALFORMED, "entities"),
    "EPUB of a billion laughs": (lambda: make_zip(LAUGHING), "a.epub", MALFORMED, "entities"),
    "ODT that expands": (lambda: make_odf("text", " " * (9 * MIB)), "a.odt", TOO_LARGE, "expands"),
    "ODS of repeated rows": (lambda: make_odf("spreadsheet", REPEATED), "a.ods", TOO_LARGE, "larger than"),
    "ODT of a billion laughs": (lambda: make_zip(ODF_LAUGHS), "a.odt", MALFORMED, "entities"),
    "RTF of groups": (lambda: b"{\\rtf1" + b"{" * MIB, "a.rtf", MALFORMED, "nested"),
    "gzip that expands": (lambda: gzip.compress(bytes(64 * MIB)), "a.txt.gz", TOO_LARGE, "expands"),
    "gzip of a program": (lambda: gzip.compress(b"\x7fELF" * 99), "a.gz", UNSUPPORTED, "a program"),
    "large merged cells": (MERGED.encode, "a.html", TOO_LARGE, "larger than"),
    "large text": (lambda: b"some text\n" * (MIB // 2), "a.txt", TOO_LARGE, "larger than"),
    "large HTML": (lambda: b"<p>some text\n" * (MIB // 2), "a.html", TOO_LARGE, "larger than"),
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[ParserPool]:
    pool = ParserPool(LIMITS)
    yield pool
    await pool.close()


async def _parse(pool: ParserPool, tmp_path: Path, data: bytes, name: str) -> str:
    path = tmp_path / "file"
    path.write_bytes(data)
    document = await pool.parse_file(path, filename=name, media_type=None, chunking=CHUNKING)
    encoded = document.text.encode()
    assert all(encoded[chunk.start : chunk.end].decode() == chunk.text for chunk in document.chunks)
    assert document.chunks
    return document.text


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_bad_file_is_refused_with_a_reason(pool: ParserPool, tmp_path: Path, kind: str) -> None:
    make, name, code, message = BAD[kind]
    with pytest.raises(ParsingError, match=message) as raised:
        await _parse(pool, tmp_path, make(), name)
    assert raised.value.code == code
    assert await _parse(pool, tmp_path, make_pdf("still here"), "b.pdf") == "still here"


@pytest.mark.asyncio(loop_scope="module")
async def test_the_process_has_limits_and_low_priority(pool: ParserPool, tmp_path: Path) -> None:
    await _parse(pool, tmp_path, b"text", "a.txt")
    # Those of earlier files may be ending.
    children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    (process,) = [child for child in children if "retrieval.parsing.worker" in child.cmdline()]
    assert process.nice() == min(19, psutil.Process().nice() + 10)
    limits = {name: process.rlimit(getattr(psutil, f"RLIMIT_{name}"))[0] for name in ("AS", "FSIZE", "CORE", "CPU")}
    assert (limits["AS"], limits["FSIZE"], limits["CORE"]) == (LIMITS.memory_bytes, 0, 0)
    assert 60 <= limits["CPU"] <= 600
    assert os.getpgid(process.pid) == process.pid
    assert os.getsid(process.pid) == os.getsid(0), "in another session, its priority may count for nothing"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_pdf_of_gigabytes_ends_within_its_limits(pool: ParserPool, tmp_path: Path) -> None:
    with pytest.raises(ParsingError) as raised:
        await _parse(pool, tmp_path, make_bomb(), "a.pdf")
    assert raised.value.code in ("document_empty", "document_too_large", "parsing_failed")
    assert await _parse(pool, tmp_path, make_pdf("still here"), "b.pdf") == "still here"


@pytest.mark.asyncio(loop_scope="module")
async def test_entities_of_markup_that_is_kept_are_not_expanded(pool: ParserPool, tmp_path: Path) -> None:
    for prolog in (LAUGHS, OUTSIDE):
        drawing = f"{prolog}<svg><text>&a9;</text></svg>"
        assert await _parse(pool, tmp_path, drawing.encode(), "a.svg") == drawing
        page = f"{prolog}<html><p>words &a9;</p></html>"
        text = await _parse(pool, tmp_path, page.encode(), "a.html")
        assert "words &a9;" in text
        assert "root:" not in text
        assert len(text) < 2000


@pytest.mark.asyncio(loop_scope="module")
async def test_a_loop_in_a_page_tree_is_not_followed(pool: ParserPool, tmp_path: Path) -> None:
    assert await _parse(pool, tmp_path, _pdf_with_loop(), "a.pdf") == "a"


@pytest.mark.asyncio(loop_scope="module")
async def test_deep_nesting_is_followed(pool: ParserPool, tmp_path: Path) -> None:
    for tag in ("div", "ul", "table", "b", "p", "nav"):
        page = f"<{tag}>" * 100_000 + "<h1>deep</h1>" + f"</{tag}>" * 100_000
        assert await _parse(pool, tmp_path, page.encode(), "a.html") == "# deep"
    document = make_docx_of(b"<d>" + b"<w>" * 200_000 + b"<p><t>deep</t></p>" + b"</w>" * 200_000 + b"</d>")
    assert await _parse(pool, tmp_path, document, "a.docx") == "deep"
    table = make_docx_of(b"<d>" + b"<tr><tc>" * 50_000 + b"<p><t>deep</t></p>" + b"</tc></tr>" * 50_000 + b"</d>")
    assert "deep" in await _parse(pool, tmp_path, table, "a.docx")
    mail = b"".join(b"Content-Type: multipart/mixed; boundary=%d\n\n--%d\n" % (n, n) for n in range(5000))
    with pytest.raises(ParsingError, match="nested too deeply") as raised:
        await _parse(pool, tmp_path, b"From: a\nSubject: b\n" + mail, "a.eml")
    assert raised.value.code == "document_malformed"


@pytest.mark.asyncio(loop_scope="module")
async def test_damaged_bytes_anywhere_end_in_an_answer(pool: ParserPool, tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("SEED", "1")))
    good = {
        "a.docx": make_docx("# Title", "a | b", "text " * 50),
        "a.pptx": make_pptx(["Title", "text"], ["Other", "text"]),
        "a.xlsx": make_xlsx({"Sheet": [["a", 1.5], ["b", 2]]}),
        "a.epub": make_epub({"Chapter": "text " * 50}),
        "a.pdf": make_pdf("some text", "other text"),
        "b.pdf": make_pdf_with_annotations("some", ["/Subtype /Widget /FT /Tx /T (f) /V (x)", "/Subtype /Text /T (a)"]),
        "a.odt": make_odf(
            "text", "<text:p>text<office:annotation><text:p>odd</text:p></office:annotation></text:p>" * 20
        ),
        "a.rtf": b"{\\rtf1\\ansi{\\fonttbl{\\f0\\fcharset204 A;}}{\\header top}"
        b"\\'e9\\u233 e text{\\footnote x}\\cell\\row}",
        "a.txt.gz": gzip.compress(b"some text " * 20),
        "a.html": b"<html><h1>Title</h1><ul><li>item<table><tr><td>cell</table><pre>x</pre></html>",
        "a.eml": b"From: a@b.org\nSubject: text\nContent-Type: multipart/mixed; boundary=x\n\n--x\n\nhello\n--x--\n",
    }
    for name, data in good.items():
        for _ in range(10):
            damaged = bytearray(data)
            for _ in range(chance.choice((1, 5, 50))):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            failure = await _find_failure(pool, tmp_path, bytes(damaged), name)
            assert failure is None or failure.code != "parsing_failed", f"{name}: {failure}"
    assert await _parse(pool, tmp_path, good["a.html"], "a.html")


async def _find_failure(pool: ParserPool, tmp_path: Path, data: bytes, name: str) -> ParsingError | None:
    try:
        await _parse(pool, tmp_path, data, name)
    except ParsingError as error:
        return error
    return None
