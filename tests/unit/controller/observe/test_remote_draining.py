"""When a remote that is wanted no longer holds no request any more."""

from __future__ import annotations

from dataclasses import replace

from controller.engines.stub import StubDefinition
from controller.observe.remote_draining import RemoteDraining
from controller.planning.draining import ARRIVAL_S, GatewayView
from controller.schema.routing import GatewayReport, Stamp
from controller.state import DesiredModel, DesiredState, Statement

REMOTE = DesiredModel(
    "far", StubDefinition(backend="stub"), "stub", "hash", 1, Statement("file", 0.0, "enabled"), runs=False
)
WANTED = DesiredState(1, {"far": REMOTE})
UNWANTED = DesiredState(2, {"far": replace(REMOTE, replicas=0)})
ROUTED, UNROUTED = Stamp(epoch=1, seq=1), Stamp(epoch=1, seq=2)
SINCE = 100.0


def _view(stamp: Stamp, count: int = 0, lost_at: float | None = None) -> GatewayView:
    return GatewayView(GatewayReport(gateway_id="g", stamp=stamp, inflight={"far": count} if count else {}), lost_at)


def _drains(*views: GatewayView, now: float) -> bool:
    """Whether the remote still drains, by these gateways."""
    draining = RemoteDraining()
    draining.follow_desired(WANTED, UNWANTED, SINCE)
    draining.note_published(UNROUTED)
    draining.forget_empty(views, now)
    return "far" in draining.models


def test_a_gateway_that_is_there_is_waited_for_as_long_as_it_takes() -> None:
    assert _drains(_view(UNROUTED, 1), now=SINCE + 100_000)
    assert _drains(_view(ROUTED), now=SINCE + 100_000), "its table still routes to it"
    assert not _drains(_view(UNROUTED), now=SINCE)


def test_a_lost_gateway_is_waited_for_only_as_long_as_one_takes_that_lost_its_link() -> None:
    lost = _view(ROUTED, 3, lost_at=SINCE + 50)
    assert _drains(_view(UNROUTED), lost, now=SINCE + 50 + ARRIVAL_S - 0.1)
    assert not _drains(_view(UNROUTED), lost, now=SINCE + 50 + ARRIVAL_S)
    assert _drains(_view(UNROUTED, 1), lost, now=SINCE + 50 + ARRIVAL_S), "the other one has a request inside"


def test_without_any_gateway_it_ends_too() -> None:
    assert _drains(now=SINCE + ARRIVAL_S - 0.1)
    assert not _drains(now=SINCE + ARRIVAL_S)


def test_one_that_is_wanted_again_drains_no_longer() -> None:
    draining = RemoteDraining()
    draining.follow_desired(WANTED, UNWANTED, SINCE)
    draining.forget_empty([_view(UNROUTED)], SINCE + 100)
    assert draining.models == {"far"}, "no table without it was published"
    draining.follow_desired(UNWANTED, WANTED, SINCE)
    assert draining.models == frozenset()
