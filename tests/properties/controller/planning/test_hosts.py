"""Several hosts under generated sequences of silence, loss, return, drains, edits, kills, failing starts, slow ends."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest

from controller.engines.base import Verdict
from controller.engines.stub import StubDefinition
from controller.executor import OperationState
from controller.hosts import Gpu, Host, HostState, is_memory_key
from controller.model_status import is_routable
from controller.planning.actions import Drain, Preflight, Remove, Start, Stop, Undrain
from controller.planning.draining import DrainState
from controller.planning.hosts import is_silent, judge_hosts
from controller.planning.plan import plan
from controller.state import (
    DesiredModel,
    DesiredState,
    Draining,
    Exit,
    Health,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    PreflightKey,
    PreflightResult,
    Statement,
)
from tests.support.campaign import campaign_seeds

GPU_MIB, MEMORY_MIB, HEARTBEAT_S, LOST_S = 1_000, 2_000, 0.8, 15.0
MODELS = ("a", "b", "c", "d")


@dataclass
class Site:
    """Hosts with engines as they really are, and what the controller knows of them."""

    chance: random.Random
    now: float = 1_000.0
    gpu_counts: dict[str, int] = field(default_factory=dict)
    """Host to its number of GPUs."""
    away: set[str] = field(default_factory=set)
    """Hosts that do not answer."""
    drained: set[str] = field(default_factory=set)
    broken: set[tuple[str, str]] = field(default_factory=set)
    """Model and host where its starts fail."""
    models: dict[str, DesiredModel] = field(default_factory=dict)
    engines: dict[str, ObservedReplica] = field(default_factory=dict)
    """What really runs, by name."""
    ready_at: dict[str, float] = field(default_factory=dict)
    seen: dict[str, ObservedReplica] = field(default_factory=dict)
    """What the controller saw of each host last."""
    last_heard: dict[str, float] = field(default_factory=dict)
    hosts: tuple[Host, ...] = ()
    is_cut_off: bool = False
    memory: OperationState = field(default_factory=OperationState)
    ends: dict[str, tuple[float, str, OpKind]] = field(default_factory=dict)
    """Operation to when it ends, its host and its kind."""
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name in "xyzw"[: self.chance.randint(2, 4)]:
            self.gpu_counts[name] = self.chance.randint(1, 2)
        room = 2 * sum(self.gpu_counts.values())
        for name in MODELS:
            on_gpu, count = self.chance.random() < 0.5, self.chance.randint(1, 3)
            if on_gpu and count > room:
                continue
            room -= count if on_gpu else 0
            model = DesiredModel(
                name, StubDefinition(backend="stub"), "stub", "first", count, Statement("file", 0.0, "enabled")
            )
            sizes = {"gpu_count": 1, "vram_mib": 450} if on_gpu else {"memory_mib": 100}
            self.models[name] = replace(model, start_timeout_s=60.0, drain_timeout_s=5.0, **sizes)  # type: ignore[arg-type]

    # What happens to hosts

    def lose(self, host: str, *, with_engines: bool) -> None:
        self.away.add(host)
        self.done["away"] += 1
        if with_engines:
            self.engines = {name: each for name, each in self.engines.items() if each.host != host}

    def bring_back(self, host: str) -> None:
        self.away.discard(host)

    # The controller's round

    def step(self) -> None:
        """One second: what is under way ends, the controller observes, plans and acts."""
        self.now += 1.0
        for name, (until, host, kind) in list(self.ends.items()):
            if until <= self.now:
                del self.ends[name]
                if host not in self.away and kind is not OpKind.START:
                    self.engines.pop(name, None)
                    self.done[kind] += 1
                self.memory.finish_operation(name, self.now)
        self._let_engines_come()
        observed = self.observe()
        desired = DesiredState(1, dict(self.models))
        self.memory.prune_state(desired, observed.replicas, self.now)
        made = plan(desired, observed, self.now)
        states = {host.name: host.state for host in self.hosts}
        for action in made.actions:
            self._apply(action, observed, states)
        self.check(self.observe_again(observed))

    def observe(self) -> ObservedState:
        began_at = self.now
        heard = []
        for name, count in sorted(self.gpu_counts.items()):
            if name not in self.away:
                self.last_heard[name] = self.now
            last_heard = self.last_heard.setdefault(name, self.now)
            quiet = is_silent(last_heard, name in self.away, self.now, HEARTBEAT_S)
            gpus = tuple(Gpu(f"GPU-{name}{number}", number, "fake", GPU_MIB, host=name) for number in range(count))
            state = HostState.SILENT if quiet else HostState.READY
            heard.append(Host(name, state, last_heard=last_heard, gpus=gpus, memory_mib=MEMORY_MIB))
        before = {host.name: host for host in self.hosts}
        was_cut_off = self.is_cut_off
        self.hosts, self.is_cut_off = judge_hosts(heard, before, self.drained, self.now, lost_after_s=LOST_S)
        lost = [h for h in self.hosts if h.state is HostState.LOST and before[h.name].state is not HostState.LOST]
        assert len(lost) <= 1, "one host is lost at a time"
        assert not (self.is_cut_off and lost), "whoever is cut off declares nobody lost"
        self.done["lost"] += len(lost)
        self.done["cut off"] += self.is_cut_off and not was_cut_off
        for name in [name for name, each in self.seen.items() if each.host not in self.away]:
            del self.seen[name]
        self.seen |= {name: each for name, each in self.engines.items() if each.host not in self.away}
        self.memory.forget_finished(began_at, [each.name for each in self.hosts if each.state is HostState.SILENT])
        self.memory.note_attempts(each.id for each in self.seen.values())
        by_name = {host.name: host for host in self.hosts}
        replicas = tuple(self._as_seen(each, by_name[each.host]) for each in self.seen.values())
        observed = ObservedState(
            self.now, replicas, hosts=self.hosts, is_cut_off=self.is_cut_off, inflight=dict.fromkeys(self.seen, 0)
        )
        return self.memory.with_operations(observed)

    def _as_seen(self, replica: ObservedReplica, host: Host) -> ObservedReplica:
        silent: Literal["silent", "lost"] | None = None
        if not host.answers:
            silent = "silent" if host.state is HostState.SILENT else "lost"
        drain = self.memory.drains.get(replica.name)
        draining = None if drain is None else Draining(drain.since, True)
        return replace(replica, silent=silent, returned_at=host.reached_since, draining=draining)

    def observe_again(self, observed: ObservedState) -> ObservedState:
        """The observation with what was issued since."""
        by_name = {host.name: host for host in self.hosts}
        return replace(
            self.memory.with_operations(observed),
            replicas=tuple(self._as_seen(each, by_name[each.host]) for each in observed.replicas),
        )

    def _let_engines_come(self) -> None:
        for name, engine in list(self.engines.items()):
            if engine.phase is Phase.RUNNING and engine.ready_since is None and self.ready_at[name] <= self.now:
                if (engine.id.model, engine.host) in self.broken:
                    ended = replace(engine, phase=Phase.EXITED, exit=Exit(1, log_tail="boom"))
                    self.engines[name] = ended
                else:
                    self.engines[name] = replace(engine, health=Health.READY, ready_since=self.now)

    def _apply(self, action: object, observed: ObservedState, states: dict[str, HostState]) -> None:
        match action:
            case Preflight():
                key = PreflightKey(action.model, action.spec_hash, action.host)
                if action.host not in self.away:
                    self.memory.preflights[key] = PreflightResult(True, self.now)
            case Start():
                assert states[action.host] is HostState.READY, f"{action} on a host that is {states[action.host]}"
                held = [
                    each.name
                    for each in observed.replicas
                    if each.silent == "silent" and each.phase is Phase.RUNNING and each.id.key == action.id.key
                ]
                assert not held, f"{action} where {held} may serve"
                failure = self.memory.failures.get(replace(action.id.key, host=action.host))
                assert failure is None or not failure.must_wait(self.now), f"{action} before its backoff is over"
                highest = self.memory.attempts.highest_of(action.id.key.text)
                assert action.id.attempt > highest, "attempts never repeat over hosts"
                self.memory.note_attempts([action.id])
                name = f"{action.id.model}-{action.id.index}-{action.id.spec_hash}-{action.id.attempt}"
                operation = PendingOp(OpKind.START, action.id, action.claims, self.now, host=action.host)
                self.memory.begin_operation(name, operation)
                self.ends[name] = (self.now + self.chance.randint(1, 3), action.host, OpKind.START)
                engine = ObservedReplica(
                    action.id, name, Phase.RUNNING, self.now, self.now, base_url="x", claims=action.claims,
                    host=action.host,
                )  # fmt: skip
                self.ready_at[name] = self.now + self.chance.randint(1, 6)
                # What was asked of a host that does not answer may have been done all the same: it counts as done.
                self.seen[name] = engine
                if action.host not in self.away or self.chance.random() < 0.5:
                    self.engines[name] = engine
                if action.host in self.away:
                    self.memory.record_failure(action.id, Verdict("silent"), self.now, host=action.host)
            case Drain():
                self.memory.drains[action.name] = DrainState(self.now)
            case Undrain():
                self.memory.drains.pop(action.name, None)
            case Stop() | Remove():
                replica = next(each for each in observed.replicas if each.name == action.name)
                assert replica.silent is None, "nothing is done on a host that does not answer"
                if action.failure is not None:
                    self.memory.record_failure(action.id, action.failure, self.now, host=replica.host)
                kind = OpKind.STOP if isinstance(action, Stop) else OpKind.REMOVE
                self.memory.begin_operation(
                    action.name, PendingOp(kind, action.id, replica.claims, self.now, host=replica.host)
                )
                self.ends[action.name] = (self.now + self.chance.choice((0, 1, 6)), replica.host, kind)

    def check(self, observed: ObservedState) -> None:
        held: Counter[str] = Counter()
        for engine in self.engines.values():
            if engine.phase is Phase.RUNNING:
                held.update(engine.claims)
        assert all(mib <= (MEMORY_MIB if is_memory_key(key) else GPU_MIB) for key, mib in held.items()), held
        serving = Counter(
            (each.id.model, each.id.index)
            for each in observed.replicas
            if is_routable(each) and each.name not in self.memory.pending
        )
        assert all(count == 1 for count in serving.values()), f"two serve one index: {serving}"

    def rest(self, limit: int) -> int:
        """Let time pass until exactly what is declared serves; how many seconds that took."""
        wanted = {(model.name, index) for model in self.models.values() for index in range(model.replicas)}
        for seconds in range(limit):
            self.step()
            running = [each for each in self.engines.values() if each.ready_since is not None]
            current = {(e.id.model, e.id.index) for e in running if e.id.spec_hash == self.models[e.id.model].spec_hash}
            is_allowed = all(each.host not in self.drained for each in running)
            if len(running) == len(self.engines) == len(wanted) and current == wanted and is_allowed:
                return seconds
        raise AssertionError(f"no rest: {self.engines} {self.memory.failures} {self.plan_words()}")

    def plan_words(self) -> object:
        observed = self.observe()
        made = plan(DesiredState(1, dict(self.models)), observed, self.now)
        return made.actions, made.blocked, self.hosts


def run_sequence(seed: int, steps: int = 150) -> Counter[str]:
    """Let the hosts of one site live through a generated sequence, then all of them come back; what happened."""
    chance = random.Random(seed)
    site = Site(chance)
    for _ in range(steps):
        name = chance.choice(sorted(site.gpu_counts))
        if chance.random() < 0.06:
            site.lose(name, with_engines=chance.random() < 0.3)
        if chance.random() < 0.08:
            site.bring_back(name)
        if chance.random() < 0.03:
            site.drained ^= {name}
        if chance.random() < 0.03:
            site.broken ^= {(chance.choice(MODELS), name)}
        if chance.random() < 0.03:
            model = chance.choice(sorted(site.models))
            site.models[model] = replace(site.models[model], spec_hash=f"spec{site.now:g}")
        if chance.random() < 0.02 and site.engines:
            killed = chance.choice(sorted(site.engines))
            site.engines[killed] = replace(site.engines[killed], phase=Phase.EXITED, exit=Exit(1, log_tail="killed"))
        site.step()
    site.away.clear()
    site.drained.clear()
    site.broken.clear()
    site.done["rest"] = site.rest(900)
    return site.done


@pytest.mark.parametrize("seed", campaign_seeds(60, 10_000))
def test_host_sequences(seed: int) -> None:
    run_sequence(seed)
