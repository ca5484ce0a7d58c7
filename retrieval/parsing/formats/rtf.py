"""Text of RTF documents, as Markdown.

striprtf 0.0.35 was read beside it and not taken: it leaves out footnotes, page headers and text boxes, makes two halves
of each character beyond the basic plane, writes tables without a header, and searches links in quadratic time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from retrieval.parsing.base import Cell, ParsingError, Table, TextBuilder

_TOKEN: Final = re.compile(
    rb"\\([a-zA-Z]{1,32})(-?[0-9]{1,10})?[ ]?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z'])|([{}])|([^\\{}\r\n]+)|[\r\n]+|\\"
)
_CHARACTERS: Final = {
    b"line": "\n",
    b"lbr": "\n",
    b"tab": "\t",
    b"emdash": "\u2014",
    b"endash": "\u2013",
    b"bullet": "\u2022",
    b"nestcell": " ",
    b"lquote": "\u2018",
    b"rquote": "\u2019",
    b"ldblquote": "\u201c",
    b"rdblquote": "\u201d",
    b"emspace": " ",
    b"enspace": " ",
    b"qmspace": " ",
    b"~": " ",
    b"_": "-",
    b"{": "{",
    b"}": "}",
    b"\\": "\\",
}
_PARAGRAPH_ENDS: Final = frozenset((b"par", b"sect", b"page", b"column", b"\n", b"\r"))
_SKIPPED: Final = frozenset((
    b"colortbl", b"stylesheet", b"info", b"pict", b"fldinst", b"nonshppict", b"sp", b"shprslt", b"xe", b"tc", b"txe",
    b"rxe", b"ftnsep", b"ftnsepc", b"ftncn", b"aftnsep", b"aftnsepc", b"aftncn", b"upr", b"private", b"filetbl",
    b"listtable", b"listoverridetable", b"revtbl", b"bkmkstart", b"bkmkend", b"formfield", b"template", b"fontemb",
))  # fmt: skip
"""Destinations without text of the document; `upr` holds a text twice, the second time as `ud`. Others that the mark
`\\*` allows to ignore are ignored."""
_KNOWN: Final = frozenset((b"ud", b"shpinst", b"shptxt", b"atnauthor", b"annotation", b"footnote", b"fonttbl", b"do"))
"""Destinations with that mark that are read."""
_APART: Final = re.compile(rb"(?:header|footer)[lrf]?|footnote|annotation|shptxt|dptxbxtext|atnauthor")
"""Destinations whose text stands apart from the paragraph that they are in."""
_CODE_PAGES: Final = {b"ansi": "cp1252", b"mac": "mac_roman", b"pc": "cp437", b"pca": "cp850"}
_PAGES: Final = {10_000: "mac_roman", 10_007: "mac_cyrillic", 65_001: "utf-8"}
_CHARSETS: Final = {
    77: "mac_roman",
    78: "cp932",
    79: "big5",
    80: "cp949",
    81: "mac_arabic",
    83: "mac_greek",
    85: "mac_cyrillic",
    128: "cp932",
    129: "cp949",
    130: "johab",
    134: "gb18030",
    136: "cp950",
    161: "cp1253",
    162: "cp1254",
    163: "cp1258",
    177: "cp1255",
    178: "cp1256",
    186: "cp1257",
    204: "cp1251",
    222: "cp874",
    238: "cp1250",
    254: "cp437",
    255: "cp850",
}
"""Encodings by the charset of a font; of others, the document's counts."""
_DEEPEST: Final = 10_000


def extract_rtf(data: bytes, builder: TextBuilder) -> None:
    """Add the text of an RTF document to `builder`, as Markdown: page headers where they stand, each once; footnotes,
    comments, text boxes and page footers last. Hidden and deleted text is left out. Bytes that are not in the encoding
    that the document or the font names become U+FFFD.

    Raises:
        ParsingError: `document_malformed`: groups are nested too deeply; `document_too_large`.
    """
    reader = _RtfReader(builder)
    at = 0
    while at < len(data) and (token := _TOKEN.match(data, at)):
        at = token.end()
        word, argument, code, symbol, brace, text = token.groups()
        if brace:
            if not reader.turn_group(brace):
                break
        elif word == b"bin":
            at += max(0, int(argument or 0))
        elif word:
            reader.obey(word, None if argument is None else int(argument))
        elif symbol:
            reader.obey(symbol, None)
        elif code or text:
            reader.take_bytes(bytes.fromhex(code.decode()) if code else text)
    reader.finish()


@dataclass(frozen=True, slots=True)
class _Group:
    """What holds until the end of a group in braces."""

    font: int = -1
    fallback: int = 1
    """Characters that stand behind each Unicode character for programs that do not know it."""
    is_skipped: bool = False
    is_hidden: bool = False
    is_optional: bool = False
    """The next word is a destination that may be ignored."""
    destination: bytes = b""
    """The one that the group is itself, b"" if it is none, or lies within one."""
    is_font_table: bool = False


@dataclass(slots=True)
class _Flow:
    """Text under way: the body, or one apart from it."""

    pieces: list[str] = field(default_factory=list)
    """Of the paragraph."""
    blocks: list[str] = field(default_factory=list)
    """Paragraphs that are complete, of a text apart alone."""
    cells: list[str] = field(default_factory=list)
    """Of the row."""
    in_table: bool = False
    is_item: bool = False
    level: int = 0
    """Of a heading, from 1."""


class _RtfReader:
    """Adds the paragraphs and tables of a document to a builder, from its tokens. Call `finish` at the end."""

    def __init__(self, builder: TextBuilder) -> None:
        self._builder = builder
        self._encoding = "cp1252"
        self._fonts: dict[int, str] = {}
        self._default_font = -1
        self._group = _Group()
        self._groups: list[_Group] = []
        self._flows = [_Flow()]
        self._bytes = bytearray()
        """Text that was not decoded yet."""
        self._skip = 0
        """Characters to ignore, behind a Unicode character."""
        self._merged: list[bytes] = []
        """What the cells of the next row are: `clmrg` and `clvmrg` continue the one beside or above them."""
        self._next_merged = b""
        self._table: Table | None = None
        self._later: dict[str, None] = {}
        self._headers: set[str] = set()
        self._author = ""

    def turn_group(self, brace: bytes) -> bool:
        """Begin or end a group. Return False at the end of the document."""
        self._decode()
        self._skip = 0
        if brace == b"{":
            if len(self._groups) >= _DEEPEST:
                raise ParsingError("document_malformed", f"the document's groups are nested deeper than {_DEEPEST}")
            self._groups.append(self._group)
            self._group = replace(self._group, destination=b"", is_optional=False)
            return True
        if self._group.destination and len(self._flows) > 1:
            self._end_apart(self._group.destination)
        if self._groups:
            self._group = self._groups.pop()
        return bool(self._groups)

    def take_bytes(self, data: bytes) -> None:
        """Take characters of the text, in the encoding of their font."""
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        if not self._group.is_skipped and not self._group.is_hidden and not self._group.is_font_table:
            self._bytes += data[skipped:]

    def obey(self, word: bytes, argument: int | None) -> None:
        """Carry out a control word (`par`, `cell`, `u`) or symbol, without its backslash, on the group that is open.
        `argument`: the number behind it; None: none stands there. Words that are not known change nothing."""
        if word == b"*":
            self._group = replace(self._group, is_optional=True)
            return
        self._skip = 0
        self._decode()
        if self._begin_destination(word) or self._group.is_skipped:
            return
        if change := _CHANGES.get(word):
            self._group = change(self._group, argument)
        elif word == b"u" and argument is not None:
            self._skip = self._group.fallback
            self._add(chr(argument % 0x10000))
        elif word in _CHARACTERS:
            self._add(_CHARACTERS[word])
        elif word in _PARAGRAPH_ENDS:
            self._end_paragraph()
        elif not self._obey_in_table(word, self._flows[-1]):
            self._set(word, argument or 0, self._flows[-1])

    def _begin_destination(self, word: bytes) -> bool:
        """Make the group the destination that `word` is, if it is one."""
        is_optional, is_item = self._group.is_optional, word in (b"listtext", b"pntext")
        if word == b"ud":
            self._group = replace(self._group, is_skipped=False)
        elif is_item or word in _SKIPPED or (is_optional and word not in _KNOWN):
            self._flows[-1].is_item |= is_item and not self._group.is_skipped
            self._group = replace(self._group, is_skipped=True)
        elif not self._group.is_skipped and _APART.fullmatch(word) and self._groups:
            self._group = replace(self._group, destination=word)
            self._flows.append(_Flow())
        else:
            return False
        self._group = replace(self._group, is_optional=False)
        return True

    def _obey_in_table(self, word: bytes, flow: _Flow) -> bool:
        if word == b"cell":
            flow.cells.append(self._take_paragraph(flow))
            flow.in_table, flow.is_item = True, False
        elif word == b"row":
            self._end_row(flow)
        elif word == b"trowd":
            self._merged, self._next_merged = [], b""
        elif word in (b"clmrg", b"clvmrg"):
            self._next_merged = word
        elif word == b"cellx":
            self._merged.append(self._next_merged)
            self._next_merged = b""
        else:
            return False
        return True

    def _set(self, word: bytes, argument: int, flow: _Flow) -> None:
        if word == b"intbl":
            flow.in_table = True
        elif word == b"pard":
            flow.in_table, flow.level = False, 0
        elif word == b"outlinelevel":
            flow.level = argument + 1 if 0 <= argument < 9 else 0
        elif word == b"fcharset":
            self._fonts[self._group.font] = _CHARSETS.get(argument, "")
        elif word == b"deff":
            self._default_font = argument
            self._group = replace(self._group, font=argument)
        elif word == b"plain":
            self._group = replace(self._group, font=self._default_font, is_hidden=False)
        elif word == b"ansicpg":
            self._encoding = _PAGES.get(argument, f"cp{argument}")
        elif word in _CODE_PAGES:
            self._encoding = _CODE_PAGES[word]

    def finish(self) -> None:
        """Add what the document did not end, and what comes last."""
        self._decode()
        while len(self._flows) > 1:
            self._end_apart(b"")
        self._flows[-1].in_table = False
        self._end_paragraph()
        self._end_table()
        for text in self._later:
            self._builder.add_paragraph(text)

    def _add(self, text: str) -> None:
        if not self._group.is_hidden and not self._group.is_font_table:
            self._flows[-1].pieces.append(text)

    def _decode(self) -> None:
        if self._bytes:
            data, self._bytes = bytes(self._bytes), bytearray()
            try:
                text = data.decode(self._fonts.get(self._group.font) or self._encoding, "replace")
            except LookupError:
                text = data.decode("cp1252", "replace")
            self._flows[-1].pieces.append(text)

    def _take_paragraph(self, flow: _Flow) -> str:
        text = "".join(flow.pieces)
        flow.pieces.clear()
        # Characters beyond the basic plane are written as two halves.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "").strip()

    def _end_paragraph(self) -> None:
        flow = self._flows[-1]
        if flow.in_table:
            flow.pieces.append(" ")
            return
        if flow.cells:
            self._end_row(flow)
        text, is_item = self._take_paragraph(flow), flow.is_item
        flow.is_item = False
        if not text:
            return
        if len(self._flows) > 1:
            flow.blocks.append(text)
            return
        self._end_table()
        if flow.level:
            self._builder.add_block(f"{'#' * min(flow.level, 6)} {' '.join(text.split())}")
        elif is_item:
            self._builder.add_line(f"- {text}")
        else:
            self._builder.add_paragraph(text)

    def _end_row(self, flow: _Flow) -> None:
        texts, flow.cells, flow.in_table = flow.cells, [], False
        if len(self._flows) > 1:
            flow.blocks.append(" ".join(filter(None, texts)))
            return
        cells: list[Cell] = []
        for number, text in enumerate(texts):
            merged = self._merged[number] if number < len(self._merged) else b""
            if merged == b"clmrg" and cells:
                cells[-1] = replace(cells[-1], columns=cells[-1].columns + 1)
            else:
                cells.append(Cell(text, is_continued=merged == b"clvmrg"))
        self._table = self._table or Table(self._builder.limits)
        self._table.add_row(cells)

    def _end_table(self) -> None:
        table, self._table = self._table, None
        if table is not None:
            self._builder.add_paragraph(table.render())

    def _end_apart(self, destination: bytes) -> None:
        flow = self._flows[-1]
        flow.in_table = False
        flow.blocks += filter(None, (*flow.cells, self._take_paragraph(flow)))
        self._flows.pop()
        text = "\n".join(flow.blocks)
        if destination == b"atnauthor":
            self._author = text
        elif destination == b"annotation":
            self._later[f"Comment by {self._author}: {text}" if self._author else f"Comment: {text}"] = None
        elif destination.startswith(b"header"):
            if text not in self._headers:
                self._headers.add(text)
                self._builder.add_paragraph(text)
        elif text:
            self._later[text] = None


_CHANGES: Final[dict[bytes, Callable[[_Group, int | None], _Group]]] = {
    b"f": lambda group, font: replace(group, font=-1 if font is None else font),
    b"uc": lambda group, count: replace(group, fallback=min(max(count or 0, 0), 100)),
    b"v": lambda group, value: replace(group, is_hidden=value != 0),
    b"deleted": lambda group, value: replace(group, is_hidden=value != 0),
    b"fonttbl": lambda group, _: replace(group, is_font_table=True, is_optional=False),
}
"""Words that change what holds until the end of the group."""
