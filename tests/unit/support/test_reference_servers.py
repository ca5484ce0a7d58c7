"""The verdict on reference MCP servers."""

from __future__ import annotations

from tests.campaigns.campaign_mcp_servers import failures_of, tables_of
from tests.support.reference_servers import HELD, run_checks


async def test_each_check_is_run_whatever_the_others_do() -> None:
    async def hold() -> None:
        return

    async def break_off() -> None:
        raise AssertionError("no\nmore")

    results = {"processes": await run_checks({"one": break_off, "two": hold})}
    assert results == {"processes": {"one": "AssertionError: no\nmore", "two": HELD}}
    assert failures_of(results) == ["processes, one: AssertionError: no\nmore"]
    rows = [tuple(row) for row in tables_of(results)[0].rows]
    assert rows == [("processes", "one", "AssertionError: no"), ("processes", "two", "held")]
