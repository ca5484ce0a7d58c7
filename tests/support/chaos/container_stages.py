"""A Roundhouse whose engines are containers: its programs under `up`, or a compose project."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests
from ruamel.yaml import YAML

from controller.runtimes.docker.container_spec import INSTANCE, REPLICA_ROLE, ROLE, read_labels
from controller.runtimes.process.groups import PROC, list_stats, read_stat
from tests.support import shifted_clock
from tests.support.chaos.stage import Engine, EngineHost, monotonic_of_unix
from tests.support.chaos.up_stage import DISK_KIB, SERVER, UpStage
from tests.support.fake_hub import FakeHub
from tests.support.ports import free_port
from tests.support.roundhouse_stack import REPOSITORY
from tests.support.runtime_fixtures import DockerRuntimeFixture
from tests.support.shifted_clock import ShiftedClock
from tests.support.small_disk import SmallDisk, find_small_disk
from tests.support.wait import until

SYSTEMD = Path("/run/systemd/system")
DOCKER_PIDS = (Path("/var/run/docker.pid"), Path("/var/run/docker/containerd/containerd.pid"))
ANSWERS_WITHIN_S = 90


class Dockerd:
    """The dockerd of this machine. Its command line is remembered from before it is killed."""

    def __init__(self) -> None:
        self._argv: list[str] = []
        self._log: Path | None = None

    def find_pid(self) -> int | None:
        """Its process id; None: none runs."""
        for stat in list_stats():
            with suppress(OSError):
                if not stat.has_ended and _name_of(stat.process.pid) == "dockerd":
                    self._remember(stat.process.pid)
                    return stat.process.pid
        return None

    def _remember(self, pid: int) -> None:
        self._argv = (PROC / str(pid) / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
        output = (PROC / str(pid) / "fd" / "1").readlink()
        self._log = output if output.is_file() else None

    async def restart(self) -> None:
        """With the same command line; systemd does it by itself. Returns when the engine answers."""
        if not SYSTEMD.is_dir():
            self._forget_dead()
            self._spawn()
        await until("the Docker Engine answers", lambda: asyncio.to_thread(_answers), ANSWERS_WITHIN_S)

    def _spawn(self) -> None:
        with (self._log or Path(os.devnull)).open("ab") as log:
            subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _forget_dead(self) -> None:
        """A daemon that was killed leaves its pid in files, and that may be a zombie's, or since be somebody else's."""
        own = [Path(after) for before, after in zip(self._argv, self._argv[1:], strict=False) if before == "--pidfile"]
        for path in (*DOCKER_PIDS, *own):
            with suppress(OSError, ValueError):
                pid = int(path.read_text())
                stat = read_stat(pid)
                if stat is None or stat.has_ended or _name_of(pid) not in ("dockerd", "containerd"):
                    path.unlink()


def _name_of(pid: int) -> str:
    return (PROC / str(pid) / "comm").read_text().strip()


def _answers() -> bool:
    try:
        client = docker.from_env(timeout=5)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except (docker.errors.DockerException, requests.RequestException, OSError):
        return False


ENGINE_PORT = 8000
GATEWAY_USER = 10001
"""Who the gateway is in its image."""
CONTAINED_SERVER = {"command": ["/opt/roundhouse/bin/python", "-c", SERVER.read_text()]}
"""An MCP server in the worker's own image, whose Python has the library."""
ASK = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)"
AWAY = (docker.errors.DockerException, requests.RequestException, OSError)
"""What the client of a Docker Engine raises while it is away."""


class ContainerHost:
    """Engines as containers of one instance."""

    def __init__(self, fixture: DockerRuntimeFixture) -> None:
        self._fixture = fixture

    def look(self, wanted: Counter[str]) -> tuple[dict[str, Engine], list[str]]:
        """By the Docker Engine, whose containers' labels are the only record of engines."""
        try:
            containers = self._list()
        except AWAY as error:
            return {}, [f"the Docker Engine does not answer: {error}"]
        engines = {container.name: self._engine_of(container) for container in containers if _is_running(container)}
        wrong = [
            f"{container.name} is {container.status} and does not run"
            for container in containers
            if not _is_running(container)
        ]
        running = Counter(each.model for each in engines.values())
        if running != wanted:
            wrong.append(f"containers of {dict(running)} instead of {dict(wanted)}")
        places = Counter((each.model, each.index) for each in engines.values())
        wrong += [f"{count} engines at {place}" for place, count in places.items() if count > 1]
        return engines, wrong

    def _list(self) -> list[Any]:
        mine = [f"{INSTANCE}={self._fixture.instance}", f"{ROLE}={REPLICA_ROLE}"]
        found = self._fixture.client.containers.list(all=True, filters={"label": mine}, ignore_removed=True)
        return list(found)

    def _engine_of(self, container: Any) -> Engine:
        identity, state = read_labels(container.labels).id, container.attrs["State"]
        # A container's creation is a part of its start. Nine digits of a second are three more than Python reads.
        created = datetime.fromisoformat(f"{container.attrs['Created'][:26].rstrip('Z')}+00:00")
        return Engine(
            name=container.name,
            model=identity.model,
            index=identity.index,
            identity=f"{container.id}/{state['StartedAt']}",
            started_at=monotonic_of_unix(created.timestamp()),
            pid=int(state["Pid"]),
            health_url=f"http://127.0.0.1:{ENGINE_PORT}/health",
        )

    async def is_healthy(self, engine: Engine) -> bool:
        """From within its own network: this machine has no way into a compose project's."""
        inside = ["nsenter", f"--net=/proc/{engine.pid}/ns/net", sys.executable, "-ISc", ASK, engine.health_url]
        process = await asyncio.create_subprocess_exec(*inside, stderr=asyncio.subprocess.DEVNULL)
        return await process.wait() == 0

    async def kill(self, name: str) -> None:
        """`docker kill`."""
        container = self._fixture.client.containers.get(name)
        await asyncio.to_thread(container.kill)
        await until(f"{name} has ended", lambda: self._has_ended(name))

    def _has_ended(self, name: str) -> bool:
        try:
            return not _is_running(self._fixture.client.containers.get(name))
        except docker.errors.NotFound:
            return True

    def freeze(self, name: str) -> None:
        """`docker pause`."""
        self._fixture.client.containers.get(name).pause()

    def thaw(self, name: str) -> None:
        """`docker unpause`."""
        self._fixture.client.containers.get(name).unpause()

    def find_left(self) -> list[str]:
        """Containers of the instance, whatever they do."""
        return [f"container {container.name}" for container in self._list()]


def _is_running(container: Any) -> bool:
    return bool(container.attrs["State"]["Running"])


class DockerStage(UpStage):
    """`roundhouse up --runtime docker`: engines as containers, the programs as processes of this machine."""

    def __init__(self, root: Path, fixture: DockerRuntimeFixture) -> None:
        super().__init__(root, "docker", fixture.env())
        self._fixture = fixture
        self._containers = ContainerHost(fixture)
        self._dockerd = Dockerd()
        self.host = self._containers
        self.mcp_server = CONTAINED_SERVER
        del self.left_out["dockerd killed"]

    def find_pid(self, program: str) -> int | None:
        """As under `up`, and the Docker Engine's."""
        return self._dockerd.find_pid() if program == "dockerd" else super().find_pid(program)

    async def restart_dockerd(self) -> None:
        """With its command line."""
        await self._dockerd.restart()

    def _find_left_engines(self) -> list[str]:
        return self._containers.find_left()

    async def close(self) -> None:
        """And the containers, volumes and the network of the instance."""
        try:
            await super().close()
        finally:
            self._fixture.close()


class ComposeStage:
    """compose.yaml by docker-compose 1.29 on locally built images, its volumes in folders of one small disk."""

    def __init__(self, root: Path, fixture: DockerRuntimeFixture) -> None:
        self._root = root
        self._fixture = fixture
        self._exits = ExitStack()
        self._dockerd = Dockerd()
        self._containers = ContainerHost(fixture)
        self._name = f"rhtest{secrets.token_hex(3)}"
        self.host: EngineHost = self._containers
        place = root / "disk"
        self.disk: SmallDisk | None = self._exits.enter_context(find_small_disk(place, DISK_KIB))
        self.hub: FakeHub | None = None
        (root / "shift").mkdir()
        self.clock = ShiftedClock(root / "shift" / "seconds")
        self.mcp_server = CONTAINED_SERVER
        self.desired, self.models = place / "desired-state", place / "models"
        volumes = {name: place / name for name in ("state", "responses", "documents")}
        for folder in (self.desired, self.models, *volumes.values()):
            folder.mkdir()
        for name in ("responses", "documents"):
            os.chown(volumes[name], GATEWAY_USER, GATEWAY_USER)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.files = {
            "journal.db": volumes["state"] / "journal.db",
            "epoch.json": volumes["state"] / "epoch.json",
            "responses.db": volumes["responses"] / "responses.db",
        }
        self.left_out = {
            "up killed, then down and up": "dockerd keeps the programs running, not `up`",
        }
        if self.disk is None:
            self.left_out["disk full"] = "no small disk could be mounted"
        self._override = root / "override.yaml"
        with self._override.open("w") as file:
            YAML(typ="safe", pure=True).dump(_volumes_in(**volumes) | _services_with(root / "shift"), file)
        self._env = fixture.compose_env(self._name, port, place)

    async def _compose(self, *arguments: str, check: bool = True) -> str:
        files = ["-f", str(REPOSITORY / "compose.yaml"), "-f", str(self._override)]
        done = await asyncio.to_thread(
            subprocess.run,
            ["docker-compose", "--project-directory", str(REPOSITORY), *files, *arguments],
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{arguments}: {done.stderr}"
        return str(done.stdout)

    async def start(self) -> None:
        """`docker-compose up -d`."""
        assert shutil.which("docker-compose") is not None, "docker-compose is not installed"
        await self._compose("up", "-d", "--no-build")

    async def end(self) -> None:
        """As docs/images.md says."""
        await self._compose("stop")
        await self._compose("run", "--rm", "--no-deps", "--entrypoint", "roundhouse", "controller", "down")
        await self._compose("down", "--volumes")

    async def run_command(self, *arguments: str) -> None:
        """Inside the controller's container. Raises AssertionError."""
        await self._compose("exec", "-T", "controller", "roundhouse", *arguments)

    def find_pid(self, program: str) -> int | None:
        """Of the service's first process, as this machine knows it: `docker kill` would count as an operator's stop,
        after which a container is not started again."""
        if program == "dockerd":
            return self._dockerd.find_pid()
        try:
            found = self._list(f"com.docker.compose.service={program}")
        except AWAY:
            return None
        running = [container.attrs["State"] for container in found if _is_running(container)]
        # With `init: true` the first process is an init, which takes its child with it.
        return int(running[0]["Pid"]) or None if running else None

    def _list(self, *wanted: str) -> list[Any]:
        mine = [f"com.docker.compose.project={self._name}", *wanted]
        found = self._fixture.client.containers.list(all=True, filters={"label": mine}, ignore_removed=True)
        return list(found)

    async def restart_dockerd(self) -> None:
        """With its command line."""
        await self._dockerd.restart()

    def find_left(self) -> list[str]:
        """Containers of the project and of the instance, and its engines' network."""
        networks = self._fixture.client.networks.list(names=[self._fixture.network])
        return [
            *(f"container {container.name}" for container in self._list()),
            *self._containers.find_left(),
            *(f"network {network.name}" for network in networks),
        ]

    async def close(self) -> None:
        """Remove what is left of project and instance."""
        if self.disk is not None:
            self.disk.free()
        try:
            await self._compose("stop", check=False)
            self._fixture.close()
            await self._compose("down", "--volumes", check=False)
        finally:
            self._exits.close()


def _services_with(shift: Path) -> dict[str, Any]:
    """A compose file whose programs see the clock of that folder."""
    code = Path(shifted_clock.__file__).parent
    service = {
        "environment": {"PYTHONPATH": "/clock", "SHIFTED_CLOCK_FILE": "/shift/seconds"},
        "volumes": [f"{code}:/clock:ro", f"{shift}:/shift:ro"],
    }
    return {"services": dict.fromkeys(("controller", "gateway", "retrieval", "transfers"), service)}


def _volumes_in(**folders: Path) -> dict[str, Any]:
    """A compose file that puts volumes of these names into folders of this machine."""
    options = {name: {"type": "none", "o": "bind", "device": str(folder)} for name, folder in folders.items()}
    return {"volumes": {name: {"driver_opts": each} for name, each in options.items()}}
