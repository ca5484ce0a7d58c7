"""What the ends of engines mean, by the lines that they write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controller.engines import ENGINES
from controller.engines.base import Verdict
from controller.engines.vllm import vllm_verdict
from controller.planning.backoff import next_failure, verdict_of_exit
from controller.runtimes.logs import EXIT_LINES, plain_tail
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
MISMATCH = """\
mtmd_init_from_file: error: mismatch between text model (n_embd = 64) and mmproj (n_embd = 128)
E srv    load_model: failed to load multimodal model, 'p.gguf'
"""


def verdict_of(backend: str, log: str) -> Verdict:
    verdict = ENGINES[backend].explain_exit(1, log)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("backend", ENGINES)
def test_no_reason_is_made_up(backend: str) -> None:
    assert ENGINES[backend].explain_exit(1, "all is well") is None


MAIN_MEMORY = "out of memory (main memory"


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
        ("ggml_aligned_malloc: insufficient memory (attempted to allocate 900 MB)", MAIN_MEMORY),
        ("terminate called after throwing an instance of 'std::bad_alloc'", MAIN_MEMORY),
        ("ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 1", MAIN_MEMORY),
    ],
)
def test_what_may_go_well_another_time_is_never_parked(backend: str, log: str, words: str) -> None:
    verdict = verdict_of(backend, log)
    assert words in verdict.message
    assert not verdict.permanent


@pytest.mark.parametrize(
    ("log", "words", "permanent"),
    [
        ("error: invalid argument: --x\n", "bad argument", True),
        ("gguf_init_from_file_impl: invalid magic characters", "not a GGUF file", True),
        ("unknown model architecture: 'zamba'", "unsupported model architecture", True),
        ("couldn't bind HTTP server socket, hostname: 127.0.0.1", "port taken", False),
        (MISMATCH, "`llama_server_mmproj` is no projector of this model", True),
    ],
)
def test_llama_servers_sentences_in_plain_words(log: str, words: str, permanent: bool) -> None:
    verdict = verdict_of("llama_server", log)
    assert (verdict.message, verdict.permanent) == (words, permanent)


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


NO_GPU = "llama.cpp sees no GPU, and was given 1\n"


@pytest.mark.parametrize(
    ("backend", "log", "words", "permanent"),
    [
        ("llama_server", REFUSED, "llama.cpp does not see its GPU", False),
        ("llama_server", NOT_STARTED + REFUSED, "CUDA did not start", False),
        ("llama_server", OLD_DRIVER + REFUSED, "the NVIDIA driver is older than the CUDA of this build", True),
        ("llama_server", NO_LIBRARY, "a library of CUDA or of the NVIDIA driver is missing", False),
        ("llama_cpp", f"llama-cpp-python: it was built without CUDA: {NO_GPU}", "was built without CUDA", True),
        ("llama_cpp", f"llama-cpp-python: {NOT_STARTED.strip()}: {NO_GPU}", "CUDA did not start", False),
        ("llama_cpp", f"llama-cpp-python: {OLD_DRIVER.strip()}: {NO_GPU}", "the NVIDIA driver is older", True),
        ("llama_cpp", f"llama-cpp-python: CUDA did not start: {NO_GPU}", "does not see all of its GPUs", False),
        (
            "llama_cpp",
            "llama.cpp sees 1 of the 2 GPUs that it was given: look after",
            "does not see all of its GPUs",
            False,
        ),
    ],
)
def test_a_llama_cpp_that_cannot_have_its_gpu_says_where_to_look(
    backend: str, log: str, words: str, permanent: bool
) -> None:
    verdict = verdict_of(backend, log)
    assert words in verdict.message
    assert verdict.permanent is permanent
    if backend == "llama_server" and not permanent:
        assert "`image`" in verdict.message or "nvidia-smi" in verdict.message


# Engines of a worker.

NO_ROOM_IN_SPLIT = "Insufficient VRAM in split for model and cache"
TORCH_OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 12080). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: "
    "https://pytorch.org to install a PyTorch version that has been compiled with your version of the CUDA driver."
)
"""Of c10/cuda/CUDAFunctions.cpp, as in guqiong96/Lvllmds4#46."""
TORCH_WARNING = (
    "/opt/roundhouse/lib/python3.12/site-packages/torch/cuda/__init__.py:184: UserWarning: CUDA initialization: "
    f"{TORCH_OLD_DRIVER} (Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:119.)"
)
OLD_CUDA = "CUDA driver version is insufficient for CUDA runtime version"
"""What `cudaGetErrorString` says of `cudaErrorInsufficientDriver`."""


MENDED_BY_NO_START = {
    "exllamav3": {
        f"ExLlamaV3 cannot load /m: {TORCH_OLD_DRIVER}": "the NVIDIA driver of this host is too old",
        f"{TORCH_WARNING}\nExLlamaV3 sees none of the GPUs that": "driver of this host is",
        "ExLlamaV3 cannot load /models/CUDA-7B: Unknown architecture X in": "not a model",
        "ExLlamaV3 cannot be used: No module named 'torch' (it is the extra": "not installed",
        "ExLlamaV3 needs a GPU, and sees none here: declare `gpus`": "needs a GPU",
    },
    "ct2": {
        f"CTranslate2 cannot load /m: CUDA failed with error {OLD_CUDA}": "host is too old",
        "CTranslate2 cannot load /m: This package was not compiled with CUDA support": "without CUDA",
        "CTranslate2 cannot load /m: Unsupported model binary version": "not a model",
        "CTranslate2 cannot be used: No module named 'ctranslate2' (it is": "not installed",
    },
    "litert_lm": {
        "LiteRT-LM cannot be used: No module named 'litert_lm' (": "not installed",
        "x.litertlm holds no language model, but embedding": "not a language model",
    },
    "onnx": {
        "x-vocab.txt is not a BERT vocabulary: it has no [UNK]": "not a tokenizer",
        "no output of the model is an embedding": "not an embedding model",
        "--max-tokens 2 leaves no room for a text": "bad argument",
        (
            "ONNX Runtime cannot load /m/a.onnx: Deserialize tensor w failed. External data path does not exist"
        ): "external data",
    },
}
MENDED_LATER = {
    "exllamav3": {
        (
            "ExLlamaV3 cannot load /m: The tensor-parallel shared arena needs 64.0 MiB of POSIX shared memory"
        ): "too little shared memory",
        "ExLlamaV3 cannot load /m: CUDA error: all CUDA-capable devices are busy": "the GPU",
        "ExLlamaV3 cannot load /m: NCCL error in: ProcessGroup.cpp": "the GPU",
        # turboderp-org/exllamav3#50, #361
        f"ExLlamaV3 cannot load /m: {NO_ROOM_IN_SPLIT}": "raise `vram_mib`",
        "ExLlamaV3 sees 1 of the 2 GPUs that it was given": "does not see all of its GPUs",
        (
            "ExLlamaV3 cannot load /m: CUDA out of memory. Tried to allocate"
        ): "out of memory while it loaded (lower exllama_cache_size",
        (
            "ExLlamaV3 failed: OutOfMemoryError('CUDA out of memory. Tried to allocate 232.00 MiB."
        ): "out of memory while it served (lower exllama_cache_size",
        "ExLlamaV3 failed: AcceleratorError('CUDA error: an illegal memory access": "the GPU",
        "ExLlamaV3 failed: ValueError('odd')": "failed while it answered",
        # PyTorch's words, as in vllm-project/vllm#14885
        "ExLlamaV3 cannot load /m: CUDA error: invalid argument": "the GPU",
        "ExLlamaV3 cannot load /models/a: b: CUDA error: invalid argument": "the GPU",
        "ExLlamaV3 cannot be used: CUDA error: unknown error": "the GPU",
        "ExLlamaV3 cannot be used: libcudart.so.12: cannot open shared": "ExLlamaV3 cannot be",
        "ExLlamaV3 cannot be used: Error building extension 'exllamav3_ext'": "cannot be used",
        "ExLlamaV3 sees none of the GPUs that it was given (GPU-1)": "sees none of its GPUs",
    },
    "ct2": {
        "CTranslate2 cannot load /m: CUDA failed with error out of memory": "out of memory while it loaded",
        "CTranslate2 cannot load /m: CUDA failed with error no CUDA-capable device is": "the GPU",
        "CTranslate2 cannot load /m: cuBLAS failed with status CUBLAS_STATUS_NOT_INIT": "the GPU",
        "CTranslate2 cannot be used: libcublas.so.12: cannot open shared": "cannot be used",
    },
    "litert_lm": {
        "MemoryError: std::bad_alloc": "out of memory",
        "port 8000 on 127.0.0.1 is taken: stop what": "port taken",
    },
    "onnx": {
        "bad_alloc": "out of memory",
        "port 8000 on 127.0.0.1 is taken: stop what": "port taken",
    },
}


@pytest.mark.parametrize(
    ("backend", "line", "message", "permanent"),
    [
        (backend, line, message, table is MENDED_BY_NO_START)
        for table in (MENDED_BY_NO_START, MENDED_LATER)
        for backend, ends in table.items()
        for line, message in ends.items()
    ],
)
def test_ends_of_workers_engines(backend: str, line: str, message: str, permanent: bool) -> None:
    verdict = verdict_of(backend, f"loading\n{line}\n")
    assert message in verdict.message
    assert verdict.permanent is permanent


# vLLM.

UPSTREAM = """\
(EngineCore pid=8730) ERROR 11-21 20:26:50 [core.py:1510] Exception: WorkerProc initialization failed due to an \
exception in a background process. See stack trace for root cause.
Traceback (most recent call last):
Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""
"""What the processes above a failed one write after it."""
HEALTHY = """\
(EngineCore pid=77) INFO 11-21 21:00:00 [core.py:134] Initializing a V1 LLM engine (v0.32.0) with config: \
model='/models/x', trust_remote_code=True, dtype=torch.bfloat16
(EngineCore pid=77) INFO 11-21 21:00:05 [gpu_worker.py:510] Free memory on device (131.2/139.8 GiB) on startup. \
Desired GPU memory utilization is (0.92, 128.6 GiB).
"""
"""What a start that goes well writes."""
WORKER = "(Worker pid=8741) ERROR 11-21 20:26:48 [multiproc_executor.py:953] "
TOO_LARGE = (
    "out of memory while it loaded (lower vllm_kv_cache_memory_bytes, vllm_max_model_len or target_inflight, or give "
    "it more GPUs)"
)
SERVED_TOO_MUCH = (
    "out of memory while it served (lower vllm_gpu_memory_utilization or vram_mib, or the cache in bytes, so that more "
    "is left for requests, or target_inflight, which makes them fewer)"
)
OFFLINE_LINE = (
    "LocalEntryNotFoundError: Cannot find the requested files in the disk cache and outgoing traffic has been disabled."
    " To enable hf.co look-ups and downloads online, set 'x' to False."
)
BROKEN_GPU = "the GPU, its driver or its libraries failed vLLM"
UNSEEN_CLASS = (
    "vLLM could not look into the model's class (rarely the model's fault: the GPU, its driver, vLLM's files)"
)


def _inspection(cause: str) -> str:
    """What vLLM writes when the process in which it looks at a model's class fails for `cause`.

    vllm-project/vllm#22376 for the form, #41848 and #46132 for a MIG instance.
    """
    prefix = "(APIServer pid=111587) ERROR 08-07 01:36:12 [registry.py:415] "
    lines = [
        "Error in inspecting model architecture 'GptOssForCausalLM'",
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.12/dist-packages/vllm/model_executor/models/registry.py", line 825, in _run',
        "    returned.check_returncode()",
        "subprocess.CalledProcessError: Command '['/usr/bin/python', '-m', 'vllm.model_executor.models.registry']' "
        "returned non-zero exit status 1.",
        "The above exception was the direct cause of the following exception:",
        "RuntimeError: Error raised in subprocess:",
        "/usr/lib/python3.12/runpy.py:128: RuntimeWarning: 'vllm.model_executor.models.registry' found in sys.modules",
        cause,
    ]
    end = (
        "(APIServer pid=111587) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "(APIServer pid=111587)   Value error, Model architectures ['GptOssForCausalLM'] failed to be inspected. "
        "Please check the logs for more details. [type=value_error, input_value=ArgsKwargs((), {'model': ...}), "
        "input_type=ArgsKwargs]\n"
    )
    return "".join(f"{prefix}{line}\n" for line in lines) + end


VALUE = "  Value error, "
OLD_DRIVER_WORDS = (
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12080). Please update your GPU driver by "
    "downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)


PARKED = {
    "unrecognized arguments: --nope": ("vllm: error: ", "bad argument"),
    "argument --kv-cache-dtype: invalid choice: 'x'": (
        "usage: vllm serve [options]\nvllm serve: error: ",
        "bad argument",
    ),
    "SafetensorError: Error while deserializing header": (
        f"{WORKER}safetensors._safetensors_rust.",
        "the model's files are corrupted or incomplete",
    ),
    "RuntimeError: Cannot find any model weights with `m`": (WORKER, "there are no weights in the model's folder"),
    (
        "The checkpoint you are trying to load has model type `foo` but Transformers does not recognize this "
        "architecture."
    ): (
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n{VALUE}",
        "unsupported model architecture",
    ),
    "Model architectures ['FooForCausalLM'] are not supported for now.": (VALUE, "unsupported model architecture"),
    "User-specified max_model_len (9) is greater than the derived max_model_len (4)": (
        VALUE,
        "vllm_max_model_len is more than the model can do",
    ),
    "Total number of attention heads (2) must be divisible by tensor parallel size (8).": (
        VALUE,
        "the model cannot be split over that many GPUs",
    ),
    "KeyError: 'invalid tool call parser: nope (chose from { a,b })'": ("", "no such vllm_tool_call_parser"),
    "KeyError: \"Reasoning parser 'nope' not found. Available parsers: a, b\"": ("", "no such vllm_reasoning_parser"),
    "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/srv/nope'.": (
        "",
        "there is no such model",
    ),
    "Input should be 'ngram' or 'mtp' [type=literal_error, input_value='nope', input_type=str]": (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\nmethod\n  ",
        "vLLM cannot speculate like that",
    ),
    # guqiong96/Lvllmds4#46, an image of CUDA 13 on driver 570
    OLD_DRIVER_WORDS: (
        "(EngineCore pid=546) ERROR 08-12 03:12:29 [core.py:1202] ",
        (
            "the NVIDIA driver of this host is too old for the CUDA that the engine was built with: update the driver, "
            "or take a build for an earlier CUDA (docs/images.md)"
        ),
    ),
    (
        "ValueError: The repository m contains custom code which must be executed. Please pass the argument "
        "`trust_remote_code=True` to allow custom code to be run."
    ): ("", "the model brings code of its own: vllm_trust_remote_code is not set"),
    "World size (4) is larger than the number of available GPUs (2) in this node. If this is": (
        VALUE,
        "vllm_tensor_parallel_size is more than the GPUs that the engine sees",
    ),
    # oss_harmony 0.0.11, which vLLM 0.32 has and which holds its vocabulary, with a wrong folder.
    "HarmonyError: invalid tiktoken vocab file: No such file or directory (os error 2)": (
        "openai_harmony.",
        "TIKTOKEN_ENCODINGS_BASE names no folder with o200k_base.tiktoken and cl100k_base.tiktoken",
    ),
    # huggingface_hub 2.4.0, file_download.py
    OFFLINE_LINE: (
        "huggingface_hub.errors.",
        "a file is missing in the model's folder or the hub's cache, and HF_HUB_OFFLINE keeps vLLM from the hub",
    ),
}
"""Errors of vLLM's that no new start would mend: the lines before each, and what is said of it."""
TRIED_AGAIN = {
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": (f"{WORKER}torch.", TOO_LARGE),
    # noonghunna/club-3090#16
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB.": (
        (
            "(EngineCore pid=112) ERROR 05-01 14:39:06 [core.py:1131] EngineCore encountered a fatal error.\n"
            "(EngineCore pid=112) ERROR 05-01 14:39:06 [core.py:1131] Traceback (most recent call last):\n"
            "(EngineCore pid=112) ERROR 05-01 14:39:06 [core.py:1131] torch."
        ),
        SERVED_TOO_MUCH,
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine."
    ): (
        WORKER,
        (
            "out of memory: its share has no room for a KV cache (raise vram_mib or vllm_gpu_memory_utilization, or "
            "lower target_inflight)"
        ),
    ),
    "ValueError: Available memory on node 0 (18/19 GiB) on kv cache allocation is less": (WORKER, TOO_LARGE),
    "OSError: We couldn't connect to 'https://huggingface.co' to load the files": (
        "",
        "the model's hub cannot be reached",
    ),
    "OSError: [Errno 98] Address already in use": ("", "port taken"),
    (
        "ValueError: Free memory on device (9.1/139.8 GiB) on startup is less than desired GPU memory utilization "
        "(0.92, 128.6 GiB)."
    ): (
        WORKER,
        (
            "out of memory: less is free than it takes at once (lower vram_mib or vllm_gpu_memory_utilization, or end "
            "what else uses the GPU)"
        ),
    ),
    "AcceleratorError: CUDA error: an illegal memory access": (f"{HEALTHY}{WORKER}torch.", BROKEN_GPU),
    # vllm-project/vllm#14885, #49101 and #18446
    "RuntimeError: CUDA error: invalid argument": ("[rank0]: Traceback (most recent call last):\n", BROKEN_GPU),
    "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'": ("", BROKEN_GPU),
    (
        "DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:133, unhandled cuda "
        "error (run with NCCL_DEBUG=INFO for details)"
    ): ("(VllmWorker rank=7 pid=240) torch.distributed.", BROKEN_GPU),
    "LocalEntryNotFoundError: couldn't connect to 'https://hf'": (
        f"{HEALTHY}{WORKER}huggingface_hub.errors.",
        "the model's hub cannot be reached",
    ),
    # openai_harmony of the images before 0.32: vllm-project/vllm#22525, openai/harmony#46.
    "HarmonyError: error downloading or loading vocab file: failed to download or load vocab file": (
        "(APIServer pid=1) openai_harmony.",
        (
            "this vLLM brings no vocabulary for gpt-oss along, and cannot download it: put o200k_base.tiktoken and "
            "cl100k_base.tiktoken into a folder below the models folder and set TIKTOKEN_ENCODINGS_BASE to it (`env`)"
        ),
    ),
}


@pytest.mark.parametrize("after", ["", f"\n{UPSTREAM}"], ids=["alone", "below other processes"])
@pytest.mark.parametrize("error", [*PARKED, *TRIED_AGAIN])
def test_why_vllm_ended(error: str, after: str) -> None:
    before, reason = (PARKED | TRIED_AGAIN)[error]
    check_vllm(f"{before}{error}{after}", f"{reason}: {error}", permanent=error in PARKED)


def check_vllm(log: str, words: str, *, permanent: bool) -> None:
    verdict = verdict_of("vllm_serve", log)
    assert (verdict.message, verdict.permanent) == (words, permanent)
    plain = verdict_of_exit("vllm_serve", Exit(1, log_tail=log), was_ready=False).plain
    assert plain is not None
    own_words = [line.partition("Error: ")[2] for line in log.splitlines() if "Error: " in line]
    assert [each for each in own_words if each and each in plain] == [], "vLLM's own words are for operators"


MIG = "ValueError: invalid literal for int() with base 10: 'MIG-377e0049-554c-540b-93c6-d0976f8426cb'"
NOT_INSPECTED = (
    "Model architectures ['GptOssForCausalLM'] failed to be inspected. Please check the logs for more details. "
    "[type=value_error, input_value=ArgsKwargs((), {'model': ...}), input_type=ArgsKwargs]"
)


@pytest.mark.parametrize(
    ("log", "words", "permanent"),
    [
        (_inspection(MIG), f"{UNSEEN_CLASS}: {MIG}", False),
        (
            _inspection("torch.AcceleratorError: CUDA error: unknown error"),
            f"{BROKEN_GPU}: AcceleratorError: CUDA error: unknown error",
            False,
        ),
        (_inspection(""), f"{UNSEEN_CLASS}: {NOT_INSPECTED}", False),
        (  # as transformers goes on; its own words alone would mean that the hub cannot be reached
            f"{OFFLINE_LINE}\nOSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't "
            "find them in the cached files.",
            f"a file is missing in the model's folder or the hub's cache, and HF_HUB_OFFLINE keeps vLLM from the hub: "
            f"{OFFLINE_LINE}",
            True,
        ),
        (
            f"{WORKER}torch.OutOfMemoryError: CUDA out of memory.\n"
            "(APIServer pid=1) ERROR 05-01 14:39:06 [serving.py:1173] vllm.v1.engine.exceptions.EngineDeadError: "
            "EngineCore encountered an issue. See stack trace (above) for the root cause.",
            f"{SERVED_TOO_MUCH}: OutOfMemoryError: CUDA out of memory.",
            False,
        ),
        (
            "[rank0]: Traceback (most recent call last):\nRuntimeError: CUDA error: invalid argument\n"
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might "
            "be incorrect.",
            f"{BROKEN_GPU}: RuntimeError: CUDA error: invalid argument",
            False,
        ),
        (f"{HEALTHY}vLLM was killed while loading: probably out of memory", TOO_LARGE, False),
        ("No module named 'vllm': install the extra `vllm`", "vLLM is not installed (extra `vllm`)", True),
        ("a.b.OddError: nobody knows\nRuntimeError: later", "OddError: nobody knows", False),
    ],
)
def test_why_vllm_ended_in_other_words(log: str, words: str, permanent: bool) -> None:
    check_vllm(log, words, permanent=permanent)


@pytest.mark.parametrize("log", ["", UPSTREAM, HEALTHY, "WARNING failed with error current limit exceeds"])
def test_no_reason_is_made_up_for_vllm(log: str) -> None:
    assert vllm_verdict(log) is None


def test_memory_that_ends_while_it_serves_is_tried_again_at_once_and_at_its_load_later_and_later() -> None:
    lines = f"{WORKER}torch.OutOfMemoryError: CUDA out of memory."
    served = verdict_of_exit(
        "vllm", Exit(1, log_tail=f"EngineCore encountered a fatal error.\n{lines}"), was_ready=True
    )
    loaded = verdict_of_exit("vllm", Exit(1, log_tail=lines), was_ready=False)
    assert served.message.startswith("out of memory while it served")
    assert loaded.message.startswith("out of memory while it loaded")
    assert next_failure(None, served, 1, 100.0, ready_for_s=5.0).retry_at == 100.0
    first = next_failure(None, loaded, 1, 100.0, ready_for_s=None)
    again = next_failure(first, loaded, 2, 200.0, ready_for_s=None)
    assert (first.retry_at, again.retry_at) == (101.0, 202.0)


def test_the_reason_is_found_far_above_the_end() -> None:
    traceback = "".join(f'  File "/a/very/long/path/of/vllm/part{n}.py", line {n}, in load\n' for n in range(60))
    log = f"{WORKER}RuntimeError: the cause\n" + (traceback + UPSTREAM) * 4
    assert len(log.splitlines()) > 200
    verdict = vllm_verdict(plain_tail(log.encode(), EXIT_LINES))
    assert verdict is not None
    assert re.match("RuntimeError: the cause$", verdict.message)
