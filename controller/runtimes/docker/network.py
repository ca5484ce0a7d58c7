"""Creates and removes the Docker networks that engines join. Blocking."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import docker
from docker.errors import APIError

from controller.runtimes.base import StartError
from controller.runtimes.docker.client import refused_error_of
from controller.runtimes.docker.container_spec import HostContext
from controller.runtimes.docker.error_messages import start_error
from controller.runtimes.docker.labels import NETWORK_ROLE, is_own, own_labels

log = logging.getLogger(__name__)


def ensure_network(client: docker.APIClient, name: str, instance: str, *, publishes_ports: bool) -> None:
    """Create the network that engines join, unless it exists. Blocks. Call it before each start, one call at a time.

    A network created here lets nothing out: without address translation, answers to an engine's packets find no way
    back. It is not an internal network, since Docker publishes no ports on those. Of several networks of this name, the
    oldest is used, and others that this instance created are removed.

    Raises StartError if the network is missing and compose should have created it (`publishes_ports` is False), if the
    daemon refuses to create it, or if it exists and is internal although ports must be published. Raises the other
    errors of docker-py and requests as they are.
    """
    networks = _find_networks(client, name)
    if not networks:
        if not publishes_ports:
            raise StartError(f"Docker network {name} is missing: `docker compose up` creates it")
        _create_network(client, name, instance, {"com.docker.network.bridge.enable_ip_masquerade": "false"})
        networks = _find_networks(client, name)
    # Two controllers at once may create two networks of one name, although the daemon was told to check, and then the
    # daemon starts nothing on either (seen on 20.10). All controllers keep the oldest.
    for extra_network in networks[1:]:
        if is_own(extra_network.get("Labels"), instance, NETWORK_ROLE):
            with suppress(APIError):  # already removed, or in use by now
                client.remove_network(str(extra_network["Id"]))
    if publishes_ports and networks and networks[0].get("Internal"):
        raise StartError(
            f"Docker network {name} is internal, and on such a network Docker publishes no ports: remove it, or set "
            "ROUNDHOUSE_ENGINES_NETWORK to another name"
        )


def ensure_networks(client: docker.APIClient, host: HostContext, *, has_egress: bool) -> str | None:
    """Create the networks that a container joins, unless they exist, and return the name of the second one, by which it
    reaches the world; None: it has none, without `has_egress`. Blocks. Call it before each start, one call at a time.

    Raises as `ensure_network` does.
    """
    ensure_network(client, host.network, host.instance, publishes_ports=host.publishes_ports)
    if not has_egress:
        return None
    name = egress_network(host.instance)
    if not _find_networks(client, name):
        # Its members, which are not trusted, cannot reach each other.
        _create_network(client, name, host.instance, {"com.docker.network.bridge.enable_icc": "false"})
    return name


def egress_network(instance: str) -> str:
    """Return the name of the network that containers join, besides that of engines, if they may reach the world.

    It begins with a digit because a container on several networks has the default route of the one whose name sorts
    first (Docker before 28 knows no other order), and the network of engines leads nowhere.
    """
    return f"0-rh-{instance}-egress"


def remove_networks(client: docker.APIClient, name: str, instance: str) -> None:
    """Remove the network of engines and that of `egress_network`, each as `remove_network` does."""
    for each in (name, egress_network(instance)):
        remove_network(client, each, instance)


def remove_network(client: docker.APIClient, name: str, instance: str) -> None:
    """Remove a network of engines if this instance created it and no container is on it. Blocks.

    Otherwise do nothing. Raises nothing if the daemon refuses, and the errors of requests if it does not answer.
    """
    try:
        for network in _find_networks(client, name):
            details: Mapping[str, Any] = client.inspect_network(network["Id"])
            if is_own(details.get("Labels"), instance, NETWORK_ROLE) and not details.get("Containers"):
                client.remove_network(str(network["Id"]))
    except APIError as error:
        log.debug("network %s stays: %s", name, error)


def _find_networks(client: docker.APIClient, name: str) -> list[Mapping[str, Any]]:
    """Return the networks of exactly this name, oldest first. The daemon's own filter also matches parts of names."""
    networks: list[Mapping[str, Any]] = client.networks(names=[name])
    return sorted((each for each in networks if each["Name"] == name), key=lambda each: (each["Created"], each["Id"]))


def _create_network(client: docker.APIClient, name: str, instance: str, options: Mapping[str, str]) -> None:
    labels = own_labels(instance, NETWORK_ROLE)
    try:
        client.create_network(name, driver="bridge", options=dict(options), labels=labels, check_duplicate=True)
    except APIError as error:
        if error.status_code != 409:  # another controller was first
            raise start_error(refused_error_of(error).message, None) from error
