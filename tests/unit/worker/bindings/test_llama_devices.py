"""What llama-cpp-python's libraries tell of GPUs, and what the worker makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from worker.bindings.llama_devices import check_gpus
from worker.errors import LoadError

CPU, GPU, INTEGRATED, ACCELERATOR = 0, 1, 2, 3
"""`ggml_backend_dev_type` of ggml-backend.h."""
NOT_STARTED = "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected"


def fake_llama_cpp(*devices: int, has_cuda: bool = True, offloads: bool | None = None) -> Any:
    """The part of the module `llama_cpp` that is asked; its devices are their types."""
    library = SimpleNamespace(
        ggml_backend_dev_count=lambda: len(devices),
        ggml_backend_dev_get=lambda number: number,
        ggml_backend_dev_type=lambda number: devices[number],
        ggml_backend_reg_by_name=lambda name: 1 if has_cuda and name == b"CUDA" else None,
    )
    can_offload = bool({GPU, INTEGRATED} & set(devices)) if offloads is None else offloads
    return SimpleNamespace(llama_cpp=SimpleNamespace(_lib=library), llama_supports_gpu_offload=lambda: can_offload)


def refusal(llama_cpp: Any, count: int, first_error: str = "") -> str:
    with pytest.raises(LoadError) as raised:
        check_gpus(llama_cpp, count, lambda: first_error)
    return str(raised.value)


def test_gpus_that_are_seen_are_enough() -> None:
    check_gpus(fake_llama_cpp(GPU, GPU, CPU), 2, lambda: "")
    check_gpus(fake_llama_cpp(INTEGRATED, CPU), 1, lambda: "")


def test_without_a_gpu_the_reason_is_said() -> None:
    none = "llama.cpp sees no GPU, and was given 1"
    assert refusal(fake_llama_cpp(CPU, has_cuda=False), 1) == f"llama-cpp-python: it was built without CUDA: {none}"
    assert refusal(fake_llama_cpp(CPU), 1, NOT_STARTED) == f"llama-cpp-python: {NOT_STARTED}: {none}"
    assert refusal(fake_llama_cpp(CPU), 1) == f"llama-cpp-python: CUDA did not start: {none}"
    # `llama_supports_gpu_offload` is true of each build that could ask another machine (RPC).
    assert none in refusal(fake_llama_cpp(CPU, ACCELERATOR, has_cuda=False, offloads=True), 1)


def test_fewer_gpus_than_were_given_are_too_few() -> None:
    error = "llama.cpp sees 1 of the 2 GPUs that it was given: look after the driver"
    assert refusal(fake_llama_cpp(GPU, CPU), 2) == error


def test_libraries_that_tell_no_devices_tell_whether_there_is_one() -> None:
    library = SimpleNamespace(_lib=SimpleNamespace())
    check_gpus(SimpleNamespace(llama_cpp=library, llama_supports_gpu_offload=lambda: True), 2, lambda: "")
    without = SimpleNamespace(llama_cpp=library, llama_supports_gpu_offload=lambda: False)
    assert "it was built without CUDA" in refusal(without, 2)
