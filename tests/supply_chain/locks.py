"""The locked dependencies: which files there are, what they pin, and which of them an image is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY: Final = Path(__file__).resolve().parents[2]
IMAGE_LOCKS: Final[Mapping[str, tuple[str, ...]]] = {
    "controller": ("requirements/controller.txt",),
    "gateway": ("requirements/gateway.txt",),
    "worker": (
        "requirements/worker.txt",
        "images/worker/llama-cpp-needs.txt",
        "images/worker/llama-cpp.txt",
        "images/worker/ct2.txt",
        "images/worker/onnx.txt",
        "images/worker/litert-lm.txt",
        "images/worker/mcp.txt",
    ),
}
"""What the default build of an image installs."""
ENGINE_IMAGE_LOCKS: Final[Mapping[str, tuple[str, ...]]] = {
    f"worker-{engine}": ("requirements/worker.txt", f"images/worker/{engine}.txt") for engine in ("exllamav3", "vllm")
}
"""The same of images that `make images` builds only where it is told to."""
_OPTION: Final = re.compile(r"\s--hash=\S+")
_HASH: Final = re.compile(r"\s--hash=sha256:([0-9a-f]{64})(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Pin:
    """One locked version of one package."""

    name: str
    version: str
    hashes: frozenset[str]
    """SHA-256 of each distribution that may be installed."""


def list_locks() -> list[Path]:
    patterns = ("requirements/*.txt", "images/*.txt", "images/worker/*.txt", ".ci/*.txt")
    return sorted(path for pattern in patterns for path in REPOSITORY.glob(pattern))


def read_lock(text: str, environment: Mapping[str, str] | None = None) -> list[Pin]:
    """What a lock pins. `environment`: values of markers, by which lines are left out; None: no line is.

    Raises:
        ValueError: a line pins no exact version, or has no hash.
    """
    pins = []
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    for line in lines:
        if not line or line.startswith("#"):
            continue
        requirement = Requirement(_OPTION.sub("", line))
        specifiers = list(requirement.specifier)
        hashes = frozenset(_HASH.findall(line))
        if requirement.url or len(specifiers) != 1 or specifiers[0].operator != "==" or not hashes:
            raise ValueError(f"not locked by version and hash: {line[:80]}")
        if environment is None or requirement.marker is None or requirement.marker.evaluate(dict(environment)):
            pins.append(Pin(canonicalize_name(requirement.name), specifiers[0].version, hashes))
    return pins


def read_image_locks(image: str, environment: Mapping[str, str]) -> dict[str, Pin]:
    """What the build of an image pins, by name. Raises ValueError: two of its locks want two versions."""
    return merge_pins(
        pin for lock in IMAGE_LOCKS[image] for pin in read_lock((REPOSITORY / lock).read_text(), environment)
    )


def merge_pins(pins: Iterable[Pin]) -> dict[str, Pin]:
    """Pins by name. Raises ValueError: two of one name differ in their version."""
    merged: dict[str, Pin] = {}
    for pin in pins:
        other = merged.setdefault(pin.name, pin)
        if other.version != pin.version:
            raise ValueError(f"{pin.name} is locked as {other.version} and as {pin.version}")
        merged[pin.name] = Pin(pin.name, pin.version, pin.hashes | other.hashes)
    return merged
