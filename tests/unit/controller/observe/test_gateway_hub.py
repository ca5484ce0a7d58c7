"""Tables down, reports up."""

from __future__ import annotations

import asyncio

from controller.observe.gateway_hub import GatewayHub
from controller.planning.draining import FORGET_S
from controller.schema.routing import GatewayReport, ModelRoute, Stamp
from controller.schema.status import ModelState
from tests.support.wait import DEADLINE_S


class Counter:
    """Counts wakeups."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def _hub(now: list[float], epoch: int = 3) -> tuple[GatewayHub, Counter]:
    wakes = Counter()
    return GatewayHub("i", epoch, wake=wakes, clock=lambda: now[0]), wakes


def _route(name: str) -> ModelRoute:
    return ModelRoute(name=name, backend="stub", state=ModelState.LOADED, created=1, served_name=name)


def test_a_table_is_published_only_when_it_differs() -> None:
    hub, _ = _hub([0.0])
    assert hub.publish_table((_route("a"),)) == Stamp(epoch=3, seq=1)
    assert hub.publish_table((_route("a"),)) == Stamp(epoch=3, seq=1)
    assert hub.publish_table((_route("b"),)) == Stamp(epoch=3, seq=2)


async def test_waiting_for_the_next_table() -> None:
    hub, _ = _hub([0.0])
    first = asyncio.create_task(hub.wait_for_table(None))
    await asyncio.sleep(0)
    stamp = hub.publish_table((_route("a"),))
    assert (await first).stamp == stamp
    second = asyncio.create_task(hub.wait_for_table(stamp))
    await asyncio.sleep(0)
    assert not second.done()
    hub.publish_table((_route("b"),))
    assert (await second).models == (_route("b"),)


def test_newer_epochs_are_newer_tables() -> None:
    assert Stamp(epoch=1, seq=900) < Stamp(epoch=2, seq=1)
    assert not Stamp(epoch=2, seq=1) < Stamp(epoch=2, seq=1)
    assert Stamp(epoch=2, seq=1) <= Stamp(epoch=2, seq=1)


def test_where_gateways_listen_is_told_while_their_links_are_up() -> None:
    hub, _ = _hub([0.0])
    for gateway, addresses in (("gw-1", ("http://a:1", "http://b:1")), ("gw-2", ("http://b:1",)), ("old", ())):
        hub.open_link(gateway)
        hub.take_report(GatewayReport(gateway_id=gateway, stamp=None, addresses=addresses))
    assert hub.addresses == ["http://a:1", "http://b:1"]
    hub.close_link("gw-1")
    assert hub.addresses == ["http://b:1"]


def test_only_reports_that_matter_wake_the_loop() -> None:
    hub, wakes = _hub([0.0])
    stamp = Stamp(epoch=3, seq=1)
    hub.take_report(GatewayReport(gateway_id="g", stamp=stamp))
    assert wakes.count == 1
    hub.take_report(GatewayReport(gateway_id="g", stamp=stamp, inflight={"r": 2}))
    assert wakes.count == 1
    hub.take_report(GatewayReport(gateway_id="g", stamp=stamp))
    assert wakes.count == 2, "a replica became empty"
    hub.take_report(GatewayReport(gateway_id="g", stamp=Stamp(epoch=3, seq=2)))
    assert wakes.count == 3, "a newer table is in use"


def test_a_gateway_is_lost_when_its_last_link_ends_and_forgotten_much_later() -> None:
    now = [10.0]
    hub, _ = _hub(now)
    hub.open_link("g")
    hub.open_link("g")
    hub.take_report(GatewayReport(gateway_id="g", stamp=None, inflight={"r": 1}))
    hub.close_link("g")
    assert (hub.connected_ids, _lost_at(hub)) == (["g"], None)
    hub.close_link("g")
    assert (hub.connected_ids, _lost_at(hub)) == ([], 10.0)
    now[0] += FORGET_S - 1
    hub.forget_lost()
    assert len(hub.views) == 1
    now[0] += 1
    hub.forget_lost()
    assert not list(hub.views)


def test_a_gateway_that_said_goodbye_is_not_lost() -> None:
    hub, _ = _hub([10.0])
    hub.open_link("g")
    hub.take_report(GatewayReport(gateway_id="g", stamp=None, ending=True))
    hub.close_link("g")
    assert not hub.views


async def test_a_table_is_taken_when_every_connected_gateway_works_by_it() -> None:
    hub, _ = _hub([10.0])
    stamp = hub.publish_table((_route("a"),))
    await hub.wait_until_applied()  # nobody is connected: nobody has to take it
    for gateway in ("g", "h"):
        hub.open_link(gateway)
        hub.take_report(GatewayReport(gateway_id=gateway, stamp=None))
    taken = asyncio.create_task(hub.wait_until_applied())
    hub.take_report(GatewayReport(gateway_id="g", stamp=stamp))
    await asyncio.sleep(0)
    assert not taken.done()
    hub.take_report(GatewayReport(gateway_id="h", stamp=stamp))
    await taken


async def test_a_gateway_that_is_lost_is_waited_for_no_more() -> None:
    hub, _ = _hub([10.0])
    first = asyncio.create_task(hub.wait_until_applied())
    await asyncio.sleep(0)
    stamp = hub.publish_table((_route("a"),))
    await asyncio.wait_for(first, DEADLINE_S)
    for gateway in ("g", "h"):
        hub.open_link(gateway)
        hub.take_report(GatewayReport(gateway_id=gateway, stamp=stamp if gateway == "g" else None))
    taken = asyncio.create_task(hub.wait_until_applied())
    await asyncio.sleep(0)
    assert not taken.done()
    hub.close_link("h")
    await asyncio.wait_for(taken, DEADLINE_S)


def _lost_at(hub: GatewayHub) -> float | None:
    [view] = hub.views
    return view.lost_at


def test_the_last_use_outlives_the_gateway_that_told_it_and_ends_with_the_model() -> None:
    now = [100.0]
    hub, _ = _hub(now)
    hub.publish_table((_route("a"), _route("b")))
    hub.open_link("old")
    hub.take_report(GatewayReport(gateway_id="old", stamp=None, last_used={"a": 90.0, "b": 80.0}, ending=True))
    hub.close_link("old")
    hub.take_report(GatewayReport(gateway_id="new", stamp=None, last_used={"b": 70.0}))
    assert hub.views[0].report.gateway_id == "new"
    assert hub.last_used == {"a": 90.0, "b": 80.0}
    hub.publish_table((_route("b"),))
    assert hub.last_used == {"b": 80.0}
    hub.take_report(GatewayReport(gateway_id="new", stamp=None, last_used={"b": 500.0}))
    assert hub.last_used == {"b": 100.0}, "not in the future"
