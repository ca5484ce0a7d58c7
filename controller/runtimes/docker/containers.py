"""Finds, creates, starts and removes containers. Blocking. Only containers of this instance are ever changed.

Errors of the daemon that a function does not name are raised as docker-py raises them (APIError, requests' errors).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

import docker
from docker.errors import APIError, NotFound

from controller.runtimes.base import StartError
from controller.runtimes.docker.client import refused_error_of
from controller.runtimes.docker.container_spec import CACHE, cache_folder_archive
from controller.runtimes.docker.error_messages import start_error
from controller.runtimes.docker.inspect import phase_of
from controller.runtimes.docker.labels import REPLICA_ROLE, UnreadableLabelsError, is_own, own_filter, read_labels
from controller.state import Phase

Inspected = Mapping[str, Any]

log = logging.getLogger(__name__)


def labels_of(container: Inspected) -> Mapping[str, str]:
    """Return the labels of an inspected container; empty if it has none."""
    return (container.get("Config") or {}).get("Labels") or {}


def own_containers(client: docker.APIClient, instance: str) -> list[Inspected]:
    """Return the inspection of every container of this instance, in any state, including helpers (the GPU probe is
    one). Containers that are removed meanwhile are left out. Blocks. Raises the errors of docker-py and requests."""
    containers: list[Inspected] = []
    for row in client.containers(all=True, filters={"label": own_filter(instance)}):
        with suppress(NotFound):  # removed since it was listed
            containers.append(client.inspect_container(row["Id"]))
    return containers


def find_replica(client: docker.APIClient, instance: str, name: str) -> Inspected | None:
    """Return the inspection of the replica's container of this name (or id). None if there is none, or if the container
    is no replica of this instance or has labels that cannot be read, of which a warning is logged. Blocks. Raises
    the errors of docker-py and requests."""
    container = inspect_container(client, name)
    if container is None:
        return None
    if not is_own_replica(container, instance):
        log.warning("container %s is not of this Roundhouse (%s): it is left alone", name, instance)
        return None
    return container


def inspect_container(client: docker.APIClient, name: str) -> Inspected | None:
    """Return the inspection of a container, of any instance, by its name or id (also the beginning of an id); None if
    there is none. Blocks. Raises the errors of docker-py and requests."""
    try:
        container: Inspected = client.inspect_container(name)
    except NotFound:
        return None
    return container


def is_own_replica(container: Inspected, instance: str) -> bool:
    """Return whether a container is a replica of this instance, with labels that this version can read."""
    labels = labels_of(container)
    if not is_own(labels, instance, REPLICA_ROLE):
        return False
    try:
        read_labels(labels)
    except UnreadableLabelsError:
        return False
    return True


def create_container(client: docker.APIClient, name: str, config: Mapping[str, Any]) -> str:
    """Create a container, without starting it, and return its id. Blocks. Raises the errors of docker-py and requests:
    APIError with status 409 if the name is taken."""
    response: Mapping[str, Any] = client.create_container_from_config(dict(config), name)  # type: ignore[no-untyped-call]
    return str(response["Id"])


def start_replica(
    client: docker.APIClient,
    instance: str,
    name: str,
    config: Mapping[str, Any],
    folders: Sequence[PurePosixPath] = (),
    further_network: str | None = None,
) -> None:
    """Create and start a replica's container. One that was already created is only started; one that was already
    started is left as it is. Blocks.

    `config` is that of `container_config`, `folders` are `Launch.folders`. `further_network` names a network that the
    container joins besides that of `config`; None: none. Raises StartError if the daemon refuses to create or start it,
    or if the name is taken by a container that is no replica of this instance. A container whose start the daemon
    refused is removed again. Raises the other errors of docker-py and requests as they are.
    """
    container = _create_or_find(client, instance, name, config)
    if phase_of(container) is not Phase.CREATED:
        return
    container_id = str(container["Id"])
    uid, _, gid = str(container["Config"]["User"]).partition(":")
    try:
        if any(mount["Target"] == str(CACHE) for mount in config["HostConfig"]["Mounts"]):
            _make_cache_folders(client, container_id, cache_folder_archive(int(uid), int(gid or uid), folders))
        if further_network is not None and further_network not in container["NetworkSettings"]["Networks"]:
            client.connect_container_to_network(container_id, further_network)
        client.start(container_id)
    except APIError as error:
        refused_error = refused_error_of(error)
        with suppress(APIError):
            client.remove_container(container_id, v=True)
        raise start_error(refused_error.message, str(config["Image"])) from error


def _make_cache_folders(client: docker.APIClient, container_id: str, archive: bytes) -> None:
    """Create the folders of `archive` in the cache volume, which all containers of the instance share."""
    try:
        client.put_archive(container_id, str(CACHE), archive)
    except APIError as error:
        if "file exists" not in str(error.explanation):
            raise
        # Another start created the folder between the daemon's check and its mkdir (seen on 20.10). It exists now.
        client.put_archive(container_id, str(CACHE), archive)


def _create_or_find(client: docker.APIClient, instance: str, name: str, config: Mapping[str, Any]) -> Inspected:
    try:
        container_id = create_container(client, name, config)
    except APIError as error:
        if error.status_code != 409:
            raise start_error(refused_error_of(error).message, str(config["Image"])) from error
        return _find_by_name(client, instance, name, refused_error_of(error).message)
    container: Inspected = client.inspect_container(container_id)
    return container


def _find_by_name(client: docker.APIClient, instance: str, name: str, message: str) -> Inspected:
    container = inspect_container(client, name)
    if container is None:
        plain = f"the container {name} is just being removed"
        raise StartError(f"{plain} (Docker: {message})", plain=plain)
    if not is_own_replica(container, instance):
        raise StartError(
            f"the name {name} is taken by a container that is not of this Roundhouse: rename or remove that container"
        )
    return container


def remove_container(client: docker.APIClient, container_id: str) -> None:
    """Remove a container that has ended or was never started, with its anonymous volumes and its log. Does nothing if
    the container is gone or is being removed already. Blocks. Raises the errors of docker-py and requests: APIError
    with status 409 if it still runs.

    Does not check whose container it is: the caller must have found it by `find_replica` or `own_containers`.
    """
    try:
        client.remove_container(container_id, v=True)
    except APIError as error:
        if error.status_code == 404 or (error.status_code == 409 and "in progress" in str(error.explanation)):
            return
        raise
