"""A simulated host for the plan: it applies actions as the real runtimes do, without a process or a container."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from controller.gpus import Gpu
from controller.planning.actions import Action, Drain, Plan, Preflight, PullImage, Remove, Start, Stop, Undrain
from controller.planning.backoff import next_failure
from controller.planning.plan import plan
from controller.schema.attempts import AttemptNumbers
from controller.state import (
    HOST,
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
    PreflightResult,
    ReplicaKey,
    Requirement,
)


@dataclass
class World:
    """Replicas by name, and what the controller remembers about them."""

    desired: DesiredState
    now: float = 1_000.0
    replicas: dict[str, ObservedReplica] = field(default_factory=dict)
    pending: dict[str, PendingOp] = field(default_factory=dict)
    preflights: dict[tuple[str, str], PreflightResult] = field(default_factory=dict)
    pulls: dict[str, Failure | None] = field(default_factory=dict)
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
            gpus=self.gpus,
            host_mib=self.host_mib,
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
                self.preflights[action.model, action.spec_hash] = PreflightResult(True, self.now)
            case PullImage():
                self.pulls.pop(action.image, None)
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

    def converge(self, rounds: int = 200) -> Plan:
        """Plan and apply until there is nothing left to do; the last plan."""
        for _ in range(rounds):
            made = self.plan()
            before = (dict(self.replicas), dict(self.pending))
            self.apply(made.actions)
            self.settle(made)
            if not made.actions and made.wake_at is None and before == (self.replicas, self.pending):
                return made
        raise AssertionError(f"no rest after {rounds} rounds; last plan: {self.plan()}")

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
