"""Refuses images that set variables of the dynamic loader, for containers with GPUs. Pure.

NVIDIA's container toolkit runs its hooks on the host as root, with the container's environment and in the container's
root folder. Up to 1.17.7, an image with `LD_PRELOAD=/proc/self/cwd/its.so` could so run code there (CVE-2025-23266).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Final

_PREFIX: Final = "LD_"
_SEARCH_PATH: Final = "LD_LIBRARY_PATH"
"""Variable that the images of CUDA set, and so those of vLLM and llama.cpp. For a hook, its absolute paths are folders
of the host, which is harmless; paths that lead back into the container are refused."""
_INTO_CONTAINER: Final = ("/proc", "/dev")
"""Folders through which a path can lead into the container: /proc/self/cwd, and /dev/fd, a link to /proc."""


def find_loader_problem(image: str, image_env: Sequence[str], own_env: Mapping[str, str]) -> str | None:
    """Return why a container with GPUs must not be made of this image, and what to do; None if it may.

    `image_env` are the image's variables (`KEY=value`). Those that the definition sets itself (`own_env`) replace them,
    and are trusted.
    """
    variables = dict(each.partition("=")[::2] for each in image_env)
    for name, value in variables.items():
        if name in own_env or not name.startswith(_PREFIX) or not value:
            continue
        if name == _SEARCH_PATH and not _leads_into_container(value):
            continue
        return (
            f"image {image} sets {name}, which NVIDIA's hooks would follow on the host as root (CVE-2025-23266), so it"
            f" gets no GPUs: take another image, or set {name} in the definition's `env` (empty: none)"
        )
    return None


def _leads_into_container(search_path: str) -> bool:
    return any(_is_inside(folder) for folder in search_path.replace(";", ":").split(":"))


def _is_inside(folder: str) -> bool:
    """Return whether a folder of a search path may lead into the container. A relative or empty one does: it counts
    from the hook's current folder, which is the container's root.
    """
    if not folder.startswith("/"):
        return True
    plain = "/" + posixpath.normpath(folder).lstrip("/")
    return "$" in folder or any(plain == each or plain.startswith(f"{each}/") for each in _INTO_CONTAINER)
