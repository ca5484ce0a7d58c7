"""Inspects and pulls the images of engines. Blocking.

Errors of the daemon that a function does not name are raised as docker-py raises them (APIError, requests' errors).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.utils import parse_repository_tag

from controller.runtimes.docker.client import refused_error_of
from controller.runtimes.docker.error_messages import pull_error

BUILT_HERE = "roundhouse/"
"""Prefix of the images that `make images` builds."""


def image_id(client: docker.APIClient, image: str) -> str | None:
    """Return the id (`sha256:...`) of the local image that a reference names now; None if there is none. Asks no
    registry. Blocks. Raises the errors of docker-py and requests."""
    details = _inspect(client, image)
    return None if details is None else str(details["Id"])


def image_environment(client: docker.APIClient, image: str) -> tuple[str, ...] | None:
    """Return the variables that a local image sets, as `KEY=value`; empty: it sets none. None: there is no such image
    here, so that it must be pulled or built first. Asks no registry. Blocks. Raises the errors of docker-py and
    requests."""
    details = _inspect(client, image)
    return None if details is None else tuple((details.get("Config") or {}).get("Env") or ())


def _inspect(client: docker.APIClient, image: str) -> Mapping[str, Any] | None:
    try:
        details: Mapping[str, Any] = client.inspect_image(image)  # type: ignore[no-untyped-call]
    except NotFound:
        return None
    return details


def is_built_here(image: str) -> bool:
    """Return whether an image is one that `make images` builds. It must not be pulled: no registry has it, and one of
    that name there would be a stranger's.
    """
    return image.startswith(BUILT_HERE)


def build_command(image: str) -> str:
    """Return the `make` command that builds an image for which `is_built_here` is true, which is not checked."""
    engine = re.match(rf"{BUILT_HERE}worker-(exllamav3|vllm)(?![\w-])", image)
    return "make images" if engine is None else f"make images ENGINES={engine[1]}"


def pull_image(client: docker.APIClient, image: str, stop_event: threading.Event) -> None:
    """Pull an image, by default its tag `latest`. Blocks, and returns when the image is there, however long that takes,
    or early and without an error at the first progress message after `stop_event` was set.

    Raises StartError if the daemon or the registry refuses, also in the middle of the pull; errors of requests if the
    daemon does not answer.
    """
    repository, tag = parse_repository_tag(image)
    try:
        for progress in client.pull(repository, tag=tag or "latest", stream=True, decode=True):
            if stop_event.is_set():
                return
            if "error" in progress:
                raise pull_error(str(progress["error"]), image)
    except APIError as error:
        raise pull_error(refused_error_of(error).message, image) from error
    except DockerException as error:  # from the credentials store
        raise pull_error(str(error), image) from error
