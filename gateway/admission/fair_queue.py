"""The replicas of one model, and the queue of requests that wait for a slot in them, fair between tenants. Pure.

Each tenant has a counter: the slot-seconds that the tenant received, divided by its weight. The tenant with the lowest
counter goes next. How long a request takes is unknown when it enters a replica, so the tenant is charged the expected
time then, and the difference when the request leaves ("Fairness in Serving Large Language Models", Sheng et al., 2024).
A tenant that begins to wait has its counter raised to the virtual time, the counter of the tenant that entered last
(start-time fair queueing), so no tenant saves up credit by asking for less than its share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, islice
from typing import Final

from contract.errors import DEFAULT_RETRY_AFTER_S, RoundhouseError
from contract.routing import Endpoint, ModelRoute
from contract.status import ModelState
from gateway.admission.model_sessions import ModelSessions
from gateway.admission.prefix_affinity import PrefixAffinity
from gateway.admission.ticket import (
    AT_ONCE,
    NO_RETRIES,
    Grant,
    HeapEntry,
    QueuePlace,
    ReplicaSlots,
    RetryState,
    TenantAccount,
    Ticket,
)
from gateway.admission.token_pool import TokenEstimator
from gateway.sessions import SessionClaim

_IDLE_KEPT: Final = 64
"""Number of accounts from which idle ones are searched for and dropped."""


class FairQueue:
    """The tickets that wait for one model, and the accounts of all tenants that use the model.

    Only orders and charges tickets: `ModelQueue`, the only caller, decides which enter and sets their states.
    """

    __slots__ = (
        "_accounts",
        "_greatest_counter",
        "_heap",
        "_prune_threshold",
        "_turn",
        "_virtual_time",
        "waiting_count",
    )

    def __init__(self) -> None:
        self._accounts: dict[str, TenantAccount] = {}
        self._heap: list[HeapEntry] = []
        self._turn = 0
        self._virtual_time = 0.0
        self._greatest_counter = 0.0
        self._prune_threshold = _IDLE_KEPT
        self.waiting_count = 0
        """Number of waiting tickets."""

    def charge_entry(self, ticket: Ticket, cost: float) -> None:
        """Charge the tenant of a ticket that enters without waiting.

        Sets the ticket's `account`, and its tenant's weight to the ticket's. `cost`: expected seconds in each of its
        slots; `settle_slot_time` corrects the charge when the ticket leaves.
        """
        account = self._accounts.get(ticket.tenant) or self._open_account(ticket.tenant)
        account.weight = ticket.weight
        if account.counter >= self._virtual_time:
            self._virtual_time = account.counter
        elif not account.waiting_count:
            account.counter = self._virtual_time
        ticket.account = account
        self._charge(account, ticket, cost)

    def add_ticket(self, ticket: Ticket) -> None:
        """Queue `ticket` behind its tenant's tickets of the same rank. No limit of the queue applies. Sets the ticket's
        `account`, and its tenant's weight to the ticket's."""
        account = self._accounts.get(ticket.tenant) or self._open_account(ticket.tenant)
        account.weight = ticket.weight
        ticket.account = account
        account.ranks[ticket.rank][ticket] = None
        account.waiting_count += 1
        self.waiting_count += 1
        if account.waiting_count == 1:
            account.counter = max(account.counter, self._virtual_time)
            self._turn += 1
            account.turn = self._turn
            self._push(account)

    def add_ticket_in_front(self, ticket: Ticket) -> None:
        """Queue `ticket` in front of all other tickets of its tenant. Sets its rank to 0, the priority rank, and its
        `account`, and its tenant's weight to the ticket's. No limit of the queue applies."""
        ticket.rank = 0
        self.add_ticket(ticket)
        ticket.account.ranks[0].move_to_end(ticket, last=False)

    def next_ticket(self) -> Ticket:
        """Return the waiting ticket whose turn it is, and leave it in the queue.

        Raises:
            IndexError: no ticket is waiting.
        """
        heap = self._heap
        while heap[0][2].entry != heap[0]:  # by value: a compiled tuple has no identity
            heappop(heap)
        return next(chain.from_iterable(heap[0][2].ranks))

    def take_ticket(self, ticket: Ticket, cost: float) -> None:
        """Remove a waiting ticket that enters a replica, and charge its tenant. `cost`: as in `charge_entry`.

        Raises:
            KeyError: the ticket has left the queue already.
        """
        self.drop_ticket(ticket)
        account = ticket.account
        self._virtual_time = max(self._virtual_time, account.counter)
        self._charge(account, ticket, cost)

    def drop_ticket(self, ticket: Ticket) -> None:
        """Remove a waiting ticket without a charge.

        Raises:
            KeyError: the ticket has left the queue already.
        """
        account = ticket.account
        del account.ranks[ticket.rank][ticket]
        account.waiting_count -= 1
        self.waiting_count -= 1
        if not account.waiting_count:
            account.entry = None

    def settle_slot_time(self, ticket: Ticket, seconds: float) -> None:
        """Correct the tenant's charge for `ticket`, which leaves its replica now after `seconds` inside.

        Call once for each time that `charge_entry` or `take_ticket` has charged the ticket.
        """
        account = ticket.account
        account.inflight -= 1
        correction = (seconds - ticket.expected_s) * ticket.slots / ticket.weight
        if correction:
            account.counter += correction
            self._greatest_counter = max(self._greatest_counter, account.counter)
            if account.waiting_count:
                self._push(account)

    def reset_accounts(self) -> None:
        """Make all tenants equal again: what they received so far no longer counts.

        Call when no ticket of the model is inside or waits.
        """
        self._virtual_time = self._greatest_counter

    def queue_order(self, cost: float) -> Iterator[Ticket]:
        """Yield the waiting tickets in the order in which they enter if none is added and each takes `cost` seconds.

        The queue must not change during the iteration.
        """
        heap = [
            (each.counter, each.turn, each, chain.from_iterable(each.ranks), each.waiting_count)
            for each in self._accounts.values()
            if each.waiting_count
        ]  # turns are unique, so accounts are never compared
        heapify(heap)
        turn = self._turn
        while heap:
            counter, _, account, tickets, waiting_count = heap[0]
            ticket = next(tickets)
            yield ticket
            if waiting_count == 1:
                heappop(heap)
            else:
                turn += 1
                counter += cost * ticket.slots / account.weight
                heapreplace(heap, (counter, turn, account, tickets, waiting_count - 1))

    def queue_position(self, ticket: Ticket, cost: float) -> int:
        """Return the position, from 1, in `queue_order(cost)` of a ticket that `add_ticket` has just added.

        Raises:
            AssertionError: the ticket does not wait. Not checked where only one tenant has waiting tickets.
        """
        account = ticket.account
        number = sum(len(rank) for rank in account.ranks[: ticket.rank + 1])
        if account.waiting_count == self.waiting_count:
            return number
        for turn, next_ticket in enumerate(self.queue_order(cost), 1):
            if next_ticket is ticket:
                return turn
        raise AssertionError(f"{ticket} does not wait")

    def waiting_by_tenant(self) -> dict[str, int]:
        """Return the number of waiting tickets by tenant; tenants with none are absent."""
        return {account.name: account.waiting_count for account in self._accounts.values() if account.waiting_count}

    def _charge(self, account: TenantAccount, ticket: Ticket, cost: float) -> None:
        ticket.expected_s = cost
        ticket.weight = weight = account.weight  # `settle_slot_time` corrects the charge by the same weight
        account.counter = counter = account.counter + cost * ticket.slots / weight
        if counter > self._greatest_counter:
            self._greatest_counter = counter
        account.inflight += 1
        self._turn = account.turn = self._turn + 1
        if account.waiting_count:
            self._push(account)

    def _push(self, account: TenantAccount) -> None:
        account.entry = (account.counter, account.turn, account)
        if len(self._heap) < 2 * len(self._accounts) + _IDLE_KEPT:
            heappush(self._heap, account.entry)
        else:  # most entries are outdated
            self._heap = [each.entry for each in self._accounts.values() if each.entry]
            heapify(self._heap)

    def _open_account(self, tenant: str) -> TenantAccount:
        if len(self._accounts) >= self._prune_threshold:
            # An account at or below the virtual time equals a new one, which is raised to the virtual time.
            self._accounts = {
                name: each
                for name, each in self._accounts.items()
                if each.inflight or each.waiting_count or each.counter > self._virtual_time
            }
            self._prune_threshold = max(_IDLE_KEPT, 2 * len(self._accounts))
        account = self._accounts[tenant] = TenantAccount(tenant)
        return account


QUEUE_LIMIT_PER_SLOT: Final = 8
"""Requests that may wait per slot where neither the model's definition nor the gateway's settings set a limit."""
PREFIXES_KEPT: Final = 16_384
"""Prefix keys that are remembered per model."""
_RECENT: Final = 32
"""Number of recent requests that the mean service time covers."""
_LEAST_WAITS: Final = 5
"""Waits that must have been seen before anything is said of how long a wait usually is."""
_UNKNOWN_COST: Final = 0.001
"""Slot-seconds charged per request until the first has ended. Little, because the charge raises the virtual time, and
tenants that come later would start behind by whatever the first were charged too much."""
MOST_LOOKS: Final = 64
"""Waiting requests that are searched for one that fits when the first does not."""
MOST_OVERTAKEN: Final = 8
"""Requests that may overtake one that needs more of a replica than is free, or twice the replica's slots where that is
more. After them, a replica is kept for the large request."""


class ModelQueue:
    """The queue and the replicas of one model. Each of its tickets is inside a replica or waits.

    `Admission` makes one per model and is the only caller. In all methods, `now` is monotonic seconds.
    """

    __slots__ = (
        "_affinity",
        "_context_length",
        "_depths",
        "_entered_count",
        "_sample_count",
        "_token_share",
        "_turn",
        "_usual_s",
        "_waits",
        "broken_count",
        "fair_queue",
        "inflight",
        "is_loaded",
        "is_routed",
        "limit",
        "mean_s",
        "model",
        "replicas",
        "retrying_count",
        "sessions",
        "target",
        "token_estimator",
    )

    def __init__(self, model: str, depths: dict[str, int]) -> None:
        """`depths`: shared by all models; the queue keeps its number of waiting tickets there, and no entry for 0."""
        self.model = model
        self._depths = depths
        self.fair_queue = FairQueue()
        self.replicas: Sequence[ReplicaSlots] = ()
        """The replicas in the table in force."""
        self.target = 0
        """Slots per replica."""
        self.limit = 0
        """Maximum number of tickets that may wait, over all replicas together."""
        self.is_loaded = False
        """Whether the state of the model in the table in force is `LOADED`."""
        self.is_routed = False
        """Whether the model is in the table in force."""
        self.inflight = 0
        """Number of tickets inside, also in replicas that left the table."""
        self.retrying_count = 0
        """Number of waiting tickets that failed somewhere before, and so may not enter every replica."""
        self.broken_count = 0
        """Number of replicas whose circuit breaker is open."""
        self.mean_s: float | None = None
        """Mean seconds that recent requests spent inside; None: no request has ended yet."""
        self._waits: deque[float] = deque(maxlen=_RECENT)
        """Seconds that recent requests waited for a slot, per place that was before them."""
        self._usual_s: tuple[float, float] | None = None
        """Median and 90th percentile of `_waits`; None: too few."""
        self._sample_count = 0
        self._turn = 0
        self._entered_count = 0
        """Number of requests that have entered a replica so far."""
        self.token_estimator = TokenEstimator()
        self._token_share: int | None = None
        """Tokens per slot of the smallest replica; None: tokens are counted for no replica."""
        self._context_length = 0
        """Tokens that one request may take, where tokens are counted."""
        self._affinity: PrefixAffinity[ReplicaSlots] = PrefixAffinity(PREFIXES_KEPT)
        self.sessions = ModelSessions()

    def apply_route(self, route: ModelRoute | None, replicas: Sequence[ReplicaSlots], queue_limit: int | None) -> None:
        """Adopt the model's route of a new table. `route` None: the model is not in the table.

        `replicas`: those of the route. `queue_limit`: requests that may wait per replica if the route declares no
        limit; None: `QUEUE_LIMIT_PER_SLOT` per slot. Sessions of replicas that are gone are dropped
        (`ModelSessions.apply_route`). Nothing is admitted here: call `serve_queue` afterwards.
        """
        self.is_routed = route is not None
        self.sessions.apply_route(route, self.replicas, replicas)
        slots = self.target * len(self.replicas)
        self.replicas = replicas
        self.is_loaded = route is not None and route.state is ModelState.LOADED
        self.target = route.target_inflight if route else 0
        if self.target * len(replicas) != slots:  # the queue moves at another pace now
            self._waits.clear()
            self._usual_s = None
            for ticket in self.waiting_tickets():
                ticket.queued_at = None
        pools = [replica.token_pool for replica in replicas if replica.token_pool is not None]
        self._token_share = min(pool.usable for pool in pools) // max(1, self.target) if pools else None
        if route is not None and pools:
            self._context_length = route.context_length or min(pool.capacity for pool in pools)
        self.limit = _limit_per_replica(route, queue_limit) * max(1, len(replicas))
        self.update_broken_count()

    def update_broken_count(self) -> None:
        """Set `broken_count` to the number of replicas with an open circuit breaker. Call after a breaker opened or was
        discarded."""
        self.broken_count = sum(replica.breaker is not None and replica.breaker.is_open for replica in self.replicas)

    def admit_ticket(self, ticket: Ticket, now: float) -> Endpoint | None:
        """Admit or queue a new ticket, and set its `place`.

        Returns the endpoint whose slot the ticket now holds; None: the ticket waits, and a later grant has the endpoint
        or an error. `now`: monotonic seconds.

        Raises:
            RoundhouseError: `queue_full` (`ticket.place` is set), or `engine_unreachable` if the model is loaded and no
                replica accepts requests. The ticket stays new.
        """
        fair_queue = self.fair_queue
        if fair_queue.waiting_count == self.retrying_count:
            replica = self._room_for(ticket, now)
        else:  # waiting tickets come first
            replica = self._room_past_others(ticket, now)
        is_full = fair_queue.waiting_count >= self.limit and not ticket.goes_on
        if replica is None and is_full and ticket.session is not None and ticket.session.waits_since is not None:
            replica = self._least_busy(self.replicas, ticket, now)  # nobody is refused who fits elsewhere than home
        if replica is not None:
            ticket.place = AT_ONCE if not fair_queue.waiting_count else QueuePlace(1, 1 + fair_queue.waiting_count, 0)
            fair_queue.charge_entry(ticket, self.mean_s or _UNKNOWN_COST)
            return self._enter(ticket, replica, now)
        if self.is_loaded and not self.replicas_left(NO_RETRIES, now):
            raise self.explain_unreachable(NO_RETRIES, now)
        if is_full:
            position = 2 + fair_queue.waiting_count
            ticket.place = self._place_at(position, position)
            raise self._queue_full_error(ticket.place)
        ticket.state = "waiting"
        ticket.queued_at = now if self.is_loaded else None
        fair_queue.add_ticket(ticket)
        self._depths[self.model] = fair_queue.waiting_count
        position = 1 + fair_queue.queue_position(ticket, self.mean_s or _UNKNOWN_COST)
        ticket.place = self._place_at(position, 1 + fair_queue.waiting_count)
        return None

    def release_ticket(self, ticket: Ticket, now: float) -> None:
        """Give back the slots and KV cache tokens of a ticket that is inside, end its turn of a session and its trial
        of a circuit breaker, and settle its tenant's charge.

        The time inside counts in `mean_s`, unless the request was retried, preempted or refused by the engine. The
        caller sets `ticket.state`, and calls `serve_queue` for the tickets that wait. `now`: monotonic seconds.
        """
        replica = ticket.replica
        replica.release(ticket)
        if replica.placement is not None:
            replica.placement.release(ticket, now)
        self.inflight -= 1
        seconds = now - ticket.entered_at
        self.fair_queue.settle_slot_time(ticket, seconds)
        # A request that was retried, refused or preempted says nothing about how long an answer takes.
        if ticket.retries is NO_RETRIES and not (ticket.is_refused or ticket.was_preempted):
            self._sample_count = sample_count = min(self._sample_count + 1, _RECENT)
            mean = self.mean_s or 0.0
            self.mean_s = mean + (seconds - mean) / sample_count
        if replica.breaker is not None:
            replica.breaker.end_trial(ticket)
        if not self.inflight and not self.fair_queue.waiting_count:
            self.fair_queue.reset_accounts()

    def requeue_ticket(self, ticket: Ticket) -> None:
        """Queue a ticket again after `release_ticket`, in front of its tenant's others, and set its state to `waiting`.

        The limit of the queue does not apply.
        """
        ticket.state = "waiting"
        ticket.queued_at = None
        self.fair_queue.add_ticket_in_front(ticket)
        self._depths[self.model] = self.fair_queue.waiting_count
        self.retrying_count += ticket.retries is not NO_RETRIES

    def drop_ticket(self, ticket: Ticket) -> None:
        """Remove a waiting ticket from the queue, and set its state to `gone`. KeyError if the ticket waits no more."""
        self.fair_queue.drop_ticket(ticket)
        self._update_waiting_counts(ticket)
        ticket.state = "gone"

    def serve_queue(self, now: float) -> list[Grant]:
        """Admit every waiting ticket that can enter now. Returns their grants, in the order of entry.

        While the model is loaded, tickets that have no replica left to try are removed, and get grants that hold the
        `engine_unreachable` error. The caller must pass each grant to its ticket's owner, or release the ticket. `now`:
        monotonic seconds.
        """
        grants: list[Grant] = []
        fair_queue = self.fair_queue
        while fair_queue.waiting_count:
            candidate = self._next_to_enter(now)
            if candidate is None:
                break
            ticket, replica = candidate
            fair_queue.take_ticket(ticket, self.mean_s or _UNKNOWN_COST)
            self._update_waiting_counts(ticket)
            self._count_wait(ticket, now)
            grants.append((ticket, self._enter(ticket, replica, now)))
        if (
            fair_queue.waiting_count
            and self.is_loaded
            and (self.broken_count or self.retrying_count or not self.replicas)
        ):
            grants += self._drop_hopeless(now)
        return grants

    def waiting_tickets(self) -> list[Ticket]:
        """Return the waiting tickets, next to enter first. Tickets further behind may still overtake a ticket that
        needs more of a replica than is free when its turn comes."""
        return list(self.fair_queue.queue_order(self.mean_s or _UNKNOWN_COST))

    def list_places(self) -> list[tuple[Ticket, QueuePlace]]:
        """Return the waiting tickets with their places as they are now, next to enter first."""
        depth = 1 + self.fair_queue.waiting_count
        places = (self._place_at(number, depth) for number in range(2, depth + 1))
        return list(zip(self.waiting_tickets(), places, strict=True))

    def has_other_replica(self, name: str, now: float) -> bool:
        """Return whether the table in force has another replica than `name` whose circuit breaker admits requests. It
        may be full. `now`: monotonic seconds."""
        return any(replica.endpoint.replica != name and replica.admits_request(now) for replica in self.replicas)

    def choose_replica(self, now: float, retries: RetryState) -> Endpoint:
        """Return the endpoint of the replica with the fewest requests inside, for a request that takes no slot.

        Nothing is reserved. `now`: monotonic seconds. A replica is never chosen during its circuit breaker's pause or
        if it refused the request before (`retries`); one whose trial runs, or that broke the request's connection, only
        if there is no other.

        Raises:
            RoundhouseError: `engine_unreachable` if no replica is left to try.
        """
        replicas_left = self.replicas_left(retries, now)
        candidates = [replica for replica in replicas_left if replica.admits_request(now)] or replicas_left
        if not candidates:
            raise self.explain_unreachable(retries, now)
        least_busy = min(candidates, key=lambda replica: (replica.inflight, replica.turn))
        self._turn = least_busy.turn = self._turn + 1
        return least_busy.endpoint

    def replicas_left(self, retries: RetryState, now: float) -> list[ReplicaSlots]:
        """Return the replicas that a request with these `retries` may try now, or once they have room or a trial
        succeeds.

        Never among them: replicas in the pause of their circuit breaker, and replicas that refused the request. If
        `retries` is not empty, replicas that broke its connection or whose trial runs are among them only if no other
        is left. Empty: the request has nothing left to try. `now`: monotonic seconds.
        """
        candidates = [replica for replica in self.replicas if replica.may_admit_soon(now)]
        if retries is NO_RETRIES:
            return candidates
        allowed_replicas = [
            replica for replica in candidates if replica.endpoint.replica not in retries.refused_replicas
        ]
        return [
            replica
            for replica in allowed_replicas
            if replica.endpoint.replica not in retries.broken_replicas and replica.admits_request(now)
        ] or allowed_replicas

    def explain_unreachable(self, retries: RetryState, now: float) -> RoundhouseError:
        """Return, and do not raise, the `engine_unreachable` error that says why `replicas_left` is empty. The error
        has a time to retry after only if every replica is left out by its circuit breaker. `now`: monotonic seconds."""
        wait_s = None
        if not self.replicas:
            cause = "no replica is ready"
        elif retries.break_count:
            cause = f"connections to {_count_failed(retries)} broke before an answer came"
        elif retries.refused_replicas:
            cause = f"connections to {_count_failed(retries)} were refused"
        else:
            cause = "connections to every replica failed, and they are left out for a moment"
            wait_s = min(
                (replica.breaker.retry_in_s(now) for replica in self.replicas if replica.breaker), default=None
            )
        message = f"The model {self.model!r} cannot be reached: {cause}."
        return RoundhouseError("engine_unreachable", message, retry_after_s=wait_s)

    def _queue_full_error(self, place: QueuePlace) -> RoundhouseError:
        waiting_count = self.fair_queue.waiting_count
        message = f"Every slot of the model {self.model!r} is taken, and {waiting_count} requests wait; no more may."
        seconds = 0.0 if place.wait_ms is None else place.wait_ms / 1000
        return RoundhouseError("queue_full", message, retry_after_s=max(float(DEFAULT_RETRY_AFTER_S), seconds))

    def _place_at(self, position: int, depth: int) -> QueuePlace:
        usual = self._usual_s
        before = 1000 * (position - 1)
        usual_wait_ms = None if usual is None else (round(before * usual[0]), round(before * usual[1]))
        return QueuePlace(position, depth, self._wait_ms(position), usual_wait_ms)

    def _count_wait(self, ticket: Ticket, now: float) -> None:
        """Note how long `ticket`, which enters now, waited for a slot, if it did."""
        if ticket.queued_at is None or ticket.place is None:
            return
        waits = self._waits
        waits.append((now - ticket.queued_at) / (ticket.place.position - 1))
        if len(waits) >= _LEAST_WAITS:
            in_order = sorted(waits)
            self._usual_s = in_order[len(waits) // 2], in_order[len(waits) * 9 // 10]

    def _wait_ms(self, position: int) -> int | None:
        slots = self.target * len(self.replicas)
        if self.mean_s is None or not slots:
            return None
        if self._token_share is not None:
            slots = min(slots, max(1, self.inflight))  # while requests wait for KV cache, no more fit than are inside
        return round(1000 * (position - 1) * self.mean_s / slots)

    def _least_busy(
        self, replicas: Sequence[ReplicaSlots], ticket: Ticket, now: float, kept_replica: ReplicaSlots | None = None
    ) -> ReplicaSlots | None:
        """Return the least busy of `replicas`, except `kept_replica`, that has room for `ticket`; None: none has room.

        Among equally busy replicas, one that probably has the prompt's beginning in its cache is preferred.
        """
        best: ReplicaSlots | None = None
        most_taken = self._most_taken(ticket)
        for replica in replicas:
            taken = replica.slots_taken
            if (
                taken <= most_taken
                and (
                    best is None or taken < best.slots_taken or (taken == best.slots_taken and replica.turn < best.turn)
                )
                and (replica.token_pool is None or replica.has_tokens(ticket))
                and (replica.breaker is None or replica.breaker.admits_request(now))
                and replica is not kept_replica
            ):
                best = replica
        if ticket.prefix and best is not None and len(replicas) > 1:
            for replica in self._affinity.matching_replicas(ticket.prefix):
                if (
                    replica.slots_taken == best.slots_taken
                    and replica.has_tokens(ticket)
                    and replica in replicas
                    and replica.admits_request(now)
                    and replica is not kept_replica
                ):
                    return replica
        return best

    def _most_taken(self, ticket: Ticket) -> int:
        """How many slots of a replica may be taken where `ticket` goes in; negative: none has slots at all."""
        most_taken = self.target - ticket.slots
        return most_taken if most_taken >= 0 else min(0, self.target - 1)

    def _room_at_home(
        self,
        claim: SessionClaim,
        replicas: Sequence[ReplicaSlots],
        best: ReplicaSlots,
        ticket: Ticket,
        now: float,
        kept_replica: ReplicaSlots | None,
    ) -> ReplicaSlots | None:
        """Return the replica that a turn enters: the home of its session, the replica that has most of the session in
        its cache, or `best`, which has room; None: the ticket waits for its home."""
        home = self.sessions.find_home(claim, replicas, now)
        if home is None:
            return best

        def has_room(replica: ReplicaSlots) -> bool:
            is_free = replica.slots_taken <= self._most_taken(ticket) and replica.has_tokens(ticket)
            return is_free and replica.admits_request(now) and replica is not kept_replica

        def stays(replica: ReplicaSlots, other: ReplicaSlots) -> bool:
            return self.sessions.stays_home(
                claim, replica, other, self.target, self.mean_s, now, has_room=has_room(replica)
            )

        holder = self.sessions.find_holder(claim, replicas, now)
        if holder is not None and holder is not home and not stays(home, holder):
            home = holder  # the last turn left home, and took the cache along
        if home is best or not stays(home, best):
            return best
        if has_room(home):
            return home
        if claim.waits_since is None:
            claim.waits_since = now
        return None

    def _enter(self, ticket: Ticket, replica: ReplicaSlots, now: float) -> Endpoint:
        replica.admit(ticket, self.target)
        if ticket.session is not None or replica.placement is not None:
            self.sessions.admit(ticket, replica, self.replicas, now)
        self.inflight += 1
        self._entered_count += 1
        self._turn = replica.turn = self._turn + 1
        ticket.state = "inside"
        ticket.replica = replica
        ticket.entered_at = now
        if replica.breaker is not None:
            replica.breaker.begin_trial(ticket)
        if ticket.prefix and len(self.replicas) > 1:
            self._affinity.record_request(ticket.prefix, replica)
        return replica.endpoint

    def _update_waiting_counts(self, ticket: Ticket) -> None:
        if self.fair_queue.waiting_count:
            self._depths[self.model] = self.fair_queue.waiting_count
        else:
            del self._depths[self.model]
        if ticket.retries is not NO_RETRIES:
            self.retrying_count -= 1

    def _room_for(self, ticket: Ticket, now: float, kept_replica: ReplicaSlots | None = None) -> ReplicaSlots | None:
        if self._token_share is not None and ticket.claim is not None:
            ticket.claim.estimate_tokens(self.token_estimator, self._context_length, self._token_share)
        replicas = self._allowed_replicas(ticket, now)
        best = self._least_busy(replicas, ticket, now, kept_replica)
        if ticket.session is None or best is None or len(replicas) == 1:
            return best
        return self._room_at_home(ticket.session, replicas, best, ticket, now, kept_replica)

    def _allowed_replicas(self, ticket: Ticket, now: float) -> Sequence[ReplicaSlots]:
        return self.replicas if ticket.retries is NO_RETRIES else self.replicas_left(ticket.retries, now)

    def _room_past_others(self, ticket: Ticket, now: float) -> ReplicaSlots | None:
        """Return the replica that a new ticket may enter ahead of waiting ones that do not fit; None: it must wait."""
        if not self._has_spare_slot(self.replicas, now):
            return None
        self.fair_queue.add_ticket(ticket)
        candidate = self._next_to_enter(now)
        self.fair_queue.drop_ticket(ticket)
        return candidate[1] if candidate is not None and candidate[0] is ticket else None

    def _next_to_enter(self, now: float) -> tuple[Ticket, ReplicaSlots] | None:
        """Return the waiting ticket that enters now and its replica; None: none can enter.

        A ticket may overtake those that wait for one replica while another has room, and the first that needs more of a
        replica than is free. Once that one has been overtaken often enough, the emptiest replica is kept for it.
        """
        first_ticket = self.fair_queue.next_ticket()
        replica = self._room_for(first_ticket, now)
        if replica is not None:
            return first_ticket, replica
        has_spare_slot = self._has_spare_slot(self.replicas, now)
        kept_replica: ReplicaSlots | None = None
        is_first_too_large = True
        for ticket in islice(self.fair_queue.queue_order(self.mean_s or _UNKNOWN_COST), MOST_LOOKS):
            replica = self._room_for(ticket, now, kept_replica)
            if replica is not None:
                return ticket, replica
            if not has_spare_slot:
                if ticket.retries is NO_RETRIES:
                    break  # no replica has room for any ticket
            elif ticket.session is not None and self._least_busy(self._allowed_replicas(ticket, now), ticket, now):
                continue  # the ticket waits for its home, and fits elsewhere
            elif is_first_too_large and self._has_spare_slot(self._allowed_replicas(ticket, now), now):
                is_first_too_large = False
                kept_replica = self._replica_to_keep(ticket, now)
        return None

    def _has_spare_slot(self, replicas: Sequence[ReplicaSlots], now: float) -> bool:
        return any(replica.slots_taken < self.target and replica.admits_request(now) for replica in replicas)

    def _replica_to_keep(self, ticket: Ticket, now: float) -> ReplicaSlots | None:
        """Return the replica that other tickets must not enter until `ticket` fits; None: not overtaken often enough.

        `ticket`: the first of the queue that needs more of a replica than is free.
        """
        if ticket.blocked_at is None:
            ticket.blocked_at = self._entered_count
        if self._entered_count - ticket.blocked_at < max(MOST_OVERTAKEN, 2 * self.target):
            return None
        replicas = [each for each in self._allowed_replicas(ticket, now) if each.admits_request(now)]
        return min(replicas, key=lambda replica: replica.usage_share(self.target))

    def _drop_hopeless(self, now: float) -> list[Grant]:
        if self.replicas_left(NO_RETRIES, now):
            if not self.retrying_count:
                return []
            lost_tickets = [each for each in self.waiting_tickets() if not self.replicas_left(each.retries, now)]
        else:
            lost_tickets = self.waiting_tickets()
        for ticket in lost_tickets:
            self.drop_ticket(ticket)
        return [(ticket, self.explain_unreachable(ticket.retries, now)) for ticket in lost_tickets]


def _limit_per_replica(route: ModelRoute | None, queue_limit: int | None) -> int:
    """Return how many requests may wait per replica: the model's limit, else the gateway's, else the default."""
    if route is not None and route.queue_limit is not None:
        return route.queue_limit
    if queue_limit is not None:
        return queue_limit
    return QUEUE_LIMIT_PER_SLOT * (route.target_inflight if route else 1)


def _count_failed(retries: RetryState) -> str:
    """Return how many replicas failed a request, as text. Clients do not learn replica names; the log has them."""
    count = len(retries.broken_replicas | retries.refused_replicas)
    return f"{count} replicas" if count > 1 else "one replica"
