"""Which tables are believed, what can be read, and how long reconnection waits."""

from __future__ import annotations

import json
import logging

import pytest

from controller.schema.routing import RoutingTable, Stamp
from gateway.control.link import TableVerdict, judge_table, read_message, retry_delay
from gateway.routing.table import Routes
from tests.fakes.fake_controller import route


def table(epoch: int, seq: int, instance: str = "one") -> RoutingTable:
    return RoutingTable(instance=instance, stamp=Stamp(epoch=epoch, seq=seq))


@pytest.mark.parametrize(
    ("new", "first", "verdict"),
    [
        (table(2, 6), False, TableVerdict.APPLY),
        (table(3, 1), True, TableVerdict.APPLY),
        (table(2, 5), True, TableVerdict.REPEATED),
        (table(2, 4), False, TableVerdict.OLDER),
        (table(1, 9), True, TableVerdict.OLDER),
        (table(1, 1, "two"), True, TableVerdict.APPLY),
        (table(9, 9, "two"), False, TableVerdict.OTHER_INSTANCE),
    ],
)
def test_judge(new: RoutingTable, first: bool, verdict: TableVerdict) -> None:
    assert judge_table(Routes.of(table(2, 5)), new, first_of_connection=first) is verdict


def test_the_first_table_of_all_is_believed() -> None:
    assert judge_table(None, table(1, 1), first_of_connection=False) is TableVerdict.APPLY


def test_a_newer_schema_is_refused_in_plain_words(caplog: pytest.LogCaptureFixture) -> None:
    newer = json.loads(table(1, 1).model_dump_json()) | {"schema_version": 2}
    with caplog.at_level(logging.ERROR):
        assert read_message(json.dumps(newer)) is None
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


def test_unknown_fields_of_a_newer_controller_are_ignored() -> None:
    fields = json.loads(table(1, 1).model_dump_json()) | {"colour": "green"}
    assert read_message(json.dumps(fields)) == table(1, 1)


def test_retries_start_soon_and_never_wait_long() -> None:
    delays = [retry_delay(attempt, 0.999) for attempt in range(50)]
    assert delays == sorted(delays)
    assert 0.05 <= retry_delay(0, 0.0) <= retry_delay(0, 0.999) <= 0.1
    assert delays[-1] <= 0.5
    assert retry_delay(10_000, 0.0) == 0.25
