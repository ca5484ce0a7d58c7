"""Chooses the home replica of a session, and decides when a turn goes to another replica. Pure.

Gateways that know the same replicas find the same home without asking each other.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

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
