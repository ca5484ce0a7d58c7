"""Causes of an end that CUDA and PyTorch write into the log of any engine that uses them. Pure."""

from __future__ import annotations

from typing import Final

from controller.engines.base import Verdict

OLD_DRIVER: Final[tuple[str, Verdict]] = (
    r"NVIDIA driver on your system is too old \(found version"
    r"|CUDA driver version is insufficient for CUDA runtime version",
    Verdict(
        "the NVIDIA driver of this host is too old for the CUDA that the engine was built with: update the driver, or "
        "take a build for an earlier CUDA (docs/images.md)",
        permanent=True,
    ),
)
"""Pattern and verdict of a driver that is too old: the sentences of PyTorch (c10/cuda/CUDAFunctions.cpp) and of CUDA
(`cudaErrorInsufficientDriver`). PyTorch also warns with it where an engine counts the GPUs, and then finds none."""
