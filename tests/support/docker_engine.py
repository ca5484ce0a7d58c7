"""Replicas on a real Docker Engine, each test with an instance of its own and nothing left afterwards."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import secrets
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests

from controller.engines import spec_hash
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.stub import StubDefinition
from controller.runtimes.base import SeenReplica, StartRequest
from controller.runtimes.docker import DockerRuntime
from controller.runtimes.naming import replica_name, replica_token
from controller.schema.desired import Definition
from controller.state import Phase, ReplicaId
from tests.support.docker_images import PREFIX, ensure_base, ensure_images
from tests.support.require import require
from tests.support.wait import until

TEST_LABEL = "dev.roundhouse-test.owner"
"""On containers that a test makes and that are not Roundhouse's, for the cleaning up."""
RUN = "exec sleep 600"
STUBBORN = "trap '' TERM; echo deaf; while :; do sleep 0.2; done"
_SHELL = '#!/bin/sh\nexec /bin/sh -c "$BODY"\n'


@functools.cache
def engine_answers() -> tuple[bool, str]:
    """Whether a Docker Engine answers here; if not, why."""
    try:
        client = docker.from_env(timeout=60)
        client.ping()
        client.close()
    except (docker.errors.DockerException, requests.RequestException) as error:
        return False, f"no Docker Engine answers: {error}"
    return True, ""


def open_yard(root: Path) -> Yard:
    """A place on the engine that answers; skips, or fails where it is required, when none does."""
    require("docker", *engine_answers())
    return Yard(root)


@functools.cache
def shell_image() -> str:
    """An image whose /app/llama-server runs the shell program in the variable BODY."""
    client, tag = docker.APIClient(version="auto"), f"{PREFIX}/shell:latest"
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, text in (
            ("Dockerfile", f"FROM {ensure_base()}\nCOPY engine /app/llama-server\n"),
            ("engine", _SHELL),
        ):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), 0o755
            tar.addfile(info, io.BytesIO(text.encode()))
    context.seek(0)
    with contextlib.closing(client):
        answer = [*client.build(fileobj=context, custom_context=True, tag=tag, rm=True, decode=True)]
    assert not any("error" in each for each in answer), answer
    return tag


class Yard:
    """A models folder, a state folder, an instance and a network of one test."""

    def __init__(self, root: Path) -> None:
        self.instance = f"t{secrets.token_hex(4)}"
        self.network = f"rhtest_{self.instance}"
        self.models = root / "models"
        self.models.mkdir()
        self.models.chmod(0o755)
        self.state = root / "state"
        self.client = docker.from_env()
        self.file("m.gguf", b"GGUF of a test")
        self._runtimes: list[DockerRuntime] = []

    def runtime(self, **settings: Any) -> DockerRuntime:
        """A runtime over this place; another object stands for another controller."""
        defaults: dict[str, Any] = {
            "instance": self.instance,
            "models": self.models,
            "state": self.state,
            "images": {},
            "engines_network": self.network,
        }
        made = DockerRuntime(**defaults | settings)
        self._runtimes.append(made)
        return made

    def file(self, name: str, content: bytes, mode: int = 0o644) -> Path:
        """A file in the models folder."""
        path = self.models / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
        return path

    def request(
        self,
        definition: Definition,
        model: str = "m",
        *,
        attempt: int = 1,
        claims: Mapping[str, int] | None = None,
        instance: str | None = None,
    ) -> StartRequest:
        """A start of a model's first replica."""
        replica = ReplicaId(model, 0, spec_hash(definition, definition.image, model), attempt)
        name = replica_name(instance or self.instance, replica)
        token = replica_token(b"secret", name)
        return StartRequest(replica, name, definition, model, definition.image, token, claims or {})

    def inspect(self, name: str) -> dict[str, Any]:
        """A container as the daemon sees it."""
        attrs: dict[str, Any] = self.client.containers.get(name).attrs
        return attrs

    def inside(self, name: str, *command: str) -> tuple[int, str]:
        """Run a program in a container, as its own user: exit code and output."""
        api = self.client.api
        made = api.exec_create(name, list(command))["Id"]
        output: bytes = api.exec_start(made)
        return int(api.exec_inspect(made)["ExitCode"]), output.decode()

    def foreign(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """A running container that somebody else made; its id."""
        made = self.client.containers.run(
            ensure_base(),
            ["sleep", "600"],
            name=name,
            labels={TEST_LABEL: self.instance, **(labels or {})},
            detach=True,
            init=True,
        )
        return str(made.id)

    def mine(self) -> list[str]:
        """Names of containers with this instance's label."""
        label = f"dev.roundhouse.instance={self.instance}"
        return [each.name or "" for each in self.client.containers.list(all=True, filters={"label": label})]

    async def close(self) -> None:
        """Remove all that the test made; what is left then is in `leftovers`."""
        for runtime in self._runtimes:
            await runtime.close()
        for each in self._labelled():
            with contextlib.suppress(docker.errors.NotFound):
                each.remove(force=True, v=True)
        for volume in self.client.volumes.list(filters={"label": f"dev.roundhouse.instance={self.instance}"}):
            volume.remove(force=True)
        for network in self.client.networks.list(names=[self.network]):
            network.remove()
        self.client.close()

    def _labelled(self) -> Iterator[Any]:
        for label in (f"dev.roundhouse.instance={self.instance}", f"{TEST_LABEL}={self.instance}"):
            yield from self.client.containers.list(all=True, filters={"label": label}, ignore_removed=True)


def shell(body: str, **fields: object) -> LlamaServerDefinition:
    """A model whose engine is a shell program."""
    env = {"BODY": body}
    return LlamaServerDefinition.model_validate({"model_path": "m.gguf", "image": shell_image(), "env": env, **fields})


def stub(**fields: object) -> StubDefinition:
    """A model served by the real worker's stub."""
    return StubDefinition.model_validate({"backend": "stub", "image": ensure_images()["worker"], **fields})


async def only(runtime: DockerRuntime) -> SeenReplica:
    """The one replica that there is."""
    (seen,) = await runtime.list()
    return seen


async def exited(runtime: DockerRuntime) -> SeenReplica:
    """The one replica, once it has ended."""

    async def look() -> SeenReplica | None:
        seen = await only(runtime)
        return seen if seen.phase is Phase.EXITED else None

    ended: SeenReplica = await until("the engine's end", look)
    return ended


async def said(runtime: DockerRuntime, name: str, text: str) -> None:
    """Return when the engine has written a text."""

    async def look() -> bool:
        return text in await runtime.log_tail(name)

    await until(f"{text!r} in the log of {name}", look)


def post(url: str, body: Mapping[str, Any], token: str | None) -> requests.Response:
    """A request to an engine."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    return requests.post(url, data=json.dumps(body), headers=headers, timeout=60)


async def ready(seen: SeenReplica) -> str:
    """The address of an engine that has loaded."""

    def look() -> bool:
        try:
            return requests.get(f"{seen.base_url}/health", timeout=60).status_code == 200
        except requests.RequestException:
            return False

    await until(f"{seen.name} is healthy", look)
    assert seen.base_url is not None
    return seen.base_url
