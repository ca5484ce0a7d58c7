"""Asks models that somebody else serves how they are: the gateway reaches them, the controller does not."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import aiohttp

from controller.schema.routing import RemoteProbe, RemoteResult
from gateway.routing.table import Routes

logger = logging.getLogger(__name__)

LONGEST_ERROR: Final = 500
"""Characters of an error that are reported."""
_URL_USER: Final = re.compile(r"//[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class _Watch:
    probe: RemoteProbe
    task: asyncio.Task[None]


class RemoteProber:
    """Asks what the routing table in force names, for as long as its context is entered, also without a controller."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives Unix time in seconds."""
        self._clock = clock
        self._watches: dict[str, _Watch] = {}
        self._results: dict[str, RemoteResult] = {}
        self._session: aiohttp.ClientSession | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called when a remote answers otherwise than before, or for the first time."""

    @property
    def results(self) -> dict[str, RemoteResult]:
        """Remote model to its last result; absent: it has not answered yet."""
        return dict(self._results)

    async def __aenter__(self) -> RemoteProber:
        # Not in __init__: aiohttp's sessions belong to a running event loop.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "roundhouse"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        tasks = [watch.task for watch in self._watches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if session is not None:
            await session.close()

    def follow_table(self, routes: Routes) -> None:
        """Ask exactly these from now on. What was seen of a remote stands as long as its definition does."""
        session = self._session
        if session is None:
            return
        probes = {name: route.remote_probe for name, route in routes.models.items() if route.remote_probe is not None}
        for name, watch in list(self._watches.items()):
            if probes.get(name) != watch.probe:
                watch.task.cancel()
                del self._watches[name]
        for name in [name for name, result in self._results.items() if _spec_of(probes.get(name)) != result.spec]:
            del self._results[name]
        for name, probe in probes.items():
            if name not in self._watches:
                task = asyncio.create_task(self._ask_for_ever(session, name, probe), name=f"remote {name}")
                self._watches[name] = _Watch(probe, task)

    async def _ask_for_ever(self, session: aiohttp.ClientSession, name: str, probe: RemoteProbe) -> None:
        while True:
            error = await ask_remote(session, probe)
            previous_result = self._results.get(name)
            self._results[name] = RemoteResult(spec=probe.spec, at=self._clock(), error=error)
            if previous_result is None or previous_result.error != error:
                self.on_change()
            await asyncio.sleep(probe.interval_s)


async def ask_remote(session: aiohttp.ClientSession, probe: RemoteProbe) -> str | None:
    """What is wrong with a remote, without secrets; None: it is well."""
    token = "" if probe.token is None else probe.token.get_secret_value()
    try:
        error = await _ask(session, probe, token)
    except Exception as fault:  # noqa: BLE001 - whatever one remote brings out must not end its own watch
        # The text may hold the address or the key.
        kind = type(fault).__name__
        logger.error("asking a remote model failed: %s", kind)  # noqa: TRY400 - the traceback would show secrets
        error = f"asking it failed: {kind}"
    return None if error is None else hide_secrets(error, token)[:LONGEST_ERROR]


async def _ask(session: aiohttp.ClientSession, probe: RemoteProbe, token: str) -> str | None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=probe.timeout_s)
    try:
        # Requests follow no redirect either; and where one leads is not the remote's to say.
        async with session.get(probe.url, headers=headers, timeout=timeout, allow_redirects=False) as answer:
            if answer.status == 200:
                return None
            hint = "; its key was refused" if answer.status in (401, 403) else ""
            return f"{probe.url} answers HTTP {answer.status}{hint}"
    except TimeoutError:
        return f"{probe.url} does not answer in time"
    except (aiohttp.ClientError, OSError) as error:
        return f"{probe.url} cannot be reached: {error}"


def hide_secrets(text: str, token: str) -> str:
    """The text without URLs' users and passwords, and without the token."""
    shown_text = _URL_USER.sub("//", text)
    return shown_text.replace(token, "***") if token else shown_text


def _spec_of(probe: RemoteProbe | None) -> str | None:
    return None if probe is None else probe.spec
