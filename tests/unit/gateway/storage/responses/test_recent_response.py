"""What a connection remembers: the response that was made last, and no more than a conversation may be."""

from __future__ import annotations

import itertools

import pytest

from controller.schema.errors import RoundhouseError
from gateway.protocols.responses.context import ResponseContext
from gateway.storage.responses.recent_response import RecentResponse
from gateway.storage.responses.records import HistoryBounds
from tests.support.responses import Fields, context
from tests.support.stored import message


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
    recent = RecentResponse(HistoryBounds(10_000))
    made("a", recent)
    made("b", recent, "a")
    assert recent.find_history("a") is None
    history = recent.find_history("b")
    assert history is not None
    assert (history.model, [item["id"] for item in history.items]) == ("m", ["in-a", "out-a", "in-b", "out-b"])
    assert (recent.is_stored("b"), recent.is_stored("a")) == (False, True)
    made("c", recent, "b", status="cancelled")
    assert recent.find_history("c") is None
    recent.forget("x")
    assert recent.find_history("b") is not None
    recent.forget("b")
    assert recent.find_history("b") is None


def go_on(recent: RecentResponse) -> None:
    """Twelve responses, each continuing the one before."""
    for before, name in itertools.pairwise([None, *"abcdefghijkl"]):
        assert name is not None
        made(name, recent, before)


@pytest.mark.parametrize("bounds", [HistoryBounds(1_000), HistoryBounds(10_000, items=5)])
def test_a_conversation_that_is_too_long_goes_no_further(bounds: HistoryBounds) -> None:
    recent = RecentResponse(bounds)
    with pytest.raises(RoundhouseError) as caught:
        go_on(recent)
    assert (caught.value.entry.code, caught.value.param) == ("invalid_request", "previous_response_id")
    made("another", recent)
    assert recent.find_history("another") is not None
