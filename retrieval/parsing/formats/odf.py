"""Text of OpenDocument files (ODT, ODS, ODP, ODG and their templates), as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from retrieval.parsing.base import Cell, ParsingError, Table, TextBuilder
from retrieval.parsing.formats.office import OfficePackage, read_count, resolve_name

MIMETYPE: Final = "mimetype"
"""The part that says what the package is."""
TYPE: Final = "application/vnd.oasis.opendocument."
"""What its content begins with."""
_KIND: Final = re.compile(rf"{re.escape(TYPE)}[a-z-]{{1,40}}")
_CONTENT: Final = "content.xml"
_STYLES: Final = "styles.xml"
_MANIFEST: Final = "META-INF/manifest.xml"
_LEFT_OUT: Final = frozenset(
    ("tracked-changes", "covered-table-cell", "note-citation", "ruby-text", "forms", "desc", "sheet-name")
)
"""Deleted text, what merged cells hide, marks of notes, readings above Chinese characters."""
_FURNITURE: Final = ("header", "footer", "date-time", "page-number")
_MASTER: Final = ("header", "header-left", "header-first", "footer", "footer-left", "footer-first")
_MOST_COLUMNS: Final = 16_384
_MOST_EMPTY: Final = 50
"""Empty cells in a row that are kept, so that columns stay aligned."""
_BLANK: Final = {"s": " ", "tab": "\t", "line-break": "\n"}
_BLANKS: Final = re.compile(r"\s+")
_DEEPEST_OBJECT: Final = 3


def extract_odf(package: OfficePackage, builder: TextBuilder) -> str:
    """Add the text of a file to `builder`, as Markdown, and return its media type. Sheets and slides are pages. Page
    headers of a text come first, page footers last, each once; footnotes and comments stand behind the text or the page
    that has them, charts as tables. Deleted text of tracked changes is left out. Blocks.

    Raises:
        ParsingError: `document_encrypted`, `document_malformed` or `document_too_large`.
    """
    kind = package.read_part(MIMETYPE).decode("ascii", "replace").strip()
    if not _KIND.fullmatch(kind):
        raise ParsingError("document_malformed", f"the file's mimetype {kind!r:.80} is no OpenDocument's")
    if _MANIFEST in package.names:
        package.parse_part(_MANIFEST, _refuse_encryption)
    is_text = kind.startswith(f"{TYPE}text")
    master = _read_master(package) if is_text and _STYLES in package.names else []
    for each in dict.fromkeys(text for name, text in master if name.startswith("header")):
        builder.add_paragraph(each)
    _add_content(package, "", builder, 0)
    for each in dict.fromkeys(text for name, text in master if name.startswith("footer")):
        builder.add_paragraph(each)
    return kind


def _refuse_encryption(tag: str, _: Mapping[str, str]) -> None:
    if tag == "encryption-data":
        raise ParsingError("document_encrypted", "the file is encrypted, and needs a password")


def _add_content(package: OfficePackage, folder: str, builder: TextBuilder, depth: int) -> None:
    """Add the content of the package, or of an object in it (a chart) that lies in `folder`."""

    def add_object(target: str) -> None:
        inner = f"{resolve_name(folder, target)}/"
        if f"{inner}{_CONTENT}" in package.names and depth < _DEEPEST_OBJECT:
            _add_content(package, inner, builder, depth + 1)

    reader = _ContentReader(builder, add_object, has_pages=depth == 0)
    package.parse_part(f"{folder}{_CONTENT}", reader.start, reader.end, reader.take_text)
    reader.add_later()


def _read_master(package: OfficePackage) -> list[tuple[str, str]]:
    """Return the texts of page headers and page footers, each with its element's name."""
    found: list[tuple[str, str]] = []
    pieces: list[str] = []
    opened = ""

    def start(tag: str, _: Mapping[str, str]) -> None:
        nonlocal opened
        if tag in _MASTER:
            opened = tag
            pieces.clear()
        elif tag in ("s", "tab", "line-break"):
            pieces.append(" ")

    def end(tag: str) -> None:
        nonlocal opened
        if tag == "p":
            pieces.append("\n")
        elif tag == opened:
            opened = ""
            if text := "\n".join(line for line in map(str.strip, "".join(pieces).split("\n")) if line):
                found.append((tag, text))

    package.parse_part(_STYLES, start, end, lambda text: pieces.append(_BLANKS.sub(" ", text)) if opened else None)
    return found


class _Open:
    """A paragraph, a comment or a note whose end was not read yet."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.texts: list[str] = []


class _OpenCell:
    """A cell whose end was not read yet."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        self.texts: list[str] = []
        self.columns = read_count(attributes, "number-columns-spanned")
        self.rows = read_count(attributes, "number-rows-spanned")
        self.repeated = read_count(attributes, "number-columns-repeated")
        kind = attributes.get("value-type", "")
        self.value = attributes.get("date-value", "") if kind == "date" else ""
        """What is added in place of the text that is shown; "": the latter is."""
        if kind == "float":
            try:
                self.value = format(float(attributes.get("value", "")), ".15g")
            except ValueError:
                self.value = attributes.get("value", "")


class _ContentReader:
    """Adds paragraphs, lists, tables and pages to a builder from the XML events of a content. Call `add_later` at the
    end."""

    def __init__(self, builder: TextBuilder, add_object: Callable[[str], None], *, has_pages: bool) -> None:
        self._builder = builder
        self._add_object = add_object
        self._has_pages = has_pages
        self._objects: dict[str, None] = {}
        """Folders of the objects of the page."""
        self._paragraphs: list[_Open] = []
        """Under way, each within the one before it (in text boxes and notes). Frames, comments and notes have one, too,
        for what is in them outside paragraphs: titles, authors, dates."""
        self._apart: list[_Open] = []
        """Comments and notes under way, each within the one before it; `texts` are their paragraphs."""
        self._later: list[str] = []
        """Comments and notes of the page."""
        self._rows: list[list[_OpenCell]] = []
        """Cells of the rows under way, each within the one before it (in nested tables)."""
        self._repeated: list[int] = []
        self._table: Table | None = None
        self._lists = 0
        self._frame = ""
        """Class of the frame: `title`, `footer`, ..."""
        self._is_sheet = False
        self._left_out = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Handle the start of an XML element: its name and attributes without namespaces."""
        if tag in _LEFT_OUT:
            self._left_out += 1
        if self._left_out:
            return
        if tag in ("p", "h"):
            level = min(read_count(attributes, "outline-level"), 6)
            self._paragraphs.append(_Open("#" * level + " " if tag == "h" else ""))
        elif tag in _BLANK:
            self._add_text(_BLANK[tag] * min(read_count(attributes, "c"), 100))
        elif tag == "list":
            self._lists += 1
        elif tag in ("annotation", "note"):
            self._apart.append(_Open("Comment: " if tag == "annotation" else ""))
            self._paragraphs.append(_Open())
        elif tag == "creator" and self._apart:
            self._paragraphs[-1].texts.clear()
        elif tag.startswith("table"):
            self._start_in_table(tag, attributes)
        else:
            self._start_on_page(tag, attributes)

    def _start_on_page(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "object":
            self._objects[attributes.get("href", "")] = None
        elif tag == "frame":
            self._frame = attributes.get("class", "")
            self._paragraphs.append(_Open())
        elif tag == "spreadsheet":
            self._is_sheet = self._has_pages
        elif tag == "page" and self._has_pages:
            self.add_later()
            self._builder.start_page()

    def _start_in_table(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "table" and self._is_sheet and not self._rows:
            self.add_later()
            self._builder.start_page()
            self._builder.add_block(f"# {' '.join(attributes.get('name', '').split())}")
        elif tag == "table-row":
            self._rows.append([])
            self._repeated.append(read_count(attributes, "number-rows-repeated"))
        elif tag == "table-cell" and self._rows:
            self._rows[-1].append(_OpenCell(attributes))

    def end(self, tag: str) -> None:
        """Handle the end of an XML element: its name without the namespace."""
        if tag in _LEFT_OUT:
            self._left_out -= 1
        elif self._left_out:
            return
        elif tag in ("p", "h") and self._paragraphs:
            self._add_paragraph(self._paragraphs.pop())
        elif tag == "list":
            self._lists -= 1
            if not self._lists:
                self._builder.end_lines()
        elif tag in ("annotation", "note", "creator") and self._apart:
            self._end_apart(tag)
        elif tag == "frame" and self._paragraphs:
            self._frame = ""
            self._paragraphs.pop()
        elif tag == "table-row" and self._rows:
            self._add_row(self._rows.pop(), self._repeated.pop())
        elif tag == "table" and not self._rows:
            self._end_table()

    def _end_apart(self, tag: str) -> None:
        if tag == "creator":
            self._apart[-1].prefix = f"Comment by {''.join(self._paragraphs[-1].texts).strip()}: "
            return
        apart = self._apart.pop()
        self._paragraphs.pop()
        if apart.texts:
            self._later.append(apart.prefix + "\n".join(apart.texts))

    def take_text(self, text: str) -> None:
        """Handle characters; those outside paragraphs and authors are ignored."""
        if not self._left_out:
            self._add_text(_BLANKS.sub(" ", text))

    def add_later(self) -> None:
        """Add the table under way, and the objects, comments and notes since the last call."""
        self._end_table()
        for target in self._objects:
            self._add_object(target)
        self._objects.clear()
        for text in self._later:
            self._builder.add_paragraph(text)
        self._later.clear()

    def _add_text(self, text: str) -> None:
        if self._paragraphs:
            self._paragraphs[-1].texts.append(text)

    def _add_paragraph(self, paragraph: _Open) -> None:
        text = "".join(paragraph.texts).strip()
        if not text or self._frame in _FURNITURE:
            return
        if self._apart:
            self._apart[-1].texts.append(text)
        elif self._rows and self._rows[-1]:
            self._rows[-1][-1].texts.append(text)
        else:
            self._end_table()
            prefix = "# " if self._frame == "title" else paragraph.prefix
            if prefix:
                self._builder.add_block(prefix + " ".join(text.split()))
            elif self._lists:
                self._builder.add_line(f"{'  ' * min(self._lists - 1, 5)}- {text}")
            else:
                self._builder.add_paragraph(text)

    def _add_row(self, cells: list[_OpenCell], repeated: int) -> None:
        while cells and not (cells[-1].texts or cells[-1].value):
            cells.pop()
        if self._rows and self._rows[-1]:
            for cell in cells:
                self._rows[-1][-1].texts += cell.texts
            return
        self._table = self._table or Table(self._builder.limits)
        row: list[Cell] = []
        for each in cells:
            text = each.value or " ".join(each.texts)
            row += [Cell(text, each.columns, each.rows)] * min(each.repeated, _MOST_COLUMNS if text else _MOST_EMPTY)
            if len(row) > _MOST_COLUMNS:
                break
        for _ in range(repeated if row else 1):
            self._table.add_row(row)

    def _end_table(self) -> None:
        table, self._table = self._table, None
        if table is not None:
            self._builder.add_paragraph(table.render())
