"""What parsing makes of a file: its text, collected within limits, the chunks of that text, and the frames in which the
pool and its processes speak of them. Pure.

A frame is 4 bytes of mark, the lengths of its two parts as 32-bit big-endian numbers, a JSON object, and raw bytes. The
raw bytes of an answer are the text in UTF-8; its JSON has the places of chunks in it, not their texts again.
"""

from __future__ import annotations

import itertools
import json
import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, cast, get_args

MIB = 1024 * 1024

ParsingErrorCode = Literal[
    "document_empty",
    "document_encrypted",
    "document_malformed",
    "document_not_text",
    "document_too_large",
    "parsing_failed",
    "parsing_timeout",
    "unsupported_media_type",
]


@dataclass(frozen=True, slots=True)
class ChunkingOptions:
    """How large chunks are. Both sizes are in tokens, estimated from the text (see `retrieval.parsing.chunking`)."""

    max_tokens: int
    """Most tokens of a chunk, the overlap included; at least 1."""
    overlap_tokens: int
    """Most tokens that a chunk repeats of the one before it; from 0 to half of `max_tokens`."""


@dataclass(frozen=True, slots=True)
class ParsingLimits:
    """What one file may take. A file beyond one of these is refused with ParsingError, never cut off."""

    max_file_bytes: int = 64 * MIB
    max_text_bytes: int = 32 * MIB
    """Of the extracted text, in UTF-8."""
    max_pages: int = 5_000
    """Pages of a PDF, slides or sheets; chapters of an EPUB are not counted."""
    timeout_s: float = 120.0
    """Seconds from the moment that the file is given to a process to its answer, the wait for a free process not
    included; also the most processor seconds, rounded up."""
    memory_bytes: int = 1024 * MIB
    """Address space of the process that parses, Python included."""


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """One chunk: a part of a document's text."""

    start: int
    """Offset of its first byte in the text's UTF-8."""
    end: int
    """Offset after its last byte. Never within a character."""
    text: str
    """The text between both."""
    headings: tuple[str, ...]
    """Headings above the chunk, the outermost first, and then the header row of the table that the chunk begins in, cut
    to a quarter of a chunk; empty where there are none. What the chunk begins with is in its text, not among these."""
    page: int | None
    """Page (slide, sheet) that the chunk begins on, from 1; None where the format has none."""


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """A file's text and its chunks."""

    text: str
    """Of plain text, Markdown, code, CSV, JSON and XML in UTF-8: the file's own characters, a byte order mark included,
    so that offsets hold in the file. In another encoding: the file's characters. Of HTML, PDF, Office, EPUB and e-mail:
    the text that was extracted, as Markdown where the format has structure. Never blank."""
    media_type: str
    """Detected from the content first, which need not be the type that the client named; without parameters."""
    chunks: Sequence[ChunkSpan]
    """In the order of the text. At least one."""


class ParsingError(Exception):
    """A file cannot be parsed. The text says why in plain words, for the client that sent the file.

    A later try fails in the same way, except that a busy machine, a killed process or a closed parser may also cause
    `parsing_timeout` and `parsing_failed`. `code`: what is wrong.
    """

    def __init__(self, code: ParsingErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ParsingErrorCode = code


class Parser(Protocol):
    """Parses files, a bounded number at a time; further calls wait, in the order of their arrival."""

    async def parse_file(
        self, path: Path, *, filename: str | None, media_type: str | None, chunking: ChunkingOptions
    ) -> ParsedDocument:
        """Extract the text of a file, and cut it into chunks.

        `filename`, `media_type`: as the client named them, None where it did not; both are hints that the content may
        contradict. `path` must stay until the return. Cancelling the call ends the parsing.

        Raises:
            ParsingError: the file is malformed, encrypted, empty, of an unknown format, or goes beyond a limit; the
                process that parsed it hung or died; `chunking` is out of range; or the parser was closed.
            OSError: the file does not exist, or no process can be started.
        """
        ...

    async def close(self) -> None:
        """End the processes, and wait until they are gone. Calls under way and later ones raise ParsingError."""
        ...


class TextBuilder:
    """Builds the text of one file from blocks and lines, and records where its pages begin."""

    def __init__(self, limits: ParsingLimits) -> None:
        self.limits: Final = limits
        self._parts: list[str] = []
        self._length = 0
        self._bytes = 0
        self._was_line = False
        self.page_starts: list[int] = []
        """Offset in the text of each page's first character, in characters, one per `start_page`. A page without text
        has the offset at which the next text would begin, so equal offsets and one beyond the end occur."""

    def start_page(self) -> None:
        """Begin the next page, slide or sheet: what is added from now on belongs to it.

        Raises:
            ParsingError: `document_too_large`: there are more pages than `limits.max_pages`.
        """
        if len(self.page_starts) >= self.limits.max_pages:
            raise ParsingError("document_too_large", f"the document has more than {self.limits.max_pages} pages")
        self.page_starts.append(self._length + 2 if self._parts else 0)
        self._was_line = False

    def add_block(self, text: str) -> None:
        """Add a paragraph, a heading or another block, as it is, after an empty line. Line breaks at both ends are left
        out. Does nothing for blank text.

        Raises:
            ParsingError: `document_too_large`: the whole text would be larger than `limits.max_text_bytes`.
        """
        if self._add(text, "\n\n"):
            self._was_line = False

    def add_paragraph(self, text: str) -> None:
        """Add a block that is no heading, although it may begin with `#`: that is escaped. As `add_block` else."""
        self.add_block("\\" + text if text.startswith("#") else text)

    def add_line(self, text: str) -> None:
        """Add an item of a list. It follows the line that the last `add_line` added without an
        empty line, unless a block, a page or `end_lines` came between. Blank text is left out.

        Raises:
            ParsingError: `document_too_large`: the whole text would be larger than `limits.max_text_bytes`.
        """
        if self._add(text, "\n" if self._was_line else "\n\n"):
            self._was_line = True

    def end_lines(self) -> None:
        """Let the next `add_line` begin after an empty line, so that two lists stay apart."""
        self._was_line = False

    def build(self) -> str:
        """Return the text so far; "" where nothing was added. More may be added afterwards."""
        return "".join(self._parts)

    def _add(self, text: str, separator: str) -> bool:
        """Return whether there was anything to add."""
        text = text.strip("\n")
        if not text or text.isspace():
            return False
        if not self._parts:
            separator = ""
        self._bytes += len(text.encode("utf-8", "replace")) + len(separator)
        if self._bytes > self.limits.max_text_bytes:
            limit = self.limits.max_text_bytes
            raise ParsingError("document_too_large", f"the document's text is larger than {limit} bytes")
        self._parts += (separator, text)
        self._length += len(separator) + len(text)
        return True


_MOST_FILLED: Final = 32
"""Columns of a table whose short rows get empty cells up to its width, and of a merged cell that repeat its text."""
LONGEST_REPEATED: Final = 200
"""Characters of a merged cell's text that its other columns and rows repeat."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table, perhaps a merged one."""

    text: str
    """Any text: blanks and line breaks in it become single blanks, and `|` is escaped."""
    columns: int = 1
    """Columns that it covers, from its own on."""
    rows: int = 1
    """Rows that it covers, from its own on. Cells of later rows that it covers are not given to `add_row`."""
    is_continued: bool = False
    """It is the lower part of the cell above it, for formats that say so instead of counting `rows`."""


class Table:
    """Collects the rows of one table, and writes them as Markdown. The first row that has a text is the header.

    All columns and rows that a merged cell covers repeat its text, so that each row can be read by itself; long texts
    (over 200 characters) are not repeated, nor is that of a cell alone in its row.
    """

    def __init__(self, limits: ParsingLimits) -> None:
        self._limit = limits.max_text_bytes
        self._size = 0
        self._lines: list[str] = []
        self._widths = array("L")
        """Cells of each line. There may be millions of them."""
        self._covered: dict[int, tuple[int, str]] = {}
        """By column: the rows below the last one that a merged cell covers, and its text."""
        self._last: list[str] = []

    def add_row(self, cells: Sequence[Cell]) -> None:
        """Add a row. One without a text of its own is left out.

        Raises:
            ParsingError: `document_too_large`: the table is larger than the whole text may be.
        """
        if not self._covered and all(cell.columns == 1 == cell.rows and not cell.is_continued for cell in cells):
            self._last = row = [_escape_cell(cell.text) for cell in cells]
            if any(row):
                self._add_line(row)
            return
        row = []
        below: dict[int, tuple[int, str]] = {}
        for cell in cells:
            self._fill(row, below)
            at = len(row)
            text = _escape_cell(cell.text)
            if cell.is_continued and not text and at < len(self._last):
                text = self._last[at] if len(self._last[at]) <= LONGEST_REPEATED else ""
            columns = max(1, min(cell.columns, _MOST_FILLED)) if len(cells) > 1 else 1
            repeated = text if len(text) <= LONGEST_REPEATED else ""
            if cell.rows > 1:
                below |= dict.fromkeys(range(at, at + columns), (cell.rows - 1, repeated))
            row += [text, *[repeated] * (columns - 1)]
        for at in sorted(self._covered):  # those before the row's end lie under a merged cell of its own
            row += [""] * (at - len(row))
            self._fill(row, below)
        self._covered = below
        self._last = row
        if any(cell.text and not cell.text.isspace() for cell in cells):
            self._add_line(row)
        else:
            self._count(len(row))  # it took its time

    def add_texts(self, texts: Iterable[str]) -> None:
        """Add a row of cells that are not merged, as `add_row` does, and raise the same."""
        row = [_escape_cell(text) for text in texts]
        if any(row):
            self._add_line(row)

    def render(self) -> str:
        """Return the table as Markdown, "" if it has no row. A single cell is no table: its text is returned. Call it
        once."""
        if not self._lines:
            return ""
        width = max(self._widths)
        if width == len(self._lines) == 1:
            return self._lines[0].removeprefix("| ").removesuffix(" |").replace("\\|", "|")
        for number, count in enumerate(self._widths if width <= _MOST_FILLED else self._widths[:1]):
            if count < width:
                self._lines[number] += "  |" * (width - count)
        return "\n".join(itertools.chain((self._lines[0], "|" + " --- |" * width), self._lines[1:]))

    def _fill(self, row: list[str], below: dict[int, tuple[int, str]]) -> None:
        """Add the cells that those of rows above cover, from the end of `row` on."""
        while held := self._covered.pop(len(row), None):
            left, text = held
            if left > 1:
                below[len(row)] = left - 1, text
            row.append(text)

    def _add_line(self, row: Sequence[str]) -> None:
        line = f"| {' | '.join(row)} |"
        self._count(len(line))
        self._lines.append(line)
        self._widths.append(len(row))

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            raise ParsingError("document_too_large", f"the document's text is larger than {self._limit} bytes")


def _escape_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


FRAME_HEAD: Final = struct.Struct(">4sII")
_MARK: Final = b"RHP1"
_MOST_JSON_BYTES: Final = 512 * 1024 * 1024


class FrameError(Exception):
    """Bytes that were read are no frame, a frame that is too large, or no answer to a request. The text says which."""


@dataclass(frozen=True, slots=True)
class ParseRequest:
    """One file for a process to parse. The fields are the arguments of `Parser.parse_file`."""

    path: Path
    """Absolute."""
    filename: str | None
    media_type: str | None
    chunking: ChunkingOptions


@dataclass(frozen=True, slots=True)
class ParseAnswer:
    """A process's answer about one file."""

    result: ParsedDocument | ParsingError
    rss_bytes: int
    """Bytes of resident memory that the process holds after the file."""


def encode_request(request: ParseRequest) -> bytes:
    """Return the frame of a request, head included."""
    body = {
        "path": str(request.path),
        "filename": request.filename,
        "media_type": request.media_type,
        "max_tokens": request.chunking.max_tokens,
        "overlap_tokens": request.chunking.overlap_tokens,
    }
    return _encode_frame(body, b"")


def decode_request(body: bytes) -> ParseRequest:
    """Return the request of a frame's JSON part, which `encode_request` wrote. Raises KeyError, TypeError or ValueError
    for anything else."""
    read = json.loads(body)
    chunking = ChunkingOptions(read["max_tokens"], read["overlap_tokens"])
    return ParseRequest(Path(read["path"]), read["filename"], read["media_type"], chunking)


def encode_answer(text: str, media_type: str, chunks: Sequence[ChunkSpan], rss_bytes: int) -> bytes:
    """Return the frame of an answer with a file's text and chunks. `rss_bytes`: resident memory of this process.

    Raises UnicodeEncodeError for text with lone surrogates.
    """
    paths: dict[tuple[str, ...], int] = {}
    places = [(chunk.start, chunk.end, paths.setdefault(chunk.headings, len(paths)), chunk.page) for chunk in chunks]
    return _encode_frame(
        {"media_type": media_type, "chunks": places, "headings": list(paths), "rss": rss_bytes}, text.encode()
    )


def encode_error(error: ParsingError, rss_bytes: int) -> bytes:
    """Return the frame of an answer with an error's code and text. `rss_bytes`: resident memory of this process."""
    return _encode_frame({"code": error.code, "message": str(error), "rss": rss_bytes}, b"")


def read_frame_head(head: bytes, most_raw_bytes: int) -> tuple[int, int]:
    """Return the lengths in bytes of a frame's JSON and of its raw bytes. `head`: exactly `FRAME_HEAD.size` bytes.

    Raises:
        FrameError: the bytes begin no frame, the JSON is larger than 512 MiB, or the raw bytes are more than
            `most_raw_bytes`.
    """
    mark, json_length, raw_length = FRAME_HEAD.unpack(head)
    if mark != _MARK or json_length > _MOST_JSON_BYTES or raw_length > most_raw_bytes:
        raise FrameError(f"no answer begins with {head!r}")
    return json_length, raw_length


def decode_answer(body: bytes, raw: bytes) -> ParseAnswer:
    """Return the answer of a frame's JSON and raw bytes; its result is the document, or the file's ParsingError.

    Blocks for a while if the text is large, so call it in a thread, not in the event loop.

    Raises:
        FrameError: the JSON is no answer, or does not fit the raw bytes.
    """
    try:
        read: dict[str, Any] = json.loads(body)
        rss = int(read["rss"])
        if "code" in read:
            if read["code"] not in get_args(ParsingErrorCode):
                raise FrameError(f"the code {read['code']!r:.80} is unknown")
            return ParseAnswer(ParsingError(cast("ParsingErrorCode", read["code"]), str(read["message"])), rss)
        headings = [tuple(path) for path in read["headings"]]
        chunks = tuple(
            ChunkSpan(start, end, raw[start:end].decode(), headings[path], page)
            for start, end, path, page in read["chunks"]
        )
        return ParseAnswer(ParsedDocument(raw.decode(), read["media_type"], chunks), rss)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise FrameError(f"an answer is malformed ({error!r:.200})") from error


def _encode_frame(body: dict[str, Any], raw: bytes) -> bytes:
    encoded = json.dumps(body).encode()
    return FRAME_HEAD.pack(_MARK, len(encoded), len(raw)) + encoded + raw
