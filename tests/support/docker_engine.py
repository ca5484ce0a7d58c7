"""Engines as containers of a real Docker Engine, each test with an instance of its own and nothing left afterwards."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import secrets
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import docker.errors
import psutil
import requests

from contract.desired import Definition
from controller.artifacts.model_roots import ModelRoots
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.stub import StubDefinition
from controller.runtimes.base import Runtime, StartRequest
from controller.runtimes.docker.container_spec import HostContext, container_config
from controller.runtimes.docker.containers import create_container
from controller.runtimes.docker.runtime import DockerOptions, DockerRuntime
from tests.support.docker_images import PREFIX, ensure_base, ensure_images
from tests.support.require import require
from tests.support.runtime_contract import request_for

TEST_LABEL = "dev.roundhouse-test.owner"
"""On containers that a test makes and that are not Roundhouse's, for the cleaning up."""
SOCKET = Path(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://"))
_SHELL = '#!/bin/sh\nexec /bin/sh -c "$BODY" "$0" "$@"\n'


@functools.cache
def engine_answers() -> tuple[bool, str]:
    try:
        client = docker.from_env(timeout=60)
        client.ping()
        client.close()
    except (docker.errors.DockerException, requests.RequestException) as error:
        return False, f"no Docker Engine answers: {error}"
    return True, ""


@contextlib.contextmanager
def shared_network() -> Iterator[str]:
    """A network as Roundhouse makes it, which no instance takes for its own: for all tests of one run."""
    require("docker", *engine_answers())
    client = docker.from_env()
    options = {"com.docker.network.bridge.enable_ip_masquerade": "false"}
    network = client.networks.create(f"rhtest_{secrets.token_hex(4)}", driver="bridge", options=options)
    yield str(network.name)
    network.remove()
    client.close()


base_image = functools.cache(ensure_base)
images = functools.cache(ensure_images)


@functools.cache
def shell_image() -> str:
    """An image whose /app/llama-server runs the shell program in the variable BODY, with its arguments."""
    dockerfile = f"FROM {base_image()}\nCOPY engine /app/llama-server\n"
    return _build_image(f"{PREFIX}/shell:latest", {"Dockerfile": dockerfile, "engine": _SHELL})


def image_with_variable(name: str, value: str) -> str:
    dockerfile = f'FROM {base_image()}\nENV {name}="{value}"\n'
    return _build_image(f"{PREFIX}/variable:{name.lower()}", {"Dockerfile": dockerfile})


def _build_image(tag: str, files: Mapping[str, str]) -> str:
    client, context = docker.APIClient(version="auto"), io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), 0o755
            tar.addfile(info, io.BytesIO(text.encode()))
    context.seek(0)
    with contextlib.closing(client):
        answer = [*client.build(fileobj=context, custom_context=True, tag=tag, rm=True, decode=True)]
    assert not any("error" in each for each in answer), answer
    return tag


class DockerEngines:
    """Engines of one test, with a models folder and a state folder below `root`. See ContractEngines.

    `network`: one that is there already; without it the runtime makes its own, which is removed with the rest.
    """

    killed_code = 137
    tells_codes_of_unseen_ends = True
    models_inside = "/models"

    def __init__(self, root: Path, network: str | None = None) -> None:
        self.root = root
        self.instance = f"t{secrets.token_hex(4)}"
        self.network = network or f"rhtest_{self.instance}"
        self._owns_network = network is None
        self.models = root / "models"
        self.models.mkdir()
        self.models.chmod(0o755)
        self.state = root / "state"
        self.client = docker.from_env()
        self.file("m.gguf", b"GGUF of a test")
        self._runtimes: list[DockerRuntime] = []
        self._others: list[DockerEngines] = []
        self._foreign: dict[str, str] = {}

    def runtime(self, **settings: Any) -> DockerRuntime:
        """A runtime over this place; another object stands for another controller."""
        defaults: dict[str, Any] = {
            "instance": self.instance,
            "models": ModelRoots((self.models,)),
            "state": self.state,
            "images": {},
            "engines_network": self.network,
        }
        nvml = settings.pop("nvml", None)
        runtime = DockerRuntime(DockerOptions(**defaults | settings), nvml)
        self._runtimes.append(runtime)
        return runtime

    def other_instance(self) -> DockerEngines:
        """Another Roundhouse on the same daemon and network."""
        root = self.root / f"other-{len(self._others)}"
        root.mkdir()
        other = DockerEngines(root, self.network)
        self._others.append(other)
        return other

    def file(self, name: str, content: bytes, mode: int = 0o644) -> Path:
        path = self.models / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
        return path

    def shell(self, body: str, **fields: object) -> LlamaServerDefinition:
        """A model whose engine is a shell program."""
        content = {"model_path": "m.gguf", "image": shell_image(), **fields}
        env = {"BODY": body} | content.pop("env", {})  # type: ignore[operator]
        return LlamaServerDefinition.model_validate({**content, "env": env})

    def stub(self, **fields: object) -> StubDefinition:
        """A model served by the real worker's stub."""
        return StubDefinition.model_validate({"backend": "stub", "image": images()["worker"], **fields})

    def llama_server(self, model_path: str) -> LlamaServerDefinition:
        return LlamaServerDefinition(model_path=model_path, image=images()["llama-server"])

    def request(
        self, definition: Definition, model: str = "m", *, attempt: int = 1, claims: Mapping[str, int] | None = None
    ) -> StartRequest:
        """A start of a model's first replica."""
        return request_for(self.instance, definition, definition.image, model, attempt, claims)

    def unstartable(self) -> tuple[StartRequest, str]:
        image = "roundhouse-test/none:1"
        return self.request(self.shell("exit 0", image=image)), f"image {image} is missing"

    def inspect(self, name: str) -> dict[str, Any]:
        """A container as the daemon sees it."""
        attrs: dict[str, Any] = self.client.containers.get(name).attrs
        return attrs

    def inside(self, name: str, *command: str) -> tuple[int, str]:
        """Run a program in a container, as its own user: exit code and output."""
        api = self.client.api
        execution = api.exec_create(name, list(command))["Id"]
        output: bytes = api.exec_start(execution)
        return int(api.exec_inspect(execution)["ExitCode"]), output.decode()

    def identity(self, name: str) -> str:
        """Container id and start time."""
        inspected = self.inspect(name)
        return f"{inspected['Id']}/{inspected['State']['StartedAt']}"

    def pids(self, name: str) -> list[int]:
        """The container's first process and all that came from it."""
        leader = psutil.Process(self.inspect(name)["State"]["Pid"])
        return [each.pid for each in (leader, *leader.children(recursive=True))]

    def kill(self, name: str) -> None:
        """`docker kill`."""
        self.client.containers.get(name).kill()

    def try_to_pause(self, name: str) -> bool:
        """Freeze a replica's processes. False: runc gave up, as it does on a busy machine."""
        try:
            self.client.containers.get(name).pause()
        except docker.errors.APIError as error:
            if "unable to freeze" not in str(error):
                raise
            return False
        return True

    def log_bytes(self, name: str) -> int:
        """By what the daemon gives out."""
        return len(self.client.containers.get(name).logs())

    def foreign(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """A running container that somebody else made."""
        container = self.client.containers.run(
            base_image(),
            ["sleep", "600"],
            name=name,
            labels={TEST_LABEL: self.instance, **(labels or {})},
            detach=True,
            init=True,
        )
        self._foreign[name] = str(container.id)

    def foreign_runs(self, name: str) -> bool:
        """The same container of that name runs."""
        inspected = self.inspect(name)
        return inspected["Id"] == self._foreign[name] and bool(inspected["State"]["Running"])

    async def half_created(self, request: StartRequest) -> None:
        runtime = self.runtime()
        around = await runtime.get_surroundings()
        launch, identity = await runtime._render_launch(request.served_name, 0, request.definition, request.image, ())
        host = HostContext(self.instance, self.network, around.publishes_ports, around.models, 1)
        config = container_config(request, launch, identity, host, time.time())
        create_container(self.client.api, request.name, config)

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[Runtime]:
        """A runtime whose daemon's socket is away."""
        link = self.root / "docker.sock"
        yield self.runtime(docker_url=f"unix://{link}")
        link.symlink_to(SOCKET)

    def left(self) -> list[str]:
        """Names of containers with this instance's label."""
        label = f"dev.roundhouse.instance={self.instance}"
        return [each.name or "" for each in self.client.containers.list(all=True, filters={"label": label})]

    async def close(self) -> None:
        """Remove all that the test made."""
        for other in self._others:
            await other.close()
        for runtime in self._runtimes:
            await runtime.close()
        for each in self._labelled():
            with contextlib.suppress(docker.errors.NotFound):
                each.remove(force=True, v=True)
        mine = {"label": f"dev.roundhouse.instance={self.instance}"}
        for volume in self.client.volumes.list(filters=mine):
            volume.remove(force=True)
        for network in self.client.networks.list(filters=mine):
            network.remove()
        if self._owns_network:
            for network in self.client.networks.list(names=[self.network]):
                network.remove()
        self.client.close()

    def _labelled(self) -> Iterator[Any]:
        for label in (f"dev.roundhouse.instance={self.instance}", f"{TEST_LABEL}={self.instance}"):
            yield from self.client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
