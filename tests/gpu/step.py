"""One step of the first hour on a GPU host: what it needs, and what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "not tried"]
Figures = Mapping[str, Any]
"""What a step has measured or read, by name; JSON."""
NO_GPU = "no GPU"


class StepFailedError(Exception):
    """What a step looked at is not as it must be. The message says what was seen. `figures`: what was measured."""

    def __init__(self, message: str, figures: Figures | None = None) -> None:
        super().__init__(message)
        self.figures = figures or {}


class NotTriedError(Exception):
    """This host cannot show what a step is about. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a host must have for a step."""

    gpus: int = 1
    on_cpu: bool = False
    """The step also runs without a GPU, on main memory, where the walk does."""
    docker: bool = False
    toolkit: bool = False
    """The NVIDIA Container Toolkit, as far as the Docker Engine knows of it."""
    root: bool = False
    image: str | None = None
    """Kind of the container image, such as `worker`."""
    engine: str | None = None
    """`llama-server`, `vllm` or `exllamav3`."""
    model: str | None = None
    """A model that is made for the step: one of `tests.gpu.models.MODELS`."""
    processes: bool = False
    """Engines must be processes of this host: the step starts them through a script of its own, or signals them."""
    is_long: bool = False
    """`--small` leaves it out."""


@dataclass(frozen=True, slots=True)
class Available:
    """What a host has. A text says why something is missing; None: it is there."""

    gpus: int
    is_small: bool = False
    no_docker: str | None = None
    no_toolkit: str | None = None
    is_root: bool = False
    images: Collection[str] = ()
    no_engine: Mapping[str, str] = field(default_factory=dict)
    """Engine to why it cannot be started here; one that is not named can be."""
    runtime: Literal["process", "docker"] = "process"
    on_cpu: bool = False
    """The walk leaves the GPUs alone and measures main memory."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `run` is given the Rig, and gives the figures, or raises StepFailedError or NotTriedError."""

    name: str
    title: str
    needs: Needs
    run: Callable[[Any], Awaitable[Figures]]
    limit_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a step. `reason`: why it failed or was not tried; None: it passed."""

    status: Status
    reason: str | None = None
    figures: Figures = field(default_factory=dict)
    seconds: float = 0.0


def find_missing(needs: Needs, available: Available) -> str | None:
    """Why a step cannot be tried on a host; None: it can."""
    checks = (
        _missing_gpus(needs, available),
        "left out by --small" if needs.is_long and available.is_small else None,
        available.no_docker if needs.docker else None,
        available.no_toolkit if needs.toolkit else None,
        "needs root" if needs.root and not available.is_root else None,
        f"image {needs.image} is not here" if needs.image and needs.image not in available.images else None,
        available.no_engine.get(needs.engine) if needs.engine else None,
        "needs engines as processes: --runtime process" if needs.processes and available.runtime != "process" else None,
    )
    return next((reason for reason in checks if reason is not None), None)


def _missing_gpus(needs: Needs, available: Available) -> str | None:
    if needs.on_cpu and available.on_cpu:
        return None
    if needs.gpus and (available.on_cpu or not available.gpus):
        return NO_GPU
    return None if needs.gpus <= available.gpus else f"needs {needs.gpus} GPUs, this host has {available.gpus}"
