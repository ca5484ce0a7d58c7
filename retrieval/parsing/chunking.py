"""Cut a text into chunks of a bounded size, where its structure allows it best. Pure.

The embedding model may run on a remote host, and its tokenizer with it, so sizes of chunks are counted in estimated
tokens. One token is: up to five Latin letters of a word, up to two digits, up to two characters of the scripts from
U+0250 to U+0DFF (Greek, Cyrillic, Hebrew, Arabic, Indic), any other character that is not blank (punctuation, Chinese,
Japanese, Korean, emoji), and each 16 blanks or 16 line breaks in a row.

Estimate / real count, mean and (1st to 99th percentile) over 150 samples of 2,000 characters:

    text                     all-MiniLM-L6-v2 (WordPiece)   cl100k_base (BPE)
    Markdown, English        1.11 (0.99 to 1.21)            1.25 (1.11 to 1.58)
    plain text, English      1.10 (0.99 to 1.22)            1.14 (0.98 to 1.55)
    Python                   1.05 (0.91 to 1.21)            1.24 (1.00 to 1.56)
    JSON                     1.02 (0.97 to 1.09)            1.35 (1.00 to 1.87)
    Chinese, Japanese        1.03 (0.96 to 1.15)            1.21 (0.95 to 2.24)
    German                   0.82 (0.70 to 1.04)            1.03 (0.82 to 2.08)
    Russian                  0.74 (0.60 to 1.03)            1.32 (1.03 to 2.22)

It is chosen to be rather above than below, because engines cut or refuse an input that is too long. It is below only
where a vocabulary was made for another language (MiniLM's has English words, and spells German and Russian out).

A text is divided into units: sentences where lines are prose, else lines; a unit that is too large is divided into
words, and a giant word (base64, minified code) into parts of it. Every unit begins at a place where the text may be
cut, and the strength of that place says what is divided there.

Of the places where a chunk may end, the best one (`Strength`) beyond half of the chunk's size is taken, so that a chunk
ends before a heading rather than before a paragraph, and before a paragraph rather than within it. Text is counted
once: 8 to 14 MB/s, where semantic-text-splitter with a callback for sizes counts the same text 9 to 18 times (1.2 to
2.5 MB/s of the same texts on the same machine).
"""

from __future__ import annotations

import csv
import itertools
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal

from retrieval.parsing.base import ChunkingOptions, ChunkSpan

TOKEN: Final = re.compile(r"[A-Za-z\u00c0-\u024f]{1,5}|\d{1,2}|[\u0250-\u0dff]{1,2}|\S|[^\S\n]{16}|\n{16}")
"""Matches one estimated token. The pattern takes no line break together with anything else: so the tokens of two parts
of a text that meet at the start of a line, or at a token's first character, add up to the tokens of both together."""


def estimate_tokens(text: str) -> int:
    """Return the number of tokens, estimated by the pattern `TOKEN`; 0 for less than 16 characters of blank text."""
    return len(TOKEN.findall(text))


def count_tokens_between(text: str, start: int, end: int) -> int:
    """Return `estimate_tokens(text[start:end])`, without a copy of that part."""
    return len(TOKEN.findall(text, start, end))


Structure = Literal["markdown", "prose", "lines", "records"]
"""`markdown`: headings, lists, tables, fenced code. `prose`: paragraphs of sentences. `lines`: code and data, where a
line is the smallest part and indentation tells what belongs together. `records`: lines (CSV), of which the first names
the columns."""

LONGEST_HEADING: Final = 200
"""Characters of a heading that are carried along; the rest is left out."""
LONGEST_HEADER: Final = 1000
"""The same of a table's header row."""
_LINE: Final = re.compile(r"[^\n]*\n?")
_SENTENCE_END: Final = re.compile(
    r"""[.!?\u2026]["')\]*_\u00bb\u201d\u2019]*[^\S\n]+(?=[^\sa-z])|[\u3002\uff01\uff1f\uff61]["'\uff09\u300d\u300f\u3011\u201d\u2019]*(?=[^\s])"""
)
_SENTENCE_LAST: Final = tuple(".!?\u2026\u3002\uff01\uff1f:")
_LIST_ITEM: Final = re.compile(r"[-*+][ \t]|\d{1,9}[.)][ \t]|\|")
_FRONT_MATTER: Final = re.compile(r"\n?---[ \t]*\r?\n")
_FENCE: Final = re.compile(r"`{3,}|~{3,}")
_UNDERLINE: Final = re.compile(r"=+|-+")
_DELIMITER_ROW: Final = re.compile(r"(?=[^|]*\|)\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?")
_CELL_END: Final = re.compile(r"(?<!\\)\|")
_MOST_TITLES: Final = 3
_SEPARATORS: Final = ",;\t|"
_SEPARATOR_LINE: Final = re.compile(r"\s*sep=([^\s\w\"]|\t)\r?\n")
"""What Excel writes before the first record."""
_MOST_HEADER_LINES: Final = 10
_NUMBER: Final = re.compile(r"[-+]?[\d.,]*\d%?")
_JOINERS: Final = re.compile(r"[\u0300-\u036f\u200d\ufe00-\ufe0f\U0001f3fb-\U0001f3ff]")
"""Characters that belong to the one before them: combining accents, joiners, variations and skin tones of emoji."""
_CLOSERS: Final = (")", "]", "}", "end", "else", "elif", "except", "finally", "catch")


class Strength(IntEnum):
    """What a cut at a place in the text would divide. A higher value is a better place to cut."""

    PART_OF_WORD = 0
    WORD = 1
    LINE = 2
    SENTENCE = 3
    ITEM = 4
    """List item, table row, code after an empty line."""
    BLOCK = 5
    """Paragraph, list, fenced code; in code, what stands at the margin after an empty line."""
    PAGE = 6
    HEADING = 7
    """Heading of the sixth level; a heading of the first level has `HEADING + 5`, which has no name here."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of a text, in Markdown or from a PDF's bookmarks."""

    start: int
    """Offset in characters of the line that it begins."""
    level: int
    """From 1, the highest, to 6."""
    title: str
    """Without marks such as `##`, at most `LONGEST_HEADING` characters."""


@dataclass(slots=True)
class TableSpan:
    """A table of a text, in Markdown or CSV. Offsets are in characters."""

    header: list[tuple[int, str]]
    """The row that names the columns, and rows above it that have a title alone, each with the offset of its line, and
    at most `LONGEST_HEADER` characters."""
    end: int
    """Offset after the table's last row, blank lines included."""


@dataclass(slots=True)
class Units:
    """The units of a text, in its order. They cover the text, except blank lines at its beginning, and each ends where
    the next begins. The arrays have one element per unit, as texts of 32 MiB have millions of units."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    """Offsets in characters."""
    strengths: array[int] = field(default_factory=lambda: array("b"))
    """`Strength` of the place where the unit begins."""
    tokens: array[int] = field(default_factory=lambda: array("q"))
    """Estimated tokens of the unit."""
    headings: list[Heading] = field(default_factory=list)
    tables: list[TableSpan] = field(default_factory=list)


@dataclass(slots=True)
class _Line:
    """A line that is not blank, with what the lines before it say about its beginning."""

    start: int
    end: int
    """After its line break and all blank lines that follow."""
    strength: int
    is_prose: bool


def find_units(
    text: str, structure: Structure, limit: int, page_starts: Sequence[int] = (), headings: Sequence[Heading] = ()
) -> Units:
    """Divide a text into units of at most `limit` estimated tokens.

    A unit that is larger is divided between words, and a larger word within it. `limit`: at least 1. `page_starts`:
    offsets in characters of pages, ascending; one that is not the start of a line with text is ignored. `headings`:
    those of a text that is not Markdown, in its order; the headings of Markdown are found here, and returned in the
    result, and so are tables. Never raises for any text; blank text has no units.
    """
    units = Units(headings=list(headings))
    if structure == "records" and (table := _read_first_record(text)):
        units.tables.append(table)
    lines = _read_markdown(text, units) if structure == "markdown" else _read_lines(text, structure == "prose")
    pages = frozenset(page_starts)
    levels = {heading.start: heading.level for heading in headings}
    follows_heading = False
    for line in lines:
        if follows_heading:
            line.strength = Strength.WORD
        if line.start in pages:
            line.strength = max(line.strength, Strength.PAGE)
        follows_heading = line.start in levels
        if follows_heading:
            line.strength = _heading_strength(levels[line.start])
        _add_line(units, text, line, limit)
    return units


def _heading_strength(level: int) -> int:
    return Strength.HEADING + 6 - level


def _add_line(units: Units, text: str, line: _Line, limit: int) -> None:
    """Add the units of one line."""
    start, strength = line.start, line.strength
    if line.is_prose:
        for match in _SENTENCE_END.finditer(text, line.start, line.end):
            _add_unit(units, text, start, match.end(), strength, limit)
            start, strength = match.end(), Strength.SENTENCE
    _add_unit(units, text, start, line.end, strength, limit)


def _add_unit(units: Units, text: str, start: int, end: int, strength: int, limit: int) -> None:
    count = count_tokens_between(text, start, end)
    if count > limit:
        for part_start, part_strength, part_count in _divide_unit(text, start, end, limit):
            units.starts.append(part_start)
            units.strengths.append(strength if part_start == start else part_strength)
            units.tokens.append(part_count)
        return
    units.starts.append(start)
    units.strengths.append(strength)
    units.tokens.append(count)


def _divide_unit(text: str, start: int, end: int, limit: int) -> Iterator[tuple[int, int, int]]:
    """Divide a unit into parts of about an eighth of `limit`, between words where there is a place between words.

    Yields of each part: its first character, the strength there, its tokens.
    """
    wanted = max(1, limit // 8)
    part_start, part_strength, count = start, int(Strength.WORD), 0
    for match in TOKEN.finditer(text, start, end):
        at = match.start()
        if count >= wanted and at > part_start:
            previous, following = text[at - 1], text[at]
            is_word = previous.isspace() or not (previous.isalnum() and following.isalnum())
            if (is_word or count >= min(limit, 2 * wanted)) and (count >= limit or not _JOINERS.match(following)):
                yield part_start, part_strength, count
                part_start, part_strength, count = at, int(Strength.WORD if is_word else Strength.PART_OF_WORD), 0
        count += 1
    yield part_start, part_strength, count


def halve_text(text: str) -> tuple[str, str] | None:
    """Cut a text into two parts of about the same length: between words where there is such a place in the middle half
    of the text, else within a word, and within a character with its accents only where there is no other place. None:
    it has a single character."""
    if len(text) < 2:
        return None
    middle, reach = len(text) // 2, len(text) // 4
    places = sorted(range(max(1, middle - reach), middle + reach + 1), key=lambda at: abs(at - middle))
    between_words = (at for at in places if text[at - 1].isspace() and not text[at].isspace())
    within_words = (at for at in places if not _JOINERS.match(text[at]) and text[at - 1] != "\u200d")
    at = next(between_words, None) or next(within_words, middle)
    return text[:at], text[at:]


def _read_lines(text: str, is_prose: bool) -> Iterator[_Line]:
    """Yield the lines of prose, or of code and data."""
    previous, follows_blank, deepest = "", False, 0
    for start, end, content in _find_lines(text):
        indentation = len(content) - len(content.lstrip())
        bare = content.strip()
        if is_prose:
            strength = _prose_strength(previous, follows_blank)
        else:
            strength = _code_strength(bare, indentation, deepest, follows_blank)
            deepest = max(deepest, indentation) if not follows_blank else indentation
        follows_blank = text.count("\n", start, end) > 1
        previous = bare
        yield _Line(start, end, strength, is_prose)


def _prose_strength(previous: str, follows_blank: bool) -> int:
    if follows_blank:
        return Strength.BLOCK
    return Strength.SENTENCE if previous.endswith(_SENTENCE_LAST) else Strength.LINE


def _code_strength(content: str, indentation: int, deepest: int, follows_blank: bool) -> int:
    """`deepest`: the deepest indentation since the last empty line."""
    if content.startswith(_CLOSERS):
        return Strength.WORD
    if follows_blank:
        return Strength.BLOCK if indentation == 0 else Strength.ITEM
    return Strength.SENTENCE if indentation == 0 and deepest > 0 else Strength.LINE


def _read_markdown(text: str, units: Units) -> Iterator[_Line]:
    """Yield the lines of Markdown; headings and tables are noted in `units`."""
    lines = _find_lines(text)
    current = next(lines, None)
    fence, follows_blank, follows_heading, previous = "", True, False, ""
    table, above = _TableReader(units.tables), 0
    front_matter = _FRONT_MATTER.match(text) is not None
    while current is not None:
        start, end, content = current
        following = next(lines, None)
        bare = content.strip()
        strength, is_prose, is_heading = int(Strength.LINE), False, False
        if fence:
            strength = Strength.ITEM if follows_blank else Strength.LINE
            if bare.startswith(fence) and not bare.strip(fence[0]):
                strength, fence = int(Strength.WORD), ""
        elif front_matter:
            front_matter = not previous or bare != "---"
        elif opening := _FENCE.match(bare):
            fence = opening.group()
            strength = Strength.BLOCK
        elif heading := _read_heading(content, bare, text, end, following, follows_blank):
            units.headings.append(Heading(start, *heading))
            strength, is_heading = _heading_strength(heading[0]), True
        else:
            is_prose = True
            strength = _markdown_strength(bare, previous, follows_blank)
        if not is_prose or follows_blank:
            table.end(start)
        elif table.take_line(start, bare, above, previous):
            strength = int(Strength.WORD)
        if follows_heading:
            strength = int(Strength.WORD)
        above = start
        follows_heading = is_heading or (follows_heading and not bare.strip("=-"))
        follows_blank = text.count("\n", start, end) > 1
        previous = bare
        yield _Line(start, end, strength, is_prose)
        current = following
    table.end(len(text))


class _TableReader:
    """Notes the tables of Markdown, line by line."""

    def __init__(self, tables: list[TableSpan]) -> None:
        self._tables = tables
        self._rows = -1
        """Rows below the header of the table under way; -1: there is none."""

    def take_line(self, start: int, line: str, above_start: int, above: str) -> bool:
        """Take a line of text that follows the line `above` at once. Return whether it must not be parted from it: it
        is the line of dashes below a header, or the first row."""
        if self._rows < 0:
            if "|" not in above or not _DELIMITER_ROW.fullmatch(line):
                return False
            self._tables.append(TableSpan([(above_start, _shorten_row(above))], start))
        self._rows += 1
        header = self._tables[-1].header
        if 0 < self._rows <= _MOST_TITLES and _count_values(header[-1][1]) < 2:
            header.append((start, _shorten_row(line)))
        return self._rows < 2

    def end(self, end: int) -> None:
        """End the table under way, if there is one."""
        if self._rows >= 0:
            self._tables[-1].end = end
            self._rows = -1


def _shorten_row(row: str) -> str:
    return " ".join(row.split())[:LONGEST_HEADER]


def _count_values(row: str) -> int:
    """Return the number of different values in a row: merged cells repeat theirs."""
    return len({cell.strip() for cell in _CELL_END.split(row)} - {""})


def _read_first_record(text: str) -> TableSpan | None:
    """Return the table that a CSV is; None: its first record is of numbers alone, and names no columns."""
    start, separator = 0, ""
    if found := _SEPARATOR_LINE.match(text):
        start, separator = found.end(), found.group(1)
    head = text[start : start + 16 * LONGEST_HEADER]
    start += len(head) - len(head.lstrip())
    lines = _LINE.findall(head.lstrip())
    separator = separator or max(_SEPARATORS, key=lines[0].count)
    reader = csv.reader(lines, delimiter=separator)
    try:
        cells = next(reader)
    except csv.Error:  # it has a NUL
        return None
    record = " ".join("".join(itertools.islice(lines, reader.line_num)).splitlines())
    if len(record) > LONGEST_HEADER or reader.line_num > _MOST_HEADER_LINES:
        record = lines[0].strip()  # a quote in it has no end, perhaps
    if all(_NUMBER.fullmatch(cell.strip()) for cell in cells if cell.strip()):
        return None
    return TableSpan([(start, record[:LONGEST_HEADER])], len(text))


def _fit_header(header: list[tuple[int, str]], most: int) -> list[tuple[int, str]]:
    """Cut the rows behind a cell, so that they have at most `most` tokens together; the last row has room first."""
    fitting: list[tuple[int, str]] = []
    for start, row in reversed(header):
        ends = [match.end() for match in TOKEN.finditer(row)]
        separator = "|" if row.startswith("|") else max(_SEPARATORS, key=row.count)
        kept = row if len(ends) <= most else row[: max(0, row.rfind(separator, 0, ends[most]))].rstrip()
        most -= estimate_tokens(kept)
        if kept:
            fitting.insert(0, (start, kept))
    return fitting


def _markdown_strength(content: str, previous: str, follows_blank: bool) -> int:
    is_item = _LIST_ITEM.match(content) is not None
    if follows_blank:
        return Strength.ITEM if is_item and _LIST_ITEM.match(previous) else Strength.BLOCK
    if is_item:
        return Strength.ITEM if _LIST_ITEM.match(previous) else Strength.SENTENCE
    return Strength.SENTENCE if previous.endswith(_SENTENCE_LAST) else Strength.LINE


def _read_heading(
    content: str, bare: str, text: str, end: int, following: tuple[int, int, str] | None, follows_blank: bool
) -> tuple[int, str] | None:
    """Return level and text of a heading: `## Text`, or one line that stands above `===` or `---`."""
    if bare.startswith("#"):
        marks = len(bare) - len(bare.lstrip("#"))
        if marks > 6 or (len(bare) > marks and not bare[marks].isspace()):
            return None
        title = bare[marks:].strip()
        closing = title.rstrip("#")
        if closing != title and (not closing or closing[-1].isspace()):
            title = closing.rstrip()
        return (marks, title[:LONGEST_HEADING]) if title else None
    if (
        following is None
        or not follows_blank
        or following[0] != end
        or text.count("\n", 0 if end < 2 else end - 2, end) > 1
    ):
        return None
    underline = following[2].strip()
    if not _UNDERLINE.fullmatch(underline) or len(underline) < 2 or bare.startswith(("|", "-", ">")):
        return None
    return (1 if underline[0] == "=" else 2), bare[:LONGEST_HEADING]


def _find_lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and content of each line that is not blank. Blank lines belong to the line before them."""
    start, content = 0, ""
    for match in _LINE.finditer(text):
        line = match.group()
        if not line or line.isspace():
            continue
        if content:
            yield start, match.start(), content
        start, content = match.start(), line
    if content:
        yield start, len(text), content


_BYTE_ORDER_MARK: Final = "\ufeff"
_PREFERENCES: Final = (
    # Least part of a chunk's size, least strength.
    (0.5, Strength.BLOCK),
    (0.75, Strength.LINE),
    (0.5, Strength.LINE),
)


def cut_text(
    text: str,
    options: ChunkingOptions,
    structure: Structure = "prose",
    page_starts: Sequence[int] = (),
    headings: Sequence[Heading] = (),
) -> list[ChunkSpan]:
    """Return the chunks of a text, in its order; none for blank text.

    Every character that is not blank lies in at least one chunk, except a byte order mark at the beginning of the text.
    No chunk has more estimated tokens than `options.max_tokens`. The function cuts a sentence that is too large (with
    `lines`, a line) between words, and a word that is too large within the word. A chunk begins with the last sentences
    (lines, or words of one that was cut) of the chunk before it, as many as fit into `options.overlap_tokens`, but
    never with text from before a heading. A chunk has no blanks at its beginning and end, except the indentation of its
    first line.

    `page_starts`: offset in characters of every page, the first included, ascending, each at the start of a line; empty
    if the text has no pages, and then every `page` is None. `headings`: the headings of a text that is not Markdown, in
    the order of the text; leave it empty for Markdown, whose headings the function finds.

    Raises:
        ValueError: `options` are out of the range that `ChunkingOptions` states.
    """
    if options.max_tokens < 1 or not 0 <= options.overlap_tokens <= options.max_tokens // 2:
        raise ValueError("max_tokens must be at least 1, and overlap_tokens between 0 and half of max_tokens")
    body = "\n" + text[1:] if text.startswith(_BYTE_ORDER_MARK) else text
    units = find_units(body, structure, options.max_tokens - options.overlap_tokens, page_starts, headings)
    for table in units.tables:
        table.header = _fit_header(table.header, options.max_tokens // 4)
    spans = _trim_spans(body, _pack_units(units, len(text), options))
    offsets = _find_byte_offsets(text, spans)
    above = _Context(units)
    return [
        ChunkSpan(
            start=offsets[start],
            end=offsets[end],
            text=text[start:end],
            headings=above.find_path(start),
            page=max(1, bisect_right(page_starts, start)) if page_starts else None,
        )
        for start, end in spans
    ]


def _pack_units(units: Units, length: int, options: ChunkingOptions) -> list[tuple[int, int]]:
    """Return first character and end of each chunk, blanks included."""
    spans: list[tuple[int, int]] = []
    count = len(units.starts)
    first = done = 0
    while done < count:
        last, sizes = first, []
        size = 0
        while last < count and size + units.tokens[last] <= options.max_tokens:
            size += units.tokens[last]
            sizes.append(size)
            last += 1
        end = last if last == count else _choose_end(units, first, max(first, done) + 1, last, sizes, options)
        spans.append((units.starts[first], units.starts[end] if end < count else length))
        done = end
        first = _choose_overlap(units, first, end, options) if end < count else end
    return spans


def _choose_end(units: Units, first: int, least: int, last: int, sizes: Sequence[int], options: ChunkingOptions) -> int:
    """Return the unit before which a chunk ends that begins with `first`: one of `least` to `last`."""
    for part, floor in _PREFERENCES:
        best = -1
        for at in range(last, least - 1, -1):
            if sizes[at - first - 1] < part * options.max_tokens:
                break
            if units.strengths[at] >= floor and (best < 0 or units.strengths[at] > units.strengths[best]):
                best = at
        if best >= 0:
            return best
    for at in range(last, least - 1, -1):
        if units.strengths[at] >= Strength.WORD:
            return at
    return last


def _choose_overlap(units: Units, first: int, end: int, options: ChunkingOptions) -> int:
    """Return the unit that the next chunk begins with, after one from `first` to `end`."""
    if not options.overlap_tokens or units.strengths[end] >= Strength.HEADING:
        return end
    chosen, at, size = end, end, 0
    while at - 1 > first:
        at -= 1
        size += units.tokens[at]
        if size > options.overlap_tokens:
            break
        if units.strengths[at] >= Strength.WORD:
            chosen = at
        if units.strengths[at] >= Strength.HEADING:
            break
    return chosen


def _trim_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Leave out blank lines before and all blanks after each span, and the spans that then lie within a neighbour (they
    had a part of a giant run of blanks)."""
    trimmed: list[tuple[int, int]] = []
    for start, end in spans:
        kept = text[start:end].rstrip()
        last = start + len(kept)
        first = last - len(kept.lstrip())
        begin = max(start, text.rfind("\n", start, first) + 1)
        if not kept or (trimmed and last <= trimmed[-1][1]):
            continue
        if trimmed and begin == trimmed[-1][0]:
            trimmed.pop()
        trimmed.append((begin, last))
    return trimmed


def _find_byte_offsets(text: str, spans: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the UTF-8 offset of each character at which a span starts or ends."""
    offsets: dict[int, int] = {}
    at = offset = 0
    for position in sorted({position for span in spans for position in span}):
        offset += len(text[at:position].encode())
        offsets[position] = offset
        at = position
    return offsets


class _Context:
    """Finds the headings above positions in a text, and the header of the table that a position is in. Positions must
    be asked for in ascending order."""

    def __init__(self, units: Units) -> None:
        self._headings = units.headings
        self._tables = units.tables
        self._table = 0
        self._next = 0
        self._open: list[Heading] = []

    def find_path(self, position: int) -> tuple[str, ...]:
        """Return the titles of the headings above `position` (in characters), the outermost first, and then the header
        rows of the table that the position is in.

        A heading or a header row that begins at the position is not among them. No position may be smaller than in an
        earlier call.
        """
        while self._next < len(self._headings) and self._headings[self._next].start < position:
            heading = self._headings[self._next]
            self._close(heading.level)
            self._open.append(heading)
            self._next += 1
        if self._next < len(self._headings) and self._headings[self._next].start == position:
            # It ends those of its level that are open.
            self._close(self._headings[self._next].level)
        while self._table < len(self._tables) and self._tables[self._table].end <= position:
            self._table += 1
        header = self._tables[self._table].header if self._table < len(self._tables) else []
        return (*(heading.title for heading in self._open), *(row for start, row in header if start < position))

    def _close(self, level: int) -> None:
        while self._open and self._open[-1].level >= level:
            self._open.pop()
