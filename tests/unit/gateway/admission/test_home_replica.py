"""A session's home, and when a turn goes elsewhere."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.admission.home_replica import PrefillPace, ReplicaLoad, leaves_home, rendezvous_score


def home_of(key: bytes, replicas: list[str]) -> str:
    return max(replicas, key=lambda replica: rendezvous_score(key, replica))


def test_sessions_are_spread_and_only_those_of_a_replica_that_goes_move() -> None:
    keys = [number.to_bytes(16, "big") for number in range(400)]
    replicas = ["m-0", "m-1", "m-2", "m-3"]
    before = {key: home_of(key, replicas) for key in keys}
    assert min(Counter(before.values()).values()) > 60
    after = {key: home_of(key, replicas[:-1]) for key in keys}
    assert all(after[key] == home for key, home in before.items() if home != "m-3")
    assert {home for key, home in after.items() if before[key] == "m-3"} == {"m-0", "m-1", "m-2"}


def test_a_home_is_the_same_in_every_gateway() -> None:
    assert home_of(bytes(16), ["m-3", "m-1", "m-0", "m-2"]) == home_of(bytes(16), ["m-0", "m-1", "m-2", "m-3"])
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


def test_what_is_not_known_keeps_a_turn_at_a_home_with_room() -> None:
    other = ReplicaLoad(0, True, 0)
    assert not leaves_home(ReplicaLoad(3, True, 0), other, SLOTS, None, None, 0.0)
    assert leaves_home(ReplicaLoad(4, False, 99_999), other, SLOTS, None, TOKEN_S, 0.0)
    assert not leaves_home(ReplicaLoad(3, True, 1), other, SLOTS, MEAN_S, None, 0.0)
    assert leaves_home(ReplicaLoad(4, False, 1), other, SLOTS, MEAN_S, None, 0.0)
    assert leaves_home(ReplicaLoad(1, True, 0), other, SLOTS, MEAN_S, None, 0.0), "a new session loses nothing"
    assert leaves_home(ReplicaLoad(0, True, 0), ReplicaLoad(1, True, 1), SLOTS, MEAN_S, None, 0.0)


def test_the_pace_of_prompts_is_learned_from_long_ones() -> None:
    pace = PrefillPace()
    pace.record_prompt(100, 5.0)
    assert pace.token_s is None
    pace.record_prompt(1_000, 1.0)
    assert pace.token_s == pytest.approx(0.001)
    for _ in range(100):
        pace.record_prompt(1_000, 3.0)
    assert pace.token_s == pytest.approx(0.003, rel=0.01)
