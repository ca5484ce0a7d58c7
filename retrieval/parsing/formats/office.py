"""Text of Word documents and presentations (Office Open XML), as Markdown; and what all packages of XML parts have in
common: the ZIP file, charts, diagrams, comments."""

from __future__ import annotations

import posixpath
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.parse import unquote
from xml.parsers import expat

from retrieval.parsing.base import Cell, ParsingError, ParsingLimits, Table, TextBuilder

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
        self.limits: Final = limits
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


def read_paragraphs(package: OfficePackage, name: str) -> list[str]:
    """Return the texts of the paragraphs of a drawing or a diagram, in the part's order, blank ones left out. Blocks.
    Raises ParsingError."""
    found: list[str] = []
    pieces: list[str] = []
    fallbacks = 0
    is_text = False

    def start(tag: str, _: Mapping[str, str]) -> None:
        nonlocal fallbacks, is_text
        fallbacks += tag == "Fallback"
        is_text = tag == "t" and not fallbacks
        if tag == "br":
            pieces.append("\n")

    def end(tag: str) -> None:
        nonlocal fallbacks, is_text
        fallbacks -= tag == "Fallback"
        is_text = False
        if tag == "p":
            if text := "".join(pieces).strip():
                found.append(text)
            pieces.clear()

    package.parse_part(name, start, end, lambda text: pieces.append(text) if is_text else None)
    return found


def read_drawn_parts(package: OfficePackage, name: str) -> list[str]:
    """Return the texts of the charts and diagrams that a part refers to, as Markdown: a chart as its titles and a table
    of its values, a diagram (SmartArt) as its paragraphs. Blocks. Raises ParsingError."""
    blocks: list[str] = []
    for kind, target in package.read_relations(name).values():
        if target not in package.names:
            continue
        if kind == "chart":
            chart = _ChartReader()
            package.parse_part(target, chart.start, chart.end, chart.take_text)
            blocks += chart.render(package.limits)
        elif kind == "diagramData":
            blocks += read_paragraphs(package, target)
    return blocks


EPOCH: Final = datetime(1899, 12, 30)  # noqa: DTZ001 - dates in sheets and charts have no zone
EPOCH_1904: Final = datetime(1904, 1, 1)  # noqa: DTZ001 - as above
_NOT_OF_DATES: Final = re.compile(r'"[^"]*"|\\.|\[[^\]]{0,100}\]|_.|general|[^ymdhs]', re.IGNORECASE)

DURATION: Final = re.compile(r"\[(?:h+|m+|s+)\]", re.IGNORECASE)
"""What a format of numbers that shows them as durations has, such as `[h]:mm`."""


def is_date_format(code: str) -> bool:
    """Return whether a format of numbers, such as `yyyy-mm-dd`, shows them as dates, times or durations."""
    return bool(DURATION.search(code) or _NOT_OF_DATES.sub("", code))


def show_date(epoch: datetime, days: float, *, is_duration: bool = False) -> str:
    """Return an ISO date, a time of day if there is no date, or both; of a duration, its hours, minutes and seconds.
    Raises OverflowError for no date."""
    if is_duration:
        minutes, seconds = divmod(abs(round(days * 86_400)), 60)
        return f"{'-' if days < 0 else ''}{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    if days < 0:
        raise OverflowError
    moment = epoch + timedelta(seconds=round(days * 86_400))
    if days < 1:
        return moment.time().isoformat()
    return moment.date().isoformat() if days == int(days) else moment.isoformat(" ")


class _ChartReader:
    """Collects the titles, categories and series of a chart from XML events."""

    def __init__(self) -> None:
        self._titles: list[str] = []
        self._series: list[dict[str, dict[int, str]]] = []
        """Of each series: `tx` (its name), `cat` or `xVal` (categories) and `val`, `yVal` or `bubbleSize`, by index."""
        self._open: list[str] = []
        self._field = ""
        self._epoch = EPOCH
        self._dated: dict[int, bool] = {}
        """Numbers of the series whose categories are dates, and whether they are durations."""
        self._index = 0
        self._text: list[str] = []

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Handle the start of an XML element: its name and attributes without namespaces."""
        self._open.append(tag)
        if tag == "ser":
            self._series.append({})
        elif tag == "date1904" and attributes.get("val") in ("1", "true"):
            self._epoch = EPOCH_1904
        elif self._series and tag in ("tx", "cat", "xVal", "val", "yVal", "bubbleSize"):
            self._field = tag
        elif tag == "pt":
            index = attributes.get("idx", "")
            self._index = int(index) if index.isdecimal() else self._index + 1
        elif tag in ("v", "t", "title", "formatCode"):
            self._text.clear()

    def end(self, tag: str) -> None:
        """Handle the end of an XML element: its name without the namespace."""
        self._open.pop()
        if tag == "t" and "title" in self._open:
            self._titles.append("".join(self._text))
        elif tag == "formatCode" and self._field in ("cat", "xVal") and is_date_format("".join(self._text)):
            self._dated[len(self._series)] = DURATION.search("".join(self._text)) is not None
        elif tag == "v" and "ser" in self._open and "dLbls" not in self._open:
            # Categories of several levels have one value for each level.
            values = self._series[-1].setdefault(self._field, {})
            index = self._index if "pt" in self._open else 0
            text = self._show("".join(self._text))
            values[index] = f"{values[index]} {text}" if index in values else text
        elif tag == "title":
            self._titles.append("\n")

    def take_text(self, text: str) -> None:
        """Handle characters; those outside values and titles are ignored."""
        if self._open and self._open[-1] in ("v", "t", "formatCode"):
            self._text.append(text)

    def _show(self, value: str) -> str:
        try:
            number = float(value)
            if self._field in ("cat", "xVal") and len(self._series) in self._dated:
                return show_date(self._epoch, number, is_duration=self._dated[len(self._series)])
        except (ValueError, OverflowError):
            return value
        return value if self._field == "tx" else format(number, ".15g")

    def render(self, limits: ParsingLimits) -> list[str]:
        """Return the titles, and the series as columns of a table. Raises ParsingError."""
        table = Table(limits)
        labels = next((found for each in self._series if (found := each.get("cat") or each.get("xVal"))), {})
        columns = [
            (" ".join(each.get("tx", {}).values()), values)
            for each in self._series
            for field in ("val", "yVal", "bubbleSize")
            if (values := each.get(field))
        ]
        table.add_texts(["", *(name for name, _ in columns)])
        for index in sorted({index for _, values in columns for index in values}):
            table.add_texts([labels.get(index, ""), *(values.get(index, "") for _, values in columns)])
        titles = [" ".join(title.split()) for title in "".join(self._titles).split("\n")]
        return [*filter(None, titles), table.render()]


_HEADING_NAME: Final = re.compile(r"heading ([1-9])")
_CHARACTERS: Final = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_NOTES: Final = ("footnotes", "endnotes")
_LEFT_OUT: Final = frozenset(("Fallback", "del", "moveFrom", "rt"))
"""What Word draws otherwise where it cannot draw the choice; deleted text, text where it was moved from, and readings
above Chinese characters."""


def extract_docx(package: OfficePackage, main_part: str, builder: TextBuilder) -> None:
    """Add the text of a document to `builder`, as Markdown: page headers first, each once, then the body, and last
    charts and diagrams, footnotes, endnotes, comments and page footers. Deleted text of tracked changes and codes of
    fields are left out. `main_part`: the part of the package that is the document. Blocks.

    Raises:
        ParsingError: `document_malformed` or `document_too_large`.
    """
    relations = [(kind, name) for kind, name in package.read_relations(main_part).values() if name in package.names]
    parts = dict(relations)
    levels = _read_heading_styles(package, parts["styles"]) if "styles" in parts else {}
    for name in _find_once(package, relations, "header"):
        _add_document_part(package, name, builder, levels)
    _add_document_part(package, main_part, builder, levels)
    for block in read_drawn_parts(package, main_part):
        builder.add_paragraph(block)
    for name in (parts[kind] for kind in (*_NOTES, "comments") if kind in parts):
        _add_document_part(package, name, builder, levels)
    for name in _find_once(package, relations, "footer"):
        _add_document_part(package, name, builder, levels)


def _find_once(package: OfficePackage, relations: Sequence[tuple[str, str]], wanted: str) -> list[str]:
    """Return the parts of one kind, those with the text of an earlier one left out: sections often repeat theirs."""
    found: dict[tuple[str, ...], str] = {}
    for kind, name in relations:
        if kind == wanted:
            found.setdefault(tuple(read_paragraphs(package, name)), name)
    return list(found.values())


def _add_document_part(package: OfficePackage, name: str, builder: TextBuilder, levels: Mapping[str, int]) -> None:
    reader = _DocumentReader(builder, levels)
    package.parse_part(name, reader.start, reader.end, reader.take_text)
    reader.end_table()


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


class _OpenCell:
    """A cell of a table whose end was not read yet; of a row, also the columns that it leaves out at its beginning."""

    def __init__(self, columns: int = 1) -> None:
        self.texts: list[str] = []
        self.columns = columns
        self.is_continued = False


class _DocumentReader:
    """Adds paragraphs, lists and tables to a builder from the XML events of the document, or of its notes, comments,
    page headers or page footers. Call `end_table` at the end."""

    def __init__(self, builder: TextBuilder, levels: Mapping[str, int]) -> None:
        self._builder = builder
        self._levels = levels
        self._paragraphs: list[_Paragraph] = []
        """Under way, each within the one before it (in text boxes)."""
        self._rows: list[list[_OpenCell]] = []
        """Cells of the rows under way, each within the one before it (in nested tables)."""
        self._table: Table | None = None
        self._prefix = ""
        """What stands before the first paragraph of a comment."""
        self._choices: list[str] = []
        self._chosen = 0
        """Index in `_choices`: those of the form's field under way."""
        self._left_out = 0
        self._in_text = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Handle the start of an XML element: its name and attributes without namespaces."""
        if tag in _LEFT_OUT:
            self._left_out += 1
        if self._left_out:
            return
        if tag == "p":
            self._paragraphs.append(_Paragraph())
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("tc", "gridBefore", "gridSpan", "vMerge") and self._rows:
            self._start_cell(tag, attributes)
        elif tag == "comment":
            author = attributes.get("author")
            self._prefix = f"Comment by {author}: " if author else "Comment: "
        elif self._paragraphs:
            self._start_in_paragraph(tag, attributes)

    def end(self, tag: str) -> None:
        """Handle the end of an XML element: its name without the namespace."""
        if tag in _LEFT_OUT:
            self._left_out -= 1
        elif self._left_out:
            return
        elif tag == "t":
            self._in_text = False
        elif tag == "p" and self._paragraphs:
            self._add_paragraph(self._paragraphs.pop())
        elif tag in ("checkBox", "ddList") and self._paragraphs:
            self._paragraphs[-1].texts += self._choices[self._chosen : self._chosen + 1]
        elif tag == "tr" and self._rows:
            self._add_row(self._rows.pop())
        elif tag == "tbl" and not self._rows:
            self.end_table()

    def take_text(self, text: str) -> None:
        """Handle characters; those outside text runs are ignored."""
        if self._in_text and not self._left_out:
            self._paragraphs[-1].texts.append(text)

    def end_table(self) -> None:
        """Add the table whose rows were read, if there is one."""
        if self._table is not None:
            self._builder.add_paragraph(self._table.render())
            self._table = None

    def _start_cell(self, tag: str, attributes: Mapping[str, str]) -> None:
        row, value = self._rows[-1], attributes.get("val", "")
        count = int(value) if value.isdecimal() and len(value) < 6 else 1
        if tag == "tc":
            row.append(_OpenCell())
        elif tag == "gridBefore":
            row += (_OpenCell() for _ in range(min(count, _MOST_LEFT_OUT)))
        elif row and tag == "gridSpan":
            row[-1].columns = count
        elif row:
            row[-1].is_continued = value != "restart"

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
        else:
            self._start_in_field(tag, attributes.get("val", ""))

    def _start_in_field(self, tag: str, value: str) -> None:
        """Note what a check box or a list of a form says."""
        if tag in ("checkBox", "ddList"):
            self._choices, self._chosen = (["\u2610", "\u2612"], 0) if tag == "checkBox" else ([], 0)
        elif tag == "listEntry":
            self._choices.append(value)
        elif tag in ("default", "checked", "result"):
            self._chosen = int(value) if value.isdecimal() and len(value) < 6 else int(value in ("", "true", "on"))

    def _add_paragraph(self, paragraph: _Paragraph) -> None:
        text = "".join(paragraph.texts).strip()
        if not text:
            return
        if self._rows and self._rows[-1]:
            self._rows[-1][-1].texts.append(" ".join(text.split()))
            return
        self.end_table()
        if paragraph.level and not self._prefix:
            self._builder.add_block(f"{'#' * min(paragraph.level, 6)} {' '.join(text.split())}")
        elif paragraph.is_item and not self._prefix:
            self._builder.add_line(f"- {text}")
        else:
            text, self._prefix = self._prefix + text, ""
            self._builder.add_paragraph(text)

    def _add_row(self, cells: list[_OpenCell]) -> None:
        if self._rows and self._rows[-1]:
            for cell in cells:
                self._rows[-1][-1].texts += cell.texts
        else:
            self._table = self._table or Table(self._builder.limits)
            self._table.add_row([Cell(" ".join(each.texts), each.columns, 1, each.is_continued) for each in cells])


_MOST_LEFT_OUT: Final = 64
"""Columns at the beginning of a row."""
_TITLES: Final = ("title", "ctrTitle")
_FURNITURE: Final = ("sldNum", "dt", "ftr", "hdr", "sldImg")
"""Placeholders that every slide has: number, date, footer."""


def extract_pptx(package: OfficePackage, main_part: str, builder: TextBuilder) -> None:
    """Add the text of a presentation's slides to `builder`, as Markdown, in their order. Each slide is a page, with its
    title as a heading, then texts and tables, charts and diagrams, comments, and the speaker's notes. `main_part`: the
    part of the package that lists the slides. Blocks.

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
    authors = read_authors(package, main_part)
    for name in slides:
        builder.start_page()
        reader = _SlideReader(builder.limits)
        package.parse_part(name, reader.start, reader.end, reader.take_text)
        if reader.title:
            builder.add_block(f"# {reader.title}")
        for block in (*reader.blocks, *read_drawn_parts(package, name)):
            builder.add_paragraph(block)
        _add_beside_slide(package, name, builder, authors)


def _add_beside_slide(package: OfficePackage, name: str, builder: TextBuilder, authors: Mapping[str, str]) -> None:
    """Add the comments and the notes of a slide."""
    for wanted in ("comments", "notesSlide"):
        for kind, target in package.read_relations(name).values():
            if kind != wanted or target not in package.names:
                continue
            if kind == "comments":
                blocks = read_comments(package, target, authors)
            else:
                reader = _SlideReader(builder.limits)
                package.parse_part(target, reader.start, reader.end, reader.take_text)
                blocks = reader.blocks
            for block in blocks:
                builder.add_paragraph(block)


def read_authors(package: OfficePackage, main_part: str) -> dict[str, str]:
    """Return the names of those who wrote comments on slides or cells, by their ids. Blocks. Raises ParsingError."""
    names: dict[str, str] = {}

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        if tag in ("author", "cmAuthor", "person"):
            names[attributes.get("id", "")] = attributes.get("name") or attributes.get("displayName", "")

    for kind, target in package.read_relations(main_part).values():
        if kind in ("authors", "commentAuthors", "person") and target in package.names:
            package.parse_part(target, start)
    return names


_COMMENTS: Final = ("cm", "reply", "comment", "threadedComment")


def read_comments(package: OfficePackage, name: str, authors: Mapping[str, str]) -> list[str]:
    """Return the comments of a slide or a sheet, each with its author (by `authors`, or the part's own list) and its
    cell. Those that only stand for a thread of another part are left out. Blocks. Raises ParsingError."""
    reader = _CommentReader(authors)
    package.parse_part(name, reader.start, reader.end, reader.take_text)
    return reader.comments


class _CommentReader:
    """Collects the comments of one part from XML events."""

    def __init__(self, authors: Mapping[str, str]) -> None:
        self.comments: list[str] = []
        self._authors = authors
        self._own: list[str] = []
        """Authors that the part itself lists, by their numbers."""
        self._open: list[tuple[str, str]] = []
        """Cell and author of the comments under way, each within the one that it answers."""
        self._open_tag = ""
        self._pieces: list[str] = []

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Handle the start of an XML element: its name and attributes without namespaces."""
        if tag in _COMMENTS:
            by = attributes.get("authorId") or attributes.get("personId", "")
            is_own = by.isdecimal() and int(by) < len(self._own)
            author = self._own[int(by)] if is_own else self._authors.get(by, "")
            self._open.append((attributes.get("ref", ""), author))
            self._pieces.clear()
        elif tag == "author":
            self._own.append("")
        if tag in ("author", "t", "text"):
            self._open_tag = tag

    def end(self, tag: str) -> None:
        """Handle the end of an XML element: its name without the namespace."""
        self._open_tag = ""
        if tag == "p":
            self._pieces.append("\n")
        elif self._open and tag in (*_COMMENTS, "txBody"):
            place, author = self._open.pop() if tag != "txBody" else self._open[-1]
            text = "".join(self._pieces).strip()
            self._pieces.clear()
            if text and not author.startswith("tc="):
                where = f" on {place}" if place else ""
                self.comments.append(f"Comment{where}{f' by {author}' if author else ''}: {text}")

    def take_text(self, text: str) -> None:
        """Handle characters; those outside comments and names of authors are ignored."""
        if self._open_tag == "author":
            self._own[-1] += text
        elif self._open_tag:
            self._pieces.append(text)


class _SlideReader:
    """Collects the title and the paragraphs of one slide, or of its notes, from XML events. The part's end completes
    both."""

    def __init__(self, limits: ParsingLimits) -> None:
        self.title = ""
        self.blocks: list[str] = []
        """Texts of the shapes, in the part's order, each with its paragraphs as lines, or a table."""
        self._limits = limits
        self._placeholder = ""
        self._shape: list[str] = []
        self._paragraph: list[str] = []
        self._table: Table | None = None
        self._row: list[Cell] | None = None
        self._cell: list[str] | None = None
        self._spans = (1, 1, False)
        """Of the cell: columns, rows, whether a merged cell covers it."""
        self._in_text = False
        self._fallbacks = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Handle the start of an XML element: its name and attributes without namespaces."""
        if tag == "Fallback":
            self._fallbacks += 1
        if self._fallbacks:
            return
        if tag in ("sp", "graphicFrame"):
            self._placeholder = ""
            self._end_shape()
        elif tag == "ph":
            self._placeholder = attributes.get("type", "body")
        elif tag == "tbl":
            self._end_shape()
            self._table = Table(self._limits)
        elif tag == "tr":
            self._row = []
        elif tag == "tc" and self._row is not None:
            self._cell = []
            is_covered = "1" in (attributes.get("hMerge"), attributes.get("vMerge"))
            self._spans = (read_count(attributes, "gridSpan"), read_count(attributes, "rowSpan"), is_covered)
        elif tag == "t":
            self._in_text = True
        elif tag == "br":
            self._paragraph.append("\n")

    def end(self, tag: str) -> None:
        """Handle the end of an XML element: its name without the namespace."""
        if tag == "Fallback":
            self._fallbacks -= 1
        elif self._fallbacks:
            return
        elif tag == "t":
            self._in_text = False
        elif tag == "p":
            self._end_paragraph()
        elif tag in ("sp", "graphicFrame", "sld", "notes"):
            self._end_shape()
        elif self._table is not None:
            self._end_in_table(tag, self._table)

    def take_text(self, text: str) -> None:
        """Handle characters; those outside text runs are ignored."""
        if self._in_text:
            self._paragraph.append(text)

    def _end_in_table(self, tag: str, table: Table) -> None:
        if tag == "tc" and self._row is not None:
            columns, rows, is_covered = self._spans
            if not is_covered:
                self._row.append(Cell(" ".join(self._cell or ()), columns, rows))
            self._cell = None
        elif tag == "tr" and self._row is not None:
            table.add_row(self._row)
            self._row = None
        elif tag == "tbl":
            self.blocks.append(table.render())
            self._table = None

    def _end_paragraph(self) -> None:
        text = "".join(self._paragraph).strip()
        self._paragraph.clear()
        if not text:
            return
        if self._cell is not None:
            self._cell.append(text)
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


def read_count(attributes: Mapping[str, str], name: str) -> int:
    """Return an attribute's number of columns or rows, 1 where it is missing, no number, or beyond a million."""
    value = attributes.get(name, "")
    return max(1, int(value)) if value.isdecimal() and len(value) < 7 else 1
