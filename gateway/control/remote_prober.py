"""Probes of models that are served elsewhere, which the gateway can reach and the controller cannot.

`remote_health` decides whether a remote is well, and when the next probe is due. The model with the role `aicore`,
typically a phone's server, is asked whether Android's AICore can be used there.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, NamedTuple

import aiohttp

from common.network.answers import UnreadableAnswerError, gather_whole, parse_json
from contract.routing import Endpoint, ModelRoute, RemoteProbe, RemoteResult
from contract.status import ModelState
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
from gateway.protocols.common.hiding import hide_addresses
from gateway.routing.table import LiveRoutes, Routes

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
                logger.info("probe of the remote model %s: %s", name, outcome.message or "it is healthy")
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


INTERVAL_S: Final = 10.0
"""Seconds between two questions for `/health`."""
TIMEOUT_S: Final = 5.0
"""Seconds that an answer may take."""
MAX_BYTES: Final = 256 * 1024
"""Maximum bytes of an answer."""
WORDS: Final = {3: "available", 2: "downloadable", 1: "downloading", 0: "unavailable"}
"""Status codes, and their words."""
_STATES: Final = {ModelState.LOADED: 3, ModelState.LOADING: 1}


class AicoreStatus(NamedTuple):
    """Whether Android's AICore can be used at the server of the model `model_id`.

    `code`: 3 available, 2 downloadable, 1 downloading, 0 unavailable; None: the server could not be asked, and `error`
    says why. `told`: the server's own answer; empty: it gave none.
    """

    model_id: str
    code: int | None
    """Status code, a key of `WORDS`; None: the server could not be asked."""
    error: str | None = None
    """Why the server could not be asked; None: it was asked."""
    told: dict[str, Any] = {}
    """The server's own answer; empty: it gave none."""

    @property
    def word(self) -> str:
        """The status in a word of `WORDS`; `unknown` if the server could not be asked."""
        return "unknown" if self.code is None else WORDS[self.code]


def find_aicore(routes: Routes) -> ModelRoute | None:
    """Return the first model with the role `aicore` in the table; None: none is declared."""
    return next((route for route in routes.models.values() if route.role == "aicore"), None)


def read_status(model: str, status: int, body: bytes) -> AicoreStatus:
    """Return what a server's answer at `/v1/aicore/status` says. `status`: the answer's HTTP status.

    A server that does not know the path (404, 405) is an ordinary one, and counts as available. Any other answer
    without a known `status_code` gives the code None and an error, in the server's own words if it has any; nothing is
    raised. `model`: name for the result.
    """
    if status in (404, 405):
        return AicoreStatus(model, 3)
    try:
        told = parse_json(body)
    except UnreadableAnswerError:
        told = None
    code = told.get("status_code") if isinstance(told, dict) else None
    if status != 200 or not isinstance(told, dict) or type(code) is not int or code not in WORDS:
        own = f"The server answered with status {status} and no status of AICore."
        return AicoreStatus(model, None, _find_error(told) or own)
    return AicoreStatus(model, code, _find_error(told), told)


def _find_error(told: Any) -> str | None:
    """Return the text in a server's `error`, which may be an object with a `message`, without addresses; None: it has
    none."""
    error = told.get("error") if isinstance(told, dict) else None
    text = error.get("message") if isinstance(error, dict) else error
    return hide_addresses(text)[:LONGEST_ERROR] if isinstance(text, str) and text else None


class AicoreProbe:
    """Asks the server of the model with the role `aicore` for the state of AICore, again and again: read `latest`.

    Use it as `async with`, and run `run` as a task within the context; cancel the task before leaving. `interval_s`:
    seconds from an answer to the next question.
    """

    def __init__(self, live: LiveRoutes, interval_s: float = INTERVAL_S) -> None:
        self._live = live
        self._interval_s = interval_s
        self._session: aiohttp.ClientSession
        self.latest: AicoreStatus | None = None
        """The answer to the last question of `run`; None: no model has the role, or it was not asked yet."""

    async def __aenter__(self) -> AicoreProbe:
        # Not in __init__: aiohttp's sessions belong to a running event loop.
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "roundhouse", "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def run(self) -> None:
        """Ask the model with the role `aicore` for its state, set `latest`, and repeat that after `interval_s` seconds.

        The model is looked up in the routing table each time. Runs until it is cancelled, and never returns. Call
        within the context. Failures of the server are part of `latest`; nothing of them is raised.
        """
        while True:
            routes = self._live.current_or_none
            route = None if routes is None else find_aicore(routes)
            self.latest = None if route is None else await self.ask(route)
            await asyncio.sleep(self._interval_s)

    async def ask(self, route: ModelRoute, *, probes_all: bool = False) -> AicoreStatus:
        """Ask the server of the model `route` for the state of AICore now, and return the answer.

        Waits `TIMEOUT_S` (5) seconds at most. Does not set `latest`; call it within the context. `probes_all`: have the
        server check each of its configurations, too. A remote model that has no endpoint now is not asked: its code is
        None. A model that is no remote is not asked either: its own state counts (loaded 3, loading 1, else 2 if it is
        `autoload` and 0 if not). Failures are part of the result.
        """
        remote = next((endpoint for endpoint in route.endpoints if endpoint.remote), None)
        if remote is None:
            if route.remote_probe is not None:
                return AicoreStatus(route.name, None, f"The model is {route.state.value}: its server was not asked.")
            return AicoreStatus(route.name, _STATES.get(route.state, 2 if route.autoload else 0))
        try:
            status, body = await self._fetch(remote, "?probe=all" if probes_all else "")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return AicoreStatus(route.name, None, "The server does not answer.")
        except UnreadableAnswerError as error:
            return AicoreStatus(route.name, None, f"The server's answer cannot be read: {error}.")
        return read_status(route.name, status, body)

    async def _fetch(self, endpoint: Endpoint, query: str) -> tuple[int, bytes]:
        headers = {} if endpoint.token is None else {"Authorization": f"Bearer {endpoint.token.get_secret_value()}"}
        url = f"{endpoint.base_url}{endpoint.api_prefix}/aicore/status{query}"
        async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
            return answer.status, await gather_whole(answer.content.iter_any(), most_bytes=MAX_BYTES)
