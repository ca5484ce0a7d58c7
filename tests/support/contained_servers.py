"""The reference MCP servers of PyPI in containers of a real Docker Engine, and what they reach, tried from inside."""

from __future__ import annotations

import json
import os
import platform
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.docker_images import PREFIX, ensure_images
from tests.support.foreign_clients import ForeignClients
from tests.support.reference_servers import PYTHON_PACKAGES, Check, ToolClient, run_checks
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.runtime_fixtures import DockerRuntimeFixture
from tests.support.veth_host import PORT, outside_host

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
            here = ContainedServers(folder / "site", fixture, outside)
            async with here.stack.running("mcp:time", "mcp:fetch", "mcp:open"):
                await here.client.connected("time", "fetch", "open")
                return await run_checks(here.checks())
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
        told = json.loads(await self.client.read_text("time__get_current_time", timezone="Asia/Tokyo"))
        assert told["timezone"] == "Asia/Tokyo"

    async def _check_inside(self) -> None:
        paths = [str(self.stack.root), str(self.stack.state), str(self.stack.models), "/models"]
        for server in ("time", "fetch", "open"):
            told = json.loads(await self._look(server, LOOK.replace("{paths}", repr(paths))))
            assert told == {
                "capabilities": 0,
                "user": 10001,
                "socket": False,
                "folders": [],
                "writable": [],
            }, (server, told)
            assert (await self._container(server)).attrs["Mounts"] == []

    async def _check_no_way_out(self) -> None:
        for server in ("time", "fetch"):
            told = await self._look(server, REACH.format(host=self._outside, port=PORT))
            assert told in ("TimeoutError: timed out", "OSError: [Errno 101] Network is unreachable"), told
        assert await self.client.read_code("fetch__fetch", url=f"http://{self._outside}:{PORT}/") == "tool_timeout"

    async def _check_way_out(self) -> None:
        assert await self._look("open", REACH.format(host=self._outside, port=PORT)) == "outside"

    async def _check_gateway(self) -> None:
        host, port = self._host_address(), self.stack.port
        for server in ("time", "fetch", "open"):
            told = await self._look(server, REACH.format(host=host, port=port))
            assert told == "ConnectionRefusedError: [Errno 111] Connection refused", (server, told)
        await self.client.read_error("fetch__fetch", url=f"http://{host}:{port}/health", raw=True)

    async def _check_controller(self) -> None:
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(self.stack.state / 'controller.sock')!r})"
        for server in ("time", "fetch", "open"):
            told = await self._look(server, code)
            assert told == "FileNotFoundError: [Errno 2] No such file or directory", (server, told)

    async def _check_other_server(self) -> None:
        networks = (await self._container("time")).attrs["NetworkSettings"]["Networks"]
        address = networks[self._fixture.network]["IPAddress"]
        told = await self.client.read_error("fetch__fetch", url=f"http://{address}:8000/mcp", raw=True)
        assert "401" in told, told
