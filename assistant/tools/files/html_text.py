"""Text of an HTML page, for a model to read. It runs in a process of its own, and imports little."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Final

from common.markup import mend_markup

_SKIPPED: Final = frozenset(("script", "style", "noscript", "template", "svg", "iframe", "object", "head"))
"""Elements whose text is left out. The page's title, which is in its head, is kept."""
_OF_HEAD: Final = frozenset((
    "base", "basefont", "bgsound", "head", "html", "link", "meta", "noframes", "noscript", "script", "style",
    "template", "title",
))  # fmt: skip
"""Elements within which, or before which, a head goes on; any other begins the body."""
_BLOCKS: Final = frozenset((
    "address", "article", "aside", "blockquote", "body", "caption", "dd", "details", "div", "dl", "dt", "fieldset",
    "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav",
    "ol", "p", "pre", "section", "summary", "table", "title", "tr", "ul",
))  # fmt: skip
_SPACE: Final = re.compile(r"[ \t\r\f\v\u00a0]+")
_LINES: Final = re.compile(r"\s*\n\s*\n\s*")


def extract_text(markup: str) -> str:
    """Return the text of a page: headings with `#`, list items with `-`, links to `http(s)://` or `/` as
    `[text](address)`, paragraphs separated by blank lines. Programs, styles, drawings and frames are left out, and runs
    of blanks become one. Malformed markup is read as far as possible."""
    reader = _Reader()
    reader.feed(mend_markup(markup))
    reader.close()
    text = _SPACE.sub(" ", "".join(reader.pieces))
    return _LINES.sub("\n\n", text).replace("\n ", "\n").strip()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._skipped: list[str] = []
        self._is_title = False
        self._links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped == ["head"] and tag not in _OF_HEAD:
            self._skipped.clear()  # the end of the head and the start of the body may be left out
        if tag == "title":
            self._is_title = not self._skipped or self._skipped == ["head"]
        elif tag == "body":
            self._skipped.clear()  # of a head that was never closed
        elif tag in _SKIPPED:
            self._skipped.append(tag)
        elif tag == "br":
            self._add("\n")
        elif tag in ("td", "th"):
            self._add(" | ")
        elif tag == "a":
            self._begin_link(dict(attrs).get("href") or "")
        if tag in _BLOCKS:
            self._add("\n\n" if tag != "li" else "\n- ")
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self._add("#" * int(tag[1]) + " ")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title" and self._is_title:
            self.pieces.append("\n\n")
            self._is_title = False
        elif tag in self._skipped:
            while self._skipped.pop() != tag:
                pass
        elif tag == "a" and self._links:
            address = self._links.pop()
            self._add(f"]({address})" if address else "")
        if tag in _BLOCKS and tag != "li":
            self._add("\n\n")

    def handle_data(self, data: str) -> None:
        if self._skipped == ["head"] and not self._is_title and data.strip():
            self._skipped.clear()
        if self._is_title or not self._skipped:
            self.pieces.append(data)

    def _begin_link(self, address: str) -> None:
        is_shown = address.startswith(("http://", "https://", "/")) and len(address) <= 500
        self._links.append(address if is_shown else "")
        self._add("[" if is_shown else "")

    def _add(self, text: str) -> None:
        if not self._skipped:
            self.pieces.append(text)
