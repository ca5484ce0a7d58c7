"""compose.yaml, brought up by the real docker-compose on locally built images."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.conftest import open_docker_runtime
from tests.support.admin import AdminApi
from tests.support.ports import free_port
from tests.support.require import require
from tests.support.roundhouse_stack import REPOSITORY, SENTENCE
from tests.support.runtime_fixtures import DockerRuntimeFixture
from tests.support.wait import until

pytestmark = [pytest.mark.engines, pytest.mark.docker]

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
MODELS = """\
models:
  chat:
    model_path: clockwork.gguf
    llama_server_n_ctx: 4096
    replicas: 2
"""


class Project:
    """One compose project over folders of its own."""

    def __init__(self, folder: Path, runtime_fixture: DockerRuntimeFixture) -> None:
        self.folder = folder
        self.runtime_fixture = runtime_fixture
        self.port = free_port()
        self.name = f"rhtest{secrets.token_hex(3)}"
        images = runtime_fixture.env()
        self._env = os.environ | images | {
            "COMPOSE_PROJECT_NAME": self.name,
            "COMPOSE_PROFILES": "",
            "ROUNDHOUSE_PORT": str(self.port),
            "ROUNDHOUSE_MODELS_DIR": str(folder / "models"),
            "ROUNDHOUSE_DESIRED_DIR": str(folder / "desired-state"),
            "ROUNDHOUSE_IMAGE_GATEWAY": runtime_fixture.images["gateway"],
        }  # fmt: skip

    def compose(self, *arguments: str, check: bool = True) -> str:
        """Run docker-compose in the repository; what it printed."""
        done = subprocess.run(
            ["docker-compose", *arguments], cwd=REPOSITORY, env=self._env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or not check, f"{arguments}: {done.stderr}"
        return done.stdout

    def roundhouse(self, *arguments: str) -> str:
        """The command line inside the controller's container."""
        return self.compose("exec", "-T", "controller", "roundhouse", *arguments, check=False)

    def engines(self) -> dict[str, str]:
        """Container name to id."""
        mine = f"dev.roundhouse.instance={self.runtime_fixture.instance}"
        found = self.runtime_fixture.client.containers.list(filters={"label": mine})
        return {container.name or "": container.id or "" for container in found if "chat" in (container.name or "")}

    def loaded(self) -> bool:
        """Whether both replicas are ready."""
        text = self.roundhouse("status", "--json")
        if not text.startswith("{"):
            return False
        models = json.loads(text)["models"]
        return bool(models) and models[0]["state"] == "loaded" and models[0]["loaded_replicas"] == 2

    def down(self) -> None:
        """As docs/images.md says."""
        self.compose("stop")
        self.compose("run", "--rm", "--no-deps", "--entrypoint", "roundhouse", "controller", "down")
        self.compose("down", "--volumes")


@pytest.fixture
def project(folder: Path, clockwork: Path) -> Iterator[Project]:
    require("docker", shutil.which("docker-compose") is not None, "docker-compose is not installed")
    runtime_fixture = open_docker_runtime()
    for name in ("models", "desired-state"):
        (folder / name).mkdir()
    shutil.copy(clockwork, folder / "models" / "clockwork.gguf")
    (folder / "desired-state" / "models.yaml").write_text(MODELS)
    made = Project(folder, runtime_fixture)
    try:
        yield made
    finally:
        made.compose("stop", check=False)
        runtime_fixture.close()
        made.compose("down", "--volumes", check=False)


async def test_compose_serves_survives_its_controller_and_leaves_nothing(project: Project) -> None:
    project.compose("up", "-d", "--no-build")
    await until("both replicas are ready", project.loaded, 120)
    before = project.engines()
    assert len(before) == 2
    async with AdminApi(f"http://127.0.0.1:{project.port}") as admin:
        rows = (await admin.ask("GET", "models")).body["models"]
        assert [row["runtime_state"] for row in rows] == ["loaded"] * len(rows) != []
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{project.port}/v1", api_key="none") as client:
        answer = await client.chat.completions.create(model="chat", messages=HELLO)
        assert answer.choices[0].message.content == SENTENCE
        project.compose("kill", "-s", "SIGKILL", "controller")
        answer = await client.chat.completions.create(model="chat", messages=HELLO)
        assert answer.choices[0].message.content == SENTENCE
        project.compose("up", "-d", "--no-build")
        await until("both replicas are ready", project.loaded, 120)
        assert project.engines() == before
        for container in project.runtime_fixture.client.containers.list(filters={"name": project.name}):
            published = [port for ports in container.ports.values() for port in ports or ()]
            assert bool(published) == ("gateway" in (container.name or ""))
    project.down()
    assert project.engines() == {}
    mine = f"com.docker.compose.project={project.name}"
    assert project.runtime_fixture.client.containers.list(all=True, filters={"label": mine}) == []
    assert project.runtime_fixture.client.networks.list(names=[project.runtime_fixture.network]) == []


async def test_only_the_controller_holds_the_docker_socket(project: Project) -> None:
    project.compose("up", "-d", "--no-build")
    await until("both replicas are ready", project.loaded, 120)
    everything = [
        *project.runtime_fixture.client.containers.list(
            filters={"label": f"com.docker.compose.project={project.name}"}
        ),
        *(project.runtime_fixture.client.containers.get(name) for name in project.engines()),
    ]
    holders = [
        container.name or ""
        for container in everything
        if any(mount["Destination"] == "/var/run/docker.sock" for mount in container.attrs["Mounts"])
    ]
    assert len(everything) == 4
    assert len(holders) == 1
    assert "controller" in holders[0]
