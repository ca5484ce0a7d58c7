"""What parsing makes of a file: its text, and the chunks of that text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ChunkingOptions:
    """How text is cut. Both are counted in tokens, estimated from the text (see `retrieval.parsing.chunking`)."""

    max_tokens: int
    overlap_tokens: int
    """At most half of `max_tokens`."""


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
    """Headings above the chunk, the outermost first; empty where the format has none."""
    page: int | None
    """Page (slide, sheet) that the chunk begins on, from 1; None where the format has none."""


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """A file's text and its chunks."""

    text: str
    """For plain text, Markdown, HTML source that is kept as it is, and code: the file's own characters, so that offsets
    hold in the file. Else what was extracted."""
    media_type: str
    """What the file turned out to be."""
    chunks: Sequence[ChunkSpan]
    """In the order of the text. Empty only if the text is."""


class ParsingError(Exception):
    """A file cannot be parsed, and a later try would end the same way. The text says why in plain words."""

    def __init__(self, code: str, message: str) -> None:
        """`code`: `document_empty`, `document_encrypted`, `document_too_large`, `document_not_text`,
        `unsupported_media_type`, `document_malformed`, `parsing_timeout` or `parsing_failed`."""
        super().__init__(message)
        self.code = code


class Parser(Protocol):
    """Parses files, a bounded number at a time; further calls wait."""

    async def parse_file(
        self, path: Path, *, filename: str | None, media_type: str | None, chunking: ChunkingOptions
    ) -> ParsedDocument:
        """Extract the text of the file and cut it.

        `filename`, `media_type`: as the client named them, None where it did not; both are hints that the content may
        contradict. Cancelling the call ends the parsing.

        Raises:
            ParsingError: the file is malformed, encrypted, empty, of an unknown format, or goes beyond a limit; or the
                process that parsed it hung or died.
        """
        ...

    async def close(self) -> None:
        """End the processes. Calls under way fail with ParsingError."""
        ...
