"""What parsing makes of a file: its text, and the chunks of that text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

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
    """How large chunks are. Both sizes are in tokens, estimated from the text (see `retrieval.parsing.tokens`)."""

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
    """Headings above the chunk, the outermost first; empty where the format has none. A heading that the chunk begins
    with is in its text, and not among these."""
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
