"""Images of engines, as blocking functions of a client."""

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
    """Id of the image that a reference names now; None when there is none."""
    details = _inspect(client, image)
    return None if details is None else str(details["Id"])


def image_environment(client: docker.APIClient, image: str) -> tuple[str, ...] | None:
    """Variables that an image sets, as `KEY=value`; None when it cannot be run without pulling it."""
    details = _inspect(client, image)
    return None if details is None else tuple((details.get("Config") or {}).get("Env") or ())


def _inspect(client: docker.APIClient, image: str) -> Mapping[str, Any] | None:
    try:
        details: Mapping[str, Any] = client.inspect_image(image)  # type: ignore[no-untyped-call]
    except NotFound:
        return None
    return details


def is_built_here(image: str) -> bool:
    """Whether an image is one of ours, which no registry serves: whoever holds that name there is a stranger."""
    return image.startswith(BUILT_HERE)


def build_command(image: str) -> str:
    """What builds that image of ours."""
    engine = re.match(rf"{BUILT_HERE}worker-(exllamav3|vllm)(?![\w-])", image)
    return "make images" if engine is None else f"make images ENGINES={engine[1]}"


def pull_image(client: docker.APIClient, image: str, stop_event: threading.Event) -> None:
    """Fetch an image until it is there or `stop_event` is set. Raises StartError."""
    repository, tag = parse_repository_tag(image)
    try:
        for progress in client.pull(repository, tag=tag or "latest", stream=True, decode=True):
            if stop_event.is_set():
                return
            if "error" in progress:
                raise pull_error(str(progress["error"]), image)
    except APIError as error:
        raise pull_error(refused_error_of(error).message, image) from error
    except DockerException as error:  # of the credentials' store
        raise pull_error(str(error), image) from error
