"""What ExLlamaV3, CTranslate2 and ONNX render beyond their fields, and what their ends mean."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

from controller.engines import ENGINES
from controller.engines.base import Launch, RenderContext
from worker.__main__ import parse_engine

NO_ROOM_IN_SPLIT = "Insufficient VRAM in split for model and cache"
OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 12080). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: "
    "https://pytorch.org to install a PyTorch version that has been compiled with your version of the CUDA driver."
)
"""Of c10/cuda/CUDAFunctions.cpp, as in guqiong96/Lvllmds4#46."""
OLD_DRIVER_WARNING = (
    "/opt/roundhouse/lib/python3.12/site-packages/torch/cuda/__init__.py:184: UserWarning: CUDA initialization: "
    f"{OLD_DRIVER} (Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:119.)"
)
OLD_DRIVER_OF_CUDA = "CUDA driver version is insufficient for CUDA runtime version"
"""What `cudaGetErrorString` says of `cudaErrorInsufficientDriver`."""


def launch(backend: str, runtime: Any = "docker", **fields: Any) -> Launch:
    context = RenderContext(
        runtime, "m", PurePosixPath("/models"), "h", 1, PurePosixPath("/c"), {"python": "python"}, {"worker": "w"}
    )
    engine = ENGINES[backend]
    return engine.render_command(
        engine.definition.model_validate({"backend": backend, "model_path": "m", **fields}), context
    )


def test_layers_that_are_split_over_gpus_are_passed_through_shared_memory() -> None:
    assert launch("exllamav3", gpus=2, exllama_tensor_parallel=True).shm_bytes == 10 * 2**30
    assert launch("exllamav3", gpus=2).shm_bytes is None
    assert launch("exllamav3", "process", gpus=2, exllama_tensor_parallel=True).shm_bytes is None


@pytest.mark.parametrize(
    ("backend", "line", "message", "permanent"),
    [
        (
            "exllamav3",
            "ExLlamaV3 cannot load /m: The tensor-parallel shared arena needs 64.0 MiB of POSIX shared memory",
            "too little shared memory",
            False,
        ),
        ("exllamav3", "ExLlamaV3 cannot load /m: CUDA error: all CUDA-capable devices are busy", "the GPU", False),
        ("exllamav3", "ExLlamaV3 cannot load /m: NCCL error in: ProcessGroup.cpp", "the GPU", False),
        ("exllamav3", f"ExLlamaV3 cannot load /m: {OLD_DRIVER}", "the NVIDIA driver of this host is too old", True),
        ("exllamav3", f"{OLD_DRIVER_WARNING}\nExLlamaV3 sees none of the GPUs that", "driver of this host is", True),
        ("ct2", f"CTranslate2 cannot load /m: CUDA failed with error {OLD_DRIVER_OF_CUDA}", "host is too old", True),
        # turboderp-org/exllamav3#50, #361
        ("exllamav3", f"ExLlamaV3 cannot load /m: {NO_ROOM_IN_SPLIT}", "raise `vram_mib`", False),
        ("exllamav3", "ExLlamaV3 sees 1 of the 2 GPUs that it was given", "does not see all of its GPUs", False),
        (
            "exllamav3",
            "ExLlamaV3 cannot load /m: CUDA out of memory. Tried to allocate",
            "out of memory while it loaded (lower exllama_cache_size",
            False,
        ),
        (
            "exllamav3",
            "ExLlamaV3 failed: OutOfMemoryError('CUDA out of memory. Tried to allocate 232.00 MiB.",
            "out of memory while it served (lower exllama_cache_size",
            False,
        ),
        ("exllamav3", "ExLlamaV3 failed: AcceleratorError('CUDA error: an illegal memory access", "the GPU", False),
        ("exllamav3", "ExLlamaV3 failed: ValueError('odd')", "failed while it answered", False),
        # PyTorch's words, as in vllm-project/vllm#14885
        ("exllamav3", "ExLlamaV3 cannot load /m: CUDA error: invalid argument", "the GPU", False),
        ("exllamav3", "ExLlamaV3 cannot load /models/a: b: CUDA error: invalid argument", "the GPU", False),
        ("exllamav3", "ExLlamaV3 cannot be used: CUDA error: unknown error", "the GPU", False),
        (
            "ct2",
            "CTranslate2 cannot load /m: CUDA failed with error out of memory",
            "out of memory while it loaded",
            False,
        ),
        ("exllamav3", "ExLlamaV3 cannot load /models/CUDA-7B: Unknown architecture X in", "not a model", True),
        ("exllamav3", "ExLlamaV3 cannot be used: No module named 'torch' (it is the extra", "not installed", True),
        ("exllamav3", "ExLlamaV3 cannot be used: libcudart.so.12: cannot open shared", "ExLlamaV3 cannot be", False),
        ("exllamav3", "ExLlamaV3 cannot be used: Error building extension 'exllamav3_ext'", "cannot be used", False),
        ("exllamav3", "ExLlamaV3 needs a GPU, and sees none here: declare `gpus`", "needs a GPU", True),
        ("exllamav3", "ExLlamaV3 sees none of the GPUs that it was given (GPU-1)", "sees none of its GPUs", False),
        ("ct2", "CTranslate2 cannot load /m: CUDA failed with error no CUDA-capable device is", "the GPU", False),
        ("ct2", "CTranslate2 cannot load /m: cuBLAS failed with status CUBLAS_STATUS_NOT_INIT", "the GPU", False),
        ("ct2", "CTranslate2 cannot load /m: This package was not compiled with CUDA support", "without CUDA", True),
        ("ct2", "CTranslate2 cannot load /m: Unsupported model binary version", "not a model", True),
        ("ct2", "CTranslate2 cannot be used: No module named 'ctranslate2' (it is", "not installed", True),
        ("ct2", "CTranslate2 cannot be used: libcublas.so.12: cannot open shared", "cannot be used", False),
    ],
)
def test_what_ends_mean(backend: str, line: str, message: str, permanent: bool) -> None:
    verdict = ENGINES[backend].explain_exit(1, f"loading\n{line}\n")
    assert verdict is not None
    assert message in verdict.message
    assert verdict.permanent is permanent


@pytest.mark.parametrize(
    ("fields", "device"),
    [({}, "cpu"), ({"gpus": 0}, "cpu"), ({"gpus": 1}, "cuda"), ({"device": "cuda"}, "cuda")],
)
def test_ct2_computes_where_the_definition_says(fields: dict[str, Any], device: str) -> None:
    _, _, _, backend, *arguments = launch("ct2", "process", **fields).argv
    assert parse_engine(backend, arguments)[1].device == device
