"""Follows how far engines are with loading their models, by reading their logs."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from controller.engines.base import Engine
from controller.runtimes.base import RuntimeUnavailableError

INTERVAL_S: Final = 1.0
"""Seconds between two readings of the logs."""
STEPS: Final = 20
"""Progress is rounded down to twentieths, since finer steps would wake the reconciler for nothing."""

log = logging.getLogger(__name__)


class LogTailSource(Protocol):
    """The part of a `Runtime` that `LoadProgress` needs."""

    async def read_log_tail(self, name: str, lines: int = 50) -> str:
        """Return the last log lines of the replica of this name, at most `lines`; empty if there are none. Raises
        RuntimeUnavailableError."""


class LoadProgress:
    """The load progress of replicas that are starting, by their logs, which a background task reads every `interval_s`
    seconds. Calls `wake` whenever a fraction changes. A log that cannot be read raises nothing. Call `close` at the
    end."""

    def __init__(self, logs: LogTailSource, *, wake: Callable[[], None], interval_s: float = INTERVAL_S) -> None:
        self._logs = logs
        self._wake = wake
        self._interval_s = interval_s
        self._engines: Mapping[str, Engine[Any]] = {}
        self._fractions: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def fractions(self) -> Mapping[str, float]:
        """Replica name to loaded fraction, 0 to 1 in steps of 1/20. It never falls. Replicas whose logs have told no
        progress yet are left out."""
        return self._fractions

    def track_engines(self, engines: Mapping[str, Engine[Any]]) -> None:
        """Follow exactly these replicas from now on, and forget the progress of others. `engines` maps the names of
        starting replicas to backends. Needs a running event loop; returns at once."""
        self._engines = dict(engines)
        self._fractions = {name: each for name, each in self._fractions.items() if name in engines}
        if engines and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run(), name="load progress")

    async def close(self) -> None:
        """Stop reading logs, and wait for the background task to end. May be called repeatedly."""
        self._engines = {}
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._engines:
            has_changed = False
            for name, engine in tuple(self._engines.items()):
                has_changed |= await self._read_progress(name, engine)
            if has_changed:
                self._wake()
            await asyncio.sleep(self._interval_s)

    async def _read_progress(self, name: str, engine: Engine[Any]) -> bool:
        try:
            reported_fraction = engine.parse_progress(await self._logs.read_log_tail(name))
        except RuntimeUnavailableError as error:
            log.debug("how far %s is cannot be read: %s", name, error)
            return False
        except Exception:
            # A log that one backend cannot parse must not end the reading of the others.
            log.exception("the progress of %s cannot be read", name)
            return False
        if reported_fraction is None or name not in self._engines:  # it became ready meanwhile
            return False
        fraction = math.floor(max(0.0, min(1.0, reported_fraction)) * STEPS + 1e-9) / STEPS
        previous_fraction = self._fractions.get(name)
        self._fractions[name] = fraction if previous_fraction is None else max(previous_fraction, fraction)
        return self._fractions[name] != previous_fraction
