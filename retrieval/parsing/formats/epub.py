"""Text of electronic books (EPUB), as Markdown, in the order of reading."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Final

from retrieval.parsing.base import ParsingError
from retrieval.parsing.encoding import decode_text
from retrieval.parsing.formats.html import extract_html, find_charset
from retrieval.parsing.formats.office_package import OfficePackage, resolve_name
from retrieval.parsing.formats.text_builder import TextBuilder

CONTAINER: Final = "META-INF/container.xml"
_ENCRYPTION: Final = "META-INF/encryption.xml"
_FONTS_ONLY: Final = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
"""Methods that hide fonts, and no text."""


def extract_epub(package: OfficePackage, builder: TextBuilder) -> None:
    """Add the text of a book's chapters to `builder`, as Markdown, in the order of reading. Chapters are not pages. A
    chapter that the book names and the file lacks is left out. Blocks.

    Raises:
        ParsingError: `document_malformed`, `document_encrypted` (protected against copying), `document_too_large`, or
            `document_not_text` for a chapter in no known encoding.
    """
    if _ENCRYPTION in package.names:
        package.parse_part(_ENCRYPTION, _refuse_encryption)
    for name in _find_chapters(package, _find_book(package)):
        data = package.read_part(name)
        extract_html(decode_text(data, find_charset(data)), builder)


def _refuse_encryption(tag: str, attributes: Mapping[str, str]) -> None:
    if tag == "EncryptionMethod" and attributes.get("Algorithm", "") not in _FONTS_ONLY:
        raise ParsingError("document_encrypted", "the book is protected against copying")


def _find_book(package: OfficePackage) -> str:
    """Return the part that lists the chapters."""
    found: list[str] = []

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "rootfile":
            found.append(resolve_name("", attributes.get("full-path", "")))

    package.parse_part(CONTAINER, start)
    if not found:
        raise ParsingError("document_malformed", f"{CONTAINER} in the file names no book")
    return found[0]


def _find_chapters(package: OfficePackage, book: str) -> list[str]:
    """Return the parts to read, in order. Parts that the book names and the file lacks are left out."""
    folder = posixpath.dirname(book)
    items: dict[str, str] = {}
    chapters: list[str] = []

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "item" and attributes.get("media-type", "") in ("application/xhtml+xml", "text/html"):
            items[attributes.get("id", "")] = resolve_name(folder, attributes.get("href", ""))
        elif tag == "itemref":
            chapters.append(items.get(attributes.get("idref", ""), ""))

    package.parse_part(book, start)
    return [name for name in chapters if name in package.names]
