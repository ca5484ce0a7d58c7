"""Text of PDFs, page by page, through PDFium. Pages that are images alone have no text: there is no OCR."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pypdfium2
import pypdfium2.raw as pdfium

from retrieval.parsing.base import ParsingError, ParsingLimits, TextBuilder
from retrieval.parsing.chunking import LONGEST_HEADING, Heading

_HYPHEN: Final = re.compile(r"[\ufffe\x02]\s*")
"""PDFium's mark of a hyphen at the end of a line, within a word."""
_EVERYWHERE: Final = 1e6
"""Beyond the edges of any page. By default PDFium cuts off characters that reach over the edge of theirs."""
_MOST_BOOKMARKS: Final = 20_000
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0e-\x1f\ufffe\uffff]")


def extract_pdf(path: Path, builder: TextBuilder, limits: ParsingLimits) -> list[Heading]:
    """Add the text of a PDF to `builder`, as plain text, a page at a time. Return its headings, in the text's order:
    the lines that its outline (bookmarks) names; empty if it has no outline.

    A page that is damaged or an image has no text. A PDF that is encrypted, but needs no password for reading, is read.
    Blocks.

    Raises:
        ParsingError: `document_encrypted`, `document_malformed`, or `document_too_large`: it has more than
            `limits.max_pages` pages, or more text than the builder allows.
        OSError: the file does not exist.
    """
    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if pdfium.FPDF_GetLastError() == pdfium.FPDF_ERR_PASSWORD:
            raise ParsingError("document_encrypted", "the PDF is encrypted, and needs a password") from error
        raise ParsingError("document_malformed", f"the file is no PDF that can be read ({error})") from error
    try:
        count = len(document)
        if count > limits.max_pages:
            raise ParsingError("document_too_large", f"the PDF has {count} pages, more than {limits.max_pages}")
        outline = _read_outline(document)
        headings: list[Heading] = []
        for number in range(count):
            builder.start_page()
            text = _read_page(document, number)
            builder.add_block(text)
            headings += _find_headings(text, builder.page_starts[-1], outline.get(number, ()))
        return headings
    finally:
        document.close()


def _read_page(document: pypdfium2.PdfDocument, number: int) -> str:
    """Return the text of a page, "" for one that is damaged."""
    try:
        page = document[number]
    except pypdfium2.PdfiumError:
        return ""
    try:
        text_page = page.get_textpage()
        text: str = text_page.get_text_bounded(-_EVERYWHERE, -_EVERYWHERE, _EVERYWHERE, _EVERYWHERE)
        text_page.close()
    except pypdfium2.PdfiumError:
        return ""
    finally:
        page.close()
    text = _HYPHEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _UNPRINTABLE.sub("", text).strip("\n")


def _read_outline(document: pypdfium2.PdfDocument) -> Mapping[int, list[tuple[int, str]]]:
    """Return the bookmarks by their pages: levels from 1, and titles. Those that lead nowhere are left out."""
    found: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    for bookmark in itertools.islice(document.get_toc(), _MOST_BOOKMARKS):
        try:
            target = bookmark.get_dest()
            page = target.get_index() if target is not None else None
            title = bookmark.get_title()
        except (pypdfium2.PdfiumError, ValueError):
            continue
        if page is not None and title.strip():
            found[page].append((min(bookmark.level + 1, 6), title[:LONGEST_HEADING]))
    return found


def _find_headings(text: str, offset: int, bookmarks: Iterable[tuple[int, str]]) -> Iterator[Heading]:
    """Yield the lines of a page that bookmarks name, with a number before the title or without.

    `offset`: of the page's text in the document's.
    """
    at = 0
    for level, title in bookmarks:
        words = r"\s+".join(re.escape(word) for word in title.split())
        line = re.compile(rf"^[ \t]*((?:[\w.]{{1,12}}[ \t]+)?{words})[ \t]*$", re.IGNORECASE | re.MULTILINE)
        if found := line.search(text, at):
            yield Heading(offset + found.start(), level, " ".join(found.group(1).split()))
            at = found.end()
