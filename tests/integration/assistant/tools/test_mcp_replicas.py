"""MCP servers that the controller runs: real ones, behind the worker's real bridge, as the routing table has them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assistant.tools.mcp_client import servers
from contract.tools import McpServerRoute
from gateway.control.inflight import InflightCounts
from tests.fakes.fake_mcp_server import FakeMcpServer
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.mcp_clients import read_health
from tests.support.ports import free_port
from tests.support.tool_calls import call_code, call_text, call_tool, connect, in_state, list_names
from tests.support.wait import DEADLINE_S, until
from tests.support.worker_process import Worker, eventually

COMMAND = (sys.executable, "-m", "tests.support.mcp_stdio_server")
FIRST, SECOND = "rh-test-mcp-known-0-first", "rh-test-mcp-known-0-second"
STARTING = McpServerRoute(name="known", url=None, reason="it is loading", is_expected=True)
UNLOADED = McpServerRoute(name="known", url=None, reason="it is unloaded")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be busy."""
    monkeypatch.setattr(servers, "CALL_WAIT_S", DEADLINE_S)


@contextlib.contextmanager
def bridge(log: Path, which: str, port: int | None = None) -> Iterator[Worker]:
    """A bridge whose server has introduced itself. `which`: value of `A_VARIABLE` in the server's environment."""
    port = port or free_port()
    flags = ("--host", "127.0.0.1", "--port", str(port), "--name", "known", "--pass-env", "A_VARIABLE")
    env = {"ROUNDHOUSE_ENGINE_TOKEN": f"token-{which}", "A_VARIABLE": which}
    with Worker(log, port, "mcp", "--", *flags, "--", *COMMAND, token=f"token-{which}", env=env) as made:
        eventually("the server has introduced itself", lambda: read_health(f"http://127.0.0.1:{port}") == 200)
        yield made


def route_to(worker: Worker, which: str, replica: str, **fields: Any) -> McpServerRoute:
    """The route of a bridge that is a replica of the controller."""
    url, token = f"http://127.0.0.1:{worker.port}/mcp", f"token-{which}"
    return McpServerRoute.model_validate({"name": "known", "url": url, "token": token, "replica": replica, **fields})


async def answering(gateway: GatewayHarness) -> str:
    """Which of the servers answers a new call."""
    return str(json.loads(await call_text(gateway, "known__environment"))["A_VARIABLE"])


async def waiting_call(gateway: GatewayHarness) -> asyncio.Task[tuple[int, str]]:
    changed = gateway.assistant.tools._servers._connections["known"]._changed
    call = asyncio.create_task(call_code(gateway, "known__echo", text="x"))
    await until("the call waits", lambda: bool(changed._waiters))
    return call


async def test_running_calls_end_at_the_replica_that_was_replaced(tmp_path: Path) -> None:
    """The controller's drain waits for them: each report counts them, also under the table that has the new one."""
    with bridge(tmp_path / "log-1", "first") as first, bridge(tmp_path / "log-2", "second") as second:
        async with gateway_harness() as gateway:
            await connect(gateway, route_to(first, "first", FIRST, timeout_s=600))
            gone = str(tmp_path / "there")
            waiting = [asyncio.create_task(call_text(gateway, "known__wait_for", path=gone)) for _ in range(2)]
            report = await gateway.controller.report_where(lambda report: report.inflight == {FIRST: 2})
            assert (report.leaving, report.last_used) == ({}, {})
            assert 'inflight{model="mcp' not in await gateway.metrics(), "it is no model"

            await gateway.publish(mcp_servers=(route_to(second, "second", SECOND, timeout_s=600),))
            assert gateway.controller.reports[-1].inflight == {FIRST: 2}
            assert len(gateway.controller.reports[-1].leaving[FIRST]) == 2
            assert await answering(gateway) == "second"
            assert not any(each.done() for each in waiting)
            (tmp_path / "there").touch()
            assert await asyncio.gather(*waiting) == ["it is there"] * 2
            await gateway.idle()


async def test_no_call_goes_to_a_former_replica_once_the_table_is_in_force(server: FakeMcpServer) -> None:
    """Else a report under the new table would not count a call that comes there later."""
    ledger = InflightCounts(time.time, {})
    kept = servers.McpServers(time.time, ledger)
    running = asyncio.create_task(kept.run())
    try:
        for replica in (FIRST, SECOND):
            kept.follow_table([server.route(replica=replica)])
            offer = await kept.find_tool("fake", "fake__echo")
            assert offer is not None
            assert offer.route.replica == replica
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_running_calls_end_at_a_server_that_is_unloaded_or_not_declared_any_more(tmp_path: Path) -> None:
    with bridge(tmp_path / "log", "first") as first:
        async with gateway_harness() as gateway:
            await connect(gateway, route_to(first, "first", FIRST, timeout_s=600))
            waiting = asyncio.create_task(call_text(gateway, "known__wait_for", path=str(tmp_path / "there")))
            await gateway.controller.report_where(lambda report: report.inflight == {FIRST: 1})
            await gateway.publish(mcp_servers=(UNLOADED,))
            await gateway.publish()
            assert gateway.controller.reports[-1].inflight == {FIRST: 1}
            (tmp_path / "there").touch()
            assert await waiting == "it is there"
            await gateway.idle()


async def test_a_caller_that_leaves_is_counted_no_more(tmp_path: Path) -> None:
    with bridge(tmp_path / "log", "first") as first:
        async with gateway_harness() as gateway:
            await connect(gateway, route_to(first, "first", FIRST, timeout_s=600))
            waiting = asyncio.create_task(call_tool(gateway, "known__wait"))
            await gateway.controller.report_where(lambda report: report.inflight == {FIRST: 1})
            await until("the server has the call", lambda: "waiting" in first.log)
            waiting.cancel()
            await gateway.idle()
            await until("the server is told", lambda: "cancelled" in first.log)


async def test_a_dead_replica_is_reported_and_a_call_waits_for_the_one_that_is_started(
    tmp_path: Path, gateway: GatewayHarness
) -> None:
    port = free_port()
    with bridge(tmp_path / "log-1", "first", port) as first:
        tools = (await connect(gateway, route_to(first, "first", FIRST, timeout_s=600)))["tools"]
        waiting = asyncio.create_task(call_code(gateway, "known__wait"))
        await until("the server has the call", lambda: "waiting" in first.log)
        first.process.send_signal(signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_S):
            assert await waiting == (502, "tool_failed")
        await gateway.controller.report_where(lambda report: list(report.failed) == [FIRST] and not report.inflight)
        first.process.wait()
    await gateway.publish(mcp_servers=(STARTING,))
    assert gateway.controller.reports[-1].failed == {}
    told = await in_state(gateway, "known", "connecting")
    assert (told["tools"], told["reason"]) == (tools, "it is loading")
    assert await list_names(gateway) == tools
    call = asyncio.create_task(answering(gateway))
    with bridge(tmp_path / "log-2", "second", port) as second:
        await gateway.publish(mcp_servers=(route_to(second, "second", SECOND),))
        assert await call == "second"
        assert gateway.controller.reports[-1].failed == {}


async def test_a_replica_that_answers_again_is_reported_no_more(tmp_path: Path, gateway: GatewayHarness) -> None:
    port = free_port()
    route = None
    for turn in range(2):
        with bridge(tmp_path / f"log-{turn}", "first", port) as first:
            route = route or route_to(first, "first", FIRST)
            await gateway.publish(mcp_servers=(route,))
            assert await answering(gateway) == "first"
            await gateway.controller.report_where(lambda report: report.failed == {})
        await gateway.controller.report_where(lambda report: list(report.failed) == [FIRST])


async def test_a_call_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch, gateway: GatewayHarness) -> None:
    monkeypatch.setattr(servers, "CALL_WAIT_S", 0.1)
    await gateway.publish(mcp_servers=(STARTING,))
    status, answer = await call_tool(gateway, "known__echo", text="x")
    assert (status, answer["error"]["message"]) == (
        502,
        "The MCP server known is being started, and was not ready within 0.1 s.",
    )


async def test_a_call_does_not_wait_for_a_server_that_nobody_starts(
    monkeypatch: pytest.MonkeyPatch, gateway: GatewayHarness
) -> None:
    monkeypatch.setattr(servers, "CALL_WAIT_S", 2 * DEADLINE_S)
    await gateway.publish(mcp_servers=(UNLOADED,))
    assert await call_code(gateway, "known__echo", text="x") == (502, "tool_failed")
    await gateway.publish(mcp_servers=(STARTING,))
    call = await waiting_call(gateway)
    await gateway.publish(mcp_servers=(UNLOADED,))
    assert await call == (502, "tool_failed"), "also if it was expected when the call came"
    await gateway.publish(mcp_servers=(STARTING, McpServerRoute(name="other", url=None)))
    call = await waiting_call(gateway)
    await gateway.publish(mcp_servers=(McpServerRoute(name="other", url=None),))
    assert await call == (404, "tool_not_found"), "and if it is not declared any more"


async def test_a_server_that_stays_declared_keeps_its_tools_listed_as_it_declares_them(tmp_path: Path) -> None:
    with bridge(tmp_path / "log", "first") as first:
        async with gateway_harness() as gateway:
            tools = (await connect(gateway, route_to(first, "first", FIRST)))["tools"]
            await gateway.publish(mcp_servers=(UNLOADED,))
            told = await in_state(gateway, "known", "down")
            assert (told["tools"], told["reason"]) == (tools, "it is unloaded")
            assert [each["uri"] for each in told["resources"]] == ["memo://one"]
            assert await list_names(gateway) == [], "what cannot be called is offered to no model"
            await gateway.publish(mcp_servers=(STARTING.model_copy(update={"tools": ("e*",)}),))
            assert await list_names(gateway) == ["known__echo", "known__end", "known__environment"]
            await gateway.publish()
            await gateway.publish(mcp_servers=(STARTING,))
            assert (await in_state(gateway, "known", "connecting"))["tools"] == [], (
                "of what was declared before, nothing stays"
            )
