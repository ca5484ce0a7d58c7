"""Logs of engines that run as processes: one bounded file per replica, and a tail that outlives the replica."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from common.atomic_write import write_atomic
from controller.runtimes.base import LogPart
from controller.runtimes.logs import (
    KEPT_BYTES,
    PART_BYTES,
    TAIL_LINES,
    EndedLogs,
    LogMark,
    ended_log_part,
    last_lines,
    plain_lines,
    plain_tail,
    tail_bytes,
    whole_lines,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessLogCursor:
    """A client's position in the log of a replica."""

    cut_at: int
    """When the log was last cut, in nanoseconds of Unix time; 0: never. `offset` holds only if it is still the same."""
    offset: int
    """Bytes from the start of the present file to the position."""
    mark: LogMark
    """The same position by content, for when the log was cut or the replica was removed."""

    @classmethod
    def parse(cls, cursor: str | None) -> ProcessLogCursor | None:
        """Parse the text that `str` made of a cursor; None for None and for any other text."""
        match = re.fullmatch(r"(\d{1,20})_(\d{1,18})_(\S+)", cursor or "", re.ASCII)
        mark = LogMark.parse(match[3]) if match else None
        return cls(int(match[1]), int(match[2]), mark) if match and mark else None

    def __str__(self) -> str:
        return f"{self.cut_at}_{self.offset}_{self.mark}"


class ProcessLogs:
    """The folder of logs of one process runtime: a file per replica, and `ended_logs` with the ends of removed ones'
    logs. Engines append to their files (O_APPEND) and do not notice when a log is cut. `limit_bytes` bounds an engine's
    file: see `bound_log`. Methods block. Making one creates the folders, and raises OSError where they cannot be made.

    An engine's open log carries a lock (flock), which its children inherit. So a log that can be locked has no process
    left that writes to it. Names become file names unchecked, so callers must check names that come from outside.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        # No log is read while one is cut: the copied lines would be taken for new ones.
        self._cut_lock = threading.Lock()
        ended_folder = folder / "ended"
        for each in (folder, ended_folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.ended_logs = EndedLogs(ended_folder)

    def log_path(self, name: str) -> Path:
        """Return the path of the file to which the replica's engine writes, whether or not it exists."""
        return self._folder / f"{name}.log"

    def open_log(self, name: str) -> int:
        """Open and lock the log of a new engine. Return a file descriptor for its stdout and stderr, which the caller
        must close once the engine has it. An existing file is appended to. Blocks. Raises BlockingIOError if a process
        still has the log open as its output, and OSError if it cannot be opened."""
        fd = os.open(self.log_path(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

    def is_written_to(self, name: str) -> bool:
        """Return whether a process still has the log open as its output. False if there is no log. Blocks on the disk.
        Raises OSError if the log cannot be opened."""
        try:
            with self.log_path(name).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def bound_log(self, name: str) -> None:
        """Cut a log that is longer than the limit: copy its last part, half of the limit, beside it, and empty it.
        Blocks. Lost are lines that are written during the copy, and what an earlier cut put beside the log. A log that
        is missing or short enough is left alone. If the copy cannot be written, as on a full disk, the log is emptied
        all the same, with a warning. Raises OSError if the log cannot be read or emptied."""
        path = self.log_path(name)
        with self._cut_lock:  # so that it is not deleted meanwhile
            try:
                if path.stat().st_size <= self._limit_bytes:
                    return
            except FileNotFoundError:
                return
            _write(self._earlier_path(name), _read_last_bytes(path, self._limit_bytes // 2))
            os.truncate(path, 0)

    def read_tail(self, name: str, lines: int = TAIL_LINES) -> str:
        """Return the last `lines` lines of a replica's log as one text (see `plain_tail`), or of its kept log once it
        was removed; empty if there are none. Blocks. Raises OSError if the log cannot be read."""
        return plain_tail(self._last_bytes(name, 4 * tail_bytes(lines)), lines)

    def retire_log(self, name: str) -> None:
        """Delete the log of a replica that has ended, except for its end, which is kept among `ended_logs`. Without a
        log, do nothing. Blocks. Raises OSError if the log cannot be read or deleted, but not if its end cannot be
        kept."""
        with self._cut_lock:
            self.ended_logs.save_log(name, self._current_bytes(name, KEPT_BYTES))
            self._earlier_path(name).unlink(missing_ok=True)
            self.log_path(name).unlink(missing_ok=True)

    def read_after(self, name: str, cursor: str | None, lines: int, *, has_ended: bool) -> LogPart | None:
        """Return the whole lines that were written after `cursor`, each once. With None, or a text that is no cursor,
        return the last `lines` lines. Blocks. Raises OSError if the log cannot be read.

        `has_ended`: no more will be written, so that an unfinished last line is returned too. A line that is written
        while the log is cut may be incomplete. A part has at most 256 KiB (`PART_BYTES`); `running` stays true until
        all was returned. Of a removed replica, return what follows in its kept log. If there is none either, return an
        empty part with `running` False, or None without a cursor.
        """
        log_cursor = ProcessLogCursor.parse(cursor)
        with self._cut_lock:
            try:
                with self.log_path(name).open("rb") as file:
                    return self._read_part(name, file, log_cursor, lines, has_ended=has_ended)
            except FileNotFoundError:
                return self._read_ended_part(name, log_cursor, lines)

    def _read_part(
        self, name: str, file: BinaryIO, log_cursor: ProcessLogCursor | None, lines: int, *, has_ended: bool
    ) -> LogPart:
        cut_at = self._cut_at(name)
        if log_cursor is None:
            data = _last_bytes_of(file, PART_BYTES)
            end = file.tell()  # not the file's size, since the file grows meanwhile
            if len(data) == end:
                data = _read_last_bytes(self._earlier_path(name), PART_BYTES - end) + data
            part = whole_lines(data, has_ended=has_ended)
            offset = max(0, end - (len(data) - len(part)))
            return LogPart(
                last_lines(part, lines), str(ProcessLogCursor(cut_at, offset, LogMark.of(part))), not has_ended
            )
        size = file.seek(0, os.SEEK_END)
        if log_cursor.cut_at != cut_at or log_cursor.offset > size:
            rest = log_cursor.mark.rest_of(_read_last_bytes(self._earlier_path(name), self._limit_bytes))
            part = whole_lines(rest, has_ended=False)
            mark = log_cursor.mark.mark_after(part)
            # What is left of it is given next.
            is_all = not part or len(rest) <= PART_BYTES
            position = ProcessLogCursor(cut_at, 0, mark) if is_all else replace(log_cursor, mark=mark)
            return LogPart(tuple(plain_lines(part)), str(position), running=True)
        file.seek(log_cursor.offset)
        part = whole_lines(file.read(PART_BYTES + 1), has_ended=has_ended)
        offset = log_cursor.offset + len(part)
        # Directly after a cut, the bytes given before it need not precede this part: begin a new mark.
        mark = log_cursor.mark.mark_after(part) if log_cursor.offset or not part else LogMark.of(part)
        cursor = str(ProcessLogCursor(cut_at, offset, mark))
        return LogPart(tuple(plain_lines(part)), cursor, running=not has_ended or offset < size)

    def _read_ended_part(self, name: str, log_cursor: ProcessLogCursor | None, lines: int) -> LogPart | None:
        data = self.ended_logs.read_log(name)
        if data is None:
            return LogPart((), str(log_cursor), running=False) if log_cursor else None
        return ended_log_part(
            data, log_cursor.mark if log_cursor else None, lines, str(ProcessLogCursor(0, 0, LogMark.of(data)))
        )

    def _cut_at(self, name: str) -> int:
        try:
            return self._earlier_path(name).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _last_bytes(self, name: str, count: int) -> bytes:
        # The current log first: a name may be reused after the state folder could not be written, and then the kept
        # log is another engine's.
        if self.log_path(name).exists():
            return self._current_bytes(name, count)
        return (self.ended_logs.read_log(name) or b"")[-count:]

    def _current_bytes(self, name: str, count: int) -> bytes:
        data = _read_last_bytes(self.log_path(name), count)
        if len(data) < count:
            data = _read_last_bytes(self._earlier_path(name), count - len(data)) + data
        return data

    def _earlier_path(self, name: str) -> Path:
        return self._folder / f"{name}.log.1"


def _read_last_bytes(path: Path, count: int) -> bytes:
    """Return at most the last `count` bytes of a file, from the start of a line; empty if there is no file."""
    try:
        with path.open("rb") as file:
            return _last_bytes_of(file, count)
    except FileNotFoundError:
        return b""


def _last_bytes_of(file: BinaryIO, count: int) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - count))
    data = file.read(count)
    if size > count:
        _, newline, lines = data.partition(b"\n")
        return lines if newline and lines else data
    return data


def _write(path: Path, data: bytes) -> None:
    """Replace a file. A failure, say of a full disk, is only logged, so that the caller goes on."""
    try:
        write_atomic(path, data, durable=False)
    except OSError as error:
        log.warning("log lines are lost: %s: %s", path, error.strerror or error)
