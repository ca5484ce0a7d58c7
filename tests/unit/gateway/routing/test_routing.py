"""Which error a model's state is."""

from __future__ import annotations

import pytest

from contract.downloads import Download
from contract.errors import RoundhouseError
from contract.routing import RemoteProbe, RoutingTable
from contract.status import ModelState
from gateway.routing.availability import is_worth_waiting, not_loaded_in_time, refusal_of
from gateway.routing.model_events import KEPT_EVENTS, ModelEventLog
from gateway.routing.table import LiveRoutes
from gateway.server.asgi import error_headers
from tests.fakes.fake_controller import route
from tests.support.outcomes import present

NOW = 1000.0


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (ModelState.UNLOADED, "model_not_loaded"),
        (ModelState.LOADING, "model_loading"),
        (ModelState.UNLOADING, "model_unloading"),
        (ModelState.FAILED, "model_failed"),
    ],
)
def test_every_state_but_loaded_has_its_code(state: ModelState, code: str) -> None:
    error = present(refusal_of(route("m", state=state, last_error="the file is missing"), NOW))
    assert error.entry.code == code
    assert "the file is missing" in error.message


def test_a_model_that_is_not_loaded_says_why() -> None:
    unloaded = route("m", state=ModelState.UNLOADED).model_copy(update={"reason": "an operator unloaded it"})
    error = present(refusal_of(unloaded, NOW))
    assert error.message == "The model 'm' is not loaded: an operator unloaded it."


def test_paths_of_the_server_are_for_those_who_may_see_them() -> None:
    failed = route("m", state=ModelState.FAILED, last_error="/srv/m.gguf at 10.0.0.1:80 is empty")
    hidden, shown = refusal_of(failed, NOW), refusal_of(failed, NOW, is_for_admin=True)
    assert hidden is not None
    assert shown is not None
    assert hidden.message == "The model 'm' could not be loaded: [path] at [address] is empty"
    assert shown.message == "The model 'm' could not be loaded: /srv/m.gguf at [address] is empty"


def test_a_failed_model_asks_clients_not_to_retry_by_themselves_and_a_loaded_one_is_not_refused() -> None:
    assert refusal_of(route("m"), NOW) is None
    error = present(refusal_of(route("m", state=ModelState.FAILED, retry_at=NOW + 30), NOW))
    assert {(b"retry-after", b"30"), (b"x-should-retry", b"false")} <= set(error_headers(error))


@pytest.mark.parametrize(("retry_at", "seconds"), [(None, "5"), (1042.0, "42"), (900.0, "1")])
def test_retry_after_is_the_next_attempt(retry_at: float | None, seconds: str) -> None:
    error = present(refusal_of(route("m", state=ModelState.LOADING, retry_at=retry_at), NOW))
    assert (b"retry-after", seconds.encode()) in error_headers(error)


@pytest.mark.parametrize(
    ("state", "autoload", "waits"),
    [
        *((ModelState.UNLOADED, True, True), (ModelState.LOADING, True, True)),
        *((ModelState.UNLOADING, True, True), (ModelState.FAILED, True, False)),
        *((ModelState.UNLOADED, False, False), (ModelState.LOADING, False, False)),
    ],
)
def test_only_what_demand_can_load_is_waited_for(state: ModelState, autoload: bool, waits: bool) -> None:
    assert is_worth_waiting(route("m", state=state, autoload=autoload)) is waits


def test_a_model_that_waits_for_room_says_for_which() -> None:
    waits = route("m", state=ModelState.LOADING, autoload=True, reason="waiting for room: a is ending")
    refusal = present(refusal_of(waits, 1.0))
    assert refusal.message == "The model 'm' is being loaded: waiting for room: a is ending."
    assert error_headers(refusal)
    assert is_worth_waiting(waits)
    late = not_loaded_in_time("m", 5.0, waits)
    assert late.message == "The model 'm' was not loaded within 5 s: waiting for room: a is ending."
    assert not_loaded_in_time("m", 5.0, None).message == "The model 'm' was not loaded within 5 s."


def test_a_remote_that_is_away_asks_clients_to_try_again_and_one_that_refuses_its_key_does_not() -> None:
    probe = RemoteProbe(url="http://h.example/models", spec="h")
    failed = route("m", state=ModelState.FAILED, last_error="it answers HTTP 503", remote_probe=probe)
    away = present(refusal_of(failed.model_copy(update={"retry_at": NOW + 8}), NOW))
    assert (away.entry.code, away.message) == ("model_failed", "The model 'm' is not available: it answers HTTP 503")
    assert dict(error_headers(away)) == {b"content-type": b"application/json", b"retry-after": b"8"}
    refused = present(refusal_of(failed, NOW))
    assert dict(error_headers(refused)) == {b"content-type": b"application/json", b"x-should-retry": b"false"}


def make_log(changes: int) -> ModelEventLog:
    """A log with one event for each change of a model's state, after that of its declaration and its first state."""
    log = ModelEventLog("a1")
    for number in range(changes + 1):
        state = (ModelState.UNLOADED, ModelState.LOADED)[number % 2]
        log.follow_table({"m": route("m", state=state)})
    assert log.last_id == changes + 2
    return log


def test_a_table_reaches_all_who_follow_it_although_one_fails() -> None:
    live, heard = LiveRoutes(), list[str]()

    def fail(_: object) -> None:
        heard.append("table")
        raise KeyError("a defect")

    live.on_table = live.on_models = fail
    live.on_tools = lambda _: heard.append("tools")
    table = {"instance": "i", "stamp": {"epoch": 1, "seq": 1}, "models": []}
    with pytest.raises(KeyError):
        live.apply_table(RoutingTable.model_validate(table))
    assert heard == ["table", "table", "tools"]


def test_events_are_kept_in_order_and_without_gaps() -> None:
    log = make_log(3)
    events = present(log.list_after(0))
    assert [each.id for each in events] == [1, 2, 3, 4, 5]
    assert [each.event for each in events] == ["models_reload", *["model_status"] * 4]
    assert log.list_after(5) == []
    assert [each.id for each in log.list_after(4) or ()] == [5]


def test_the_oldest_kept_event_bounds_what_can_be_resumed() -> None:
    log = make_log(KEPT_EVENTS + 10)
    oldest = log.last_id - KEPT_EVENTS + 1
    whole = present(log.list_after(oldest - 1))
    assert [each.id for each in whole] == list(range(oldest, log.last_id + 1))
    assert log.list_after(oldest - 2) is None, "one event is gone"
    assert log.list_after(0) is None


def test_an_id_from_the_future_is_not_known() -> None:
    log = make_log(1)
    assert log.list_after(log.last_id + 1) is None


def test_an_event_has_the_names_by_which_its_model_may_be_seen() -> None:
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


def test_a_failed_download_tells_no_path_and_no_address() -> None:
    log = ModelEventLog("a1")
    log.follow_downloads([])
    log.follow_table({"m": route("m", state=ModelState.UNLOADED, source="hf:a/b")})
    error = RoundhouseError("models_disk_full", "/srv/models of 10.0.0.1:80 is full.").build_envelope().error
    log.follow_downloads(
        [Download(id="1", reference="hf:a/b", pinned="hf:a/b", state="failed", error=error, created_at=1.0)]
    )
    [failed] = [each.data for each in log.list_after(0) or () if each.event == "download_failed"]
    assert failed == {"error": "[path] of [address] is full."}


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
