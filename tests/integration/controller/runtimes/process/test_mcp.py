"""An MCP server with a command as a process: started, logged and ended by the runtime as engines are."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from controller.engines.mcp import McpBridgeDefinition
from controller.runtimes.base import SeenReplica, StartRequest
from controller.runtimes.process.runtime import ProcessRuntime
from tests.support.mcp_clients import bridge_client, call_text
from tests.support.process_engines import ProcessEngines
from tests.support.runtime_contract import ended, only, wait_for_log
from tests.support.wait import until

SERVER = str(Path(__file__).parents[4] / "support" / "mcp_stdio_server.py")


@pytest.fixture
def processes(tmp_path: Path) -> ProcessEngines:
    return ProcessEngines(tmp_path)


def request_of(processes: ProcessEngines, *command: str, **fields: Any) -> StartRequest:
    """A start of a server."""
    values = {"backend": "mcp", "mcp_command": list(command or (sys.executable, SERVER)), **fields}
    return processes.request(McpBridgeDefinition.model_validate(values), "mcp:known")


async def start(processes: ProcessEngines, request: StartRequest) -> tuple[ProcessRuntime, SeenReplica]:
    """Start a server and see it."""
    runtime = processes.runtime()
    await runtime.start_replica(request)
    return runtime, await only(runtime)


async def test_a_server_has_its_environment_and_log(processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CONTROLLER", "x")
    request = request_of(processes, env={"A_VARIABLE": "declared"})
    runtime, seen = await start(processes, request)
    assert seen.base_url is not None
    async with bridge_client(seen.base_url, request.token) as client:
        assert await call_text(client, "echo", text="hé") == "hé"
        environment = json.loads(await call_text(client, "environment"))
    assert environment["A_VARIABLE"] == "declared"
    assert not {"SECRET_OF_THE_CONTROLLER", "ROUNDHOUSE_ENGINE_TOKEN"} & environment.keys()
    await wait_for_log(runtime, request.name, "the known server starts")
    await runtime.stop_replica(request.name, 10)
    assert await runtime.list_replicas() == []
    assert "the known server starts" in await runtime.read_log_tail(request.name)
    await runtime.close()


def has_ended(pid: int) -> bool:
    """Whether no such process runs; one that only waits to be reaped counts as ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "launcher killed"])
async def test_nothing_that_a_server_started_outlives_it(processes: ProcessEngines, is_killed: bool) -> None:
    request = request_of(processes)
    runtime, seen = await start(processes, request)
    assert seen.base_url is not None
    async with bridge_client(seen.base_url, request.token) as client:
        stray = int(await call_text(client, "spawn"))
    pids = [*processes.pids(request.name), stray]
    assert len(pids) > 3
    assert not has_ended(stray)
    if is_killed:
        os.kill(processes.leader(request.name), signal.SIGKILL)
        await ended(runtime)
    await runtime.stop_replica(request.name, 10)
    assert has_ended(stray) or is_killed
    await until("all of it has ended", lambda: all(map(has_ended, pids)))
    await runtime.close()


async def test_a_server_that_ends_is_seen_with_the_reason(processes: ProcessEngines) -> None:
    request = request_of(processes, "/bin/true")
    runtime, _ = await start(processes, request)
    exit_ = await ended(runtime)
    assert exit_.code == 1
    assert exit_.log_tail.splitlines()[-1] == "the MCP server /bin/true ended before it introduced itself"
    await runtime.close()


async def test_a_missing_program_is_found_before_the_start(processes: ProcessEngines) -> None:
    runtime = processes.runtime()
    definition = request_of(processes, "/no/such/program").definition
    result = await runtime.check_preflight("mcp:known", definition, None)
    assert (result.ok, result.error) == (False, "program /no/such/program does not exist")
    await runtime.close()
