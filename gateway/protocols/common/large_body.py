"""Reads a body that is too large to decode in one go by its outline; the rest passes as it came. Pure.

The outline is the same JSON with short marks in place of the inside of long strings. It is made block by block while
the body arrives, so that no call takes long. The gateway decodes, inspects, changes and encodes the outline; `fill`
then puts back the parts that were left out, unchanged and without a copy.

Each part left out lies inside one string and contains no end of a string. This can be proved without the text before
it: in JSON, backslashes and letters other than those of `true`, `false` and `null` occur in strings alone, and a quote
inside a string follows a backslash. For the same reason, a part cannot end the string that it is put back into. Whether
it is UTF-8 and its escapes are valid is left for the engine to check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from contract.errors import RoundhouseError

LARGE_BYTES: Final = 256 * 1024
"""Bodies above this size are read by their outline."""
BLOCK_BYTES: Final = 128 * 1024
"""Size of the blocks in which a body is cut, however it arrives, so that bodies with equal starts have equal
outlines."""
READING_COPIES: Final = 2
"""How often a body counts while it is read: most of its room is there when it turns out to take more."""
WHOLE_COPIES: Final = 4
"""How often a body is held that is decoded whole: its blocks, its text, what is decoded of it, and what is sent of
that."""
_OUTLINE_COPIES: Final = 4
"""How often an outline is held: itself, decoded, as a translation reads it, and as it is sent."""
_VALUE_BYTES: Final = ((b",", 56), (b"[", 64), (b"{", 200))
"""What begins or parts values in JSON, and the most that a small value takes in Python beyond its text."""
_WINDOW_BYTES: Final = 4096
"""Bytes examined in one step. As much of a string's start and end may stay in the outline."""
_MOST_BACKSLASHES: Final = 16
"""Maximum backslashes in a row by which a window is extended."""

_MARK: Final = b"u0001roundhouse-left-out-"
"""A mark without the backslash before it. It starts with the escape of U+0001, a character that JSON cannot hold
unescaped."""
_INDEX: Final = re.compile(rb"([0-9a-f]{6});")
_INDEX_BYTES: Final = 7
_MARK_CHARACTER: Final = "\x01"
_MARK_CHARACTERS: Final = re.compile("\x01roundhouse-left-out-([0-9a-f]{6});")
_MOST_LEFT_OUT: Final = 16**6 - BLOCK_BYTES

_QUOTE, _BACKSLASH = 0x22, 0x5C
_INSIDE_ONLY: Final = re.compile(rb"[^0-9+\-.eEtrufalsn\s,:\[\]{}\"]")
"""Bytes that valid JSON has only inside strings."""
_CUT: Final = re.compile(
    rb"(?<!\\)(?=[\xc2-\xf4])"  # start of a character of several bytes
    rb"|(?<=[^\\])(?=\\(?!u[dD][c-fC-F]))"  # start of an escape, except the second half of a surrogate pair
    rb"|(?<=[ !#-\[\]-~]{6})(?=[ !#-\[\]-~])"  # 6 plain characters precede: no escape is longer
)
"""Positions where a string may be cut: between two characters, however they are written."""
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/=_-]{64}")


class LargeBody:
    """The body of one request that is larger than `LARGE_BYTES` (256 KiB), and its outline: the same JSON with short
    marks in place of the inside of long strings. The caller adds all parts, then calls `finish`; only then are the
    outline and the other results valid. `free` must be called when no engine can need the body any more."""

    __slots__ = (
        "_blocks",
        "_is_freed",
        "_is_settled",
        "_left_out",
        "_on_freed",
        "_outline_parts",
        "_pending",
        "_resize",
        "_value_bytes",
        "_whole_copies",
        "is_whole",
        "media_bytes",
        "outline",
        "size",
    )

    def __init__(
        self,
        on_freed: Callable[[], None] | None = None,
        resize: Callable[[int, Callable[[], None] | None], bool] | None = None,
    ) -> None:
        """`on_freed` is called once, by the first call of `free`; None: nobody is told. `resize` changes the room that
        the body has in memory, as `BodyBudget.resize` does; None: nobody counts it."""
        self._on_freed = on_freed
        self._resize = resize
        self._is_settled = False
        self._value_bytes = 0
        self._whole_copies = WHOLE_COPIES
        self.is_whole = False
        """The body was decoded whole, which copies all of it."""
        self._is_freed = False
        self._blocks: list[bytes] = []
        """The body in blocks of `BLOCK_BYTES`; the last one may be shorter."""
        self._pending = bytearray()
        """Bytes that do not fill a block yet."""
        self._left_out: list[tuple[int, int]] = []
        """Start and end, in the body, of each part that the outline lacks. No part lies in two blocks."""
        self._outline_parts: list[bytes] = []
        self.outline = b""
        self.size = 0
        """Bytes of the whole body."""
        self.media_bytes = 0
        """Bytes of base64 that the outline lacks."""

    def add_part(self, part: bytes | bytearray) -> None:
        """Add the next bytes of the body, cut anywhere. Call before `finish` only."""
        self.size += len(part)
        self._pending += part
        while len(self._pending) >= BLOCK_BYTES:
            with memoryview(self._pending) as pending:
                block = bytes(pending[:BLOCK_BYTES])
            del self._pending[:BLOCK_BYTES]
            self._add_block(block)

    def finish(self) -> None:
        """Complete the outline. Call once, after the last part. Raises nothing if the body is no JSON: errors show when
        the outline is decoded."""
        if self._pending:
            self._add_block(bytes(self._pending))
            self._pending = bytearray()
        self.outline = b"".join(self._outline_parts)
        self._outline_parts.clear()
        if self._left_out and self.outline.count(_MARK) > len(self._left_out):  # some text looks like a mark
            self.outline = self.join()
            self._left_out.clear()
            self.media_bytes = 0
        if not self._left_out:
            self._blocks.clear()  # the outline is the body

    def free(self) -> None:
        """Release the body's memory; the outline stays. May be called repeatedly. Afterwards `join` raises
        RuntimeError; so do `fill`, `fill_text`, `split_text` and `fill_fields` for a part that the outline lacks."""
        self._is_freed = True
        self._blocks.clear()
        self._pending = bytearray()
        on_freed, self._on_freed, self._resize = self._on_freed, None, None
        if on_freed is not None:
            on_freed()

    def free_blocks(self) -> bool:
        """Release the body when its engine begins to answer: its blocks, and all of its room but that of the outline
        and of what was decoded, which the request still holds. Return True if such room is left: call `free` when the
        request ends. False: everything is released, as by `free`."""
        left_bytes = self._count_outline(_OUTLINE_COPIES - 1) + (4 * self.size if self.is_whole else 0)
        if left_bytes and self._resize is not None:
            self._blocks.clear()
            self._is_freed = True
            self._resize(left_bytes, None)
            return True
        self.free()
        return False

    def claim_room(self, whole_copies: int, on_granted: Callable[[], None]) -> bool:
        """Ask for the most room that the request takes while it is decoded. Return True if the body has that room now;
        False: `on_granted` is called when it has, unless the body is freed before. `whole_copies`: room of a body that
        is decoded whole, as a multiple of its size; 0: it is not decoded whole. Call after `finish`."""
        self._whole_copies = max(whole_copies, WHOLE_COPIES)
        most_bytes = max(self.count_bytes(is_whole=whole_copies > 0), READING_COPIES * self.size)
        return self._resize is None or self._resize(most_bytes, on_granted)

    def settle_room(self) -> None:
        """Give back the room that the request does not take, now that it is decoded. If the body is decoded whole
        later, `note_whole` asks for more. Does nothing after `free`."""
        self._is_settled = True
        if self._resize is not None and not self._is_freed:
            self._resize(self.count_bytes(is_whole=self.is_whole), None)

    def note_whole(self) -> None:
        """Count the body as decoded whole from now on, and, after `settle_room`, take the room for that unless it is
        freed. Called by what decodes or copies the whole body."""
        if not self.is_whole:
            self.is_whole = True
            if self._is_settled:
                self.settle_room()

    @property
    def is_outline(self) -> bool:
        """Whether the outline lacks nothing, so that it is the whole body."""
        return not self._left_out

    def count_bytes(self, *, is_whole: bool) -> int:
        """Return the bytes of memory that the request takes, all copies included. `is_whole`: it is decoded whole."""
        if is_whole:
            return self._whole_copies * self.size + self._value_bytes
        return self.size + self._count_outline(_OUTLINE_COPIES - (0 if self._left_out else 1))

    @property
    def decoded_bytes(self) -> int:
        """Bytes that the decoded outline takes, about. More where a body has many small values than long texts."""
        return len(self.outline) + self._value_bytes

    def _count_outline(self, copies: int) -> int:
        """Return the bytes of so many copies of the outline, and of the values decoded from it; 0 if it is small."""
        size = len(self.outline)
        return copies * size + self._value_bytes if size > LARGE_BYTES else 0

    def _add_block(self, block: bytes) -> None:
        follows_backslash = bool(self._blocks) and self._blocks[-1][-1] == _BACKSLASH
        kept_from, start = 0, len(self._blocks) * BLOCK_BYTES
        first_part = len(self._outline_parts)
        if len(self._left_out) < _MOST_LEFT_OUT:
            for inside_start, inside_end in find_insides(block, follows_backslash=follows_backslash):
                self._outline_parts += (block[kept_from:inside_start], b"\\%b%06x;" % (_MARK, len(self._left_out)))
                self._left_out.append((start + inside_start, start + inside_end))
                self.media_bytes += inside_end - inside_start if _BASE64.match(block, inside_start) else 0
                kept_from = inside_end
        self._outline_parts.append(block[kept_from:])
        self._blocks.append(block)
        for part in self._outline_parts[first_part:]:
            self._value_bytes += count_value_bytes(part)

    @property
    def text_bytes(self) -> int:
        """Bytes of the whole body without `media_bytes`, the base64 that the outline lacks."""
        return self.size - self.media_bytes

    def join(self) -> bytes:
        """Return the whole body in one piece. This copies it, so the body counts as decoded whole from then on
        (`note_whole`). Raises RuntimeError after `free`."""
        self._check_kept()
        self.note_whole()
        return b"".join(self._blocks) if self._blocks else self.outline

    def fill(self, encoded: bytes) -> list[bytes | memoryview]:
        """Return JSON that was made of the outline with the parts put back that the outline lacks, as a list of pieces,
        some of them views of the body. `encoded` may hold each mark in any string and any number of times, also in JSON
        that is itself a string of JSON. Raises RuntimeError if a part is needed after `free`."""
        parts: list[bytes | memoryview] = []
        view, filled = memoryview(encoded), 0
        for start, index in self._find_marks(encoded):
            depth = _depth_of(encoded, start)
            parts += (view[filled : start - 2 ** (depth - 1)], self._inside(index, depth))
            filled = start + len(_MARK) + _INDEX_BYTES
        parts.append(view[filled:])
        return parts

    def fill_text(self, text: str) -> str:
        """Return a decoded string of the outline as it is in the body.

        Raises:
            RoundhouseError: `invalid_json`: a part that was left out is not UTF-8, or not valid inside a JSON string.
            RuntimeError: a part is needed after `free`.
        """
        return _MARK_CHARACTERS.sub(self._decode_mark, text)

    def split_text(self, text: str) -> Iterator[str]:
        """Yield the text that `fill_text` returns in pieces, for callers that do not need it whole.

        A piece is a part that was left out, of `BLOCK_BYTES` (128 KiB) at most, or what the outline holds between two
        of them, which may be empty or of any length.

        Raises:
            RoundhouseError, RuntimeError: as `fill_text`, when the piece's turn comes.
        """
        end = 0
        for mark in _MARK_CHARACTERS.finditer(text):
            yield text[end : mark.start()]
            yield self._decode_mark(mark)
            end = mark.end()
        yield text[end:]

    def fill_fields(self, fields: dict[str, Any], *, kept_names: Collection[str]) -> None:
        """Replace, in place, each string in a decoded outline by what it is in the body, keys of objects too. Use it
        before texts are interpreted or stored. A string that is the value of a field in `kept_names`, at any depth,
        stays as it is; strings deeper inside such a field do not. The body counts as decoded whole from then on.

        Raises:
            RoundhouseError, RuntimeError: as `fill_text`; some strings may be replaced already.
        """
        self.note_whole()
        pending: list[Any] = [fields]
        while pending:
            container = pending.pop()
            if isinstance(container, dict) and any(_MARK_CHARACTER in key for key in container):
                filled = {self.fill_text(key): value for key, value in container.items()}
                container.clear()
                container.update(filled)  # in the old order
            for key, value in container.items() if isinstance(container, dict) else enumerate(container):
                if isinstance(value, dict | list):
                    pending.append(value)
                elif isinstance(value, str) and _MARK_CHARACTER in value and key not in kept_names:
                    container[key] = self.fill_text(value)

    def place_in_body(self, position: int) -> int:
        """Return the offset in the body of the byte at this offset of the outline, which must not lie inside a mark.
        Works after `free`, too."""
        shift = 0
        for start, index in self._find_marks(self.outline):
            if start >= position:
                break
            inside_start, inside_end = self._left_out[index]
            shift += inside_end - inside_start - (1 + len(_MARK) + _INDEX_BYTES)
        return position + shift

    def _find_marks(self, encoded: bytes) -> Iterator[tuple[int, int]]:
        """Yield the offset of each mark, behind its backslashes, and its index in `_left_out`."""
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
            return mark[0]  # not a mark, but text of the body
        inside = bytes(self._view(index))
        try:
            text: str = json.loads(b'"%b"' % inside) if b"\\" in inside else inside.decode()
        except ValueError as error:
            raise RoundhouseError("invalid_json", f"A string in the body is not JSON's: {error}.") from None
        return text


def count_value_bytes(text: bytes) -> int:
    """Return the bytes that small values in JSON take in Python beyond their text, about, and marks in strings too."""
    return sum(size * text.count(mark) for mark, size in _VALUE_BYTES)


def find_insides(block: bytes, *, follows_backslash: bool) -> Iterator[tuple[int, int]]:
    """Yield start (inclusive) and end (exclusive) of each range of a block that certainly lies inside a string and is
    long enough to leave out, in order. Each is cut between characters.

    The block must be a part of valid JSON; for anything else the ranges mean nothing. `follows_backslash`: the byte
    before the block is a backslash.
    """
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
    """Return the end of the window from `start`, not behind a backslash if possible: without it, the next byte means
    something else."""
    end = min(start + _WINDOW_BYTES, len(block))
    for _ in range(_MOST_BACKSLASHES):
        if end == len(block) or block[end - 1] != _BACKSLASH:
            break
        end += 1
    return end


def _holds_no_string_end(block: bytes, start: int, end: int) -> bool:
    """Whether every quote in the range is escaped. The range must not follow a backslash."""
    last_quote = block.rfind(b'"', start, end)
    if last_quote < 0:
        return True
    if last_quote == start or block[last_quote - 1] != _BACKSLASH:
        return False
    window = block[start:end]
    if b"\\\\" in window:
        window = window.replace(b"\\\\", b"")  # an escaped backslash escapes nothing itself
    return window.count(b'"') == window.count(b'\\"')


def _between_cuts(block: bytes, start: int, end: int) -> tuple[int, int] | None:
    """Return the range without partial characters at its ends; None if too little of it is left."""
    first = _CUT.search(block, start + 1, end)
    last = _CUT.search(block, max(start, end - 64), end)
    if first is None or last is None or last.start() - first.start() < _WINDOW_BYTES // 2:
        return None
    return first.start(), last.start()


def _depth_of(encoded: bytes, at: int) -> int:
    """Return how deep the mark at `at` is nested in strings of JSON, by the backslashes before it. In the outermost
    string it has one; each level doubles them, together with those of the text before it."""
    count = 0
    while encoded[at - count - 1] == _BACKSLASH:
        count += 1
    return (count & -count).bit_length()
