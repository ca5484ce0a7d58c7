"""When a drained replica is empty, and what the gateways say together of the requests for a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contract.routing import GatewayReport, Stamp
from controller.planning.draining import (
    ARRIVAL_S,
    FORGET_S,
    IDLE_PROOF_S,
    DrainState,
    GatewayView,
    count_inflight,
    counts_unknown_since,
    gateways_may_reconnect,
    idle_proof_due_at,
    is_drained,
    proves_idle,
)
from controller.planning.model_traffic import idle_span_by_model, joint_idle_span, traffic_by_model
from controller.state import IdleSpan, ModelTraffic, ObservedReplica, Phase, ReplicaId

UNROUTED = Stamp(epoch=2, seq=7)
DRAIN = DrainState(since=0.0, unrouted_stamp=UNROUTED)
LATER = 100.0


def _view(stamp: Stamp | None, count: int = 0, lost_at: float | None = None) -> GatewayView:
    report = GatewayReport(gateway_id="g", stamp=stamp, inflight={"r": count} if count else {})
    return GatewayView(report, lost_at)


def _drained(
    *views: GatewayView, idle: bool | None = None, drain: DrainState = DRAIN, unsure: bool = False
) -> bool | None:
    return is_drained("r", drain, views, idle, now=LATER, unsure=unsure)


def test_every_gateway_must_report_zero_under_a_table_that_does_not_route_to_it() -> None:
    assert _drained(_view(UNROUTED), _view(Stamp(epoch=2, seq=9))) is True
    assert _drained(_view(UNROUTED), _view(Stamp(epoch=2, seq=6))) is False
    assert _drained(_view(UNROUTED), _view(Stamp(epoch=1, seq=900))) is False
    assert _drained(_view(UNROUTED), _view(UNROUTED, 1)) is False
    assert _drained(_view(UNROUTED), _view(None)) is False


def test_nothing_is_empty_before_a_table_without_it_was_published() -> None:
    assert _drained(_view(UNROUTED), idle=True, drain=DrainState(since=0.0)) is False


def test_a_lost_gateway_is_unknown_and_then_the_engine_decides() -> None:
    lost = _view(Stamp(epoch=2, seq=1), 3, lost_at=LATER - 1)
    assert _drained(_view(UNROUTED), lost) is None
    assert _drained(_view(UNROUTED), lost, idle=True) is True
    assert _drained(_view(UNROUTED), lost, idle=False) is False
    assert _drained(_view(UNROUTED, 1), lost, idle=True) is False


def test_a_gateway_gone_for_long_holds_nothing() -> None:
    assert _drained(_view(UNROUTED), _view(None, lost_at=LATER - FORGET_S)) is True


def test_a_new_controller_waits_for_its_gateways_before_it_believes_some_of_them_or_the_engine() -> None:
    assert _drained(idle=True, unsure=True) is None
    assert _drained(_view(UNROUTED), idle=True, unsure=True) is None
    assert _drained(_view(UNROUTED, 1), unsure=True) is False
    assert _drained(idle=True) is True
    assert _drained(idle=None) is None


def test_gateways_are_waited_for_for_a_moment() -> None:
    assert [gateways_may_reconnect(now, 100.0) for now in (99.0, 100.0, 100.0 + ARRIVAL_S)] == [False, True, False]


def test_inflight_adds_up_and_is_unknown_with_a_lost_gateway_or_none() -> None:
    assert count_inflight("r", [_view(UNROUTED, 2), _view(UNROUTED, 3)], LATER) == 5
    assert count_inflight("r", [_view(UNROUTED, 2), _view(UNROUTED, lost_at=LATER)], LATER) is None
    assert count_inflight("r", [], LATER) is None


def test_since_when_counts_are_unknown() -> None:
    live, lost = _view(UNROUTED), _view(UNROUTED, lost_at=LATER - 30)
    assert counts_unknown_since([live], LATER) is None
    assert counts_unknown_since([live, lost, _view(UNROUTED, lost_at=LATER - 10)], LATER) == LATER - 10
    assert counts_unknown_since([live, _view(UNROUTED, lost_at=LATER - FORGET_S)], LATER) is None
    assert counts_unknown_since([], LATER) == float("-inf"), "nobody was ever there to tell"


def test_an_engine_must_say_for_a_while_and_after_the_loss_that_it_is_idle() -> None:
    assert idle_proof_due_at(IdleSpan(10.0, 90.0), 50.0) == 50.0 + IDLE_PROOF_S
    assert idle_proof_due_at(IdleSpan(60.0, 90.0), 50.0) == 60.0 + IDLE_PROOF_S
    assert not proves_idle(None, 50.0)
    assert not proves_idle(IdleSpan(10.0, 50.0 + IDLE_PROOF_S - 0.1), 50.0), "most of it was before the loss"
    assert proves_idle(IdleSpan(10.0, 50.0 + IDLE_PROOF_S), 50.0)
    assert not proves_idle(IdleSpan(90.0, 90.0), 50.0), "one answer is not a while"
    assert proves_idle(IdleSpan(90.0, 90.0 + IDLE_PROOF_S), 50.0)


def test_an_idle_engine_holds_nothing_of_a_lost_gateway_and_what_the_others_hold_counts() -> None:
    lost = _view(UNROUTED, 3, lost_at=LATER - 50)
    idle_span = IdleSpan(LATER - 60, LATER - 1)
    assert count_inflight("r", [_view(UNROUTED, 2), lost], LATER, idle_span) == 2, "they came after the last probe"
    assert count_inflight("r", [lost], LATER, idle_span) == 0
    assert count_inflight("r", [], LATER, idle_span) == 0
    assert count_inflight("r", [_view(UNROUTED, 2)], LATER, IdleSpan(LATER, LATER)) == 2
    assert count_inflight("r", [lost, _view(UNROUTED, lost_at=LATER - 2)], LATER, idle_span) is None


def _report(name: str, *, lost_at: float | None = None, **fields: dict[str, float] | dict[str, int]) -> GatewayView:
    return GatewayView(GatewayReport.model_validate({"gateway_id": name, "stamp": None, **fields}), lost_at)


def _uses(
    *views: GatewayView, now: float = 100.0, unsure: bool = False, idle_spans: Mapping[str, IdleSpan] | None = None
) -> dict[str, ModelTraffic]:
    return traffic_by_model(
        "abc", views, now, last_used={"a": 20.0, "c": 5.0}, up_since=50.0, unsure=unsure, idle_spans=idle_spans or {}
    )


def _replica(index: int, idle_span: IdleSpan | None, **fields: object) -> ObservedReplica:
    replica = ObservedReplica(ReplicaId("a", index, "hash"), f"a-{index}", Phase.RUNNING, 1.0, idle_span=idle_span)
    return replace(replica, **fields)  # type: ignore[arg-type]


def test_what_waits_is_added_up_and_the_first_counts() -> None:
    one = _report("one", queued={"a": 2, "b": 1}, waits_since={"a": 90.0, "b": 95.0})
    two = _report("two", queued={"a": 3}, waits_since={"a": 80.0})
    assert _uses(one, two) == {
        "a": ModelTraffic(5, 80.0, 20.0),
        "b": ModelTraffic(1, 95.0, 50.0),
        "c": ModelTraffic(0, None, 5.0),
    }


def test_a_gateway_that_is_lost_makes_it_unknown_until_it_is_forgotten() -> None:
    live, lost = _report("one", queued={"a": 1}, waits_since={"a": 90.0}), _report("two", lost_at=100.0)
    assert _uses(live, lost, now=101.0)["a"].waiting is None
    assert _uses(live, lost, now=100.0 + FORGET_S)["a"].waiting == 1
    assert _uses(now=101.0)["a"].waiting is None
    assert _uses(live, unsure=True)["a"].waiting is None, "another one may not be back yet"


def test_nobody_waits_any_more_in_a_gateway_that_is_lost() -> None:
    live, lost = (
        _report("one", waits_since={"a": 90.0}),
        _report("two", lost_at=99.0, waits_since={"a": 40.0, "b": 40.0}),
    )
    assert [_uses(live, lost)[name].waits_since for name in "ab"] == [90.0, None]


def test_nobody_of_a_lost_gateway_waits_for_engines_that_have_been_idle_since() -> None:
    live, lost = _report("one", queued={"a": 1}), _report("two", lost_at=90.0, queued={"a": 4})
    idle_span = IdleSpan(80.0, 90.0 + IDLE_PROOF_S)
    uses = _uses(live, lost, idle_spans={"a": idle_span})
    assert [uses[name].waiting for name in "ab"] == [1, None]
    assert uses["a"].last_used == 80.0, "the lost one may have used it until it was idle"
    assert _uses(lost, idle_spans={"a": idle_span})["a"].waiting == 0
    assert _uses(live, lost, idle_spans={"a": replace(idle_span, until=90.0)})["a"].waiting is None
    assert _uses(live, lost, idle_spans={"a": idle_span}, unsure=True)["a"].waiting is None
    assert _uses(live, idle_spans={"a": idle_span})["a"].last_used == 20.0, "every gateway says when it used it"


def test_engines_are_idle_together_while_all_of_them_are() -> None:
    one, two = IdleSpan(10.0, 30.0), IdleSpan(20.0, 25.0)
    assert joint_idle_span([one, two]) == IdleSpan(20.0, 25.0)
    assert joint_idle_span([one, None]) is None
    assert joint_idle_span([]) is None
    assert idle_span_by_model([_replica(0, one), _replica(1, two)]) == {"a": IdleSpan(20.0, 25.0)}
    assert idle_span_by_model([_replica(0, one), _replica(1, None)]) == {}
    assert idle_span_by_model([_replica(0, one), _replica(1, None, phase=Phase.EXITED)]) == {"a": one}
