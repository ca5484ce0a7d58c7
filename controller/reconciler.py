"""The controller's loop: observe, plan, apply, publish. Level-triggered.

Events (changed files, runtime events, gateway reports) only wake the loop; each round reads and plans the whole state
again. Correctness rests on the resync timer; events only make the loop faster. An observation that failed yields no
plan, and nothing is published before the first complete one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from watchfiles import awatch

from contract.status import ModelState
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import Stamp, read_stamps
from controller.desired.source import DesiredStateSource
from controller.engines import REPLICA_ENGINES
from controller.engines.base import SleepCalls
from controller.executor import MOST_FAILED_SLEEPS, Executor, OperationState
from controller.hosts import Host, HostState, is_memory_key, memory_key
from controller.memory_estimator import Requirements
from controller.model_status import Round, assess_models, is_starting
from controller.observe.gateway_hub import GatewayHub, RemoteDraining, RemoteHealth
from controller.observe.health import ProbedHealth, RuntimeSilence, extend_silence
from controller.observe.prober import LoadProgress, Prober, ProbeTarget
from controller.planning.actions import Plan, Start
from controller.planning.draining import (
    ARRIVAL_S,
    DrainState,
    count_inflight,
    counts_unknown_since,
    gateways_may_reconnect,
    idle_proof_due_at,
    is_drained,
    proves_idle,
)
from controller.planning.hosts import judge_hosts
from controller.planning.model_traffic import idle_span_by_model, traffic_by_model
from controller.planning.plan import plan
from controller.redaction import Redact, mask_text, redact_nothing
from controller.routing_table import build_permissions, build_routes, find_addresses, read_addresses
from controller.runtimes.base import Runtime, RuntimeGoneError, RuntimeUnavailableError, SeenReplica
from controller.state import (
    ASLEEP_MIB,
    SLEEP_SETTLED_S,
    AttemptNumbers,
    DesiredModel,
    DesiredState,
    Draining,
    Exit,
    Health,
    HeldMemory,
    ObservedReplica,
    ObservedState,
    Phase,
    Requirement,
    Sleep,
    decide_asleep_claims,
    raise_claims,
    read_held_mib,
)
from controller.state_dir import SleepRecord
from controller.state_machine import publishable_statuses

log = logging.getLogger(__name__)


DEBOUNCE_MS = 50
"""Milliseconds for which changes of files are collected into one event."""
WATCH_RETRY_S = 1.0
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
                async with asyncio.timeout(WATCH_RETRY_S):
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
        await asyncio.sleep(WATCH_RETRY_S)


FILE_LOOK_S = 1.0
"""Seconds between two looks at the files of models that could not be started."""
Stamps = Mapping[str, Stamp | None]
"""Model path to the stamp of its files; None: they are missing."""
FileLooks = Mapping[tuple[str, str], tuple[Stamps, Stamps]]
"""Name and spec hash of a model that could not be started to its files when that was first seen, and at the last
look."""


def find_changed_files(
    looks: FileLooks, found: Mapping[tuple[str, str], Stamps]
) -> tuple[FileLooks, list[tuple[str, str]]]:
    """Return what to pass as `looks` next time, and the models to try again: those whose files are others than when the
    model was first seen to fail, and the same at this look as at the last one, so that none is still being copied."""
    next_looks, changed = {}, []
    for key, stamps in found.items():
        first, last = looks.get(key, (stamps, stamps))
        is_changed = stamps == last != first
        next_looks[key] = (stamps if is_changed else first, stamps)
        if is_changed:
            changed.append(key)
    return next_looks, changed


async def follow_model_files(
    list_failed: Callable[[], Iterable[DesiredModel]],
    roots: ModelRoots,
    retry: Callable[[DesiredModel], Awaitable[None]],
) -> None:
    """Call `retry` with each model of `list_failed`, those that could not be started, once its files have changed and
    are whole: a missing one is there, or one that was half copied has grown to its end. Looks every second at the files
    of these models alone, until cancelled."""
    looks: FileLooks = {}
    while True:
        await asyncio.sleep(FILE_LOOK_S)
        models = {(each.name, each.spec_hash): each for each in list_failed()}
        looks, changed = find_changed_files(looks, await asyncio.to_thread(_read_stamps, roots, models))
        for key in changed:
            log.info("%s is tried again: its files have changed", key[0])
            await retry(models[key])


def _read_stamps(roots: ModelRoots, models: Mapping[tuple[str, str], DesiredModel]) -> dict[tuple[str, str], Stamps]:
    return {
        key: read_stamps(roots, [each.path for each in REPLICA_ENGINES[model.backend].list_files(model.definition)])
        for key, model in models.items()
    }


SHORTEST_ROUND_S = 0.01
"""Seconds between two rounds at least."""
RETRY_S = 1.0
"""Seconds between a round that failed or had no complete observation and the next one, at most."""


class DesiredSource(Protocol):
    """Where the reconciler gets the desired state, and where it stores what the next controller must know. Nothing is
    raised for files that cannot be read or are invalid: the last good state stays in force. Nor for a state folder that
    cannot be written."""

    def desired_state(self) -> DesiredState | None:
        """Return the desired state now in force, from the files that were read last; None: no valid files were ever
        read."""

    async def refresh_files(self, now: float) -> None:
        """Read the files again if they were last read long enough before `now`, Unix time; otherwise do nothing. The
        source decides how long."""

    def wake_at(self) -> float | None:
        """Return the Unix time at which `refresh_files` must be called to confirm an edit; None: nothing is to be
        confirmed."""

    def evict_models(self, models: Mapping[str, str]) -> None:
        """Drop the demand for these models until the next request for each, so that they are not wanted any more.
        Nothing is stopped by this. `models` maps names to the reason."""

    def request_reload(self, models: Sequence[str]) -> None:
        """Record a request for each of these models now, and end their evictions, so that they are wanted again."""

    def drained_hosts(self) -> Mapping[str, float]:
        """Return the hosts that an operator drains, by name, to the Unix time of that."""

    def remember_attempts(self, attempts: AttemptNumbers) -> None:
        """Store the highest attempt number of each replica, for every later controller."""

    def remember_loaded(
        self, loaded_once: frozenset[str], ready_since: dict[str, float], sleepers: dict[str, SleepRecord]
    ) -> None:
        """Store the models that were loaded since they were last wanted, and by replica name the Unix time since when
        the replica is ready, and what must be known of one that can sleep. All replace what was stored before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundSources:
    """What a round reads, and the memory of what is under way."""

    desired: DesiredSource
    runtime: Runtime
    memory: OperationState
    prober: Prober
    remotes: RemoteHealth
    clock: Callable[[], float]
    """Returns Unix time in seconds."""
    ready_before: Mapping[str, float] = field(default_factory=dict)
    """Replica name to Unix time since which an earlier controller saw the replica ready."""
    redact: Redact = redact_nothing
    progress: LoadProgress | None = None
    """None: no load fraction is known."""
    read_hosts: Callable[[], Awaitable[tuple[Host, ...]]] | None = None
    """Returns the hosts of an installation with several, each `ready`, `silent` or `refused`. None: the runtime's host
    is the only one."""
    host_lost_s: float = 15.0
    """Seconds without a word of a host until others take over what ran there."""
    host_mib: int | None = None
    """Main memory of the only host, in MiB, that all engines may take together. None: no limit."""
    is_host_limited: bool = False
    """Whether a setting keeps `host_mib` below the machine's main memory."""
    requirements: Requirements | None = None
    """None: only declared memory counts."""
    get_gpu_use: Callable[[], Mapping[str, Mapping[str, int]]] = dict
    """Returns what ready replicas hold of their GPUs, as in `ObservedState.gpu_use`."""
    get_longest_tokens: Callable[[Iterable[DesiredModel]], Mapping[str, int]] = lambda _: {}
    """Returns the `longest_tokens` of `build_routes`."""
    get_held_memory: Callable[[str], HeldMemory | None] = lambda _: None
    """Returns the most memory that a replica was seen to hold, by the replica's name."""
    get_download_fractions: Callable[[], Mapping[str, float]] = dict
    """Returns how far downloads are, as in `ObservedState.download_fractions`."""
    get_head_models: Callable[[], frozenset[str]] = frozenset
    """Returns the models whose files hosts get from here, as in `ObservedState.head_models`."""


class Reconciler:
    """The controller's loop: runs rounds when woken, when the plan asks for one, and every `resync_s` seconds at least.
    A controller has one, on its event loop. Rounds must not overlap: call `run`, or `run_round` alone, as tests do."""

    def __init__(
        self,
        sources: RoundSources,
        operations: Executor,
        hub: GatewayHub,
        *,
        wake: asyncio.Event,
        resync_s: float,
        on_round: Callable[[Round | None, Round | None], None] = lambda *_: None,
        on_duration: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Connect the parts; `run` starts the loop. Setting `wake` starts the next round soon; the loop clears it.
        `resync_s`: seconds between two rounds at most. `on_round` is called after each round with the last complete
        round before it (None: there was none) and with this one (None: it was not complete). `on_duration` is called by
        `run` after each round, complete or not, with its duration in seconds."""
        self.sources = sources
        self._on_round = on_round
        self._on_duration = on_duration
        self._round_finished = asyncio.Event()
        self._operations = operations
        self._hub = hub
        self._wake = wake
        self._resync_s = resync_s
        self._ready_since = dict(sources.ready_before)
        self._clock, self._memory = sources.clock, sources.memory
        self._desired, self._prober, self._remotes = sources.desired, sources.prober, sources.remotes
        self._up_since = sources.clock()
        self._remote_drains = RemoteDraining()
        self._hosts: tuple[Host, ...] = (Host(),)
        self._idle_proof_due_at: float | None = None
        """When the next probe of an idle engine can prove that it holds no request of a lost gateway. None: no engine
        is waiting for that."""
        self.round: Round | None = None
        """The last complete round; None before the first."""
        self.error: str | None = None
        """Why the last round was not complete; None: it was."""
        self.silence: RuntimeSilence | None = None
        """How long the runtime has not answered; None: it answers."""

    async def run(self) -> None:
        """Run rounds until cancelled. Errors of a round are not raised: they are logged and in `error`, and the next
        round begins after 1 s (`RETRY_S`) at most. Actions under way go on after the end."""
        while True:
            self._wake.clear()
            began_at = self._clock()
            try:
                await self.run_round()
            except Exception as error:
                # A bug that one model triggers must not end the controller of all others: report it and go on.
                log.exception("this round failed")
                self.error = mask_text(f"internal error: {error!r}")
            if self.error is not None:
                self._on_round(self.round, None)
            self._on_duration(max(0.0, self._clock() - began_at))
            pause_s = self._pause_s()
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                log.debug("resync after %.1f s", pause_s)
            await asyncio.sleep(SHORTEST_ROUND_S)

    async def run_round(self) -> Round | None:
        """Observe, plan, start the plan's actions, publish the result, and return the round. None means that the
        runtime did not answer, or that no valid files were ever read. No engine was changed then, at most API keys,
        tools and MCP servers were published, and `error` says why. Other exceptions are raised; `run` catches them.
        While the controller is paused, the round is planned and published, but no action is started."""
        try:
            desired, observed = await self._observe()
        except RuntimeUnavailableError as error:
            if self.error is None:
                log.warning("nothing is changed while the runtime does not answer: %s", error)
            self.error = mask_text(str(error))
            is_gone = isinstance(error, RuntimeGoneError)
            self.silence = extend_silence(self.silence, is_gone=is_gone, now=time.monotonic())
            self._publish_permissions()
            return None
        self.silence = None
        if desired is None:
            self.error = "the desired state was never valid; nothing is started or stopped"
            return None
        self.error = None
        round_plan = plan(desired, observed, observed.at)
        desired = round_plan.apply_evictions(desired)
        starts = () if desired.paused else (each for each in round_plan.actions if isinstance(each, Start))
        self._memory.note_attempts(start.id for start in starts)
        # Stored before any engine starts: if the controller dies meanwhile, the next one must not reuse the name.
        self._desired.remember_attempts(self._memory.attempts)
        if not desired.paused:
            replicas = {replica.name: replica for replica in observed.replicas}
            for action in round_plan.actions:
                self._operations.issue_action(action, desired, replicas)
            self._operations.cancel_unused_downloads(desired)
            self._desired.request_reload(round_plan.reload_requested)
            self._desired.evict_models(round_plan.evicted)
        self._publish_round(desired, observed, round_plan)
        return self.round

    def _publish_permissions(self) -> None:
        """Publish keys, tools and MCP servers alone: what is revoked must end even while engines cannot be observed."""
        desired = self._desired.desired_state()
        if desired is not None:
            self._hub.replace_permissions(*build_permissions(desired, read_addresses(self._hub.table)))

    def _publish_round(self, desired: DesiredState, observed: ObservedState, round_plan: Plan) -> None:
        """Assess the models after the plan's actions were issued, and publish their statuses and routes."""
        self._remote_drains.follow_desired(self.round.desired if self.round is not None else None, desired, observed.at)
        issued_state = self._with_issued(observed)
        true_statuses = assess_models(desired, issued_state, round_plan)
        self._memory.loaded_once |= {status.name for status in true_statuses if status.state is ModelState.LOADED}
        statuses = publishable_statuses(self._published_states(), true_statuses)
        if statuses != true_statuses:
            self._wake.set()
        previous_round, self.round = self.round, Round(desired, issued_state, round_plan, statuses)
        stamp = self._hub.publish_table(
            build_routes(
                desired,
                issued_state,
                statuses,
                self._endpoint_token,
                self._remotes.list_probes(),
                self.sources.get_longest_tokens(desired.models.values()),
            ),
            *build_permissions(desired, find_addresses(issued_state, statuses, self._endpoint_token)),
        )
        self._remote_drains.note_published(stamp)
        for name, drain in self._memory.drains.items():
            if drain.unrouted_stamp is None:
                self._memory.drains[name] = DrainState(drain.since, stamp)
                # If a gateway is lost, the engine's own idle figure decides, and perhaps no report wakes this loop.
                self._prober.probe_now(name, then_wake=True)
        self._ready_since = {each.name: each.ready_since for each in observed.replicas if each.ready_since is not None}
        self._desired.remember_loaded(
            frozenset(self._memory.loaded_once), self._ready_since, dict(self._memory.sleepers)
        )
        self._round_finished.set()
        self._round_finished = asyncio.Event()
        self._on_round(previous_round, self.round)

    def _published_states(self) -> dict[str, ModelState]:
        return {status.name: status.state for status in self.round.statuses} if self.round is not None else {}

    def preview_round(self, desired: DesiredState, now: float) -> Round | None:
        """Return the round that `desired` would yield with the last observation at `now`, Unix time. Changes nothing,
        observes nothing. Models that its plan would evict are evicted in the result, unless `desired` is paused. None
        means that no round was complete yet."""
        if self.round is None:
            return None
        observed = self._with_issued(self.round.observed)
        round_plan = plan(desired, observed, now)
        desired = round_plan.apply_evictions(desired)
        return Round(
            desired,
            observed,
            round_plan,
            publishable_statuses(self._published_states(), assess_models(desired, observed, round_plan)),
        )

    async def wait_for_round(self) -> None:
        """Wait until a complete round ends; a round that is under way at the call counts, though it may have observed
        before it. Has no time limit: no round is complete while the runtime does not answer."""
        await self._round_finished.wait()

    def _with_issued(self, observed: ObservedState) -> ObservedState:
        """Return the observation with this round's drains and operations added, so that leaving replicas lose their
        routes at once."""
        replicas = []
        for replica in observed.replicas:
            drain = self._memory.drains.get(replica.name)
            is_leaving = drain is not None or self._memory.is_stopping(replica.name)
            draining = Draining(drain.since if drain else observed.at, None) if is_leaving else None
            replicas.append(replace(replica, draining=draining))
        return replace(
            self._memory.with_operations(observed),
            replicas=tuple(replicas),
            remotes=self._remotes.list_errors(),
            remote_retry_at=self._remotes.list_retries(),
            draining_remotes=self._remote_drains.models,
        )

    # Observing.

    async def _observe(self) -> tuple[DesiredState | None, ObservedState]:
        began_at = self._clock()
        await self._desired.refresh_files(began_at)
        seen_replicas = await self.sources.runtime.list_replicas()
        self._hosts, is_cut_off = await self._observe_hosts()
        gpus = ObservedState(began_at, hosts=self._hosts).gpus
        self._memory.note_attempts(replica.id for replica in seen_replicas)
        self._memory.forget_finished(began_at, [each.name for each in self._hosts if each.state is HostState.SILENT])
        self._hub.forget_lost()
        desired = self._desired.desired_state()
        self._track(desired, seen_replicas)
        if self.round is None:
            await self._prober.wait_for_first_round()
            await self._remotes.wait_for_first_round(self._memory.loaded_once)
        models = desired.models.values() if desired is not None else ()
        requirements = (
            await self.sources.requirements.requirements_of(models, gpus)
            if self.sources.requirements is not None
            else {}
        )
        now = self._clock()
        sleepable = {
            model.name: (model, calls, requirements.get(model.name, Requirement()))
            for model in models
            if model.runs and (calls := REPLICA_ENGINES[model.backend].describe_sleep(model.definition)) is not None
        }
        replicas = tuple(self._observe_replica(replica, now, sleepable) for replica in seen_replicas)
        self._memory.note_released_gpus(self.round.observed.replicas if self.round is not None else (), replicas, now)
        if desired is not None:
            self._memory.prune_state(desired, replicas, now)
            self._remote_drains.forget_empty(self._hub.views, now)
        views = self._hub.views
        self._idle_proof_due_at = self._seek_idle_proofs(replicas, now)
        observed = ObservedState(
            at=now,
            replicas=replicas,
            hosts=self._hosts,
            is_cut_off=is_cut_off,
            requirements=requirements,
            gpu_use=self.sources.get_gpu_use(),
            traffic=traffic_by_model(
                (model.name for model in models),
                views,
                now,
                last_used=self._hub.last_used,
                up_since=self._up_since,
                unsure=any(self._is_unsure(replica, now) for replica in replicas),
                idle_spans=idle_span_by_model(replicas),
            ),
            remotes=self._remotes.list_errors(),
            remote_retry_at=self._remotes.list_retries(),
            progress=self._load_fractions(desired, replicas),
            download_fractions=self.sources.get_download_fractions(),
            head_models=self.sources.get_head_models(),
            draining_remotes=self._remote_drains.models,
            inflight={
                each.name: None if self._is_unsure(each, now) else count_inflight(each.name, views, now, each.idle_span)
                for each in replicas
            },
        )
        return desired, self._memory.with_operations(observed)

    async def _observe_hosts(self) -> tuple[tuple[Host, ...], bool]:
        """Return the hosts, and whether the controller is cut off from most of them."""
        if self.sources.read_hosts is not None:
            known = {host.name: host for host in self._hosts}
            return judge_hosts(
                await self.sources.read_hosts(),
                known,
                self._desired.drained_hosts(),
                self._clock(),
                lost_after_s=self.sources.host_lost_s,
            )
        runtime = self.sources.runtime
        gpus = await runtime.read_gpus()
        host = Host(
            runtime=runtime.kind,
            gpus=gpus,
            gpu_error=runtime.get_gpu_error(),
            unread_gpus=runtime.list_unread_gpus(),
            # Those that were ever seen to use main memory instead of memory of their own.
            unified_gpus=self._hosts[0].unified_gpus | {gpu.uuid for gpu in gpus or () if gpu.is_unified},
            driver=runtime.get_gpu_driver(),
            memory_mib=self.sources.host_mib,
            is_memory_limited=self.sources.is_host_limited,
        )
        return (host,), False

    def _find_silence(self, replica: SeenReplica) -> Literal["silent", "lost"] | None:
        host = next((each for each in self._hosts if each.name == replica.host), None)
        if host is None or host.answers:
            return None
        return "silent" if host.taken_over_at is None else "lost"

    def _track(self, desired: DesiredState | None, seen_replicas: list[SeenReplica]) -> None:
        models = desired.models if desired is not None else {}
        targets: dict[str, ProbeTarget] = {}
        kept_names: set[str] = set()
        for replica in seen_replicas:
            model = models.get(replica.id.model)
            if self._find_silence(replica) is not None:
                continue  # whoever answers again is probed anew
            if replica.phase is not Phase.RUNNING or replica.base_url is None:
                continue
            if model is None or not model.runs or replica.id.spec_hash != model.spec_hash:
                # The replica's own definition is no longer declared, so its probes go on as they were: whether it
                # serves and is idle still matters.
                kept_names.add(replica.name)
            if model is not None and model.runs:
                probe = REPLICA_ENGINES[model.backend].describe_probe(model.definition)
                sleep = REPLICA_ENGINES[model.backend].describe_sleep(model.definition)
                token, ready_since = self._operations.replica_token(replica.name), self._ready_since.get(replica.name)
                targets[replica.name] = ProbeTarget(replica.base_url, probe, token, sleep, ready_since, replica.tls)
        self._prober.track_targets(targets, kept_names)
        self._remotes.track_models([model for model in models.values() if not model.runs and model.replicas])

    def _observe_replica(
        self, replica: SeenReplica, now: float, sleepable: Mapping[str, tuple[DesiredModel, SleepCalls, Requirement]]
    ) -> ObservedReplica:
        probed_health = self._prober.get_health(replica.name)
        if probed_health.canary is not None:
            self._memory.sleepers.setdefault(replica.name, SleepRecord(canary=probed_health.canary))
        claims = raise_claims(replica.claims, self.sources.get_held_memory(replica.name), replica.host)
        sleep = self._observe_sleep(replica, probed_health, claims, sleepable.get(replica.id.model), now)
        is_asleep = sleep is not None and sleep.since is not None
        health, fault = probed_health.health, self._memory.faults.get(replica.name)
        if sleep is not None:
            claims = sleep.asleep_claims if is_asleep else sleep.awake_claims
        if is_asleep:
            health = Health.SLEEPING
            if replica.name not in self._memory.sleepers:
                fault = "it sleeps, and what it answered before is not known"
        elif health is Health.SLEEPING:  # by a probe before its wake
            health = Health.READY
        drain = self._memory.drains.get(replica.name)
        draining = None
        if drain is not None:
            is_fresh = probed_health.probed_at is not None and probed_health.probed_at > drain.since
            idle = probed_health.idle if is_fresh else None
            is_unsure = self._is_unsure(replica, now)
            is_empty = is_drained(replica.name, drain, self._hub.views, idle, now=now, unsure=is_unsure)
            draining = Draining(drain.since, is_empty)
            if is_empty is None:
                self._prober.probe_now(replica.name)
        return ObservedReplica(
            id=replica.id,
            name=replica.name,
            phase=replica.phase,
            created_at=replica.created_at,
            host=replica.host,
            silent=self._find_silence(replica),
            returned_at=next((each.reached_since for each in self._hosts if each.name == replica.host), 0.0),
            started_at=replica.started_at,
            health=health,
            ready_since=probed_health.ready_since or self._ready_since.get(replica.name),
            base_url=replica.base_url,
            tls=replica.tls,
            claims=claims,
            start_claims=replica.claims,
            exit=self._redacted_exit(replica),
            draining=draining,
            image_id=replica.image_id,
            argv=replica.argv,
            figures=probed_health.figures,
            system_first=probed_health.system_first is True,
            kv_cache_tokens=probed_health.kv_cache_tokens,
            is_preempting=probed_health.is_preempting,
            idle_span=probed_health.idle_span,
            sleep=sleep,
            fault=fault,
        )

    def _observe_sleep(
        self,
        replica: SeenReplica,
        probed_health: ProbedHealth,
        claims: Mapping[str, int],
        sleepable: tuple[DesiredModel, SleepCalls, Requirement] | None,
        now: float,
    ) -> Sleep | None:
        """Return how the replica sleeps or would. `claims`: awake. `sleepable`: what is declared of its model, if that
        can sleep."""
        record = self._memory.sleepers.get(replica.name)
        since, woken_at, wake_s = (record.since, record.woken_at, record.wake_s) if record else (None, None, None)
        probed_at = probed_health.probed_at
        if since is None and probed_health.health is Health.SLEEPING and probed_at is not None:
            since = probed_at if woken_at is None or probed_at > woken_at else None
            if since is not None and record is not None and replica.name not in self._memory.pending:
                # It fell asleep while no controller could note it.
                self._memory.sleepers[replica.name] = record.model_copy(update={"since": since})
        model, calls, requirement = sleepable or (None, None, None)
        is_current = model is not None and model.spec_hash == replica.id.spec_hash
        key = (replica.id.model, replica.id.spec_hash)
        fails = self._memory.failed_sleeps.get(key, 0) >= MOST_FAILED_SLEEPS
        if since is None and (record is None or fails or not is_current or all(map(is_memory_key, claims))):
            return None
        gpus = next((each.gpus for each in self._hosts if each.name == replica.host), None)
        held_mib = read_held_mib(replica.name, gpus or ())
        is_settled = since is not None and not 0 <= now - since < SLEEP_SETTLED_S
        is_seen_asleep = probed_health.health is Health.SLEEPING and replica.name not in self._memory.pending
        if is_settled and is_seen_asleep and held_mib:
            self._memory.asleep_mib[key] = max(held_mib.values())
        expected_claims, asleep_claims = (
            decide_asleep_claims(
                claims,
                expected_mib=expected_mib,
                held_mib=held_mib,
                host_mib=None if requirement is None else requirement.asleep_host_mib,
                keeps_weights=calls is None or calls.keeps_weights,
                host=replica.host,
            )
            for expected_mib in (self._memory.asleep_mib.get(key, ASLEEP_MIB), None)
        )
        if since is None:
            asleep_claims = expected_claims
        has_slept = since is not None or woken_at is not None
        # The main memory in which an engine kept its weights stays its own.
        memory = memory_key(replica.host)
        awake_claims = {**claims, memory: asleep_claims[memory]} if has_slept and memory in asleep_claims else claims
        rest_claims = None if since is None or is_settled else expected_claims
        return Sleep(asleep_claims, awake_claims, since, rest_claims, woken_at, wake_s)

    def _seek_idle_proofs(self, replicas: Sequence[ObservedReplica], now: float) -> float | None:
        """Probe idle engines once more when that probe can prove them empty, while some gateway's counts are unknown.
        Return the time at which the next such probe is due; None if none is."""
        unknown_since = counts_unknown_since(self._hub.views, now)
        due_times = []
        for replica in replicas:
            if unknown_since is None or replica.idle_span is None or proves_idle(replica.idle_span, unknown_since):
                continue
            due_at = idle_proof_due_at(replica.idle_span, unknown_since)
            if due_at <= now:
                self._prober.probe_now(replica.name, then_wake=True)
            else:
                due_times.append(due_at)
        return min(due_times, default=None)

    def _is_unsure(self, replica: SeenReplica | ObservedReplica, now: float) -> bool:
        """Return whether gateways that know the replica from an earlier controller may not have reconnected yet."""
        return replica.created_at < self._up_since and gateways_may_reconnect(now, self._up_since)

    def _load_fractions(self, desired: DesiredState | None, replicas: Sequence[ObservedReplica]) -> Mapping[str, float]:
        if self.sources.progress is None or desired is None:
            return {}
        replica_models = ((replica.name, desired.models.get(replica.id.model), replica) for replica in replicas)
        self.sources.progress.track_engines(
            {
                name: REPLICA_ENGINES[model.backend]
                for name, model, replica in replica_models
                if model is not None and is_starting(model, replica)
            }
        )
        return dict(self.sources.progress.fractions)

    def _redacted_exit(self, replica: SeenReplica) -> Exit | None:
        if replica.exit is None or not replica.exit.log_tail:
            return replica.exit
        return replace(
            replica.exit, log_tail=self.sources.redact(replica.id.model, replica.exit.log_tail, replica.name)
        )

    # Publishing, and when to look again.

    def _endpoint_token(self, name: str) -> str | None:
        return (
            self._remotes.read_token(name) if self._remotes.knows_model(name) else self._operations.replica_token(name)
        )

    def _pause_s(self) -> float:
        if self.error is not None:
            return min(RETRY_S, self._resync_s)
        now = self._clock()
        wake_times = [self._desired.wake_at(), self._idle_proof_due_at]
        if gateways_may_reconnect(now, self._up_since):
            wake_times.append(self._up_since + ARRIVAL_S)
        if self.round is not None:
            wake_times.append(self.round.plan.wake_at)
        soonest_s = min((wake_at - now for wake_at in wake_times if wake_at is not None), default=self._resync_s)
        return max(SHORTEST_ROUND_S, min(soonest_s, self._resync_s))
