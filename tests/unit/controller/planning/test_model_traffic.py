"""What the gateways say of the requests for a model, together."""

from __future__ import annotations

from controller.planning.draining import FORGET_S, GatewayView
from controller.planning.model_traffic import traffic_by_model
from controller.schema.routing import GatewayReport
from controller.state import ModelTraffic


def _view(name: str, *, lost_at: float | None = None, **fields: dict[str, float] | dict[str, int]) -> GatewayView:
    return GatewayView(GatewayReport.model_validate({"gateway_id": name, "stamp": None, **fields}), lost_at)


def _uses(*views: GatewayView, now: float = 100.0, unsure: bool = False) -> dict[str, ModelTraffic]:
    return traffic_by_model("abc", views, now, last_used={"a": 20.0, "c": 5.0}, up_since=50.0, unsure=unsure)


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
