"""Where a test's engines run: as processes, or as containers of a real Docker Engine. Same stacks, same tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import docker

from controller.runtimes.base import replica_token
from tests.support.roundhouse_stack import RoundhouseStack


def token_of(stack: RoundhouseStack, replica: str) -> str:
    """A replica's own token, by the secret in the state folder."""
    secret = json.loads((stack.state / "identity.json").read_text())["secret"]
    return replica_token(bytes.fromhex(secret), replica)


class RuntimeFixture(Protocol):
    """What a test may do to engines behind the controller's back."""

    runtime: str

    def env(self) -> dict[str, str]:
        """Settings of a stack here."""

    def identity(self, stack: RoundhouseStack, replica: str) -> str:
        """What a restart would change: pid and start, or container id."""

    def kill(self, stack: RoundhouseStack, replica: str) -> None:
        """End an engine without warning."""

    def left(self, stack: RoundhouseStack) -> list[str]:
        """Engines that are still there."""

    def token(self, stack: RoundhouseStack, replica: str) -> str:
        """What an engine asks of its callers."""


class ProcessRuntimeFixture:
    """Engines as processes, llama-server embedded."""

    runtime = "process"

    def env(self) -> dict[str, str]:
        """Nothing beyond the folders."""
        return {}

    def _record(self, stack: RoundhouseStack, replica: str) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((stack.state / "replicas" / f"{replica}.json").read_text())
        return record

    def identity(self, stack: RoundhouseStack, replica: str) -> str:
        """Process id and start time."""
        pid = int(self._record(stack, replica)["pid"])
        return f"{pid}/{Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[19]}"

    def kill(self, stack: RoundhouseStack, replica: str) -> None:
        """SIGKILL to the engine's session."""
        os.killpg(int(self._record(stack, replica)["pid"]), signal.SIGKILL)

    @contextlib.asynccontextmanager
    async def paused(self, stack: RoundhouseStack, replicas: Iterable[str]) -> AsyncIterator[None]:
        """These engines do nothing until it is left, however long a test takes."""
        pids = [int(self._record(stack, replica)["pid"]) for replica in replicas]

        def signalled(number: signal.Signals) -> None:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, number)

        signalled(signal.SIGSTOP)
        try:
            yield
        finally:
            signalled(signal.SIGCONT)

    def token(self, stack: RoundhouseStack, replica: str) -> str:
        return token_of(stack, replica)

    def left(self, stack: RoundhouseStack) -> list[str]:
        return [path.stem for path in (stack.state / "replicas").glob("*.json")]


class DockerRuntimeFixture:
    runtime = "docker"

    def __init__(self, instance: str, images: dict[str, str], network: str) -> None:
        self.instance = instance
        self.network = network
        self.images = images
        self.client = docker.from_env()

    def env(self) -> dict[str, str]:
        """An instance, images and a network of this test's own."""
        return {
            "ROUNDHOUSE_INSTANCE": self.instance,
            "ROUNDHOUSE_IMAGE_LLAMA_SERVER": self.images["llama-server"],
            "ROUNDHOUSE_IMAGE_WORKER": self.images["worker"],
            "ROUNDHOUSE_IMAGE_CONTROLLER": self.images["controller"],
            "ROUNDHOUSE_ENGINES_NETWORK": self.network,
        }

    def compose_env(self, project: str, port: int, folder: Path) -> dict[str, str]:
        """The environment of docker-compose for a project of this instance: its gateway's port, and `models` and
        `desired-state` below `folder`."""
        return os.environ | self.env() | {
            "COMPOSE_PROJECT_NAME": project,
            "ROUNDHOUSE_PORT": str(port),
            "ROUNDHOUSE_MODELS_DIR": str(folder / "models"),
            "ROUNDHOUSE_DESIRED_DIR": str(folder / "desired-state"),
            "ROUNDHOUSE_IMAGE_GATEWAY": self.images["gateway"],
        }  # fmt: skip

    def identity(self, stack: RoundhouseStack, replica: str) -> str:
        """Container id and start time."""
        container = self.client.containers.get(replica)
        return f"{container.id}/{container.attrs['State']['StartedAt']}"

    def kill(self, stack: RoundhouseStack, replica: str) -> None:
        """`docker kill`."""
        self.client.containers.get(replica).kill()

    def token(self, stack: RoundhouseStack, replica: str) -> str:
        return token_of(stack, replica)

    def left(self, stack: RoundhouseStack) -> list[str]:
        """By this instance's label."""
        mine = f"dev.roundhouse.instance={self.instance}"
        return [container.name or "" for container in self.client.containers.list(all=True, filters={"label": mine})]

    def remove_containers(self) -> None:
        """Remove this test's engines, whether they run or not."""
        mine = f"dev.roundhouse.instance={self.instance}"
        for container in self.client.containers.list(all=True, filters={"label": mine}):
            container.remove(force=True)

    def close(self) -> None:
        """Remove whatever this test left: containers, volumes, networks."""
        mine = f"dev.roundhouse.instance={self.instance}"
        self.remove_containers()
        for volume in self.client.volumes.list(filters={"label": mine}):
            volume.remove(force=True)
        for network in self.client.networks.list(filters={"label": mine}):
            network.remove()
        for network in self.client.networks.list(names=[self.network]):
            network.remove()
        self.client.close()


@contextlib.contextmanager
def stack_of_processes(**settings: str) -> Iterator[RoundhouseStack]:
    """A stack in a folder of its own, not started yet. It is closed in the end; nothing of it may be left then."""
    with tempfile.TemporaryDirectory(prefix="rh", ignore_cleanup_errors=True) as folder:
        stack = RoundhouseStack(Path(folder, "here"), "process", settings)
        try:
            yield stack
        finally:
            asyncio.run(stack.close())
        assert ProcessRuntimeFixture().left(stack) == []
