"""What the gateways say of the requests for a model, together."""

from __future__ import annotations

from controller.drains import FORGET_S, GatewayView
from controller.schema.routing import GatewayReport
from controller.state import Use
from controller.uses import uses


def _view(name: str, *, lost_at: float | None = None, **fields: dict[str, float] | dict[str, int]) -> GatewayView:
    return GatewayView(GatewayReport.model_validate({"gateway_id": name, "stamp": None, **fields}), lost_at)


def test_what_waits_is_added_up_and_the_first_and_the_last_count() -> None:
    one = _view("one", queued={"a": 2, "b": 1}, waits_since={"a": 90.0, "b": 95.0}, last_used={"a": 10.0})
    two = _view("two", queued={"a": 3}, waits_since={"a": 80.0}, last_used={"a": 20.0, "c": 5.0})
    assert uses("abc", [one, two], 100.0) == {
        "a": Use(5, 80.0, 20.0),
        "b": Use(1, 95.0, None),
        "c": Use(0, None, 5.0),
    }


def test_a_gateway_that_is_lost_makes_it_unknown_until_it_is_forgotten() -> None:
    here, lost = _view("one", queued={"a": 1}), _view("two", lost_at=100.0)
    assert uses("a", [here, lost], 101.0)["a"].waiting is None
    assert uses("a", [here, lost], 100.0 + FORGET_S)["a"].waiting == 1
    assert uses("a", [], 101.0)["a"].waiting is None
