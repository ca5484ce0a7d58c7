"""The memory of CTranslate2: its variables, which are converted at load. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controller.artifacts.facts import Artifact, Ct2, UnreadArtifact
from controller.engines.memory import (
    CUDA_OVERHEAD,
    NOTHING,
    WORKER_OVERHEAD,
    Forecast,
    MemoryParts,
    Prediction,
    Unpredicted,
    artifact_at,
)

_BYTES: Final = {"f32": 4, "i8": 1, "i16": 2, "i32": 4, "f16": 2, "bf16": 2}
_COMPUTES: Final = {
    "int8": (1, 4),
    "int8_float32": (1, 4),
    "int8_float16": (1, 2),
    "int8_bfloat16": (1, 2),
    "int16": (2, 4),
    "float16": (2, 2),
    "bfloat16": (2, 2),
    "float32": (4, 4),
}
"""Bytes per element by compute type: of matrices, and of other variables."""


def predict_ct2(path: str, artifacts: Mapping[str, Artifact], *, compute_type: str, gpus: int) -> Forecast:
    """Predict the memory, in bytes, of a CTranslate2 replica: the weights of the model at `path`, converted to the
    types of `compute_type`, plus what CUDA and the worker take. `gpus` 0: on the CPU.

    `Unpredicted` where the files were not read or are not CTranslate2's. What a text takes is not counted: it is small.
    """
    facts = artifact_at(path, artifacts)
    if isinstance(facts, UnreadArtifact):
        return Unpredicted(facts.reason)
    if not isinstance(facts, Ct2):
        return Unpredicted(f"{path} has no model.bin")
    matrix_element, other_element = (
        (1, 2 if gpus else 4) if compute_type == "auto" else _COMPUTES.get(compute_type, (None, None))
    )
    least_bytes = 2 if gpus else 4  # without a GPU it computes with floats of 4 bytes, however they are stored
    weights = _converted_bytes(facts.matrices, matrix_element, least_bytes) + _converted_bytes(
        facts.vectors, other_element, least_bytes
    )
    host = MemoryParts(overhead=WORKER_OVERHEAD)
    if gpus:
        return Prediction(MemoryParts(weights, overhead=CUDA_OVERHEAD), host, gpus)
    return Prediction(NOTHING, host + MemoryParts(weights))


def _converted_bytes(stored_sizes: Mapping[str, int], element: int | None, least_bytes: int) -> int:
    """Return the bytes of all variables with elements of `element` bytes; None: as stored, as far as that type can be
    computed with."""
    total = 0
    for kind, length in stored_sizes.items():
        size = max(_BYTES[kind], least_bytes) if kind in ("f16", "bf16") else _BYTES[kind]
        total += length // _BYTES[kind] * (size if element is None or kind == "i32" else element)
    return total
