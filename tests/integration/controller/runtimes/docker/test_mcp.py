"""An MCP server in a container of its own: what it may and may not reach, tried from inside by the server itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from controller.engines.mcp import McpBridgeDefinition
from controller.runtimes.base import StartRequest
from controller.runtimes.docker.client import egress_network
from controller.runtimes.docker.runtime import DockerRuntime
from tests.support.docker_engine import DockerEngines, images
from tests.support.mcp_clients import bridge_client, call_text
from tests.support.networks import PORT, outside_host
from tests.support.runtime_contract import exited

pytestmark = [pytest.mark.engines, pytest.mark.docker]

PROBE = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("probe")
@server.tool()
def look(code: str) -> str:
    "Run code of the test, and answer its `result`."
    names = {}
    try:
        exec(code, names)
    except Exception as error:
        return f"{type(error).__name__}"
    return str(names["result"])
server.run()
"""
REACH = "import socket; result = socket.create_connection(('{host}', {port}), 5).recv(99)"
WRITE = "open('{path}', 'w').write('x'); result = 'written'"
READ = "result = open('{path}').read()"
STATUS = "result = open('/proc/self/status').read()"


def request_of(containers: DockerEngines, name: str = "mcp:probe", **fields: Any) -> StartRequest:
    """A start of the probing server."""
    python = "/opt/roundhouse/bin/python"
    values = {"backend": "mcp", "image": images()["worker"], "mcp_command": [python, "-c", PROBE], **fields}
    return containers.request(McpBridgeDefinition.model_validate(values), name)


class Probe:
    """The server in its container, and what it finds."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def look(self, code: str, **words: object) -> str:
        """What the code's `result` is inside, or the name of its error."""
        for name, word in words.items():
            code = code.replace(f"{{{name}}}", str(word))
        return await call_text(self._client, "look", code=code)


@asynccontextmanager
async def started(runtime: DockerRuntime, request: StartRequest) -> AsyncIterator[Probe]:
    """Start the server, wait until it has introduced itself, and yield it."""
    await runtime.start_replica(request)
    [seen] = [each for each in await runtime.list_replicas() if each.name == request.name]
    assert seen.base_url is not None
    async with bridge_client(seen.base_url, request.token) as client:
        yield Probe(client)


async def test_the_server_has_nothing_but_what_is_declared(containers: DockerEngines) -> None:
    runtime = containers.runtime()
    request = request_of(containers, env={"A_VARIABLE": "declared"})
    async with started(runtime, request) as probe:
        status = dict(line.partition(":\t")[::2] for line in (await probe.look(STATUS)).splitlines())
        assert [int(status[each].strip(), 16) for each in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [0] * 5
        assert (status["NoNewPrivs"].strip(), status["Uid"].split()) == ("1", ["10001"] * 4)
        environment = json.loads(await probe.look("import json, os; result = json.dumps(dict(os.environ))"))
        assert (environment["A_VARIABLE"], environment["HOME"]) == ("declared", "/tmp")
        assert request.token not in environment.values()
        for path in ("/x", "/etc/x", "/cache/x", "/opt/roundhouse/x", "/var/x"):
            assert await probe.look(WRITE, path=path) in ("OSError", "PermissionError"), path
        assert await probe.look(WRITE, path="/tmp/x") == "written"
        assert await probe.look("import os; result = os.listdir('/')") == await probe.look(
            "import os; result = [each for each in os.listdir('/') if each != 'models']"
        ), "no folder of models"
        assert await probe.look("import os; result = os.path.exists('/var/run/docker.sock')") == "False"
        other = await probe.look(
            "import os; result = sorted(int(each) for each in os.listdir('/proc') if each.isdigit())"
        )
        assert len(json.loads(other)) < 10, "it sees the processes of its container alone"
    inspected = containers.inspect(request.name)
    assert inspected["Mounts"] == []
    assert list(inspected["NetworkSettings"]["Networks"]) == [containers.network]


async def test_declared_folders_are_writable_where_declared(containers: DockerEngines, tmp_path: Path) -> None:
    readable, writable = tmp_path / "readable", tmp_path / "writable"
    for folder in (readable, writable):
        folder.mkdir()
        folder.chmod(0o777)
        (folder / "a").write_text("content")
    tmp_path.chmod(0o755)
    request = request_of(containers, mcp_mounts=[f"{readable}:/data", f"{writable}:/work:rw"])
    async with started(containers.runtime(), request) as probe:
        assert await probe.look(READ, path="/data/a") == "content"
        assert await probe.look(WRITE, path="/data/b") == "OSError"
        assert await probe.look(WRITE, path="/work/b") == "written"
    assert (writable / "b").read_text() == "x"
    assert not (readable / "b").exists()


async def test_there_is_no_way_out_unless_one_is_declared(containers: DockerEngines) -> None:
    runtime = containers.runtime()
    closed = request_of(containers, "mcp:closed")
    opened = request_of(containers, "mcp:opened", mcp_network=True)
    with outside_host() as host:
        async with started(runtime, closed) as probe:
            assert await probe.look(REACH, host=host, port=PORT) == "TimeoutError"
        async with started(runtime, opened) as probe:
            assert await probe.look(REACH, host=host, port=PORT) == "b'outside'"
            other = containers.inspect(opened.name)["NetworkSettings"]["Networks"]
            assert set(other) == {containers.network, egress_network(containers.instance)}
    for request in (closed, opened):
        await runtime.stop_replica(request.name, 10)
    await runtime.close()
    name = egress_network(containers.instance)
    assert [each.name for each in containers.client.networks.list(names=[name])] == [], "removed with its last member"


async def test_servers_that_may_go_out_do_not_reach_each_other_that_way(containers: DockerEngines) -> None:
    runtime = containers.runtime()
    first, second = (request_of(containers, f"mcp:{each}", mcp_network=True) for each in ("one", "two"))
    async with started(runtime, first), started(runtime, second) as probe:
        networks = containers.inspect(first.name)["NetworkSettings"]["Networks"]
        address = networks[egress_network(containers.instance)]["IPAddress"]
        assert await probe.look(REACH, host=address, port=8000) in ("TimeoutError", "OSError")


async def test_the_container_ends_with_its_server(containers: DockerEngines) -> None:
    runtime = containers.runtime()
    request = request_of(containers)
    async with started(runtime, request) as probe:
        leaving = asyncio.create_task(probe.look("import os; os._exit(3)"))
        seen = await exited(runtime)
        leaving.cancel()
    assert seen.exit is not None
    assert seen.exit.code == 1
    assert seen.exit.log_tail.splitlines()[-1] == "the MCP server /opt/roundhouse/bin/python ended"
