"""Text of PDFs, page by page, through PDFium. Pages that are images alone have no text: there is no OCR.

PDFium gives lines from right to left in an order that confuses Latin words and numbers, so they are put in order here,
by the places of the characters.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pypdfium2
import pypdfium2.raw as pdfium

from retrieval.parsing.base import ParsingError, ParsingLimits, TextBuilder
from retrieval.parsing.chunking import LONGEST_HEADING, Heading

_HYPHEN: Final = re.compile(r"[\ufffe\x02]\s*")
"""PDFium's mark of a hyphen at the end of a line, within a word."""
_EVERYWHERE: Final = 1e6
"""Beyond the edges of any page. By default PDFium cuts off characters that reach over the edge of theirs."""
_MOST_BOOKMARKS: Final = 20_000
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0e-\x1f\ufffe\uffff]")


def extract_pdf(path: Path, builder: TextBuilder, limits: ParsingLimits) -> list[Heading]:
    """Add the text of a PDF to `builder`, as plain text, a page at a time: its text, then the values of form fields
    (`name: value`; of a field that has a description, that in place of the name; no passwords), then comments and other
    annotations. Return its headings, in the text's order: the lines that its outline (bookmarks) names; empty if it has
    no outline.

    A page that is damaged or an image has no text. A PDF that is encrypted, but needs no password for reading, is read.
    Blocks.

    Raises:
        ParsingError: `document_encrypted`, `document_malformed`, or `document_too_large`: it has more than
            `limits.max_pages` pages, or more text than the builder allows.
        OSError: the file does not exist.
    """
    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if pdfium.FPDF_GetLastError() == pdfium.FPDF_ERR_PASSWORD:
            raise ParsingError("document_encrypted", "the PDF is encrypted, and needs a password") from error
        raise ParsingError("document_malformed", f"the file is no PDF that can be read ({error})") from error
    try:
        count = len(document)
        if count > limits.max_pages:
            raise ParsingError("document_too_large", f"the PDF has {count} pages, more than {limits.max_pages}")
        outline = _read_outline(document)
        if document.get_formtype() != pdfium.FORMTYPE_NONE:
            with contextlib.suppress(pypdfium2.PdfiumError):
                document.init_forms()
        headings: list[Heading] = []
        for number in range(count):
            builder.start_page()
            text, *blocks = _read_page(document, number)
            builder.add_block(text)
            for block in blocks:
                builder.add_block(block)
            headings += _find_headings(text, builder.page_starts[-1], outline.get(number, ()))
        return headings
    finally:
        document.close()


def _read_page(document: pypdfium2.PdfDocument, number: int) -> list[str]:
    """Return the text of a page, "" for one that is damaged, then that of its form fields and annotations."""
    try:
        page = document[number]
    except pypdfium2.PdfiumError:
        return [""]
    try:
        text = _read_text(page)
        return [_clean(text), *map(_clean, _read_annotations(page, document.formenv, is_blank=not text.strip()))]
    finally:
        page.close()


def _clean(text: str) -> str:
    text = _HYPHEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _UNPRINTABLE.sub("", text).strip("\n")


def _read_text(page: pypdfium2.PdfPage) -> str:
    try:
        text_page = page.get_textpage()
        text: str = text_page.get_text_bounded(-_EVERYWHERE, -_EVERYWHERE, _EVERYWHERE, _EVERYWHERE)
        if _RIGHT_TO_LEFT.search(text):
            is_rtl = len(_RIGHT_TO_LEFT.findall(text)) >= len(_LATIN.findall(text))
            text = "\n".join(_read_line(line, is_rtl) for line in _read_lines(text_page))
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        text_page.close()
    except pypdfium2.PdfiumError:
        return ""
    return text


_NOT_READ: Final = frozenset((pdfium.FPDF_ANNOT_POPUP, pdfium.FPDF_ANNOT_LINK))
_TOGGLES: Final = (pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON)
_LISTS: Final = (pdfium.FPDF_FORMFIELD_COMBOBOX, pdfium.FPDF_FORMFIELD_LISTBOX)
_HIDDEN: Final = pdfium.FPDF_ANNOT_FLAG_HIDDEN
_PASSWORD: Final = 1 << 13
"""Flag of a text field."""
_MOST_ANNOTATIONS: Final = 10_000
"""Of a page."""


def _read_annotations(page: pypdfium2.PdfPage, form: pypdfium2.PdfFormEnv | None, *, is_blank: bool) -> list[str]:
    """Return the values of the page's form fields as one text, and then a text for each annotation that has one. Fields
    without a value are named where the page has no other text (`is_blank`)."""
    fields: dict[str, None] = {}
    notes: dict[str, None] = {}
    for number in range(min(pdfium.FPDFPage_GetAnnotCount(page), _MOST_ANNOTATIONS)):
        annotation = pdfium.FPDFPage_GetAnnot(page, number)
        if not annotation:
            continue
        kind = pdfium.FPDFAnnot_GetSubtype(annotation)
        if kind in _NOT_READ or pdfium.FPDFAnnot_GetFlags(annotation) & _HIDDEN:
            pass
        elif kind == pdfium.FPDF_ANNOT_WIDGET:
            value = _read_value(form, annotation) if form is not None else ""
            if form is not None and (value or is_blank):
                name = _read_string(pdfium.FPDFAnnot_GetFormFieldAlternateName, form, annotation)
                name = name or _read_string(pdfium.FPDFAnnot_GetFormFieldName, form, annotation)
                fields[f"{name}: {value}".strip()] = None
        elif text := _read_string(pdfium.FPDFAnnot_GetStringValue, annotation, b"Contents").strip():
            # FreeText is text of the page, which its reader sees as such.
            author = _read_string(pdfium.FPDFAnnot_GetStringValue, annotation, b"T").strip()
            is_text = kind == pdfium.FPDF_ANNOT_FREETEXT
            notes[text if is_text else f"Comment{f' by {author}' if author else ''}: {text}"] = None
        pdfium.FPDFPage_CloseAnnot(annotation)
    return ["\n".join(fields), *notes] if fields else list(notes)


def _read_value(form: pypdfium2.PdfFormEnv, annotation: object) -> str:
    """Return what is filled into a field; "" where it is empty, not checked, a button or a password."""
    kind = pdfium.FPDFAnnot_GetFormFieldType(form, annotation)
    if kind in _TOGGLES:
        if not pdfium.FPDFAnnot_IsChecked(form, annotation):
            return ""
        return _read_string(pdfium.FPDFAnnot_GetFormFieldExportValue, form, annotation) or "yes"
    if kind in _LISTS:
        chosen = [
            _read_string(pdfium.FPDFAnnot_GetOptionLabel, form, annotation, at)
            for at in range(min(pdfium.FPDFAnnot_GetOptionCount(form, annotation), _MOST_ANNOTATIONS))
            if pdfium.FPDFAnnot_IsOptionSelected(form, annotation, at)
        ]
        if chosen:
            return ", ".join(chosen)
    elif kind != pdfium.FPDF_FORMFIELD_TEXTFIELD:
        return ""
    if pdfium.FPDFAnnot_GetFormFieldFlags(form, annotation) & _PASSWORD and kind == pdfium.FPDF_FORMFIELD_TEXTFIELD:
        return ""
    return _read_string(pdfium.FPDFAnnot_GetFormFieldValue, form, annotation).strip()


def _read_string(read: Callable[..., int], *arguments: Any) -> str:
    """Return what a function of PDFium gives that writes UTF-16 into a buffer, and says how many bytes it needs."""
    size = read(*arguments, None, 0)
    if size <= 2:
        return ""
    buffer = ctypes.create_string_buffer(size)
    read(*arguments, ctypes.cast(buffer, ctypes.POINTER(pdfium.FPDF_WCHAR)), size)
    return buffer.raw[:size].decode("utf-16-le", "replace").rstrip("\0")


_RIGHT_TO_LEFT: Final = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_LATIN: Final = re.compile(r"[A-Za-z\u00c0-\u024f]")
_TURNED_LIGATURE: Final = re.compile(r"\A([\u0622\u0623\u0625\u0627])(\u0644)\Z")
"""Lam and alef, which one glyph stands for, where PDFium turned them around."""
_LONGEST_LINE: Final = 2000
_LEAST_GAP: Final = 0.2
"""Of the height of a line: a gap between two characters that is wider is a blank."""
_BRACKETS: Final = (("(", ")"), ("[", "]"), ("{", "}"), ("\u00ab", "\u00bb"))
_IN_NUMBERS: Final = frozenset(".,:/+-\u2212\u066b\u066c")


@dataclass(frozen=True, slots=True)
class _Glyph:
    """A character of a page, or several that were drawn as one."""

    text: str
    left: float
    right: float
    bottom: float
    top: float
    source: int = 0
    """Address of the object that drew it; 0: PDFium does not say."""


def _read_lines(text_page: pypdfium2.PdfTextPage) -> Iterator[list[_Glyph]]:
    """Yield the lines of a page, without the blanks that PDFium made up."""
    line: list[_Glyph] = []
    box = pdfium.FS_RECTF()
    for number in range(pdfium.FPDFText_CountChars(text_page)):
        character = chr(pdfium.FPDFText_GetUnicode(text_page, number))
        if character in "\r\n":
            if character == "\n":
                yield line
                line = []
        elif not (character.isspace() and pdfium.FPDFText_IsGenerated(text_page, number) == 1):
            pdfium.FPDFText_GetLooseCharBox(text_page, number, box)
            drawn = pdfium.FPDFText_GetTextObject(text_page, number)
            source = ctypes.addressof(drawn.contents) if drawn else 0
            line.append(_Glyph(character, box.left, box.right, box.bottom, box.top, source))
    yield line


def _read_line(line: Sequence[_Glyph], is_rtl: bool) -> str:
    """Return the text of a line. `is_rtl`: most letters of the page go from right to left."""
    glyphs: list[_Glyph] = []
    for glyph in line:
        last = glyphs[-1] if glyphs else None
        if last is not None and (last.left, last.right) == (glyph.left, glyph.right):
            glyphs[-1] = replace(last, text=_TURNED_LIGATURE.sub(r"\2\1", last.text + glyph.text))
        else:
            glyphs.append(glyph)
    height = max((glyph.top - glyph.bottom for glyph in glyphs), default=0.0)
    middles = [(glyph.top + glyph.bottom) / 2 for glyph in glyphs]
    if not glyphs or len(glyphs) > _LONGEST_LINE or max(middles) - min(middles) > height:
        return "".join(glyph.text for glyph in line)  # it does not go from left to right on the page
    marks = [glyph for glyph in glyphs if unicodedata.category(glyph.text[0]) == "Mn"]
    bases = sorted(
        (glyph for glyph in glyphs if unicodedata.category(glyph.text[0]) != "Mn"), key=lambda each: each.left
    )
    texts: list[str] = []
    apart: set[int] = set()
    for number, glyph in enumerate(bases):
        before = bases[number - 1] if number else glyph
        if glyph.text.isspace():
            beside = (before, bases[number + 1] if number + 1 < len(bases) else glyph)
            if all(_find_kind(each.text) not in ("L", "N") or each.source != glyph.source for each in beside):
                apart.add(len(texts))
        elif glyph.left - before.right > _LEAST_GAP * height and not before.text.isspace():
            apart.add(len(texts))
            texts.append(" ")
        above = (mark.text for mark in marks if glyph.left <= (mark.left + mark.right) / 2 < glyph.right)
        texts.append(glyph.text + "".join(above))
    return order_line(texts, is_rtl, apart).strip()


def order_line(seen: Sequence[str], is_rtl: bool, apart: Container[int] = ()) -> str:
    """Return the characters of a line in the order in which they are read. A number beside a Latin word is read with it
    from left to right, unless the blank between them stands apart: then each is read by itself, from right to left.

    `seen`: the characters as they are seen, from left to right, each perhaps with marks above it. `is_rtl`: the line
    goes from right to left where its ends do not say it. `apart`: indexes in `seen` of blanks that were not drawn
    together with what is beside them.
    """
    kinds = ["B" if number in apart else _find_kind(text) for number, text in enumerate(seen)]
    for places in (range(1, len(seen)), range(len(seen) - 2, -1, -1)):
        step = 1 if places.step < 0 else -1
        for at in places:
            # A sign of money or a part that touches a number belongs to it.
            if kinds[at + step] == "N" and unicodedata.bidirectional(seen[at][0]) == "ET":
                kinds[at] = "N"
    strong = [kind for kind in kinds if kind in ("L", "R")]
    if "R" not in strong:
        return "".join(seen)
    if strong[0] == strong[-1]:
        is_rtl = strong[0] == "R" or (is_rtl and strong.count("R") >= strong.count("L"))
    if not is_rtl:
        first, last = kinds.index("R"), len(kinds) - kinds[::-1].index("R")
        before, after = "".join(seen[:first]), "".join(seen[last:])
        return before + _order_from_right(seen[first:last], kinds[first:last]) + after
    return _order_from_right(seen, kinds)


def _order_from_right(seen: Sequence[str], kinds: Sequence[str]) -> str:
    parts: list[str] = []
    at = len(seen)
    while at:
        start = at - 1
        if kinds[start] in ("L", "N"):
            start = _find_run(seen, kinds, at)
            parts.append("".join(seen[start:at]))
        else:
            parts.append(seen[start])
        at = start
    for pair in _BRACKETS:
        # PDFium turns some of them around, and fonts do. Those of a line are pairs, or it is not known what they are.
        places = [number for number, part in enumerate(parts) if part in pair]
        if len(places) % 2 == 0:
            for number, place in enumerate(places):
                parts[place] = pair[number % 2]
    return "".join(parts)


def _find_run(seen: Sequence[str], kinds: Sequence[str], end: int) -> int:
    """Return the first of the characters before `end` that are read from left to right: words and numbers; two numbers
    alone only with a sign between them."""
    start = end - 1
    while True:
        at = start - 1
        while at >= 0 and kinds[at] in ("", "B"):
            at -= 1
        if at < 0 or kinds[at] == "R":
            break
        between = seen[at + 1 : start]
        if "B" in kinds[at + 1 : start] and {kinds[at], kinds[start]} != {"L"}:
            break
        are_apart = len(between) > 1 or (len(between) == 1 and between[0] not in _IN_NUMBERS)
        is_word = "L" in kinds[start:end] or _is_after_word(kinds, at)
        if kinds[at] == kinds[start] == "N" and are_apart and not is_word:
            break
        start = at
    return start


def _is_after_word(kinds: Sequence[str], at: int) -> bool:
    """Whether the number that ends at `at` follows a word from left to right."""
    while at >= 0 and kinds[at] != "R":
        if kinds[at] == "L":
            return True
        at -= 1
    return False


def _find_kind(text: str) -> str:
    """Return `R` for a letter from right to left, `L` for another, `N` for a digit, "" for what has no direction."""
    kind = unicodedata.bidirectional(text[0])
    return {"L": "L", "R": "R", "AL": "R", "EN": "N", "AN": "N"}.get(kind, "")


def _read_outline(document: pypdfium2.PdfDocument) -> Mapping[int, list[tuple[int, str]]]:
    """Return the bookmarks by their pages: levels from 1, and titles. Those that lead nowhere are left out."""
    found: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    for bookmark in itertools.islice(document.get_toc(), _MOST_BOOKMARKS):
        try:
            target = bookmark.get_dest()
            page = target.get_index() if target is not None else None
            title = bookmark.get_title()
        except (pypdfium2.PdfiumError, ValueError):
            continue
        if page is not None and title.strip():
            found[page].append((min(bookmark.level + 1, 6), title[:LONGEST_HEADING]))
    return found


def _find_headings(text: str, offset: int, bookmarks: Iterable[tuple[int, str]]) -> Iterator[Heading]:
    """Yield the lines of a page that bookmarks name, with a number before the title or without.

    `offset`: of the page's text in the document's.
    """
    at = 0
    for level, title in bookmarks:
        words = r"\s+".join(re.escape(word) for word in title.split())
        line = re.compile(rf"^[ \t]*((?:[\w.]{{1,12}}[ \t]+)?{words})[ \t]*$", re.IGNORECASE | re.MULTILINE)
        if found := line.search(text, at):
            yield Heading(offset + found.start(), level, " ".join(found.group(1).split()))
            at = found.end()
