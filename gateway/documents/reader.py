"""Reads files by a process each (`extract_text`): what a file does to the library that reads it, it does to that
process alone. Belongs to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Final

from controller.schema.errors import RoundhouseError
from gateway.documents.extract_text import CPU_S, NO_MEMORY
from gateway.protocols.common.file_parts import FilePart

AT_ONCE: Final = 2
"""Processes."""
MOST_WAITING: Final = 32
"""Requests whose files wait, or are read; more are refused."""
WITHIN_S: Final = 1.5 * CPU_S
"""For one file, from its process's start."""
_PROGRAM: Final = (sys.executable, "-m", "gateway.documents.extract_text")
_PASSED_VARIABLES: Final = ("PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH")
"""Of our environment: what Python needs to start. Tokens and addresses are none of a file's business."""


class DocumentReader:
    """Reads the files of requests."""

    def __init__(self, program: Sequence[str] = _PROGRAM, within_s: float = WITHIN_S) -> None:
        """`program`: see `extract_text`. `within_s`: for one file."""
        self._program = program
        self._within_s = within_s
        self._waiting_count = 0
        self._places = asyncio.Semaphore(AT_ONCE)

    async def read_texts(self, parts: Sequence[FilePart]) -> list[str]:
        """The texts of these files, in order. Cancelled, it ends what runs.

        Raises:
            RoundhouseError: `file_unreadable`, whose `param` is the file's place; `queue_full`.
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
        except ValueError:  # killed by the system, most likely for the time or memory that it took
            raise _unreadable_error(part, f"reading it takes more than {CPU_S} s, or {NO_MEMORY}") from None
        if "text" not in result:
            raise _unreadable_error(part, result["problem"])
        text: str = result["text"]
        return text

    async def _run_program(self, part: FilePart) -> bytes:
        environment = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            *self._program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C ends the gateway, which ends it
        )
        try:
            async with asyncio.timeout(self._within_s):
                output, _ = await process.communicate(part.data.encode("ascii", errors="replace"))
        except TimeoutError:
            raise _unreadable_error(part, f"reading it takes more than {self._within_s:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return output


def _unreadable_error(part: FilePart, reason: str) -> RoundhouseError:
    return RoundhouseError("file_unreadable", f"The file has no text that can be read: {reason}.", param=part.place)
