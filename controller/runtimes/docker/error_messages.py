"""Translates the Docker daemon's error messages into plain words. Pure.

It knows the messages of Docker Engine 20.10 to 29 (moby `daemon/`), of runc and of NVIDIA's container toolkit (on
requirements: libnvidia-container `src/cli/dsl.c`, nvidia-container-toolkit `internal/requirements`).
"""

from __future__ import annotations

import re
from typing import Final

from controller.runtimes.base import StartError

NO_NVIDIA: Final = "this host's Docker has no NVIDIA runtime: install the NVIDIA Container Toolkit"

_NO_GPU_SUPPORT: Final = re.compile(r"could not select device driver|no known GPU vendor found", re.IGNORECASE)

_START: Final[tuple[tuple[str, str, bool], ...]] = (
    (
        r"nvidia-container-cli: device error: (?P<what>[^\s:]+): unknown device|unresolvable CDI devices (?P<cdi>\S+)",
        "this host has no GPU {what}",
        False,
    ),
    (
        r"nvidia-container-cli: initialization error|libnvidia-ml\.so",
        "the NVIDIA driver of this host is not loaded",
        False,
    ),
    (
        r"unsatisfied condition: (?P<what>arch ?[<>=!]+ ?[\d.]+)",
        "this host's GPU is not one that image {image} is made for, which asks for {what}",
        True,
    ),
    (
        # Releases of the toolkit differ in which condition they name. In all of them, the driver is older than the
        # first condition requires.
        r"unsatisfied condition: (?P<what>\w+ ?[<>=!]+ ?[\w.]+)",
        "this host's NVIDIA driver is too old for image {image}, which asks for {what}: update the driver, or take an "
        "image of an earlier CUDA (docs/images.md)",
        True,
    ),
    (r"docker-init.*not found", "this host's Docker lacks its docker-init program", False),
    (
        r"bind source path does not exist: (?P<what>\S+)",
        "the models folder {what} does not exist where the Docker daemon runs",
        False,
    ),
    (r"network (?P<what>\S+) not found|no such network", "Docker network {what} is missing", False),
    (r"port is already allocated|address already in use", "port taken", False),
    (r"no space left on device", "the disk of the Docker daemon is full", False),
    (r"minimum memory limit", "memory_mib is too small for Docker", True),
    (r"cannot allocate memory", "out of memory: the host has none left to start it", False),
    (r"invalid reference format", "image {image} is not a valid image reference", True),
    (r"no such image", "image {image} is missing", False),
)

_PULL: Final[tuple[tuple[str, str], ...]] = (
    (r"invalid reference format", "is not a valid image reference"),
    (r"toomanyrequests|rate limit", "was not pulled: its registry allows no more pulls for now"),
    (r"unauthorized|authentication required|denied", "is not in its registry, or needs a `docker login`"),
    (r"manifest unknown|not found|does not exist|no such image", "is not in its registry"),
    (r"no space left on device", "was not pulled: the disk of the Docker daemon is full"),
    (
        r"no such host|dial tcp|connection refused|i/o timeout|(timeout|deadline) exceeded|network is unreachable",
        "was not pulled: its registry cannot be reached",
    ),
    (r"no matching manifest", "was not pulled: it is not made for this machine's kind of processor"),
)


def no_gpu_support(message: str) -> bool:
    """Return whether the daemon's message about a refusal means that this Docker Engine cannot give GPUs to any
    container."""
    return _NO_GPU_SUPPORT.search(message) is not None


def start_error(message: str, image: str | None) -> StartError:
    """Build (not raise) the error of a refused create or start: plain words first, then the daemon's own message. For a
    message that is not known here, the daemon's alone.

    The error is permanent if the message says that this image, definition or Docker Engine can never work here.
    """
    if no_gpu_support(message):
        return StartError(f"{NO_NVIDIA} (Docker: {message})", permanent=True, plain=NO_NVIDIA)
    for pattern, template, permanent in _START:
        if match := re.search(pattern, message, re.IGNORECASE):
            groups = match.groupdict()
            subject = groups.get("what") or groups.get("cdi") or ""
            plain_message = template.format(image=image, what=subject.rstrip(",;.:"))
            return StartError(f"{plain_message} (Docker: {message})", permanent=permanent, plain=plain_message)
    return StartError(f"Docker did not start it: {message}", plain="Docker did not start it")


def pull_error(message: str, image: str) -> StartError:
    """Build (not raise) the error of a failed pull: plain words first, then the registry's own message. It is never
    permanent."""
    for pattern, explanation in _PULL:
        if re.search(pattern, message, re.IGNORECASE):
            plain = f"image {image} {explanation}"
            return StartError(f"{plain} ({message})", plain=plain)
    return StartError(f"image {image} was not pulled: {message}", plain=f"image {image} was not pulled")
