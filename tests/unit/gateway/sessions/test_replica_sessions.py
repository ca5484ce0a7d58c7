"""What a turn finds in a replica, and which sessions a replica keeps."""

from __future__ import annotations

import pytest

from gateway.sessions.replica_sessions import ReplicaSessions, Sampling, SessionClaim
from gateway.sessions.transcript import Transcript


def claim_of(name: str, *messages: str, temperature: float | None = None) -> SessionClaim:
    """A turn that asks with these messages."""
    return SessionClaim(name.encode(), Transcript(messages), Sampling(temperature=temperature))


def turn(sessions: ReplicaSessions, claim: SessionClaim, *, tokens: int | None = 10) -> None:
    """A whole turn; `tokens` None: it comes to no answer."""
    sessions.begin_turn(claim, 1.0)
    sessions.drop_oldest()
    claim.held_tokens = tokens
    sessions.end_turn(claim, 2.0)


def test_the_first_turn_is_new_and_the_next_finds_its_cache() -> None:
    sessions = ReplicaSessions(4)
    assert sessions.decide(claim_of("a", "x"), is_known_elsewhere=False) == "new"
    turn(sessions, claim_of("a", "x"), tokens=70)
    assert sessions.decide(claim_of("a", "x", "y", "z"), is_known_elsewhere=False) == "reused"
    assert sessions.decide(claim_of("a", "x"), is_known_elsewhere=False) == "reused", "asked again"
    assert sessions.decide(claim_of("b", "x"), is_known_elsewhere=False) == "new"
    session = sessions.find_session(b"a")
    assert session is not None
    assert (session.tokens, session.used_at) == (70, 2.0)


def test_another_beginning_or_another_replica_is_rebuilt() -> None:
    sessions = ReplicaSessions(4)
    turn(sessions, claim_of("a", "x", "y"))
    assert sessions.decide(claim_of("a", "z", "y"), is_known_elsewhere=False) == "rebuilt"
    assert sessions.decide(claim_of("a", "x"), is_known_elsewhere=False) == "rebuilt"
    assert sessions.decide(claim_of("b", "x"), is_known_elsewhere=True) == "rebuilt"


@pytest.mark.parametrize(("binds", "decision"), [(True, "rebuilt"), (False, "reused")])
def test_sampling_counts_where_the_engine_binds_it(binds: bool, decision: str) -> None:
    sessions = ReplicaSessions(4, binds_sampling=binds)
    turn(sessions, claim_of("a", "x", temperature=0.5))
    assert sessions.decide(claim_of("a", "x", "y", temperature=0.5), is_known_elsewhere=False) == "reused"
    assert sessions.decide(claim_of("a", "x", "y", temperature=0.6), is_known_elsewhere=False) == decision


def test_the_sampling_of_a_request() -> None:
    fields = {"temperature": 0.5, "top_k": 3, "top_p": 1, "seed": 7, "max_tokens": 5}
    assert Sampling.of(fields) == (0.5, 3, 1, 7)
    assert Sampling.of({}) == Sampling()


def test_the_session_used_longest_ago_makes_room() -> None:
    sessions = ReplicaSessions(4)
    for name in "abcd":
        turn(sessions, claim_of(name, "x"))
    turn(sessions, claim_of("a", "x"))
    turn(sessions, claim_of("e", "x"))
    assert list(sessions) == [b"c", b"d", b"a", b"e"]


def test_a_session_with_a_turn_inside_is_not_dropped() -> None:
    sessions = ReplicaSessions(1)
    first = claim_of("a", "x")
    sessions.begin_turn(first, 1.0)
    sessions.begin_turn(claim_of("b", "x"), 2.0)
    assert sessions.drop_oldest() is None
    assert len(sessions) == 2
    first.held_tokens = 5
    sessions.end_turn(first, 3.0)
    assert sessions.drop_oldest() is not None
    assert list(sessions) == [b"b"]


def test_a_second_turn_at_the_same_time_finds_no_cache() -> None:
    sessions = ReplicaSessions(4)
    turn(sessions, claim_of("a", "x"))
    sessions.begin_turn(claim_of("a", "x"), 1.0)
    assert sessions.decide(claim_of("a", "x"), is_known_elsewhere=False) == "rebuilt"


def test_a_turn_without_an_answer_leaves_what_was_there() -> None:
    sessions = ReplicaSessions(4)
    turn(sessions, claim_of("a", "x"), tokens=None)
    assert len(sessions) == 0
    turn(sessions, claim_of("a", "x"))
    turn(sessions, claim_of("a", "x", "y"), tokens=None)
    assert sessions.decide(claim_of("a", "x", "z"), is_known_elsewhere=False) == "reused"
    turn(sessions, claim_of("a", "x", "y"), tokens=0)
    session = sessions.find_session(b"a")
    assert session is not None
    assert session.tokens == 10, "the engine has told no other count"


def test_a_turn_of_a_session_that_is_gone_ends_unnoticed() -> None:
    sessions = ReplicaSessions(4)
    claim = claim_of("a", "x")
    sessions.begin_turn(claim, 1.0)
    sessions.drop_session(claim.key)
    assert sessions.end_turn(claim, 2.0) is None
    assert len(sessions) == 0


def test_a_turn_of_a_session_that_is_gone_ends_none_of_a_later_one_of_that_name() -> None:
    sessions = ReplicaSessions(1)
    older, newer = claim_of("a", "x"), claim_of("a", "z")
    sessions.begin_turn(older, 1.0)
    sessions.drop_session(older.key)
    session = sessions.begin_turn(newer, 2.0)
    older.held_tokens = 70
    assert sessions.end_turn(older, 3.0) is None
    assert (session.turns_inside, session.seen, session.used_at) == (1, None, 2.0)
    sessions.begin_turn(claim_of("b", "x"), 4.0)
    assert sessions.drop_oldest() is None, "both have a turn inside"


def test_a_cache_counts_for_a_turn_that_goes_on_with_it() -> None:
    sessions = ReplicaSessions(4, binds_sampling=True)
    assert sessions.count_cached(claim_of("a", "x")) == 0
    turn(sessions, claim_of("a", "x"), tokens=70)
    assert sessions.count_cached(claim_of("a", "x", "y")) == 70
    assert sessions.count_cached(claim_of("a", "z", "y")) == 0
    assert sessions.count_cached(claim_of("a", "x", "y", temperature=0.5)) == 0
    sessions.begin_turn(claim_of("a", "x"), 3.0)
    assert sessions.count_cached(claim_of("a", "x", "y")) == 0, "another turn has it"


def test_a_turn_that_fails_after_it_began_anew_leaves_no_cache() -> None:
    sessions = ReplicaSessions(4)
    turn(sessions, claim_of("a", "x"), tokens=70)
    for messages, decision, after in ((("x", "y"), "reused", "reused"), (("z",), "rebuilt", "rebuilt")):
        failing = claim_of("a", *messages)
        failing.decision = sessions.decide(failing, is_known_elsewhere=False)
        assert failing.decision == decision
        turn(sessions, failing, tokens=None)
        assert sessions.decide(claim_of("a", "x", "y"), is_known_elsewhere=False) == after
    assert sessions.count_cached(claim_of("a", "x", "y")) == 0
