"""vLLM's command lines, environment, probes, and what its log tells of an end."""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import pytest

from controller.engines import ENGINES
from controller.engines.base import Launch, RenderContext
from controller.engines.vllm_log import vllm_verdict
from controller.planning.backoff import next_failure, verdict_of_exit
from controller.runtimes.logs import EXIT_LINES, plain_tail
from controller.runtimes.process.preflight import check_program
from controller.state import Exit

DOCKER = RenderContext(
    runtime="docker",
    served_name="chat",
    models_root=PurePosixPath("/models"),
    host="0.0.0.0",
    port=8000,
    cache_dir=PurePosixPath("/cache/7"),
    images={"vllm": "img/vllm", "worker-vllm": "img/worker-vllm"},
)
PROCESS = RenderContext(
    runtime="process",
    served_name="chat",
    models_root=PurePosixPath("/srv/models"),
    host="127.0.0.1",
    port=4242,
    cache_dir=PurePosixPath("/var/cache"),
    executables={"python": "/venv/bin/python"},
)
SILENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def _launch(backend: str, ctx: RenderContext, **fields: Any) -> Launch:
    engine = ENGINES[backend]
    needed = {} if "vllm_model" in fields else {"model_path": "a/b"}
    return engine.render_command(engine.definition.model_validate({"backend": backend, **needed, **fields}), ctx)


def test_vllm_serve_in_a_container() -> None:
    launch = _launch(
        "vllm_serve",
        DOCKER,
        gpus=2,
        vllm_kv_cache_memory_bytes=2**31,
        vllm_max_pixels=4014080,
        vllm_mm_processor_kwargs={"min_pixels": 1, "max_pixels": 2},
        vllm_limit_mm_per_prompt={"image": 2},
        vllm_speculative_method="mtp",
        vllm_speculative_model="google/assistant",
        vllm_tool_call_parser="gemma4",
        vllm_reasoning_parser="gemma4",
        vllm_chat_template_file="t.jinja",
        vllm_serve_binary="/opt/bin/vllm",
        vllm_serve_library_path="/opt/lib",
        extra_args=["--seed", "3"],
        env={"HF_TOKEN": "t", "DO_NOT_TRACK": "0"},
    )
    assert launch.argv == (
        *("vllm", "serve", "/models/a/b", "--host", "0.0.0.0", "--port", "8000", "--served-model-name", "chat"),
        *("--max-num-seqs", "64", "--tensor-parallel-size", "2", "--disable-uvicorn-access-log"),
        *("--kv-cache-memory-bytes", "2147483648", "--reasoning-parser", "gemma4", "--tool-call-parser", "gemma4"),
        *("--gpu-memory-utilization", "0.01"),
        *("--enable-auto-tool-choice", "--chat-template", "/models/t.jinja"),
        *("--mm-processor-kwargs", '{"min_pixels":1,"max_pixels":4014080}', "--limit-mm-per-prompt", '{"image":2}'),
        *("--speculative-config", '{"method":"mtp","num_speculative_tokens":1,"model":"google/assistant"}'),
        *("--seed", "3"),
    )
    own = {"VLLM_CACHE_ROOT": "/cache/7/vllm", "HF_HOME": "/cache/7/huggingface", "HF_TOKEN": "t", "DO_NOT_TRACK": "0"}
    assert launch.env == SILENT | own
    assert (launch.image, launch.token_env, launch.shm_bytes) == ("img/vllm", "VLLM_API_KEY", 10 * 2**30)


@pytest.mark.parametrize("backend", ["vllm_serve", "vllm"])
def test_lora_modules_are_named_folders(backend: str) -> None:
    modules = {"french": "lora/fr", "terse": "lora/terse"}
    launch = _launch(
        backend, DOCKER, vllm_lora_modules=modules, vllm_max_lora_rank=32, vllm_max_loras=2, extra_args=["--seed", "3"]
    )
    assert launch.argv[launch.argv.index("--disable-uvicorn-access-log") + 1 :] == (
        *("--max-lora-rank", "32", "--max-loras", "2", "--enable-lora"),
        *("--lora-modules", "french=/models/lora/fr", "terse=/models/lora/terse", "--seed", "3"),
    )
    assert launch.env == _launch(backend, DOCKER).env, "modules are paths, so nothing is fetched"
    engine = ENGINES[backend]
    definition = engine.definition.model_validate(
        {"backend": backend, "model_path": "a/b", "vllm_lora_modules": modules}
    )
    assert engine.lora_modules(definition) == ("french", "terse")
    assert [(check.field, check.full_path, check.kind) for check in engine.list_files(definition)[1:]] == [
        ("vllm_lora_modules", "lora/fr", "folder"),
        ("vllm_lora_modules", "lora/fr/adapter_config.json", "file"),
        ("vllm_lora_modules", "lora/terse", "folder"),
        ("vllm_lora_modules", "lora/terse/adapter_config.json", "file"),
    ]
    with pytest.raises(ValueError, match="vllm_lora_modules: 'chat' is the name of the model itself"):
        _launch(backend, DOCKER, vllm_lora_modules={"chat": "lora/fr"})
    for name in ("", "a=b", "a b", "-a", "a/b", "x" * 65):
        with pytest.raises(ValueError, match="vllm_lora_modules"):
            _launch(backend, DOCKER, vllm_lora_modules={name: "lora/fr"})


def test_only_vllm_serves_modules_as_models() -> None:
    definition = ENGINES["vllm"].definition.model_validate({"backend": "vllm", "model_path": "a/b"})
    assert ENGINES["vllm"].lora_modules(definition) == ()
    llama = ENGINES["llama_server"]
    assert llama.lora_modules(llama.definition.model_validate({"model_path": "a.gguf"})) is None


def test_vllm_serve_as_a_process() -> None:
    named = {"vllm_serve_binary": "/opt/bin/vllm", "vllm_serve_library_path": "/opt/lib:/lib2"}
    launch = _launch("vllm_serve", PROCESS, vllm_model="Qwen/Qwen3-8B", target_inflight=3, vllm_embedding=True, **named)
    assert launch.argv[:3] == ("/opt/bin/vllm", "serve", "Qwen/Qwen3-8B")
    assert launch.argv[launch.argv.index("--max-num-seqs") :] == (
        *("--max-num-seqs", "3", "--tensor-parallel-size", "1", "--disable-uvicorn-access-log"),
        *("--runner", "pooling"),
    )
    assert launch.env == SILENT | {"VLLM_CACHE_ROOT": "/var/cache/vllm", "LD_LIBRARY_PATH": "/opt/lib:/lib2"}
    assert launch.shm_bytes is None
    assert _launch("vllm_serve", PROCESS).argv[:2] == ("vllm", "serve")


def test_vllm_in_a_worker_s_process_has_the_same_arguments() -> None:
    fields = {"vllm_max_model_len": 512, "vllm_enforce_eager": True, "vllm_trust_remote_code": True}
    inside, serve = _launch("vllm", PROCESS, **fields), _launch("vllm_serve", PROCESS, **fields)
    assert inside.argv[:5] == ("/venv/bin/python", "-m", "worker", "vllm", "--")
    assert inside.argv[5:] == serve.argv[2:]
    assert (inside.env, inside.token_env) == (serve.env, serve.token_env)
    assert _launch("vllm", DOCKER, **fields).argv[0] == "/opt/roundhouse/bin/python"


@pytest.mark.parametrize("model", [None, "google/assistant"])
def test_without_a_method_nothing_is_speculated(model: str | None) -> None:
    argv = _launch("vllm", PROCESS, vllm_speculative_model=model, vllm_num_speculative_tokens=3).argv
    assert "--speculative-config" not in argv
    argv = _launch("vllm", PROCESS, vllm_speculative_method="ngram", vllm_num_speculative_tokens=3).argv
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"gpus": 1, "vllm_kv_cache_memory_bytes": 2**31}, ["0.01"]),
        ({"device": "cuda", "vllm_kv_cache_memory_bytes": 2**31}, ["0.01"]),
        ({"gpus": 1, "vllm_kv_cache_memory_bytes": 2**31, "vllm_gpu_memory_utilization": 0.3}, ["0.3"]),
        ({"vllm_kv_cache_memory_bytes": 2**31}, []),
        ({"gpus": 1}, []),
    ],
)
def test_a_cache_in_bytes_asks_for_no_share_of_the_gpu(fields: dict[str, Any], told: list[str]) -> None:
    argv = _launch("vllm", PROCESS, **fields).argv
    assert [value for flag, value in pairwise(argv) if flag == "--gpu-memory-utilization"] == told


@pytest.mark.parametrize("backend", ["vllm", "vllm_serve"])
@pytest.mark.parametrize("ctx", [DOCKER, PROCESS])
@pytest.mark.parametrize(
    ("fields", "is_offline"),
    [
        ({}, True),
        ({"vllm_speculative_method": "ngram"}, True),
        ({"vllm_speculative_method": "mtp", "vllm_speculative_model": "/models/assistant"}, True),
        ({"vllm_speculative_model": "google/assistant"}, True),
        ({"extra_args": ["--seed", "3", "--tokenizer", "/models/tokenizer"]}, True),
        ({"vllm_model": "Qwen/Qwen3-8B"}, False),
        ({"vllm_speculative_method": "mtp", "vllm_speculative_model": "google/assistant"}, False),
        ({"extra_args": ["--tokenizer", "Qwen/Qwen3-8B"]}, False),
        ({"extra_args": ["--hf_config_path=Qwen/Qwen3-8B"]}, False),
        ({"extra_args": ["--lora-modules", "a=/models/a", "b=someone/b"]}, False),
    ],
)
def test_nothing_is_asked_of_the_hub_where_every_name_is_a_path(
    backend: str, ctx: RenderContext, fields: dict[str, Any], is_offline: bool
) -> None:
    # vLLM#39039: a file that is missing in the folder was looked for on the hub, with time-outs on a closed network.
    env = _launch(backend, ctx, **fields).env
    assert {name: env[name] for name in OFFLINE if name in env} == (OFFLINE if is_offline else {})


def test_a_definition_s_own_word_about_the_hub_rules() -> None:
    assert _launch("vllm", PROCESS, env={"HF_HUB_OFFLINE": "0"}).env["HF_HUB_OFFLINE"] == "0"


def test_what_is_not_installed_is_said_before_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert check_program(_launch("vllm_serve", PROCESS).argv) == (
        "program vllm is not on PATH: install vLLM, or name its program as vllm_serve_binary, or take the backend vllm"
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    argv = (sys.executable, *_launch("vllm", PROCESS).argv[1:])
    assert check_program(argv) == "Python package vllm is not installed: pip install 'roundhouse[vllm]'"


@pytest.mark.parametrize("backend", ["vllm", "vllm_serve"])
@pytest.mark.parametrize("embedding", [True, False])
def test_it_is_probed_by_a_path_that_it_has(backend: str, embedding: bool) -> None:
    engine = ENGINES[backend]
    definition = engine.definition.model_validate({"backend": backend, "model_path": "m", "vllm_embedding": embedding})
    assert engine.describe_probe(definition).ready_path in engine.list_apis(definition)
    assert engine.describe_probe(definition).ready_path == ("/v1/embeddings" if embedding else "/v1/completions")


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
