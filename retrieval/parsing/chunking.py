"""Cut a text into chunks of a bounded size, at its structure. Pure.

Of the places where a chunk may end, the best one (`Strength`) beyond half of the chunk's size is taken, so that a chunk
ends before a heading rather than before a paragraph, and before a paragraph rather than within it. Text is counted
once: 8 to 14 MB/s, where semantic-text-splitter with a callback for sizes counts the same text 9 to 18 times (1.2 to
2.5 MB/s of the same texts on the same machine).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from retrieval.parsing.base import ChunkingOptions, ChunkSpan
from retrieval.parsing.structure import Heading, Strength, Structure, Units, find_units

_BYTE_ORDER_MARK: Final = "\ufeff"
_PREFERENCES: Final = (
    # Least part of a chunk's size, least strength.
    (0.5, Strength.BLOCK),
    (0.75, Strength.LINE),
    (0.5, Strength.LINE),
)


def cut_text(
    text: str,
    options: ChunkingOptions,
    structure: Structure = "prose",
    page_starts: Sequence[int] = (),
    headings: Sequence[Heading] = (),
) -> list[ChunkSpan]:
    """Return the chunks of a text, in its order; none for blank text.

    Every character that is not blank lies in at least one chunk, except a byte order mark at the beginning of the text.
    No chunk has more estimated tokens than `options.max_tokens`. The function cuts a sentence that is too large (with
    `lines`, a line) between words, and a word that is too large within the word. A chunk begins with the last sentences
    (lines, or words of one that was cut) of the chunk before it, as many as fit into `options.overlap_tokens`, but
    never with text from before a heading. A chunk has no blanks at its beginning and end, except the indentation of its
    first line.

    `page_starts`: offset in characters of every page, the first included, ascending, each at the start of a line; empty
    if the text has no pages, and then every `page` is None. `headings`: the headings of a text that is not Markdown, in
    the order of the text; leave it empty for Markdown, whose headings the function finds.

    Raises:
        ValueError: `options` are out of the range that `ChunkingOptions` states.
    """
    if options.max_tokens < 1 or not 0 <= options.overlap_tokens <= options.max_tokens // 2:
        raise ValueError("max_tokens must be at least 1, and overlap_tokens between 0 and half of max_tokens")
    body = "\n" + text[1:] if text.startswith(_BYTE_ORDER_MARK) else text
    units = find_units(body, structure, options.max_tokens - options.overlap_tokens, page_starts, headings)
    spans = _trim_spans(body, _pack_units(units, len(text), options))
    offsets = _find_byte_offsets(text, spans)
    above = _HeadingPath(units.headings)
    return [
        ChunkSpan(
            start=offsets[start],
            end=offsets[end],
            text=text[start:end],
            headings=above.find_path(start),
            page=max(1, bisect_right(page_starts, start)) if page_starts else None,
        )
        for start, end in spans
    ]


def _pack_units(units: Units, length: int, options: ChunkingOptions) -> list[tuple[int, int]]:
    """Return first character and end of each chunk, blanks included."""
    spans: list[tuple[int, int]] = []
    count = len(units.starts)
    first = done = 0
    while done < count:
        last, sizes = first, []
        size = 0
        while last < count and size + units.tokens[last] <= options.max_tokens:
            size += units.tokens[last]
            sizes.append(size)
            last += 1
        end = last if last == count else _choose_end(units, first, max(first, done) + 1, last, sizes, options)
        spans.append((units.starts[first], units.starts[end] if end < count else length))
        done = end
        first = _choose_overlap(units, first, end, options) if end < count else end
    return spans


def _choose_end(units: Units, first: int, least: int, last: int, sizes: Sequence[int], options: ChunkingOptions) -> int:
    """Return the unit before which a chunk ends that begins with `first`: one of `least` to `last`."""
    for part, floor in _PREFERENCES:
        best = -1
        for at in range(last, least - 1, -1):
            if sizes[at - first - 1] < part * options.max_tokens:
                break
            if units.strengths[at] >= floor and (best < 0 or units.strengths[at] > units.strengths[best]):
                best = at
        if best >= 0:
            return best
    for at in range(last, least - 1, -1):
        if units.strengths[at] >= Strength.WORD:
            return at
    return last


def _choose_overlap(units: Units, first: int, end: int, options: ChunkingOptions) -> int:
    """Return the unit that the next chunk begins with, after one from `first` to `end`."""
    if not options.overlap_tokens or units.strengths[end] >= Strength.HEADING:
        return end
    chosen, at, size = end, end, 0
    while at - 1 > first:
        at -= 1
        size += units.tokens[at]
        if size > options.overlap_tokens:
            break
        if units.strengths[at] >= Strength.WORD:
            chosen = at
        if units.strengths[at] >= Strength.HEADING:
            break
    return chosen


def _trim_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Leave out blank lines before and all blanks after each span, and the spans that then lie within a neighbour (they
    had a part of a giant run of blanks)."""
    trimmed: list[tuple[int, int]] = []
    for start, end in spans:
        kept = text[start:end].rstrip()
        last = start + len(kept)
        first = last - len(kept.lstrip())
        begin = max(start, text.rfind("\n", start, first) + 1)
        if not kept or (trimmed and last <= trimmed[-1][1]):
            continue
        if trimmed and begin == trimmed[-1][0]:
            trimmed.pop()
        trimmed.append((begin, last))
    return trimmed


def _find_byte_offsets(text: str, spans: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the UTF-8 offset of each character at which a span starts or ends."""
    offsets: dict[int, int] = {}
    at = offset = 0
    for position in sorted({position for span in spans for position in span}):
        offset += len(text[at:position].encode())
        offsets[position] = offset
        at = position
    return offsets


class _HeadingPath:
    """Finds the headings above positions in a text. Positions must be asked for in ascending order."""

    def __init__(self, headings: Sequence[Heading]) -> None:
        self._headings = headings
        self._next = 0
        self._open: list[Heading] = []

    def find_path(self, position: int) -> tuple[str, ...]:
        """Return the titles of the headings above `position` (in characters), the outermost first.

        A heading that begins at the position is not among them. No position may be smaller than in an earlier call.
        """
        while self._next < len(self._headings) and self._headings[self._next].start < position:
            heading = self._headings[self._next]
            self._close(heading.level)
            self._open.append(heading)
            self._next += 1
        if self._next < len(self._headings) and self._headings[self._next].start == position:
            # It ends those of its level that are open.
            self._close(self._headings[self._next].level)
        return tuple(heading.title for heading in self._open)

    def _close(self, level: int) -> None:
        while self._open and self._open[-1].level >= level:
            self._open.pop()
