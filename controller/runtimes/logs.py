"""Parts of a log for somebody who follows it: whole lines, and where to go on. Pure.

A place is known by its offset while the log stays where it is. Once it was cut or moved, only its content tells where
one was: a digest of the last bytes that were given.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import Final

from controller.runtimes.base import LogPart

PART_BYTES: Final = 256 * 1024
"""Most that is given at a time."""
TAIL_BYTES: Final = 8 * 1024
TAIL_LINES: Final = 50
EXIT_LINES: Final = 400
"""Lines that tell of an end: vLLM repeats the traceback of a child in each of its processes."""
_LINE_BYTES: Final = 160

_CONTEXT_BYTES: Final = 256
_LONGEST_CONTEXT: Final = 1024
_CONTROL: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b]*(\x07|\x1b\\)"  # OSC: titles, links
    r"|\x1b[@-Z\\-_]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)


def plain_lines(data: bytes) -> list[str]:
    """Lines as text: no terminal codes, a progress bar as its last state."""
    text = _CONTROL.sub("", data.decode(errors="replace").replace("\r\n", "\n"))
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in lines]


def last_lines(data: bytes, count: int) -> tuple[str, ...]:
    """The last lines as text, without the empty ones at the end."""
    lines = plain_lines(data)
    while lines and not lines[-1]:
        lines.pop()
    return tuple(lines[-count:]) if count > 0 else ()


def plain_tail(data: bytes, lines: int = TAIL_LINES) -> str:
    """The last lines as text: no terminal codes, a progress bar as its last state, and not much longer than lines
    usually are."""
    tail = "\n".join(last_lines(data, lines)).encode()[-tail_bytes(lines) :]
    return tail.decode(errors="ignore")


def tail_bytes(lines: int) -> int:
    """How long so many lines may be together."""
    return max(TAIL_BYTES, lines * _LINE_BYTES)


def whole_lines(data: bytes, *, has_ended: bool, max_bytes: int = PART_BYTES) -> bytes:
    """The first `max_bytes`, up to the end of a line.

    What follows it is given later, unless the log has ended (`has_ended`). A line longer than `max_bytes` is cut.
    """
    part = data[:max_bytes]
    if has_ended and len(part) == len(data):
        return part
    end = part.rfind(b"\n") + 1
    return part[:end] if end or len(part) < max_bytes else part


@dataclass(frozen=True, slots=True)
class LineDigest:
    """So many bytes, with this checksum."""

    size: int = 0
    checksum: int = 0

    @classmethod
    def of(cls, data: bytes) -> LineDigest:
        """Of these bytes."""
        return cls(len(data), zlib.crc32(data))

    def ends_at(self, data: bytes, end: int) -> bool:
        """Whether these are the bytes before a place."""
        return end >= self.size and zlib.crc32(data[end - self.size : end]) == self.checksum


@dataclass(frozen=True, slots=True)
class LogMark:
    """What was given last: some of it, and its last line."""

    context: LineDigest = field(default_factory=LineDigest)
    last_line: LineDigest = field(default_factory=LineDigest)

    @classmethod
    def of(cls, data: bytes) -> LogMark:
        """The mark after these bytes."""
        return cls(LineDigest.of(data[-_CONTEXT_BYTES:]), LineDigest.of(_last_line(data)))

    @classmethod
    def parse(cls, text: str) -> LogMark | None:
        """None: it is no mark."""
        match = re.fullmatch(r"(\d{1,4})-([0-9a-f]{1,8})-(\d{1,9})-([0-9a-f]{1,8})", text, re.ASCII)
        if match is None:
            return None
        return cls(LineDigest(int(match[1]), int(match[2], 16)), LineDigest(int(match[3]), int(match[4], 16)))

    def mark_after(self, data: bytes) -> LogMark:
        """The mark after these bytes more: short parts are remembered together, since one alone may occur twice."""
        size = self.context.size + len(data)
        if not data:
            return self
        if len(data) >= _CONTEXT_BYTES or size > _LONGEST_CONTEXT:
            return LogMark.of(data)
        return LogMark(LineDigest(size, zlib.crc32(data, self.context.checksum)), LineDigest.of(_last_line(data)))

    def __str__(self) -> str:
        return "-".join(f"{each.size}-{each.checksum:x}" for each in (self.context, self.last_line))

    def rest_of(self, data: bytes) -> bytes:
        """What comes after what was given last; all of it where that is not in it any more, or nothing was given.

        `data` begins with a whole line. Where it is not certain, something is left out rather than repeated.
        """
        if not self.context.size:
            return data
        line_ends = sorted({len(data), *(match.end() for match in re.finditer(b"\n", data))}, reverse=True)
        for end in line_ends:
            # The data may begin in the middle of what is remembered: then the last line must do.
            is_context_known = end < self.context.size or self.context.ends_at(data, end)
            if is_context_known and self.last_line.ends_at(data, end):
                return data[end:]
        return data


def _last_line(data: bytes) -> bytes:
    return data[data.rfind(b"\n", 0, -1) + 1 :]


def ended_log_part(data: bytes, mark: LogMark | None, lines: int, cursor: str) -> LogPart:
    """What is left to give of an ended replica's kept log, all at once. `mark` None: its last lines."""
    text_lines = last_lines(data, lines) if mark is None else tuple(plain_lines(mark.rest_of(data)))
    return LogPart(text_lines, cursor, running=False)
