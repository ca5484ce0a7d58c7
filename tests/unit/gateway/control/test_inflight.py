"""Counts of what is in flight: requests by model and replica, and calls of MCP servers, which are no models."""

from __future__ import annotations

import pytest

from controller.schema.routing import RoutingTable, Stamp
from controller.schema.tools import McpServerRoute
from gateway.control.inflight import InflightCounts
from gateway.routing.table import Routes

REPLICA = "rh-i-mcp-time-0-a"


def routes(*replicas: str) -> Routes:
    """A table that routes to these replicas of MCP servers."""
    servers = tuple(McpServerRoute(name=f"s{n}", url="http://s/mcp", replica=each) for n, each in enumerate(replicas))
    return Routes.of(RoutingTable(instance="i", stamp=Stamp(epoch=1, seq=1), mcp_servers=servers))


def test_calls_of_one_request_at_one_server_are_counted_each_and_named_once() -> None:
    times = iter(range(100))
    ledger = InflightCounts(lambda: float(next(times)), {})
    ledger.enter_replica(None, REPLICA, "req-1")
    ledger.enter_replica(None, REPLICA, "req-2")
    ledger.enter_replica(None, REPLICA, "req-1")
    report = ledger.make_report("gw", routes())
    assert (report.inflight, report.leaving) == ({REPLICA: 3}, {REPLICA: {"req-1": 0.0, "req-2": 1.0}})
    ledger.leave_replica(None, REPLICA, "req-1")
    report = ledger.make_report("gw", routes())
    assert (report.inflight, report.leaving) == ({REPLICA: 2}, {REPLICA: {"req-1": 0.0, "req-2": 1.0}})
    ledger.leave_replica(None, REPLICA, "req-1")
    ledger.leave_replica(None, REPLICA, "req-2")
    report = ledger.make_report("gw", routes())
    assert (report.inflight, report.leaving) == ({}, {})
    with pytest.raises(KeyError):
        ledger.leave_replica(None, REPLICA, "req-1")


def test_a_server_is_no_model() -> None:
    ledger = InflightCounts(lambda: 1.0, {})
    ledger.enter_replica("m", "m-0", "req-1")
    ledger.enter_replica(None, REPLICA, "req-1")
    assert ledger.inflight_by_model == {"m": 1}
    ledger.leave_replica(None, REPLICA, "req-1")
    assert (ledger.inflight, ledger.make_report("gw", None).last_used) == ({"m-0": 1}, {"m": 1.0})


def test_the_table_routes_to_servers() -> None:
    """So that calls there do not count as leaving, and a failure is told until the replica is gone."""
    ledger = InflightCounts(lambda: 1.0, {})
    ledger.enter_replica(None, REPLICA, "req-1")
    ledger.record_failure(REPLICA)
    ledger.forget_absent(routes(REPLICA))
    report = ledger.make_report("gw", routes(REPLICA))
    assert (report.leaving, report.failed) == ({}, {REPLICA: 1.0})
    ledger.forget_absent(routes("rh-i-mcp-time-0-b"))
    assert ledger.make_report("gw", routes("rh-i-mcp-time-0-b")).failed == {}
