"""Which slot of an engine a request gets."""

from __future__ import annotations

from gateway.admission.engine_slots import PROTECTED_S, EngineSlots


def stranger(slots: EngineSlots, now: float, prefix: tuple[int, ...] = ()) -> int:
    """A request without a session that comes and goes."""
    placement = slots.place_stranger(prefix, now)
    assert placement is not None
    slots.release(placement.slot, now)
    return placement.slot


def session(slots: EngineSlots, key: bytes, held: int | None, now: float) -> tuple[int, bytes | None]:
    """A turn that comes and goes."""
    placement = slots.place_session(key, held, now)
    assert placement is not None
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
    assert stranger(slots, 1.0, (11, 10)) == 0
    assert stranger(slots, 2.0, (21, 20)) == 1
    assert stranger(slots, 3.0, (31, 30)) == 2
    assert stranger(slots, 4.0, (12, 11, 10)) == 0
    assert stranger(slots, 5.0, (22, 21, 20)) == 1


def test_the_slot_of_the_session_that_has_paused_for_longest_goes_first() -> None:
    slots = EngineSlots(2, 0)
    session(slots, b"a", None, 0.0)
    session(slots, b"b", None, 1.0)
    assert session(slots, b"c", None, 2.0) == (1, b"a")
    placement = slots.place_stranger((), 3.0)
    assert placement == (0, b"b")
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
    assert slots.place_session(b"a", 0, 2.0) is None
    assert slots.place_stranger((), 2.0) is None


def test_nothing_is_placed_while_requests_are_inside_whose_slots_are_not_known() -> None:
    slots = EngineSlots(2, 1)
    assert slots.place_session(b"a", None, 0.0) is None
    assert slots.place_stranger((), 0.0) is None
    slots.unplaced_count -= 1
    assert slots.place_stranger((), 0.0) == (0, None)


def test_a_slot_that_was_given_up_is_a_strangers() -> None:
    slots = EngineSlots(1, 0)
    session(slots, b"a", None, 0.0)
    slots.give_up(0)
    assert slots.place_stranger((), 1.0) == (0, None)
