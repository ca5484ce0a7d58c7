"""What a replica takes of memory, predicted: the words and sums that the backends' formulas share. Pure.

Everything is in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controller.artifacts.facts import Artifact, Unread

MIB: Final = 2**20
CUDA_OVERHEAD: Final = 512 * MIB
"""CUDA context, kernels and workspaces of one process on one GPU, without PyTorch. A magnitude: it differs by GPU and
driver."""
WORKER_OVERHEAD: Final = 100 * MIB
"""What a worker takes of main memory beside its engine's buffers: Python, its server, the engine's code. 65 MiB with
llama-cpp-python."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Memory of one device by what it is for."""

    weights: int = 0
    kv_cache: int = 0
    compute: int = 0
    """Activations, scratch, outputs."""
    overhead: int = 0
    """What the runtime takes for itself: a CUDA context, code, an interpreter."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv_cache + self.compute + self.overhead

    def __add__(self, other: Parts) -> Parts:
        """Both on one device; the overhead is not added, but the larger one taken."""
        return Parts(
            self.weights + other.weights,
            self.kv_cache + other.kv_cache,
            self.compute + other.compute,
            max(self.overhead, other.overhead),
        )


NOTHING: Final = Parts()


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one replica takes."""

    gpu: Parts
    """On each of its GPUs; on the fullest, where they differ."""
    host: Parts
    gpus: int = 0
    gpu_share: float | None = None
    """Set: it takes this share of each GPU's memory, whatever that is; `gpu` is what it needs at least."""

    def __add__(self, other: Prediction) -> Prediction:
        """Two models in one replica."""
        return Prediction(self.gpu + other.gpu, self.host + other.host, max(self.gpus, other.gpus), self.gpu_share)


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """Why nothing can be said."""

    reason: str


Forecast = Prediction | Unpredicted


def artifact_at(path: str, artifacts: Mapping[str, Artifact]) -> Artifact:
    """The facts of the model at `path`."""
    return artifacts.get(path, Unread(f"{path}: was not read yet"))


def all_of(forecasts: Iterable[Forecast]) -> Forecast:
    """Several models in one replica: their sum, or the first reason why there is none."""
    total = Prediction(NOTHING, NOTHING)
    for each in forecasts:
        if isinstance(each, Unpredicted):
            return each
        total += each
    return total


def by_size(artifact: Artifact, gpus: int) -> Forecast:
    """Of a worker whose engine keeps the file as it is, and little beside it."""
    if isinstance(artifact, Unread):
        return Unpredicted(artifact.reason)
    host = Parts(overhead=WORKER_OVERHEAD)
    if gpus:
        return Prediction(Parts(-(-artifact.size // gpus), overhead=CUDA_OVERHEAD), host, gpus)
    return Prediction(NOTHING, host + Parts(artifact.size))
