"""What an older run, or somebody else, left on a Docker host."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.models.containers import Container

from contract.status import ModelState
from tests.conftest import open_docker_runtime
from tests.support.roundhouse_stack import RoundhouseStack, replica_names
from tests.support.runtime_fixtures import DockerRuntimeFixture

pytestmark = [pytest.mark.engines, pytest.mark.docker]

LLAMA = {
    "backend": "llama_server",
    "model_path": "clockwork.gguf",
    "llama_server_n_ctx": 4096,
    "llama_server_threads": 1,
}


@pytest.fixture
def docker_runtime() -> Iterator[DockerRuntimeFixture]:
    runtime_fixture = open_docker_runtime()
    try:
        yield runtime_fixture
    finally:
        runtime_fixture.close()


@pytest.fixture
async def docker_stack(
    docker_runtime: DockerRuntimeFixture, folder: Path, clockwork: Path
) -> AsyncIterator[RoundhouseStack]:
    made = RoundhouseStack(folder, "docker", docker_runtime.env())
    shutil.copy(clockwork, made.models / "clockwork.gguf")
    yield made
    await made.close()
    assert docker_runtime.left(made) == []


@pytest.fixture
def foreign(docker_runtime: DockerRuntimeFixture) -> Iterator[list[Container]]:
    """Containers that are none of ours: another instance's, and one that only looks like ours by name."""
    image = docker_runtime.env()["ROUNDHOUSE_IMAGE_WORKER"]
    other = {"dev.roundhouse.managed-by": "roundhouse", "dev.roundhouse.instance": f"x{secrets.token_hex(4)}"}
    common: dict[str, Any] = {"entrypoint": ["sleep", "600"], "detach": True}
    made = [
        docker_runtime.client.containers.run(image, labels=other, **common),
        docker_runtime.client.containers.run(image, name=f"rh-{docker_runtime.instance}-one-9-00000000-1", **common),
    ]
    try:
        yield made
    finally:
        for container in made:
            container.remove(force=True)


async def test_ours_are_adopted_or_cleared_away_and_foreign_ones_untouched(
    docker_stack: RoundhouseStack, docker_runtime: DockerRuntimeFixture, foreign: list[Container]
) -> None:
    docker_stack.declare({"one": LLAMA, "two": LLAMA})
    await docker_stack.open()
    models = await docker_stack.loaded("one", "two")
    [kept], [lost] = replica_names(models["one"]), replica_names(models["two"])
    identity = docker_runtime.identity(docker_stack, kept)
    docker_stack.kill("controller")
    # While nobody looks: one engine ends, and a third one was created and never started.
    docker_runtime.kill(docker_stack, lost)
    half = _half_created(docker_runtime, kept)

    docker_stack.start("controller")
    models = await docker_stack.loaded("one", "two")
    assert replica_names(models["one"]) == {kept}
    assert docker_runtime.identity(docker_stack, kept) == identity
    assert lost not in replica_names(models["two"])
    assert set(docker_runtime.left(docker_stack)) == replica_names(models["one"]) | replica_names(models["two"])
    assert half not in docker_runtime.left(docker_stack)
    for container in foreign:
        container.reload()
        assert container.status == "running"
        assert container.attrs["RestartCount"] == 0


def _half_created(runtime_fixture: DockerRuntimeFixture, like: str) -> str:
    """A container with our labels that its creator died over: created, never started."""
    model = runtime_fixture.client.containers.get(like)
    assert model.image is not None
    labels = dict(model.labels) | {"dev.roundhouse.index": "1", "dev.roundhouse.attempt": "7"}
    name = f"rh-{runtime_fixture.instance}-one-1-half-7"
    runtime_fixture.client.containers.create(model.image, name=name, labels=labels)
    return name


async def test_engines_are_shut_in_and_what_cannot_run_says_why(
    docker_stack: RoundhouseStack, docker_runtime: DockerRuntimeFixture
) -> None:
    docker_stack.declare(
        {
            "one": LLAMA | {"memory_mib": 2048},
            "ours": {"backend": "stub", "image": "roundhouse/no-such-image:latest"},
            "theirs": {"backend": "stub", "image": "127.0.0.1:9/no-such-image:latest"},
            "big": {"backend": "stub", "memory_mib": 16},
        }
    )
    await docker_stack.open()
    [replica] = replica_names((await docker_stack.loaded("one"))["one"])
    container = docker_runtime.client.containers.get(replica)
    host = container.attrs["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges" in str(host["SecurityOpt"])
    assert host["RestartPolicy"]["Name"] in ("", "no")
    assert host["Memory"] == 2048 * 2**20
    assert host["PidsLimit"] > 0
    assert host["LogConfig"]["Type"] == "json-file"
    assert int(host["LogConfig"]["Config"]["max-file"]) >= 1
    assert [mount["RW"] for mount in container.attrs["Mounts"] if mount["Destination"] == "/models"] == [False]

    errors: dict[str, str] = {}
    for name in ("ours", "theirs", "big"):
        failed = await docker_stack.model_where(name, lambda model: model.state is ModelState.FAILED, "failed")
        errors[name] = failed.last_error or ""
    assert errors["ours"] == "image roundhouse/no-such-image:latest is missing: `make images` builds it"
    assert "missing and cannot be pulled" in errors["theirs"]
    assert "out of memory" in errors["big"]
    log = docker_stack.log("controller")
    assert "pull theirs" in log
    assert "pull ours" not in log, "one of ours is never pulled"
