"""Text of Word documents (DOCX), as Markdown: headings, paragraphs, lists, tables, and notes after the text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from retrieval.parsing.formats.office_package import OfficePackage
from retrieval.parsing.formats.text_builder import TextBuilder

_HEADING_NAME: Final = re.compile(r"heading ([1-9])")
_CHARACTERS: Final = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_NOTES: Final = ("footnotes", "endnotes")


def extract_docx(package: OfficePackage, main_part: str, builder: TextBuilder) -> None:
    """Add the text of a document to `builder`, as Markdown, its footnotes and endnotes last. Deleted text of tracked
    changes, codes of fields, page headers and page footers are left out. `main_part`: the part of the package that is
    the document. Blocks.

    Raises:
        ParsingError: `document_malformed` or `document_too_large`.
    """
    relations = package.read_relations(main_part)
    parts = {kind: name for kind, name in relations.values() if name in package.names}
    levels = _read_heading_styles(package, parts["styles"]) if "styles" in parts else {}
    for name in (main_part, *(parts[kind] for kind in _NOTES if kind in parts)):
        reader = _DocumentReader(builder, levels)
        package.parse_part(name, reader.start, reader.end, reader.take_text)


def _read_heading_styles(package: OfficePackage, name: str) -> dict[str, int]:
    """Return the levels, from 1, of the styles of headings by their ids."""
    levels: dict[str, int] = {}
    current = ""

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        nonlocal current
        value = attributes.get("val", "")
        if tag == "style":
            current = attributes.get("styleId", "")
        elif tag == "name":
            lowered = value.lower()
            if found := _HEADING_NAME.fullmatch(lowered):
                levels[current] = int(found.group(1))
            elif lowered == "title":
                levels[current] = 1
        elif tag == "outlineLvl" and value.isdecimal() and int(value) < 9:
            levels[current] = int(value) + 1

    package.parse_part(name, start)
    return levels


class _Paragraph:
    """A paragraph whose end was not read yet."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.level = 0
        """Level of a heading, from 1; 0: the paragraph is no heading."""
        self.is_item = False


class _DocumentReader:
    """Adds paragraphs, lists and tables to a builder from the XML events of the document, or of its notes."""

    def __init__(self, builder: TextBuilder, levels: Mapping[str, int]) -> None:
        self._builder = builder
        self._levels = levels
        self._paragraphs: list[_Paragraph] = []
        """Under way, each within the one before it (in text boxes)."""
        self._rows: list[list[str]] = []
        """Cells of the rows under way, each within the one before it (in nested tables)."""
        self._fallbacks = 0
        self._in_text = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Handle the start of an XML element: its name and attributes without namespaces."""
        if tag == "Fallback":
            self._fallbacks += 1
        if self._fallbacks:
            return
        if tag == "p":
            self._paragraphs.append(_Paragraph())
        elif tag == "tbl":
            self._builder.end_lines()
        elif tag == "tr":
            self._rows.append([])
        elif tag == "tc" and self._rows:
            self._rows[-1].append("")
        elif self._paragraphs:
            self._start_in_paragraph(tag, attributes)

    def end(self, tag: str) -> None:
        """Handle the end of an XML element: its name without the namespace."""
        if tag == "Fallback":
            self._fallbacks -= 1
        elif self._fallbacks:
            return
        elif tag == "t":
            self._in_text = False
        elif tag == "p" and self._paragraphs:
            self._add_paragraph(self._paragraphs.pop())
        elif tag == "tr" and self._rows:
            self._add_row(self._rows.pop())

    def take_text(self, text: str) -> None:
        """Handle characters; those outside text runs are ignored."""
        if self._in_text and not self._fallbacks:
            self._paragraphs[-1].texts.append(text)

    def _start_in_paragraph(self, tag: str, attributes: Mapping[str, str]) -> None:
        paragraph = self._paragraphs[-1]
        if tag == "t":
            self._in_text = True
        elif tag in _CHARACTERS and "pos" not in attributes and "val" not in attributes:
            # Tab stops are called `tab` too.
            paragraph.texts.append(_CHARACTERS[tag])
        elif tag == "pStyle":
            paragraph.level = self._levels.get(attributes.get("val", ""), 0)
        elif tag == "outlineLvl":
            value = attributes.get("val", "")
            paragraph.level = int(value) + 1 if value.isdecimal() and int(value) < 9 else paragraph.level
        elif tag == "numPr":
            paragraph.is_item = True

    def _add_paragraph(self, paragraph: _Paragraph) -> None:
        text = "".join(paragraph.texts).strip()
        if not text:
            return
        if self._rows and self._rows[-1]:
            cells = self._rows[-1]
            cells[-1] = f"{cells[-1]} {' '.join(text.split())}".strip()
        elif paragraph.level:
            self._builder.add_block(f"{'#' * min(paragraph.level, 6)} {' '.join(text.split())}")
        elif paragraph.is_item:
            self._builder.add_line(f"- {text}")
        else:
            self._builder.add_block("\\" + text if text.startswith("#") else text)

    def _add_row(self, cells: list[str]) -> None:
        if not any(cells):
            return
        if self._rows and self._rows[-1]:
            outer = self._rows[-1]
            outer[-1] = f"{outer[-1]} {' '.join(filter(None, cells))}".strip()
        else:
            self._builder.add_line(f"| {' | '.join(cells)} |")
