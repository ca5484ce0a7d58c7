"""Who may go into which replica now, who waits, in which order, and who is refused. Pure: `now` is monotonic seconds.

Whatever may make room answers with `Grant`s: whoever can go in now. They are inside already, so the caller must hand
them on, or leave for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint, ModelRoute
from gateway.admission.circuit_breaker import CircuitBreaker
from gateway.admission.model_queue import ModelQueue
from gateway.admission.replica_slots import ReplicaSlots
from gateway.admission.retry_state import MAX_BREAKS, NO_RETRIES, RetryState
from gateway.admission.ticket import Grant, Queue, QueuePlace, Slots, Ticket
from gateway.admission.token_pool import NEVER
from gateway.routing.table import Routes

__all__ = ["Admission", "Grant", "QueuePlace", "Ticket"]

_NOBODY: Final[Sequence[Grant]] = ()


class Admission:
    """The slots of all replicas, and the queue before each model.

    Invariant: those inside a replica take at most `target_inflight` slots, unless a new table lowered that; and nobody
    waits who could go in, except for a trial that came due since the last call (see `admit_trials`), for a replica that
    is kept for one that needs more of it than is free, and behind 64 others.
    """

    def __init__(self, queue_limit: int | None) -> None:
        """`queue_limit`: requests that may wait for each replica of a model that does not say; None:
        `QUEUE_LIMIT_PER_SLOT` for each of its slots."""
        self._queue_limit = queue_limit
        self._queues: dict[str, ModelQueue] = {}
        self._replicas: dict[str, ReplicaSlots] = {}
        self.depths: dict[str, int] = {}
        """Model to tickets that wait; never holds a zero. Always the same object, and not to be changed."""

    def apply_table(self, routes: Routes, now: float) -> Sequence[Grant]:
        """A new routing table is in force. Call it before anything arrives under it.

        Who waits for a model that is gone, or is not being loaded, waits on: see `waiting`.
        """
        for replica in self._replicas.values():
            replica.is_routed = False
        for route in routes.models.values():
            queue = self._queues.setdefault(route.name, ModelQueue(route.name, self.depths))
            queue.apply_route(
                route, [self._route_replica(endpoint, queue) for endpoint in route.endpoints], self._queue_limit
            )
        for queue in self._queues.values():
            if queue.model not in routes.models:
                queue.apply_route(None, (), self._queue_limit)
        for replica in list(self._replicas.values()):
            self._forget_if_gone(replica)
        for queue in list(self._queues.values()):
            self._forget_if_empty(queue)
        return self.admit_trials(now)

    def admit_ticket(self, ticket: Ticket, route: ModelRoute, now: float) -> Endpoint | None:
        """`ticket` comes, for a model of the table in force. The replica it is inside from now on; None: it waits.

        Either way it must `leave` some time. `ticket.place` says where it stands.

        Raises:
            RoundhouseError: `queue_full`, or `engine_unreachable` where the model is loaded and no replica is to be
                had. The ticket is still new; with `queue_full` it has its `place`.
        """
        assert ticket.state == "new"
        ticket.queue = queue = self._queues[route.name]
        return queue.admit_ticket(ticket, now)

    def release_ticket(self, ticket: Ticket, now: float) -> Sequence[Grant]:
        """`ticket` is done, or its client is gone: wherever it is, it is nowhere now. Harmless when repeated."""
        state = ticket.state
        if state == "inside":
            ticket.state = "gone"
            queue = ticket.queue
            queue.release_ticket(ticket, now)
            if not ticket.replica.is_routed:
                self._forget_if_gone(ticket.replica)
                self._forget_if_empty(queue)
            return queue.serve_queue(now) if queue.fair_queue.waiting_count else _NOBODY
        if state == "waiting":
            ticket.queue.drop_ticket(ticket)
            self._forget_if_empty(ticket.queue)
        ticket.state = "gone"
        return _NOBODY

    def retry_ticket(self, ticket: Ticket, now: float, *, is_refused: bool) -> tuple[Endpoint | None, Sequence[Grant]]:
        """The try failed before the first byte: the ticket gives up its slot, and its next endpoint is answered.

        None: none has room, or the model is being loaded anew, so it waits, in front of its tenant's others. The grants
        are those of others. `is_refused`: the replica did not accept the connection; else it accepted and closed it.
        Call `failed` first.
        The next try must open a connection of its own where one has broken: a second stale one would prove nothing.

        Raises:
            RoundhouseError: `engine_unreachable`: nothing is left to try. The ticket has its slot until it leaves.
        """
        assert ticket.state == "inside"
        queue, replica = ticket.queue, ticket.replica
        retries, name = ticket.retries, replica.endpoint.replica
        ticket.retries = retries.after_refusal(name) if is_refused else retries.after_break(name)
        if ticket.retries.break_count >= MAX_BREAKS or (
            queue.is_loaded and not queue.replicas_left(ticket.retries, now)
        ):
            raise queue.explain_unreachable(ticket.retries, now)
        return self._requeue(ticket, now)

    def preempt_ticket(self, ticket: Ticket, now: float, *, by_engine: bool) -> tuple[Endpoint | None, Sequence[Grant]]:
        """It has to give its tokens back, before any part of its answer was sent: its next endpoint, as of
        `retry_ticket`, where it claims more than it had. `by_engine`: the engine itself found no room.

        Raises:
            RoundhouseError: `kv_cache_exhausted`: its engine's tokens are not known, or it had all of them. The ticket
                has its slot until it leaves.
        """
        assert ticket.state == "inside"
        pool, claim = ticket.replica.token_pool, ticket.claim
        if by_engine and (pool is None or claim is None or pool.is_whole(claim)):
            raise cache_exhausted_error(ticket.model)
        if claim is not None:
            claim.raise_claim()
        return self._requeue(ticket, now)

    def begin_answer(self, ticket: Ticket, *, is_counted: bool) -> int:
        """See `TokenPool.begin_answer`."""
        pool = ticket.replica.token_pool
        return NEVER if pool is None else pool.begin_answer(ticket, is_counted=is_counted)

    def extend_answer(
        self, ticket: Ticket, answered: int, can_resend: Callable[[Ticket], bool]
    ) -> tuple[int, list[Ticket]]:
        """See `TokenPool.extend`. Who must leave is to be preempted, or ended, by the caller."""
        pool = ticket.replica.token_pool
        return (NEVER, []) if pool is None else pool.extend(ticket, answered, can_resend)

    def record_usage(self, ticket: Ticket, prompt_tokens: int, answer_tokens: int) -> None:
        """The engine counted the request, which is inside."""
        if ticket.claim is not None and ticket.replica.token_pool is not None:
            ticket.queue.token_estimator.record_usage(ticket.claim.demand, prompt_tokens, answer_tokens)

    def record_overrun(self, ticket: Ticket, now: float) -> None:
        """The engine of the request, which is inside, found no room in its cache."""
        ticket.queue.token_estimator.record_overrun(now)

    def _requeue(self, ticket: Ticket, now: float) -> tuple[Endpoint | None, list[Grant]]:
        queue, replica = ticket.queue, ticket.replica
        queue.release_ticket(ticket, now)
        queue.requeue_ticket(ticket)
        self._forget_if_gone(replica)
        grants = queue.serve_queue(now)
        for number, (granted_ticket, endpoint) in enumerate(grants):
            if granted_ticket is ticket and isinstance(endpoint, Endpoint):
                del grants[number]
                return endpoint, grants
        return None, grants

    def has_other_replica(self, model: str, replica: str, now: float) -> bool:
        """Whether `model` has a routed replica other than `replica` that is not left out; it may be full."""
        queue = self._queues.get(model)
        return queue is not None and queue.has_other_replica(replica, now)

    def choose_replica(self, route: ModelRoute, now: float, retries: RetryState = NO_RETRIES) -> Endpoint:
        """The replica for a request that takes no slot and has met `retries`: the one with the least inside.

        Raises:
            RoundhouseError: `engine_unreachable`.
        """
        return self._queues[route.name].choose_replica(now, retries)

    def record_failure(self, replica: str, now: float) -> Sequence[Grant]:
        """A connection to `replica` failed: was refused, broke, spoke garbage or ended within an answer.

        Call it before `again` or `leave`. The grants are those for whom nothing is left to try.
        """
        slots = self._replicas.get(replica)
        if slots is None:
            return _NOBODY
        if slots.breaker is None:
            slots.breaker = CircuitBreaker()
        slots.breaker.record_failure(now)
        slots.queue.update_broken_count()
        return slots.queue.serve_queue(now)

    def record_answer(self, replica: str, now: float) -> Sequence[Grant]:
        """The first byte of an answer came from `replica`: it is well, whatever was seen of it before."""
        slots = self._replicas.get(replica)
        if slots is None or slots.breaker is None:
            return _NOBODY
        slots.breaker = None
        slots.queue.update_broken_count()
        return slots.queue.serve_queue(now)

    def admit_trials(self, now: float) -> Sequence[Grant]:
        """Time has passed: a replica that was left out may be due for a trial. To be called about every second."""
        return [
            grant
            for queue in self._queues.values()
            if queue.fair_queue.waiting_count
            for grant in queue.serve_queue(now)
        ]

    def waiting_tickets(self, model: str) -> list[Ticket]:
        """Who waits for `model`, in the order in which they would go."""
        queue = self._queues.get(model)
        return queue.waiting_tickets() if queue else []

    @property
    def slots_in_use(self) -> dict[str, int]:
        """Replica to tickets inside, those that left the table included; never holds a zero."""
        return {name: replica.inflight for name, replica in self._replicas.items() if replica.inflight}

    @property
    def slots_in_use_by_model(self) -> dict[str, int]:
        """Model to tickets inside; never holds a zero."""
        return {queue.model: queue.inflight for queue in self._queues.values() if queue.inflight}

    def __repr__(self) -> str:
        return f"Admission({'; '.join(map(self._describe_queue, self._queues.values()))})"

    def _describe_queue(self, queue: ModelQueue) -> str:
        parts = [_describe_replica(replica, queue.target) for replica in queue.replicas]
        leaving_replicas = (each for each in self._replicas.values() if each.queue is queue and not each.is_routed)
        parts += [_describe_replica(replica, queue.target) for replica in leaving_replicas]
        waiting_text = " ".join(
            f"{tenant} {count}" for tenant, count in sorted(queue.fair_queue.waiting_by_tenant().items())
        )
        if waiting_text:
            parts.append(f"waiting {waiting_text}")
        return f"{queue.model}: {', '.join(parts)}" if parts else queue.model

    def _route_replica(self, endpoint: Endpoint, queue: ModelQueue) -> ReplicaSlots:
        replica = self._replicas.get(endpoint.replica)
        if replica is None:
            replica = self._replicas[endpoint.replica] = ReplicaSlots(endpoint, queue)
        replica.apply_endpoint(endpoint)
        replica.queue = queue
        replica.is_routed = True
        return replica

    def _forget_if_gone(self, replica: Slots) -> None:
        if not replica.is_routed and not replica.inflight:
            self._replicas.pop(replica.endpoint.replica, None)

    def _forget_if_empty(self, queue: Queue) -> None:
        if not queue.is_routed and not queue.inflight and not queue.fair_queue.waiting_count:
            self._queues.pop(queue.model, None)


def _describe_replica(replica: ReplicaSlots, target: int) -> str:
    text = f"{replica.endpoint.replica} {replica.inflight}"
    if not replica.is_routed:
        return f"{text} leaving"
    is_left_out = replica.breaker is not None and replica.breaker.is_open
    tokens = "" if replica.token_pool is None else f" ({replica.token_pool!r})"
    return f"{text}/{target}{tokens}{' left out' if is_left_out else ''}"


def cache_exhausted_error(model: str) -> RoundhouseError:
    """What a request is told that ends because its engine has no room for it beside the others."""
    message = f"The KV cache of the engine of {model!r} is full: it has no room for this request beside the others."
    return RoundhouseError("kv_cache_exhausted", message)
