"""Asks another program of this installation now and then whether it is there, so that nobody has to wait to know."""

from __future__ import annotations

import asyncio
from typing import Final, Literal

import aiohttp

from common.program_client import ProgramClient, ProgramGoneError

INTERVAL_S: Final = 5.0
"""Seconds from the end of one probe to the next."""
TIMEOUT_S: Final = 2.0
"""Seconds that an answer may take."""

ProbeResult = Literal["unknown", "up", "down"]


class ProgramProbe:
    """The health of one program, by its last answer at `/health`: read `result`, which is `unknown`, `up` or `down`.
    Run `run` as a task as long as the probe is used, and cancel the task at the end."""

    def __init__(self, program: ProgramClient, interval_s: float = INTERVAL_S) -> None:
        """`program`: an entered client, which the caller closes after the end of `run`."""
        self._program = program
        self._interval_s = interval_s
        self.result: ProbeResult = "unknown"
        """`unknown` until the first answer or failure."""
        self.notice: str | None = None
        """What the program says of itself in its last answer, for operators; None: nothing but that it is up."""

    async def run(self) -> None:
        """Probe the program at once, and again `interval_s` seconds after the end of each probe, until cancelled. Each
        probe sets `notice`, and `result`: `up` after an answer with status 200, `down` after any other status, or
        without an answer within `TIMEOUT_S` (2 s). Never returns."""
        while True:
            self.result = "up" if await self._answers() else "down"
            await asyncio.sleep(self._interval_s)

    async def _answers(self) -> bool:
        try:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
            async with await self._program.send_request("GET", "/health", {}, timeout=timeout) as answer:
                text = (await answer.read_body()).decode(errors="replace")
                self.notice = text if answer.status == 200 and text != "ok" else None
                return answer.status == 200
        except ProgramGoneError:
            return False
