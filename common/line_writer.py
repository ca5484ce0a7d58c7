"""Writing lines (logs, notes) to an output that may be dead, without failing or blocking the program.

A pipe may have no reader or one that stopped reading, a terminal may be gone or stopped, a disk full, or the output
closed before the program began. Python's own streams then raise or block for ever; at exit they try again, fail, and
replace the program's exit code by 120.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import stat
import sys
import traceback
import weakref
from collections.abc import Sequence
from typing import Final, NoReturn, TextIO

PATIENCE_S: Final = 1.0
"""Seconds that a line waits for a reader that takes nothing, before the reader counts as stalled."""
_STANDARD_DESCRIPTORS: Final = (0, 1, 2)


class LineWriter:
    """Writes lines to the file descriptor of a stream, past the stream's own buffer.

    A line that the reader does not take in time is lost, whole or in part; nothing raises. Not thread-safe.

    Several programs may write to one pipe. So it is opened once more where that can be done, for writes that never
    block: to make the stream's own descriptor such a one would make that of all programs one.
    """

    def __init__(self, stream: TextIO | None, patience_s: float = PATIENCE_S) -> None:
        """`stream` None, closed, or without a descriptor: every line is lost. `patience_s`: seconds that a line waits
        for a reader that takes nothing."""
        self._descriptor: int | None = None
        self._encoding = "utf-8"
        self._patience_s = patience_s
        self._is_stalled = False
        """Whether the reader took nothing for `patience_s`. Until there is room again, lines do not wait."""
        self._lost_lines = 0
        """Lines lost since the last one that was written."""
        if stream is not None:
            try:
                self._encoding = stream.encoding or self._encoding
                self._descriptor = stream.fileno()
                self._open_own(self._descriptor)
            except (OSError, ValueError):
                pass

    def _open_own(self, descriptor: int) -> None:
        """Open the pipe of a descriptor anew, without blocking. Raises OSError: it cannot be, and the descriptor stays
        in use. Does nothing for another output: a file has a position, which must stay that of all who write to it."""
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            self._descriptor = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._descriptor).atexit = False  # the last lines come later

    def write_line(self, line: str) -> bool:
        """Write one line, to which the newline is added.

        Return whether it was written; False: it is lost, whole or in part, which is no error.

        May block up to `patience_s` seconds for each part of PIPE_BUF bytes. Once a reader has taken nothing for so
        long, lines are lost at once until there is room again; then a line with the number of lost lines is written
        first.
        """
        lines = [f"roundhouse: {self._lost_lines} lines were lost here: nobody took them", line]
        text = "".join(f"{each}\n" for each in (lines if self._lost_lines else lines[1:]))
        is_written = self._write(text.encode(self._encoding, "backslashreplace"))
        self._lost_lines = 0 if is_written else self._lost_lines + 1
        return is_written

    def _write(self, data: bytes) -> bool:
        if self._descriptor is None:
            return False
        try:
            while data:
                if not self._has_room(self._descriptor):
                    return False
                with contextlib.suppress(BlockingIOError):  # another program has taken the room
                    # So much never waits in a pipe that has room.
                    data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
        except OSError:
            return False
        return True

    def _has_room(self, descriptor: int) -> bool:
        """Whether a write returns at once, with success or with an error."""
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        self._is_stalled = not poll.poll(0 if self._is_stalled else self._patience_s * 1000)
        return not self._is_stalled


class LineHandler(logging.Handler):
    """A `logging` handler that writes each record with a `LineWriter`: a dead output holds the program up for the
    writer's patience at most, not for ever. Records that the output does not take are lost."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record as a line, which may block as `LineWriter.write_line` does.

        Never raises: where formatting fails, the line holds the traceback instead, and a line that the output does not
        take is lost.
        """
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - what the arguments of a record raise
            line = f"{record.name}: this record has no text: {traceback.format_exc()}"
        self._writer.write_line(line)


def open_missing_streams() -> None:
    """Open /dev/null for each standard stream (descriptors 0 to 2) that this process was started without.

    Otherwise the next opened file, such as a lock or a database, becomes that stream, and children write their output
    into it. Call before anything is opened. Raises OSError where /dev/null cannot be opened.
    """
    for descriptor in _STANDARD_DESCRIPTORS:
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free is given out, and those below are taken.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def end_program(code: int) -> NoReturn:
    """Raise SystemExit with this code. Before that, flush what stdout and stderr still hold, or discard it where it
    cannot be written, so that the interpreter's own flush cannot change the code to 120."""
    _discard_unwritten((sys.stdout, sys.stderr))
    sys.exit(code)


def _discard_unwritten(streams: Sequence[TextIO | None]) -> None:
    for stream in streams:
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError:
            # The interpreter flushes it once more.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
