"""GET /tools and POST /tools: what is listed, both answer formats, keys, limits, and what the controller is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from contract.tools import BUILTIN_TOOLS, ToolRoute
from tests.fakes.fake_controller import route
from tests.fakes.fake_retrieval import fake_retrieval, hit
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support.queueing import key
from tests.support.tool_calls import call_code, call_error, call_text, call_tool, list_names, list_tools
from tests.support.wait import until

TIME = ToolRoute(name="current_time")
CALCULATE = ToolRoute(name="calculate")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """End the processes of a gateway that did not end them, so that they disturb no other test."""
    yield
    for pid in _job_processes():
        with contextlib.suppress(psutil.Error):  # it has just ended
            psutil.Process(pid).kill()


async def test_tools_are_off_by_default(gateway: GatewayHarness) -> None:
    assert await list_tools(gateway) == []
    assert await call_code(gateway, "current_time") == (403, "tools_disabled")
    await gateway.publish(tools=(TIME,))
    assert await list_names(gateway) == ["current_time"]
    assert await call_code(gateway, "calculate", expression="1") == (404, "tool_not_found")
    await gateway.publish()
    assert await list_tools(gateway) == []


async def test_a_tool_is_listed_with_the_fields_of_the_seed(tmp_path: Path, gateway: GatewayHarness) -> None:
    folder = str(tmp_path)
    tools = tuple(ToolRoute(name=name, hosts=("example.org",), folder=folder) for name in BUILTIN_TOOLS)
    await gateway.publish(tools=tools)
    listed = await list_tools(gateway)
    assert [tool["tool"] for tool in listed] == sorted(BUILTIN_TOOLS), "each that can be declared is there"
    for tool in listed:
        assert set(tool) == {"tool", "display_name", "type", "permissions", "definition"}
        assert (tool["type"], tool["permissions"]) == ("builtin", {"write": tool["tool"] == "write_file"})
        function = tool["definition"]["function"]
        assert (tool["definition"]["type"], function["name"]) == ("function", tool["tool"])
        assert function["description"]
        assert function["parameters"]["type"] == "object"


async def test_both_formats_of_answers(gateway: GatewayHarness) -> None:
    await gateway.publish(tools=(CALCULATE,))
    assert await call_tool(gateway, "calculate", expression="(3 + 4) * 2 ** 10") == (
        200,
        {"plain_text_response": "7168"},
    )
    assert await call_tool(gateway, "calculate", expression="1 / 0") == (200, {"error": "It divides by zero."})


async def test_the_time_is_told_in_a_zone(gateway: GatewayHarness) -> None:
    await gateway.publish(tools=(TIME,))
    assert (await call_text(gateway, "current_time")).endswith(", UTC (UTC)")
    assert "+05:45, " in await call_text(gateway, "current_time", timezone="Asia/Kathmandu")
    for name in ("Nowhere/City", "../../../etc/passwd", "/etc/passwd", "Europe", "\0", "x" * 64):
        assert "no time zone" in await call_error(gateway, "current_time", timezone=name)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ("[]", "invalid_json", None),
        ("{", "invalid_json", None),
        ("{}", "invalid_request", "tool"),
        ('{"tool": 1}', "invalid_request", "tool"),
        ('{"tool": "calculate", "params": []}', "invalid_request", "params"),
        ('{"tool": "calculate", "params": null}', "invalid_request", "params"),
        ('{"tool": "calculate", "params": {"expression": 1}}', "tool_arguments_invalid", "params.expression"),
        ('{"tool": "calculate"}', "tool_arguments_invalid", "params"),
        ('{"tool": "calculate", "params": {"expression": "1", "x": 2}}', "tool_arguments_invalid", "params"),
        ('{"tool": "calculate", "params": ' + '{"x": ' * 40 + "1" + "}" * 41, "tool_arguments_invalid", "params"),
        ('{"tool": "calculate", "params": {"x": [' + "1," * 20_000 + "1]}}", "tool_arguments_invalid", "params"),
    ],
)
async def test_a_body_of_another_form_is_refused(
    body: str, code: str, param: str | None, gateway: GatewayHarness
) -> None:
    await gateway.publish(tools=(CALCULATE,))
    reply = await gateway.request("POST", "/tools", data=body)
    assert (reply.status, reply.code, reply.error["param"]) == (400, code, param)


async def test_a_key_calls_the_tools_that_it_names_and_no_others(gateway: GatewayHarness) -> None:
    """Whatever a prompt makes the model ask for."""
    keys = (key("none"), key("one", tools=("calc*",)), key("all", tools=("*",)), key("admin", scopes=("admin",)))
    await gateway.publish(tools=(TIME, CALCULATE), keys=keys)
    assert await list_names(gateway, "secret-none") == []
    assert await list_names(gateway, "secret-one") == ["calculate"]
    assert await list_names(gateway, "secret-all") == ["calculate", "current_time"]
    for name in ("current_time", "write_file", "nothing"):
        assert await call_code(gateway, name, "secret-one") == (403, "tool_not_allowed")
        assert await call_code(gateway, name, "secret-none") == (403, "tool_not_allowed")
    assert await call_tool(gateway, "calculate", "secret-one", expression="1") == (200, {"plain_text_response": "1"})
    assert await call_code(gateway, "nothing", "secret-all") == (404, "tool_not_found")
    assert await call_code(gateway, "calculate", "secret-admin", expression="1") == (403, "scope_required")


async def test_documents_of_the_callers_tenant_are_searched() -> None:
    async with fake_retrieval() as retrieval, gateway_harness(retrieval_url=retrieval.url) as gateway:
        retrieval.hits = [hit(1, "Coal is in the shed."), hit(2, "Tea.", page=7)]
        await gateway.publish(
            tools=(ToolRoute(name="search_documents"),), keys=(key("alice", tools=("*",), tenant="north"),)
        )
        status, answer = await call_tool(gateway, "search_documents", "secret-alice", query="coal", top_k=2)
        assert (status, answer) == (
            200,
            {"plain_text_response": "[1] d1.md\nCoal is in the shed.\n\n[2] d2.md, page 7\nTea."},
        )
        [(tenant, asked)] = retrieval.searches
        assert (tenant, asked["query"], asked["top_k"]) == ("north", "coal", 2)
        assert await call_code(gateway, "search_documents", "secret-alice", query="coal", top_k=21) == (
            400,
            "tool_arguments_invalid",
        )


async def test_without_keys_a_client_searches_its_own_documents() -> None:
    async with fake_retrieval() as retrieval, gateway_harness(retrieval_url=retrieval.url) as gateway:
        await gateway.publish(tools=(ToolRoute(name="search_documents"),))
        body = {"tool": "search_documents", "params": {"query": "coal"}}
        assert (await gateway.post("/tools", body, headers={"x-client-id": "bob"})).body == {
            "plain_text_response": "No passage fits."
        }
        assert [tenant for tenant, _ in retrieval.searches] == ["bob"]


async def test_where_no_documents_are_kept_it_is_said() -> None:
    async with gateway_harness(retrieval=False) as gateway:
        await gateway.publish(tools=(ToolRoute(name="search_documents"),))
        assert await call_code(gateway, "search_documents", query="coal") == (403, "retrieval_disabled")


async def test_an_output_is_cut_at_its_cap(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("ä" * 3000)
    async with gateway_harness() as gateway:
        await gateway.publish(tools=(ToolRoute(name="read_file", folder=str(tmp_path), max_output_kib=1),))
        text = await call_text(gateway, "read_file", path="long")
        assert text == "ä" * 512 + "\n[The output is cut here: it is longer than 1024 bytes.]"


async def test_a_call_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """Here an expression that backtracks for ever: it has a process of its own, which is killed."""
    (tmp_path / "text").write_text("a" * 60 + "!\n")
    async with gateway_harness() as gateway:
        await gateway.publish(tools=(ToolRoute(name="search_files", folder=str(tmp_path), timeout_s=1.0),))
        assert await call_code(gateway, "search_files", text="(a+)+$", regex=True) == (504, "tool_timeout")
        await until("its process has ended", lambda: not _job_processes())


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_client_that_leaves_ends_its_call_and_inference_goes_on_beside(
    tmp_path: Path, is_stopped: bool
) -> None:
    """A process that is stopped takes no signal but SIGKILL."""
    (tmp_path / "text").write_text("a" * 60 + "!\n")
    async with gateway_harness() as gateway, engines(1) as (engine,):
        search = ToolRoute(name="search_files", folder=str(tmp_path), timeout_s=600.0)
        await gateway.publish(route("m", [engine.url]), tools=(search,))
        async with aiohttp.ClientSession() as client:
            body = {"tool": "search_files", "params": {"text": "(a+)+$", "regex": True}}
            task = asyncio.create_task(client.post(f"{gateway.url}/tools", json=body).__aenter__())
            # Not as soon as there is a process: asyncio itself ends one whose start is cancelled.
            process = await _searching(tmp_path / "text")
            assert (await gateway.chat()).status == 200
            if is_stopped:
                process.suspend()
            task.cancel()
        report = await gateway.controller.report_where(lambda report: bool(report.tool_calls))
        assert [call.outcome for call in report.tool_calls] == ["cancelled"]
        await until("its process has ended", lambda: not process.is_running())


async def test_other_calls_go_on_while_files_hang(tmp_path: Path) -> None:
    """More searches that never end than there are places for: what needs no process is answered."""
    (tmp_path / "text").write_text("a" * 60 + "!\n")
    async with gateway_harness() as gateway:
        folder = str(tmp_path)
        await gateway.publish(tools=(CALCULATE, ToolRoute(name="search_files", folder=folder, timeout_s=2.0)))
        hanging = [asyncio.create_task(call_code(gateway, "search_files", text="(a+)+$", regex=True)) for _ in range(8)]
        await until("they run", lambda: bool(_job_processes()))
        assert await call_text(gateway, "calculate", expression="1 + 1") == "2"
        assert await asyncio.gather(*hanging) == [(504, "tool_timeout")] * 8


async def test_calls_are_reported_with_their_arguments_redacted(gateway: GatewayHarness) -> None:
    await gateway.publish(tools=(CALCULATE,), keys=(key("alice", tools=("*",)),))
    await call_tool(gateway, "calculate", "secret-alice", expression="1 + 1")
    await call_tool(gateway, "calculate", "secret-alice", expression="nonsense")
    await call_tool(gateway, "calculate", "secret-alice", password="hunter2", expression="token=abcdefgh")
    await call_tool(gateway, "invented" * 100, "secret-alice", text="x" * 10_000)
    report = await gateway.controller.report_where(lambda report: len(report.tool_calls) == 4)
    told = [(call.sequence, call.tool[:9], call.caller, call.outcome) for call in report.tool_calls]
    assert told == [
        (1, "calculate", "alice", "ok"),
        (2, "calculate", "alice", "error"),
        (3, "calculate", "alice", "tool_arguments_invalid"),
        (4, "inventedi", "alice", "tool_not_found"),
    ]
    first, _, third, fourth = report.tool_calls
    assert (first.arguments, first.output_bytes) == ('{"expression": "1 + 1"}', 1)
    assert first.request_id.startswith("req-")
    assert third.arguments == '{"password": "***", "expression": "***"}'
    assert "hunter2" not in json.dumps(report.model_dump(mode="json"))
    assert (len(fourth.arguments), fourth.arguments[-3:], len(fourth.tool)) == (4096, "...", 200)


async def test_a_report_has_the_latest_calls_alone(gateway: GatewayHarness) -> None:
    await gateway.publish(tools=(CALCULATE,))
    for number in range(70):
        await call_text(gateway, "calculate", expression=str(number))
    report = await gateway.controller.report_where(
        lambda report: bool(report.tool_calls) and report.tool_calls[-1].sequence == 70
    )
    assert [call.sequence for call in report.tool_calls] == list(range(7, 71))


async def test_calls_are_counted_by_tool_and_outcome(gateway: GatewayHarness) -> None:
    await gateway.publish(tools=(CALCULATE,))
    await call_tool(gateway, "calculate", expression="1")
    await call_tool(gateway, "calculate", expression="x")
    await call_tool(gateway, "calculate")
    await call_tool(gateway, "a client's text")
    counts = {line for line in (await gateway.metrics()).splitlines() if line.startswith("roundhouse_gateway_tool_")}
    name = "roundhouse_gateway_tool_calls_total"
    assert counts == {
        f'{name}{{outcome="ok",tool="calculate"}} 1.0',
        f'{name}{{outcome="error",tool="calculate"}} 1.0',
        f'{name}{{outcome="refused",tool="calculate"}} 1.0',
        f'{name}{{outcome="refused",tool="unknown"}} 1.0',
    }


async def test_a_stop_ends_calls(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a" * 60 + "!\n")
    async with gateway_harness(shutdown_grace_s=0) as gateway:
        await gateway.publish(tools=(ToolRoute(name="search_files", folder=str(tmp_path), timeout_s=600.0),))
        waiting = asyncio.create_task(call_code(gateway, "search_files", text="(a+)+$", regex=True))
        await until("the call runs", lambda: bool(_job_processes()))
        assert gateway.server is not None
        gateway.server.should_exit = True
        assert await waiting == (503, "gateway_stopping")


async def _searching(path: Path) -> psutil.Process:
    def find() -> psutil.Process | None:
        for process in map(psutil.Process, _job_processes()):
            with contextlib.suppress(psutil.Error):
                if any(file.path == str(path) for file in process.open_files()):
                    return process
        return None

    await until("a process searches the file", lambda: find() is not None)
    found = find()
    assert found is not None
    return found


def _job_processes() -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if b"assistant.tools.files.process" in command and parent == os.getpid():
            found.append(int(folder.name))
    return found
