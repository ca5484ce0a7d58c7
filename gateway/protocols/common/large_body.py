"""A body that is too large to be decoded in one go: its outline is read, and the rest passes as it came. Pure.

The outline is the same JSON without the inside of its long strings, in whose place stand short marks. It is made while
the body comes, block by block, so that no call takes long. What is decoded, looked at, changed and encoded again is the
outline; `fill` then puts what was left out into its place, as it came and without copying it.

What is left out lies inside of one string and holds none of its ends, by a proof that needs no look at what precedes
it: JSON has a backslash, and letters other than those of `true`, `false` and `null`, in strings alone, and a quote in a
string has a backslash in front. So what is left out cannot end the string that it is put into either. Whether it is
UTF-8, and its escapes are JSON's, is left to the engine to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from controller.schema.errors import RoundhouseError

LARGE_BYTES: Final = 256 * 1024
"""Bodies above this are read by their outline."""
BLOCK_BYTES: Final = 128 * 1024
"""Cut at multiples of this, however the body came, so that equal beginnings of bodies have equal outlines."""
_WINDOW_BYTES: Final = 4096
"""What is looked at in one go; as much of a string's beginning and end may stay in the outline."""
_MOST_BACKSLASHES: Final = 16
"""In a row, at the end of a window."""

_MARK: Final = b"u0001roundhouse-left-out-"
"""Follows a backslash: as characters, a mark begins with one that JSON must write so."""
_INDEX: Final = re.compile(rb"([0-9a-f]{6});")
_INDEX_BYTES: Final = 7
_MARK_CHARACTER: Final = "\x01"
_MARK_CHARACTERS: Final = re.compile("\x01roundhouse-left-out-([0-9a-f]{6});")
_MOST_LEFT_OUT: Final = 16**6 - BLOCK_BYTES

_QUOTE, _BACKSLASH = 0x22, 0x5C
_INSIDE_ONLY: Final = re.compile(rb"[^0-9+\-.eEtrufalsn\s,:\[\]{}\"]")
"""What valid JSON has inside of strings alone."""
_CUT: Final = re.compile(
    rb"(?<!\\)(?=[\xc2-\xf4])"  # a character of several bytes begins
    rb"|(?<=[^\\])(?=\\(?!u[dD][c-fC-F]))"  # an escape begins, which is no second half of a pair
    rb"|(?<=[ !#-\[\]-~]{6})(?=[ !#-\[\]-~])"  # no escape is longer
)
"""Where a string may be cut: between two characters, however they are written."""
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/=_-]{64}")


class LargeBody:
    """`finish` is called when the last part has come; what else it tells counts from then on."""

    __slots__ = (
        "_blocks",
        "_is_freed",
        "_left_out",
        "_on_freed",
        "_outline_parts",
        "_pending",
        "media_bytes",
        "outline",
        "size",
    )

    def __init__(self, on_freed: Callable[[], None] | None = None) -> None:
        """`on_freed` is called once, by the first call of `free`."""
        self._on_freed = on_freed
        self._is_freed = False
        self._blocks: list[bytes] = []
        """Of `BLOCK_BYTES`, but for the last one."""
        self._pending = bytearray()
        """What is not in a block yet."""
        self._left_out: list[tuple[int, int]] = []
        """Start and end of each part of the body that the outline lacks. None lies in two blocks."""
        self._outline_parts: list[bytes] = []
        self.outline = b""
        self.size = 0
        """Bytes of the whole body."""
        self.media_bytes = 0
        """Bytes of base64 that the outline lacks."""

    def add_part(self, part: bytes | bytearray) -> None:
        """The next bytes, as they came."""
        self.size += len(part)
        self._pending += part
        while len(self._pending) >= BLOCK_BYTES:
            with memoryview(self._pending) as pending:
                block = bytes(pending[:BLOCK_BYTES])
            del self._pending[:BLOCK_BYTES]
            self._add_block(block)

    def finish(self) -> None:
        """The body is complete."""
        if self._pending:
            self._add_block(bytes(self._pending))
            self._pending = bytearray()
        self.outline = b"".join(self._outline_parts)
        self._outline_parts.clear()
        if self._left_out and self.outline.count(_MARK) > len(self._left_out):  # the body itself has what looks so
            self.outline = self.join()
            self._left_out.clear()
            self.media_bytes = 0
        if not self._left_out:
            self._blocks.clear()  # the outline is the body

    def free(self) -> None:
        """Give its memory back: nobody needs more of it than the outline, and what is being sent. To ask for more from
        then on is a mistake, and RuntimeError says so."""
        self._is_freed = True
        self._blocks.clear()
        self._pending = bytearray()
        on_freed, self._on_freed = self._on_freed, None
        if on_freed is not None:
            on_freed()

    def _add_block(self, block: bytes) -> None:
        follows_backslash = bool(self._blocks) and self._blocks[-1][-1] == _BACKSLASH
        kept_from, start = 0, len(self._blocks) * BLOCK_BYTES
        if len(self._left_out) < _MOST_LEFT_OUT:
            for inside_start, inside_end in find_insides(block, follows_backslash=follows_backslash):
                self._outline_parts += (block[kept_from:inside_start], b"\\%b%06x;" % (_MARK, len(self._left_out)))
                self._left_out.append((start + inside_start, start + inside_end))
                self.media_bytes += inside_end - inside_start if _BASE64.match(block, inside_start) else 0
                kept_from = inside_end
        self._outline_parts.append(block[kept_from:])
        self._blocks.append(block)

    @property
    def text_bytes(self) -> int:
        """Bytes of the whole body but for `media_bytes`."""
        return self.size - self.media_bytes

    def join(self) -> bytes:
        """The whole body in one piece, which is a copy."""
        self._check_kept()
        return b"".join(self._blocks) if self._blocks else self.outline

    def fill(self, encoded: bytes) -> list[bytes | memoryview]:
        """JSON that was made of the outline, with all that was left out in its place. `encoded` may have it anywhere
        and any number of times, also in JSON that stands in a string of JSON."""
        parts: list[bytes | memoryview] = []
        view, filled = memoryview(encoded), 0
        for start, index in self._find_marks(encoded):
            depth = _depth_of(encoded, start)
            parts += (view[filled : start - 2 ** (depth - 1)], self._inside(index, depth))
            filled = start + len(_MARK) + _INDEX_BYTES
        parts.append(view[filled:])
        return parts

    def fill_text(self, text: str) -> str:
        """A decoded string of the outline as it is in the body.

        Raises:
            RoundhouseError: `invalid_json`: what was left out is no part of a string.
        """
        return _MARK_CHARACTERS.sub(self._decode_mark, text)

    def split_text(self, text: str) -> Iterator[str]:
        """What `fill_text` gives, in pieces of a block at most: for whoever looks at it without a need of the whole.

        Raises:
            RoundhouseError: as `fill_text`.
        """
        end = 0
        for mark in _MARK_CHARACTERS.finditer(text):
            yield text[end : mark.start()]
            yield self._decode_mark(mark)
            end = mark.end()
        yield text[end:]

    def fill_fields(self, fields: dict[str, Any], *, kept_names: Collection[str]) -> None:
        """Change every string in a decoded outline to what it is in the body, but for those in fields of these names:
        for whoever reads what texts say, or tells them again."""
        pending: list[Any] = [fields]
        while pending:
            container = pending.pop()
            for key, value in container.items() if isinstance(container, dict) else enumerate(container):
                if isinstance(value, dict | list):
                    pending.append(value)
                elif isinstance(value, str) and _MARK_CHARACTER in value and key not in kept_names:
                    container[key] = self.fill_text(value)

    def place_in_body(self, position: int) -> int:
        """Where the byte at this position of the outline is in the body."""
        shift = 0
        for start, index in self._find_marks(self.outline):
            if start >= position:
                break
            inside_start, inside_end = self._left_out[index]
            shift += inside_end - inside_start - (1 + len(_MARK) + _INDEX_BYTES)
        return position + shift

    def _find_marks(self, encoded: bytes) -> Iterator[tuple[int, int]]:
        """Where each mark stands behind its backslashes, and its index."""
        at = encoded.find(_MARK) if self._left_out else -1
        while at >= 0:
            after = at + len(_MARK)
            digits = _INDEX.match(encoded, after)
            if digits is not None and (index := int(digits[1], 16)) < len(self._left_out):
                yield at, index
            at = encoded.find(_MARK, after)

    def _inside(self, index: int, depth: int) -> bytes | memoryview:
        view = self._view(index)
        if depth == 1:
            return view
        inside = bytes(view)
        for _ in range(depth - 1):
            inside = inside.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        return inside

    def _check_kept(self) -> None:
        if self._is_freed:
            raise RuntimeError("the body was freed when its engine began to answer")

    def _view(self, index: int) -> memoryview:
        self._check_kept()
        start, end = self._left_out[index]
        first = start % BLOCK_BYTES
        return memoryview(self._blocks[start // BLOCK_BYTES])[first : first + end - start]

    def _decode_mark(self, mark: re.Match[str]) -> str:
        index = int(mark[1], 16)
        if index >= len(self._left_out):
            return mark[0]  # the body's own
        inside = bytes(self._view(index))
        try:
            text: str = json.loads(b'"%b"' % inside) if b"\\" in inside else inside.decode()
        except ValueError as error:
            raise RoundhouseError("invalid_json", f"A string in the body is not JSON's: {error}.") from None
        return text


def find_insides(block: bytes, *, follows_backslash: bool) -> Iterator[tuple[int, int]]:
    """Where a part of a valid JSON text is inside of a string, as far as that can be told and is worth it: start and
    end of each such range. `follows_backslash`: the byte before the block is one."""
    run_start, is_inside = -1, False
    at = 0
    while at < len(block):
        end = _window_end(block, at)
        is_one_string = not follows_backslash and _holds_no_string_end(block, at, end)
        follows_backslash = block[end - 1] == _BACKSLASH
        if is_one_string:
            if run_start < 0:
                run_start, is_inside = at, False
            is_inside = is_inside or _INSIDE_ONLY.search(block, at, min(end, at + 256)) is not None
        elif run_start >= 0:
            if is_inside and (inside := _between_cuts(block, run_start, at)) is not None:
                yield inside
            run_start = -1
        at = end
    if run_start >= 0 and is_inside and (inside := _between_cuts(block, run_start, len(block))) is not None:
        yield inside


def _window_end(block: bytes, start: int) -> int:
    """Not behind a backslash, if that can be: what follows would have another meaning without it."""
    end = min(start + _WINDOW_BYTES, len(block))
    for _ in range(_MOST_BACKSLASHES):
        if end == len(block) or block[end - 1] != _BACKSLASH:
            break
        end += 1
    return end


def _holds_no_string_end(block: bytes, start: int, end: int) -> bool:
    """Whether every quote in the range is one inside of a string, and the range follows no backslash."""
    last_quote = block.rfind(b'"', start, end)
    if last_quote < 0:
        return True
    if last_quote == start or block[last_quote - 1] != _BACKSLASH:
        return False
    window = block[start:end]
    if b"\\\\" in window:
        window = window.replace(b"\\\\", b"")  # an escaped backslash, which escapes nothing
    return window.count(b'"') == window.count(b'\\"')


def _between_cuts(block: bytes, start: int, end: int) -> tuple[int, int] | None:
    """The range without the rests of characters at its ends; None: too little is left of it."""
    first = _CUT.search(block, start + 1, end)
    last = _CUT.search(block, max(start, end - 64), end)
    if first is None or last is None or last.start() - first.start() < _WINDOW_BYTES // 2:
        return None
    return first.start(), last.start()


def _depth_of(encoded: bytes, at: int) -> int:
    """How many strings of JSON the mark at `at` stands in, by the backslashes in front of it: one in the outermost
    string, and each further one doubles them, those that belong to the text before too."""
    count = 0
    while encoded[at - count - 1] == _BACKSLASH:
        count += 1
    return (count & -count).bit_length()
