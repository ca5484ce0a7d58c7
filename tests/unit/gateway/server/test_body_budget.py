"""Room for large bodies: never more than there is, in order, and nobody is forgotten."""

from __future__ import annotations

import pytest

from gateway.server.body_budget import BodyBudget, BodyReservation


class Bodies:
    """Bodies that ask for room, by name."""

    def __init__(self, max_bytes: int) -> None:
        self.budget = BodyBudget(max_bytes)
        self.let_in: list[str] = []
        self.rooms: dict[str, BodyReservation] = {}

    def come(self, name: str, size: int) -> None:
        """One comes; `let_in` has it if it had to wait first."""
        self.rooms[name] = self.budget.reserve(size, lambda: self.let_in.append(name))

    def leave(self, name: str) -> None:
        """One is over, or its client is gone."""
        self.budget.release(self.rooms.pop(name))

    @property
    def granted(self) -> set[str]:
        """Those that have room."""
        return {name for name, room in self.rooms.items() if room.is_granted}


@pytest.fixture
def bodies() -> Bodies:
    """Room for 10 bytes."""
    return Bodies(10)


def test_what_fits_does_not_wait(bodies: Bodies) -> None:
    bodies.come("a", 4)
    bodies.come("b", 6)
    assert (bodies.granted, bodies.let_in, bodies.budget.used_bytes) == ({"a", "b"}, [], 10)


def test_others_wait_in_order_and_small_ones_do_not_pass(bodies: Bodies) -> None:
    for name, size in (("a", 6), ("b", 6), ("c", 1)):
        bodies.come(name, size)
    assert bodies.granted == {"a"}
    bodies.leave("a")
    assert (bodies.let_in, bodies.budget.used_bytes) == (["b", "c"], 7)


def test_what_would_never_fit_is_alone(bodies: Bodies) -> None:
    bodies.come("a", 1)
    bodies.come("huge", 99)
    assert bodies.granted == {"a"}
    bodies.leave("a")
    bodies.come("b", 1)
    assert bodies.granted == {"huge"}
    bodies.leave("huge")
    assert bodies.granted == {"b"}


def test_who_gives_up_its_place_lets_others_pass(bodies: Bodies) -> None:
    for name, size in (("a", 6), ("b", 6), ("c", 4)):
        bodies.come(name, size)
    bodies.leave("b")
    assert bodies.granted == {"a", "c"}
    for name in ("a", "c"):
        bodies.leave(name)
    assert bodies.budget.used_bytes == 0


def test_what_is_held_has_half_of_the_room_at_most(bodies: Bodies) -> None:
    budget = bodies.budget
    assert budget.max_held_bytes == 5
    assert [budget.hold(3), budget.hold(3), budget.hold(2), budget.hold(1)] == [True, False, True, False]
    assert budget.used_bytes == 5
    budget.give_back(3)
    assert budget.hold(3)


def test_what_is_held_waits_for_nobody_and_bodies_wait_for_it(bodies: Bodies) -> None:
    bodies.come("a", 10)
    assert bodies.budget.hold(5)
    assert bodies.budget.used_bytes == 15
    bodies.come("b", 5)
    bodies.come("c", 5)
    bodies.leave("a")
    assert (bodies.let_in, bodies.budget.used_bytes) == (["b"], 10)
    bodies.budget.give_back(5)
    assert bodies.let_in == ["b", "c"]


def test_a_body_that_has_no_room_beside_what_is_held_waits_for_bodies_alone(bodies: Bodies) -> None:
    assert bodies.budget.hold(5)
    bodies.come("a", 1)
    bodies.come("large", 8)
    assert bodies.granted == {"a"}
    bodies.leave("a")
    assert bodies.granted == {"large"}
    assert bodies.budget.used_bytes == 13


def test_a_body_that_takes_more_goes_before_those_that_are_not_read(bodies: Bodies) -> None:
    for name, size in (("a", 4), ("b", 4), ("c", 4)):
        bodies.come(name, size)
    budget = bodies.budget
    assert not budget.resize(bodies.rooms["a"], 8, lambda: bodies.let_in.append("a grown"))
    bodies.come("d", 1)
    assert bodies.granted == {"a", "b"}, "c would fit beside a, which waits"
    bodies.leave("b")
    assert (bodies.let_in, budget.used_bytes) == (["a grown"], 8)
    assert budget.resize(bodies.rooms["a"], 2)
    assert (bodies.granted, budget.used_bytes) == ({"a", "c", "d"}, 7)
    assert budget.resize(bodies.rooms["c"], 20), "it has the memory already"
    assert budget.used_bytes == 23
    for name in "acd":
        bodies.leave(name)
    assert budget.used_bytes == 0


def test_a_body_that_came_before_there_was_room_keeps_its_place(bodies: Bodies) -> None:
    bodies.come("a", 8)
    bodies.come("b", 4)
    bodies.come("c", 1)
    assert not bodies.budget.resize(bodies.rooms["b"], 5, lambda: bodies.let_in.append("b is decoded"))
    assert (bodies.granted, bodies.let_in, bodies.budget.used_bytes) == ({"a"}, [], 8)
    bodies.leave("a")
    assert (bodies.let_in, bodies.budget.used_bytes) == (["b", "b is decoded", "c"], 6)
    bodies.come("d", 9)
    assert bodies.budget.resize(bodies.rooms["d"], 4)
    assert (bodies.let_in[3:], bodies.budget.used_bytes) == (["d"], 10)
    bodies.come("e", 9)
    assert not bodies.budget.resize(bodies.rooms["e"], 9, lambda: bodies.let_in.append("e is decoded"))
    bodies.leave("e")
    for name in ("b", "c", "d"):
        bodies.leave(name)
    assert (bodies.let_in[4:], bodies.budget.used_bytes) == ([], 0)


def test_bodies_that_all_wait_for_more_do_not_wait_for_each_other(bodies: Bodies) -> None:
    for name in ("a", "b", "c"):
        bodies.come(name, 3)
    for name in ("a", "b", "c"):
        bodies.budget.resize(bodies.rooms[name], 9, lambda name=name: bodies.let_in.append(name))  # type: ignore[misc]
    assert (bodies.let_in, bodies.budget.used_bytes) == (["a"], 15)
    bodies.leave("b")  # its client is gone while it waits
    assert bodies.let_in == ["a"]
    bodies.leave("a")
    assert (bodies.let_in, bodies.budget.used_bytes) == (["a", "c"], 9)
