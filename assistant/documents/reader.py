"""Read the texts of files that requests hold, each file in a process of its own (`extract_text`).

A file that crashes the library or exhausts its memory ends that process only. Use it from the event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

from assistant.child_process import ChildProcess, pick_python_variables
from assistant.documents.extract_text import CPU_S, NO_MEMORY
from contract.errors import RoundhouseError
from gateway.protocols.common.file_parts import FilePart

AT_ONCE: Final = 2
"""Processes that may run at the same time."""
MOST_WAITING: Final = 32
"""Requests whose files may wait or be read at the same time; more are refused."""
WITHIN_S: Final = 1.5 * CPU_S
"""Seconds that one file may take, from the start of its process."""
_PROGRAM: Final = (sys.executable, "-m", "assistant.documents.extract_text")


class DocumentReader:
    """Extracts the texts of PDFs, each in a process of its own, `AT_ONCE` (2) at a time. One serves all requests of the
    gateway, on its event loop."""

    def __init__(self, program: Sequence[str] = _PROGRAM, within_s: float = WITHIN_S) -> None:
        """`program`: command line of a process like `extract_text`. `within_s`: seconds that one file may take."""
        self._program = program
        self._within_s = within_s
        self._waiting_count = 0
        self._places = asyncio.Semaphore(AT_ONCE)

    async def read_texts(self, parts: Sequence[FilePart]) -> list[str]:
        """Return the texts of the PDFs of one request, in the order of `parts`; empty for no parts. The files are read
        one after the other; waits while `AT_ONCE` processes run. Cancelling the call ends the running process.

        Raises:
            RoundhouseError: `file_unreadable` for the first file without a text that can be read, or whose reading
                exceeds the limits of time, memory or size, with its path in the request as `param`; `queue_full` at
                once if `MOST_WAITING` (32) requests are in this method.
            OSError: the process cannot be started.
        """
        if self._waiting_count >= MOST_WAITING:
            raise RoundhouseError("queue_full", f"The files of {MOST_WAITING} other requests wait to be read.")
        self._waiting_count += 1
        try:
            return [await self._read_text(part) for part in parts]
        finally:
            self._waiting_count -= 1

    async def _read_text(self, part: FilePart) -> str:
        async with self._places:
            output = await self._run_program(part)
        try:
            result = json.loads(output)
        except ValueError:  # most likely killed by the system for its time or memory
            raise _unreadable_error(part, f"reading it takes more than {CPU_S} s, or {NO_MEMORY}") from None
        if "text" not in result:
            raise _unreadable_error(part, result["problem"])
        text: str = result["text"]
        return text

    async def _run_program(self, part: FilePart) -> bytes:
        data = part.data.encode("ascii", errors="replace")
        process = ChildProcess(self._program, pick_python_variables(os.environ), data)
        try:
            async with asyncio.timeout(self._within_s):
                output = await process.read_output()
        except TimeoutError:
            raise _unreadable_error(part, f"reading it takes more than {self._within_s:g} s") from None
        finally:
            process.send_signal(signal.SIGKILL)
            await process.wait_ended()
        return output


def _unreadable_error(part: FilePart, reason: str) -> RoundhouseError:
    return RoundhouseError("file_unreadable", f"The file has no text that can be read: {reason}.", param=part.place)
