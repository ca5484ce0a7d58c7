"""Probe remote models, which are served elsewhere. The gateway can reach them; the controller cannot.

`remote_health` decides whether a remote is well, and when the next probe is due.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final

import aiohttp

from controller.schema.routing import RemoteProbe, RemoteResult
from gateway.control.remote_health import (
    ProbeOutcome,
    ProbeVerdict,
    RemoteHealth,
    apply_answer,
    apply_doubt,
    apply_probe,
    judge_status,
    parse_retry_after,
)
from gateway.routing.table import Routes

logger = logging.getLogger(__name__)

LONGEST_ERROR: Final = 500
"""Characters of an error that are reported."""
_HINTS: Final = {
    ProbeVerdict.KEY_REFUSED: "; its key was refused",
    ProbeVerdict.LIMITED: "; it is there, and limits how often it is asked",
}
_URL_USER: Final = re.compile(r"//[^/\s]*@")


@dataclass(slots=True)
class _Watch:
    probe: RemoteProbe
    health: RemoteHealth = field(default_factory=RemoteHealth)
    is_rescheduled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the next probe is due sooner than planned."""
    task: asyncio.Task[None] | None = None


class RemoteProber:
    """Probes the remote models of the table in force while its context is entered, also without a controller.

    Use it as `async with`; leaving the context ends all probes. `ControllerLink` reports its results. Outcomes of
    requests to these models count, too: see `record_answer` and `record_failure`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: Unix time in seconds."""
        self._clock = clock
        self._watches: dict[str, _Watch] = {}
        self._results: dict[str, RemoteResult] = {}
        self._session: aiohttp.ClientSession | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called when a remote becomes well, fails, or fails for another reason."""

    @property
    def results(self) -> dict[str, RemoteResult]:
        """Latest result by name of the remote model, as a new dict; absent if it is not decided yet."""
        return dict(self._results)

    async def __aenter__(self) -> RemoteProber:
        # Not in __init__: aiohttp's sessions belong to a running event loop.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "roundhouse", "Accept-Encoding": "identity"},
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        tasks = [watch.task for watch in self._watches.values() if watch.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if session is not None:
            await session.close()

    def follow_table(self, routes: Routes) -> None:
        """Probe exactly the remote models of this table from now on.

        A new remote, and one whose probe changed, is probed at once. The result of a remote stays until its definition
        changes or the remote leaves the table. Does nothing outside the context. Call in the event loop; returns
        without waiting.
        """
        session = self._session
        if session is None:
            return
        probes = {name: route.remote_probe for name, route in routes.models.items() if route.remote_probe is not None}
        for name, watch in list(self._watches.items()):
            if probes.get(name) != watch.probe:
                if watch.task is not None:
                    watch.task.cancel()
                del self._watches[name]
        for name in [name for name, result in self._results.items() if _spec_of(probes.get(name)) != result.spec]:
            del self._results[name]
        for name, probe in probes.items():
            if name not in self._watches:
                watch = self._watches[name] = _Watch(probe)
                watch.task = asyncio.create_task(self._probe_for_ever(session, name, watch), name=f"remote {name}")

    def record_answer(self, name: str, status: int) -> None:
        """Count the answer of the remote model `name` to a client's request: it may show that the remote is well, or
        bring the next probe forward; see `remote_health.apply_answer`.

        `status`: HTTP status. Does nothing for a model that is not probed. Call in the event loop.
        """
        if watch := self._watches.get(name):
            now = asyncio.get_running_loop().time()
            self._update(name, watch, apply_answer(watch.health, status, now, watch.probe.interval_s))

    def record_failure(self, name: str) -> None:
        """Count a refused or broken connection of a client's request to the remote model `name`: probe it soon.

        Does nothing for a model that is not probed. Call in the event loop.
        """
        if watch := self._watches.get(name):
            now = asyncio.get_running_loop().time()
            self._update(name, watch, apply_doubt(watch.health, now, watch.probe.interval_s))

    async def _probe_for_ever(self, session: aiohttp.ClientSession, name: str, watch: _Watch) -> None:
        loop, probe = asyncio.get_running_loop(), watch.probe
        last_message: str | None = None
        while True:
            outcome = await probe_remote(session, probe, self._clock)
            if outcome.message != last_message:
                logger.info("probe of the remote model %s: %s", name, outcome.message or "it is well")
                last_message = outcome.message
            self._update(name, watch, apply_probe(watch.health, outcome, loop.time(), probe.interval_s), is_probe=True)
            while (pause_s := watch.health.next_probe_at - loop.time()) > 0:
                watch.is_rescheduled.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await watch.is_rescheduled.wait()

    def _update(self, name: str, watch: _Watch, health: RemoteHealth, *, is_probe: bool = False) -> None:
        """Set the health of a remote and publish its result. `is_probe`: renew the time of an unchanged result, too."""
        if health is watch.health:
            return
        previous_health, watch.health = watch.health, health
        if health.next_probe_at < previous_health.next_probe_at:
            watch.is_rescheduled.set()
        if health.is_well is None:
            return
        previous_result = self._results.get(name)
        is_new = previous_result is None or previous_result.error != health.error
        is_undecided = health.is_well and health.failure_count  # the previous result stays
        if is_new or (is_probe and not is_undecided):
            self._results[name] = self._result_of(watch.probe, health)
        if is_new:
            self.on_change()

    def _result_of(self, probe: RemoteProbe, health: RemoteHealth) -> RemoteResult:
        retry_at = None
        if not health.is_well and not health.is_key_refused:
            retry_at = self._clock() + health.next_probe_at - asyncio.get_running_loop().time()
        return RemoteResult(spec=probe.spec, at=self._clock(), error=health.error, retry_at=retry_at)


async def probe_remote(session: aiohttp.ClientSession, probe: RemoteProbe, clock: Callable[[], float]) -> ProbeOutcome:
    """Probe a remote once by a GET of its URL, and wait for the answer, at most `probe.timeout_s` seconds. Redirects
    are not followed.

    Every failure becomes an outcome; nothing but cancellation is raised. Secrets are removed from the outcome's
    message, which has `LONGEST_ERROR` (500) characters at most. `clock`: Unix time in seconds.
    """
    token = "" if probe.token is None else probe.token.get_secret_value()
    try:
        outcome = await _probe(session, probe, token, clock)
    except Exception as fault:  # noqa: BLE001 - whatever one remote brings out must not end its own watch
        # The text may hold the address or the key.
        kind = type(fault).__name__
        logger.error("asking a remote model failed: %s", kind)  # noqa: TRY400 - the traceback would show secrets
        outcome = ProbeOutcome(ProbeVerdict.FAILED, f"asking it failed: {kind}")
    if outcome.message is None:
        return outcome
    return replace(outcome, message=hide_secrets(outcome.message, token)[:LONGEST_ERROR])


async def _probe(
    session: aiohttp.ClientSession, probe: RemoteProbe, token: str, clock: Callable[[], float]
) -> ProbeOutcome:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=probe.timeout_s)
    try:
        # Requests follow no redirects either: a remote must not choose where the gateway connects.
        async with session.get(probe.url, headers=headers, timeout=timeout, allow_redirects=False) as answer:
            verdict = judge_status(answer.status)
            if verdict is ProbeVerdict.WELL:
                return ProbeOutcome(verdict)
            message = f"{probe.url} answers HTTP {answer.status}{_HINTS.get(verdict, '')}"
            return ProbeOutcome(verdict, message, parse_retry_after(answer.headers.get("Retry-After"), clock()))
    except TimeoutError:
        return ProbeOutcome(ProbeVerdict.FAILED, f"{probe.url} does not answer in time")
    except (aiohttp.ClientError, OSError) as error:
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        is_refused = isinstance(cause, ConnectionRefusedError)
        verdict = ProbeVerdict.CONNECTION_REFUSED if is_refused else ProbeVerdict.FAILED
        return ProbeOutcome(verdict, f"{probe.url} cannot be reached: {error}")


def hide_secrets(text: str, token: str) -> str:
    """Return `text` without the users and passwords of URLs, and with `***` in place of each occurrence of `token`;
    empty: there is no token."""
    shown_text = _URL_USER.sub("//", text)
    return shown_text.replace(token, "***") if token else shown_text


def _spec_of(probe: RemoteProbe | None) -> str | None:
    return None if probe is None else probe.spec
