"""Logs of replicas, for both runtimes: cut into parts for clients that follow them, and the ends of removed replicas'
logs.

While a log file stays in place, an offset is enough as the position. Once the file was truncated or moved, the
position is found by content: by a digest of the last bytes that the client was given.
"""

from __future__ import annotations

import logging
import os
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from common.atomic_write import write_atomic
from controller.runtimes.base import LogPart, RuntimeUnavailableError, names_of

log = logging.getLogger(__name__)


PART_BYTES: Final = 256 * 1024
"""Bytes of a log that one part holds at most."""
TAIL_BYTES: Final = 8 * 1024
"""Bytes that the tail of a log may always have, however few its lines are."""
TAIL_LINES: Final = 50
"""Lines in the tail of a log if the caller does not say how many."""
EXIT_LINES: Final = 400
"""Lines in the tail of an ended engine's log. Many, because vLLM repeats a child's traceback in each process."""
_LINE_BYTES: Final = 160
"""Bytes that a line of a tail may have on average."""

_CONTEXT_BYTES: Final = 256
"""Bytes at the end of a part that a `LogMark` remembers."""
_LONGEST_CONTEXT: Final = 1024
"""Bytes that a `LogMark` remembers at most, over several short parts."""
_CONTROL: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b]*(\x07|\x1b\\)"  # OSC: titles, links
    r"|\x1b[@-Z\\-_]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)


def plain_lines(data: bytes) -> list[str]:
    """Decode a log as UTF-8 and return its lines, oldest first, without newlines, trailing blanks and terminal control
    codes. Of a progress bar, only the last state remains. Invalid bytes become U+FFFD."""
    text = _CONTROL.sub("", data.decode(errors="replace").replace("\r\n", "\n"))
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in lines]


def last_lines(data: bytes, count: int) -> tuple[str, ...]:
    """Return the last `count` lines of a log, oldest first, cleaned as by `plain_lines`, without empty lines at the
    end; none if `count` is 0 or less."""
    lines = plain_lines(data)
    while lines and not lines[-1]:
        lines.pop()
    return tuple(lines[-count:]) if count > 0 else ()


def plain_tail(data: bytes, lines: int = TAIL_LINES) -> str:
    """Return the last `lines` lines as one text, cleaned as by `plain_lines`. Of a text longer than `tail_bytes(lines)`
    bytes, only the last bytes are returned, which may begin within a line."""
    tail = "\n".join(last_lines(data, lines)).encode()[-tail_bytes(lines) :]
    return tail.decode(errors="ignore")


def tail_bytes(lines: int) -> int:
    """Return how many bytes of UTF-8 a tail of `lines` lines has at most: 160 a line, and never under 8 KiB
    (`TAIL_BYTES`)."""
    return max(TAIL_BYTES, lines * _LINE_BYTES)


def whole_lines(data: bytes, *, has_ended: bool, max_bytes: int = PART_BYTES) -> bytes:
    """Return at most the first `max_bytes` of a log, up to the end of a line. A first line that is longer is cut. An
    unfinished last line is left for a later part, unless the log has ended (`has_ended`). So the result may be empty
    although `data` is not. `data` must reach the end of the log, or be longer than `max_bytes`: otherwise the end of
    `data` counts as the end of an ended log, even within a line."""
    part = data[:max_bytes]
    if has_ended and len(part) == len(data):
        return part
    end = part.rfind(b"\n") + 1
    return part[:end] if end or len(part) < max_bytes else part


@dataclass(frozen=True, slots=True)
class LineDigest:
    """Length and CRC-32 of some bytes of a log, by which they are recognized later."""

    size: int = 0
    checksum: int = 0

    @classmethod
    def of(cls, data: bytes) -> LineDigest:
        """Return the digest of these bytes."""
        return cls(len(data), zlib.crc32(data))

    def ends_at(self, data: bytes, end: int) -> bool:
        """Return whether the digested bytes are those in `data` that end at offset `end`."""
        return end >= self.size and zlib.crc32(data[end - self.size : end]) == self.checksum


@dataclass(frozen=True, slots=True)
class LogMark:
    """A position in a log, recognized by the content before it. Cursors of `read_log_after` contain its text, so that
    a client's position survives when the log is cut or moved. The default is the position before the first byte."""

    context: LineDigest = field(default_factory=LineDigest)
    """Digest of the last bytes before the position."""
    last_line: LineDigest = field(default_factory=LineDigest)
    """Digest of the last line before the position."""

    @classmethod
    def of(cls, data: bytes) -> LogMark:
        """Return the position after these bytes, which should end with a whole line."""
        return cls(LineDigest.of(data[-_CONTEXT_BYTES:]), LineDigest.of(_last_line(data)))

    @classmethod
    def parse(cls, text: str) -> LogMark | None:
        """Parse the text that `str` made of a mark; None if it is not such a text."""
        match = re.fullmatch(r"(\d{1,4})-([0-9a-f]{1,8})-(\d{1,9})-([0-9a-f]{1,8})", text, re.ASCII)
        if match is None:
            return None
        return cls(LineDigest(int(match[1]), int(match[2], 16)), LineDigest(int(match[3]), int(match[4], 16)))

    def mark_after(self, data: bytes) -> LogMark:
        """Return the position after `data`, the bytes that follow this position. A short part is digested together with
        the context before it, since a short part may occur twice in a log."""
        size = self.context.size + len(data)
        if not data:
            return self
        if len(data) >= _CONTEXT_BYTES or size > _LONGEST_CONTEXT:
            return LogMark.of(data)
        return LogMark(LineDigest(size, zlib.crc32(data, self.context.checksum)), LineDigest.of(_last_line(data)))

    def __str__(self) -> str:
        return "-".join(f"{each.size}-{each.checksum:x}" for each in (self.context, self.last_line))

    def rest_of(self, data: bytes) -> bytes:
        """Return the part of `data` after this position; all of it if the position is not found in it. `data` must
        begin with a whole line. If the position may be at several places, the last one counts, so that lines may be
        skipped but never repeated."""
        if not self.context.size:
            return data
        line_ends = sorted({len(data), *(match.end() for match in re.finditer(b"\n", data))}, reverse=True)
        for end in line_ends:
            # If the data begins in the middle of the context, the last line alone must identify the position.
            is_context_known = end < self.context.size or self.context.ends_at(data, end)
            if is_context_known and self.last_line.ends_at(data, end):
                return data[end:]
        return data


def _last_line(data: bytes) -> bytes:
    return data[data.rfind(b"\n", 0, -1) + 1 :]


def ended_log_part(data: bytes, mark: LogMark | None, lines: int, cursor: str) -> LogPart:
    """Return a part with all that follows `mark` in `data`, the kept log of a removed replica, and `running` False.
    With `mark` None, the part has the last `lines` lines; otherwise `lines` is ignored. If `mark` is not found in
    `data`, all of `data` is returned. `cursor` becomes the part's cursor, which must be the position after `data`."""
    text_lines = last_lines(data, lines) if mark is None else tuple(plain_lines(mark.rest_of(data)))
    return LogPart(text_lines, cursor, running=False)


KEPT_BYTES: Final = 64 * 1024
"""Bytes at the end of a replica's log that are kept."""
KEPT_LOGS: Final = 50
"""Number of logs that are kept, over all models. The oldest are deleted first."""


class EndedLogs:
    """The folder in which both runtimes keep the ends of removed replicas' logs, one file per replica. Only the
    controller's user may read it. Methods block. Replica names become file names unchecked, so callers must check names
    that come from outside."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save_log(self, name: str, data: bytes) -> None:
        """Keep the last `KEPT_BYTES` (64 KiB) of a log, from the start of a line, and delete all but the newest
        `KEPT_LOGS` (50) logs. A kept log of the same name is replaced. Empty `data` changes nothing. Blocks. A failed
        write or deletion, as on a full disk, is only logged: it must not prevent the removal of the replica."""
        if not data:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self.log_path(name), _last(data), durable=False)
            self._make_newest(self.log_path(name))
            for path in self._newest_first()[KEPT_LOGS:]:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the log of %s is not kept, or older ones are: %s", name, error.strerror or error)

    def read_log(self, name: str) -> bytes | None:
        """Return the kept end of a replica's log, unparsed; None if none is kept. Blocks. Raises
        RuntimeUnavailableError if the file cannot be read."""
        try:
            return self.log_path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = error.strerror or error
            raise RuntimeUnavailableError(f"the kept log of {name} cannot be read: {reason}") from error

    def list_names(self, instance: str, model: str) -> list[str]:
        """Return the names of the model's replicas whose logs are kept, newest first; empty if there are none. Blocks.
        `instance`: this Roundhouse's id, with which the names of its replicas begin (`rh-<instance>-`). Raises
        ValueError if it is not an instance id."""
        name_pattern = names_of(instance, model)
        return [path.stem for path in self._newest_first() if name_pattern.fullmatch(path.stem)]

    def log_path(self, name: str) -> Path:
        """Return the path of a replica's kept log, whether or not it exists."""
        return self._folder / f"{name}.log"

    def _make_newest(self, newest_path: Path) -> None:
        """Give a file a later time than all others: theirs may be of a clock that was set back since."""
        times = [path.stat().st_mtime_ns for path in self._newest_first() if path != newest_path]
        if times and times[0] >= newest_path.stat().st_mtime_ns:
            os.utime(newest_path, ns=(times[0] + 1_000_000, times[0] + 1_000_000))

    def _newest_first(self) -> list[Path]:
        times = {}
        for path in self._folder.glob("*.log"):
            try:
                times[path] = path.stat().st_mtime_ns
            except FileNotFoundError:  # deleted meanwhile
                continue
        return sorted(times, key=times.__getitem__, reverse=True)


def _last(data: bytes) -> bytes:
    if len(data) <= KEPT_BYTES:
        return data
    _, _, lines = data[-KEPT_BYTES - 1 :].partition(b"\n")
    return lines or data[-KEPT_BYTES:]


def find_highest_attempt(folder: Path) -> int:
    """Return the highest attempt number among the replicas of all models whose logs are kept in the state folder
    `folder`, of this host and of those that have a folder there; 0 if there are none. Blocks."""
    paths = (path for pattern in ("", "hosts/*/") for path in folder.glob(f"{pattern}logs/ended/*.log"))
    numbers = (path.stem.rpartition("-")[2] for path in paths)
    return max((int(number) for number in numbers if number.isdecimal()), default=0)
