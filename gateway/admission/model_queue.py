"""One model's replicas, and the line of those that wait for a slot in them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from controller.schema.errors import DEFAULT_RETRY_AFTER_S, RoundhouseError
from controller.schema.routing import Endpoint, ModelRoute
from controller.schema.status import ModelState
from gateway.admission.circuit_breaker import Breaker
from gateway.admission.fair_queue import FairQueue
from gateway.admission.prefix_affinity import Affinity
from gateway.admission.retry_state import NO_TRIES, Tries
from gateway.admission.ticket import AT_ONCE, Grant, Place, Ticket

PREFIXES_KEPT: Final = 16_384
"""Per model."""
_RECENT: Final = 32
"""Requests that the mean service time is about."""
_UNKNOWN_COST: Final = 0.001
"""Slot-seconds charged while nothing has ended. Little, because it lifts the virtual time: who comes later would start
behind by what the first ones were charged too much."""


class Replica:
    """One replica: who is inside, and what is held against it."""

    __slots__ = ("breaker", "endpoint", "inside", "line", "routed", "turn")

    def __init__(self, endpoint: Endpoint, queue: Line) -> None:
        self.endpoint = endpoint
        self.line = queue
        self.inside = 0
        self.turn = 0
        """Of its model: when something last went in."""
        self.breaker: Breaker | None = None
        """None: its last connection was well."""
        self.routed = True
        """It is in the table in force."""

    def admits(self, now: float) -> bool:
        """Whether it is not left out."""
        return self.breaker is None or self.breaker.admits(now)

    def is_hopeful(self, now: float) -> bool:
        """Whether it is worth waiting for."""
        return self.breaker is None or self.breaker.is_hopeful(now)


class Line:
    """One model. Everybody in it is inside a replica, or waits."""

    __slots__ = (
        "_affinity",
        "_depths",
        "_ended",
        "_turn",
        "broken",
        "fair",
        "inside",
        "limit",
        "loaded",
        "mean_s",
        "model",
        "replicas",
        "retrying",
        "routed",
        "target",
    )

    def __init__(self, model: str, depths: dict[str, int]) -> None:
        """`depths`: where to keep how many wait, by model; never holds a zero."""
        self.model = model
        self._depths = depths
        self.fair = FairQueue()
        self.replicas: Sequence[Replica] = ()
        """Those in the table."""
        self.target = 0
        """Slots of each."""
        self.limit = 0
        """How many may wait."""
        self.loaded = False
        self.routed = False
        """It is in the table in force."""
        self.inside = 0
        """In replicas that left the table, too."""
        self.retrying = 0
        """Those that wait and may not go just anywhere."""
        self.broken = 0
        """Replicas that are left out, or on trial."""
        self.mean_s: float | None = None
        """Recent service time; None: nothing has ended yet."""
        self._ended = 0
        self._turn = 0
        self._affinity: Affinity[Replica] = Affinity(PREFIXES_KEPT)

    def route(self, route: ModelRoute | None, replicas: Sequence[Replica], queue_limit: int) -> None:
        """The table in force has this to say; None: it does not have the model."""
        self.routed = route is not None
        self.replicas = replicas
        self.loaded = route is not None and route.state is ModelState.LOADED
        self.target = route.target_inflight if route else 0
        own_limit = route.queue_limit if route else None
        self.limit = (queue_limit if own_limit is None else own_limit) * max(1, len(replicas))
        self.count_broken()

    def count_broken(self) -> None:
        """Bring `broken` up to date."""
        self.broken = sum(replica.breaker is not None and replica.breaker.is_open for replica in self.replicas)

    def arrive(self, ticket: Ticket, now: float) -> Endpoint | None:
        """See `Admission.arrive`."""
        fair_queue = self.fair
        if fair_queue.waiting == self.retrying:  # else whoever waits comes first
            replica = self._least(self.replicas, ticket.prefix, now)
            if replica is not None:
                ticket.place = AT_ONCE if not fair_queue.waiting else Place(1, 1 + fair_queue.waiting, 0)
                fair_queue.enter(ticket, self.mean_s or _UNKNOWN_COST)
                return self._enter(ticket, replica, now)
        if self.loaded and not self.open_to(NO_TRIES, now):
            raise self.unreachable(NO_TRIES, now)
        if fair_queue.waiting >= self.limit:
            position = 2 + fair_queue.waiting
            ticket.place = Place(position, position, self._wait_ms(position))
            raise self._full(ticket.place)
        ticket.state = "waiting"
        fair_queue.join(ticket)
        self._depths[self.model] = fair_queue.waiting
        position = 1 + fair_queue.position(ticket, self.mean_s or _UNKNOWN_COST)
        ticket.place = Place(position, 1 + fair_queue.waiting, self._wait_ms(position))
        return None

    def leave(self, ticket: Ticket, now: float) -> None:
        """`ticket`, which is inside, is out of its replica; its state is the caller's to set."""
        replica = ticket.replica
        replica.inside -= 1
        self.inside -= 1
        seconds = now - ticket.since
        self.fair.left(ticket, seconds)
        if ticket.tries is NO_TRIES:  # what failed somewhere says nothing about how long an answer takes
            self._ended = sample_count = min(self._ended + 1, _RECENT)
            mean = self.mean_s or 0.0
            self.mean_s = mean + (seconds - mean) / sample_count
        if replica.breaker is not None:
            replica.breaker.left(ticket)
        if not self.inside and not self.fair.waiting:
            self.fair.rest()

    def wait_again(self, ticket: Ticket) -> None:
        """`ticket`, which is out of its replica, waits for another."""
        ticket.state = "waiting"
        self.fair.join_in_front(ticket)
        self._depths[self.model] = self.fair.waiting
        self.retrying += 1

    def give_up(self, ticket: Ticket) -> None:
        """`ticket` waits no longer."""
        self.fair.drop(ticket)
        self._waits_no_longer(ticket)
        ticket.state = "gone"

    def serve(self, now: float) -> list[Grant]:
        """Everybody who can go in now, and those whom nothing is left for."""
        grants: list[Grant] = []
        fair_queue = self.fair
        while fair_queue.waiting:
            ticket = fair_queue.first()
            replica = self._room_for(ticket, now)
            if replica is None:
                if ticket.tries is NO_TRIES:
                    break  # then there is room for nobody
                candidate = self._first_with_room(now)
                if candidate is None:
                    break
                ticket, replica = candidate
            fair_queue.take(ticket, self.mean_s or _UNKNOWN_COST)
            self._waits_no_longer(ticket)
            grants.append((ticket, self._enter(ticket, replica, now)))
        if fair_queue.waiting and self.loaded and (self.broken or self.retrying or not self.replicas):
            grants += self._hopeless(now)
        return grants

    def waiting(self) -> list[Ticket]:
        """Who waits, in the order in which they would go."""
        return list(self.fair.order(self.mean_s or _UNKNOWN_COST))

    def choose(self, now: float) -> Endpoint:
        """See `Admission.choose`."""
        candidates = [replica for replica in self.replicas if replica.admits(now)] or self.open_to(NO_TRIES, now)
        if not candidates:
            raise self.unreachable(NO_TRIES, now)
        least_busy = min(candidates, key=lambda replica: (replica.inside, replica.turn))
        self._turn = least_busy.turn = self._turn + 1
        return least_busy.endpoint

    def open_to(self, tries: Tries, now: float) -> list[Replica]:
        """Where a request may be tried now, when there is room, or after a trial; empty: nothing is left to try."""
        candidates = [replica for replica in self.replicas if replica.is_hopeful(now)]
        if tries is NO_TRIES:
            return candidates
        allowed_replicas = [replica for replica in candidates if replica.endpoint.replica not in tries.refused]
        return [
            replica
            for replica in allowed_replicas
            if replica.endpoint.replica not in tries.broke and replica.admits(now)
        ] or allowed_replicas

    def unreachable(self, tries: Tries, now: float) -> RoundhouseError:
        """Why nothing is left to try."""
        wait_s = None
        if not self.replicas:
            cause = "no replica is ready"
        elif tries.breaks:
            cause = (
                "connections broke before an answer came "
                f"({', '.join(sorted(tries.broke | tries.refused))})"
            )
        elif tries.refused:
            cause = f"connections were refused ({', '.join(sorted(tries.refused))})"
        else:
            cause = "connections to every replica failed, and they are left out for a moment"
            wait_s = min(
                (replica.breaker.retry_in_s(now) for replica in self.replicas if replica.breaker), default=None
            )
        message = f"The model {self.model!r} cannot be reached: {cause}."
        return RoundhouseError("engine_unreachable", message, retry_after_s=wait_s)

    def _full(self, place: Place) -> RoundhouseError:
        waiting_count = self.fair.waiting
        message = f"Every slot of the model {self.model!r} is taken, and {waiting_count} requests wait; no more may."
        seconds = 0.0 if place.wait_ms is None else place.wait_ms / 1000
        return RoundhouseError("queue_full", message, retry_after_s=max(float(DEFAULT_RETRY_AFTER_S), seconds))

    def _wait_ms(self, position: int) -> int | None:
        slots = self.target * len(self.replicas)
        if self.mean_s is None or not slots:
            return None
        return round(1000 * (position - 1) * self.mean_s / slots)

    def _least(self, replicas: Sequence[Replica], prefix: Sequence[int], now: float) -> Replica | None:
        best: Replica | None = None
        target = self.target
        for replica in replicas:
            inside = replica.inside
            if (
                inside < target
                and (best is None or inside < best.inside or (inside == best.inside and replica.turn < best.turn))
                and (replica.breaker is None or replica.breaker.admits(now))
            ):
                best = replica
        if prefix and best is not None and len(replicas) > 1:
            for replica in self._affinity.matches(prefix):
                if replica.inside == best.inside and replica in replicas and replica.admits(now):
                    return replica
        return best

    def _enter(self, ticket: Ticket, replica: Replica, now: float) -> Endpoint:
        replica.inside += 1
        self.inside += 1
        self._turn = replica.turn = self._turn + 1
        ticket.state = "inside"
        ticket.replica = replica
        ticket.since = now
        if replica.breaker is not None:
            replica.breaker.entered(ticket)
        if ticket.prefix and len(self.replicas) > 1:
            self._affinity.went(ticket.prefix, replica)
        return replica.endpoint

    def _waits_no_longer(self, ticket: Ticket) -> None:
        if self.fair.waiting:
            self._depths[self.model] = self.fair.waiting
        else:
            del self._depths[self.model]
        if ticket.tries is not NO_TRIES:
            self.retrying -= 1

    def _room_for(self, ticket: Ticket, now: float) -> Replica | None:
        replicas = self.replicas if ticket.tries is NO_TRIES else self.open_to(ticket.tries, now)
        return self._least(replicas, ticket.prefix, now)

    def _first_with_room(self, now: float) -> tuple[Ticket, Replica] | None:
        """Past those that wait for one replica while another has room."""
        for ticket in self.fair.order(self.mean_s or _UNKNOWN_COST):
            replica = self._room_for(ticket, now)
            if replica is not None:
                return ticket, replica
            if ticket.tries is NO_TRIES:
                break
        return None

    def _hopeless(self, now: float) -> list[Grant]:
        if self.open_to(NO_TRIES, now):
            if not self.retrying:
                return []
            lost_tickets = [each for each in self.waiting() if not self.open_to(each.tries, now)]
        else:
            lost_tickets = self.waiting()
        for ticket in lost_tickets:
            self.give_up(ticket)
        return [(ticket, self.unreachable(ticket.tries, now)) for ticket in lost_tickets]
