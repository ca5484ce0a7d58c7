"""observe -> plan -> apply -> publish, level-triggered.

Every source only wakes the loop; the whole state is read and planned again. The resync timer is the correctness path,
events are the fast path. An observation that failed yields no plan, and nothing is published before one was complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from controller.engines import ENGINES
from controller.observe.gateway_hub import GatewayHub
from controller.observe.load_progress import LoadProgress
from controller.observe.prober import Prober, Target
from controller.observe.remote_draining import RemoteDrains
from controller.observe.remote_health import Remotes
from controller.planning.actions import Plan
from controller.planning.draining import ARRIVAL_S, arriving, drained, inflight
from controller.planning.draining import Drain as DrainUnderWay
from controller.planning.model_traffic import uses
from controller.planning.plan import plan
from controller.reconcile.desired_source import Desired
from controller.reconcile.executor import Operations
from controller.reconcile.operation_state import WorkingMemory
from controller.redaction.patterns import masked_text
from controller.redaction.redactor import Conceal, nothing_secret
from controller.runtimes.base import Runtime, RuntimeUnavailableError, SeenReplica
from controller.schema.status import ModelState
from controller.sizing.requirements import Needs
from controller.state import (
    DesiredState,
    Draining,
    Exit,
    Gpu,
    ObservedReplica,
    ObservedState,
    Phase,
)
from controller.status.load_stage import starting
from controller.status.model_status import assess
from controller.status.reconcile_round import Round
from controller.status.routing_table import routes, table_keys
from controller.status.state_machine import in_step

log = logging.getLogger(__name__)

SHORTEST_ROUND_S = 0.01
RETRY_S = 1.0
"""Pause after a round that saw nothing, or failed."""


class Reconciler:
    """The controller's loop."""

    def __init__(
        self,
        *,
        desired: Desired,
        runtime: Runtime,
        operations: Operations,
        memory: WorkingMemory,
        prober: Prober,
        remotes: Remotes,
        hub: GatewayHub,
        wake: asyncio.Event,
        resync_s: float,
        ready_before: Mapping[str, float],
        clock: Callable[[], float],
        told: Callable[[Round | None, Round | None], None] = lambda *_: None,
        conceal: Conceal = nothing_secret,
        progress: LoadProgress | None = None,
        host_mib: int | None = None,
        needs: Needs | None = None,
    ) -> None:
        """`told` is given each round (None: it was not complete) and the one before. `host_mib`: main memory that
        engines without GPUs may take; None: not bounded."""
        self._told = told
        self._conceal = conceal
        self._progress = progress
        self._host_mib = host_mib
        self._needs = needs
        self._finished = asyncio.Event()
        self._desired = desired
        self._runtime = runtime
        self._operations = operations
        self._memory = memory
        self._prober = prober
        self._remotes = remotes
        self._hub = hub
        self._wake = wake
        self._resync_s = resync_s
        self._ready = dict(ready_before)
        self._clock = clock
        self._up_since = clock()
        self._remote_drains = RemoteDrains()
        self._gpus: tuple[Gpu, ...] | None = ()
        self.round: Round | None = None
        self.error: str | None = None
        """Why the last observation failed; None: it did not."""

    async def run(self) -> None:
        """Reconcile until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.once()
            except Exception as error:
                # A bug that one model brings out must not take the others' controller away: say so, and look again.
                log.exception("this round failed")
                self.error = masked_text(f"internal error: {error!r}")
            if self.error is not None:
                self._told(self.round, None)
            pause = self._pause()
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                log.debug("resync after %.1f s", pause)
            await asyncio.sleep(SHORTEST_ROUND_S)

    async def once(self) -> Round | None:
        """One round; None when there was no complete observation."""
        try:
            desired, observed = await self._observe()
        except RuntimeUnavailableError as error:
            if self.error is None:
                log.warning("nothing is changed while the runtime does not answer: %s", error)
            self.error = masked_text(str(error))
            self._rekey()
            return None
        if desired is None:
            self.error = "the desired state was never valid; nothing is started or stopped"
            return None
        self.error = None
        made = plan(desired, observed, observed.at)
        desired = made.in_force(desired)
        if not desired.paused:
            replicas = {replica.name: replica for replica in observed.replicas}
            for action in made.actions:
                self._operations.issue(action, desired, replicas)
            self._desired.awake(made.woken)
            self._desired.rest(made.rested)
        self._finish(desired, observed, made)
        return self.round

    def _rekey(self) -> None:
        """A key that was revoked is revoked, whether or not engines can be seen."""
        desired = self._desired.state(self._clock())
        if desired is not None:
            self._hub.rekey(table_keys(desired.keys))

    def _finish(self, desired: DesiredState, observed: ObservedState, made: Plan) -> None:
        """Assess and publish what holds now that the plan was issued."""
        self._remote_drains.follow(self.round.desired if self.round is not None else None, desired, observed.at)
        issued = self._with_issued(observed)
        true = assess(desired, issued, made)
        self._memory.loaded_once |= {status.name for status in true if status.state is ModelState.LOADED}
        statuses = in_step(self._published(), true)
        if statuses != true:
            self._wake.set()
        before, self.round = self.round, Round(desired, issued, made, statuses)
        stamp = self._hub.publish(routes(desired, issued, statuses, self._token), table_keys(desired.keys))
        self._remote_drains.published(stamp)
        for name, drain in self._memory.drains.items():
            if drain.unrouted is None:
                self._memory.drains[name] = DrainUnderWay(drain.since, stamp)
        self._ready = {each.name: each.ready_since for each in observed.replicas if each.ready_since is not None}
        self._desired.remember(frozenset(self._memory.loaded_once), self._ready)
        self._finished.set()
        self._finished = asyncio.Event()
        self._told(before, self.round)

    def _published(self) -> dict[str, ModelState]:
        return {status.name: status.state for status in self.round.statuses} if self.round is not None else {}

    def glance(self, desired: DesiredState, now: float) -> Round | None:
        """The next round as far as it can be told without looking; None: nothing was ever observed. Changes nothing."""
        if self.round is None:
            return None
        observed = self._with_issued(self.round.observed)
        made = plan(desired, observed, now)
        desired = made.in_force(desired)
        return Round(desired, observed, made, in_step(self._published(), assess(desired, observed, made)))

    async def next_round(self) -> None:
        """Wait until another round is complete."""
        await self._finished.wait()

    def _with_issued(self, observed: ObservedState) -> ObservedState:
        """The observation with the drains and operations of this round: what is leaving is routed to no more."""
        replicas = []
        for replica in observed.replicas:
            drain = self._memory.drains.get(replica.name)
            leaving = drain is not None or self._memory.stopping(replica.name)
            draining = Draining(drain.since if drain else observed.at, None) if leaving else None
            replicas.append(replace(replica, draining=draining))
        return replace(
            self._memory.told(observed),
            replicas=tuple(replicas),
            remotes=self._remotes.errors(),
            draining_remotes=self._remote_drains.models,
        )

    # Observing.

    async def _observe(self) -> tuple[DesiredState | None, ObservedState]:
        began_at = self._clock()
        await self._desired.refresh(began_at)
        seen = await self._runtime.list()
        self._gpus = await self._runtime.gpus()
        self._memory.forget_settled(began_at)
        self._hub.forget_lost()
        desired = self._desired.state(began_at)
        self._track(desired, seen)
        if self.round is None:
            await self._prober.first_round()
            await self._remotes.first_round()
        models = desired.models.values() if desired is not None else ()
        needs = await self._needs.of(models, self._gpus) if self._needs is not None else {}
        now = self._clock()
        replicas = tuple(self._observed(replica, now) for replica in seen)
        self._memory.note_left(self.round.observed.replicas if self.round is not None else (), replicas, now)
        if desired is not None:
            self._memory.prune(desired, replicas, now)
            self._remote_drains.forget_empty(self._hub.views, desired, now)
        views = self._hub.views
        observed = ObservedState(
            at=now,
            replicas=replicas,
            gpus=self._gpus,
            host_mib=self._host_mib,
            needs=needs,
            uses=uses(
                (want.name for want in models),
                views,
                now,
                last_used=self._hub.last_used,
                up_since=self._up_since,
                unsure=any(self._is_unsure(replica, now) for replica in replicas),
            ),
            remotes=self._remotes.errors(),
            progress=self._fractions(desired, replicas),
            draining_remotes=self._remote_drains.models,
            inflight={
                each.name: None if self._is_unsure(each, now) else inflight(each.name, views, now) for each in replicas
            },
        )
        return desired, self._memory.told(observed)

    def _track(self, desired: DesiredState | None, seen: list[SeenReplica]) -> None:
        models = desired.models if desired is not None else {}
        targets: dict[str, Target] = {}
        keep: set[str] = set()
        for replica in seen:
            model = models.get(replica.id.model)
            if replica.phase is not Phase.RUNNING or replica.base_url is None:
                continue
            if model is None or not model.runs or replica.id.spec_hash != model.spec_hash:
                # How this one is probed is no longer declared; whether it serves and is idle still matters.
                keep.add(replica.name)
            if model is not None and model.runs:
                probe = ENGINES[model.backend].probe(model.definition)
                token, ready_since = self._operations.token(replica.name), self._ready.get(replica.name)
                targets[replica.name] = Target(replica.base_url, probe, token, ready_since)
        self._prober.track(targets, keep)
        self._remotes.track([model for model in models.values() if not model.runs and model.replicas])

    def _observed(self, seen: SeenReplica, now: float) -> ObservedReplica:
        vitals = self._prober.vitals(seen.name)
        drain = self._memory.drains.get(seen.name)
        draining = None
        if drain is not None:
            fresh = vitals.probed_at is not None and vitals.probed_at > drain.since
            idle = vitals.idle if fresh else None
            unsure = self._is_unsure(seen, now)
            empty = drained(seen.name, drain, self._hub.views, idle, now=now, unsure=unsure)
            draining = Draining(drain.since, empty)
            if empty is None:
                self._prober.nudge(seen.name)
        return ObservedReplica(
            id=seen.id,
            name=seen.name,
            phase=seen.phase,
            created_at=seen.created_at,
            started_at=seen.started_at,
            health=vitals.health,
            ready_since=vitals.ready_since or self._ready.get(seen.name),
            base_url=seen.base_url,
            claims=seen.claims,
            exit=self._exit(seen),
            draining=draining,
            image_id=seen.image_id,
            argv=seen.argv,
            context_length=vitals.context_length,
        )

    def _is_unsure(self, replica: SeenReplica | ObservedReplica, now: float) -> bool:
        """Whether gateways that an earlier controller told of it may not be back yet."""
        return replica.created_at < self._up_since and arriving(now, self._up_since)

    def _fractions(self, desired: DesiredState | None, replicas: Sequence[ObservedReplica]) -> Mapping[str, float]:
        if self._progress is None or desired is None:
            return {}
        wanted = ((replica.name, desired.models.get(replica.id.model), replica) for replica in replicas)
        self._progress.track(
            {
                name: ENGINES[want.backend]
                for name, want, replica in wanted
                if want is not None and starting(want, replica)
            }
        )
        return dict(self._progress.fractions)

    def _exit(self, seen: SeenReplica) -> Exit | None:
        if seen.exit is None or not seen.exit.log_tail:
            return seen.exit
        return replace(seen.exit, log_tail=self._conceal(seen.id.model, seen.exit.log_tail, seen.name))

    def _token(self, name: str) -> str | None:
        return self._remotes.token(name) if self._remotes.knows(name) else self._operations.token(name)

    def _pause(self) -> float:
        if self.error is not None:
            return min(RETRY_S, self._resync_s)
        now = self._clock()
        wakes = [self._desired.wake_at()]
        if arriving(now, self._up_since):
            wakes.append(self._up_since + ARRIVAL_S)
        if self.round is not None:
            wakes.append(self.round.plan.wake_at)
        soonest = min((wake - now for wake in wakes if wake is not None), default=self._resync_s)
        return max(SHORTEST_ROUND_S, min(soonest, self._resync_s))
