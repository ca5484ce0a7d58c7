"""Engines' logs of one model: the last lines, and what follows. Secrets are masked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from controller.conceal import Conceal
from controller.runtimes.base import LogPart
from controller.schema.errors import RoundhouseError

POLL_S = 0.3


class LogSource(Protocol):
    """The part of a runtime that has logs."""

    async def log_after(self, name: str, cursor: str | None, lines: int = 50) -> LogPart | None:
        """What the engine wrote after `cursor`; None: no such log."""

    async def logged(self, model: str) -> list[str]:
        """Ended replicas whose logs are kept, the newest first."""


@dataclass(slots=True)
class _Open:
    """A log that is being read."""

    cursor: str | None = None
    ended: bool = False


class LogReader:
    """Reads logs of models. `replicas` names a model's engines that are there; `conceal` hides what must not show."""

    def __init__(
        self,
        source: LogSource,
        *,
        replicas: Callable[[str], Collection[str]],
        conceal: Conceal,
    ) -> None:
        self._source = source
        self._replicas = replicas
        self._conceal = conceal

    async def open(self, model: str, replica: str | None, *, lines: int, follow: bool) -> AsyncIterator[str]:
        """The text, part by part. Raises `unknown_replica`."""
        there, ended = list(self._replicas(model)), await self._source.logged(model)
        if replica is not None and replica not in (*there, *ended):
            raise RoundhouseError("unknown_replica", f"{model!r} has no replica {replica!r:.200}.", param="replica")
        names = [replica] if replica is not None else (there or ended[:1])
        return self._text(
            model, {name: _Open() for name in names}, lines=lines, follow=follow, fixed=replica is not None
        )

    async def _text(
        self, model: str, logs: dict[str, _Open], *, lines: int, follow: bool, fixed: bool
    ) -> AsyncIterator[str]:
        several = len(logs) > 1
        while True:
            for name, log in logs.items():
                text = await self._part(model, name, log, lines, several=several)
                if text:
                    yield text
            if not follow:
                return
            await asyncio.sleep(POLL_S)
            if not fixed:
                fresh = set(self._replicas(model)) - logs.keys()
                several = several or bool(fresh and logs)
                logs.update({name: _Open() for name in sorted(fresh)})

    async def _part(self, model: str, name: str, log: _Open, lines: int, *, several: bool) -> str:
        if log.ended:
            return ""
        part = await self._source.log_after(name, log.cursor, lines)
        if part is None:
            return ""
        log.cursor, log.ended = part.cursor, not part.running
        prefix = f"{name} | " if several else ""
        text = "".join(f"{prefix}{line}\n" for line in part.lines)
        return self._conceal(model, text, name)
