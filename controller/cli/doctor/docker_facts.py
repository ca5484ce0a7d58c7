"""Reads what `roundhouse doctor` needs to know of the Docker Engine."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal

import docker

from controller.cli.doctor.facts import DockerFacts
from controller.runtimes.base import RuntimeGoneError, RuntimeUnavailableError
from controller.runtimes.docker.client import Daemon
from controller.runtimes.docker.images import build_command, image_id, is_built_here

TIMEOUT_S: Final = 5.0
"""Seconds that one request to the daemon may take."""

_FRACTION: Final = re.compile(r"\.\d+")


def read_docker(
    runtime: Literal["process", "docker", "auto"], images: Collection[str], *, url: str | None = None, now: float
) -> DockerFacts:
    """Ask the daemon for its version, its support of GPUs, its clock, and which of `images` it lacks.

    Blocks. `url` None: DOCKER_HOST, else Docker's socket. `now` is Unix time in seconds. Where `runtime` is `process`,
    nothing is asked. Errors of the daemon are in the result; nothing is raised.
    """
    daemon = Daemon(url, timeout_s=TIMEOUT_S, threads=1)
    facts = DockerFacts(daemon.url, runtime)
    if runtime == "process":
        return replace(facts, problem="engines run as processes")
    try:
        facts = replace(facts, **daemon.run(lambda client: _describe_engine(client, now)))
    except RuntimeGoneError as error:
        return replace(facts, problem=str(error), is_absent=True)
    except RuntimeUnavailableError as error:
        return replace(facts, problem=str(error))
    try:
        return replace(facts, missing_images=daemon.run(lambda client: _find_missing(client, images)))
    except RuntimeUnavailableError as error:
        return replace(facts, unknown_images=str(error))
    finally:
        daemon.close()


def _describe_engine(client: docker.APIClient, now: float) -> dict[str, Any]:
    info = client.info()
    runtimes = info.get("Runtimes") or {}
    devices = info.get("DiscoveredDevices") or ()
    return {
        "version": str(info.get("ServerVersion", "")),
        "has_gpu_support": "nvidia" in runtimes
        or any(str(device.get("ID", "")).startswith("nvidia.com/gpu") for device in devices),
        "daemon_ahead_s": _seconds_ahead(str(info.get("SystemTime", "")), now),
    }


def _seconds_ahead(system_time: str, now: float) -> float | None:
    """Return by how many seconds the time that the daemon reported (RFC 3339) is later than `now`; None: it reported
    none."""
    # Python 3.11 accepts 3 or 6 digits of a second's fraction; Docker writes up to 9.
    try:
        return datetime.fromisoformat(_FRACTION.sub("", system_time)).timestamp() - now
    except ValueError:
        return None


def _find_missing(client: docker.APIClient, images: Collection[str]) -> tuple[tuple[str, str], ...]:
    return tuple((image, _advise(image)) for image in sorted(set(images)) if image_id(client, image) is None)


def _advise(image: str) -> str:
    return f"`{build_command(image)}`" if is_built_here(image) else f"`docker pull {image}`; a start pulls it, too"
