"""Admission of requests to replicas: who enters now, who waits, in what order, and who is refused. Pure.

A ticket is inside a replica while it holds slots there. Methods that may free room return `Grant`s for tickets that
waited. A granted ticket is inside already, so the caller must pass the grant to the ticket's owner or release the
ticket. `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from contract.errors import RoundhouseError
from contract.routing import Endpoint, ModelRoute
from gateway.admission.circuit_breaker import CircuitBreaker
from gateway.admission.fair_queue import ModelQueue
from gateway.admission.ticket import MAX_BREAKS, NO_RETRIES, Grant, QueuePlace, ReplicaSlots, RetryState, Ticket
from gateway.admission.token_pool import NEVER
from gateway.routing.table import Routes

_NOBODY: Final[Sequence[Grant]] = ()


class Admission:
    """Decides for each request whether it enters a replica, waits or is refused. One per gateway.

    It holds the slots of all replicas, and one queue per model. In all methods, `now` is monotonic seconds, and the
    caller must pass each returned grant to its ticket's owner or release the ticket.

    Invariant: the requests inside a replica hold at most `target_inflight` slots, unless a new table lowered that
    number. No ticket waits that could enter, with these exceptions: a circuit breaker's trial became due since the last
    call (see `admit_trials`); a replica is kept for a request that needs more of it than is free; a turn of a session
    waits for its home; the first `MOST_LOOKS` (64) tickets of the queue do not fit, and one behind them would.
    """

    def __init__(self, queue_limit: int | None) -> None:
        """`queue_limit`: requests that may wait per replica of a model that declares no limit of its own; None:
        `QUEUE_LIMIT_PER_SLOT` per slot."""
        self._queue_limit = queue_limit
        self._queues: dict[str, ModelQueue] = {}
        self._replicas: dict[str, ReplicaSlots] = {}
        self.depths: dict[str, int] = {}
        """Number of waiting tickets by model name; absent if none. Always the same object; read-only for others."""

    def apply_table(self, routes: Routes, now: float) -> Sequence[Grant]:
        """Adopt a new routing table, before requests are admitted under it.

        Returns grants for the waiting tickets that enter now, and grants with an error for those of a loaded model that
        have no replica left to try. Tickets keep waiting when their model has left the table or is no longer loaded:
        release those that `waiting_tickets` lists, if they should not wait. Pass each grant to its ticket's owner.
        Tickets inside a replica that left the table stay inside. `now`: monotonic seconds.
        """
        for replica in self._replicas.values():
            replica.is_routed = False
        for route in routes.models.values():
            queue = self._queues.setdefault(route.name, ModelQueue(route.name, self.depths))
            queue.apply_route(
                route, [self._route_replica(endpoint, route.name) for endpoint in route.endpoints], self._queue_limit
            )
        for queue in self._queues.values():
            if queue.model not in routes.models:
                queue.apply_route(None, (), self._queue_limit)
        for replica in list(self._replicas.values()):
            self._forget_if_gone(replica)
        for queue in list(self._queues.values()):
            self._forget_if_empty(queue)
        return self.admit_trials(now)

    def admit_ticket(self, ticket: Ticket, now: float) -> Endpoint | None:
        """Admit or queue a new request. `now`: monotonic seconds.

        Returns the endpoint whose slot the ticket now holds; None means queued, and a later `Grant` holds the endpoint
        or an error. Call `release_ticket` once either way. Sets `ticket.place`.

        Raises:
            RoundhouseError: `queue_full` (`ticket.place` is set), or `engine_unreachable` if the model is loaded and no
                replica accepts requests. The ticket stays new.
            KeyError: the model is neither in the table in force nor has tickets left from an earlier one.
            AssertionError: the ticket is not new.
        """
        assert ticket.state == "new"
        return self._queues[ticket.model].admit_ticket(ticket, now)

    def release_ticket(self, ticket: Ticket, now: float) -> Sequence[Grant]:
        """Give back the ticket's slots, or remove it from the queue.

        Returns grants for tickets that waited; pass them to the tickets' owners. They are for tickets that enter now,
        or hold an error for those that have no replica left to try. If `ticket` waited, there are grants only if a
        replica may have been kept for it. Call when the request is done or its client is gone. Repeated calls, and
        calls for a ticket that was refused or that a grant with an error has removed, change nothing and return no
        grants. `now`: monotonic seconds.
        """
        state = ticket.state
        if state == "inside":
            ticket.state = "gone"
            queue = self._queues[ticket.model]
            queue.release_ticket(ticket, now)
            if not ticket.replica.is_routed:
                self._forget_if_gone(ticket.replica)
                self._forget_if_empty(queue)
            return queue.serve_queue(now) if queue.fair_queue.waiting_count else _NOBODY
        if state == "waiting":
            queue = self._queues[ticket.model]
            queue.drop_ticket(ticket)
            self._forget_if_empty(queue)
            if ticket.blocked_at is not None and queue.fair_queue.waiting_count:
                return queue.serve_queue(now)
        ticket.state = "gone"
        return _NOBODY

    def retry_ticket(self, ticket: Ticket, now: float, *, is_refused: bool) -> tuple[Endpoint | None, Sequence[Grant]]:
        """Move a ticket whose attempt failed before the first byte: release its slot and admit it elsewhere.

        Returns the next endpoint, whose slot the ticket holds, and grants for other tickets, which the caller passes to
        the tickets' owners. Endpoint None means that the ticket waits for a grant, in front of its tenant's other
        tickets: no replica has room, or the model is loading again. `now`: monotonic seconds. `is_refused`: the replica
        refused the connection; False: the replica accepted the connection and closed it. Call `record_failure` first.
        After a broken connection, open a new one for the next attempt: another stale one would prove nothing.

        Raises:
            RoundhouseError: `engine_unreachable` if no replica is left to try, or `MAX_BREAKS` attempts of the ticket
                ended in a broken connection. The ticket keeps its slot until `release_ticket`.
            AssertionError: the ticket is not inside a replica.
        """
        assert ticket.state == "inside"
        queue, replica = self._queues[ticket.model], ticket.replica
        retries, name = ticket.retries, replica.endpoint.replica
        ticket.retries = retries.after_refusal(name) if is_refused else retries.after_break(name)
        if ticket.retries.break_count >= MAX_BREAKS or (
            queue.is_loaded and not queue.replicas_left(ticket.retries, now)
        ):
            raise queue.explain_unreachable(ticket.retries, now)
        return self.readmit_ticket(ticket, now)

    def preempt_ticket(self, ticket: Ticket, now: float, *, by_engine: bool) -> tuple[Endpoint | None, Sequence[Grant]]:
        """Take back the slot and KV cache tokens of a ticket that is inside, and admit it again with a larger claim.

        Call only while no part of the answer has been sent to the client. Returns what `retry_ticket` returns: the next
        endpoint (None: the ticket waits, or the grants hold its error), and grants, which the caller passes to the
        tickets' owners. `now`: monotonic seconds. `by_engine`: the engine reported that its KV cache is full; False:
        another request needs the tokens.

        Raises:
            RoundhouseError: `kv_cache_exhausted` if the engine reported it and its number of tokens is unknown or the
                ticket had all of them. The ticket keeps its slot until `release_ticket`.
            AssertionError: the ticket is not inside a replica.
        """
        assert ticket.state == "inside"
        pool, claim = ticket.replica.token_pool, ticket.claim
        if by_engine and (pool is None or claim is None or pool.is_whole(claim)):
            raise cache_exhausted_error(ticket.model)
        if claim is not None:
            claim.raise_claim()
        return self.readmit_ticket(ticket, now)

    def begin_answer(self, ticket: Ticket, *, is_counted: bool) -> int:
        """Return after how many events of the answer, from its start, to call `extend_answer`; `NEVER`: do not call it.

        `NEVER` means that the replica's tokens are not counted, or that the tokens reserved for the ticket are final.
        Call when the request is sent to the replica that the ticket is inside; again after each retry. `is_counted`:
        the caller counts the answer's events, about one per token; False: all reserved tokens are granted at once and
        are final.
        """
        pool = ticket.replica.token_pool
        return NEVER if pool is None else pool.begin_answer(ticket, is_counted=is_counted)

    def extend_answer(
        self, ticket: Ticket, answered: int, can_resend: Callable[[Ticket], bool]
    ) -> tuple[int, list[Ticket]]:
        """Grant more tokens to the answer of a ticket inside that has `answered` events so far and goes on; see
        `TokenPool.extend`.

        Returns after how many events of the answer, from its start, to call again (`NEVER`: not at all), and the
        tickets, possibly `ticket` itself, that the caller must preempt (`preempt_ticket`) or end (`release_ticket`)
        because the cache is full. `can_resend`: returns whether a ticket's request can be sent again without its client
        noticing.
        """
        pool = ticket.replica.token_pool
        return (NEVER, []) if pool is None else pool.extend(ticket, answered, can_resend)

    def record_usage(self, ticket: Ticket, prompt_tokens: int, answer_tokens: int) -> None:
        """Learn from the token counts that the engine reported for a ticket. Call before its `release_ticket`.

        Does nothing if tokens are not counted for the ticket or its replica. The ticket must have been inside a
        replica. `answer_tokens`: of all answers to the request together.
        """
        if ticket.claim is not None and ticket.replica.token_pool is not None:
            self._queues[ticket.model].token_estimator.record_usage(ticket.claim.demand, prompt_tokens, answer_tokens)

    def record_prompt(self, ticket: Ticket, tokens: int, seconds: float) -> None:
        """Record that the engine took `seconds` from the request to the first token of a session's turn, to learn its
        pace.

        `ticket`: that of the turn, still inside. `tokens`: tokens of its prompt that were not cached; samples of fewer
        than 128 are ignored.
        """
        self._queues[ticket.model].sessions.prefill_pace.record_prompt(tokens, seconds)

    def record_overrun(self, ticket: Ticket, now: float) -> None:
        """Raise the token estimates of the ticket's model, because the engine reported a full KV cache. Call while
        `ticket` is still inside. Calls within a second (`OVERRUN_PAUSE_S`) count as one. `now`: monotonic seconds."""
        self._queues[ticket.model].token_estimator.record_overrun(now)

    def readmit_ticket(self, ticket: Ticket, now: float) -> tuple[Endpoint | None, list[Grant]]:
        """Take back the slot of a ticket that is inside, and admit it again, because its replica has left the table or
        was replaced. `now`: monotonic seconds. Returns what `retry_ticket` returns, which calls this, too."""
        queue, replica = self._queues[ticket.model], ticket.replica
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
        """Return whether a routed replica other than `replica` serves `model` and its circuit breaker admits requests.

        The other replica may be full. False for an unknown model. `now`: monotonic seconds.
        """
        queue = self._queues.get(model)
        return queue is not None and queue.has_other_replica(replica, now)

    def choose_replica(self, route: ModelRoute, now: float, retries: RetryState = NO_RETRIES) -> Endpoint:
        """Return the endpoint of the replica with the fewest requests inside, for a request that takes no slot.

        Nothing is reserved, so nothing needs to be released. A replica is never chosen during its circuit breaker's
        pause, and while the breaker's trial runs only if there is no other. `now`: monotonic seconds. `retries`: where
        the request has failed so far; a replica that broke the connection is chosen again only if there is no other,
        one that refused it never.

        Raises:
            RoundhouseError: `engine_unreachable` if no replica is left to try; with a time to retry after if all are
                left out by their circuit breakers.
            KeyError: the model is neither in the table in force nor has tickets left from an earlier one.
        """
        return self._queues[route.name].choose_replica(now, retries)

    def record_failure(self, replica: str, now: float) -> Sequence[Grant]:
        """Count a failed connection to `replica`: refused, broken, not HTTP, or ended within an answer.

        Call before `retry_ticket` or `release_ticket`. `now`: monotonic seconds. Returns grants for waiting tickets,
        among them errors for those that have no replica left to try; pass them to the tickets' owners. Empty if the
        replica is unknown.
        """
        slots = self._replicas.get(replica)
        if slots is None:
            return _NOBODY
        if slots.breaker is None:
            slots.breaker = CircuitBreaker()
        slots.breaker.record_failure(now)
        queue = self._queues[slots.model]
        queue.update_broken_count()
        return queue.serve_queue(now)

    def record_answer(self, replica: str, now: float) -> Sequence[Grant]:
        """Close the circuit breaker of `replica`, which has begun an answer of any status, and forget its failures.

        `now`: monotonic seconds. Returns grants for tickets that waited: they enter now, or the grant holds an error
        because no replica is left to try; pass them to the tickets' owners. Empty if the replica is unknown or had no
        failure.
        """
        slots = self._replicas.get(replica)
        if slots is None or slots.breaker is None:
            return _NOBODY
        slots.breaker = None
        queue = self._queues[slots.model]
        queue.update_broken_count()
        return queue.serve_queue(now)

    def list_open_circuits(self) -> list[str]:
        """Return the names of the replicas whose circuit breaker is open, so that they take no requests but trials;
        also those that left the table while a request is inside. In no particular order."""
        return [name for name, slots in self._replicas.items() if slots.breaker is not None and slots.breaker.is_open]

    def admit_trials(self, now: float) -> Sequence[Grant]:
        """Admit every waiting ticket that can enter now, as time goes by. Call about once per second.

        This begins the trials of circuit breakers whose pause is over, and lets turns of sessions leave their home.
        `now`: monotonic seconds. Returns grants for the tickets that enter, and grants with an error for those that
        have no replica left to try; pass them to the tickets' owners.
        """
        return [
            grant
            for queue in self._queues.values()
            if queue.fair_queue.waiting_count
            for grant in queue.serve_queue(now)
        ]

    def waiting_tickets(self, model: str) -> list[Ticket]:
        """Return the tickets that wait for `model`, next to enter first; empty for an unknown model.

        `model`: the model's own name.
        """
        queue = self._queues.get(model)
        return queue.waiting_tickets() if queue else []

    def list_places(self, model: str) -> list[tuple[Ticket, QueuePlace]]:
        """Return the tickets that wait for `model` with their places as they are now, next to enter first.

        `model`: the model's own name. Empty for an unknown model, and where none waits.
        """
        queue = self._queues.get(model)
        return queue.list_places() if queue else []

    @property
    def slots_in_use(self) -> dict[str, int]:
        """Number of tickets inside by replica name, also of replicas that left the table; absent if none. A ticket that
        holds several slots counts once."""
        return {name: replica.inflight for name, replica in self._replicas.items() if replica.inflight}

    @property
    def slots_in_use_by_model(self) -> dict[str, int]:
        """Number of tickets inside by model name; absent if none. A ticket that holds several slots counts once."""
        return {queue.model: queue.inflight for queue in self._queues.values() if queue.inflight}

    def __repr__(self) -> str:
        return f"Admission({'; '.join(map(self._describe_queue, self._queues.values()))})"

    def _describe_queue(self, queue: ModelQueue) -> str:
        parts = [_describe_replica(replica, queue.target) for replica in queue.replicas]
        leaving_replicas = (
            each for each in self._replicas.values() if each.model == queue.model and not each.is_routed
        )
        parts += [_describe_replica(replica, queue.target) for replica in leaving_replicas]
        waiting_text = " ".join(
            f"{tenant} {count}" for tenant, count in sorted(queue.fair_queue.waiting_by_tenant().items())
        )
        if waiting_text:
            parts.append(f"waiting {waiting_text}")
        return f"{queue.model}: {', '.join(parts)}" if parts else queue.model

    def _route_replica(self, endpoint: Endpoint, model: str) -> ReplicaSlots:
        replica = self._replicas.get(endpoint.replica)
        if replica is None:
            replica = self._replicas[endpoint.replica] = ReplicaSlots(endpoint, model)
        replica.apply_endpoint(endpoint)
        replica.is_routed = True
        return replica

    def _forget_if_gone(self, replica: ReplicaSlots) -> None:
        if not replica.is_routed and not replica.inflight:
            self._replicas.pop(replica.endpoint.replica, None)

    def _forget_if_empty(self, queue: ModelQueue) -> None:
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
    """Return the `kv_cache_exhausted` error for a request of `model` that ends because the engine's KV cache is full.

    The caller raises or delivers the error.
    """
    message = f"The KV cache of the engine of {model!r} is full: it has no room for this request beside the others."
    return RoundhouseError("kv_cache_exhausted", message)
