"""Predictions of a replica's memory: the types and sums that the formulas of all backends share. Pure.

Sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controller.artifacts.facts import Artifact, UnreadArtifact

MIB: Final = 2**20
CUDA_OVERHEAD: Final = 512 * MIB
"""CUDA context, kernels and workspaces of one process on one GPU, without PyTorch. An estimate: it differs by GPU and
driver."""
WORKER_OVERHEAD: Final = 100 * MIB
"""Main memory of a worker beside the buffers of its engine: Python, the server, the engine's code. 65 MiB was measured
with llama-cpp-python."""


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Memory of one device (a GPU, or main memory) in bytes, by purpose."""

    weights: int = 0
    kv_cache: int = 0
    compute: int = 0
    """Activations, scratch, outputs."""
    overhead: int = 0
    """A CUDA context, code, an interpreter."""

    @property
    def total(self) -> int:
        """The sum of all parts, in bytes."""
        return self.weights + self.kv_cache + self.compute + self.overhead

    def __add__(self, other: MemoryParts) -> MemoryParts:
        """Return the memory of two models of one process on one device: the sum of each part, but only the larger
        overhead."""
        return MemoryParts(
            self.weights + other.weights,
            self.kv_cache + other.kv_cache,
            self.compute + other.compute,
            max(self.overhead, other.overhead),
        )


NOTHING: Final = MemoryParts()


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted memory of one replica, in bytes. `gpus`: number of its GPUs, 0 for none. `gpu`: on each of them, or
    on the fullest where they differ. With a `gpu_share` the engine takes that share of each GPU, and `gpu` is the least
    that it needs."""

    gpu: MemoryParts
    """Memory on each of its GPUs; where they differ, on the fullest."""
    host: MemoryParts
    gpus: int = 0
    gpu_share: float | None = None
    """The share of each GPU's memory that the engine takes, whatever its size; `gpu` is then the least that it needs.
    None: the engine takes what `gpu` says."""
    host_grows: bool = False
    """Whether a part of `host` fills up only while the replica serves: right after the load it holds less."""

    def __add__(self, other: Prediction) -> Prediction:
        """Return the memory of two models in one replica, on the larger number of GPUs. `gpu_share` is that of the
        first operand; the other one's is dropped."""
        return Prediction(
            self.gpu + other.gpu,
            self.host + other.host,
            max(self.gpus, other.gpus),
            self.gpu_share,
            self.host_grows or other.host_grows,
        )


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """The result in place of a `Prediction` where the memory cannot be predicted. It is returned, never raised."""

    reason: str
    """Why, as half a sentence."""


Forecast = Prediction | Unpredicted


def artifact_at(path: str, artifacts: Mapping[str, Artifact]) -> Artifact:
    """Return what was read of the model file or folder at the model path `path`; an `UnreadArtifact`, never a KeyError,
    if `artifacts` does not have it."""
    return artifacts.get(path, UnreadArtifact(f"{path}: was not read yet"))


def sum_forecasts(forecasts: Iterable[Forecast]) -> Forecast:
    """Return the memory of several models in one replica, or the first `Unpredicted`. Without any, a prediction of
    nothing. A `gpu_share` is not kept."""
    total = Prediction(NOTHING, NOTHING)
    for each in forecasts:
        if isinstance(each, Unpredicted):
            return each
        total += each
    return total


def predict_by_size(artifact: Artifact, gpus: int) -> Forecast:
    """Predict the memory, in bytes, of a worker whose engine keeps the model file as it is, and little else. With
    `gpus`, the file is split evenly over so many GPUs; 0: it is in main memory. `Unpredicted` where the file was not
    read."""
    if isinstance(artifact, UnreadArtifact):
        return Unpredicted(artifact.reason)
    host = MemoryParts(overhead=WORKER_OVERHEAD)
    if gpus:
        return Prediction(MemoryParts(-(-artifact.size // gpus), overhead=CUDA_OVERHEAD), host, gpus)
    return Prediction(NOTHING, host + MemoryParts(artifact.size))
