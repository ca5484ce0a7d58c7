"""Which events a reader of models gets that comes back, and which it is told to have missed."""

from __future__ import annotations

import pytest

from controller.schema.downloads import Download
from controller.schema.errors import RoundhouseError
from controller.schema.status import ModelState
from gateway.routing.model_events import KEPT_EVENTS, ModelEventLog
from tests.fakes.fake_controller import route


def make_log(changes: int) -> ModelEventLog:
    """A log with one event for each change of a model's state, after that of its declaration and its first state."""
    log = ModelEventLog("a1")
    for number in range(changes + 1):
        state = (ModelState.UNLOADED, ModelState.LOADED)[number % 2]
        log.follow_table({"m": route("m", state=state)})
    assert log.last_id == changes + 2
    return log


def test_events_are_kept_in_order_and_without_gaps() -> None:
    log = make_log(3)
    events = log.list_after(0)
    assert events is not None
    assert [each.id for each in events] == [1, 2, 3, 4, 5]
    assert [each.event for each in events] == ["models_reload", *["model_status"] * 4]
    assert log.list_after(5) == []
    assert [each.id for each in log.list_after(4) or ()] == [5]


def test_the_oldest_kept_event_bounds_what_can_be_resumed() -> None:
    log = make_log(KEPT_EVENTS + 10)
    oldest = log.last_id - KEPT_EVENTS + 1
    whole = log.list_after(oldest - 1)
    assert whole is not None
    assert [each.id for each in whole] == list(range(oldest, log.last_id + 1))
    assert log.list_after(oldest - 2) is None, "one event is gone"
    assert log.list_after(0) is None


def test_an_event_has_the_names_by_which_its_model_may_be_seen_and_nothing_else_of_it() -> None:
    log = ModelEventLog("a1")
    log.follow_table({"m": route("m", aliases=("n",))})
    log.follow_table({})
    told = [(each.event, each.names) for each in log.list_after(0) or ()]
    of_model = ("m", "n")
    assert told == [
        ("models_reload", ()),
        ("model_status", of_model),
        ("model_remove", of_model),
        ("models_reload", ()),
    ]


def test_an_id_is_read_by_the_log_that_wrote_it_alone() -> None:
    log, later = make_log(3), ModelEventLog("b2")
    for event in log.list_after(0) or ():
        text = log.write_id(event)
        assert log.read_id(text) == event.id
        assert later.read_id(text) is None
    assert later.list_after(None) is None, "also where it has no event itself"


@pytest.mark.parametrize("text", ["", ".", "a1", "a1.", "a1.x", "a1.-1", "a1.1.1", "1", "a1.²", "a1." + "9" * 16])
def test_what_is_no_id(text: str) -> None:
    assert make_log(1).read_id(text) is None


def test_an_id_from_the_future_is_not_known() -> None:
    log = make_log(1)
    assert log.list_after(log.last_id + 1) is None


def test_a_failed_download_tells_no_path_and_no_address() -> None:
    log = ModelEventLog("a1")
    log.follow_downloads([])
    log.follow_table({"m": route("m", state=ModelState.UNLOADED, source="hf:a/b")})
    error = RoundhouseError("models_disk_full", "/srv/models of 10.0.0.1:80 is full.").build_envelope().error
    log.follow_downloads(
        [Download(id="1", reference="hf:a/b", pinned="hf:a/b", state="failed", error=error, created_at=1.0)]
    )
    [told] = [each.data for each in log.list_after(0) or () if each.event == "download_failed"]
    assert told == {"error": "[path] of [address] is full."}
