"""A controller that is itself a container of the daemon: how it finds its models' host side, and its engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import docker.types
import pytest

from tests.support import contained_controller
from tests.support.docker_engine import TEST_LABEL, DockerEngines, images, shell_image

pytestmark = [pytest.mark.engines, pytest.mark.docker]

SOCKET = docker.types.Mount("/var/run/docker.sock", "/var/run/docker.sock", type="bind")


@pytest.fixture
def containers(containers_alone: DockerEngines) -> DockerEngines:
    """With a network as compose makes it: nothing goes out."""
    containers_alone.client.networks.create(containers_alone.network, internal=True)
    return containers_alone


def controller(
    containers: DockerEngines,
    *mounts: docker.types.Mount,
    models: str = "/models",
    model_path: str = "m.gguf",
    network: str | None = None,
    serve: bool = False,
) -> Any:
    """Run a controller's container, restricted as in compose.yaml; what it reports."""
    script = str(Path(contained_controller.__file__))
    reported = {"instance": containers.instance, "models": models, "model_path": model_path, "serve": serve}
    reported |= {"network": containers.network, "images": images(), "shell": shell_image()}
    output = containers.client.containers.run(
        images()["controller"],
        ["/script.py", json.dumps(reported)],
        entrypoint="/opt/roundhouse/bin/python",
        mounts=[SOCKET, docker.types.Mount("/script.py", script, type="bind", read_only=True), *mounts],
        network=network or containers.network,
        labels={TEST_LABEL: containers.instance},
        read_only=True,
        cap_drop=["ALL"],
        cap_add=["DAC_OVERRIDE"],
        security_opt=["no-new-privileges"],
        tmpfs={"/tmp": "", "/state": ""},
        remove=True,
    )
    return json.loads(output.splitlines()[-1])


def check_read(reported: dict[str, Any]) -> None:
    assert set(reported["preflights"]) == {None}
    assert "GGUF of a test" in reported["read"]
    assert "Read-only file system" in reported["read"]


def bind(target: str, source: Path) -> docker.types.Mount:
    return docker.types.Mount(target, str(source), type="bind", read_only=True)


async def test_engines_are_reached_by_name_and_read_the_same_folder(containers: DockerEngines) -> None:
    reported = controller(containers, bind("/models", containers.models), serve=True)
    check_read(reported)
    assert reported["base_url"] == f"http://{reported['name']}:8000"
    assert reported["text"] == "from inside"
    assert reported["gpus"] == [] or reported["gpus"][0]["total_mib"] > 0
    assert containers.left() == [], "neither engines nor a probe are left"
    assert containers.client.networks.list(names=[containers.network]), "the network is not the controller's"


async def test_the_models_may_be_a_folder_below_a_mount(containers: DockerEngines) -> None:
    check_read(controller(containers, bind("/srv", containers.models.parent), models="/srv/models"))


async def test_the_models_may_be_a_volume(containers: DockerEngines) -> None:
    labels = {"dev.roundhouse.instance": containers.instance}
    volume = containers.client.volumes.create(f"rhtest-{containers.instance}", labels=labels)
    folder = Path(volume.attrs["Mountpoint"])
    (folder / "m.gguf").write_bytes((containers.models / "m.gguf").read_bytes())
    check_read(controller(containers, docker.types.Mount("/models", volume.name, type="volume", read_only=True)))


async def test_the_models_may_lie_in_several_mounts(containers: DockerEngines) -> None:
    first = containers.root / "first"
    first.mkdir(mode=0o755)
    (first / "link.gguf").symlink_to("/data/m.gguf")
    mounts = bind("/models", first), bind("/data", containers.models)
    for model_path in ("m.gguf", "/data/m.gguf", "link.gguf"):
        check_read(controller(containers, *mounts, models="/models,/data", model_path=model_path))
    reported = controller(containers, mounts[0], models="/models,/data")
    assert reported["refused"].startswith("/data is not a mount of the controller's container")


async def test_models_that_are_no_mount_are_refused(containers: DockerEngines) -> None:
    reported = controller(containers)
    assert reported["refused"].startswith("/models is not a mount of the controller's container")


async def test_a_controller_that_is_not_on_the_engines_network_is_refused(containers: DockerEngines) -> None:
    reported = controller(containers, bind("/models", containers.models), network="bridge")
    assert f"is not on the network {containers.network} (it is on bridge)" in reported["refused"]
