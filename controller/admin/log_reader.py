"""Logs of one model's engines: the last lines, and new lines as they come. Secrets are masked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from controller.redaction.redactor import Redact
from controller.runtimes.base import Runtime, RuntimeUnavailableError
from controller.schema.errors import RoundhouseError

POLL_S = 0.3
"""Seconds between two reads of a followed log."""
MOST_LINES = 10_000
"""Maximum number of lines of one read."""
MOST_ENDED = 5
"""Maximum number of ended engines whose logs are searched for one that is not empty."""
AWAY = "roundhouse: the runtime does not answer; going on when it does\n"
"""Line that a followed log shows once while the runtime does not answer."""


@dataclass(slots=True)
class _Log:
    """Position in one engine's log.

    `created_at` is the Unix time at which the engine was created, because a name may be used again where the state
    folder could not be written. None means that the engine is gone.
    """

    created_at: float | None
    lines: int = MOST_LINES
    """Maximum number of existing lines that the next read returns."""
    cursor: str | None = None
    is_ended: bool = False


class LogReader:
    """Reads the logs of all models' engines for the admin API. Keeps no state between calls.

    `replicas` maps a model to its present engines, by name, with the Unix time at which each was created. `redact`
    masks secrets.
    """

    def __init__(
        self,
        source: Runtime,
        *,
        replicas: Callable[[str], Mapping[str, float]],
        redact: Redact,
    ) -> None:
        self._source = source
        self._replicas = replicas
        self._redact = redact

    async def open_logs(self, model: str, replica: str | None, *, lines: int, follow: bool) -> AsyncIterator[str]:
        """Open the logs of a model, or of one of its replicas, and return an iterator over text: whole lines, each with
        its newline. Once there are several engines, each line begins with its engine's name and ` | `. Secrets are
        masked. `model` is the model's own name; one that is not known has no logs.

        Reads the last `lines` lines of each engine before it returns. Where no engine is present, reads the newest
        ended one that wrote anything, among the last 5. Without `follow`, the iterator ends after these. With it, the
        iterator goes on with new lines, of new engines too, until the caller closes it; a runtime that stops answering
        then shows as one line, and raises nothing.

        Raises RoundhouseError `unknown_replica` where the model has no such replica, present or ended, and
        RuntimeUnavailableError where the runtime does not answer before the return.
        """
        replicas, ended_names = dict(self._replicas(model)), await self._source.list_ended_logs(model)
        if replica is not None and replica not in (*replicas, *ended_names):
            raise RoundhouseError("unknown_replica", f"{model!r} has no replica {replica!r:.200}.", param="replica")
        names = [replica] if replica is not None else sorted(replicas)
        # Of those that ended, the last one that said anything: one that was called off as it began did not.
        for candidates in [names] if names or not ended_names else [[name] for name in ended_names[:MOST_ENDED]]:
            logs = {name: _Log(replicas.get(name), lines) for name in candidates}
            request_logs = _ModelLogs(self._source, self._redact, model, logs)
            if first_parts := [text async for text in request_logs.read_parts()]:
                break
        return self._stream_text(request_logs, first_parts, model, replica, follow=follow)

    async def _stream_text(
        self, request_logs: _ModelLogs, first_parts: list[str], model: str, replica: str | None, *, follow: bool
    ) -> AsyncIterator[str]:
        for text in first_parts:
            yield text
        is_away = False
        while follow:
            await asyncio.sleep(POLL_S)
            replicas = self._replicas(model)
            request_logs.track_engines({name: replicas[name] for name in sorted(replicas) if replica in (None, name)})
            try:
                async for text in request_logs.read_parts():
                    yield text
                is_away = False
            except RuntimeUnavailableError:
                if not is_away:
                    yield AWAY
                is_away = True


class _ModelLogs:
    """The logs that one request reads, with their positions."""

    def __init__(self, source: Runtime, redact: Redact, model: str, logs: dict[str, _Log]) -> None:
        self._source = source
        self._redact = redact
        self._model = model
        self._logs = logs
        self._read_names = set(logs)
        """Every engine that was read. With several, each line begins with its engine's name."""

    def track_engines(self, replicas: Mapping[str, float]) -> None:
        """Follow these engines from now on, new ones from their first line. Logs of other engines are read to their
        end.

        `replicas` maps engine names to the Unix times at which they were created.
        """
        for name, log in list(self._logs.items()):
            if name not in replicas:
                log.created_at = None
                if log.is_ended:
                    del self._logs[name]
        for name, created_at in replicas.items():
            if name not in self._logs or self._logs[name].created_at != created_at:
                self._logs[name] = _Log(created_at)
        self._read_names |= replicas.keys()

    async def read_parts(self) -> AsyncIterator[str]:
        """Yield what each engine wrote since the last call, with secrets masked. Raises RuntimeUnavailableError; the
        next call goes on where this one ended."""
        for name, log in self._logs.items():
            if not log.is_ended and (text := await self._read_part(name, log)):
                yield text

    async def _read_part(self, name: str, log: _Log) -> str:
        part = await self._source.read_log_after(name, log.cursor, log.lines)
        # What it writes after this first look is new, also where there was no log yet.
        log.lines = MOST_LINES
        if part is None:
            log.is_ended = log.created_at is None
            return ""
        log.cursor, log.is_ended = part.cursor, not part.running
        prefix = f"{name} | " if len(self._read_names) > 1 else ""
        return self._redact(self._model, "".join(f"{prefix}{line}\n" for line in part.lines), name)
