"""Extract the text of a file of any format that is read. Runs in the process of `worker`, and sets no limits itself.

PDFs are read by PDFium (pypdfium2: 4 MB, BSD and Apache), the other formats by the standard library. kreuzberg 4.10.4
was measured beside it and not taken: it drops every `&`, `<` and `>` of a DOCX ("R&D" becomes "RD"), gives no texts of
slides, takes PDFium's text too, in twice the time, writes a library into the temporary folder to do so, is 39 MB packed
and 98 MB installed, and is maintained until the end of 2026.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from retrieval.parsing.base import ParsingError, ParsingLimits
from retrieval.parsing.encoding import decode_text
from retrieval.parsing.formats import epub
from retrieval.parsing.formats.docx import extract_docx
from retrieval.parsing.formats.html import extract_html, find_charset
from retrieval.parsing.formats.mail import extract_mail
from retrieval.parsing.formats.office_package import OfficePackage
from retrieval.parsing.formats.pptx import extract_pptx
from retrieval.parsing.formats.text_builder import TextBuilder
from retrieval.parsing.formats.xlsx import extract_xlsx
from retrieval.parsing.media_types import detect_file
from retrieval.parsing.structure import Heading, Structure

_OFFICE: Final = "application/vnd.openxmlformats-officedocument"
_CHARSET: Final = re.compile(r"""charset\s*=\s*"?([\w.:-]{1,40})""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ExtractedText:
    """The text of a file, not yet cut."""

    text: str
    """Never blank."""
    media_type: str
    """Detected, as in `ParsedDocument`."""
    structure: Structure
    """How the text is to be cut."""
    page_starts: Sequence[int] = ()
    """Offset in characters of each page, ascending; empty where the format has no pages."""
    headings: Sequence[Heading] = ()
    """Headings of a text whose structure is not `markdown` (a PDF's bookmarks); empty otherwise."""


def extract_file(path: Path, filename: str | None, media_type: str | None, limits: ParsingLimits) -> ExtractedText:
    """Return the text of a file of any format that is read. Blocks; limits neither time nor memory.

    The caller has checked that the file has at most `limits.max_file_bytes` bytes. `filename`, `media_type`: as the
    client named them, None where it did not.

    Raises:
        ParsingError: the format is not read, or the file is empty, encrypted, malformed or beyond a limit.
        OSError: the file does not exist, or cannot be read.
        Exception: a damaged file may make the libraries raise any other exception.
    """
    data = path.read_bytes()
    if not data:
        raise ParsingError("document_empty", "the file is empty")
    detected = detect_file(data, filename, media_type)
    builder = TextBuilder(limits)
    structure: Structure = "markdown"
    headings: Sequence[Heading] = ()
    kind = detected.media_type
    if detected.format == "text":
        text = decode_text(data, _find_declared(media_type))
        if len(text.encode("utf-8", "replace")) > limits.max_text_bytes:
            raise ParsingError("document_too_large", f"the text is larger than {limits.max_text_bytes} bytes")
        structure = detected.structure
    else:
        if detected.format == "html":
            extract_html(decode_text(data, find_charset(data) or _find_declared(media_type)), builder)
        elif detected.format == "mail":
            extract_mail(data, builder)
        elif detected.format == "pdf":
            # The library is loaded with the first PDF.
            from retrieval.parsing.formats.pdf import extract_pdf

            headings = extract_pdf(path, builder, limits)
            structure = "prose"
        else:
            kind = _extract_zip(path, builder, limits)
        text = builder.build()
    if not text or text.strip("\ufeff").isspace() or text == "\ufeff":
        reason = "its pages have no text, and are images perhaps" if kind == "application/pdf" else "it has no text"
        raise ParsingError("document_empty", f"nothing can be read from the file: {reason}")
    return ExtractedText(text, kind, structure, builder.page_starts, headings)


def _extract_zip(path: Path, builder: TextBuilder, limits: ParsingLimits) -> str:
    """Add the text of a DOCX, PPTX, XLSX or EPUB, and return which it is."""
    with OfficePackage(path, limits) as package:
        if epub.CONTAINER in package.names:
            epub.extract_epub(package, builder)
            return "application/epub+zip"
        main_part = next((name for kind, name in package.read_relations("").values() if kind == "officeDocument"), "")
        if main_part.startswith("word/"):
            extract_docx(package, main_part, builder)
            return f"{_OFFICE}.wordprocessingml.document"
        if main_part.startswith("ppt/"):
            extract_pptx(package, main_part, builder)
            return f"{_OFFICE}.presentationml.presentation"
        if main_part.startswith("xl/") and main_part.endswith(".xml"):
            extract_xlsx(package, main_part, builder, limits)
            return f"{_OFFICE}.spreadsheetml.sheet"
    raise ParsingError(
        "unsupported_media_type", "the file is a ZIP archive, and no DOCX, PPTX, XLSX or EPUB: add the files in it"
    )


def _find_declared(media_type: str | None) -> str | None:
    found = _CHARSET.search(media_type or "")
    return found.group(1) if found else None
