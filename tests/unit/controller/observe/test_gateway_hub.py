"""Tables down, reports up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from common.processes import read_host, read_own_start
from contract.keys import Key
from contract.routing import GatewayProcess, GatewayReport, ModelRoute, Stamp
from contract.status import ModelState
from controller.observe.gateway_hub import REFUSAL_SHOWN_S, GatewayHub, GatewayPlace, see_process
from controller.planning.draining import FORGET_S, count_inflight, counts_unknown_since
from controller.planning.gateway_place import PLACE_KEPT_S
from tests.support.wait import DEADLINE_S


def _hub(now: list[float] | None = None, wake: Callable[[], None] = lambda: None) -> GatewayHub:
    at = now or [10.0]
    return GatewayHub("i", 3, wake=wake, clock=lambda: at[0])


def _link(hub: GatewayHub, gateway: str, stamp: Stamp | None = None, **fields: Any) -> None:
    """A gateway connects, and reports."""
    hub.open_link(gateway)
    hub.take_report(GatewayReport(gateway_id=gateway, stamp=stamp, **fields))


def _route(name: str) -> ModelRoute:
    return ModelRoute(name=name, backend="stub", state=ModelState.LOADED, created=1, served_name=name)


async def test_a_table_is_published_when_it_differs_and_waited_for() -> None:
    hub = _hub()
    first = asyncio.create_task(hub.wait_for_table(None))
    await asyncio.sleep(0)
    stamp = hub.publish_table((_route("a"),))
    assert stamp == hub.publish_table((_route("a"),)) == Stamp(epoch=3, seq=1)
    assert (await first).stamp == stamp
    second = asyncio.create_task(hub.wait_for_table(stamp))
    await asyncio.sleep(0)
    assert not second.done()
    assert hub.publish_table((_route("b"),)) == Stamp(epoch=3, seq=2)
    assert (await second).models == (_route("b"),)


def test_newer_epochs_are_newer_tables() -> None:
    assert Stamp(epoch=1, seq=900) < Stamp(epoch=2, seq=1)
    assert not Stamp(epoch=2, seq=1) < Stamp(epoch=2, seq=1)
    assert Stamp(epoch=2, seq=1) <= Stamp(epoch=2, seq=1)


def test_where_gateways_listen_is_told_while_their_links_are_up() -> None:
    hub = _hub()
    for gateway, addresses in (("gw-1", ("http://a:1", "http://b:1")), ("gw-2", ("http://b:1",)), ("old", ())):
        _link(hub, gateway, addresses=addresses)
    assert hub.addresses == ["http://a:1", "http://b:1"]
    hub.close_link("gw-1")
    assert hub.addresses == ["http://b:1"]


def test_only_reports_that_matter_wake_the_loop() -> None:
    wakes: list[None] = []
    hub = _hub(wake=lambda: wakes.append(None))
    reports: list[tuple[int, dict[str, int], int]] = [(1, {}, 1), (1, {"r": 2}, 1), (1, {}, 2), (2, {}, 3)]
    for seq, inflight, count in reports:
        hub.take_report(GatewayReport(gateway_id="g", stamp=Stamp(epoch=3, seq=seq), inflight=inflight))
        assert len(wakes) == count, "a replica became empty, or a newer table is in use"


def test_a_gateway_is_lost_when_its_last_link_ends_and_forgotten_much_later() -> None:
    now = [10.0]
    hub = _hub(now)
    hub.open_link("g")
    _link(hub, "g", inflight={"r": 1})
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
    _link(hub, "g", ending=True)
    hub.close_link("g")
    assert not hub.views, "one that said goodbye is not lost"


async def test_a_table_is_taken_when_every_connected_gateway_works_by_it() -> None:
    hub = _hub()
    untaken = asyncio.create_task(hub.wait_until_applied())
    await asyncio.sleep(0)
    stamp = hub.publish_table((_route("a"),))
    await asyncio.wait_for(untaken, DEADLINE_S)
    await hub.wait_until_applied()  # nobody is connected: nobody has to take it
    for gateway in ("g", "h"):
        _link(hub, gateway)
    taken = asyncio.create_task(hub.wait_until_applied())
    hub.take_report(GatewayReport(gateway_id="g", stamp=stamp))
    await asyncio.sleep(0)
    assert not taken.done()
    hub.take_report(GatewayReport(gateway_id="h", stamp=stamp))
    await asyncio.wait_for(taken, DEADLINE_S)
    _link(hub, "late")
    taken = asyncio.create_task(hub.wait_until_applied())
    await asyncio.sleep(0)
    assert not taken.done()
    hub.close_link("late")
    await asyncio.wait_for(taken, DEADLINE_S)


def _lost_at(hub: GatewayHub) -> float | None:
    [view] = hub.views
    return view.lost_at


def test_the_last_use_outlives_the_gateway_that_told_it_and_ends_with_the_model() -> None:
    hub = _hub([100.0])
    hub.publish_table((_route("a"), _route("b")))
    _link(hub, "old", last_used={"a": 90.0, "b": 80.0}, ending=True)
    hub.close_link("old")
    hub.take_report(GatewayReport(gateway_id="new", stamp=None, last_used={"b": 70.0}))
    assert hub.views[0].report.gateway_id == "new"
    assert hub.last_used == {"a": 90.0, "b": 80.0}
    hub.publish_table((_route("b"),))
    assert hub.last_used == {"b": 80.0}
    hub.take_report(GatewayReport(gateway_id="new", stamp=None, last_used={"b": 500.0}))
    assert hub.last_used == {"b": 100.0}, "not in the future"


def test_the_last_use_of_keys_is_kept_to_the_minute_and_ends_with_the_key() -> None:
    now = [1000.0]
    hub = _hub(now)
    hub.publish_table((), (_key("a"), _key("b")))
    _link(hub, "old")  # a gateway of an older version, which does not say
    assert (hub.keys_used,) == (None,)
    _link(hub, "new", keys_used={"a": 990.0})
    assert hub.keys_used == {"a": 960.0}
    hub.take_report(GatewayReport(gateway_id="new", stamp=None, keys_used={"a": 30.0, "b": 5000.0}))
    assert hub.keys_used == {"a": 960.0, "b": 960.0}, "neither back nor in the future"
    hub.take_report(GatewayReport(gateway_id="new", stamp=None, keys_used={}))
    later = GatewayHub("i", 4, wake=lambda: None, clock=lambda: now[0], keys_used=hub.keys_used)
    later.publish_table((), (_key("b"),))
    assert later.keys_used == {"b": 960.0}


def _key(name: str) -> Key:
    return Key(name=name, sha256="0" * 64, tenant=name)


def _process(epoch: int, gateway: str = "gw-a") -> GatewayProcess:
    return GatewayProcess(id=gateway, epoch=epoch)


def _report(process: GatewayProcess, **fields: Any) -> GatewayReport:
    return GatewayReport(gateway_id=process.name, process=process, **{"stamp": None, **fields})


def _connect(hub: GatewayHub, report: GatewayReport) -> str | None:
    """As the gateway's link does."""
    reason = hub.admit_gateway(report)
    if reason is None:
        hub.open_link(report.gateway_id)
        hub.take_report(report)
    return reason


class Host:
    """What can be seen of processes, and who had the place."""

    def __init__(self) -> None:
        self.now = 10.0
        self.seen: dict[GatewayProcess, bool] = {}
        self.stored: list[GatewayProcess | None] = []
        self.is_disk_full = False

    def remember(self, process: GatewayProcess | None) -> bool:
        if not self.is_disk_full:
            self.stored.append(process)
        return not self.is_disk_full

    def open_hub(self, last: GatewayProcess | None = None) -> GatewayHub:
        place = GatewayPlace(last, self.remember, self.seen.get)
        return GatewayHub("i", 3, wake=lambda: None, clock=lambda: self.now, place=place)


def test_a_second_gateway_is_refused_and_named_in_the_table_as_long_as_it_asks() -> None:
    host = Host()
    hub = host.open_hub()
    hub.publish_table((_route("a"),))
    assert _connect(hub, _report(_process(1))) is None
    second = _report(_process(1, "gw-b"))
    reason = _connect(hub, second)
    assert reason is not None
    assert hub.connected_ids == ["gw-a.1"]
    assert [view.report.gateway_id for view in hub.views] == ["gw-a.1"], "what it reports does not count"
    assert hub.refusals == (reason,)
    assert hub.table is not None
    assert hub.table.refused_gateways == (reason,)
    stamp = hub.table.stamp
    host.now += REFUSAL_SHOWN_S - 1
    assert _connect(hub, second) == reason
    assert hub.table.stamp == stamp, "nothing is new"
    host.now += REFUSAL_SHOWN_S - 1
    hub.forget_lost()
    assert hub.refusals == (reason,)
    host.now += 1
    hub.forget_lost()
    hub.publish_table((_route("a"),))
    assert hub.refusals == hub.table.refused_gateways
    assert not hub.refusals


def test_a_refused_gateway_is_taken_when_the_first_has_said_goodbye_or_is_seen_gone() -> None:
    host = Host()
    hub = host.open_hub()
    hub.publish_table((_route("a"),))
    first, second = _process(1), _process(1, "gw-b")
    _connect(hub, _report(first))
    assert _connect(hub, _report(second)) is not None
    hub.take_report(_report(first, draining=True, ending=True))
    hub.close_link(first.name)
    assert host.stored == [first, None]
    assert _connect(hub, _report(second)) is None
    assert hub.table is not None
    assert hub.table.refused_gateways == ()
    hub.close_link(second.name)
    assert _connect(hub, _report(first)) is not None, "the second may come back"
    host.seen[second] = False
    assert _connect(hub, _report(first)) is None
    assert [view.report.gateway_id for view in hub.views] == [first.name]


def test_who_was_taken_on_a_full_disk_is_remembered_with_a_later_report() -> None:
    host = Host()
    hub = host.open_hub(_process(1))
    host.is_disk_full = True
    assert _connect(hub, _report(_process(2))) is None
    hub.take_report(_report(_process(2)))
    assert host.stored == []
    host.is_disk_full = False
    hub.take_report(_report(_process(2), draining=True))
    assert host.stored == []
    hub.take_report(_report(_process(2)))
    hub.take_report(_report(_process(2)))
    assert host.stored == [_process(2)]
    hub.take_report(_report(_process(2), draining=True, ending=True))
    hub.close_link("gw-a.2")
    hub.take_report(_report(_process(2)))
    assert host.stored == [_process(2), None]


def test_a_restarted_gateways_former_self_is_unknown_no_more() -> None:
    host = Host()
    hub = host.open_hub()
    _connect(hub, _report(_process(1), inflight={"r": 2}))
    hub.close_link("gw-a.1")
    assert counts_unknown_since(hub.views, host.now) == 10.0
    assert _connect(hub, _report(_process(2))) is None
    assert counts_unknown_since(hub.views, host.now) is None
    assert count_inflight("r", hub.views, host.now) == 0


def test_a_killed_gateway_is_forgotten_when_its_process_is_seen_gone() -> None:
    host = Host()
    hub = host.open_hub()
    host.seen[_process(1)] = True
    _connect(hub, _report(_process(1), inflight={"r": 2}))
    hub.close_link("gw-a.1")
    hub.forget_lost()
    assert _lost_at(hub) == 10.0, "it lives, and only its link is lost"
    host.seen[_process(1)] = False
    hub.forget_lost()
    assert not hub.views


def test_a_successor_and_its_draining_predecessor_add_up_until_the_old_link_ends() -> None:
    host = Host()
    hub = host.open_hub()
    old, new = _process(1), _process(2)
    _connect(hub, _report(old, inflight={"r": 2}))
    assert _connect(hub, _report(new)) is not None
    hub.take_report(_report(old, inflight={"r": 2}, draining=True))
    assert _connect(hub, _report(new, inflight={"r": 3})) is None
    assert count_inflight("r", hub.views, host.now) == 5
    host.seen[old] = True
    hub.close_link(old.name)
    assert count_inflight("r", hub.views, host.now) is None, "its requests go on"
    assert _connect(hub, _report(old, inflight={"r": 1}, draining=True)) is None, "it lost only its link"
    assert count_inflight("r", hub.views, host.now) == 4
    del host.seen[old]
    hub.close_link(old.name)
    assert count_inflight("r", hub.views, host.now) == 3
    assert host.stored == [old, new]


def test_after_a_restart_of_the_controller_its_gateway_comes_first() -> None:
    host = Host()
    hub = host.open_hub(_process(4))
    other = _report(_process(1, "gw-b"))
    assert "gw-a.4 has lost its link" in str(_connect(hub, other))
    assert _connect(hub, _report(_process(4))) is None
    assert host.stored == [], "it is stored already"
    assert "gw-a.4 is connected" in str(_connect(hub, other))
    gone = host.open_hub(_process(4))
    host.now += PLACE_KEPT_S
    assert _connect(gone, other) is None


def test_processes_are_seen_where_their_ids_mean_the_same() -> None:
    own = GatewayProcess(id="gw-a", epoch=1, pid=os.getpid(), start_ticks=read_own_start(), host=read_host())
    assert see_process(own) is True
    assert see_process(own.model_copy(update={"start_ticks": 1})) is False, "another process has the id"
    assert see_process(own.model_copy(update={"host": "another"})) is None
    assert see_process(GatewayProcess(id="gw-a", epoch=1)) is None
