"""One compose project on locally built images, over folders of its own."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.models.containers import Container

from tests.conftest import open_docker_runtime
from tests.support.ports import free_port
from tests.support.require import require
from tests.support.roundhouse_stack import REPOSITORY
from tests.support.runtime_fixtures import DockerRuntimeFixture

MODELS = """\
models:
  chat:
    model_path: clockwork.gguf
    llama_server_n_ctx: 4096
    replicas: 2
"""


class ComposeProject:
    """One compose project over folders of its own. `settings` is the environment of docker-compose."""

    def __init__(self, folder: Path, runtime_fixture: DockerRuntimeFixture) -> None:
        self.folder = folder
        self.runtime_fixture = runtime_fixture
        self.port = free_port()
        self.name = f"rhtest{secrets.token_hex(3)}"
        self.settings = runtime_fixture.compose_env(self.name, self.port, folder)

    def run_compose(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker-compose", *arguments],
            cwd=REPOSITORY,
            env=self.settings,
            capture_output=True,
            text=True,
            check=False,
        )

    def compose(self, *arguments: str, check: bool = True) -> str:
        """The same; what it printed. It must succeed, but for `check=False`."""
        done = self.run_compose(*arguments)
        assert done.returncode == 0 or not check, f"{arguments}: {done.stderr}"
        return done.stdout

    def roundhouse(self, *arguments: str) -> str:
        """The command line inside the controller's container."""
        return self.compose("exec", "-T", "controller", "roundhouse", *arguments, check=False)

    def restore_backup(self, desired_state: Path, backups: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """As docs/backup.md says: by `docker run`, for docker-compose 1.29 gives nobody the right to change owners."""
        mounts = (
            f"{self.name}_state:/var/lib/roundhouse",
            f"{self.name}_responses:/responses",
            f"{desired_state}:/desired-state",
            f"{backups}:/backups",
        )
        command = ["docker", "run", "--rm", *(word for mount in mounts for word in ("-v", mount))]
        command += ["--entrypoint", "roundhouse", self.settings["ROUNDHOUSE_IMAGE_CONTROLLER"], "restore"]
        command += ["--state", "/var/lib/roundhouse", "--desired", "/desired-state", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def engines(self) -> dict[str, str]:
        """Container name to id."""
        mine = [f"dev.roundhouse.instance={self.runtime_fixture.instance}", "dev.roundhouse.role=replica"]
        found = self.runtime_fixture.client.containers.list(filters={"label": mine})
        return {container.name or "": container.id or "" for container in found}

    def services(self) -> dict[str, Container]:
        """The project's containers that run, by service."""
        mine = f"com.docker.compose.project={self.name}"
        found = self.runtime_fixture.client.containers.list(filters={"label": mine})
        return {container.labels["com.docker.compose.service"]: container for container in found}

    def loaded(self) -> bool:
        """Whether all replicas of all models are ready, and the gateway listens. Until it does, Docker's proxy takes
        connections to its port, and resets them."""
        text = self.roundhouse("status", "--json")
        if not text.startswith("{") or not self._listens():
            return False
        models = json.loads(text)["models"]
        return bool(models) and all(
            model["state"] == "loaded" and model["loaded_replicas"] == model["wanted_replicas"] for model in models
        )

    def _listens(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10):
                return True
        except urllib.error.HTTPError:  # it answers; 503 is its opinion of the models
            return True
        except OSError:
            return False

    def down(self) -> None:
        """As docs/images.md says."""
        self.compose("stop")
        self.compose("run", "--rm", "--no-deps", "--entrypoint", "roundhouse", "controller", "down")
        self.compose("down", "--volumes")

    def remove(self) -> None:
        """End everything and keep nothing, whatever state it is in."""
        self.compose("stop", check=False)
        self.runtime_fixture.remove_containers()
        self.compose("down", "--volumes", check=False)


@pytest.fixture
def compose_project(folder: Path, clockwork: Path) -> Iterator[ComposeProject]:
    """A project whose desired state holds `MODELS`, not started yet."""
    require("docker", shutil.which("docker-compose") is not None, "docker-compose is not installed")
    runtime_fixture = open_docker_runtime()
    for name in ("models", "desired-state"):
        (folder / name).mkdir()
    shutil.copy(clockwork, folder / "models" / "clockwork.gguf")
    (folder / "desired-state" / "models.yaml").write_text(MODELS)
    project = ComposeProject(folder, runtime_fixture)
    try:
        yield project
    finally:
        project.remove()
        runtime_fixture.close()
