"""Text of Word documents, presentations and spreadsheets (Office Open XML), as Markdown."""

from __future__ import annotations

import posixpath
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.parse import unquote
from xml.parsers import expat

from retrieval.parsing.base import ParsingError, ParsingLimits, TextBuilder

_MOST_PARTS: Final = 100_000
_BLOCK_BYTES: Final = 1024 * 1024
_EXPANSION: Final = 8
"""Bytes of XML that may be read per byte of text that is allowed."""

StartHandler = Callable[[str, Mapping[str, str]], None]
EndHandler = Callable[[str], None]
TextHandler = Callable[[str], None]


class OfficePackage:
    """An open ZIP file, which the `with` statement closes.

    Its parts are decompressed as they are read, each time anew. All of them together, repeated reads too, may expand
    to 8 times `limits.max_text_bytes`.
    """

    def __init__(self, path: Path, limits: ParsingLimits) -> None:
        """Open the file, and read its table of contents. Blocks, as all methods do; `names` are the names of its parts.

        Raises:
            ParsingError: `document_malformed`: it is no intact ZIP file; `document_encrypted`: a part of it is;
                `document_too_large`: it has more than 100,000 parts.
            OSError: the file cannot be opened.
        """
        try:
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
            raise ParsingError("document_malformed", f"the file is no intact ZIP archive ({error})") from error
        self._left = limits.max_text_bytes * _EXPANSION
        infos = self._archive.infolist()
        if len(infos) > _MOST_PARTS:
            raise ParsingError("document_too_large", f"the file has more than {_MOST_PARTS} parts")
        if any(info.flag_bits & 1 for info in infos):
            raise ParsingError("document_encrypted", "the file is encrypted, and needs a password")
        self.names = frozenset(info.filename for info in infos)

    def __enter__(self) -> OfficePackage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._archive.close()

    def read_part(self, name: str) -> bytes:
        """Return a part's bytes. Blocks.

        Raises:
            ParsingError: `document_malformed`: the part is missing or damaged; `document_too_large`: the parts read so
                far expand to more than is allowed.
        """
        blocks: list[bytes] = []
        self._read_blocks(name, blocks.append)
        return b"".join(blocks)

    def parse_part(
        self, name: str, start: StartHandler, end: EndHandler | None = None, text: TextHandler | None = None
    ) -> None:
        """Parse a part as XML, and call the handlers in the order of the part: `start` with the name and the attributes
        of an element, `end` with its name, `text` with characters between; a handler that is None is not called. Names
        have no namespace; of attributes whose names are then equal, the last is given. Exceptions of the handlers pass
        through, except ValueError and LookupError, which become ParsingError. Blocks.

        Raises:
            ParsingError: `document_malformed`: the part is missing, damaged, no XML, or declares entities;
                `document_too_large`: the parts read so far expand to more than is allowed.
        """
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.ordered_attributes = True
        parser.StartElementHandler = lambda tag, attributes: start(_get_local_name(tag), _get_attributes(attributes))
        if end is not None:
            parser.EndElementHandler = lambda tag: end(_get_local_name(tag))
        if text is not None:
            parser.CharacterDataHandler = text
        parser.EntityDeclHandler = _refuse_entity
        try:
            self._read_blocks(name, lambda block: parser.Parse(block, False))
            parser.Parse(b"", True)
        except (expat.ExpatError, LookupError, ValueError) as error:
            # The last two: of an encoding that is unknown, or that expat cannot read.
            raise ParsingError("document_malformed", f"{name} in the file is no well-formed XML ({error})") from error

    def read_relations(self, name: str) -> dict[str, tuple[str, str]]:
        """Return the parts that the part `name` refers to ("": the whole package): by the reference's id, the kind
        (`slide`, `worksheet`) and the name of the other part, which may be missing from the file.

        Empty where there are no references; those to addresses outside the file are left out. Blocks.

        Raises:
            ParsingError: `document_malformed` or `document_too_large`.
        """
        folder, base = posixpath.split(name)
        relations_name = f"{folder}/_rels/{base}.rels".lstrip("/")
        relations: dict[str, tuple[str, str]] = {}

        def start(tag: str, attributes: Mapping[str, str]) -> None:
            if tag == "Relationship" and attributes.get("TargetMode") != "External":
                target = resolve_name(folder, attributes.get("Target", ""))
                relations[attributes.get("Id", "")] = (attributes.get("Type", "").rpartition("/")[2], target)

        if relations_name in self.names:
            self.parse_part(relations_name, start)
        return relations

    def _read_blocks(self, name: str, take: Callable[[bytes], object]) -> None:
        if name not in self.names:
            raise ParsingError("document_malformed", f"the file lacks its part {name!r:.200}")
        try:
            with self._archive.open(name) as part:
                while block := part.read(_BLOCK_BYTES):
                    self._left -= len(block)
                    if self._left < 0:
                        raise ParsingError("document_too_large", "the file expands to more than is allowed")
                    take(block)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
            raise ParsingError("document_malformed", f"{name!r:.200} in the file is damaged ({error})") from error


def resolve_name(folder: str, target: str) -> str:
    """Return the name in the package of the part that `target`, a URL, refers to in a part of the folder `folder`.

    A URL that begins with `/` is relative to the package, another to the folder. The part may not exist: an empty
    target gives the folder, and one that leads out of the package a name with `..`, which no part has.
    """
    target = unquote(target.partition("#")[0])
    joined = target[1:] if target.startswith("/") else posixpath.join(folder, target)
    return posixpath.normpath(joined)


def _refuse_entity(*_: object) -> None:
    raise ParsingError("document_malformed", "the file declares XML entities, which no such document needs")


def _get_local_name(name: str) -> str:
    return name.rpartition(" ")[2]


def _get_attributes(pairs: list[str]) -> dict[str, str]:
    return {_get_local_name(pairs[at]): pairs[at + 1] for at in range(0, len(pairs), 2)}


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
