"""A controller in a container finds itself and the host side of its models."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

from controller.runtimes.docker.self_inspect import DockerSetupError, host_mount, own_container_ids

ID = "4f9f0c2d1e8b7a6d5c4b3a29181706f5e4d3c2b1a0918273645546372819a0bc"
MOUNTINFO = f"""\
611 600 0:45 / / ro,relatime - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/AAAA
620 611 254:0 /var/lib/docker/containers/{ID}/resolv.conf /etc/resolv.conf rw - ext4 /dev/vda rw
621 611 254:0 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/vda rw
622 611 254:0 /srv/models /models ro - ext4 /dev/vda rw
"""
ON_A_HOST = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"


def test_the_id_is_found_in_the_mounts_and_else_in_the_host_name() -> None:
    assert own_container_ids(MOUNTINFO, "controller") == [ID]
    assert own_container_ids(MOUNTINFO, ID[:12]) == [ID]
    assert own_container_ids(ON_A_HOST, "0123456789ab") == ["0123456789ab"]
    assert own_container_ids(ON_A_HOST, "my-machine") == []


def mount(kind: str, target: str, source: str = "/host", **more: str) -> dict[str, Any]:
    return {"Type": kind, "Destination": target, "Source": source, **more}


@pytest.mark.parametrize(
    ("mounts", "models", "found"),
    [
        ([mount("bind", "/models", "/srv/m")], "/models", {"Type": "bind", "Source": "/srv/m"}),
        ([mount("bind", "/srv", "/data")], "/srv/a/b", {"Type": "bind", "Source": "/data/a/b"}),
        (
            [mount("bind", "/", "/rootfs"), mount("bind", "/models", "/srv/m"), mount("bind", "/mod", "/x")],
            "/models/sub",
            {"Type": "bind", "Source": "/srv/m/sub"},
        ),
        (
            [mount("volume", "/models", "/var/lib/docker/volumes/v/_data", Name="v")],
            "/models",
            {"Type": "volume", "Source": "v"},
        ),
        (
            [mount("volume", "/data", "/var/lib/docker/volumes/v/_data", Name="v")],
            "/data/models",
            {"Type": "bind", "Source": "/var/lib/docker/volumes/v/_data/models"},
        ),
    ],
)
def test_the_nearest_mount_above_the_models_is_their_host_side(
    mounts: list[dict[str, Any]], models: str, found: dict[str, str]
) -> None:
    assert host_mount(mounts, PurePosixPath(models)) == found


@pytest.mark.parametrize(
    ("mounts", "words"),
    [
        ([], "is not a mount of the controller's container"),
        ([mount("bind", "/model"), mount("bind", "/models-old")], "is not a mount"),
        ([mount("tmpfs", "/models", "")], "a mount of type tmpfs"),
    ],
)
def test_models_that_engines_cannot_be_given_are_refused(mounts: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(DockerSetupError, match=words):
        host_mount(mounts, PurePosixPath("/models"))
