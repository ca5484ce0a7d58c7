"""Sleep and wake under generated sequences of requests, kills, edits and full main memory, on a simulated host whose
engines hold memory as real ones do: at once when they come, late when they go."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from controller.hosts import HOST, Gpu, GpuProcess, Host
from controller.planning.actions import Drain, Preflight, PutToSleep, Remove, Start, Stop, Undrain, Wake
from controller.planning.backoff import next_failure
from controller.planning.plan import plan
from controller.state import (
    SLEEP_SETTLED_S,
    AttemptNumbers,
    DesiredModel,
    DesiredState,
    Draining,
    Exit,
    Failure,
    Health,
    ModelTraffic,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    PreflightKey,
    PreflightResult,
    ReplicaKey,
    Sleep,
    Statement,
    decide_asleep_claims,
    read_held_mib,
)
from tests.support.campaign import campaign_seeds
from tests.support.world import autoload

TOTAL, ASLEEP, WEIGHTS, AWAKE_HOST = 1_000, 25, 300, 100
NAMES = ("a", "b", "c", "d")
TAKES = {OpKind.START: 6, OpKind.STOP: 2, OpKind.REMOVE: 1, OpKind.SLEEP: 2, OpKind.WAKE: 1}
"""Steps of a second that operations take."""


@dataclass
class Engine:
    """What one engine really holds and does, as nobody but the driver sees it."""

    held: Counter[str]
    releases_at: float = 0.0
    """When the memory of its GPU is let go after it fell asleep."""
    is_right: bool = True
    """Whether it would answer its canary as before."""


@dataclass
class SleepyHost:
    """One host with two GPUs and four models, each of which can sleep."""

    chance: random.Random
    host_mib: int = 2_000
    now: float = 1_000.0
    models: dict[str, DesiredModel] = field(default_factory=dict)
    replicas: dict[str, ObservedReplica] = field(default_factory=dict)
    engines: dict[str, Engine] = field(default_factory=dict)
    operations: dict[str, tuple[PendingOp, float]] = field(default_factory=dict)
    finished: dict[str, PendingOp] = field(default_factory=dict)
    """Operations that ended since the last observation began: its pending ones still have them."""
    preflights: dict[PreflightKey, PreflightResult] = field(default_factory=dict)
    failures: dict[ReplicaKey, Failure] = field(default_factory=dict)
    attempts: AttemptNumbers = field(default_factory=AttemptNumbers)
    waiting: Counter[str] = field(default_factory=Counter)
    waits_since: dict[str, float] = field(default_factory=dict)
    last_used: dict[str, float] = field(default_factory=dict)
    evicted: dict[str, int] = field(default_factory=dict)
    left_at: dict[str, float] = field(default_factory=dict)
    proven: set[str] = field(default_factory=set)
    """Replicas that have answered their canary since they last slept."""
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name in NAMES:
            vram = self.chance.choice((400, 600, 900))
            model = replace(autoload(name, 0), memory_mib=AWAKE_HOST, gpu_count=1, vram_mib=vram, idle_ttl_s=60.0)
            self.models[name] = replace(model, min_residency_s=2.0, drain_ends=False)

    def observe(self) -> ObservedState:
        processes: dict[str, list[GpuProcess]] = {"GPU-0": [], "GPU-1": []}
        for number, (name, engine) in enumerate(self.engines.items()):
            for uuid, mib in engine.held.items():
                if uuid != HOST and mib:
                    processes[uuid].append(GpuProcess(100 + number, mib, "vllm", name))
        gpus = tuple(
            Gpu(uuid, number, "fake", TOTAL, sum(each.mib or 0 for each in found), processes=tuple(found))
            for number, (uuid, found) in enumerate(processes.items())
        )
        traffic = {
            name: ModelTraffic(self.waiting[name], self.waits_since.get(name), self.last_used.get(name))
            for name in NAMES
        }
        return ObservedState(
            at=self.now,
            replicas=tuple(self._seen(replica, gpus) for replica in self.replicas.values()),
            pending=self.finished | {name: operation for name, (operation, _) in self.operations.items()},
            preflights=dict(self.preflights),
            failures=dict(self.failures),
            attempts=self.attempts,
            hosts=(Host(gpus=gpus, memory_mib=self.host_mib),),
            traffic=traffic,
            left_at=dict(self.left_at),
            inflight=dict.fromkeys(self.replicas, 0),
        )

    def _seen(self, replica: ObservedReplica, gpus: tuple[Gpu, ...]) -> ObservedReplica:
        sleep = replica.sleep
        if sleep is None:
            return replica
        expected, measured = (
            decide_asleep_claims(
                sleep.awake_claims,
                expected_mib=expected_mib,
                held_mib=read_held_mib(replica.name, gpus),
                host_mib=AWAKE_HOST + WEIGHTS,
                keeps_weights=True,
            )
            for expected_mib in (ASLEEP, None)
        )
        asleep = expected if sleep.since is None else measured
        is_settled = sleep.since is None or self.now - sleep.since >= SLEEP_SETTLED_S
        rest = None if is_settled else expected
        # As the weights of an engine that has slept stay in main memory.
        has_slept = sleep.since is not None or sleep.woken_at is not None
        awake = {**sleep.awake_claims, HOST: asleep[HOST]} if has_slept else sleep.awake_claims
        claims = asleep if sleep.since is not None else awake
        sleep = replace(sleep, asleep_claims=asleep, awake_claims=awake, rest_claims=rest)
        return replace(replica, sleep=sleep, claims=claims)

    def step(self) -> None:
        """One second: what is under way ends, requests are served, the controller plans and acts."""
        self.now += 1.0
        self.finished.clear()
        for name, (operation, until) in list(self.operations.items()):
            if until <= self.now:
                del self.operations[name]
                self._finish(name, operation.kind)
                if self.chance.random() < 0.5:
                    self.finished[name] = replace(operation, finished_at=self.now)
        for name, engine in self.engines.items():
            replica = self.replicas[name]
            if replica.is_asleep and name not in self.operations and engine.releases_at <= self.now:
                engine.held.update({uuid: ASLEEP - mib for uuid, mib in engine.held.items() if uuid != HOST})
        self._serve()
        desired, observed = self.desired(), self.observe()
        made = plan(desired, observed, self.now)
        # An edited engine that serves or loads on keeps its room, and one that replaces it comes first.
        edited = {r.id.model for r in self.replicas.values() if r.id.spec_hash != self.models[r.id.model].spec_hash}
        starts = any(isinstance(action, Start) for action in made.actions)
        refused = [b for b in made.blocked if b.failed and b.retry_at is None and b.model not in edited and not starts]
        assert not refused, f"who has room once others leave is told that it has none: {refused}"
        for model in made.reload_requested:
            self._want(model, self.evicted.pop(model, 1))
        for model in made.evicted:
            self.evicted[model] = self.models[model].replicas or 1
            self.models[model] = replace(self.models[model], replicas=0, demand_replicas=self.evicted[model])
        for action in made.actions:
            self._apply(action)
        self.check()

    def desired(self) -> DesiredState:
        return DesiredState(1, dict(self.models), swap_wait_s=5.0)

    def ask(self, name: str) -> None:
        self.waiting[name] += 1
        self.waits_since.setdefault(name, self.now)
        if not self.models[name].replicas:
            self._want(name, 1)

    def kill(self, name: str) -> None:
        """An engine dies by itself."""
        if name in self.engines and name not in self.operations:
            del self.engines[name]
            self.replicas[name] = replace(self.replicas[name], phase=Phase.EXITED, exit=Exit(1, log_tail="boom"))

    def edit(self, name: str) -> None:
        self.models[name] = replace(self.models[name], spec_hash=f"spec{self.now:g}")

    def _want(self, name: str, replicas: int) -> None:
        self.evicted.pop(name, None)
        statement = Statement("autoload", self.now, "a request")
        self.models[name] = replace(self.models[name], replicas=replicas, demand_replicas=0, statement=statement)

    def _serve(self) -> None:
        for name, replica in self.replicas.items():
            model = replica.id.model
            is_open = name not in self.operations and replica.draining is None
            if is_open and replica.health is Health.READY and self.waiting[model]:
                assert name in self.proven, f"{name} answers before its canary"
                self.done[model] += self.waiting.pop(model)
                self.waits_since.pop(model)
                self.last_used[model] = self.now

    def _begin(self, name: str, kind: OpKind, replica: ObservedReplica, claims: dict[str, int]) -> None:
        assert name not in self.operations, f"{name} has an operation under way"
        until = self.now + TAKES[kind] + self.chance.randint(0, 2)
        self.operations[name] = (PendingOp(kind, replica.id, claims, self.now), until)

    def _apply(self, action: object) -> None:
        match action:
            case Preflight():
                self.preflights[PreflightKey(action.model, action.spec_hash, action.host)] = PreflightResult(
                    True, self.now
                )
            case Start():
                name = f"{action.id.model}-{action.id.index}-{action.id.spec_hash}-{action.id.attempt}"
                self.attempts = self.attempts.with_attempt(action.id.key.text, action.id.attempt)
                sleep = Sleep({}, action.claims)
                replica = ObservedReplica(
                    action.id, name, Phase.RUNNING, self.now, self.now, claims=action.claims, base_url="x", sleep=sleep
                )
                self.replicas[name], self.engines[name] = replica, Engine(Counter(action.claims))
                self._begin(name, OpKind.START, replica, dict(action.claims))
            case Drain():
                replica = self.replicas[action.name]
                self.replicas[action.name] = replace(replica, draining=Draining(self.now, True))
            case Undrain():
                self.replicas[action.name] = replace(self.replicas[action.name], draining=None)
            case Stop() | Remove():
                replica = self.replicas[action.name]
                if action.failure is not None:
                    key = replica.id.key
                    self.failures[key] = next_failure(
                        self.failures.get(key), action.failure, replica.id.attempt, self.now, ready_for_s=100.0
                    )
                kind = OpKind.STOP if isinstance(action, Stop) else OpKind.REMOVE
                self._begin(action.name, kind, replica, dict(replica.claims))
                self.done[f"stop asleep {replica.is_asleep}"] += 1
            case PutToSleep():
                self.proven.discard(action.name)
                replica = self.replicas[action.name]
                self.engines[action.name].held[HOST] = AWAKE_HOST + WEIGHTS
                self._begin(action.name, OpKind.SLEEP, replica, dict(action.claims))
            case Wake():
                replica = self.replicas[action.name]
                self.engines[action.name].held = Counter(action.claims)
                self._begin(action.name, OpKind.WAKE, replica, dict(action.claims))

    def _finish(self, name: str, kind: OpKind) -> None:
        replica, engine = self.replicas[name], self.engines.get(name)
        self.done[kind] += 1
        if kind in (OpKind.STOP, OpKind.REMOVE):
            del self.replicas[name]
            self.engines.pop(name, None)
            self.left_at.update(dict.fromkeys((uuid for uuid in replica.claims if uuid != HOST), self.now))
            return
        assert engine is not None, "it was not killed while something was under way"
        assert replica.sleep is not None, "every engine here can sleep"
        if kind is OpKind.SLEEP:
            sleep = replace(replica.sleep, since=self.now)
            self.replicas[name] = replace(replica, sleep=sleep, health=Health.SLEEPING, draining=None)
            engine.releases_at = self.now + self.chance.choice((0, 0, 3))
            self.left_at.update(dict.fromkeys((uuid for uuid in replica.claims if uuid != HOST), self.now))
        elif kind is OpKind.WAKE and not engine.is_right:
            self.replicas[name] = replace(replica, fault="it answers the canary otherwise")
        else:
            self.proven.add(name)
            woken_at = self.now if kind is OpKind.WAKE else None
            sleep = replace(replica.sleep, since=None, woken_at=woken_at, wake_s=1.0)
            ready_since = replica.ready_since or self.now
            self.replicas[name] = replace(
                replica, sleep=sleep, health=Health.READY, ready_since=ready_since, draining=None
            )

    def check(self) -> None:
        """What engines really hold never exceeds what is there; the same of what is claimed."""
        held: Counter[str] = Counter()
        for engine in self.engines.values():
            held.update(engine.held)
        totals = {"GPU-0": TOTAL, "GPU-1": TOTAL, HOST: self.host_mib}
        assert all(mib <= totals[key] for key, mib in held.items()), f"{held} of {totals}"
        by_index = Counter(
            (each.id.model, each.id.index)
            for name, each in self.replicas.items()
            if each.health is Health.READY and each.draining is None and name not in self.operations | self.finished
        )
        assert all(count == 1 for count in by_index.values()), f"two serve one index: {by_index}"


def run_sequence(seed: int, steps: int = 120) -> Counter[str]:
    """Let one host live through a generated sequence, then ask for each model once; what happened, counted."""
    chance = random.Random(seed)
    host = SleepyHost(chance, host_mib=chance.choice((500, 1_300, 2_500)))
    for _ in range(steps):
        if chance.random() < 0.25:
            host.ask(chance.choice(NAMES))
        if chance.random() < 0.01 and host.replicas:
            host.kill(chance.choice(sorted(host.replicas)))
        if chance.random() < 0.01:
            host.edit(chance.choice(NAMES))
        for engine in host.engines.values():
            engine.is_right = engine.is_right and chance.random() > 0.01
        host.step()
    _come_to_rest(host)
    return host.done


def _come_to_rest(host: SleepyHost) -> None:
    """Each model serves once more. Then nobody asks, and all of them sleep or end."""
    for engine in host.engines.values():
        engine.is_right = True
    for name in NAMES:
        before = host.done[name]
        host.ask(name)
        for _ in range(400):
            host.step()
            if host.done[name] > before:
                break
        assert host.done[name] > before, f"{name} is never served: {host.replicas} {host.failures}"
    for _ in range(200):
        host.step()
    assert all(each.is_asleep and each.fault is None for each in host.replicas.values()), host.replicas


@pytest.mark.parametrize("seed", campaign_seeds(60, 1_000))
def test_sleep_sequences(seed: int) -> None:
    run_sequence(seed)


def test_the_sequences_do_what_they_are_for() -> None:
    """They sleep, wake, fail to wake, and stop what sleeps for the room of others."""
    total: Counter[str] = Counter()
    for seed in range(1_000, 1_008):
        total += run_sequence(seed)
    assert total[OpKind.SLEEP] >= 30
    assert total[OpKind.WAKE] >= 8
    assert total["stop asleep True"] >= 5
