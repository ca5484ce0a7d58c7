"""Text of spreadsheets (XLSX): a heading per sheet, a line per row, the values of formulas, dates as dates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from retrieval.parsing.base import ParsingError, ParsingLimits
from retrieval.parsing.formats.office_package import OfficePackage
from retrieval.parsing.formats.text_builder import TextBuilder

_COLUMN: Final = re.compile(r"[A-Z]{1,3}")
_MOST_EMPTY_CELLS: Final = 50
"""Empty cells before a cell that are kept, so that columns stay aligned."""
_DATE_FORMATS: Final = frozenset((*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)))
"""Built-in formats of numbers that are dates or times."""
_NOT_OF_DATES: Final = re.compile(r'"[^"]*"|\\.|\[[^\]]*\]|_.|general|[^ymdhs]', re.IGNORECASE)


def extract_xlsx(package: OfficePackage, main_part: str, builder: TextBuilder, limits: ParsingLimits) -> None:
    """Add the text of a workbook's sheets to `builder`, as Markdown, in their order. Each sheet is a page, with its
    name as a heading and a row of a table for each row that has a value. For a formula its stored result is added, and
    dates are ISO dates. `main_part`: the part of the package that lists the sheets. Blocks.

    Raises:
        ParsingError: `document_malformed` or `document_too_large`.
    """
    relations = package.read_relations(main_part)
    sheets: list[tuple[str, str]] = []
    epoch = datetime(1899, 12, 30)  # noqa: DTZ001 - dates in sheets have no zone

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        nonlocal epoch
        if tag == "sheet":
            kind, name = relations.get(attributes.get("id", ""), ("", ""))
            if kind == "worksheet":
                sheets.append((attributes.get("name", ""), name))
        elif tag == "workbookPr" and attributes.get("date1904") in ("1", "true"):
            epoch = datetime(1904, 1, 1)  # noqa: DTZ001 - as above

    package.parse_part(main_part, start)
    parts = {kind: name for kind, name in relations.values() if name in package.names}
    strings = _read_strings(package, parts["sharedStrings"], limits) if "sharedStrings" in parts else []
    dates = _read_date_styles(package, parts["styles"]) if "styles" in parts else set()
    for title, name in sheets:
        builder.start_page()
        builder.add_block(f"# {' '.join(title.split())}")
        reader = _SheetReader(builder, strings, dates, epoch)
        package.parse_part(name, reader.start, reader.end, reader.take_text)


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


def _read_date_styles(package: OfficePackage, name: str) -> set[int]:
    """Return the numbers of the styles of cells that show a number as a date or a time."""
    formats: set[str] = {str(number) for number in _DATE_FORMATS}
    styles: list[str] = []
    in_cells = False

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        nonlocal in_cells
        if tag == "numFmt" and _NOT_OF_DATES.sub("", attributes.get("formatCode", "")):
            formats.add(attributes.get("numFmtId", ""))
        elif tag == "cellXfs":
            in_cells = True
        elif tag == "xf" and in_cells:
            styles.append(attributes.get("numFmtId", ""))

    def end(tag: str) -> None:
        nonlocal in_cells
        in_cells = in_cells and tag != "cellXfs"

    package.parse_part(name, start, end)
    return {number for number, style in enumerate(styles) if style in formats}


class _SheetReader:
    """Adds the rows of one sheet to a builder from XML events."""

    def __init__(self, builder: TextBuilder, strings: list[str], dates: set[int], epoch: datetime) -> None:
        self._builder = builder
        self._strings = strings
        self._dates = dates
        self._epoch = epoch
        self._row: list[str] = []
        self._kind = ""
        self._style = ""
        self._column = 0
        self._value: list[str] = []
        self._in_value = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Handle the start of an XML element: its name and attributes without namespaces."""
        if tag == "row":
            self._row = []
        elif tag == "c":
            self._kind, self._style = attributes.get("t", "n"), attributes.get("s", "")
            self._column = _read_column(attributes.get("r", ""), len(self._row))
            self._value.clear()
        elif tag in ("v", "t"):
            self._in_value = True

    def end(self, tag: str) -> None:
        """Handle the end of an XML element: its name without the namespace."""
        if tag in ("v", "t"):
            self._in_value = False
        elif tag == "c":
            self._add_cell(self._show_value("".join(self._value)))
        elif tag == "row" and self._row:
            self._builder.add_line(f"| {' | '.join(self._row)} |")

    def take_text(self, text: str) -> None:
        """Handle characters; those outside the values of cells are ignored."""
        if self._in_value:
            self._value.append(text)

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
                return _show_date(self._epoch, number)
        except (ValueError, OverflowError):
            return value
        return format(number, ".15g")


def _show_date(epoch: datetime, days: float) -> str:
    """Return an ISO date, a time of day if there is no date, or both."""
    moment = epoch + timedelta(seconds=round(days * 86_400))
    if days < 1:
        return moment.time().isoformat()
    return moment.date().isoformat() if days == int(days) else moment.isoformat(" ")


def _read_column(reference: str, default: int) -> int:
    """Return the column of a cell such as `AB12`, from 0."""
    found = _COLUMN.match(reference)
    if found is None:
        return default
    number = 0
    for letter in found.group():
        number = number * 26 + ord(letter) - 64
    return number - 1
