"""Everything that wakes the loop: desired-state files, runtime events.

Events are the fast path only: the reconciler's resync timer reads the files again whether or not anything was seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from watchfiles import awatch

from controller.desired.source import DesiredStateSource
from controller.runtimes.base import Runtime, RuntimeUnavailableError

log = logging.getLogger(__name__)

DEBOUNCE_MS = 50
RETRY_S = 1.0


async def follow_files(files: DesiredStateSource, folder: Path, wake: Callable[[], None], stop: asyncio.Event) -> None:
    """Read the files whenever something in the folder changes."""
    while not stop.is_set():
        try:
            async for _ in awatch(folder, debounce=DEBOUNCE_MS, step=10, stop_event=stop, recursive=False):
                await files.read_files()
                wake()
        except (OSError, RuntimeError) as error:
            log.warning("the folder %s cannot be watched and is read from time to time: %s", folder, error)
            await asyncio.sleep(RETRY_S)


async def follow_runtime(runtime: Runtime, wake: Callable[[], None]) -> None:
    """Wake whenever an engine may have changed."""
    while True:
        try:
            async for _ in runtime.watch_events():
                wake()
        except RuntimeUnavailableError as error:
            log.warning("no events: %s", error)
        await asyncio.sleep(RETRY_S)
