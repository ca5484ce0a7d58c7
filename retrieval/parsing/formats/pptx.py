"""Text of presentations (PPTX), as Markdown: a heading per slide, paragraphs and tables, and the speaker's notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from retrieval.parsing.formats.office_package import OfficePackage
from retrieval.parsing.formats.text_builder import TextBuilder

_TITLES: Final = ("title", "ctrTitle")
_FURNITURE: Final = ("sldNum", "dt", "ftr", "hdr", "sldImg")
"""Placeholders that every slide has: number, date, footer."""


def extract_pptx(package: OfficePackage, main_part: str, builder: TextBuilder) -> None:
    """Add the text of a presentation's slides to `builder`, as Markdown, in their order. Each slide is a page, with its
    title as a heading and the speaker's notes at its end. `main_part`: the part of the package that lists the slides.
    Blocks.

    Raises:
        ParsingError: `document_malformed` or `document_too_large`.
    """
    relations = package.read_relations(main_part)
    slides: list[str] = []

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        # It has an id without a namespace too, and the later attribute wins where both are called `id`.
        if tag == "sldId":
            kind, name = relations.get(attributes.get("id", ""), ("", ""))
            if kind == "slide":
                slides.append(name)

    package.parse_part(main_part, start)
    for name in slides:
        builder.start_page()
        reader = _SlideReader()
        package.parse_part(name, reader.start, reader.end, reader.take_text)
        if reader.title:
            builder.add_block(f"# {reader.title}")
        for block in reader.blocks:
            builder.add_block(block)
        for kind, notes in package.read_relations(name).values():
            if kind == "notesSlide" and notes in package.names:
                reader = _SlideReader()
                package.parse_part(notes, reader.start, reader.end, reader.take_text)
                builder.add_block("\n\n".join(reader.blocks))


class _SlideReader:
    """Collects the title and the paragraphs of one slide, or of its notes, from XML events. The part's end completes
    both."""

    def __init__(self) -> None:
        self.title = ""
        self.blocks: list[str] = []
        """Texts of the shapes, in the part's order, each with its paragraphs and table rows as lines."""
        self._placeholder = ""
        self._shape: list[str] = []
        self._paragraph: list[str] = []
        self._row: list[str] | None = None
        self._in_text = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Handle the start of an XML element: its name and attributes without namespaces."""
        if tag in ("sp", "graphicFrame"):
            self._placeholder = ""
            self._end_shape()
        elif tag == "ph":
            self._placeholder = attributes.get("type", "body")
        elif tag == "tr":
            self._row = []
        elif tag == "tc" and self._row is not None:
            self._row.append("")
        elif tag == "t":
            self._in_text = True
        elif tag == "br":
            self._paragraph.append("\n")

    def end(self, tag: str) -> None:
        """Handle the end of an XML element: its name without the namespace."""
        if tag == "t":
            self._in_text = False
        elif tag == "p":
            self._end_paragraph()
        elif tag == "tr" and self._row is not None:
            if any(self._row):
                self._shape.append(f"| {' | '.join(self._row)} |")
            self._row = None
        elif tag in ("sp", "graphicFrame", "sld", "notes"):
            self._end_shape()

    def take_text(self, text: str) -> None:
        """Handle characters; those outside text runs are ignored."""
        if self._in_text:
            self._paragraph.append(text)

    def _end_paragraph(self) -> None:
        text = "".join(self._paragraph).strip()
        self._paragraph.clear()
        if not text:
            return
        if self._row:
            self._row[-1] = f"{self._row[-1]} {' '.join(text.split())}".strip()
        else:
            self._shape.append("\\" + text if text.startswith("#") else text)

    def _end_shape(self) -> None:
        lines, self._shape = self._shape, []
        if not lines or self._placeholder in _FURNITURE:
            return
        if self._placeholder in _TITLES and not self.title:
            self.title = " ".join(" ".join(lines).split())
        else:
            self.blocks.append("\n".join(lines))
