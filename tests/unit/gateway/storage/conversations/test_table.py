"""The tables of conversations: a tree of items, for how long and how much of it, and what it shares with responses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from gateway.protocols.responses.conversation_items import BranchStart
from gateway.storage.conversations.records import ConversationTurn, NewItem, encode_items
from gateway.storage.database import StateDatabase
from gateway.storage.pagination import ListQuery
from gateway.storage.responses.records import HistoryBounds
from gateway.storage.responses.request_options import is_id
from gateway.storage.table_file import DatabaseFullError
from tests.support.stored import HOUR, MIB, Clock, message, opened, rid, stored

BOUNDS = HistoryBounds(MIB)
ALL = ListQuery(limit=100, is_ascending=True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path, clock: Clock) -> Iterator[StateDatabase]:
    made = opened(tmp_path, clock)
    yield made
    made.close()


def items(*names: str, size: int = 1) -> tuple[NewItem, ...]:
    """Messages with these ids."""
    return encode_items([message(name, name * size) for name in names])


def begin(database: StateDatabase, *names: str, conversation: str = "conv_a", tenant: str = "t") -> None:
    """A conversation with these items."""
    with database.transaction():
        database.conversations.create(tenant, conversation, {}, items(*names))


def add(
    database: StateDatabase, *names: str, start: BranchStart | None = None, bounds: HistoryBounds = BOUNDS
) -> list[Any]:
    """Items added; the parents that they have."""
    with database.transaction():
        made = database.conversations.add_items("t", "conv_a", items(*names), start, bounds)
    return [each["parent_id"] for each in made]


def active(database: StateDatabase, conversation: str = "conv_a") -> list[str]:
    """Ids of the active branch."""
    return [item["id"] for item in database.conversations.list_items("t", conversation, ALL)["data"]]


def turn(*names: str, conversation: str = "conv_a", tenant: str = "t", size: int = 1) -> ConversationTurn:
    """What a response adds."""
    return ConversationTurn(rid(names[-1]), conversation, tenant, "m", items(*names, size=size))


def test_items_follow_each_other_or_begin_a_branch(database: StateDatabase) -> None:
    begin(database, "a", "b")
    assert add(database, "c", "d") == ["b", "c"]
    assert add(database, "e", start=BranchStart("b")) == ["b"]
    assert active(database) == ["a", "b", "e"]
    assert add(database, "f", start=BranchStart(None)) == [None]
    assert active(database) == ["f"]
    assert add(database, "g", start=BranchStart("d")) == ["d"]
    assert active(database) == ["a", "b", "c", "d", "g"]
    with pytest.raises(RoundhouseError, match="'z' not found"):
        add(database, "h", start=BranchStart("z"))
    assert add(database) == []


@pytest.mark.parametrize(
    ("deleted", "left"),
    [("a", ["b", "c", "e"]), ("b", ["a", "c", "e"]), ("c", ["a", "b", "e"]), ("e", ["a", "b", "c"])],
)
def test_what_came_after_a_deleted_item_comes_after_its_parent(
    database: StateDatabase, deleted: str, left: list[str]
) -> None:
    begin(database, "a", "b", "c", "d")
    add(database, "e", start=BranchStart("c"))
    with database.transaction():
        database.conversations.delete_item("t", "conv_a", deleted)
    assert active(database) == left
    with pytest.raises(RoundhouseError):
        database.conversations.find_item("t", "conv_a", deleted)
    # The other branch has lost the same item and no other.
    add(database, "f", start=BranchStart("d"))
    assert active(database) == [each for each in "abcdf" if each != deleted]


def test_a_turn_is_written_with_its_response_or_not_at_all(database: StateDatabase) -> None:
    begin(database, "a")
    made = dataclasses.replace(stored("x"), conversation_id="conv_a", conversation_item="a", turn=turn("q", "r"))
    database.save_objects(made)
    assert active(database) == ["a", "q", "r"]
    found = database.conversations.find("t", "conv_a")
    assert found is not None
    assert found.model == "m"
    too_large = dataclasses.replace(made, id=rid("y"), turn=turn("s", "u", size=100 * MIB))
    with pytest.raises(DatabaseFullError):
        database.save_objects(too_large)
    assert database.find_response("t", rid("y")) is None
    assert active(database) == ["a", "q", "r"]


def test_turns_of_one_write_follow_each_other_and_items_keep_apart(database: StateDatabase) -> None:
    begin(database, "a")
    database.save_objects(turn("b"), turn("c", "a"), turn("d", conversation="conv_none"), turn("e", tenant="u"))
    ids = active(database)
    assert ids[:3] == ["a", "b", "c"]
    assert len(ids) == 4
    last = database.conversations.find_item("t", "conv_a", ids[3])
    assert (last["id"], last["content"]) == (ids[3], message("a", "a")["content"])
    database.save_objects(turn("f", "f"), turn("\ud800", "x y", "g"))
    ids = active(database)
    assert len(set(ids)) == 9
    assert all(map(is_id, ids)), "each can be asked for"
    with pytest.raises(RoundhouseError, match="Duplicate item"):
        add(database, "b")


def test_a_branch_is_bounded_by_its_items_and_bytes(database: StateDatabase) -> None:
    begin(database, "a", "b")
    too_long = "longer than what may be continued"
    for bounds in (HistoryBounds(MIB, items=2), HistoryBounds(150)):
        with pytest.raises(RoundhouseError, match=too_long):
            add(database, "c", bounds=bounds)
        with pytest.raises(RoundhouseError, match=too_long), database.transaction():
            database.conversations.load_branch("t", "conv_a", None, bounds._replace(items=1))
    assert add(database, "c", start=BranchStart("a"), bounds=HistoryBounds(MIB, items=2)) == ["a"]


def test_a_conversation_goes_with_all_its_items(database: StateDatabase) -> None:
    begin(database, "a", "b")
    begin(database, "a", conversation="conv_b")
    with database.transaction():
        assert database.conversations.delete("t", "conv_a")
        assert not database.conversations.delete("t", "conv_a")
    [left] = database._db.execute("SELECT count(*) FROM conversation_items").fetchone()
    assert left == 1
    assert active(database, "conv_b") == ["a"]


def test_using_a_conversation_keeps_it_and_reading_does_not(database: StateDatabase, clock: Clock) -> None:
    for name in ("conv_a", "conv_b", "conv_c"):
        begin(database, "a", conversation=name)
    clock.now += 0.6 * HOUR
    database.load_history("t", None, (), BOUNDS, "conv_a")
    active(database, "conv_b")
    database.conversations.find_item("t", "conv_b", "a")
    database.save_objects(turn("z", conversation="conv_c"))
    clock.now += 0.6 * HOUR
    for name, is_there in (("conv_a", True), ("conv_b", False), ("conv_c", True)):
        assert (database.conversations.find("t", name) is not None) is is_there
    assert database.sweep_expired() is False
    assert database.count_stored().conversations == 2


def test_what_was_used_longest_ago_makes_room_of_whatever_kind(tmp_path: Path, clock: Clock) -> None:
    database = opened(tmp_path, clock, max_mib=1)
    begin(database, "a", conversation="conv_a")
    for name in ("x", "y"):
        clock.now += 1
        database.save_objects(stored(name, asked="x" * 350_000))
    clock.now += 1
    begin(database, "b", conversation="conv_b")
    database.load_history("t", None, (), BOUNDS, "conv_b")
    clock.now += 1
    database.save_objects(turn("big", conversation="conv_b", size=50_000))
    assert database.conversations.find("t", "conv_a") is None
    assert database.find_response("t", rid("x")) is None
    assert database.find_response("t", rid("y")) is not None
    assert active(database, "conv_b") == ["b", "big"]
    database.close()
