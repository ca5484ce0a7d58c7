"""Engines' output: one bounded file per replica, and a tail that outlives it."""

from __future__ import annotations

import fcntl
import logging
import os
import re
from pathlib import Path
from typing import Final

from controller.atomic import write_atomic

TAIL_BYTES: Final = 8 * 1024
TAIL_LINES: Final = 50
KEPT_BYTES: Final = 64 * 1024
"""Of an ended replica's log."""
KEPT_LOGS: Final = 50
"""How many ended replicas' logs are kept; the oldest go first."""

_CONTROL: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b]*(\x07|\x1b\\)"  # OSC: titles, links
    r"|\x1b[@-Z\\-_]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)


def plain_tail(data: bytes, lines: int = TAIL_LINES, limit: int = TAIL_BYTES) -> str:
    """The last lines as text: no terminal codes, a progress bar as its last state, at most `limit` bytes."""
    text = _CONTROL.sub("", data.decode(errors="replace").replace("\r\n", "\n"))
    shown = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.rstrip("\n").split("\n")][-lines:]
    tail = "\n".join(shown).encode()[-limit:]
    return tail.decode(errors="ignore")


log = logging.getLogger(__name__)


class Logs:
    """The folder of logs. Engines append (O_APPEND) and are never told of what is done here.

    An engine's open log carries a lock (flock) that its children share, from before they exist: a log that can be
    locked has no process left that writes to it.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._ended = folder / "ended"
        self._limit = limit_bytes
        for each in (self._folder, self._ended):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Where an engine writes."""
        return self._folder / f"{name}.log"

    def open(self, name: str) -> int:
        """A file descriptor for an engine's stdout and stderr, locked."""
        fd = os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd

    def written_to(self, name: str) -> bool:
        """Whether some process still holds the log as its output."""
        try:
            with self.path(name).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def bound(self, name: str) -> None:
        """Keep the last part of a log that has grown too long, half of the limit, beside a new empty one.

        Lines written while it is copied are lost.
        """
        path = self.path(name)
        try:
            if path.stat().st_size <= self._limit:
                return
        except FileNotFoundError:
            return
        _write(self._earlier(name), _last(path, self._limit // 2))
        os.truncate(path, 0)

    def tail(self, name: str, lines: int = TAIL_LINES) -> str:
        """The last lines, also of a replica that is gone."""
        return plain_tail(self._last_bytes(name, 4 * TAIL_BYTES), lines)

    def retire(self, name: str) -> None:
        """Keep a tail of an ended replica's log, and no more."""
        if data := self._last_bytes(name, KEPT_BYTES):
            _write(self._kept(name), data)
        self._earlier(name).unlink(missing_ok=True)
        self.path(name).unlink(missing_ok=True)
        kept = sorted(self._ended.glob("*.log"), key=lambda path: path.stat().st_mtime)
        for path in kept[:-KEPT_LOGS]:
            path.unlink(missing_ok=True)

    def _last_bytes(self, name: str, count: int) -> bytes:
        data = _last(self.path(name), count)
        if len(data) < count:
            data = _last(self._earlier(name), count - len(data)) + data
        return data or _last(self._kept(name), count)

    def _earlier(self, name: str) -> Path:
        return self._folder / f"{name}.log.1"

    def _kept(self, name: str) -> Path:
        return self._ended / f"{name}.log"


def _last(path: Path, count: int) -> bytes:
    """At most the last `count` bytes; where that is not the whole file, from the start of a line."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - count))
            data = file.read(count)
    except FileNotFoundError:
        return b""
    if size > count:
        _, newline, rest = data.partition(b"\n")
        return rest if newline and rest else data
    return data


def _write(path: Path, data: bytes) -> None:
    """Replace a file. Without success when the disk is full: that must not keep what is written elsewhere."""
    try:
        write_atomic(path, data, durable=False)
    except OSError as error:
        log.warning("log lines are lost: %s: %s", path, error.strerror or error)
