"""What the gateways say of the requests for a model, together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controller.planning.draining import FORGET_S, IDLE_PROOF_S, GatewayView
from controller.planning.model_traffic import idle_span_by_model, joint_idle_span, traffic_by_model
from controller.schema.routing import GatewayReport
from controller.state import IdleSpan, ModelTraffic, ObservedReplica, Phase, ReplicaId


def _view(name: str, *, lost_at: float | None = None, **fields: dict[str, float] | dict[str, int]) -> GatewayView:
    return GatewayView(GatewayReport.model_validate({"gateway_id": name, "stamp": None, **fields}), lost_at)


def _uses(
    *views: GatewayView, now: float = 100.0, unsure: bool = False, idle_spans: Mapping[str, IdleSpan] | None = None
) -> dict[str, ModelTraffic]:
    return traffic_by_model(
        "abc",
        views,
        now,
        last_used={"a": 20.0, "c": 5.0},
        up_since=50.0,
        unsure=unsure,
        idle_spans=idle_spans or {},
    )


def _replica(index: int, idle_span: IdleSpan | None, **fields: object) -> ObservedReplica:
    replica = ObservedReplica(ReplicaId("a", index, "hash"), f"a-{index}", Phase.RUNNING, 1.0, idle_span=idle_span)
    return replace(replica, **fields)  # type: ignore[arg-type]


def test_what_waits_is_added_up_and_the_first_counts() -> None:
    one = _view("one", queued={"a": 2, "b": 1}, waits_since={"a": 90.0, "b": 95.0})
    two = _view("two", queued={"a": 3}, waits_since={"a": 80.0})
    assert _uses(one, two) == {
        "a": ModelTraffic(5, 80.0, 20.0),
        "b": ModelTraffic(1, 95.0, 50.0),
        "c": ModelTraffic(0, None, 5.0),
    }


def test_a_gateway_that_is_lost_makes_it_unknown_until_it_is_forgotten() -> None:
    here, lost = _view("one", queued={"a": 1}, waits_since={"a": 90.0}), _view("two", lost_at=100.0)
    assert _uses(here, lost, now=101.0)["a"].waiting is None
    assert _uses(here, lost, now=100.0 + FORGET_S)["a"].waiting == 1
    assert _uses(now=101.0)["a"].waiting is None
    assert _uses(here, unsure=True)["a"].waiting is None, "another one may not be back yet"


def test_nobody_waits_any_more_in_a_gateway_that_is_lost() -> None:
    here, lost = _view("one", waits_since={"a": 90.0}), _view("two", lost_at=99.0, waits_since={"a": 40.0, "b": 40.0})
    assert [_uses(here, lost)[name].waits_since for name in "ab"] == [90.0, None]


def test_nobody_of_a_lost_gateway_waits_for_engines_that_have_been_idle_since() -> None:
    here, lost = _view("one", queued={"a": 1}), _view("two", lost_at=90.0, queued={"a": 4})
    idle_span = IdleSpan(80.0, 90.0 + IDLE_PROOF_S)
    uses = _uses(here, lost, idle_spans={"a": idle_span})
    assert [uses[name].waiting for name in "ab"] == [1, None]
    assert uses["a"].last_used == 80.0, "the lost one may have used it until it was idle"
    assert _uses(lost, idle_spans={"a": idle_span})["a"].waiting == 0
    assert _uses(here, lost, idle_spans={"a": replace(idle_span, until=90.0)})["a"].waiting is None
    assert _uses(here, lost, idle_spans={"a": idle_span}, unsure=True)["a"].waiting is None
    assert _uses(here, idle_spans={"a": idle_span})["a"].last_used == 20.0, "every gateway says when it used it"


def test_engines_are_idle_together_while_all_of_them_are() -> None:
    one, two = IdleSpan(10.0, 30.0), IdleSpan(20.0, 25.0)
    assert joint_idle_span([one, two]) == IdleSpan(20.0, 25.0)
    assert joint_idle_span([one, None]) is None
    assert joint_idle_span([]) is None
    assert idle_span_by_model([_replica(0, one), _replica(1, two)]) == {"a": IdleSpan(20.0, 25.0)}
    assert idle_span_by_model([_replica(0, one), _replica(1, None)]) == {}
    assert idle_span_by_model([_replica(0, one), _replica(1, None, phase=Phase.EXITED)]) == {"a": one}
