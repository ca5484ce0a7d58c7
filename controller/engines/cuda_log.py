"""What CUDA and PyTorch tell in the log of any engine that uses them. Pure."""

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
"""The pattern of PyTorch's sentence (c10/cuda/CUDAFunctions.cpp) and of CUDA's own for `cudaErrorInsufficientDriver`,
and what they mean. PyTorch's is a warning, too, where an engine only counts the GPUs, and then finds none."""
