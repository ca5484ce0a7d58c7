"""The tables of conversations: a tree of items, for how long and how much of it, and what it shares with responses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assistant.storage.conversation_records import (
    MOST_BYTES,
    BranchSize,
    ConversationLocks,
    ConversationTurn,
    Hit,
    Link,
    NewItem,
    encode_items,
    find_hit,
    find_outer_parents,
    fold_text,
    fold_words,
    longest_branch,
    measure_branches,
    parents_of,
    read_settings,
    text_of,
    without_media,
)
from assistant.storage.database import StateDatabase
from assistant.storage.pagination import ListQuery
from assistant.storage.records import HistoryBounds, is_id
from assistant.storage.table_file import DatabaseFullError
from contract.errors import RoundhouseError
from gateway.protocols.responses.items import BranchStart
from tests.support.outcomes import error_of, present, refusal
from tests.support.stored import HOUR, MIB, Clock, iid, message, opened, rid, stored

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
    return encode_items([message(name, name * size) for name in names])


def begin(database: StateDatabase, *names: str, conversation: str = "conv_a", tenant: str = "t") -> None:
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
    return [item["id"] for item in database.conversations.list_items("t", conversation, ALL)["data"]]


def turn(*names: str, conversation: str = "conv_a", tenant: str = "t", size: int = 1) -> ConversationTurn:
    """What a response adds."""
    return ConversationTurn(rid(names[-1]), conversation, tenant, "m", items(*names, size=size))


@pytest.mark.parametrize("is_written", [True, False])
def test_a_turn_that_is_taken_back_takes_only_what_it_wrote(database: StateDatabase, is_written: bool) -> None:
    """As of a request that repeats an item of its conversation, whose write took too long or was never made."""
    begin(database, "a")
    given = turn("a", "b")
    if is_written:
        database.save_objects(given)
        assert active(database)[1:] == [given.written[0], "b"]
    database.remove_object(given)
    assert active(database) == ["a"]


def test_a_response_is_continued_within_the_bounds_with_the_conversation_that_it_was_made_in(
    database: StateDatabase,
) -> None:
    begin(database, "a", "b")
    made = dataclasses.replace(stored("x"), conversation_id="conv_a", conversation_item="b")
    database.save_objects(made, stored("y", "x"))
    whole = sum(len(each.item) for each in items("a", "b")) + made.items_size + stored("y", "x").items_size
    for bounds in (HistoryBounds(whole - 1), HistoryBounds(whole, items=5)):
        with pytest.raises(RoundhouseError, match="longer than what may be continued") as caught:
            database.load_history("t", rid("y"), (), bounds)
        assert (caught.value.entry.code, caught.value.param) == ("invalid_request", "previous_response_id")
    found = database.load_history("t", rid("y"), (), HistoryBounds(whole, items=6))
    assert [each["id"] for each in found.items] == [
        "a", "b", *(iid(name, side) for name in "xy" for side in ("in", "out"))
    ]  # fmt: skip


@pytest.mark.parametrize("continued", ["response", "conversation"])
def test_what_is_referred_to_counts_with_what_is_continued(database: StateDatabase, continued: str) -> None:
    begin(database, "a", "b")
    database.save_objects(stored("x"), stored("y"))
    size = stored("y").items_size + (
        stored("x").items_size if continued == "response" else sum(len(each.item) for each in items("a", "b"))
    )

    def load(bounds: HistoryBounds) -> list[str]:
        before, conversation = (rid("x"), None) if continued == "response" else (None, "conv_a")
        return list(database.load_history("t", before, (iid("y", "out"),), bounds, conversation).referenced_items)

    for bounds in (HistoryBounds(size - 1), HistoryBounds(size, items=2)):
        with pytest.raises(RoundhouseError, match="longer than what may be continued") as caught:
            load(bounds)
        assert (caught.value.entry.code, caught.value.param) == ("invalid_request", "input")
    assert load(HistoryBounds(size, items=3)) == [iid("y", "out")]


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
def test_a_deleted_item_is_missing_in_every_branch(database: StateDatabase, deleted: str, left: list[str]) -> None:
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
    found = present(database.conversations.find("t", "conv_a"))
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


def test_a_branch_is_bounded(database: StateDatabase) -> None:
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
        database.save_objects(stored(name, question="x" * 350_000))
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


ROOT = BranchStart(None)
STORED = [Link("c", "b", 4), Link("a", None, 1), Link("b", "a", 2), Link("x", None, 8)]


def new(item_id: str, start: BranchStart | None = None, size: int = 1) -> NewItem:
    return NewItem(item_id, b"." * size, start=start)


@pytest.mark.parametrize(
    ("items", "first", "parents", "outer"),
    [
        ([], "z", [], {}),
        ([new("a"), new("b")], None, [None, "a"], {}),
        ([new("a"), new("b")], "z", ["z", "a"], {"z": "parent_id"}),
        ([new("a", ROOT), new("b", ROOT), new("c")], "z", [None, None, "b"], {}),
        ([new("a", BranchStart("z")), new("b", BranchStart("y")), new("c", BranchStart("z"))], None,
         ["z", "y", "z"], {"z": "items[0].parent_id", "y": "items[1].parent_id"}),
        ([new("a"), new("b", BranchStart("c")), new("c", BranchStart("a"))], None,
         [None, "c", "a"], {"c": "items[1].parent_id"}),
        ([new("a", BranchStart("a"))], None, ["a"], {"a": "items[0].parent_id"}),
    ],
)  # fmt: skip
def test_what_new_items_follow(
    items: list[NewItem], first: str | None, parents: list[str | None], outer: dict[str, str]
) -> None:
    assert parents_of(items, first) == parents
    assert find_outer_parents(items, parents) == outer


def test_branches_are_measured_by_items_and_bytes_each_for_itself() -> None:
    assert measure_branches(STORED, ["c", "b", "x", "gone"]) == {
        "c": BranchSize(3, 7),
        "b": BranchSize(2, 3),
        "x": BranchSize(1, 8),
    }
    assert measure_branches(STORED, []) == {}
    stored = measure_branches(STORED, ["c", "x"])
    items = [new("d", size=1), new("e", BranchStart("x"), size=9), new("f", BranchStart("c"), size=2)]
    assert longest_branch(items, ["c", "x", "c"], stored) == BranchSize(4, 17)
    assert longest_branch(items[:2], ["c", "x"], stored) == longest_branch(items[1::-1], ["x", "c"], stored)
    assert longest_branch([], [], {}) == BranchSize(0, 0)
    assert longest_branch([new("d"), new("e")], [None, "d"], {}) == BranchSize(2, 2)


PNG = "data:image/png;base64,aGVsbG8="


def user_message(*parts: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "id": "i", "content": list(parts)}


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (user_message({"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": PNG}), "a"),
        (user_message({"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}), "a\nno"),
        (user_message({"type": "input_file", "filename": "f.txt", "file_data": "eA=="}), "f.txt"),
        (user_message({"type": "input_text", "text": 7}, "x", None), ""),
        ({"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}, "f\n{}"),
        ({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]}, "o"),
        ({"type": "custom_tool_call", "name": "f", "input": "i"}, "f\ni"),
        ({"type": "mcp_call", "name": "f", "arguments": "{}", "output": None}, "f\n{}"),
        ({"type": "reasoning", "summary": [{"text": "x"}], "content": "y"}, ""),
        ({"type": ["message"], "content": "x"}, ""),
    ],
)  # fmt: skip
def test_what_is_searched_of_an_item(item: dict[str, Any], text: str) -> None:
    assert text_of(item) == text


def test_media_are_left_out_and_the_rest_stays() -> None:
    text = {"type": "input_text", "text": "data:,x"}
    elsewhere = {"type": "input_image", "image_url": "https://example.org/a.png"}
    item = user_message(
        text,
        {"type": "input_image", "image_url": PNG, "detail": "low"},
        elsewhere,
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "input_file", "filename": "f.txt", "file_data": "data:text/plain;charset=utf-8;base64,eA=="},
        {"type": "input_file", "filename": "g.txt", "file_data": "eA=="},
    )
    before = repr(item)
    outline = without_media(item)
    assert outline == {
        **item,
        "content": [
            text,
            {"type": "input_image", "detail": "low", "omitted": {"media_type": "image/png", "bytes": 8}},
            elsewhere,
            {"type": "input_audio", "input_audio": {"format": "wav"},
             "omitted": {"media_type": "audio/wav", "bytes": 4}},
            {"type": "input_file", "filename": "f.txt", "omitted": {"media_type": "text/plain", "bytes": 4}},
            {"type": "input_file", "filename": "g.txt", "omitted": {"media_type": None, "bytes": 4}},
        ],
    }  # fmt: skip
    assert repr(item) == before
    result = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": PNG}]}
    assert without_media(result) == {
        **result,
        "output": [{"type": "input_image", "omitted": {"media_type": "image/png", "bytes": 8}}],
    }


@pytest.mark.parametrize(
    "item",
    [
        user_message({"type": "input_text", "text": PNG}),
        user_message({"type": "input_image", "file_id": "f"}, {"type": "input_image", "image_url": 7}),
        user_message({"type": "input_audio", "input_audio": None}, {"type": "input_audio", "input_audio": {"data": 7}}),
        user_message("x", None, {"type": ["input_image"], "image_url": PNG}),
        {"type": "function_call_output", "output": PNG},
    ],
)
def test_without_media_there_is_nothing_to_leave_out(item: dict[str, Any]) -> None:
    assert without_media(item) is None


@pytest.mark.parametrize(
    ("text", "words", "hit"),
    [
        ("one two three", "two", Hit("one ", "two", " three")),
        ("one two three", "three one", Hit("one two ", "three", "")),
        *(("one two three", "four one", None), ("One\n\t TWO", "two", Hit("One ", "TWO", ""))),
        *(("ßß ß", "s", Hit("", "ß", "ß ß")), ("xßy", "sy", Hit("x", "ßy", ""))),
        *(("ﬁne ﬁn", "n", Hit("fi", "n", "e fin")), ("İstanbul", "stanbul", Hit("İ", "stanbul", ""))),
        ("e\u0301té", "ÉTÉ", Hit("", "été", "")),
    ],
)
def test_where_a_text_has_what_is_searched(text: str, words: str, hit: Hit | None) -> None:
    assert find_hit(text, fold_words(words)) == hit


def test_a_hit_has_a_part_of_what_stands_around_it() -> None:
    text = "a" * 1000 + "needle" + "b" * 1000
    assert find_hit(text, fold_words("NEEDLE")) == Hit("a" * 80, "needle", "b" * 80)


def test_words_are_folded_without_case_and_blanks() -> None:
    assert fold_words(" A  b\u3000a\tB\n") == (b"a", b"b")
    assert fold_words(" \n") == ()
    assert fold_text("\ud800") == b"\xed\xa0\x80"


class Holder:
    """A response; once it is over, a look stores it and unlocks."""

    def __init__(self, locks: ConversationLocks, name: str) -> None:
        self.locks = locks
        self.response_id = name
        self.is_over = False

    def store_outcome(self) -> None:
        if self.is_over:
            self.locks.release("t", "conv_a", self)


def test_the_second_waits_for_the_first() -> None:
    locks = ConversationLocks()
    first, second = Holder(locks, "resp_1"), Holder(locks, "resp_2")
    locks.acquire("t", "conv_a", first)
    error = error_of(lambda: locks.acquire("t", "conv_a", second))
    assert (error.entry.code, "resp_1" in error.message) == ("conversation_locked", True)
    locks.release("t", "conv_a", second)
    assert is_locked(locks)
    locks.acquire("u", "conv_a", second)
    locks.acquire("t", "conv_b", second)
    first.is_over = True
    locks.acquire("t", "conv_a", second)
    locks.release("t", "conv_a", second)
    locks.require_free("t", "conv_a")


def is_locked(locks: ConversationLocks, start: BranchStart | None = None) -> bool:
    """Whether the conversation, or that place of it, is locked."""
    try:
        locks.require_free("t", "conv_a", start)
    except RoundhouseError:
        return True
    return False


def test_responses_that_follow_different_items_are_made_at_once() -> None:
    locks = ConversationLocks()
    one, two, plain = Holder(locks, "resp_1"), Holder(locks, "resp_2"), Holder(locks, "resp_3")
    at_a, at_root = BranchStart("a"), BranchStart(None)
    locks.acquire("t", "conv_a", one, at_a)
    locks.acquire("t", "conv_a", two, at_root)
    assert locks.find_response("t", "conv_a") == "resp_1"
    for start, is_taken in ((at_a, True), (at_root, True), (BranchStart("b"), False), (None, True)):
        assert is_locked(locks, start) is is_taken, start
    locks.require_free_end("t", "conv_a")  # neither continues the active branch
    one.is_over = True
    assert not is_locked(locks, at_a)
    assert locks.find_response("t", "conv_a") == "resp_2"
    two.is_over = True
    locks.acquire("t", "conv_a", plain)
    assert is_locked(locks, BranchStart("b"))
    assert error_of(lambda: locks.require_free_end("t", "conv_a"))
    locks.release("t", "conv_a", plain)
    locks.require_free_end("t", "conv_a")
    assert locks.find_response("t", "conv_a") is None
    assert locks._locks == {}, "nothing is kept of a conversation without a lock"


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


FITS = {"a": "ü" * ((MOST_BYTES - len('{"a":""}')) // 2)}


@pytest.mark.parametrize(
    "settings", [{}, {"a": [1, None, "ü", {"b": 2**70}]}, {"half": "\ud800"}, nested(300), FITS, None]
)
def test_any_object_is_kept(settings: dict[str, Any] | None) -> None:
    assert json.loads(read_settings({"settings": settings}) or b"null") == settings
    assert (read_settings({}), len(read_settings({"settings": FITS}) or b"")) == (None, MOST_BYTES)


@pytest.mark.parametrize("settings", [[], "x", 1, {"a": "ü" * (MOST_BYTES // 2)}, nested(100_000)])
def test_what_cannot_be_kept_is_refused(settings: Any) -> None:
    assert refusal(lambda: read_settings({"settings": settings})) == ("invalid_request", "settings")
