"""Lines for people (logs, notes) on an output that may be dead, so that it never changes what a program does.

A pipe may have no reader, or one that reads no more, a terminal may be gone or stopped, a disk full, and the output may
have been closed before the program began. Python's own streams raise then, or wait for ever; and what they could not
write they try again when the interpreter ends, which then exits with code 120 in place of the program's own.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import traceback
from collections.abc import Sequence
from typing import Final, NoReturn, TextIO

PATIENCE_S: Final = 1.0
"""How long a reader may take nothing, while a line waits for it, before it counts as stalled."""
_STANDARD_DESCRIPTORS: Final = (0, 1, 2)


class LineWriter:
    """Writes lines to a stream's descriptor. A line that nobody takes is lost, and nothing else is.

    Several programs may write to one pipe. Should two take its last free page at the same moment, one of them waits for
    the reader all the same.
    """

    def __init__(self, stream: TextIO | None, patience_s: float = PATIENCE_S) -> None:
        """`stream` None, or without a descriptor: every line is lost."""
        self._descriptor: int | None = None
        self._encoding = "utf-8"
        self._patience_s = patience_s
        self._is_stalled = False
        """The reader took nothing for that long: no line waits until there is room again."""
        self._lost_lines = 0
        """Since the last line that was written."""
        if stream is not None:
            try:
                self._descriptor = stream.fileno()
                self._encoding = stream.encoding or self._encoding
            except (OSError, ValueError):
                self._descriptor = None

    def write_line(self, line: str) -> bool:
        """Write one line; whether it was taken. A line that follows lost ones begins with how many they were."""
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
                # So much never waits in a pipe that has room.
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
        except OSError:
            return False
        return True

    def _has_room(self, descriptor: int) -> bool:
        """Whether a write returns at once, be it with an error."""
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        self._is_stalled = not poll.poll(0 if self._is_stalled else self._patience_s * 1000)
        return not self._is_stalled


class LineHandler(logging.Handler):
    """A handler of `logging` for an output that may be dead: a LineWriter writes each record, and waits for nobody."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; in place of one without a text, why: logging's own report of that might wait for ever."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - what the arguments of a record raise
            line = f"{record.name}: this record has no text: {traceback.format_exc()}"
        self._writer.write_line(line)


def open_missing_streams() -> None:
    """Open /dev/null in place of each standard stream that this process was started without.

    The next file that is opened would be it else: a lock or a database that the program's children write their output
    into. To be called before anything is opened.
    """
    for descriptor in _STANDARD_DESCRIPTORS:
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free is given out, and those below are taken.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def end_program(code: int) -> NoReturn:
    """End with this exit code, also where the standard streams hold what cannot be written."""
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
