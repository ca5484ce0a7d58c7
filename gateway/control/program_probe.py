"""Asks another program of this installation now and then whether it is there, so that nobody has to wait to know."""

from __future__ import annotations

import asyncio
from typing import Final, Literal

import aiohttp

from common.program_client import ProgramClient, ProgramGoneError

INTERVAL_S: Final = 5.0
"""Seconds between two questions."""
TIMEOUT_S: Final = 2.0
"""Seconds that an answer may take."""

ProbeResult = Literal["unknown", "up", "down"]


class ProgramProbe:
    """The health of one program, as its last answer at `/health` told. Run `run` as a task as long as it is used."""

    def __init__(self, program: ProgramClient, interval_s: float = INTERVAL_S) -> None:
        """`program`: an entered client, which the caller closes after the end of `run`."""
        self._program = program
        self._interval_s = interval_s
        self.result: ProbeResult = "unknown"
        """`unknown` until the first answer or failure."""

    async def run(self) -> None:
        """Probe the program at once, and then every `interval_s` seconds until cancelled. Never returns; a failure, or
        a status other than 200, becomes the result `down`."""
        while True:
            self.result = "up" if await self._answers() else "down"
            await asyncio.sleep(self._interval_s)

    async def _answers(self) -> bool:
        try:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
            async with await self._program.send_request("GET", "/health", {}, timeout=timeout) as answer:
                return answer.status == 200
        except ProgramGoneError:
            return False
