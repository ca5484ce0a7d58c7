"""A controller that is itself a container of the daemon: how it finds its models' host side, and its engines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import docker.types
import pytest

from tests.support import contained_controller
from tests.support.docker_engine import TEST_LABEL, Yard, open_yard, shell_image
from tests.support.docker_images import ensure_images

pytestmark = pytest.mark.docker

SOCKET = docker.types.Mount("/var/run/docker.sock", "/var/run/docker.sock", type="bind")


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    yard = open_yard(tmp_path)
    # As compose makes it: nothing goes out.
    yard.client.networks.create(yard.network, internal=True)
    yield yard
    await yard.close()


def controller(yard: Yard, *mounts: docker.types.Mount, models: str = "/models", network: str | None = None) -> Any:
    """Run a controller's container, restricted as in compose.yaml; what it told."""
    images = ensure_images()
    script = str(Path(contained_controller.__file__))
    told = {
        "instance": yard.instance,
        "models": models,
        "network": yard.network,
        "images": images,
        "shell": shell_image(),
    }
    output = yard.client.containers.run(
        images["controller"],
        ["/script.py", json.dumps(told)],
        entrypoint="/opt/roundhouse/bin/python",
        mounts=[SOCKET, docker.types.Mount("/script.py", script, type="bind", read_only=True), *mounts],
        network=network or yard.network,
        labels={TEST_LABEL: yard.instance},
        read_only=True,
        cap_drop=["ALL"],
        cap_add=["DAC_OVERRIDE"],
        security_opt=["no-new-privileges"],
        tmpfs={"/tmp": "", "/state": ""},
        remove=True,
    )
    return json.loads(output.splitlines()[-1])


def check_served(told: dict[str, Any]) -> None:
    assert told["preflights"] == [None, None]
    assert told["base_url"] == f"http://{told['name']}:8000"
    assert told["text"] == "from inside"
    assert "GGUF of a test" in told["read"]
    assert "Read-only file system" in told["read"]


def bind(target: str, source: Path) -> docker.types.Mount:
    return docker.types.Mount(target, str(source), type="bind", read_only=True)


async def test_engines_are_reached_by_name_and_read_the_same_folder(yard: Yard) -> None:
    told = controller(yard, bind("/models", yard.models))
    check_served(told)
    assert told["gpus"] == [] or told["gpus"][0]["total_mib"] > 0
    assert yard.mine() == [], "neither engines nor a probe are left"
    assert yard.client.networks.list(names=[yard.network]), "the network is not the controller's"


async def test_the_models_may_be_a_folder_below_a_mount(yard: Yard) -> None:
    check_served(controller(yard, bind("/srv", yard.models.parent), models="/srv/models"))


async def test_the_models_may_be_a_volume(yard: Yard) -> None:
    labels = {"dev.roundhouse.instance": yard.instance}
    volume = yard.client.volumes.create(f"rhtest-{yard.instance}", labels=labels)
    folder = Path(volume.attrs["Mountpoint"])
    (folder / "m.gguf").write_bytes((yard.models / "m.gguf").read_bytes())
    check_served(controller(yard, docker.types.Mount("/models", volume.name, type="volume", read_only=True)))


async def test_models_that_are_no_mount_are_refused(yard: Yard) -> None:
    told = controller(yard)
    assert told["refused"].startswith("/models is not a mount of the controller's container")


async def test_a_controller_that_is_not_on_the_engines_network_is_refused(yard: Yard) -> None:
    told = controller(yard, bind("/models", yard.models), network="bridge")
    assert f"is not on the network {yard.network} (it is on bridge)" in told["refused"]
