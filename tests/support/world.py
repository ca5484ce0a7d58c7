"""A simulated host for the plan, which applies actions as the real runtimes do, and simulated traffic on it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from controller.engines.stub import StubDefinition
from controller.hosts import HOST, Gpu, Host
from controller.planning.actions import Action, Drain, Plan, Preflight, PullImage, Remove, Start, Stop, Undrain
from controller.planning.backoff import next_failure
from controller.planning.plan import plan
from controller.state import (
    AttemptNumbers,
    DesiredModel,
    DesiredState,
    Draining,
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
    PullKey,
    ReplicaKey,
    Requirement,
    Statement,
)

HOST_FIELDS = {
    "gpus": "gpus",
    "unread_gpus": "unread_gpus",
    "unified_gpus": "unified_gpus",
    "host_mib": "memory_mib",
    "is_host_limited": "is_memory_limited",
}
"""Argument of `observe` to the field of `Host`."""


def observe(at: float, replicas: Iterable[ObservedReplica] = (), **fields: Any) -> ObservedState:
    """An observation of one host: `fields` of it, or of its host (`HOST_FIELDS`)."""
    host = Host(**{HOST_FIELDS[name]: fields.pop(name) for name in HOST_FIELDS.keys() & fields.keys()})
    return ObservedState(at, tuple(replicas), **{"hosts": (host,)} | fields)


def change_host(observed: ObservedState, **fields: Any) -> ObservedState:
    """The observation of one host with other `fields` of that host (`HOST_FIELDS`)."""
    changes = {HOST_FIELDS[name]: value for name, value in fields.items()}
    return replace(observed, hosts=(replace(observed.hosts[0], **changes),))


@dataclass
class World:
    """Replicas by name, and what the controller remembers about them."""

    desired: DesiredState
    now: float = 1_000.0
    replicas: dict[str, ObservedReplica] = field(default_factory=dict)
    pending: dict[str, PendingOp] = field(default_factory=dict)
    preflights: dict[PreflightKey, PreflightResult] = field(default_factory=dict)
    pulls: dict[PullKey, Failure | None] = field(default_factory=dict)
    failures: dict[ReplicaKey, Failure] = field(default_factory=dict)
    attempts: AttemptNumbers = field(default_factory=AttemptNumbers)
    loaded_once: frozenset[str] = frozenset()
    gpus: tuple[Gpu, ...] = ()
    host_mib: int | None = None
    traffic: dict[str, ModelTraffic] = field(default_factory=dict)
    requirements: dict[str, Requirement] = field(default_factory=dict)
    inside: dict[str, int | None] = field(default_factory=dict)
    """Replica to requests inside."""
    rested: dict[str, str] = field(default_factory=dict)
    """What was said of models that rest, by plans that were applied."""
    broken_specs: frozenset[str] = frozenset()
    """Spec hashes whose engines end right after their start."""

    def observed(self) -> ObservedState:
        """What one complete observation sees."""
        for replica in self.replicas.values():
            self.attempts = self.attempts.with_attempt(replica.id.key.text, replica.id.attempt)
        return ObservedState(
            at=self.now,
            replicas=tuple(self.replicas.values()),
            pending=dict(self.pending),
            preflights=dict(self.preflights),
            pulls=dict(self.pulls),
            failures=dict(self.failures),
            attempts=self.attempts,
            loaded_once=self.loaded_once,
            hosts=(Host(gpus=self.gpus, memory_mib=self.host_mib),),
            traffic=dict(self.traffic),
            requirements=dict(self.requirements),
            inflight={name: self.inside.get(name, 0) for name in self.replicas},
        )

    def plan(self) -> Plan:
        return plan(self.desired, self.observed(), self.now)

    def apply(self, actions: Iterable[Action]) -> None:
        """Carry actions out, at once."""
        for action in actions:
            self._apply(action)
        self.check_invariants()

    def _apply(self, action: Action) -> None:
        match action:
            case Preflight():
                self.preflights[PreflightKey(action.model, action.spec_hash, action.host)] = PreflightResult(
                    True, self.now
                )
            case PullImage():
                self.pulls.pop(PullKey(action.image, action.host), None)
            case Start():
                name = f"{action.id.model}-{action.id.index}-{action.id.spec_hash}-{action.id.attempt}"
                assert action.id.attempt > self.attempts.highest_of(action.id.key.text), f"{name} was used before"
                self.attempts = self.attempts.with_attempt(action.id.key.text, action.id.attempt)
                failure = self.failures.get(action.id.key)
                assert failure is None or not failure.must_wait(self.now), f"{name} starts before its backoff is over"
                self.replicas[name] = ObservedReplica(
                    action.id, name, Phase.RUNNING, self.now, self.now, claims=action.claims, base_url="http://x"
                )
            case Drain():
                self._known(action.name)
                self.replicas[action.name] = replace(self.replicas[action.name], draining=Draining(self.now, None))
            case Undrain():
                self.replicas[action.name] = replace(self.replicas[action.name], draining=None)
            case Stop() | Remove():
                self._known(action.name)
                replica = self.replicas.pop(action.name)
                if action.failure is not None:
                    ready_for = None if replica.ready_since is None else self.now - replica.ready_since
                    self.failures[replica.id.key] = next_failure(
                        self.failures.get(replica.id.key),
                        action.failure,
                        replica.id.attempt,
                        self.now,
                        ready_for_s=ready_for,
                    )

    def _known(self, name: str) -> None:
        assert name in self.replicas, f"{name} is not one of ours"

    def settle(self, plan_made: Plan) -> None:
        """Let time do its work: engines become ready or end, drains finish, operations end."""
        self.now += 1.0
        self._finish_pending()
        for name, replica in list(self.replicas.items()):
            if replica.phase is Phase.RUNNING and replica.id.spec_hash in self.broken_specs:
                self.replicas[name] = replace(replica, phase=Phase.EXITED)
            elif replica.phase is Phase.RUNNING and replica.health in (Health.STARTING, Health.FAILING):
                self.replicas[name] = replace(replica, health=Health.READY, ready_since=replica.ready_since or self.now)
            if replica.draining is not None:
                self.replicas[name] = replace(self.replicas[name], draining=replace(replica.draining, idle=True))
        if not plan_made.actions and plan_made.wake_at is not None:
            self.now = max(self.now, plan_made.wake_at)

    def converge(self) -> Plan:
        """Plan and apply until there is nothing left to do; the last plan."""
        for _ in range(200):
            current = self.plan()
            before = (dict(self.replicas), dict(self.pending))
            self.apply(current.actions)
            self.settle(current)
            if not current.actions and current.wake_at is None and before == (self.replicas, self.pending):
                return current
        raise AssertionError(f"no rest after 200 rounds; last plan: {self.plan()}")

    def check_invariants(self) -> None:
        """On no GPU do the claims of what is not seen gone exceed the memory."""
        claimed: dict[str, int] = {}
        for replica in self.replicas.values():
            if replica.phase is Phase.RUNNING:
                for uuid, mib in replica.claims.items():
                    claimed[uuid] = claimed.get(uuid, 0) + mib
        totals = {gpu.uuid: gpu.total_mib for gpu in self.gpus}
        if HOST in claimed:
            totals[HOST] = claimed[HOST] if self.host_mib is None else self.host_mib
        for uuid, mib in claimed.items():
            assert uuid in totals, f"a claim on {uuid}, which is not there"
            assert mib <= totals[uuid], f"{mib} MiB claimed of {totals[uuid]} on {uuid}"

    def _finish_pending(self) -> None:
        for name, operation in self.pending.items():
            replica = self.replicas.get(name)
            if replica is None:
                continue
            if operation.kind is not OpKind.START:
                del self.replicas[name]
            elif replica.phase is Phase.CREATED:
                self.replicas[name] = replace(replica, phase=Phase.RUNNING, started_at=self.now)
        self.pending.clear()


SLOTS = 2


def autoload(name: str, mib: int, **fields: object) -> DesiredModel:
    """A model that a request would load, and that takes so much main memory."""
    rest = Statement("file", 0.0, "autoload: no request asked for it yet")
    model = DesiredModel(name, StubDefinition(backend="stub"), "stub", "new", 0, rest, memory_mib=mib, autoload=True)
    return replace(model, demand_replicas=1, **fields)  # type: ignore[arg-type]


@dataclass
class TrafficSimulator:
    """Steps of one second: requests come, wait, are inside for a while and leave."""

    models: dict[str, DesiredModel]
    host_mib: int
    load_s: float = 3.0
    swap_wait_s: float = 10.0
    world: World = field(init=False)
    waiting: dict[str, deque[float]] = field(default_factory=dict)
    """Model to when each of its waiting requests came."""
    inside: dict[str, list[float]] = field(default_factory=dict)
    """Model to when each request that is inside will be done."""
    last_used: dict[str, float] = field(default_factory=dict)
    loads: Counter[str] = field(default_factory=Counter)
    evictions: list[str] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    longest_wait_s: float = 0.0

    def __post_init__(self) -> None:
        desired = DesiredState(1, dict(self.models), swap_wait_s=self.swap_wait_s)
        self.world = World(desired, host_mib=self.host_mib)

    def ask(self, model: str, count: int = 1) -> None:
        self.waiting.setdefault(model, deque()).extend([self.world.now] * count)

    def step(self, takes_s: float = 1.0) -> None:
        """One second: what is inside may finish, what waits may go in, the controller plans and acts."""
        now = self.world.now
        for name, until in self.inside.items():
            done = [each for each in until if each <= now]
            if done:
                self.inside[name] = [each for each in until if each > now]
                self.served[name] += len(done)
                self.last_used[name] = now
        self._admit(takes_s)
        self._tell()
        self._act()
        self.world.now += 1.0
        self._age()

    @property
    def quiet(self) -> bool:
        """Whether nobody waits, and nobody is inside."""
        return not any(self.waiting.values()) and not any(self.inside.values())

    def loaded(self) -> set[str]:
        """Models with an engine that serves."""
        serving = (each for each in self.world.replicas.values() if each.health is Health.READY)
        return {each.id.model for each in serving if each.draining is None}

    def _admit(self, takes_s: float) -> None:
        for name in self.loaded():
            queue, inside = self.waiting.get(name, deque()), self.inside.setdefault(name, [])
            while queue and len(inside) < SLOTS:
                self.longest_wait_s = max(self.longest_wait_s, self.world.now - queue.popleft())
                inside.append(self.world.now + takes_s)
                self.last_used[name] = self.world.now

    def _tell(self) -> None:
        names = self.world.desired.models
        queues = {name: self.waiting.get(name, deque()) for name in names}
        self.world.traffic = {
            name: ModelTraffic(len(queue), queue[0] if queue else None, self.last_used.get(name))
            for name, queue in queues.items()
        }
        self.world.inside = {
            replica.name: len(self.inside.get(replica.id.model, ())) for replica in self.world.replicas.values()
        }

    def _act(self) -> None:
        current = self.world.plan()
        for action in current.actions:
            if isinstance(action, Start):
                self.loads[action.id.model] += 1
            if isinstance(action, Stop):
                self._check_stop(action)
        self.world.apply(current.actions)
        models = dict(self.world.desired.models)
        for name in current.reload_requested:
            statement = Statement("autoload", self.world.now, "asked for")
            models[name] = replace(models[name], replicas=1, demand_replicas=0, statement=statement)
        for name, reason in current.evicted.items():
            statement = Statement("autoload", self.world.now, reason)
            models[name] = replace(models[name], replicas=0, demand_replicas=1, statement=statement)
        self.world.desired = replace(self.world.desired, models=models)
        self._check_says_why()

    def _check_stop(self, action: Stop) -> None:
        want, replica = self.models[action.id.model], self.world.replicas[action.name]
        assert not want.pinned, f"{action} is pinned"
        assert not self.inside.get(want.name), f"{action}: somebody is inside"
        assert replica.ready_since is not None, f"{action} loads"
        assert replica.draining is not None, f"{action} is routed to"
        stays = want.min_residency_s
        stays = min(60.0, replica.ready_since - (replica.started_at or 0.0)) if stays is None else stays
        assert replica.draining.since >= replica.ready_since + stays, f"{action} was loaded only just now"
        self.evictions.append(want.name)

    def _check_says_why(self) -> None:
        current = self.world.plan()
        assert current.desired is not None
        present = {replica.id.model for replica in self.world.replicas.values()}
        explained = {each.model for each in current.blocked} | {action.model for action in current.actions}
        for want in current.desired.models.values():
            assert not want.replicas or want.name in present | explained, (
                f"{want.name} is not there, and nobody says why"
            )

    def _age(self) -> None:
        now = self.world.now
        for name, seen in list(self.world.replicas.items()):
            replica, started = seen, seen.started_at or now
            if seen.health is Health.STARTING and seen.phase is Phase.RUNNING and now - started >= self.load_s:
                replica = replace(replica, health=Health.READY, ready_since=now)
            if seen.draining is not None:
                idle = not self.inside.get(seen.id.model)
                replica = replace(replica, draining=Draining(seen.draining.since, idle))
            self.world.replicas[name] = replica
