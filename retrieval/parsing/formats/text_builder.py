"""Collects the text that is extracted from a file, within limits. Pure."""

from __future__ import annotations

from retrieval.parsing.base import ParsingError, ParsingLimits


class TextBuilder:
    """Builds the text of one file from blocks and lines, and records where its pages begin."""

    def __init__(self, limits: ParsingLimits) -> None:
        self._limits = limits
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
        if len(self.page_starts) >= self._limits.max_pages:
            raise ParsingError("document_too_large", f"the document has more than {self._limits.max_pages} pages")
        self.page_starts.append(self._length + 2 if self._parts else 0)
        self._was_line = False

    def add_block(self, text: str) -> None:
        """Add a paragraph, a heading or another block, as it is, after an empty line. Line breaks at both ends are left
        out. Does nothing for blank text.

        Raises:
            ParsingError: `document_too_large`: the whole text would be larger than `limits.max_text_bytes`.
        """
        self._add(text, "\n\n")
        self._was_line = False

    def add_line(self, text: str) -> None:
        """Add a row of a table or an item of a list. It follows the line that the last `add_line` added without an
        empty line, unless a block, a page or `end_lines` came between. Blank text is left out.

        Raises:
            ParsingError: `document_too_large`: the whole text would be larger than `limits.max_text_bytes`.
        """
        self._add(text, "\n" if self._was_line else "\n\n")
        self._was_line = True

    def end_lines(self) -> None:
        """Let the next `add_line` begin after an empty line, so that two tables or lists stay apart."""
        self._was_line = False

    def build(self) -> str:
        """Return the text so far; "" where nothing was added. More may be added afterwards."""
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
