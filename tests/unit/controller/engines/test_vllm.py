"""vLLM's command lines, environment and probes. What its log tells of an end: `test_vllm_log`."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import pytest

from controller.engines import ENGINES
from controller.engines.base import Launch, RenderContext
from controller.runtimes.process.preflight import check_program

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
