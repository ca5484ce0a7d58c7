"""Which GPUs llama.cpp sees, through llama-cpp-python's libraries."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from worker.errors import LoadError

_GPU_TYPES: Final = (1, 2)
"""GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU of ggml-backend.h."""


def check_gpus(llama_cpp: Any, gpu_count: int, read_first_error: Callable[[], str]) -> None:
    """Check that llama.cpp sees at least `gpu_count` GPUs. If it saw none, it would compute on the CPU and only log a
    warning.

    `llama_cpp` is the module; the check starts CUDA. `read_first_error` returns the first error in llama.cpp's log,
    which this check may cause. Returns without an error if this version's libraries do not tell the number of GPUs, but
    can compute on GPUs.

    Raises:
        LoadError: llama.cpp sees fewer GPUs.
    """
    can_offload = llama_cpp.llama_supports_gpu_offload()  # this starts CUDA
    seen_count = _count_gpus(llama_cpp)
    if seen_count is None:
        seen_count = gpu_count if can_offload else 0
    if seen_count >= gpu_count:
        return
    if seen_count:
        raise LoadError(f"llama.cpp sees {seen_count} of the {gpu_count} GPUs that it was given: look after the driver")
    cause = read_first_error() or ("CUDA did not start" if _has_cuda(llama_cpp) else "it was built without CUDA")
    raise LoadError(f"llama-cpp-python: {cause}: llama.cpp sees no GPU, and was given {gpu_count}")


def _count_gpus(llama_cpp: Any) -> int | None:
    """Return how many GPUs llama.cpp sees; None if this version's libraries do not tell."""
    try:
        library = _open_library(llama_cpp)
        count, get, type_of = (
            library.ggml_backend_dev_count,
            library.ggml_backend_dev_get,
            library.ggml_backend_dev_type,
        )
    except AttributeError:
        return None
    count.restype = ctypes.c_size_t
    get.argtypes, get.restype = [ctypes.c_size_t], ctypes.c_void_p
    type_of.argtypes, type_of.restype = [ctypes.c_void_p], ctypes.c_int
    return sum(type_of(get(number)) in _GPU_TYPES for number in range(count()))


def _has_cuda(llama_cpp: Any) -> bool:
    try:
        find_backend = _open_library(llama_cpp).ggml_backend_reg_by_name
    except AttributeError:
        return False
    find_backend.argtypes, find_backend.restype = [ctypes.c_char_p], ctypes.c_void_p
    return find_backend(b"CUDA") is not None


def _open_library(llama_cpp: Any) -> Any:
    return llama_cpp.llama_cpp._lib  # noqa: SLF001 - the package has no public way to ggml's devices
