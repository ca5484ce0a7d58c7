"""Variables of the dynamic loader that an image may not bring to a container with GPUs. Pure.

NVIDIA's container toolkit runs its hooks on the host, as root, with the container's environment and from its root
folder. Up to 1.17.7 an image with `LD_PRELOAD=/proc/self/cwd/its.so` so had its own code run there (CVE-2025-23266).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Final

_PREFIX: Final = "LD_"
_SEARCH_PATH: Final = "LD_LIBRARY_PATH"
"""CUDA's own images set it, and with them vLLM's and llama.cpp's. Of folders by absolute paths it names the host's to a
hook; what leads back into the container is refused."""
_INTO_CONTAINER: Final = ("/proc", "/dev")
"""By /proc/self/cwd, and by /dev/fd, which leads there."""


def find_loader_problem(image: str, image_env: Sequence[str], own_env: Mapping[str, str]) -> str | None:
    """Why a container with GPUs may not be made of an image of these variables (`KEY=value`), in words; None: it may.

    What the definition sets itself (`own_env`) replaces the image's, and is the operator's own.
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
    """An empty one is the current folder, which is the container's."""
    if not folder.startswith("/"):
        return True
    plain = "/" + posixpath.normpath(folder).lstrip("/")
    return "$" in folder or any(plain == each or plain.startswith(f"{each}/") for each in _INTO_CONTAINER)
