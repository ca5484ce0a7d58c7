"""Text of spreadsheets (Office Open XML), as Markdown tables."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from retrieval.parsing.base import LONGEST_REPEATED, ParsingError, ParsingLimits, Table, TextBuilder
from retrieval.parsing.formats.office import (
    DURATION,
    EPOCH,
    EPOCH_1904,
    OfficePackage,
    is_date_format,
    read_authors,
    read_comments,
    read_drawn_parts,
    read_paragraphs,
    show_date,
)

_COLUMN: Final = re.compile(r"[A-Z]{1,3}")
_MOST_EMPTY_CELLS: Final = 50
"""Empty cells before a cell that are kept, so that columns stay aligned."""
_DATE_FORMATS: Final = frozenset((*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)))
"""Built-in formats of numbers that are dates or times; 46 is a duration."""
_MERGING: Final = 4
"""Characters that may be looked at for merged cells per byte of text that is allowed."""


def extract_xlsx(package: OfficePackage, main_part: str, builder: TextBuilder, limits: ParsingLimits) -> None:
    """Add the text of a workbook's sheets to `builder`, as Markdown, in their order, hidden ones too. Each sheet is a
    page: its name as a heading, tables of the rows that have a value, and then text boxes, charts and comments. For a
    formula its stored result is added, and dates are ISO dates. `main_part`: the part of the package that lists the
    sheets. Blocks.

    Raises:
        ParsingError: `document_malformed` or `document_too_large`.
    """
    relations = package.read_relations(main_part)
    sheets: list[tuple[str, str]] = []
    epoch = EPOCH

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        nonlocal epoch
        if tag == "sheet":
            kind, name = relations.get(attributes.get("id", ""), ("", ""))
            if kind in ("worksheet", "chartsheet"):
                sheets.append((attributes.get("name", ""), name))
        elif tag == "workbookPr" and attributes.get("date1904") in ("1", "true"):
            epoch = EPOCH_1904

    package.parse_part(main_part, start)
    parts = {kind: name for kind, name in relations.values() if name in package.names}
    strings = _read_strings(package, parts["sharedStrings"], limits) if "sharedStrings" in parts else []
    dates = _read_date_styles(package, parts["styles"]) if "styles" in parts else {}
    authors = read_authors(package, main_part)
    for title, name in sheets:
        builder.start_page()
        builder.add_block(f"# {' '.join(title.split())}")
        reader = _SheetReader(strings, dates, epoch, limits)
        package.parse_part(name, reader.start, reader.end, reader.take_text)
        for table in reader.read_tables():
            builder.add_paragraph(table.render())
        for block in _read_beside(package, name, authors):
            builder.add_paragraph(block)


def _read_beside(package: OfficePackage, name: str, authors: Mapping[str, str]) -> list[str]:
    """Return what lies on a sheet and not in its cells: text boxes, charts, diagrams and comments."""
    blocks: list[str] = []
    relations = [(kind, part) for kind, part in package.read_relations(name).values() if part in package.names]
    for part in (part for kind, part in relations if kind == "drawing"):
        blocks += (*read_paragraphs(package, part), *read_drawn_parts(package, part))
    for part in (part for kind, part in relations if kind in ("comments", "threadedComment")):
        blocks += read_comments(package, part, authors)
    return blocks


def _read_strings(package: OfficePackage, name: str, limits: ParsingLimits) -> list[str]:
    """Return the strings that cells refer to by number, without the readings of Japanese ones."""
    strings: list[str] = []
    pieces: list[str] = []
    open_tags: list[str] = []
    size = 0

    def take_text(text: str) -> None:
        nonlocal size
        if open_tags and open_tags[-1] == "t" and "rPh" not in open_tags:
            size += len(text.encode())
            if size > limits.max_text_bytes:
                raise ParsingError("document_too_large", f"the text is larger than {limits.max_text_bytes} bytes")
            pieces.append(text)

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        if tag in ("si", "t", "rPh"):
            open_tags.append(tag)

    def end(tag: str) -> None:
        if tag in ("si", "t", "rPh"):
            open_tags.pop()
        if tag == "si":
            strings.append(" ".join("".join(pieces).split()))
            pieces.clear()

    package.parse_part(name, start, end, take_text)
    return strings


def _read_date_styles(package: OfficePackage, name: str) -> dict[int, bool]:
    """Return the numbers of the styles of cells that show a number as a date or a time, and whether as a duration."""
    formats = {str(number): number == 46 for number in _DATE_FORMATS}
    styles: list[str] = []
    in_cells = False

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        nonlocal in_cells
        if tag == "numFmt" and is_date_format(attributes.get("formatCode", "")):
            formats[attributes.get("numFmtId", "")] = DURATION.search(attributes["formatCode"]) is not None
        elif tag == "cellXfs":
            in_cells = True
        elif tag == "xf" and in_cells:
            styles.append(attributes.get("numFmtId", ""))

    def end(tag: str) -> None:
        nonlocal in_cells
        in_cells = in_cells and tag != "cellXfs"

    package.parse_part(name, start, end)
    return {number: formats[style] for number, style in enumerate(styles) if style in formats}


_MERGED: Final = re.compile(r"([A-Z]{1,3})(\d{1,7}):([A-Z]{1,3})(\d{1,7})")
_DIGITS: Final = re.compile(r"(?:^|\x1f)[-+]?\d[\d.,:eE+ -]*(?:$|\x1f)")
"""A cell that is a number, a date or a time."""
_SEPARATOR: Final = "\x1f"
"""Between the cells of a row that is kept. No XML has this character."""


class _SheetReader:
    """Collects the rows of one sheet from XML events, and makes tables of them at the end, where the sheet says which
    cells are merged."""

    def __init__(self, strings: list[str], dates: Mapping[int, bool], epoch: datetime, limits: ParsingLimits) -> None:
        self._strings = strings
        self._dates = dates
        self._epoch = epoch
        self._limits = limits
        self._rows: list[str] = []
        """Rows that have a value, with `_SEPARATOR` between the cells: one string each, as there may be millions."""
        self._numbers = array("q")
        """Of these rows."""
        self._size = 0
        self._left = limits.max_text_bytes * _MERGING
        self._merged: list[tuple[int, int, int, int]] = []
        """Of each range of merged cells: first and last row, first and last column."""
        self._number = 0
        self._row: list[str] = []
        self._kind = ""
        self._style = ""
        self._column = 0
        self._value: list[str] = []
        self._in_value = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Handle the start of an XML element: its name and attributes without namespaces."""
        if tag == "row":
            number = attributes.get("r", "")
            self._number = int(number) if number.isdecimal() and len(number) < 8 else self._number + 1
            self._row = []
        elif tag == "c":
            self._kind, self._style = attributes.get("t", "n"), attributes.get("s", "")
            self._column = _read_column(attributes.get("r", ""), len(self._row))
            self._value.clear()
        elif tag in ("v", "t"):
            self._in_value = True
        elif tag == "mergeCell" and (found := _MERGED.fullmatch(attributes.get("ref", ""))):
            left, top, right, bottom = found.groups()
            self._merged.append((int(top), int(bottom), _read_column(left, 0), _read_column(right, 0)))

    def end(self, tag: str) -> None:
        """Handle the end of an XML element: its name without the namespace."""
        if tag in ("v", "t"):
            self._in_value = False
        elif tag == "c":
            self._add_cell(self._show_value("".join(self._value)))
        elif tag == "row" and self._row:
            self._numbers.append(self._number)
            self._rows.append("")
            self._keep_row(len(self._rows) - 1, self._row)

    def take_text(self, text: str) -> None:
        """Handle characters; those outside the values of cells are ignored."""
        if self._in_value:
            self._value.append(text)

    def read_tables(self) -> Iterator[Table]:
        """Yield the tables of the sheet. Empty rows end one where the row below them looks like the header of another:
        texts alone, where the row above them has a number or other columns. Call it once, at the end of the part."""
        places = {number: at for at, number in enumerate(self._numbers)} if self._merged else {}
        for merged in self._merged:
            if self._left > 0:
                self._repeat(places, *merged)
        table, previous, last = Table(self._limits), -1, ""
        for at, number in enumerate(self._numbers):
            row, self._rows[at] = self._rows[at], ""
            if previous >= 0 and number > previous + 1 and _is_header(row, last):
                yield table
                table = Table(self._limits)
            table.add_texts(row.split(_SEPARATOR))
            previous, last = number, row
        yield table

    def _repeat(self, places: Mapping[int, int], top: int, bottom: int, left: int, right: int) -> None:
        """Write the value of a merged cell into the cells that it covers, below it and beside it; not beside it where
        it is alone in its row, as a title is."""
        first = self._split_row(places[top]) if top in places else []
        value = first[left] if left < len(first) else ""
        if not value or len(value) > LONGEST_REPEATED or (top == bottom and sum(map(bool, first)) == 1):
            return
        numbers = range(top, bottom + 1) if bottom - top < len(places) else places
        self._left -= len(numbers)
        for at in (places[number] for number in numbers if top <= number <= bottom and number in places):
            if self._left < 0:
                return
            row = self._split_row(at)
            row += [""] * (min(right, _MOST_EMPTY_CELLS) + 1 - len(row))
            for column in range(left, min(right, _MOST_EMPTY_CELLS) + 1):
                row[column] = row[column] or value
            self._keep_row(at, row)

    def _split_row(self, at: int) -> list[str]:
        self._left -= len(self._rows[at]) + _MOST_EMPTY_CELLS
        return self._rows[at].split(_SEPARATOR)

    def _keep_row(self, at: int, cells: list[str]) -> None:
        row = _SEPARATOR.join(cells)
        self._size += len(row) - len(self._rows[at])
        if self._size > self._limits.max_text_bytes:
            limit = self._limits.max_text_bytes
            raise ParsingError("document_too_large", f"the document's text is larger than {limit} bytes")
        self._rows[at] = row

    def _add_cell(self, value: str) -> None:
        if value:
            self._row += [""] * min(_MOST_EMPTY_CELLS, max(0, self._column - len(self._row)))
            self._row.append(value)

    def _show_value(self, value: str) -> str:
        if self._kind == "s":
            return self._strings[int(value)] if value.isdecimal() and int(value) < len(self._strings) else ""
        if self._kind == "b":
            return "TRUE" if value == "1" else "FALSE"
        if self._kind != "n":
            return " ".join(value.split())
        try:
            number = float(value)
            if self._style.isdecimal() and int(self._style) in self._dates:
                return show_date(self._epoch, number, is_duration=self._dates[int(self._style)])
        except (ValueError, OverflowError):
            return value
        return format(number, ".15g")


def _is_header(row: str, above: str) -> bool:
    """Whether a row below empty ones begins another table than `above` is of."""
    cells, others = ([bool(cell) for cell in each.split(_SEPARATOR)] for each in (row, above))
    if sum(cells) < 2 or _DIGITS.search(row):
        return False
    return cells != others or _DIGITS.search(above) is not None


def _read_column(reference: str, default: int) -> int:
    """Return the column of a cell such as `AB12`, from 0."""
    found = _COLUMN.match(reference)
    if found is None:
        return default
    number = 0
    for letter in found.group():
        number = number * 26 + ord(letter) - 64
    return number - 1
