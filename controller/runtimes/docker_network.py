"""The network that engines join, as blocking functions of a client."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import docker
from docker.errors import APIError, NotFound

from controller.runtimes.base import StartError
from controller.runtimes.docker_client import refusal
from controller.runtimes.docker_labels import NETWORK_ROLE, is_own, own_labels
from controller.runtimes.docker_words import start_error

log = logging.getLogger(__name__)


def ensure_network(client: docker.APIClient, name: str, instance: str, *, published: bool) -> None:
    """The network that engines join. Raises StartError where it is not there and not ours to create.

    Ours lets nothing out: no address translation, so an engine's packets find no way back from elsewhere. It is not
    an internal network, for on those the daemon publishes no ports.
    """
    try:
        network: Mapping[str, Any] = client.inspect_network(name)
    except NotFound:
        if not published:
            raise StartError(f"Docker network {name} is missing: `docker compose up` creates it") from None
        _create_network(client, name, instance)
        return
    if published and network.get("Internal"):
        raise StartError(
            f"Docker network {name} is internal, and on such a network Docker publishes no ports: remove it, or set "
            "ROUNDHOUSE_ENGINES_NETWORK to another name"
        )


def _create_network(client: docker.APIClient, name: str, instance: str) -> None:
    options = {"com.docker.network.bridge.enable_ip_masquerade": "false"}
    labels = own_labels(instance, NETWORK_ROLE)
    try:
        client.create_network(name, driver="bridge", options=options, labels=labels, check_duplicate=True)
    except APIError as error:
        if error.status_code != 409:  # another start was first
            raise start_error(refusal(error).message, None) from error


def remove_network(client: docker.APIClient, name: str, instance: str) -> None:
    """Remove the network of engines if this instance made it and nobody uses it."""
    try:
        network: Mapping[str, Any] = client.inspect_network(name)
        if is_own(network.get("Labels"), instance, NETWORK_ROLE) and not network.get("Containers"):
            client.remove_network(str(network["Id"]))
    except APIError as error:
        log.debug("network %s stays: %s", name, error)
