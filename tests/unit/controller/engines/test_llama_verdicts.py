"""What the ends of llama.cpp's engines mean on a host with GPUs, by the lines that llama.cpp writes there."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.engines import ENGINES
from controller.engines.base import Verdict
from controller.planning.backoff import next_failure, verdict_of_exit
from controller.state import Exit

# ggml-org/llama.cpp#20431
LOAD_FAILED = """\
load_tensors: loading model tensors, this can take a while... (mmap = true, direct_io = false)
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 144817.04 MiB on device 0: cudaMalloc failed: out of memory
alloc_tensor_range: failed to allocate CUDA0 buffer of size 151851674624
llama_model_load: error loading model: unable to allocate CUDA0 buffer
"""
# abetlen/llama-cpp-python#1944
CACHE_FAILED = """\
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 204800.00 MiB on device 0: cudaMalloc failed: out of memory
llama_kv_cache_init: failed to allocate buffer for kv cache
"""
# ollama/ollama#7673, from llama.cpp's own pool; ggml-org/llama.cpp#13085 is the same of llama-server.
SERVING_FAILED = """\
CUDA error: out of memory
  current device: 0, in function alloc at ggml-cuda.cu:406
  cuMemCreate(&handle, reserve_size, &prop, 0)
ggml-cuda.cu:132: CUDA error
"""
# Seen on an H200 (driver 580.159, CUDA 13.0) that another program had filled: cuBLAS's words for it.
CUBLAS_FAILED = """\
ggml-cuda.cu:109: CUDA error
0.01.524.988 E CUDA error: the resource allocation failed
0.01.524.996 E   current device: 0, in function cublas_handle at ggml-cuda/common.cuh:1534
0.01.524.996 E   cublasCreate_v2(&cublas_handles[device][curr_stream_no])
/app/libggml-base.so.0(ggml_abort+0x15b)[0x7f0ba7375f9b]
/app/libggml-cuda.so.0(_Z15ggml_cuda_errorPKcS0_S0_iS0_+0xb7)[0x7f0ba3963c97]
/app/llama-server(+0x7b3c5)[0x55f41f6593c5]
"""
# ggml-org/llama.cpp#4620
INVALID_ARGUMENT = """\
CUDA error: invalid argument
  current device: 1, in function ggml_cuda_op_mul_mat at ggml-cuda.cu:8261
  cudaMemcpy2DAsync(dhf_dst_i, ne0*sizeof(float), dst_dd_i, row_diff*sizeof(float), row_diff*sizeof(float), src1_ncols, kind, stream)
GGML_ASSERT: ggml-cuda.cu:224: !"CUDA error"
"""  # noqa: E501 - as it was written
# canonical/inference-snaps#255, of llama.cpp
NO_KERNEL = """\
ggml_cuda_compute_forward: SCALE failed
CUDA error: no kernel image is available for execution on the device
"""
# ggml-org/llama.cpp#9629: a warning, after which the engine goes on.
PINNED = "ggml_cuda_host_malloc: failed to allocate 1900,00 MiB of pinned memory: invalid argument\n"
# abetlen/llama-cpp-python#1890 and ggml-org/llama.cpp#27923; what follows is what llama-server says then of `--device`.
NOT_STARTED = "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\n"
# ollama/ollama#7666
OLD_DRIVER = "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version\n"
REFUSED = 'error while handling argument "--device": invalid device: CUDA0\n\nusage:\n-dev,  --device <dev1,dev2,..>\n'
# mpazdzioch/llamacpp-webui-glue#4
NO_LIBRARY = (
    "llama-server: error while loading shared libraries: libcuda.so.1: cannot open shared object file: No such \
file or directory\n"
)


def verdict_of(backend: str, log: str) -> Verdict:
    verdict = ENGINES[backend].explain_exit(1, log)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("backend", ["llama_server", "llama_cpp"])
@pytest.mark.parametrize(
    ("log", "words"),
    [
        (LOAD_FAILED, "out of memory on the GPU while loading"),
        (CACHE_FAILED, "out of memory on the GPU while loading"),
        (SERVING_FAILED, "out of memory on the GPU while computing"),
        (CUBLAS_FAILED, "out of memory on the GPU while computing"),
        (INVALID_ARGUMENT, "CUDA error"),
        (PINNED + INVALID_ARGUMENT, "CUDA error"),
        (NO_KERNEL, "this build has no code for the GPU"),
        ("ggml_aligned_malloc: insufficient memory (attempted to allocate 900 MB)", "out of memory (main memory"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "out of memory (main memory"),
        (
            "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 1",
            "out of memory (main memory",
        ),
    ],
)
def test_what_may_go_well_another_time_is_never_parked(backend: str, log: str, words: str) -> None:
    verdict = verdict_of(backend, log)
    assert words in verdict.message
    assert not verdict.permanent


@pytest.mark.parametrize(
    ("backend", "context", "cache", "layers"),
    [
        ("llama_server", "llama_server_n_ctx", "llama_server_cache_type_k", "llama_server_n_gpu_layers"),
        ("llama_cpp", "gguf_n_ctx", "gguf_type_k", "gguf_n_gpu_layers"),
    ],
)
def test_too_little_memory_says_what_to_lower(backend: str, context: str, cache: str, layers: str) -> None:
    for log in (LOAD_FAILED, SERVING_FAILED):
        message = verdict_of(backend, log).message
        for field in (context, cache, layers, "vram_mib"):
            assert f"`{field}`" in message, log
    in_main_memory = verdict_of(backend, "std::bad_alloc").message
    assert f"`{context}`" in in_main_memory
    assert "`memory_mib`" in in_main_memory
    assert ("`target_inflight`" in verdict_of(backend, SERVING_FAILED).message) is (backend == "llama_server"), "slots"


def test_too_little_memory_waits_longer_each_time_and_is_tried_at_once_where_it_served() -> None:
    load = verdict_of_exit("llama_server", Exit(1, log_tail=LOAD_FAILED), was_ready=False)
    first = next_failure(None, load, 1, 100.0, ready_for_s=None)
    second = next_failure(first, load, 2, 200.0, ready_for_s=None)
    assert (first.retry_at, second.retry_at) == (101.0, 202.0)
    serving = verdict_of_exit("llama_server", Exit(134, log_tail=SERVING_FAILED), was_ready=True)
    assert next_failure(None, serving, 1, 100.0, ready_for_s=5.0).retry_at == 100.0
    assert next_failure(first, serving, 2, 200.0, ready_for_s=5.0).retry_at == 201.0


def test_the_documentation_has_the_words_that_are_said() -> None:
    page = (Path(__file__).parents[4] / "docs" / "memory.md").read_text()
    for log in (LOAD_FAILED, SERVING_FAILED, "std::bad_alloc"):
        words, _, _ = verdict_of("llama_server", log).message.partition(",")
        assert f"| `{words.partition(':')[0]}` |" in page


def test_an_argument_that_llama_server_refuses_is_still_one() -> None:
    verdict = verdict_of("llama_server", "error: invalid argument: --x\n")
    assert (verdict.message, verdict.permanent) == ("bad argument", True)


@pytest.mark.parametrize(
    ("log", "words", "permanent"),
    [
        (REFUSED, "llama.cpp does not see its GPU", False),
        (NOT_STARTED + REFUSED, "CUDA did not start", False),
        (OLD_DRIVER + REFUSED, "the NVIDIA driver is older than the CUDA of this build", True),
        (NO_LIBRARY, "a library of CUDA or of the NVIDIA driver is missing", False),
    ],
)
def test_a_llama_server_that_cannot_have_its_gpu_says_where_to_look(log: str, words: str, permanent: bool) -> None:
    verdict = verdict_of("llama_server", log)
    assert words in verdict.message
    assert verdict.permanent is permanent
    if not permanent:
        assert "`image`" in verdict.message or "nvidia-smi" in verdict.message


NO_GPU = "llama.cpp sees no GPU, and was given 1\n"


@pytest.mark.parametrize(
    ("log", "words", "permanent"),
    [
        (f"llama-cpp-python: it was built without CUDA: {NO_GPU}", "was built without CUDA", True),
        (f"llama-cpp-python: {NOT_STARTED.strip()}: {NO_GPU}", "CUDA did not start", False),
        (f"llama-cpp-python: {OLD_DRIVER.strip()}: {NO_GPU}", "the NVIDIA driver is older", True),
        (f"llama-cpp-python: CUDA did not start: {NO_GPU}", "does not see all of its GPUs", False),
        ("llama.cpp sees 1 of the 2 GPUs that it was given: look after", "does not see all of its GPUs", False),
    ],
)
def test_a_worker_that_cannot_have_its_gpu_says_where_to_look(log: str, words: str, permanent: bool) -> None:
    verdict = verdict_of("llama_cpp", log)
    assert words in verdict.message
    assert verdict.permanent is permanent
