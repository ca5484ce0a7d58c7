"""Text of HTML as Markdown (headings, paragraphs, lists, tables and preformatted text), and of what holds HTML: e-mails
(RFC 5322) and electronic books (EPUB).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from contextlib import suppress
from email import policy
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser
from html.parser import HTMLParser
from typing import Final, cast

from common.markup import mend_markup
from retrieval.parsing.base import Cell, ParsingError, Table, TextBuilder
from retrieval.parsing.formats.office import OfficePackage, read_count, resolve_name
from retrieval.parsing.media_types import decode_text

_CHARSET: Final = re.compile(
    rb"""<(?:meta[^>]{0,200}charset|\?xml[^>]{0,100}encoding)\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE
)
_LINE_BREAK: Final = "\x00"
"""Stands for `<br>` until the text is complete. No decoded text has this character."""

_HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}
_LISTS: Final = frozenset(("menu", "ol", "ul"))
_BLOCKS: Final = frozenset((
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "dialog", "div", "dl",
    "dt", "fieldset", "figcaption", "figure", "footer", "form", "head", "header", "hgroup", "hr", "html", "legend",
    "main", "p", "pre", "search", "section", "summary", "tbody", "tfoot", "thead", "title",
))  # fmt: skip
_SKIPPED: Final = frozenset(("nav", "noscript", "script", "select", "style", "svg", "template", "object", "iframe"))
"""Elements whose text is left out: programs, styles, drawings, and menus."""
_ENDS_SKIPPING: Final = frozenset(("article", "body", "main", "h1"))
"""Elements that end what is left out, where a page forgot to."""
_DEEPEST_LIST: Final = 6


def find_charset(data: bytes) -> str | None:
    """Return the encoding that a `<meta>` or `<?xml ...?>` in the first 4096 bytes names, as it is written there and
    not checked; None if there is none, or one in which this pattern could not have been found."""
    found = _CHARSET.search(data[:4096])
    name = found.group(1).decode("ascii") if found else None
    return None if name is None or name.lower().startswith(("utf-16", "utf-32")) else name


def extract_html(markup: str, builder: TextBuilder) -> None:
    """Add the text of an HTML page to `builder`, as Markdown. Scripts, styles, drawings, navigation, selection lists
    and embedded objects are left out. If the page has no heading, its title is added last, as `Title: ...`. Malformed
    markup raises nothing: it is read as far as possible.

    Raises:
        ParsingError: `document_too_large`: the text is larger than the builder allows.
    """
    reader = _HtmlReader(builder)
    reader.feed(mend_markup(markup))
    reader.close()
    reader.finish()


class _HtmlReader(HTMLParser):
    """Adds the blocks of one page to a builder from the parser's events. Call `feed`, `close` and `finish`, in this
    order.

    Nesting is followed only where it matters: lists, tables, preformatted text.
    """

    def __init__(self, builder: TextBuilder) -> None:
        super().__init__(convert_charrefs=True)
        self._builder = builder
        self._inline: list[str] = []
        self._skipped: list[str] = []
        self._lists: list[int | None] = []
        """Of each open list: the number of its next item; None where items have no numbers."""
        self._prefix = ""
        self._is_item = False
        self._table: Table | None = None
        self._row: list[Cell] | None = None
        """Cells of the row under way that are complete."""
        self._spans = (1, 1)
        """Columns and rows of the cell under way."""
        self._has_names = False
        """The table under way has a `th`, so it is no layout, and tables in its cells are texts of these."""
        self._nested = 0
        """Tables under way in the cell."""
        self._words: list[str] = []
        self._preformatted = 0
        self._title = ""
        self._has_heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin the block, list, table row or cell that the tag stands for. Unknown tags are ignored."""
        if tag in _ENDS_SKIPPING:
            self._skipped.clear()
        if tag in _SKIPPED:
            self._skipped.append(tag)
        if self._skipped:
            return
        if tag == "br":
            self._inline.append(_LINE_BREAK)
        elif tag == "img":
            self._inline.append(dict(attrs).get("alt") or "")
        elif tag in ("td", "th", "tr", "table"):
            self._start_in_table(tag, {name: value or "" for name, value in attrs})
        elif tag == "li" or tag in _LISTS or tag in _HEADINGS or tag in _BLOCKS:
            self._flush()
            self._start_block(tag)

    def handle_endtag(self, tag: str) -> None:
        """End what the tag stands for. A tag that ends nothing, or is unknown, is ignored."""
        if self._skipped:
            if tag in self._skipped:
                del self._skipped[self._skipped.index(tag) :]
            return
        if tag == "pre" and self._preformatted:
            self._flush()
            self._preformatted -= 1
        elif tag in ("tr", "table"):
            self._end_in_table(tag)
        elif tag in _LISTS:
            self._flush()
            del self._lists[-1:]
        elif tag == "title":
            self._title = self._title or " ".join("".join(self._inline).split())
            self._inline.clear()
        elif tag == "li" or tag in _HEADINGS or tag in _BLOCKS:
            self._flush()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Handle `<br/>` as `<br>`, and `<p/>` as `<p>`. An empty element whose text would be left out is ignored."""
        if tag not in _SKIPPED:
            self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        """Collect text, unless it is within an element that is left out."""
        if not self._skipped:
            self._inline.append(data)

    def finish(self) -> None:
        """Add the text of elements that the page did not end, and its title if it has no heading. Call `close`
        before."""
        self._end_row()
        self._end_table()
        self._flush()
        if self._title and not self._has_heading:
            self._builder.add_block(f"Title: {self._title}")

    def _start_in_table(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self._nested or (tag == "table" and self._has_names and self._row is not None):
            self._nested += tag == "table"
        elif tag in ("td", "th"):
            self._start_cell(attributes)
            self._has_names |= tag == "th"
        else:
            self._end_in_table(tag)
        self._flush()

    def _end_in_table(self, tag: str) -> None:
        if self._nested:
            self._flush()
            self._nested -= tag == "table"
            return
        self._end_row()
        if tag == "table":
            self._end_table()

    def _start_cell(self, attributes: Mapping[str, str]) -> None:
        if self._row is None:
            self._flush()
            self._row = []
        else:
            self._end_cell()
        self._inline.clear()
        self._spans = (read_count(attributes, "colspan"), read_count(attributes, "rowspan")) if attributes else (1, 1)

    def _end_cell(self) -> None:
        self._flush()
        if self._row is not None:
            self._row.append(Cell(" ".join(self._words), *self._spans))
        self._words.clear()

    def _start_block(self, tag: str) -> None:
        if tag in _LISTS:
            self._lists.append(1 if tag == "ol" else None)
        elif tag == "pre":
            self._preformatted += 1
        elif self._row is not None:
            return  # a cell is one line
        elif tag == "li":
            self._start_item()
        elif tag in _HEADINGS:
            self._has_heading = True
            self._prefix = "#" * _HEADINGS[tag] + " "

    def _start_item(self) -> None:
        depth = min(len(self._lists), _DEEPEST_LIST)
        number = self._lists[-1] if self._lists else None
        self._prefix = "  " * max(0, depth - 1) + ("- " if number is None else f"{number}. ")
        self._is_item = True
        if number is not None:
            self._lists[-1] = number + 1

    def _end_row(self) -> None:
        if self._row is None:
            return
        self._end_cell()
        self._table = self._table or Table(self._builder.limits)
        self._table.add_row(self._row)
        self._row = None

    def _end_table(self) -> None:
        table, self._table, self._has_names = self._table, None, False
        if table is not None:
            self._builder.add_paragraph(table.render())

    def _flush(self) -> None:
        """Add the text since the last block, with what stands before it."""
        text = "".join(self._inline)
        self._inline.clear()
        if self._row is not None:
            self._words.append(text.replace(_LINE_BREAK, " "))
            return
        if text and not text.isspace():
            self._end_table()
        if self._preformatted and not self._prefix:
            if text and not text.isspace():
                newline = "\n"
                fence = "````" if "```" in text else "```"
                self._builder.add_block(f"{fence}\n{text.replace(_LINE_BREAK, newline).strip(newline)}\n{fence}")
            return
        text = _join_lines(text)
        if not text:
            return
        prefix, is_item = self._prefix, self._is_item
        self._prefix, self._is_item = "", False
        if prefix.startswith("#"):
            self._builder.add_block(prefix + " ".join(text.split()))
        elif is_item:
            self._builder.add_line(prefix + text)
        else:
            self._builder.add_paragraph(text)


def _join_lines(text: str) -> str:
    """Collapse blanks as a browser does, so that `<br>` alone breaks lines."""
    lines = (" ".join(line.split()) for line in text.split(_LINE_BREAK))
    return "\n".join(line for line in lines if line)


_STUB: Final = re.compile(r"(?is)(?=.{0,300}\Z).*\bhtml\b")
"""A short text about HTML: that the mail is in it."""
_STUB_PART: Final = 3
"""A plain text that is so many times shorter than the HTML's is no whole one."""
_HEADERS: Final = ("From", "To", "Cc", "Date")
_LONGEST_HEADER: Final = 1000
_DEEPEST: Final = 10


def extract_mail(data: bytes, builder: TextBuilder) -> None:
    """Add the text of a mail to `builder`, as Markdown: the subject as a heading, senders, receivers and date, and the
    plain body, or the HTML body where there is no plain one, or one that is a stub: it refers to the HTML, or has less
    than a third of its text. Attached texts and mails follow (mails at most 10 deep); of other
    attachments only the name is added.

    Raises:
        ParsingError: `document_malformed`: the data has no headers; `document_not_text`: the body is in no known
            encoding; `document_too_large`: the text is larger than the builder allows.
        Exception: the standard library may raise other exceptions for malformed mails.
    """
    message = BytesParser(policy=policy.default).parsebytes(data)
    if not message.keys():
        raise ParsingError("document_malformed", "the file has no headers of an e-mail")
    _add_message(message, builder, 1)


def _add_message(message: EmailMessage, builder: TextBuilder, depth: int) -> None:
    if subject := _get_header(message, "Subject"):
        builder.add_block(f"{'#' * min(depth, 6)} {subject}")
    builder.add_block("\n".join(f"{name}: {value}" for name in _HEADERS if (value := _get_header(message, name))))
    _add_body(message, builder)
    if depth > _DEEPEST or not message.is_multipart():
        return
    for part in message.iter_attachments():
        name = part.get_filename()
        if part.get_content_type() == "message/rfc822":
            _add_message(cast("EmailMessage", part.get_payload(0)), builder, depth + 1)
        elif part.get_content_maintype() == "text":
            builder.add_block(f"Attachment: {name or 'text'}")
            with suppress(ParsingError):  # it is no text, whatever it says
                _add_text(part, builder)
        elif name:
            builder.add_block(f"Attachment: {name}")


def _add_body(message: EmailMessage, builder: TextBuilder) -> None:
    plain, html = message.get_body(("plain",)), message.get_body(("html",))
    if plain is not None and html is not None:
        marked = TextBuilder(builder.limits)
        with suppress(ParsingError):  # then the plain one is read
            _add_text(html, marked)
            words = plain.get_payload(decode=True)
            size = len(b"".join(words.split())) if isinstance(words, bytes) else 0
            text = marked.build()
            is_stub = _STUB.match(words.decode("latin-1").strip()) if isinstance(words, bytes) else None
            if text and (is_stub or size * _STUB_PART < len("".join(text.split()).encode())):
                builder.add_block(text)
                return
    body = plain or html
    if body is not None:
        _add_text(body, builder)


def _add_text(part: MIMEPart, builder: TextBuilder) -> None:
    data = part.get_payload(decode=True)
    if not isinstance(data, bytes):
        return
    is_html = part.get_content_type() == "text/html"
    text = decode_text(data, part.get_content_charset() or (find_charset(data) if is_html else None))
    if is_html:
        extract_html(text, builder)
    else:
        builder.add_block(text.replace("\r\n", "\n"))


def _get_header(message: EmailMessage, name: str) -> str:
    """Return a header decoded, "" where it is missing or cannot be read."""
    try:
        value = message.get(name, "")
    except (ValueError, IndexError, AttributeError, TypeError):
        # The standard library's parser of addresses fails with any of these on malformed ones.
        return ""
    return " ".join(str(value).encode("utf-8", "replace").decode().split())[:_LONGEST_HEADER]


CONTAINER: Final = "META-INF/container.xml"
_ENCRYPTION: Final = "META-INF/encryption.xml"
_FONTS_ONLY: Final = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
"""Methods that hide fonts, and no text."""


def extract_epub(package: OfficePackage, builder: TextBuilder) -> None:
    """Add the text of a book's chapters to `builder`, as Markdown, in the order of reading. Chapters are not pages. A
    chapter that the book names and the file lacks is left out. Blocks.

    Raises:
        ParsingError: `document_malformed`, `document_encrypted` (protected against copying), `document_too_large`, or
            `document_not_text` for a chapter in no known encoding.
    """
    if _ENCRYPTION in package.names:
        package.parse_part(_ENCRYPTION, _refuse_encryption)
    for name in _find_chapters(package, _find_book(package)):
        data = package.read_part(name)
        extract_html(decode_text(data, find_charset(data)), builder)


def _refuse_encryption(tag: str, attributes: Mapping[str, str]) -> None:
    if tag == "EncryptionMethod" and attributes.get("Algorithm", "") not in _FONTS_ONLY:
        raise ParsingError("document_encrypted", "the book is protected against copying")


def _find_book(package: OfficePackage) -> str:
    """Return the part that lists the chapters."""
    found: list[str] = []

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "rootfile":
            found.append(resolve_name("", attributes.get("full-path", "")))

    package.parse_part(CONTAINER, start)
    if not found:
        raise ParsingError("document_malformed", f"{CONTAINER} in the file names no book")
    return found[0]


def _find_chapters(package: OfficePackage, book: str) -> list[str]:
    """Return the parts to read, in order. Parts that the book names and the file lacks are left out."""
    folder = posixpath.dirname(book)
    items: dict[str, str] = {}
    chapters: list[str] = []

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "item" and attributes.get("media-type", "") in ("application/xhtml+xml", "text/html"):
            items[attributes.get("id", "")] = resolve_name(folder, attributes.get("href", ""))
        elif tag == "itemref":
            chapters.append(items.get(attributes.get("idref", ""), ""))

    package.parse_part(book, start)
    return [name for name in chapters if name in package.names]
