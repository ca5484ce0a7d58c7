"""Probes the health of engines, one task per replica, and follows how far they are with loading.
`controller.observe.health` decides what it means.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import aiohttp

from common.host_tls import HostContexts
from common.network.answers import UnreadableAnswerError, gather_whole
from contract.hosts import EngineTls
from controller.engines.base import Engine, Probe, SleepCalls
from controller.observe.health import (
    BUSY_STATUSES,
    LATE_SYSTEM,
    LEADING_SYSTEM,
    ProbedHealth,
    ProbeOutcome,
    apply_outcome,
    judge_rendering,
    metric_sum,
    parse_cache_tokens,
    parse_figures,
)
from controller.observe.sleep import read_canary, says_asleep
from controller.runtimes.base import RuntimeUnavailableError
from controller.state import AppliedFigures

log = logging.getLogger(__name__)


INTERVAL_S: Final = 1.0
"""Seconds between two readings of the logs."""
STEPS: Final = 20
"""Progress is rounded down to twentieths, since finer steps would wake the reconciler for nothing."""


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


STARTING_INTERVAL_S = 0.05
"""Seconds between the first probes of an engine that is starting."""
SLOWEST_STARTING_INTERVAL_S = 1.0
"""Seconds between two probes of an engine that is starting, at most."""
STARTING_GROWTH = 1.05
"""Factor by which the pause between probes grows while an engine is starting. So each pause is about a twentieth of
the time since the start, and a ready engine is noticed at most that much later."""
FIRST_TOKEN_TIMEOUT_S = 300.0
"""Seconds that the first token may take. It is long because the engine may compile kernels for it."""
NOT_OFFERED = 501
"""HTTP status of a path that the engine has switched off."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """One engine to probe: where, how, and with which token (None: without one). `ready_since`: Unix time at which the
    engine was first seen ready; None: not known. It does not count when targets are compared."""

    base_url: str
    probe: Probe
    token: str | None = field(default=None, repr=False)
    sleep: SleepCalls | None = None
    """None: the engine cannot sleep. Else its canary is asked in place of the probe's first token."""
    ready_since: float | None = field(default=None, compare=False)
    """Unix time at which an earlier controller saw the engine ready; None: not known. An engine that was ready is not
    asked for a first token again, since that could queue behind the requests that the engine serves."""
    tls: EngineTls | None = None
    """How to open connections to the relay of its host; None: none is between."""


@dataclass(slots=True)
class _TargetState:
    target: ProbeTarget
    task: asyncio.Task[None]
    probe_requested: asyncio.Event = field(default_factory=asyncio.Event)
    has_waiter: bool = False
    """Whether the end of the next probe wakes the reconciler, whatever the probe finds."""
    probed: asyncio.Event = field(default_factory=asyncio.Event)
    answered_paths: set[str] = field(default_factory=set)
    """The figure paths of the probe that the engine has answered. They are not asked again."""
    has_told_template: bool = False
    """Whether the engine has answered what its chat template accepts. It is not asked again then."""
    probed_health: ProbedHealth = field(default_factory=ProbedHealth)


class Prober:
    """Probes all targets again and again, each in a background task, and keeps their health. `interval_s`: seconds
    between two probes of an engine that was ready; `timeout_s`: of one request of a probe. Does not close `session`.
    Calls `wake` when the health, the idleness, the preempting state or a model fact of a target changes. A failed probe
    raises nothing. `clock` returns Unix time in seconds."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        interval_s: float,
        timeout_s: float,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._contexts = HostContexts()
        self._interval_s = interval_s
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(2.0, timeout_s))
        self._wake = wake
        self._clock = clock
        self._target_states: dict[str, _TargetState] = {}

    def track_targets(self, targets: Mapping[str, ProbeTarget], kept_names: Collection[str] = ()) -> None:
        """Probe exactly `targets` (by replica name) from now on, and go on probing those named in `kept_names` with the
        target that they had. A target that differs from the one tracked under its name starts with fresh health, unless
        its name is in `kept_names`. Needs a running event loop; returns at once."""
        for name, target_state in list(self._target_states.items()):
            if targets.get(name) != target_state.target and name not in kept_names:
                target_state.task.cancel()
                del self._target_states[name]
        for name, target in targets.items():
            if name not in self._target_states:
                task = asyncio.create_task(self._run(name), name=f"probe {name}")
                self._target_states[name] = _TargetState(
                    target, task, probed_health=ProbedHealth(ready_since=target.ready_since)
                )

    async def wait_for_first_round(self) -> None:
        """Wait until every target was probed once, but for `timeout_s` seconds at most: an engine may hang. Returns
        either way."""
        wait_tasks = [
            asyncio.ensure_future(target_state.probed.wait()) for target_state in self._target_states.values()
        ]
        if wait_tasks:
            _, late_tasks = await asyncio.wait(wait_tasks, timeout=self._timeout.total)
            for wait_task in late_tasks:
                wait_task.cancel()

    def get_health(self, name: str) -> ProbedHealth:
        """Return the probed health of one target; for a name that is not tracked, the health before any probe."""
        target_state = self._target_states.get(name)
        return target_state.probed_health if target_state else ProbedHealth()

    def probe_now(self, name: str, *, then_wake: bool = False) -> None:
        """Have one target probed without waiting for its interval, and return at once. Where a probe is running, one
        more follows it. Does nothing for a name that is not tracked. Call it when a gateway could not reach the engine,
        or when a decision needs to know whether the engine is idle. With `then_wake`, the end of that probe wakes the
        reconciler even if it finds nothing new."""
        target_state = self._target_states.get(name)
        if target_state is not None:
            target_state.has_waiter |= then_wake
            target_state.probe_requested.set()

    async def close(self) -> None:
        """Stop probing, wait for the background tasks to end, and forget all targets."""
        tasks = [target_state.task for target_state in self._target_states.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._target_states.clear()

    async def _run(self, name: str) -> None:
        target_state = self._target_states[name]
        pause_s = STARTING_INTERVAL_S
        while True:
            target_state.probe_requested.clear()
            has_waiter, target_state.has_waiter = target_state.has_waiter, False
            began_at = self._clock()
            try:
                outcome = await self._probe(target_state)
            except Exception as fault:
                # An answer that nobody foresaw must not end the probing of its engine.
                log.exception("the probe of %s failed", name)
                outcome = ProbeOutcome(healthy=False, error=f"internal error: {fault!r}")
            previous_health = target_state.probed_health
            uptime = asyncio.get_running_loop().time()
            target_state.probed_health = apply_outcome(
                previous_health, outcome, self._clock(), began_at=began_at, uptime=uptime
            )
            target_state.probed.set()
            if previous_health.health is not target_state.probed_health.health:
                log.info(
                    "%s is %s%s", name, target_state.probed_health.health, f": {outcome.error}" if outcome.error else ""
                )
            if has_waiter or _published_part(previous_health) != _published_part(target_state.probed_health):
                self._wake()
            if target_state.probed_health.ready_since is None:
                pause_s = min(pause_s * STARTING_GROWTH, SLOWEST_STARTING_INTERVAL_S)
            else:
                pause_s = self._interval_s
            try:
                async with asyncio.timeout(pause_s):
                    await target_state.probe_requested.wait()
            except TimeoutError:
                continue

    async def _probe(self, target_state: _TargetState) -> ProbeOutcome:
        target = target_state.target
        try:
            status, text = await self._get(target, target.probe.health_path)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return ProbeOutcome(healthy=False, reached=False, error=f"health: {error or type(error).__name__}")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return ProbeOutcome(healthy=False, error=f"health: {error or type(error).__name__}")
        if status != 200:
            # vLLM answers 503 here once its engine is dead; a server that is still loading answers 503 as well.
            is_dead = "EngineDead" in text
            return ProbeOutcome(healthy=False, dead=is_dead, error=f"health: HTTP {status}")
        if target.sleep is not None:
            try:
                status, text = await self._get(target, target.sleep.state_path)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                return ProbeOutcome(healthy=False, error=f"sleep: {error or type(error).__name__}")
            if status != 200:
                return ProbeOutcome(healthy=False, error=f"sleep: HTTP {status}")
            if says_asleep(text):
                return ProbeOutcome(healthy=True, asleep=True)
        if target_state.probed_health.ready_since is None and target.probe.ready_path:
            fault, canary = await self._request_first_token(target)
            if fault is not None:
                return ProbeOutcome(healthy=True, error=fault)
            outcome = ProbeOutcome(healthy=True, generated=True, canary=canary)
            return await self._add_model_facts(outcome, target_state)
        outcome = await self._add_figures(ProbeOutcome(healthy=True, generated=True), target)
        return await self._add_model_facts(outcome, target_state)

    async def _add_model_facts(self, outcome: ProbeOutcome, target_state: _TargetState) -> ProbeOutcome:
        """Add the facts that stay the same for an engine's life, and that are asked only until the engine answers."""
        return replace(
            outcome,
            figures=await self._read_figures(target_state),
            system_first=await self._read_system_first(target_state),
        )

    async def _read_system_first(self, target_state: _TargetState) -> bool | None:
        """Return whether the model's chat template accepts system messages only at the beginning of a conversation.
        False also for a template that accepts no system message at all: the engine itself refuses those requests. None
        if the engine was asked before, or does not answer."""
        target = target_state.target
        if target_state.has_told_template or target.probe.template_path is None:
            return None
        try:
            status, text = await self._post(target, target.probe.template_path, LATE_SYSTEM)
            is_refused = judge_rendering(status, text) == "refused"
            if is_refused:
                status, text = await self._post(target, target.probe.template_path, LEADING_SYSTEM)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        if status in BUSY_STATUSES:
            return None
        target_state.has_told_template = True
        return is_refused and judge_rendering(status, text) == "taken"

    async def _read_figures(self, target_state: _TargetState) -> AppliedFigures:
        """Return what the engine reports of its own configuration at the paths that it has not answered yet."""
        target, figures = target_state.target, AppliedFigures()
        for path in target.probe.figure_paths:
            if path in target_state.answered_paths:
                continue
            try:
                status, text = await self._get(target, path)
            except (aiohttp.ClientError, OSError, TimeoutError):
                continue
            if (status < 500 and status not in BUSY_STATUSES) or status == NOT_OFFERED:
                target_state.answered_paths.add(path)
            if status == 200:
                figures = figures.merge_figures(parse_figures(path, text))
        return figures

    async def _request_first_token(self, target: ProbeTarget) -> tuple[str | None, str | None]:
        """Return why there is no first token (None: there is), and the answer to the canary where that was asked."""
        timeout = aiohttp.ClientTimeout(total=FIRST_TOKEN_TIMEOUT_S, sock_connect=2.0)
        path, body = target.probe.ready_path, dict(target.probe.ready_body)
        if target.sleep is not None:
            path, body = target.sleep.canary_path, dict(target.sleep.canary_body)
        url = target.base_url + path
        try:
            tls = self._contexts.list_options(target.tls)
            async with self._session.post(url, json=body, headers=_headers(target), timeout=timeout, **tls) as answer:
                text = await _read_text(answer)
                if answer.status != 200:
                    return f"first token: HTTP {answer.status}: {text[:300]}", None
                return None, None if target.sleep is None else read_canary(text)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"first token: {error or type(error).__name__}", None

    async def _add_figures(self, outcome: ProbeOutcome, target: ProbeTarget) -> ProbeOutcome:
        """Add the figures of the engine's metrics. Without metrics, return the outcome as it is."""
        probe = target.probe
        if probe.metrics_path is None:
            return outcome
        try:
            status, text = await self._get(target, probe.metrics_path)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return outcome
        if status != 200:
            return outcome
        return replace(
            outcome,
            busy_requests=metric_sum(text, probe.busy_metrics),
            progress=metric_sum(text, probe.progress_metrics),
            kv_cache_tokens=parse_cache_tokens(text, probe.cache_metric) if probe.cache_metric else None,
            preemptions=metric_sum(text, (probe.preemption_metric,)) if probe.preemption_metric else None,
        )

    async def _post(self, target: ProbeTarget, path: str, body: dict[str, Any]) -> tuple[int, str]:
        url, tls = target.base_url + path, self._contexts.list_options(target.tls)
        async with self._session.post(url, json=body, headers=_headers(target), timeout=self._timeout, **tls) as answer:
            return answer.status, await _read_text(answer)

    async def _get(self, target: ProbeTarget, path: str) -> tuple[int, str]:
        url, tls = target.base_url + path, self._contexts.list_options(target.tls)
        async with self._session.get(url, headers=_headers(target), timeout=self._timeout, **tls) as answer:
            return answer.status, await _read_text(answer)


async def _read_text(answer: aiohttp.ClientResponse) -> str:
    """Return an answer's body. Raises aiohttp.ClientPayloadError if it is larger than an engine's answers are."""
    try:
        return (await gather_whole(answer.content.iter_any())).decode(errors="replace")
    except UnreadableAnswerError as error:
        raise aiohttp.ClientPayloadError(f"its answer cannot be read: {error}") from None


def _published_part(probed_health: ProbedHealth) -> tuple[object, ...]:
    """Return the part of the health whose change wakes the reconciler."""
    model_facts = probed_health.figures, probed_health.system_first
    return probed_health.health, probed_health.idle, model_facts, probed_health.is_preempting


def _headers(target: ProbeTarget) -> dict[str, str]:
    return {"Authorization": f"Bearer {target.token}"} if target.token else {}
