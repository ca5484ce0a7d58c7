"""Progress of a load, and causes of an end, in the log of llama.cpp. Pure."""

from __future__ import annotations

import re
from typing import Final

from controller.engines.base import Verdict

_DOTS: Final = re.compile(r"^\.+$", re.MULTILINE)
_DOTS_AT_MOST: Final = 100


def dots_progress(log_tail: str) -> float | None:
    """Return the progress of a load, from 0 to 1, by the dots that llama.cpp writes, one per percent; None: no dots.

    1.0 once anything follows the last line of dots. A large tensor is one dot though it is several percent, so the load
    may be further. llama-server writes no dots since 0.5.0: it reports its progress to its router only.
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
    """Return patterns and verdicts, for `Engine.verdicts`, of an engine with too little memory. None is permanent.

    The arguments name the backend's definition fields to lower, for the messages.

    `slots` None: the backend has one slot. The messages say which memory and when. The patterns are those of
    llama.cpp's issues #20431 (a load) and #13085 (a request), and of ggml (main memory).
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
            # The second is cuBLAS's, which llama.cpp begins at the first long prompt (seen on an H200 that was full).
            r"CUDA error: (out of memory|the resource allocation failed)",
            Verdict(
                "out of memory on the GPU while computing, which needs memory beside what the load took: lower "
                f"{fields}{several_slots} {layers}, {room}"
            ),
        ),
        (
            # llama.cpp does without pinned memory where it gets none.
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
"""Verdicts of failures of CUDA, to be placed after those of memory. None is permanent: another start may succeed."""

_REFUSED: Final = r"(invalid device: |llama\.cpp sees no GPU)"
"""Sentences of llama-server and of our worker, which refuse to compute on the CPU where they were given a GPU."""
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
"""Verdicts of a CUDA that did not start. llama.cpp itself only warns of it (#24418, #7218, #27923)."""
