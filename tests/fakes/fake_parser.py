"""A fake parser, with the real interface: UTF-8 text, one chunk per paragraph."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from retrieval.parsing.base import ChunkingOptions, ChunkSpan, ParsedDocument, ParsingError


@dataclass
class FakeParser:
    """Cuts text at empty lines. A text that begins with `bad` cannot be parsed."""

    parsed: list[str | None] = field(default_factory=list)

    async def parse_file(
        self, path: Path, *, filename: str | None, media_type: str | None, chunking: ChunkingOptions
    ) -> ParsedDocument:
        self.parsed.append(filename)
        text = path.read_bytes().decode()
        if text.startswith("bad"):
            raise ParsingError("document_malformed", "The document begins with bad.")
        chunks, start = [], 0
        for paragraph in text.split("\n\n"):
            end = start + len(paragraph.encode())
            if paragraph:
                chunks.append(ChunkSpan(start, end, paragraph, (), None))
            start = end + 2
        return ParsedDocument(text, media_type or "text/plain", chunks)

    async def close(self) -> None:
        """Nothing is open."""
