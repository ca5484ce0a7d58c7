"""Collects the text that is extracted from a file, within limits. Pure."""

from __future__ import annotations

from retrieval.parsing.base import ParsingError, ParsingLimits


class TextBuilder:
    """Builds a text of blocks and lines, and notes where pages begin."""

    def __init__(self, limits: ParsingLimits) -> None:
        self._limits = limits
        self._parts: list[str] = []
        self._length = 0
        self._bytes = 0
        self._was_line = False
        self.page_starts: list[int] = []
        """Offsets in characters, one per page; the page of a blank part of the text begins where the next text does."""

    def start_page(self) -> None:
        """Begin the next page, slide or sheet.

        Raises:
            ParsingError: `document_too_large`: there are more pages than allowed.
        """
        if len(self.page_starts) >= self._limits.max_pages:
            raise ParsingError("document_too_large", f"the document has more than {self._limits.max_pages} pages")
        self.page_starts.append(self._length + 2 if self._parts else 0)
        self._was_line = False

    def add_block(self, text: str) -> None:
        """Add a paragraph, a heading or the like, set apart by an empty line. Blank text is left out.

        Raises:
            ParsingError: `document_too_large`: the text is larger than allowed.
        """
        self._add(text, "\n\n")
        self._was_line = False

    def add_line(self, text: str) -> None:
        """Add a row of a table or an item of a list, which follows the one before it without an empty line.

        Raises:
            ParsingError: `document_too_large`: the text is larger than allowed.
        """
        self._add(text, "\n" if self._was_line else "\n\n")
        self._was_line = True

    def end_lines(self) -> None:
        """Set the next line apart from those before it, such as a table from another."""
        self._was_line = False

    def build(self) -> str:
        """Return the text so far."""
        return "".join(self._parts)

    def _add(self, text: str, separator: str) -> None:
        text = text.strip("\n")
        if not text or text.isspace():
            return
        if not self._parts:
            separator = ""
        self._bytes += len(text.encode("utf-8", "replace")) + len(separator)
        if self._bytes > self._limits.max_text_bytes:
            limit = self._limits.max_text_bytes
            raise ParsingError("document_too_large", f"the document's text is larger than {limit} bytes")
        self._parts += (separator, text)
        self._length += len(separator) + len(text)
