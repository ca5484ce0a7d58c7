"""The worker's bridge to an MCP server on standard input and output: a real server, the package's own client."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import psutil
import pytest
from mcp import Client, MCPError

from tests.support.mcp_clients import bridge_client, call_text, read_health
from tests.support.ports import free_port
from tests.support.worker_process import Worker, eventually

SERVER = (sys.executable, "-m", "tests.support.mcp_stdio_server")
TOKEN = "the-replica-s-own"
SECRETS = {"SECRET_OF_THE_CONTROLLER": "x", "A_VARIABLE": "declared", "ROUNDHOUSE_START": "start-id"}


def bridge(log: Path, *command: str, port: int | None = None) -> Worker:
    """A bridge to a server's command."""
    port = port or free_port()
    flags = ("--host", "127.0.0.1", "--port", str(port), "--name", "known", "--pass-env", "A_VARIABLE")
    env = {"ROUNDHOUSE_ENGINE_TOKEN": TOKEN, **SECRETS}
    return Worker(log, port, "mcp", "--", *flags, "--", *command, token=TOKEN, env=env)


OLD_SERVER = """
import json, sys
TOOLS = [{"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": name}}
         for name in ("forbidden", "optional", "required")]
ANSWERS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "old", "version": "1"},
    },
    "tools/list": {"tools": TOOLS},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        known = message["method"] in ANSWERS
        answer = {"result": ANSWERS[message["method"]]} if known else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""
"""Speaks the protocol's version of 2025, in which tools may run only as tasks."""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with bridge(tmp_path / "log", *SERVER) as created:
        eventually("the server has introduced itself", lambda: read_health(url_of(created)) == 200)
        yield created


def url_of(worker: Worker) -> str:
    """Where the bridge answers."""
    return f"http://127.0.0.1:{worker.port}"


def client_of(worker: Worker) -> AbstractAsyncContextManager[Client]:
    """A client with the replica's token."""
    return bridge_client(url_of(worker), TOKEN)


async def test_tools_resources_and_prompts_pass_through(worker: Worker) -> None:
    async with client_of(worker) as client:
        assert client.server_info is not None
        assert client.server_info.name == "known"
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert sorted(tools) == ["echo", "end", "environment", "fail", "spawn", "wait", "wait_for"]
        assert tools["echo"].description == "Answer the text."
        assert tools["echo"].input_schema["required"] == ["text"]
        assert await call_text(client, "echo", text="Grüße 😀\n") == "Grüße 😀\n"
        failed = await client.call_tool("fail", {})
        assert failed.is_error
        assert "Error executing tool fail" in str(failed.content)
        [resource] = (await client.list_resources()).resources
        assert str(resource.uri) == "memo://one"
        assert "text='one'" in str((await client.read_resource("memo://one")).contents)
        [prompt] = (await client.list_prompts()).prompts
        assert prompt.name == "greet"
        assert "Hello you" in str((await client.get_prompt("greet", {"name": "you"})).messages)
    assert "the known server starts" in worker.log, "its standard error is the log"


async def test_tools_that_run_only_as_tasks_are_left_out(tmp_path: Path) -> None:
    with bridge(tmp_path / "log", sys.executable, "-c", OLD_SERVER) as old:
        async with client_of(old) as client:
            for _ in range(2):
                assert [tool.name for tool in (await client.list_tools()).tools] == ["forbidden", "optional"]
        assert old.log.count("The tool required is left out: it runs only as a task, which is not supported.") == 1


async def test_the_server_gets_the_declared_variables_and_none_of_ours(worker: Worker) -> None:
    async with client_of(worker) as client:
        environment = json.loads(await call_text(client, "environment"))
    assert environment["A_VARIABLE"] == "declared"
    assert environment["ROUNDHOUSE_START"] == "start-id", "by which the controller finds what is left of it"
    assert "PATH" in environment
    ours = {"SECRET_OF_THE_CONTROLLER", "ROUNDHOUSE_ENGINE_TOKEN", "PYTHONPATH", "VIRTUAL_ENV"}
    assert not ours & environment.keys()
    assert TOKEN not in environment.values()


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}])
def test_nothing_but_the_health_is_told_without_the_token(worker: Worker, headers: dict[str, str]) -> None:
    url = f"http://127.0.0.1:{worker.port}"
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert httpx2.post(f"{url}/mcp", json=body, headers=headers).status_code == 401
    assert httpx2.get(f"{url}/health", headers=headers).json() == {"status": "ok"}
    assert httpx2.get(f"{url}/metrics", headers=headers).status_code == 404


async def test_calls_run_beside_each_other_and_a_client_that_leaves_cancels_its_own(worker: Worker) -> None:
    reported = asyncio.Event()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        assert (progress, total, message) == (1, 2, "half")
        reported.set()

    async with client_of(worker) as client:
        waiting = asyncio.create_task(client.call_tool("wait", {}, progress_callback=report))
        await asyncio.wait_for(reported.wait(), 60)
        assert await call_text(client, "echo", text="meanwhile") == "meanwhile"
        assert "cancelled" not in worker.log
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(eventually, "the server learns of it", lambda: "cancelled" in worker.log)
        assert await call_text(client, "echo", text="after") == "after"


async def test_the_bridge_ends_with_its_server(worker: Worker) -> None:
    async with client_of(worker) as client:
        with pytest.raises(MCPError):
            await client.call_tool("end", {})
    assert worker.process.wait(60) == 1
    assert worker.last_line == f"the MCP server {sys.executable} ended"
    assert worker.log.count(worker.last_line) == 1


async def test_nothing_of_the_server_outlives_a_stop(worker: Worker) -> None:
    async with client_of(worker) as client:
        stray = psutil.Process(int(await call_text(client, "spawn")))
    family = worker.family()
    assert len(family) >= 3
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(60) == 0
    eventually("all of it ends", lambda: not any(each.is_running() for each in (*family, stray)))


async def test_nothing_of_the_server_outlives_a_killed_bridge(worker: Worker) -> None:
    async with client_of(worker) as client:
        stray = psutil.Process(int(await call_text(client, "spawn")))
    host = worker.process.children()[0]
    family = worker.family()
    host.kill()
    assert worker.process.wait(60) == 1
    assert worker.last_line.startswith("the bridge of the MCP server ")
    eventually("all of it ends", lambda: not any(each.is_running() for each in (*family, stray)))


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("/no/such/program", "x"), "the MCP server /no/such/program cannot be used: No such file or directory"),
        (("/dev/null",), "the MCP server /dev/null cannot be used: Permission denied"),
        (("/bin/true",), "the MCP server /bin/true ended before it introduced itself"),
    ],
)
def test_an_unusable_server_is_said_in_the_last_line(command: tuple[str, ...], line: str, tmp_path: Path) -> None:
    with bridge(tmp_path / "log", *command) as created:
        assert created.process.wait(60) == 1
        assert created.last_line == line
        assert created.log.count(line) == 1, "it is said once"


def test_a_server_that_says_nothing_is_not_healthy(tmp_path: Path) -> None:
    with bridge(tmp_path / "log", "/bin/sleep", "600") as created:
        eventually("it listens", lambda: read_health(url_of(created)) is not None)
        assert read_health(url_of(created)) == 503
        answer = httpx2.post(
            f"http://127.0.0.1:{created.port}/mcp", json={}, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        assert answer.status_code == 503
        created.process.send_signal(signal.SIGTERM)
        assert created.process.wait(60) == 0


def test_a_taken_port_is_said(worker: Worker, tmp_path: Path) -> None:
    with bridge(tmp_path / "log2", *SERVER, port=worker.port) as second:
        assert second.process.wait(60) == 3
        assert f"port {worker.port} on 127.0.0.1 is taken" in second.last_line
