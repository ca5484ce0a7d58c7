"""Which tables are believed, what can be read, and how long reconnection waits."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from contract.routing import RoutingTable, Stamp
from contract.tools import McpServerRoute
from gateway.control.inflight import InflightCounts
from gateway.control.link import TableVerdict, judge_table, read_message, retry_delay, take_identity
from gateway.routing.table import Routes
from tests.fakes.fake_controller import route
from tests.support.small_disk import mount_small_disk


def table(epoch: int, seq: int, instance: str = "one") -> RoutingTable:
    return RoutingTable(instance=instance, stamp=Stamp(epoch=epoch, seq=seq))


@pytest.mark.parametrize(
    ("new", "first", "verdict"),
    [
        *((table(2, 6), False, TableVerdict.APPLY), (table(3, 1), True, TableVerdict.APPLY)),
        *((table(2, 5), True, TableVerdict.REPEATED), (table(2, 4), False, TableVerdict.OLDER)),
        (table(1, 9), True, TableVerdict.OLDER),
        (table(1, 1, "two"), True, TableVerdict.APPLY),
        (table(9, 9, "two"), False, TableVerdict.OTHER_INSTANCE),
    ],
)
def test_a_table_is_judged_by_its_instance_and_stamp(new: RoutingTable, first: bool, verdict: TableVerdict) -> None:
    assert judge_table(Routes.of(table(2, 5)), new, first_of_connection=first) is verdict
    assert judge_table(None, new, first_of_connection=first) is TableVerdict.APPLY, "the first table of all"


def test_a_newer_schema_is_refused_and_a_newer_field_ignored(caplog: pytest.LogCaptureFixture) -> None:
    fields = json.loads(table(1, 1).model_dump_json())
    assert read_message(json.dumps(fields | {"colour": "green"})) == table(1, 1)
    with caplog.at_level(logging.ERROR):
        assert read_message(json.dumps(fields | {"schema_version": 2})) is None
    assert "upgrade the gateway" in caplog.text


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"kind":"table"}', '{"kind":"table","schema_version":1}', '{"kind":"news"}']
)
def test_what_is_no_table_is_ignored(text: str) -> None:
    assert read_message(text) is None


def test_what_is_wrong_with_a_table_is_told_without_what_it_holds(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = {"replica": "m-0", "base_url": 7, "token": ["engine-secret"]}
    models = [route("m").model_dump(mode="json") | {"endpoints": [endpoint] * 20}]
    assert read_message(json.dumps(json.loads(table(1, 1).model_dump_json()) | {"models": models})) is None
    assert "models.0.endpoints.0.base_url: " in caplog.text
    assert "; and 35 more" in caplog.text
    assert "engine-secret" not in caplog.text


def test_retries_start_soon_and_never_wait_long() -> None:
    delays = [retry_delay(attempt, 0.999) for attempt in range(50)]
    assert delays == sorted(delays)
    assert 0.05 <= retry_delay(0, 0.0) <= retry_delay(0, 0.999) <= 0.1
    assert delays[-1] <= 0.5
    assert retry_delay(10_000, 0.0) == 0.25


REPLICA = "rh-i-mcp-time-0-a"


def routes(*replicas: str) -> Routes:
    """A table that routes to these replicas of MCP servers."""
    servers = tuple(McpServerRoute(name=f"s{n}", url="http://s/mcp", replica=each) for n, each in enumerate(replicas))
    return Routes.of(RoutingTable(instance="i", stamp=Stamp(epoch=1, seq=1), mcp_servers=servers))


def test_calls_of_one_request_at_one_server_are_counted_each_and_named_once() -> None:
    times = iter(range(100))
    ledger = InflightCounts(lambda: float(next(times)), {})
    for request in ("req-1", "req-2", "req-1"):
        ledger.enter_replica(None, REPLICA, request)
    for leaving, inflight in (((), {REPLICA: 3}), (("req-1",), {REPLICA: 2}), (("req-1", "req-2"), {})):
        for request in leaving:
            ledger.leave_replica(None, REPLICA, request)
        report = ledger.make_report("gw", routes())
        named = {REPLICA: {"req-1": 0.0, "req-2": 1.0}} if inflight else {}
        assert (report.inflight, report.leaving) == (inflight, named)
    with pytest.raises(KeyError):
        ledger.leave_replica(None, REPLICA, "req-1")


def test_a_server_is_no_model_and_the_table_routes_to_it() -> None:
    ledger = InflightCounts(lambda: 1.0, {})
    ledger.enter_replica("m", "m-0", "req-1")
    ledger.enter_replica(None, REPLICA, "req-1")
    assert ledger.inflight_by_model == {"m": 1}
    ledger.leave_replica(None, REPLICA, "req-1")
    assert (ledger.inflight, ledger.make_report("gw", None).last_used) == ({"m-0": 1}, {"m": 1.0})
    # So that calls there do not count as leaving, and a failure is told until the replica is gone.
    ledger = InflightCounts(lambda: 1.0, {})
    ledger.enter_replica(None, REPLICA, "req-1")
    ledger.record_failure(REPLICA)
    ledger.forget_absent(routes(REPLICA))
    report = ledger.make_report("gw", routes(REPLICA))
    assert (report.leaving, report.failed) == ({}, {REPLICA: 1.0})
    ledger.forget_absent(routes("rh-i-mcp-time-0-b"))
    assert ledger.make_report("gw", routes("rh-i-mcp-time-0-b")).failed == {}


def test_the_id_stays_and_a_damaged_file_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "state"
    assert take_identity(folder).epoch == 0
    assert not folder.exists(), "a gateway that stores nothing has none"
    folder.mkdir()
    first, second = take_identity(folder), take_identity(folder)
    assert (first.epoch, second.epoch) == (1, 2)
    assert first.id == second.id
    assert take_identity(tmp_path).id != first.id
    assert (folder / "gateway.json").stat().st_mode & 0o777 == 0o600
    # A damaged file is replaced.
    (tmp_path / "gateway.json").write_text('{"id": "gw-1"}')
    with caplog.at_level(logging.WARNING):
        first, second = take_identity(tmp_path), take_identity(tmp_path)
    assert (first.id, first.epoch, second.epoch) == (second.id, 1, 2)
    assert caplog.text.count("gateway.json is damaged") == 1


def test_a_full_disk_changes_no_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mount_small_disk(tmp_path / "state", 64) as disk:
        epochs, ids = [], set()
        for step in (disk.free, disk.free, disk.fill, disk.fill, disk.free):
            step()
            process = take_identity(disk.folder)
            epochs.append(process.epoch)
            ids.add(process.id)
        assert (epochs, len(ids)) == ([1, 2, 3, 4, 5], 1)
        assert [path.name for path in disk.folder.iterdir()] == ["gateway.json"]
    assert not caplog.text


def test_without_a_folder_each_start_is_a_gateway_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "state"
    folder.write_text("a file")
    with caplog.at_level(logging.WARNING):
        first, second = take_identity(folder), take_identity(folder)
    assert (first.epoch, second.epoch) == (0, 0)
    assert first.id != second.id
    assert first.name == first.id
    assert "gateway.json cannot be written" in caplog.text
    assert "Set ROUNDHOUSE_STATE" in caplog.text
