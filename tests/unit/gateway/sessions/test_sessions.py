"""Which session a request belongs to, and its key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocols.common.conversation import Assistant, Call, Image, Prompt, System, Text, ToolResult, User
from gateway.protocols.common.request import InferenceRequest, parse_request
from gateway.protocols.responses.context import ResponseContext
from gateway.sessions import ReplicaSessions, Sampling, SessionClaim, Transcript, derive_session_key, find_session_name
from tests.support.outcomes import present, refusal


def context_of(**fields: Any) -> ResponseContext:
    return ResponseContext(id="resp_1", created_at=0, clock=lambda: 0.0, new_id=lambda kind: kind, **fields)


CHAIN = context_of(history=({"id": "msg_1"}, {"id": "msg_2"}))


@pytest.mark.parametrize(
    ("fields", "headers", "context", "name"),
    [
        ({}, [], None, None),
        ({"session_id": ""}, [], None, None),
        ({"session_id": None}, [], None, None),
        ({"session_id": "a"}, [(b"x-conversation-id", b"b")], None, "a"),
        ({"session_id": "", "prompt_cache_key": "k"}, [], None, "k"),
        ({"prompt_cache_key": "k"}, [(b"x-conversation-id", b"b::some/model")], None, "b"),
        ({"prompt_cache_key": "k"}, [(b"x-conversation-id", b"::m")], None, "k"),
        ({"prompt_cache_key": 7}, [], None, None),
        ({"prompt_cache_key": "k"}, [], context_of(conversation_id="conv_1"), "conv_1"),
        ({"prompt_cache_key": "k"}, [], CHAIN, "msg_1"),
        ({}, [], context_of(), None),
    ],
)
def test_the_first_name_that_is_there(
    fields: dict[str, Any], headers: list[tuple[bytes, bytes]], context: ResponseContext | None, name: str | None
) -> None:
    assert find_session_name(fields, headers, context) == name


def test_a_session_id_is_a_string() -> None:
    assert refusal(lambda: find_session_name({"session_id": 7}, [], None)) == ("invalid_request", "session_id")


def test_a_key_is_its_tenants_and_its_models() -> None:
    keys = {
        derive_session_key(*names) for names in [("a", "m", "s"), ("b", "m", "s"), ("a", "n", "s"), ("am", "", "s")]
    }
    assert len(keys) == 4
    assert {len(key) for key in keys} == {16}
    assert derive_session_key("a", "m", "s").hex() == "f42fd165b7f88b068d85ff9e6daee892"
    assert derive_session_key("a", "m", "\ud800") != derive_session_key("a", "m", "?")


def claim_of(name: str, *messages: str, temperature: float | None = None) -> SessionClaim:
    return SessionClaim(name.encode(), Transcript(messages), Sampling(temperature=temperature))


def turn(sessions: ReplicaSessions, claim: SessionClaim, *, tokens: int | None = 10) -> None:
    """A whole turn; `tokens` None: it comes to no answer."""
    sessions.begin_turn(claim, 1.0)
    sessions.drop_oldest()
    claim.held_tokens = tokens
    sessions.end_turn(claim, 2.0)


def test_the_first_turn_is_new_and_the_next_finds_its_cache() -> None:
    sessions = ReplicaSessions(4)

    def decide(name: str, *messages: str, is_known_elsewhere: bool = False) -> str:
        return sessions.decide(claim_of(name, *messages), is_known_elsewhere=is_known_elsewhere)

    assert decide("a", "x") == "new"
    turn(sessions, claim_of("a", "x"), tokens=70)
    assert [decide("a", "x", "y", "z"), decide("a", "x"), decide("b", "x")] == ["reused", "reused", "new"]
    session = present(sessions.find_session(b"a"))
    assert (session.tokens, session.used_at) == (70, 2.0)
    # Another beginning or another replica is rebuilt, and so is a second turn at the same time.
    turn(sessions, claim_of("a", "x", "y"))
    assert [decide("a", "z", "y"), decide("a", "x"), decide("b", "x", is_known_elsewhere=True)] == ["rebuilt"] * 3
    sessions.begin_turn(claim_of("a", "x", "y"), 1.0)
    assert decide("a", "x", "y") == "rebuilt"


@pytest.mark.parametrize(("binds", "decision"), [(True, "rebuilt"), (False, "reused")])
def test_sampling_counts_where_the_engine_binds_it(binds: bool, decision: str) -> None:
    sessions = ReplicaSessions(4, binds_sampling=binds)
    turn(sessions, claim_of("a", "x", temperature=0.5))
    assert sessions.decide(claim_of("a", "x", "y", temperature=0.5), is_known_elsewhere=False) == "reused"
    assert sessions.decide(claim_of("a", "x", "y", temperature=0.6), is_known_elsewhere=False) == decision
    fields = {"temperature": 0.5, "top_k": 3, "top_p": 1, "seed": 7, "max_tokens": 5}
    assert Sampling.of(fields) == (0.5, 3, 1, 7)
    assert Sampling.of({}) == Sampling()


def test_the_session_used_longest_ago_makes_room_unless_it_has_a_turn_inside() -> None:
    sessions = ReplicaSessions(4)
    for name in "abcd":
        turn(sessions, claim_of(name, "x"))
    turn(sessions, claim_of("a", "x"))
    turn(sessions, claim_of("e", "x"))
    assert list(sessions) == [b"c", b"d", b"a", b"e"]
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


def test_a_turn_without_an_answer_leaves_what_was_there() -> None:
    sessions = ReplicaSessions(4)
    turn(sessions, claim_of("a", "x"), tokens=None)
    assert len(sessions) == 0
    turn(sessions, claim_of("a", "x"))
    turn(sessions, claim_of("a", "x", "y"), tokens=None)
    assert sessions.decide(claim_of("a", "x", "z"), is_known_elsewhere=False) == "reused"
    turn(sessions, claim_of("a", "x", "y"), tokens=0)
    session = present(sessions.find_session(b"a"))
    assert session.tokens == 10, "the engine has told no other count"


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


def request_of(**fields: Any) -> InferenceRequest:
    return parse_request(json.dumps({"model": "m", **fields}).encode(), may_stream=True)


def said(*texts: str) -> list[dict[str, str]]:
    """Messages of the user and the model in turn."""
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


EARLIER = said("a", "b", "c")


SYSTEM_C = {"role": "system", "content": "c"}


@pytest.mark.parametrize(
    ("earlier", "later", "continues"),
    [
        *(({"messages": EARLIER}, {"messages": later}, True) for later in (EARLIER, said("a", "b", "c", "d", "e"))),
        *(
            ({"messages": EARLIER}, {"messages": later}, False)
            for later in (said("a", "b"), said("a", "B", "c", "d"), said("ab", "c"), [], [*EARLIER[:2], SYSTEM_C])
        ),
        ({"prompt": "once upon"}, {"prompt": "once upon a time"}, True),
        ({"prompt": "once upon"}, {"prompt": "twice upon a time"}, False),
        *(({"system": "short", "messages": EARLIER}, {"system": text, "messages": EARLIER}, text == "short")
          for text in ("short", "long")),
    ],
)  # fmt: skip
def test_requests_are_compared_up_to_what_was_seen(earlier: Any, later: Any, continues: bool) -> None:
    seen = Transcript.of(request_of(**earlier)).whole()
    assert Transcript.of(request_of(**later)).begins_with(seen) is continues


def test_a_digest_is_the_same_in_every_process() -> None:
    seen = Transcript.of(request_of(messages=said("a"))).whole()
    assert (seen.length, seen.digest.hex()) == (1, "03d10c3caecabf3250216bcc1cddd7e0")


def test_what_was_read_of_a_request_counts_without_its_places() -> None:
    turns = (
        System("be kind", place="instructions"),
        User((Text("look"), Image("data:,x", place="input[0].content[1]")), place="input[0]"),
        Assistant(calls=(Call("c1", "f", "{}"),), place="input[1]"),
        ToolResult("c1", (Text("1"),), place="input[2]"),
    )
    moved = (
        System("be kind"),
        User((Text("look"), Image("data:,x"))),
        Assistant(calls=(Call("c1", "f", "{}"),)),
        ToolResult("c1", (Text("1"),)),
        User((Text("and?"),)),
    )
    earlier, later = request_of(input="look"), request_of(input="and?")
    earlier.prompt, later.prompt = Prompt(turns=turns), Prompt(turns=moved)
    seen = Transcript.of(earlier).whole()
    assert seen.length == 4
    assert Transcript.of(later).begins_with(seen)
    later.prompt = Prompt(turns=(*moved[:2], Assistant(calls=(Call("c1", "f", "[]"),)), *moved[3:]))
    assert not Transcript.of(later).begins_with(seen)


def test_messages_that_are_nested_too_deeply_fail_no_turn() -> None:
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    long = Transcript([{"role": "user", "content": "a"}, deep])
    assert long.begins_with(Transcript([{"role": "user", "content": "a"}]).whole())
    assert not Transcript([{"role": "user", "content": "b"}, deep]).begins_with(long.whole())
