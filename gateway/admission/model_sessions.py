"""The sessions of one model: which replica is a session's home, and when it leaves it. Pure.

Gateways that know the same replicas find the same home without asking each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from contract.routing import ModelRoute
from contract.status import ModelState
from gateway.admission.ticket import ReplicaSlots, SessionPlacement, SessionTerms, Ticket
from gateway.sessions import SessionClaim

_KEPT: Final = 0.9
"""Weight of the earlier samples at each new one."""
_LEAST_SAMPLE: Final = 128
"""Fewest computed tokens of a sample: with fewer, fixed costs of a request outweigh the prefill."""


def rendezvous_score(key: bytes, replica: str) -> int:
    """Return the score, 0 to 2**64 - 1, of the replica of this name for the session `key`, equal in every gateway.

    The replica with the highest score is the session's home (rendezvous hashing). So a replica that comes or goes
    changes the home only of sessions that it gets or had. Raises ValueError for a key of more than 64 bytes.
    """
    digest = blake2b(replica.encode(), digest_size=8, key=key)
    return int.from_bytes(digest.digest(), "big")


class ReplicaLoad(NamedTuple):
    """Load of one replica, and what its cache holds for one turn of a session, as `leaves_home` compares them.
    `has_room`: the turn can enter now. `cached_tokens`: tokens of its prompt that are expected in the cache; 0: the
    session is not there."""

    slots_taken: int
    """Slots that the requests inside hold together."""
    has_room: bool
    """Whether the turn can enter the replica now, without waiting."""
    cached_tokens: int
    """Tokens of the turn's prompt that the replica is expected to have in its cache; 0: the session is not there."""


def leaves_home(
    home: ReplicaLoad, other: ReplicaLoad, slots: int, mean_s: float | None, token_s: float | None, waited_s: float
) -> bool:
    """Return whether a session's turn goes to `other` instead of `home`, because its answer is expected sooner there.

    The caller has checked that `other` has room. `slots`: slots of each replica, above 0. The expected delay at a
    replica is `mean_s`, the mean seconds of an answer, times the share of its slots that is taken. At the home,
    `waited_s` is added, the seconds since the turn began to wait for it. A replica with fewer cached tokens of the
    prompt gets `token_s` seconds more per missing token. On equal delays the turn stays.

    `mean_s` None: no answer has come yet; a home with room is never left, and a full one always. `token_s` None: not
    known; a home that has more cached tokens is left if it is full and not otherwise, one that has fewer is left at
    once, and where both have the same number the delays decide.
    """
    if mean_s is None:
        return not home.has_room
    again_tokens = home.cached_tokens - other.cached_tokens
    if token_s is None and again_tokens:
        return again_tokens < 0 or not home.has_room
    home_s = mean_s * home.slots_taken / slots + waited_s
    other_s = mean_s * other.slots_taken / slots
    return home_s > other_s + again_tokens * (token_s or 0.0)


class PrefillPace:
    """Seconds that a model's engines take to compute one token of a prompt, a weighted mean over turns of sessions."""

    __slots__ = ("_seconds", "_tokens")

    def __init__(self) -> None:
        self._seconds = self._tokens = 0.0

    @property
    def token_s(self) -> float | None:
        """Mean seconds per token of a prompt that an engine computes; None: no sample yet."""
        return self._seconds / self._tokens if self._tokens else None

    def record_prompt(self, tokens: int, seconds: float) -> None:
        """Record one sample: the first token arrived `seconds` after the request was sent, and the engine computed
        `tokens` tokens of the prompt (those that were not cached). Samples of fewer than 128 tokens are ignored."""
        if tokens >= _LEAST_SAMPLE:
            self._seconds = self._seconds * _KEPT + seconds
            self._tokens = self._tokens * _KEPT + tokens


_MOST_LOST: Final = 4096
_UNLOADED: Final = (ModelState.UNLOADED, ModelState.SLEEPING, ModelState.UNLOADING)


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
            each.placement is not None and each.placement.sessions.find_session(claim.key) is not None
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
