"""What llama.cpp's log tells of a load, and of an end on a host with GPUs. Pure."""

from __future__ import annotations

import re
from typing import Final

from controller.engines.base import Verdict

_DOTS: Final = re.compile(r"^\.+$", re.MULTILINE)
_DOTS_AT_MOST: Final = 100


def dots_progress(log_tail: str) -> float | None:
    """0 to 1 by the line of dots that llama.cpp writes while it reads a file, one for each percent, at most.

    A large tensor is one dot though it is several percent, so it may be further. llama.cpp's own server writes no dots
    any more (seen in 0.5.0): it keeps its progress for its router.
    """
    lines = list(_DOTS.finditer(log_tail))
    if not lines:
        return None
    if log_tail[lines[-1].end() :].strip():
        return 1.0
    return min(1.0, len(lines[-1][0]) / _DOTS_AT_MOST)


def memory_verdicts(
    *, context: str, cache_types: str, gpu_layers: str, slots: str | None = None
) -> tuple[tuple[str, Verdict], ...]:
    """Patterns of too little memory, and what to lower: the arguments name the backend's fields.

    `slots` None: the backend has one. Which memory, and when, the words say; llama.cpp's own are those of #20431 (a
    load), #13085 (a request) and ggml's (main memory).
    """
    fields = f"`{context}` (the cache grows with it), the types of the cache ({cache_types})"
    layers = f"or the layers on the GPU (`{gpu_layers}`)"
    several_slots = f", the requests at a time (`{slots}`)" if slots else ""
    room = "or declare what the model takes (`vram_mib`), so that it is placed where there is room"
    return (
        (
            r"cudaMalloc failed: out of memory|(failed|unable) to allocate CUDA\d+ buffer",
            Verdict(f"out of memory on the GPU while loading: lower {fields} {layers}, {room}"),
        ),
        (
            r"CUDA error: out of memory",
            Verdict(
                "out of memory on the GPU while computing, which needs memory beside what the load took: lower "
                f"{fields}{several_slots} {layers}, {room}"
            ),
        ),
        (
            # Memory that llama.cpp would like to be pinned, and does without.
            r"out of memory|insufficient memory|failed to allocate(?!.*pinned memory)|std::bad_alloc|MemoryError",
            Verdict(f"out of memory (main memory, not a GPU's): lower {fields}, or raise `memory_mib` where it is set"),
        ),
    )


GPU_VERDICTS: Final[tuple[tuple[str, Verdict], ...]] = (
    (
        r"CUDA error: no kernel image",
        Verdict("this build has no code for the GPU that it was given: take one that was built for it, or another GPU"),
    ),
    (
        r"CUDA error",
        Verdict("CUDA error: the GPU, its driver or the build failed the engine; `dmesg` may name an Xid"),
    ),
    (
        r"lib(cuda|cudart|cublas|cublasLt|nccl)\.so[.\d]*: cannot open shared object",
        Verdict(
            "a library of CUDA or of the NVIDIA driver is missing where the engine runs: look at `nvidia-smi`; in a "
            "container the NVIDIA Container Toolkit brings the driver's, and the image CUDA's"
        ),
    ),
)
"""Patterns of what CUDA failed, after those of memory. Another start may go well: none is permanent."""

_REFUSED: Final = r"(invalid device: |llama\.cpp sees no GPU)"
"""What engines say that were given a GPU and do not compute on the CPU in its place: llama-server, our worker."""
MISSING_GPU_VERDICTS: Final[tuple[tuple[str, Verdict], ...]] = (
    (
        rf"(?s)failed to initialize CUDA: [^\n]*driver version is insufficient.*{_REFUSED}",
        Verdict(
            "the NVIDIA driver is older than the CUDA of this build: update the driver, or take a build for an older "
            "CUDA (`image`)",
            True,
        ),
    ),
    (
        rf"(?s)failed to initialize CUDA.*{_REFUSED}",
        Verdict(
            "CUDA did not start, and the engine was given a GPU: look at `nvidia-smi` and at the kernel module "
            "nvidia_uvm (`modprobe nvidia_uvm`), in containers at the NVIDIA Container Toolkit"
        ),
    ),
)
"""Patterns of a CUDA that did not start, which by itself llama.cpp only warns of (#24418, #7218, #27923)."""
