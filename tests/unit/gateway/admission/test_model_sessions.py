"""Which replica a turn goes to, what it finds there, and who waits for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from contract.routing import ModelRoute
from contract.status import ModelState
from gateway.admission.engine_slots import PROTECTED_S, EngineSlots
from gateway.admission.model_sessions import PrefillPace, ReplicaLoad, leaves_home, rendezvous_score
from gateway.admission.ticket import Ticket
from tests.support.admission import AdmissionHarness, claim_of, route_of, where, who
from tests.support.outcomes import present

TWO = ("m-0", "m-1")


def route_with_sessions(replicas: Sequence[str] = TWO, **fields: Any) -> ModelRoute:
    """`m`: replicas of two slots, which requests name, for four sessions."""
    return route_of("m", replicas, **{"target": 2, "session_cache": 4, "session_binding": "slot", **fields})


def harness(*replicas: str, **fields: Any) -> AdmissionHarness:
    made = AdmissionHarness()
    made.table(route_with_sessions(replicas or TWO, **fields))
    return made


def home_of(name: str, replicas: Sequence[str] = TWO) -> str:
    key = claim_of(name).key
    return max(replicas, key=lambda replica: rendezvous_score(key, replica))


def at_home_in(replica: str, count: int = 1) -> list[str]:
    """Sessions whose home is `replica`, of `TWO`."""
    return [name for name in map(str, range(100)) if home_of(name) == replica][:count]


AT_HOME = at_home_in("m-1")[0]


def turn(gateway: AdmissionHarness, name: str, *messages: str, tokens: int | None = 1_000) -> tuple[str, str | None]:
    """A whole turn: its replica, and what it found."""
    gateway.now += 1
    ticket = gateway.come(session=claim_of(name, messages, tokens=tokens))
    assert ticket.session is not None
    replica, decision = where(ticket), ticket.session.decision
    gateway.leave(ticket)
    return replica, decision


def fill(gateway: AdmissionHarness, replica: str, slots: int = 2) -> list[Ticket]:
    """Strangers until so many slots of `replica` are taken, and no other's."""
    inside: list[Ticket] = []
    while sum(where(ticket) == replica for ticket in inside) < slots:
        inside.append(gateway.come())
    for ticket in inside:
        if where(ticket) != replica:
            gateway.leave(ticket)
    return [ticket for ticket in inside if ticket.state == "inside"]


def test_turns_go_home_whoever_had_the_last_request() -> None:
    gateway = harness()
    for name in [*at_home_in("m-0", 2), *at_home_in("m-1", 2)]:
        assert turn(gateway, name, "x") == (home_of(name), "new")
        gateway.leave(gateway.come())
        assert turn(gateway, name, "x", "y", "z") == (home_of(name), "reused")
    ticket = harness(session_cache=0).come(session=claim_of(AT_HOME))
    assert (present(ticket.session).decision, ticket.engine_slot) == (None, None), "a model that keeps no sessions"


def test_who_takes_several_slots_names_none_and_nobody_does_meanwhile() -> None:
    gateway = harness("m-0", target=3)
    gateway.leave(gateway.come(session=claim_of("a")))
    several = gateway.come(slots=2)
    assert several.engine_slot is None
    ticket = gateway.come(session=claim_of("a"))
    assert (ticket.engine_slot, present(ticket.session).decision) == (None, "reused")
    gateway.leave(several)
    gateway.leave(ticket)
    assert gateway.come(session=claim_of("a")).engine_slot == 2


def test_a_request_that_was_inside_before_the_first_session_has_an_unknown_slot() -> None:
    gateway = harness("m-0")
    earlier, ticket = gateway.come(), gateway.come(session=claim_of("a"))
    assert ticket.engine_slot is None
    gateway.leave(earlier)
    gateway.leave(ticket)
    again = gateway.come(session=claim_of("a"))
    assert (again.engine_slot, present(again.session).decision) == (1, "rebuilt"), "it may be in any slot"


def test_a_slot_is_named_by_everybody_in_a_replica_with_sessions_and_nobody_else() -> None:
    assert harness("m-0").come().engine_slot is None
    gateway = harness("m-0")
    first = gateway.come(session=claim_of("a"))
    stranger = gateway.come()
    assert (first.engine_slot, stranger.engine_slot) == (1, 0)
    gateway.leave(first)
    assert gateway.come(slots=2).state == "waiting"
    gateway.leave(stranger)


def test_one_session_too_many_drops_the_one_used_longest_ago() -> None:
    gateway = harness("m-0", target=5)
    for name in "abcde":
        assert turn(gateway, name, "x") == ("m-0", "new")
    assert turn(gateway, "b", "x", "y") == ("m-0", "reused")
    assert turn(gateway, "a", "x", "y") == ("m-0", "new")
    assert [turn(gateway, name, "x", "y")[1] for name in "bdec"] == ["reused", "reused", "reused", "new"]
    gateway = harness("m-0")
    for name in "abc":
        turn(gateway, name, "x")
    assert [turn(gateway, name, "x", "y")[1] for name in "cba"] == ["reused", "reused", "new"]


def test_a_stranger_takes_the_slot_of_the_session_that_paused_for_longest_only_if_it_must() -> None:
    gateway = harness("m-0", target=3)
    for name in "ab":
        turn(gateway, name, "x")
    for _ in range(5):
        gateway.leave(gateway.come())
    assert [turn(gateway, name, "x", "y")[1] for name in "ab"] == ["reused", "reused"]
    inside = [gateway.come(), gateway.come()]
    assert turn(gateway, "b", "x", "y", "z")[1] == "reused"
    assert turn(gateway, "a", "x", "y", "z")[1] == "new"
    assert all(ticket.state == "inside" for ticket in inside)


def test_sessions_of_a_replica_that_goes_are_rebuilt_elsewhere() -> None:
    gateway = harness()
    (name,) = at_home_in("m-1")
    assert turn(gateway, name, "x") == ("m-1", "new")
    gateway.table(route_with_sessions(["m-0"]))
    assert turn(gateway, name, "x", "y") == ("m-0", "rebuilt")
    assert turn(gateway, name, "x", "y", "z") == ("m-0", "reused")
    gateway.table(route_with_sessions(["m-0", "m-1"]))
    assert turn(gateway, name, "x", "y", "z") == ("m-0", "reused"), "a new replica takes no cache away"


def test_a_replica_that_is_left_out_is_nobodys_home() -> None:
    gateway = harness()
    (name,) = at_home_in("m-1")
    turn(gateway, name, "x")
    for _ in range(3):
        gateway.admission.record_failure("m-1", gateway.now + 1)
    assert turn(gateway, name, "x", "y") == ("m-0", "rebuilt")
    gateway.now += 60
    gateway.admission.record_answer("m-1", gateway.now)
    assert turn(gateway, name, "x", "y", "z") == ("m-1", "reused"), "it has the beginning still"


def test_an_unload_drops_sessions_and_a_crash_does_not() -> None:
    for state, decision in ((ModelState.UNLOADED, "new"), (ModelState.FAILED, "rebuilt")):
        gateway = harness("m-0")
        turn(gateway, "a", "x")
        gateway.table(route_with_sessions((), state=state))
        gateway.table(route_with_sessions(["m-0"]))
        assert turn(gateway, "a", "x", "y") == ("m-0", decision), state


def test_a_session_stays_where_its_last_turn_took_it() -> None:
    gateway = harness("m-0", "m-1", "m-2", session_binding=None)
    name = next(each for each in map(str, range(100)) if home_of(each, ("m-0", "m-1", "m-2")) == "m-1")
    assert turn(gateway, name, "x") == ("m-1", "new")
    strangers = fill(gateway, "m-1")
    elsewhere, decision = turn(gateway, name, "x", "y", tokens=2_000)
    assert (elsewhere != "m-1", decision) == (True, "rebuilt")
    for stranger in strangers:
        gateway.leave(stranger)
    assert turn(gateway, name, "x", "y", "z", tokens=3_000) == (elsewhere, "reused")


def busy_home(gateway: AdmissionHarness, *, tokens: int = 20_000, slots: int = 2) -> list[Ticket]:
    """The session AT_HOME is cached in `m-1`, answers take 8 s and prompts 1 ms a token, and strangers take slots of
    `m-1`."""
    turn(gateway, AT_HOME, "x", tokens=tokens)
    for _ in range(50):
        ticket = gateway.come(session=claim_of("pace"))
        gateway.admission.record_prompt(ticket, 1_000, 1.0)
        gateway.now += 8.0
        gateway.leave(ticket)
    return fill(gateway, "m-1", slots)


def test_a_turn_waits_for_its_full_home_as_long_as_that_costs_less() -> None:
    gateway = harness(session_binding=None)
    inside = busy_home(gateway)
    ticket = gateway.come(session=claim_of(AT_HOME, ("x", "y")))
    for _ in range(40):
        stranger = gateway.come()
        assert where(stranger) == "m-0", "who waits for one replica holds nobody else up"
        gateway.leave(stranger)
    assert ticket.state == "waiting", "20 s to compute again, and 8 s to wait at most"
    assert who(gateway.leave(inside[0])) == [(ticket, "m-1")]
    assert present(ticket.session).decision == "reused"


def test_a_turn_that_has_waited_as_long_as_computing_takes_goes_elsewhere() -> None:
    gateway = harness(session_binding=None)
    busy_home(gateway)
    ticket = gateway.come(session=claim_of(AT_HOME, ("x", "y")))
    gateway.now += 11.0
    assert list(gateway.admission.admit_trials(gateway.now)) == []
    gateway.now += 2.0
    assert who(list(gateway.admission.admit_trials(gateway.now))) == [(ticket, "m-0")]


def test_a_turn_leaves_its_home_where_nothing_is_known_or_it_would_be_refused_or_is_slower() -> None:
    gateway = harness(session_binding=None)
    turn(gateway, AT_HOME, "x")
    fill(gateway, "m-1")
    assert turn(gateway, AT_HOME, "x", "y") == ("m-0", "rebuilt")
    gateway = harness(session_binding=None, queue_limit=0)
    busy_home(gateway)
    assert turn(gateway, AT_HOME, "x", "y") == ("m-0", "rebuilt"), "nobody is refused who could go elsewhere"
    gateway = harness(target=4)
    busy_home(gateway, tokens=1_000, slots=1)
    assert turn(gateway, AT_HOME, "x", "y") == ("m-0", "rebuilt"), "1 s to compute again, 2 s slower beside another"


def stranger(slots: EngineSlots, now: float, prefix: tuple[int, ...] = ()) -> int:
    """A request without a session that comes and goes."""
    placement = present(slots.place_stranger(prefix, now))
    slots.release(placement.slot, now)
    return placement.slot


def session(slots: EngineSlots, key: bytes, held: int | None, now: float) -> tuple[int, bytes | None]:
    placement = present(slots.place_session(key, held, now))
    slots.release(placement.slot, now)
    return placement


def test_sessions_keep_the_last_slots_and_strangers_take_turns_in_the_others() -> None:
    slots = EngineSlots(4, 0)
    assert session(slots, b"a", None, 0.0) == (3, None)
    assert session(slots, b"b", None, 1.0) == (2, None)
    assert [stranger(slots, 2.0 + number) for number in range(5)] == [0, 1, 0, 1, 0]
    assert session(slots, b"a", 3, 9.0) == (3, None)


def test_a_stranger_returns_to_the_slot_that_had_its_beginning() -> None:
    slots = EngineSlots(4, 0)
    session(slots, b"a", None, 0.0)
    prefixes = [(11, 10), (21, 20), (31, 30), (12, 11, 10), (22, 21, 20)]
    assert [stranger(slots, float(at), prefix) for at, prefix in enumerate(prefixes, 1)] == [0, 1, 2, 0, 1]


def test_the_slot_of_the_session_that_has_paused_for_longest_goes_first() -> None:
    slots = EngineSlots(2, 0)
    session(slots, b"a", None, 0.0)
    session(slots, b"b", None, 1.0)
    assert session(slots, b"c", None, 2.0) == (1, b"a")
    assert slots.place_stranger((), 3.0) == (0, b"b")
    assert session(slots, b"d", None, 4.0) == (1, b"c")


def test_a_session_is_protected_from_strangers_for_a_while() -> None:
    slots = EngineSlots(2, 0)
    session(slots, b"a", None, 0.0)
    assert [stranger(slots, at) for at in (1.0, PROTECTED_S - 1)] == [0, 0]
    assert stranger(slots, PROTECTED_S + 1) == 0, "the other slot was used later than that"
    slots = EngineSlots(2, 0)
    session(slots, b"a", None, 0.0)
    stranger(slots, PROTECTED_S + 1)
    placement = slots.place_stranger((), PROTECTED_S + 2)
    assert placement == (1, b"a")


def test_a_turn_whose_slot_is_busy_gets_another() -> None:
    slots = EngineSlots(2, 0)
    assert slots.place_session(b"a", None, 0.0) == (1, None)
    assert slots.place_session(b"a", 1, 1.0) == (0, None)
    assert slots.place_session(b"a", 0, 2.0) is slots.place_stranger((), 2.0) is None


def test_nothing_is_placed_while_requests_are_inside_whose_slots_are_not_known() -> None:
    slots = EngineSlots(2, 1)
    assert slots.place_session(b"a", None, 0.0) is slots.place_stranger((), 0.0) is None
    slots.unplaced_count -= 1
    assert slots.place_stranger((), 0.0) == (0, None)


def test_a_slot_that_was_given_up_is_a_strangers() -> None:
    slots = EngineSlots(1, 0)
    session(slots, b"a", None, 0.0)
    slots.give_up(0)
    assert slots.place_stranger((), 1.0) == (0, None)


def choose_home(key: bytes, replicas: list[str]) -> str:
    return max(replicas, key=lambda replica: rendezvous_score(key, replica))


def test_sessions_are_spread_the_same_in_every_gateway_and_only_those_of_a_replica_that_goes_move() -> None:
    keys = [number.to_bytes(16, "big") for number in range(400)]
    replicas = ["m-0", "m-1", "m-2", "m-3"]
    before = {key: choose_home(key, replicas) for key in keys}
    assert min(Counter(before.values()).values()) > 60
    after = {key: choose_home(key, replicas[:-1]) for key in keys}
    assert all(after[key] == home for key, home in before.items() if home != "m-3")
    assert {home for key, home in after.items() if before[key] == "m-3"} == {"m-0", "m-1", "m-2"}
    assert choose_home(bytes(16), ["m-3", "m-1", "m-0", "m-2"]) == choose_home(bytes(16), ["m-0", "m-1", "m-2", "m-3"])
    assert rendezvous_score(bytes(16), "m-0") == 15899497991274220434


SLOTS, MEAN_S, TOKEN_S = 4, 8.0, 0.001


@pytest.mark.parametrize(
    ("taken", "other_taken", "tokens", "other_tokens", "waited_s", "leaves"),
    [
        (0, 0, 0, 0, 0.0, False),  # equals: home
        (1, 0, 0, 0, 0.0, True),  # nothing to lose
        (1, 0, 1_900, 0, 0.0, True),  # a round of the slots takes 2 s a request
        (1, 0, 2_100, 0, 0.0, False),
        (1, 0, 2_100, 200, 0.0, True),  # the other has a part of it
        (1, 0, 0, 9_000, 0.0, True),  # the other has more than home
        (0, 0, 0, 9_000, 0.0, True),
        (2, 3, 0, 2_100, 0.0, True),  # the cache is elsewhere, and worth a busier replica
        (2, 3, 0, 1_900, 0.0, False),
        (4, 3, 2_100, 0, 0.0, False),  # home is full, and worth the wait
        (4, 3, 2_100, 0, 0.2, True),  # which has been long enough
        (4, 0, 7_900, 0, 0.0, True),
        (4, 0, 8_100, 0, 0.0, False),
        (2, 3, 0, 0, 0.0, False),
    ],
)
def test_a_turn_leaves_home_when_waiting_costs_more_than_computing_again(
    taken: int, other_taken: int, tokens: int, other_tokens: int, waited_s: float, leaves: bool
) -> None:
    home = ReplicaLoad(taken, taken < SLOTS, tokens)
    other = ReplicaLoad(other_taken, True, other_tokens)
    assert leaves_home(home, other, SLOTS, MEAN_S, TOKEN_S, waited_s) is leaves


@pytest.mark.parametrize(
    ("home", "other", "mean_s", "token_s", "leaves"),
    [
        (ReplicaLoad(3, True, 0), ReplicaLoad(0, True, 0), None, None, False),
        (ReplicaLoad(4, False, 99_999), ReplicaLoad(0, True, 0), None, TOKEN_S, True),
        (ReplicaLoad(3, True, 1), ReplicaLoad(0, True, 0), MEAN_S, None, False),
        (ReplicaLoad(4, False, 1), ReplicaLoad(0, True, 0), MEAN_S, None, True),
        (ReplicaLoad(1, True, 0), ReplicaLoad(0, True, 0), MEAN_S, None, True),  # a new session loses nothing
        (ReplicaLoad(0, True, 0), ReplicaLoad(1, True, 1), MEAN_S, None, True),
    ],
)
def test_what_is_not_known_keeps_a_turn_at_a_home_with_room(
    home: ReplicaLoad, other: ReplicaLoad, mean_s: float | None, token_s: float | None, leaves: bool
) -> None:
    assert leaves_home(home, other, SLOTS, mean_s, token_s, 0.0) is leaves


def test_the_pace_of_prompts_is_learned_from_long_ones() -> None:
    pace = PrefillPace()
    pace.record_prompt(100, 5.0)
    assert pace.token_s is None
    pace.record_prompt(1_000, 1.0)
    assert pace.token_s == pytest.approx(0.001)
    for _ in range(100):
        pace.record_prompt(1_000, 3.0)
    assert pace.token_s == pytest.approx(0.003, rel=0.01)
