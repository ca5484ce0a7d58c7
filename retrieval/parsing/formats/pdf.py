"""Text of PDFs, page by page, through PDFium. Pages that are images alone have no text: there is no OCR."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pypdfium2
import pypdfium2.raw as pdfium

from retrieval.parsing.base import ParsingError, ParsingLimits
from retrieval.parsing.formats.text_builder import TextBuilder

_HYPHEN: Final = re.compile(r"[\ufffe\x02]\s*")
"""PDFium's mark of a hyphen at the end of a line, within a word."""
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0e-\x1f\ufffe\uffff]")


def extract_pdf(path: Path, builder: TextBuilder, limits: ParsingLimits) -> None:
    """Add the text of a PDF. One that is encrypted without a password for reading is read.

    Raises:
        ParsingError: `document_encrypted`, `document_malformed` or `document_too_large`.
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
        for number in range(count):
            builder.start_page()
            builder.add_block(_read_page(document, number))
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
        text = text_page.get_text_bounded()
        text_page.close()
    finally:
        page.close()
    return _UNPRINTABLE.sub("", _HYPHEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
