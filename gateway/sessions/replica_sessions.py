"""The sessions whose cache one replica keeps, and what a turn of one finds there. Pure: `now` is monotonic seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from gateway.protocols.common.conversation import Fields
from gateway.sessions.transcript import Beginning, Transcript

Decision = Literal["new", "reused", "rebuilt"]
"""What a turn finds: the gateway knows no such session; the replica has the cache of what the turn begins with; or the
gateway knows the session, and the replica computes it again."""


class Sampling(NamedTuple):
    """The fields of a request that LiteRT-LM binds to its conversation."""

    temperature: Any = None
    top_k: Any = None
    top_p: Any = None
    seed: Any = None

    @classmethod
    def of(cls, fields: Fields) -> Sampling:
        """Return those of a request."""
        return cls(*(fields.get(name) for name in cls._fields))


class SessionClaim:
    """One request's turn in its session."""

    __slots__ = ("cached_tokens", "decision", "held_tokens", "key", "sampling", "transcript", "waits_since")

    def __init__(self, key: bytes, transcript: Transcript, sampling: Sampling) -> None:
        """`key`: see `session_name.derive_session_key`."""
        self.key = key
        self.transcript = transcript
        self.sampling = sampling
        self.decision: Decision | None = None
        """What the turn found in the replica that it is inside; None: it is inside none."""
        self.held_tokens: int | None = None
        """Tokens of prompt and answer that the engine holds after the turn; None: the turn has not come to an
        answer."""
        self.cached_tokens = 0
        """Tokens that the replica was expected to have in its cache, when the turn entered it."""
        self.waits_since: float | None = None
        """When the turn began to wait for its home while another replica had room; None: it has not."""


@dataclass(slots=True)
class Session:
    """A session as one replica keeps it."""

    used_at: float
    """When its last turn began or ended."""
    sampling: Sampling | None = None
    seen: Beginning | None = None
    """What its last turn asked with; None: no turn has come to an answer yet, or one that computed it anew has not."""
    tokens: int = 0
    """Tokens of its last turn, prompt and answer; 0: the engine counted none."""
    turns_inside: int = 0
    slot: int | None = None
    """The engine's slot that has its cache; None: the engine finds it by itself, or no slot has it."""


class ReplicaSessions:
    """The sessions of one replica, by key, in order of their last use."""

    __slots__ = ("_binds_sampling", "_sessions", "capacity")

    def __init__(self, capacity: int, *, binds_sampling: bool = False) -> None:
        """`capacity`: sessions to keep. `binds_sampling`: a session whose sampling changes is computed anew."""
        self.capacity = capacity
        self._binds_sampling = binds_sampling
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._sessions)

    def find_session(self, key: bytes) -> Session | None:
        """Return the session; None: the replica does not keep it."""
        return self._sessions.get(key)

    def decide(self, claim: SessionClaim, *, is_known_elsewhere: bool) -> Decision:
        """Return what a turn finds here. `is_known_elsewhere`: another replica keeps the session, or one that is gone
        did."""
        session = self._sessions.get(claim.key)
        if session is None:
            return "rebuilt" if is_known_elsewhere else "new"
        return "reused" if self._continues(session, claim) else "rebuilt"

    def count_cached(self, claim: SessionClaim) -> int:
        """Return how many tokens of a turn's prompt are in the cache, as far as engines have counted them."""
        session = self._sessions.get(claim.key)
        return session.tokens if session is not None and self._continues(session, claim) else 0

    def begin_turn(self, key: bytes, now: float) -> Session:
        """Note that a turn of the session is inside, and return the session, which is now the last to be dropped."""
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = Session(now)
        self._sessions.move_to_end(key)
        session.used_at = now
        session.turns_inside += 1
        return session

    def drop_oldest(self) -> Session | None:
        """Drop and return the session that was used longest ago, if there are more than `capacity`; None: there are
        not, or a turn of each is inside."""
        if len(self._sessions) <= self.capacity:
            return None
        for key, session in self._sessions.items():
            if not session.turns_inside:
                return self._sessions.pop(key)
        return None

    def drop_session(self, key: bytes) -> None:
        """Drop a session."""
        del self._sessions[key]

    def end_turn(self, claim: SessionClaim, now: float) -> Session | None:
        """Note that a turn is out. Return the session if it is dropped, because none of its turns has come to an
        answer; None: it is kept, or was dropped before."""
        session = self._sessions.get(claim.key)
        if session is None or not session.turns_inside:
            return None
        session.turns_inside -= 1
        session.used_at = now
        if claim.held_tokens is not None:
            session.seen = claim.transcript.whole()
            session.sampling = claim.sampling
            session.tokens = claim.held_tokens or session.tokens
        elif session.seen is None and not session.turns_inside:
            return self._sessions.pop(claim.key)
        elif claim.decision == "rebuilt":
            session.seen, session.tokens = None, 0  # what it began to compute took the place of what was there
        return None

    def _continues(self, session: Session, claim: SessionClaim) -> bool:
        if session.turns_inside or session.seen is None or not claim.transcript.begins_with(session.seen):
            return False
        return not self._binds_sampling or claim.sampling == session.sampling
