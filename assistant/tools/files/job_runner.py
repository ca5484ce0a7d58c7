"""Runs pieces of work with files or pages, each in a process of its own (`assistant.tools.files.process`).

So neither a folder that hangs, nor an expression that takes for ever, nor a page of a million elements holds up the
gateway's event loop or its interpreter.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import signal
import sys
from typing import Any, Final

from assistant.child_process import ChildProcess, pick_python_variables
from assistant.tools.spec import ToolCall, ToolResult
from contract.errors import RoundhouseError
from gateway.protocols.common.json_bytes import json_bytes

SLICE_BYTES: Final = 256 * 1024
"""Decoded at a time: a tenth of a millisecond for ASCII, half of one for other texts."""


async def decode_text(data: bytes, charset: str) -> str:
    """Return `data` as text, and let the event loop go on after each `SLICE_BYTES`. What is not of the encoding becomes
    replacement characters. A thread would not help: Python decodes with its lock held. Raises LookupError: Python has
    no encoding `charset`."""
    decoder = codecs.getincrementaldecoder(charset)(errors="replace")
    pieces = []
    for begin in range(0, len(data), SLICE_BYTES):
        pieces.append(decoder.decode(data[begin : begin + SLICE_BYTES]))
        await asyncio.sleep(0)
    pieces.append(decoder.decode(b"", final=True))
    return "".join(pieces)


AT_ONCE: Final = 4
"""Processes that may run at the same time; further calls wait, within their own time."""
ENDING_S: Final = 1.0
"""Seconds that a process may take to end in order, before it is killed."""
_PROGRAM: Final = (sys.executable, "-m", "assistant.tools.files.process")


class JobRunner:
    """Runs jobs, `AT_ONCE` at a time. One serves all tools of the gateway, on its event loop."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self._endings: set[asyncio.Task[None]] = set()

    async def run_job(
        self,
        call: ToolCall,
        job: str,
        arguments: dict[str, Any],
        *,
        data: bytes | None = None,
        largest_write: int = 0,
    ) -> ToolResult:
        """Wait for a place, run a job for a call, and return its text; `is_error`: the job says what is wrong.

        Cancelling has the process ended, in order within `ENDING_S`, else by SIGKILL, and does not wait for its end.
        `job`: a name of `assistant.tools.files.process`. `arguments`: those of the job's function. `data`: what the job
        reads, in bytes; None: it takes none. `largest_write`: bytes of a file that it may write; 0: it may write none.

        Raises:
            RoundhouseError: `tool_failed`: the process does not start, or ended without an answer, such as at its
                limits.
        """
        asked = {
            "job": job,
            "arguments": arguments,
            "cpu_s": int(call.timeout_s) + 1,
            "largest_write": largest_write,
            "has_data": data is not None,
        }
        output = await self._run_process(json_bytes(asked) + b"\n" + (data or b""))
        head, _, text = output.partition(b"\n")
        try:
            answer = json.loads(head)
        except ValueError:
            answer = {}
        if "problem" in answer:
            return ToolResult(answer["problem"], is_error=True)
        if answer.get("text_bytes") != len(text):
            raise RoundhouseError("tool_failed", "The tool's process ended at its limits of memory or processor time.")
        return ToolResult(await decode_text(text, "utf-8"))

    async def _run_process(self, data: bytes) -> bytes:
        await self._places.acquire()
        process = ChildProcess(_PROGRAM, pick_python_variables(os.environ), data)
        try:
            return await process.read_output()
        except OSError as error:
            raise RoundhouseError("tool_failed", f"The tool's process does not start: {error.strerror}.") from error
        finally:
            # Not waited for: a process that hangs in the system keeps its place, and nobody else waits for it.
            ending = asyncio.create_task(self._end_process(process))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _end_process(self, process: ChildProcess) -> None:
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if process.has_ended:
                    return
                process.send_signal(number)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ENDING_S):
                        await process.wait_ended()
            await process.wait_ended()
        finally:
            self._places.release()
