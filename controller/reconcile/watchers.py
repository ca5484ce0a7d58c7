"""Watches desired-state files and runtime events, and wakes the reconciler.

This only makes it faster: the reconciler's resync timer reads everything again whether or not an event was seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from watchfiles import awatch

from controller.desired.source import DesiredStateSource
from controller.runtimes.base import Runtime, RuntimeUnavailableError

log = logging.getLogger(__name__)

DEBOUNCE_MS = 50
"""Milliseconds for which changes of files are collected into one event."""
RETRY_S = 1.0
"""Seconds until watching is tried again after it failed or ended."""


async def follow_files(files: DesiredStateSource, folder: Path, wake: Callable[[], None], stop: asyncio.Event) -> None:
    """Read the desired files, then call `wake`, whenever something directly in the folder changes. Returns once `stop`
    is set. A folder that cannot be watched, for example because it is missing, raises nothing: the watch is tried
    again every second. The first of several failures for the same reason is logged."""
    last_problem = ""
    while not stop.is_set():
        try:
            async for _ in awatch(folder, debounce=DEBOUNCE_MS, step=10, stop_event=stop, recursive=False):
                last_problem = ""
                await files.read_files()
                wake()
        except (OSError, RuntimeError) as error:
            if str(error) != last_problem:
                last_problem = str(error)
                log.warning("the folder %s cannot be watched and is read from time to time: %s", folder, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await stop.wait()


async def follow_runtime(runtime: Runtime, wake: Callable[[], None]) -> None:
    """Call `wake` whenever the runtime reports that an engine may have changed, until cancelled. If the runtime is
    unavailable or its watch ends, watch again after 1 s."""
    while True:
        try:
            async for _ in runtime.watch_events():
                wake()
        except RuntimeUnavailableError as error:
            log.warning("no events: %s", error)
        await asyncio.sleep(RETRY_S)
