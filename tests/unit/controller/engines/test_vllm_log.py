"""What vLLM's log tells of an end."""

from __future__ import annotations

import re

import pytest

from controller.engines import ENGINES
from controller.engines.vllm_log import vllm_verdict
from controller.planning.backoff import next_failure, verdict_of_exit
from controller.runtimes.logs import EXIT_LINES, plain_tail
from controller.state import Exit

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
VOCABULARY = "error downloading or loading vocab file: failed to download or load vocab file"
WORKER = "(Worker pid=8741) ERROR 11-21 20:26:48 [multiproc_executor.py:953] "
TOO_LARGE = (
    "out of memory while it loaded (lower vllm_kv_cache_memory_bytes, vllm_max_model_len or target_inflight, or give "
    "it more GPUs)"
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


@pytest.mark.parametrize(
    ("log", "words", "permanent"),
    [
        ("vllm: error: unrecognized arguments: --nope", "bad argument: unrecognized arguments: --nope", True),
        (
            "usage: vllm serve [options]\nvllm serve: error: argument --kv-cache-dtype: invalid choice: 'x'",
            "bad argument: argument --kv-cache-dtype: invalid choice: 'x'",
            True,
        ),
        (
            f"{WORKER}safetensors._safetensors_rust.SafetensorError: Error while deserializing header\n{UPSTREAM}",
            "the model's files are corrupted or incomplete: SafetensorError: Error while deserializing header",
            True,
        ),
        (
            f"{WORKER}RuntimeError: Cannot find any model weights with `m`\n{UPSTREAM}",
            "there are no weights in the model's folder: RuntimeError: Cannot find any model weights with `m`",
            True,
        ),
        (
            f"{WORKER}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n{UPSTREAM}",
            f"{TOO_LARGE}: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            False,
        ),
        (
            # noonghunna/club-3090#16
            "(EngineCore pid=112) ERROR 05-01 14:39:06 [core.py:1131] EngineCore encountered a fatal error.\n"
            "(EngineCore pid=112) ERROR 05-01 14:39:06 [core.py:1131] Traceback (most recent call last):\n"
            "(EngineCore pid=112) ERROR 05-01 14:39:06 [core.py:1131] torch.OutOfMemoryError: CUDA out of memory. "
            "Tried to allocate 50.00 MiB.\n"
            "(APIServer pid=1) ERROR 05-01 14:39:06 [serving.py:1173] vllm.v1.engine.exceptions.EngineDeadError: "
            "EngineCore encountered an issue. See stack trace (above) for the root cause.",
            "out of memory while it served (lower vllm_gpu_memory_utilization or vram_mib, or the cache in bytes, so "
            "that more is left for requests, or target_inflight, which makes them fewer): OutOfMemoryError: CUDA out "
            "of memory. Tried to allocate 50.00 MiB.",
            False,
        ),
        (
            f"{WORKER}ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` "
            f"when initializing the engine.\n{UPSTREAM}",
            "out of memory: its share has no room for a KV cache (raise vram_mib or vllm_gpu_memory_utilization, or "
            "lower target_inflight): ValueError: No available memory for the cache blocks. Try increasing "
            "`gpu_memory_utilization` when initializing the engine.",
            False,
        ),
        (
            f"{WORKER}ValueError: Available memory on node 0 (18/19 GiB) on kv cache allocation is less\n{UPSTREAM}",
            f"{TOO_LARGE}: ValueError: Available memory on node 0 (18/19 GiB) on kv cache allocation is less",
            False,
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, The checkpoint you are trying to load has model type `foo` but Transformers does not "
            "recognize this architecture.",
            "unsupported model architecture: The checkpoint you are trying to load has model type `foo` but "
            "Transformers does not recognize this architecture.",
            True,
        ),
        (
            "  Value error, Model architectures ['FooForCausalLM'] are not supported for now.",
            "unsupported model architecture: Model architectures ['FooForCausalLM'] are not supported for now.",
            True,
        ),
        (
            "  Value error, User-specified max_model_len (9) is greater than the derived max_model_len (4)",
            "vllm_max_model_len is more than the model can do: User-specified max_model_len (9) is greater than the "
            "derived max_model_len (4)",
            True,
        ),
        (
            "  Value error, Total number of attention heads (2) must be divisible by tensor parallel size (8).",
            "the model cannot be split over that many GPUs: Total number of attention heads (2) must be divisible by "
            "tensor parallel size (8).",
            True,
        ),
        (
            "KeyError: 'invalid tool call parser: nope (chose from { a,b })'",
            "no such vllm_tool_call_parser: KeyError: 'invalid tool call parser: nope (chose from { a,b })'",
            True,
        ),
        (
            "KeyError: \"Reasoning parser 'nope' not found. Available parsers: a, b\"",
            "no such vllm_reasoning_parser: KeyError: \"Reasoning parser 'nope' not found. Available parsers: a, b\"",
            True,
        ),
        (
            "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/srv/nope'.",
            "there is no such model: OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
            "'/srv/nope'.",
            True,
        ),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
            "the model's hub cannot be reached: OSError: We couldn't connect to 'https://huggingface.co' to load the "
            "files",
            False,
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\nmethod\n"
            "  Input should be 'ngram' or 'mtp' [type=literal_error, input_value='nope', input_type=str]",
            "vLLM cannot speculate like that: Input should be 'ngram' or 'mtp' [type=literal_error, "
            "input_value='nope', input_type=str]",
            True,
        ),
        ("OSError: [Errno 98] Address already in use", "port taken: OSError: [Errno 98] Address already in use", False),
        (
            f"{WORKER}ValueError: Free memory on device (9.1/139.8 GiB) on startup is less than desired GPU memory "
            f"utilization (0.92, 128.6 GiB).\n{UPSTREAM}",
            "out of memory: less is free than it takes at once (lower vram_mib or vllm_gpu_memory_utilization, or end "
            "what else uses the GPU): ValueError: Free memory on device (9.1/139.8 GiB) on startup is less than "
            "desired GPU memory utilization (0.92, 128.6 GiB).",
            False,
        ),
        (  # guqiong96/Lvllmds4#46, an image of CUDA 13 on driver 570
            "(EngineCore pid=546) ERROR 08-12 03:12:29 [core.py:1202] RuntimeError: The NVIDIA driver on your "
            "system is too old (found version 12080). Please update your GPU driver by downloading and installing a "
            f"new version from the URL: http://www.nvidia.com/Download/index.aspx\n{UPSTREAM}",
            "the NVIDIA driver of this host is too old for the CUDA that the engine was built with: update the driver, "
            "or take a build for an earlier CUDA (docs/images.md): RuntimeError: The NVIDIA driver on your system is "
            "too old (found version 12080). Please update your GPU driver by downloading and installing a new version "
            "from the URL: http://www.nvidia.com/Download/index.aspx",
            True,
        ),
        (
            f"{HEALTHY}{WORKER}torch.AcceleratorError: CUDA error: an illegal memory access\n{UPSTREAM}",
            f"{BROKEN_GPU}: AcceleratorError: CUDA error: an illegal memory access",
            False,
        ),
        (
            # vllm-project/vllm#14885
            "[rank0]: Traceback (most recent call last):\nRuntimeError: CUDA error: invalid argument\n"
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might "
            "be incorrect.",
            f"{BROKEN_GPU}: RuntimeError: CUDA error: invalid argument",
            False,
        ),
        (
            # vllm-project/vllm#49101
            f"Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'\n{UPSTREAM}",
            f"{BROKEN_GPU}: Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'",
            False,
        ),
        (
            # vllm-project/vllm#18446
            "(VllmWorker rank=7 pid=240) torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/"
            "distributed/c10d/NCCLUtils.cpp:133, unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
            f"{BROKEN_GPU}: DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:133, "
            "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
            False,
        ),
        (
            _inspection(
                "ValueError: invalid literal for int() with base 10: 'MIG-377e0049-554c-540b-93c6-d0976f8426cb'"
            ),
            f"{UNSEEN_CLASS}: ValueError: invalid literal for int() with base 10: "
            "'MIG-377e0049-554c-540b-93c6-d0976f8426cb'",
            False,
        ),
        (
            _inspection("torch.AcceleratorError: CUDA error: unknown error"),
            f"{BROKEN_GPU}: AcceleratorError: CUDA error: unknown error",
            False,
        ),
        (
            _inspection(""),
            f"{UNSEEN_CLASS}: Model architectures ['GptOssForCausalLM'] failed to be inspected. Please check the logs "
            "for more details. [type=value_error, input_value=ArgsKwargs((), {'model': ...}), input_type=ArgsKwargs]",
            False,
        ),
        (
            f"{HEALTHY}{WORKER}huggingface_hub.errors.LocalEntryNotFoundError: couldn't connect to 'https://hf'",
            "the model's hub cannot be reached: LocalEntryNotFoundError: couldn't connect to 'https://hf'",
            False,
        ),
        (
            "ValueError: The repository m contains custom code which must be executed. Please pass the argument "
            "`trust_remote_code=True` to allow custom code to be run.",
            "the model brings code of its own: vllm_trust_remote_code is not set: ValueError: The repository m "
            "contains custom code which must be executed. Please pass the argument `trust_remote_code=True` to allow "
            "custom code to be run.",
            True,
        ),
        (
            f"{HEALTHY}vLLM was killed while loading: probably out of memory",
            TOO_LARGE,
            False,
        ),
        (
            "  Value error, World size (4) is larger than the number of available GPUs (2) in this node. If this is",
            "vllm_tensor_parallel_size is more than the GPUs that the engine sees: World size (4) is larger than the "
            "number of available GPUs (2) in this node. If this is",
            True,
        ),
        (
            # openai_harmony of the images before 0.32: vllm-project/vllm#22525, openai/harmony#46.
            f"(APIServer pid=1) openai_harmony.HarmonyError: {VOCABULARY}",
            "this vLLM brings no vocabulary for gpt-oss along, and cannot download it: put o200k_base.tiktoken and "
            "cl100k_base.tiktoken into a folder below the models folder and set TIKTOKEN_ENCODINGS_BASE to it (`env`)"
            f": HarmonyError: {VOCABULARY}",
            False,
        ),
        (
            # oss_harmony 0.0.11, which vLLM 0.32 has and which holds its vocabulary, with a wrong folder.
            "openai_harmony.HarmonyError: invalid tiktoken vocab file: No such file or directory (os error 2)",
            "TIKTOKEN_ENCODINGS_BASE names no folder with o200k_base.tiktoken and cl100k_base.tiktoken: HarmonyError: "
            "invalid tiktoken vocab file: No such file or directory (os error 2)",
            True,
        ),
        (
            # huggingface_hub 2.4.0, file_download.py
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and "
            "outgoing traffic has been disabled. To enable hf.co look-ups and downloads online, set 'x' to False.\n"
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in "
            "the cached files.",
            "a file is missing in the model's folder or the hub's cache, and HF_HUB_OFFLINE keeps vLLM from the hub: "
            "LocalEntryNotFoundError: Cannot find the requested files in the disk cache and outgoing traffic has been "
            "disabled. To enable hf.co look-ups and downloads online, set 'x' to False.",
            True,
        ),
        ("No module named 'vllm': install the extra `vllm`", "vLLM is not installed (extra `vllm`)", True),
        ("a.b.OddError: nobody knows\nRuntimeError: later", "OddError: nobody knows", False),
    ],
)
def test_why_it_ended(log: str, words: str, permanent: bool) -> None:
    verdict = ENGINES["vllm_serve"].explain_exit(1, log)
    assert verdict is not None
    assert (verdict.message, verdict.permanent) == (words, permanent)
    plain = verdict_of_exit("vllm_serve", Exit(1, log_tail=log), was_ready=False).plain
    assert plain is not None
    own_words = [line.partition("Error: ")[2] for line in log.splitlines() if "Error: " in line]
    assert [told for told in own_words if told and told in plain] == [], "vLLM's own words are for operators"


@pytest.mark.parametrize(
    "log", ["", "all is well", UPSTREAM, HEALTHY, "WARNING failed with error current limit exceeds"]
)
def test_no_reason_is_made_up(log: str) -> None:
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
