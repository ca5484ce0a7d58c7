"""One model's turn in one plan: what is known of the model, and what the plan decides for it so far. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controller.engines.base import Verdict
from controller.hosts import is_memory_key, memory_key
from controller.planning.actions import Action, Blocked, Drain, PutToSleep, Remove, Stop, Undrain
from controller.planning.backoff import verdict_of_exit
from controller.planning.classify import Buckets
from controller.planning.placement import ClaimLedger, find_shortage
from controller.state import DesiredModel, Failure, ObservedReplica, ObservedState, ReplicaKey

VANISHED_DRAIN_S: Final = 300.0
"""Drain deadline of a model that is no longer declared, whose own deadline is not known any more."""


@dataclass(slots=True)
class ModelTurn:
    """The part of one plan that concerns one model, declared or not: its inputs, and what was decided for it so far.

    `plan` creates one for each model and discards it with the plan. The methods carry nothing out: they add actions,
    blocked items and times to plan again. All turns of one plan share the ledger.
    """

    model: DesiredModel | None
    """None: the model is not declared."""
    observed: ObservedState
    ledger: ClaimLedger
    now: float
    preflight_recheck_s: float
    buckets: Buckets
    wait_reason: str | None = None
    """The room that the model waits for, in words; None: it need not wait for others to leave."""
    sleeping: frozenset[str] = frozenset()
    """Names of replicas that sleep on, or that go to sleep once they are empty."""
    waking: frozenset[str] = frozenset()
    """Names of sleeping replicas that are woken once there is room."""
    actions: list[Action] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    wake_times: list[float] = field(default_factory=list)
    failed_keys: set[ReplicaKey] = field(default_factory=set)
    """Keys whose failure this plan reports. Only the next plan knows when to try them again."""
    moving: Mapping[str, str] = field(default_factory=dict)
    """Names of replicas that must move to another host, to the reason."""
    checked_hosts: Sequence[str] = ()
    """Hosts, by name, on which the start of a model that waits for room must be checked; empty: any one."""

    def clear_replicas(self) -> None:
        """Add the actions that remove ended and half-created replicas, stop broken ones and ones that do not compute on
        their GPUs, retire surplus ones, and stop sleeping ones whose memory is needed. Failures are noted in
        `failed_keys`.

        Call it once.
        """
        for replica in self.buckets.ended:
            end = self._verdict_of_end(replica)
            self.actions.append(Remove(replica.id, replica.name, "ended", end))
            if end is not None:
                self.failed_keys.add(replica.failure_key)
        for replica in self.buckets.half_created:
            self.actions.append(Remove(replica.id, replica.name, "half-created, and nothing is creating it"))
        for replica, reason in self.buckets.broken:
            self._stop_now(Stop(replica.id, replica.name, reason, Verdict(reason)), replica)
        for replica, reason in self.buckets.off_gpu:
            self._stop_now(Stop(replica.id, replica.name, reason, Verdict(reason), served=False), replica)
        for replica in self.buckets.surplus:
            self.retire_replica(replica, self._surplus_reason())
        for replica in self.buckets.asleep.values():
            if replica.name not in self.sleeping | self.waking:
                self._stop(replica, "its memory is needed while it sleeps")
        unwanted = (each for each in self.buckets.silent if self.model is None or each.id.index >= self.model.replicas)
        self.blocked += [
            Blocked(each.id.model, each.id.index, f"it is stopped once host {each.host} answers again")
            for each in unwanted
        ]

    def _stop_now(self, stop: Stop, replica: ObservedReplica) -> None:
        """Stop a replica that has failed, whoever else loads or stops on its GPUs: it serves nobody, and its failure is
        reported. Nothing else is started on its GPUs until it is gone."""
        self.actions.append(stop)
        self.failed_keys.add(replica.failure_key)
        self._book_gpus(replica)

    def _book_gpus(self, replica: ObservedReplica) -> None:
        self.ledger.busy_replicas.update(
            dict.fromkeys((uuid for uuid in replica.claims if not is_memory_key(uuid)), replica.name)
        )

    def _verdict_of_end(self, replica: ObservedReplica) -> Verdict | None:
        if self.model is None or replica.exit is None or self.model.replicas == 0 or replica.draining is not None:
            return None
        return verdict_of_exit(self.model.backend, replica.exit, was_ready=replica.ready_since is not None)

    def _surplus_reason(self) -> str:
        if self.model is None:
            return "the model is no longer declared"
        if not self.model.runs:
            return "the model is served elsewhere now"
        return f"unloaded: {self.model.statement.reason}" if self.model.replicas == 0 else "more replicas than declared"

    def retire_replica(self, replica: ObservedReplica, reason: str) -> None:
        """Add the next step of retiring a replica: drain it, then stop it once it is empty or its deadline has passed.

        While the drain goes on, note the deadline in `wake_times`; the drain of an operator's unload has none. A
        replica that was never ready, or sleeps, is stopped without a drain, since no request is routed to it. An empty
        one among `sleeping` is put to sleep, not stopped. A stop or sleep that is due while another replica loads or
        stops on one of its GPUs is noted in `blocked` instead.
        """
        draining = replica.draining
        deadline = self._drain_deadline(self.now if draining is None else draining.since)
        if replica.ready_since is None or replica.is_asleep:
            self._stop(replica, reason)
        elif draining is None:
            self.actions.append(Drain(replica.id, replica.name, reason, deadline))
        elif draining.idle and replica.name in self.sleeping:
            self._put_to_sleep(replica, f"{reason}; drained")
        elif draining.idle:
            self._stop(replica, f"{reason}; drained")
        elif deadline is not None and self.now >= deadline:
            self._stop(replica, f"{reason}; its drain deadline has passed")
        elif deadline is not None:
            self.wake_times.append(deadline)

    def retire_current(self, reason: str) -> None:
        """Add the next step of retiring every observed replica that runs the declared definition: a drain, then a stop
        once the replica is empty or its deadline has passed. See `retire_replica`."""
        for current in self.buckets.current.values():
            if current is not None:
                self.retire_replica(current, reason)

    def _stop(self, replica: ObservedReplica, reason: str) -> None:
        self._end(replica, Stop(replica.id, replica.name, reason), "stopped")

    def _put_to_sleep(self, replica: ObservedReplica, reason: str) -> None:
        """Put an empty replica to sleep, once main memory holds what it then takes of it. The memory of its GPUs is
        theirs until the sleep has ended."""
        assert replica.sleep is not None, "only those that can sleep are among `sleeping`"
        claims = replica.sleep.changing_claims
        memory = memory_key(replica.host)
        rise = {memory: claims.get(memory, 0) - replica.claims.get(memory, 0)}
        if (shortage := find_shortage(rise, self.observed, self.ledger)) is not None:
            self.blocked.append(Blocked(replica.id.model, replica.id.index, f"its sleep waits for room: {shortage}"))
        elif self._end(replica, PutToSleep(replica.id, replica.name, reason, claims), "put to sleep"):
            self.ledger.add_claims(rise)

    def _end(self, replica: ObservedReplica, action: Stop | PutToSleep, word: str) -> bool:
        """Add the action, unless another replica loads or stops on the GPUs: engines measure what memory is free then.
        Return whether it was added."""
        busy_replica = self.ledger.find_busy_neighbour(replica)
        if busy_replica is None:
            self.actions.append(action)
            self._book_gpus(replica)
        else:
            wait_reason = f"it is {word} once {busy_replica} is done on its GPU"
            self.blocked.append(Blocked(replica.id.model, replica.id.index, wait_reason))
        return busy_replica is None

    def _drain_deadline(self, since: float) -> float | None:
        """None: an operator's unload, which waits as long as it takes."""
        if self.model is None:
            return since + VANISHED_DRAIN_S
        if self.model.replicas == 0 and not self.model.drain_ends:
            return None
        return since + self.model.drain_timeout_s

    def undrain_replica(self, replica: ObservedReplica, reason: str) -> None:
        """Add the action that ends a replica's drain; do nothing if it is not being drained."""
        if replica.draining is not None:
            self.actions.append(Undrain(replica.id, replica.name, reason))

    def add_once(self, action: Action) -> None:
        """Add an action unless an equal one is among this turn's actions already."""
        if action not in self.actions:
            self.actions.append(action)

    def add_failure(self, index: int, failure: Failure) -> None:
        """Note in `blocked` that a failure keeps the replica at `index` of the declared model from starting, until its
        retry."""
        self.add_blocked(index, failure.error, failure.retry_at, failed=True, plain=failure.plain)

    def add_blocked(
        self, index: int, reason: str, retry_at: float | None, *, failed: bool = False, plain: str | None = None
    ) -> None:
        """Note in `blocked` what keeps the replica at `index` of the declared model from starting.

        `retry_at`: Unix time to plan again, also noted in `wake_times`; None: not known. `failed`: nothing that is
        under way now will change it, though a retry may be due at `retry_at`; the model's state is `failed` then, with
        `reason` as its error. False: the replica waits for something that is under way. `plain`: see `Blocked`.
        """
        name = self.model.name if self.model is not None else ""
        self.blocked.append(Blocked(name, index, reason, failed, retry_at, plain))
        if retry_at is not None:
            self.wake_times.append(retry_at)
