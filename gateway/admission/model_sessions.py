"""Sessions of one model over all its replicas: home, holder, what a turn finds. Pure: `now` is monotonic seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState
from gateway.admission.home_replica import PrefillPace, ReplicaLoad, leaves_home, rendezvous_score
from gateway.admission.replica_slots import ReplicaSlots
from gateway.admission.session_placement import SessionPlacement, SessionTerms
from gateway.admission.ticket import Ticket
from gateway.sessions.replica_sessions import SessionClaim

_MOST_LOST: Final = 4096
_UNLOADED: Final = (ModelState.UNLOADED, ModelState.UNLOADING)


class ModelSessions:
    """Decides to which replica of one model a turn of a session goes, and places the turn there.

    A session is a conversation whose cache a replica keeps, a turn is one of its requests, and its home is the replica
    with the highest `rendezvous_score`. The sessions of each replica are in `ReplicaSlots.placement`, which this class
    makes. `ModelQueue` has one, and is the only caller.
    """

    __slots__ = ("_lost_keys", "_terms", "prefill_pace")

    def __init__(self) -> None:
        self._terms: SessionTerms | None = None
        self._lost_keys: OrderedDict[bytes, None] = OrderedDict()
        """Keys of sessions whose replica is gone while the model stays loaded, oldest first: their next turn is
        `rebuilt`."""
        self.prefill_pace = PrefillPace()

    def apply_route(
        self, route: ModelRoute | None, earlier: Iterable[ReplicaSlots], replicas: Sequence[ReplicaSlots]
    ) -> None:
        """Apply the model's part of a new routing table, `route`; None: the model is gone.

        `earlier`, `replicas`: the model's replicas in the table before and in this one. Drops the sessions of replicas
        that are gone, and all of them when the model was unloaded or the terms of its sessions changed
        (`session_cache`, `session_binding`, and the number of slots where requests name their slot). The next turn of a
        session that was dropped while the model stays loaded is `rebuilt`, not `new`.
        """
        terms = None if route is None else SessionTerms.of(route)
        is_unloaded = route is None or route.state in _UNLOADED
        for replica in earlier:
            if replica.placement is not None and (is_unloaded or terms != self._terms or replica not in replicas):
                self._lose(replica.placement)
                replica.placement = None
        self._terms = terms
        if is_unloaded:
            self._lost_keys.clear()

    def admit(self, ticket: Ticket, replica: ReplicaSlots, replicas: Iterable[ReplicaSlots], now: float) -> None:
        """Place a request that enters `replica`, one of `replicas`.

        Chooses its slot, and sets `claim.decision` for a turn of a session. Call it, after the replica counted the
        request, for each turn of a session and for every request of a replica that has a placement. `now`: monotonic
        seconds.
        """
        claim = ticket.session
        if claim is None or self._terms is None:
            if replica.placement is not None:
                replica.placement.admit(ticket, now, is_known_elsewhere=False)
            return
        if replica.placement is None:
            replica.placement = SessionPlacement(self._terms, replica.inflight - 1)
        is_known_elsewhere = claim.key in self._lost_keys or any(
            each.placement is not None and claim.key in each.placement.sessions
            for each in replicas
            if each is not replica
        )
        replica.placement.admit(ticket, now, is_known_elsewhere=is_known_elsewhere)
        self._lost_keys.pop(claim.key, None)

    def find_home(self, claim: SessionClaim, replicas: Iterable[ReplicaSlots], now: float) -> ReplicaSlots | None:
        """Return the home of the claim's session among those of `replicas` whose circuit breaker admits requests now.

        None: there is none. Room is not looked at. `now`: monotonic seconds.
        """
        well_replicas = [replica for replica in replicas if replica.admits_request(now)]
        return max(
            well_replicas, key=lambda replica: rendezvous_score(claim.key, replica.endpoint.replica), default=None
        )

    def find_holder(self, claim: SessionClaim, replicas: Iterable[ReplicaSlots], now: float) -> ReplicaSlots | None:
        """Return the replica that is expected to have most tokens of the turn's prompt in its cache; None: none has.

        Replicas whose circuit breaker admits no request now do not count. Room is not looked at. `now`: monotonic
        seconds.
        """
        holder, most_tokens = None, 0
        for replica in replicas:
            tokens = 0 if replica.placement is None else _cached_tokens(replica, claim)
            if tokens > most_tokens and replica.admits_request(now):
                holder, most_tokens = replica, tokens
        return holder

    def stays_home(
        self,
        claim: SessionClaim,
        home: ReplicaSlots,
        other: ReplicaSlots,
        slots: int,
        mean_s: float | None,
        now: float,
        *,
        has_room: bool,
    ) -> bool:
        """Return whether the turn goes to `home`, and waits there unless `has_room`.

        False: it goes to `other`, which has room. `slots`: slots of one replica. `mean_s`: mean seconds of an answer;
        None: not known. `now`: monotonic seconds. See `leaves_home`.
        """
        return not leaves_home(
            ReplicaLoad(home.slots_taken, has_room, _cached_tokens(home, claim)),
            ReplicaLoad(other.slots_taken, True, _cached_tokens(other, claim)),
            max(1, slots),
            mean_s,
            self.prefill_pace.token_s,
            0.0 if claim.waits_since is None else now - claim.waits_since,
        )

    def _lose(self, placement: SessionPlacement) -> None:
        placement.abandon()
        for key in placement.sessions:
            self._lost_keys[key] = None
        while len(self._lost_keys) > _MOST_LOST:
            self._lost_keys.popitem(last=False)


def _cached_tokens(replica: ReplicaSlots, claim: SessionClaim) -> int:
    """Return how many tokens of the turn's prompt the replica is expected to have in its cache."""
    return 0 if replica.placement is None else replica.placement.sessions.count_cached(claim)
