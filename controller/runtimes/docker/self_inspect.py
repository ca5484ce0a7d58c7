"""Finds out how the Docker daemon sees the controller's own container: host paths of its mounts, and its networks."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import docker
from docker.errors import NotFound

from controller.artifacts.model_roots import ModelRoots
from controller.runtimes.base import RuntimeUnavailableError

MOUNTINFO: Final = Path("/proc/self/mountinfo")
DOCKERENV: Final = Path("/.dockerenv")

# The daemon mounts a container's own /etc/hostname, /etc/hosts and /etc/resolv.conf from there.
_ID_IN_MOUNTS: Final = re.compile(r"/containers/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf)\b")
_ID_AS_HOSTNAME: Final = re.compile(r"[0-9a-f]{12}")


class DockerSetupError(RuntimeUnavailableError):
    """The installation is set up in a way that cannot work, and waiting does not help: engines could not be reached, or
    not be given the models. The message says what to do. It is a RuntimeUnavailableError."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """How the daemon sees the controller: in which container it runs, how it reaches engines, and from where engines
    get the models folders. `container_id` None: it runs in no container of this daemon."""

    container_id: str | None
    """None: the controller does not run in a container of this daemon."""
    publishes_ports: bool
    """Whether engines must publish a port on 127.0.0.1 so that the controller can reach them."""
    models: tuple[Mapping[str, Any], ...]
    """`Type` and `Source` of the mount that gives each models folder to engines, in the folders' order."""


def inspect_surroundings(client: docker.APIClient, roots: ModelRoots, network: str) -> Surroundings:
    """Ask the daemon how it sees this process. `roots` are the models folders, `network` is the name of the engines'
    network. Blocks.

    Raises DockerSetupError if engines could not be reached or not be given the models, and the errors of docker-py and
    requests.
    """
    own_container = _inspect_self(client)
    if own_container is None:
        _refuse_unknown_container(client)
        mounts = tuple({"Type": "bind", "Source": str(folder)} for folder in roots.resolve().folders)
        return Surroundings(None, publishes_ports=True, models=mounts)
    networks = own_container["NetworkSettings"]["Networks"] or {}
    is_on_host_network = "host" in networks
    if not is_on_host_network and network not in networks:
        raise DockerSetupError(
            f"the controller's container is not on the network {network} (it is on {', '.join(sorted(networks))}), so "
            "it could not reach the engines: add it there, or set ROUNDHOUSE_ENGINES_NETWORK"
        )
    own_mounts = own_container.get("Mounts") or []
    models = tuple(host_mount(own_mounts, PurePosixPath(folder)) for folder in roots.absolute().folders)
    return Surroundings(str(own_container["Id"]), publishes_ports=is_on_host_network, models=models)


def own_container_ids(mountinfo: str, hostname: str) -> list[str]:
    """Return what the id of this process's container may be, most likely first. Empty if nothing hints at a container.

    `mountinfo` is the content of /proc/self/mountinfo. A `hostname` of 12 hexadecimal digits counts as the beginning of
    an id. The daemon must be asked whether it knows the container.
    """
    container_ids = dict.fromkeys(_ID_IN_MOUNTS.findall(mountinfo))
    if _ID_AS_HOSTNAME.fullmatch(hostname) and not any(each.startswith(hostname) for each in container_ids):
        container_ids[hostname] = None
    return list(container_ids)


def host_mount(mounts: Sequence[Mapping[str, Any]], models: PurePosixPath) -> dict[str, Any]:
    """Return `Type` and `Source` of a mount that shows engines the same folder as `models`, a path in the controller's
    container.

    `mounts` are the `Mounts` of that container. Raises DockerSetupError if `models` is not on a mount that can be
    shared.
    """
    enclosing_mounts = [mount for mount in mounts if models.is_relative_to(str(mount["Destination"]))]
    if not enclosing_mounts:
        raise DockerSetupError(
            f"{models} is not a mount of the controller's container, so engines cannot be given it: mount the models "
            f"folder there (in compose: `volumes: [./models:{models}:ro]`)"
        )
    mount = max(enclosing_mounts, key=lambda each: len(PurePosixPath(str(each["Destination"])).parts))
    subpath = models.relative_to(str(mount["Destination"]))
    kind = mount.get("Type")
    if kind == "volume" and subpath == PurePosixPath() and mount.get("Name"):
        return {"Type": "volume", "Source": str(mount["Name"])}
    if kind in {"bind", "volume"} and mount.get("Source"):
        return {"Type": "bind", "Source": str(PurePosixPath(str(mount["Source"])) / subpath)}
    raise DockerSetupError(f"{models} is a mount of type {kind}, which engines cannot share: use a folder or a volume")


def _inspect_self(client: docker.APIClient) -> dict[str, Any] | None:
    mounts = MOUNTINFO.read_text() if MOUNTINFO.exists() else ""
    for container_id in own_container_ids(mounts, socket.gethostname()):
        try:
            container: dict[str, Any] = client.inspect_container(container_id)
        except NotFound:
            continue
        return container
    return None


def _refuse_unknown_container(client: docker.APIClient) -> None:
    # A daemon in the same container or machine as the controller sees the same files, so nothing needs translation.
    root = str(client.info().get("DockerRootDir") or "")
    if DOCKERENV.exists() and not (root and Path(root).is_dir()):
        raise DockerSetupError(
            "the controller runs in a container that the Docker daemon does not know, so it cannot find where its "
            "models are on the host: give it the socket of the daemon that runs it"
        )
