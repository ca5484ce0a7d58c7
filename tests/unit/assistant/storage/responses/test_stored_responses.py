"""What a request asks of stored responses, and pages of items."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from assistant.storage.pagination import ListQuery, paginate_items
from assistant.storage.records import MOST_REFERENCES, HistoryBounds, RecentResponse, RequestOptions
from assistant.storage.responses import DONE, EventLog, count_events, follow_events
from gateway.exchange.plain_responses import TOKEN_LENGTH, id_of, item_ids, response_of
from gateway.protocols.responses.context import ResponseContext
from gateway.server.body_budget import BodyBudget
from tests.support.outcomes import error_of, present, refusal
from tests.support.responses import Fields, context
from tests.support.stored import message


def refused(fields: dict[str, Any], *, keeps: bool = True) -> tuple[str | None, str]:
    error = error_of(lambda: RequestOptions.of(fields, can_store=keeps))
    assert error.entry.code == "invalid_request"
    return error.param, error.message


@pytest.mark.parametrize(
    ("fields", "keeps", "stores"),
    [
        *((fields, True, True) for fields in ({}, {"store": None}, {"store": True})),
        ({"store": False}, True, False),
        *((fields, False, False) for fields in ({}, {"store": True})),
    ],
)
def test_a_response_is_stored_unless_somebody_says_no(fields: dict[str, Any], keeps: bool, stores: bool) -> None:
    asked = RequestOptions.of({"input": "Hi", **fields}, can_store=keeps)
    assert (asked.is_stored, asked.is_background, asked.needs_stored) == (stores, False, False)


def test_what_goes_on_without_its_client_must_be_stored() -> None:
    kept = RequestOptions(None, (), is_stored=True, is_background=True)
    assert RequestOptions.of({"background": True}, can_store=True) == kept
    assert RequestOptions.of({"background": False, "store": False}, can_store=True) == RequestOptions(None, ())
    assert refused({"background": True, "store": False})[0] == "background"
    assert "this gateway stores none" in refused({"background": True}, keeps=False)[1]
    for field in ("store", "background", "previous_response_id"):
        assert refused({field: 1})[0] == field, "another kind of value"


def test_references_are_found_where_they_are_and_bounded() -> None:
    items = [
        *({"type": "item_reference", "id": "a"}, {"id": "b"}, {"id": "c", "type": None}),
        *({"type": "item_reference", "id": "a"}, {"type": "message", "id": "d"}),
        *({"role": "user", "id": "e", "content": "x"}, {"type": "item_reference", "id": 7}),
        {"type": "item_reference"},
        "text",
    ]
    asked = RequestOptions.of_references({"input": items, "previous_response_id": "resp_1", "store": "nonsense"})
    assert asked == RequestOptions("resp_1", ("a", "b", "c"))
    assert asked.needs_stored
    assert not RequestOptions.of_references({"input": "id"}).needs_stored
    items = [{"type": "item_reference", "id": str(number)} for number in range(MOST_REFERENCES + 1)]
    assert refused({"input": items})[0] == "input"
    assert len(RequestOptions.of({"input": items[1:]}, can_store=True).references) == MOST_REFERENCES


@pytest.mark.parametrize("strange", ["\ud800", "resp_1'", "", "x" * 129, "../x", "é"])
def test_what_cannot_be_an_id_is_nobodys(strange: str) -> None:
    error = error_of(lambda: RequestOptions.of_references({"previous_response_id": strange}))
    assert error.entry.code == "previous_response_not_found"
    assert RequestOptions.of_references({"input": [{"id": strange}]}).references == ()


@pytest.mark.parametrize("value", ["conv_1", {"id": "conv_1"}])
def test_a_conversation_is_named_by_its_id_or_an_object(value: Any) -> None:
    asked = RequestOptions.of_references({"conversation": value})
    assert asked == RequestOptions(None, (), conversation_id="conv_1")
    assert asked.needs_stored


@pytest.mark.parametrize(
    ("value", "code", "place"),
    [
        *((7, "invalid_request", "conversation"), ("", "invalid_request", "conversation")),
        ({"id": None}, "invalid_request", "conversation.id"),
        ("\ud800", "conversation_not_found", "conversation"),
        ({"id": "../x"}, "conversation_not_found", "conversation"),
    ],
)
def test_what_names_no_conversation_is_refused(value: Any, code: str, place: str) -> None:
    assert refusal(lambda: RequestOptions.of_references({"conversation": value})) == (code, place)


ITEMS = [{"id": name} for name in "abcab"] + [{"type": "message"}, {"id": "d"}]


def listed(after: str | None = None, limit: int = 20, *, is_ascending: bool = True) -> tuple[list[Any], Any, Any, bool]:
    """Ids, the first, the last, whether there are more."""
    found = paginate_items(ITEMS, ListQuery(after, limit, is_ascending))
    assert found["object"] == "list"
    return [item.get("id") for item in found["data"]], found["first_id"], found["last_id"], found["has_more"]


def test_items_are_listed_once_in_either_order_page_by_page() -> None:
    assert listed() == (["a", "b", "c", None, "d"], "a", "d", False)
    assert listed(is_ascending=False) == (["d", None, "c", "b", "a"], "d", "a", False)
    assert listed(limit=2) == (["a", "b"], "a", "b", True)
    assert listed("b", 3) == (["c", None, "d"], "c", "d", False)
    assert listed("d") == ([], None, None, False)
    assert listed("c", 1, is_ascending=False) == (["b"], "b", "b", True)
    assert paginate_items([], ListQuery(None, 5, is_ascending=True))["data"] == []
    assert refusal(lambda: listed("z")) == ("invalid_request", "after")


def test_an_items_id_tells_whose_it_is() -> None:
    token = "0123456789abcdef" * 3
    new_id = item_ids(token)
    made = [new_id(prefix) for prefix in ("msg", "fc", "a_b")]
    assert len(set(made)) == 3
    assert {response_of(name) for name in made} == {id_of(token)}
    assert [name.rpartition("_")[0] for name in made] == ["msg", "fc", "a_b"]
    assert len({new_id("rs") for _ in range(70_000)}) == 70_000
    for strange in ("", "msg", "msg_1", "_", f"msg_{token}", "x" * 500):
        assert response_of(strange) in (None, id_of(("x" * 500)[:TOKEN_LENGTH]))


def events(first: int, count: int) -> bytes:
    """Events whose numbers can be read."""
    return b"".join(b'event: e\ndata: {"sequence_number":%d}\n\n' % number for number in range(first, first + count))


@pytest.mark.parametrize("block_bytes", [1, 100, 10_000])
def test_what_was_appended_is_read_from_any_number(monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr("assistant.storage.responses.BLOCK_BYTES", block_bytes)
    chance, log = random.Random(7), EventLog()
    while log.next_number < 60:
        log.append_events(events(log.next_number, chance.randint(1, 5)))
    total = log.next_number
    log.append_events(DONE)
    log.end()
    for again in (log, EventLog.from_stored(log.to_stored())):
        assert (again.next_number, again.is_ended) == (total, True)
        for first in range(total + 2):
            read, number = b"", first
            while block := again.read_block(number):
                read += block
                number += count_events(block)
            assert read == events(first, max(0, total - first))
    assert EventLog.from_stored(EventLog().to_stored()).next_number == 0


@pytest.mark.parametrize("before", [0, 3])
def test_last_events_are_stored_before_readers_get_them(before: int) -> None:
    log = EventLog()
    log.append_events(events(0, before))
    stored = EventLog.from_stored(log.to_stored(events(before, 2) + DONE))
    assert log.next_number == before
    assert stored.next_number == before + 2
    assert stored.read_block(before) == events(before, 2)


def test_a_log_of_events_takes_little_room() -> None:
    log = EventLog()
    head = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","item_id":"msg_0123456789"'
    for number in range(5000):
        log.append_events(head + b',"content_index":0,"delta":"word","sequence_number":%d}\n\n' % number)
    assert len(log.to_stored()) < 20 * 5000


async def test_a_reader_of_what_is_over_ends() -> None:
    log = EventLog(5)
    log.append_events(events(5, 2))
    log.end()
    assert [part async for part in follow_events(log, 6, 1.0)] == [events(6, 1), DONE]


def made(name: str, recent: RecentResponse, previous: str | None = None, **fields: str) -> ResponseContext:
    """A response called `name` that was kept."""
    of = context()
    of.id = name
    history = recent.find_history(previous) if previous is not None else None
    of.history = history.items if history is not None else ()
    of.input_items = (message(f"in-{name}", "Hi"),)
    output: list[Fields] = [message(f"out-{name}", "yes", "assistant")]
    of.response = {"status": "completed", "output": output, **fields}
    recent.keep(of, "m")
    return of


def test_the_last_one_is_remembered_with_all_that_it_continues() -> None:
    recent = RecentResponse(HistoryBounds(10_000), BodyBudget(0))
    made("a", recent)
    made("b", recent, "a")
    assert recent.find_history("a") is None
    history = present(recent.find_history("b"))
    assert (history.model, [item["id"] for item in history.items]) == ("m", ["in-a", "out-a", "in-b", "out-b"])
    assert (recent.is_stored("b"), recent.is_stored("a")) == (False, True)
    made("c", recent, "b", status="cancelled")
    assert recent.find_history("c") is None
    recent.forget("x")
    assert recent.find_history("b") is not None
    recent.forget("b")
    assert recent.find_history("b") is None


def test_large_histories_have_half_of_the_memory_for_bodies_and_give_it_back() -> None:
    budget = BodyBudget(2_000_000)

    def fill(recent: RecentResponse, name: str) -> bool:
        of = context()
        of.id, of.stores, of.response = name, False, {"status": "completed", "output": [message("out", "x" * 300_000)]}
        recent.keep(of, "m")
        return budget.used_bytes > 600_000

    first, second = (RecentResponse(HistoryBounds(10**6), budget) for _ in range(2))
    assert (fill(first, "a"), fill(first, "b")) == (True, True)
    held_bytes = budget.used_bytes
    fill(second, "c")
    assert budget.used_bytes == held_bytes < 1_000_000, "there is no room"
    assert refusal(lambda: second.find_history("c")) == ("invalid_request", "previous_response_id")
    assert first.find_history("b") is not None
    first.forget("b")
    assert (budget.used_bytes, fill(second, "d"), second.find_history("d") is None) == (0, True, False)
    second.close()
    assert (budget.used_bytes, fill(second, "e"), budget.used_bytes) == (0, False, 0)


@pytest.mark.parametrize("bounds", [HistoryBounds(1_000), HistoryBounds(10_000, items=5)])
def test_a_conversation_that_is_too_long_goes_no_further(bounds: HistoryBounds) -> None:
    recent = RecentResponse(bounds, BodyBudget(0))

    def go_on() -> None:
        for before, name in itertools.pairwise([None, *"abcdefghijkl"]):
            made(present(name), recent, before)

    assert refusal(go_on) == ("invalid_request", "previous_response_id")
    made("another", recent)
    assert recent.find_history("another") is not None
