"""What a replica takes of memory, predicted: the words and sums that the backends' formulas share. Pure.

Everything is in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controller.artifacts.facts import Artifact, UnreadArtifact

MIB: Final = 2**20
CUDA_OVERHEAD: Final = 512 * MIB
"""CUDA context, kernels and workspaces of one process on one GPU, without PyTorch. A magnitude: it differs by GPU and
driver."""
WORKER_OVERHEAD: Final = 100 * MIB
"""What a worker takes of main memory beside its engine's buffers: Python, its server, the engine's code. 65 MiB with
llama-cpp-python."""


@dataclass(frozen=True, slots=True)
class MemoryParts:
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

    def __add__(self, other: MemoryParts) -> MemoryParts:
        """Both on one device; the overhead is not added, but the larger one taken."""
        return MemoryParts(
            self.weights + other.weights,
            self.kv_cache + other.kv_cache,
            self.compute + other.compute,
            max(self.overhead, other.overhead),
        )


NOTHING: Final = MemoryParts()


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one replica takes."""

    gpu: MemoryParts
    """On each of its GPUs; on the fullest, where they differ."""
    host: MemoryParts
    gpus: int = 0
    gpu_share: float | None = None
    """Set: it takes this share of each GPU's memory, whatever that is; `gpu` is what it needs at least."""
    host_grows: bool = False
    """A part of `host` is filled only while it serves, so that a replica that was just loaded holds less."""

    def __add__(self, other: Prediction) -> Prediction:
        """Two models in one replica."""
        return Prediction(
            self.gpu + other.gpu,
            self.host + other.host,
            max(self.gpus, other.gpus),
            self.gpu_share,
            self.host_grows or other.host_grows,
        )


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """Why nothing can be said."""

    reason: str


Forecast = Prediction | Unpredicted


def artifact_at(path: str, artifacts: Mapping[str, Artifact]) -> Artifact:
    """The facts of the model at `path`."""
    return artifacts.get(path, UnreadArtifact(f"{path}: was not read yet"))


def sum_forecasts(forecasts: Iterable[Forecast]) -> Forecast:
    """Several models in one replica: their sum, or the first reason why there is none."""
    total = Prediction(NOTHING, NOTHING)
    for each in forecasts:
        if isinstance(each, Unpredicted):
            return each
        total += each
    return total


def predict_by_size(artifact: Artifact, gpus: int) -> Forecast:
    """Of a worker whose engine keeps the file as it is, and little beside it."""
    if isinstance(artifact, UnreadArtifact):
        return Unpredicted(artifact.reason)
    host = MemoryParts(overhead=WORKER_OVERHEAD)
    if gpus:
        return Prediction(MemoryParts(-(-artifact.size // gpus), overhead=CUDA_OVERHEAD), host, gpus)
    return Prediction(NOTHING, host + MemoryParts(artifact.size))
