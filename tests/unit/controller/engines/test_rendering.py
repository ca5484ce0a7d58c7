"""Command lines, environments and files of each backend's engines."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.engines import ENGINES, vllm_guard
from controller.engines.base import ClaimedGpu, RenderContext
from controller.runtimes.model_files import check_files
from controller.runtimes.process.launch import check_program
from controller.state import AppliedFigures
from tests.support.definitions import DOCKER, PROCESS, define, render, render_argv
from worker.__main__ import parse_engine
from worker.engines.litert_lm import BACKENDS
from worker.engines.onnx import POOLINGS

# llama.cpp


def test_llama_server_in_a_container() -> None:
    launch = render(
        "llama_server",
        model_path="a/b.gguf",
        llama_server_n_ctx=4096,
        llama_server_mmproj="a/mm.gguf",
        llama_server_spec_type="draft-mtp",
        llama_server_spec_draft_p_min=0.25,
        target_inflight=2,
        extra_args=["--no-warmup"],
    )
    assert launch.image == "img/llama-server"
    assert launch.argv == (
        *("/app/llama-server", "--model", "/models/a/b.gguf", "--alias", "chat", "--host", "0.0.0.0", "--port", "8000"),
        *("--parallel", "2", "--kv-unified", "--fit", "off", "--metrics", "--slots", "--jinja", "--no-webui"),
        *("--cache-ram", "0", "--ctx-size", "4096", "--flash-attn", "auto", "--spec-type", "draft-mtp"),
        *("--spec-draft-n-max", "2", "--spec-draft-p-min", "0.25"),
        *("--mmproj", "/models/a/mm.gguf", "--no-warmup"),
    )


def test_llama_server_as_a_process_is_a_binary_or_embedded() -> None:
    embedded = render_argv("llama_server", PROCESS, llama_server_embedding=True)
    assert embedded[:5] == ["/venv/bin/python", "-m", "worker", "llama_server", "--"]
    assert embedded[-1] == "--embeddings"
    named = render_argv("llama_server", PROCESS, llama_server_binary="/opt/llama-server")
    assert named[:3] == ["/opt/llama-server", "--model", "/srv/models/m"]


@pytest.mark.parametrize("backend", ["llama_server", "llama_cpp"])
def test_llama_cpp_splits_a_model_over_gpus_as_they_are_claimed(backend: str) -> None:
    def rendered(*claims: int) -> list[str]:
        gpus = tuple(ClaimedGpu(f"GPU-{number}", mib, 80_000) for number, mib in enumerate(claims))
        return render_argv(backend, replace(DOCKER, gpus=gpus), gpus=len(claims), extra_args=["--tensor-split", "1,0"])

    argv = rendered(12_000, 24_000)
    assert argv[argv.index("--tensor-split") + 1] == "12000,24000", "llama.cpp's own default is by free memory"
    assert argv[-2:] == ["--tensor-split", "1,0"], "what is declared comes last, and rules"
    assert rendered(*[100] * 15).count("--tensor-split") == 2
    for claims in ([], [12_000], [100] * 16):
        assert rendered(*claims).count("--tensor-split") == 1, "its parser takes fifteen at most"


def test_declared_shares_of_gpus_stand_in_for_claims() -> None:
    gpus = tuple(ClaimedGpu(f"GPU-{number}", 1000, 2000) for number in range(2))
    argv = render_argv("llama_server", replace(DOCKER, gpus=gpus), gpus=2, llama_server_tensor_split=[3, 1])
    assert [value for flag, value in pairwise(argv) if flag == "--tensor-split"] == ["3.0,1.0"]


def test_llama_server_keeps_as_many_prompts_in_main_memory_as_is_declared() -> None:
    argv = render_argv("llama_server", llama_server_cache_ram_mib=2048)
    assert argv[argv.index("--cache-ram") + 1] == "2048"
    assert define("llama_server", memory_mib=4096, llama_server_cache_ram_mib=4095)
    with pytest.raises(ValueError, match="llama_server_cache_ram_mib is a part of memory_mib, so it is less than 4096"):
        define("llama_server", memory_mib=4096, llama_server_cache_ram_mib=4096)


@pytest.mark.parametrize(("context", "cache"), [(DOCKER, "/cache"), (PROCESS, "/var/cache")])
def test_each_replica_of_llama_server_saves_its_slots_into_a_folder_of_its_own(
    context: RenderContext, cache: str
) -> None:
    for name, quoted in (("chat", "chat"), ("org/chat:Q4", "org%2Fchat%3AQ4")):
        for index in (0, 3):
            launch = render(
                "llama_server", replace(context, served_name=name, index=index), llama_server_slot_save=True
            )
            folder = f"{cache}/slots/{quoted}/{index}"
            assert launch.argv[-2:] == ("--slot-save-path", folder)
            assert launch.folders == (PurePosixPath(folder),)
    plain = render("llama_server", context, llama_server_slot_save=False)
    assert ("--slot-save-path" in plain.argv, plain.folders) == (False, ())


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, ["--lora", "/models/b,/models/c/d"]),
        (
            {"llama_server_lora_scales": [0, -0.5], "llama_server_mmproj": "e"},
            ["--mmproj", "/models/e", "--lora-scaled", "/models/b:0.0,/models/c/d:-0.5"],
        ),
        ({"llama_server_lora_scales": [0.25]}, ["--lora-scaled", "/models/b:0.25,/models/c/d:1"]),
    ],
)
def test_llama_server_gets_adapters_with_their_scales(fields: dict[str, Any], end: list[str]) -> None:
    argv = render_argv("llama_server", llama_server_lora=["b", "c/d"], **fields)
    assert argv[-len(end) :] == end
    assert sum(each.startswith("--lora") for each in argv) == 1
    assert render("llama_server", llama_server_lora_scales=[0.25]) == render("llama_server")


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"llama_server_lora": ["a"], "llama_server_lora_scales": [1, 2]}, "has 2 values for 1 adapters"),
        ({"llama_server_lora": ["a,b"]}, "takes no path with ','"),
        ({"llama_server_lora": ["a:b"], "llama_server_lora_scales": [1]}, "takes no path with ':'"),
    ],
)
def test_adapters_that_llama_server_would_not_read_as_they_are_meant(lora: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        render("llama_server", **lora)
    render("llama_server", llama_server_lora=["a:b"])


@pytest.mark.parametrize("context", [DOCKER, PROCESS], ids=["docker", "process"])
def test_llama_cpp_is_given_the_gpus_that_it_must_have(context: RenderContext) -> None:
    argv = render_argv("llama_server", context, gpus=2, extra_args=["--no-warmup"])
    assert argv[-3:] == ["--device", "CUDA0,CUDA1", "--no-warmup"]
    assert render_argv("llama_server", context, device="cuda")[-2:] == ["--device", "CUDA0"]
    assert render_argv("llama_cpp", context, gpus=["GPU-b", 0])[-2:] == ["--gpu-count", "2"]
    for backend in ("llama_server", "llama_cpp"):
        for fields in ({}, {"gpus": 0}, {"device": "cpu"}):
            assert not {"--device", "--gpu-count"} & set(render_argv(backend, context, **fields))


@pytest.mark.parametrize(
    ("extra_args", "env"),
    [(["--device", "none"], {}), (["-dev", "Vulkan0"], {}), ([], {"LLAMA_ARG_DEVICE": "Vulkan0"})],
)
def test_devices_that_a_definition_names_itself_rule(extra_args: list[str], env: dict[str, str]) -> None:
    argv = render_argv("llama_server", gpus=1, extra_args=extra_args, env=env)
    assert "CUDA0" not in argv
    assert argv[len(argv) - len(extra_args) :] == extra_args


def test_libraries_of_a_program_are_found_where_the_definition_says() -> None:
    fields: dict[str, Any] = {"llama_server_library_path": "/opt/lib"}
    assert render("llama_server", PROCESS, **fields).env["LD_LIBRARY_PATH"] == "/opt/lib"
    assert "LD_LIBRARY_PATH" not in render("llama_server", DOCKER, **fields).env
    own = render("llama_server", PROCESS, **fields, env={"LD_LIBRARY_PATH": "/other"})
    assert own.env["LD_LIBRARY_PATH"] == "/other"


# Every worker.


def test_workers_get_their_options_as_arguments() -> None:
    launch = render("llama_cpp", gguf_n_ctx=512, gguf_type_k="q8_0")
    assert launch.image == "img/worker"
    assert launch.argv[1:] == (
        *("-m", "worker", "llama_cpp", "--host", "0.0.0.0", "--port", "8000", "--served-name", "chat"),
        *("--model", "/models/m", "--n-ctx", "512", "--flash-attn", "auto", "--type-k", "q8_0"),
    )
    argv = render_argv("stub", PROCESS, stub_text="hello", stub_load_s=1.5)
    assert (argv[0], argv[-3:]) == ("/venv/bin/python", ["--text=hello", "--load-s", "1.5"])


@pytest.mark.parametrize("backend", ["llama_server", "llama_cpp", "stub"])
def test_no_secret_and_no_placement_is_rendered(backend: str) -> None:
    launch = render(backend, gpus=1, vram_mib=5)
    assert launch.token_env is not None
    assert launch.token_env not in launch.env
    assert not {"--api-key", "--gpus"} & set(launch.argv)


def test_a_remote_starts_nothing() -> None:
    engine = ENGINES["openai_remote"]
    definition = define("openai_remote", base_url="https://phone.example/v1/", remote_model="nano")
    assert not engine.runs
    remote = engine.describe_remote(definition)
    assert remote is not None
    assert (remote.base_url, remote.model) == ("https://phone.example/v1", "nano")
    with pytest.raises(TypeError, match="starts nothing"):
        engine.render_command(definition, DOCKER)


@pytest.mark.parametrize(
    "fields", [{"base_url": "ftp://x"}, {"api_key_env": "A", "api_key_file": "b"}, {"replicas": 2}]
)
def test_a_remote_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"base_url|exclude|remote model"):
        define("openai_remote", **fields)


def test_layers_that_are_split_over_gpus_are_passed_through_shared_memory() -> None:
    split: dict[str, Any] = {"gpus": 2, "exllama_tensor_parallel": True}
    assert render("exllamav3", **split).shm_bytes == 10 * 2**30
    assert render("exllamav3", gpus=2).shm_bytes is None
    assert render("exllamav3", PROCESS, **split).shm_bytes is None


def parse_flags(backend: str, **fields: Any) -> dict[str, Any]:
    """What the worker understands of the command line, without what is every engine's."""
    python, dash_m, worker, engine, *arguments = render_argv(backend, PROCESS, **fields)
    assert (python, dash_m, worker, engine) == ("/venv/bin/python", "-m", "worker", backend)
    found = vars(parse_engine(engine, arguments)[1])
    assert (found.pop("host"), found.pop("port"), found.pop("served_name")) == ("127.0.0.1", 4242, "chat")
    assert found.pop("model") == Path("/srv/models/m")
    return found


@pytest.mark.parametrize(
    ("fields", "device"),
    [({}, "cpu"), ({"gpus": 0}, "cpu"), ({"gpus": 1}, "cuda"), ({"device": "cuda"}, "cuda")],
)
def test_ct2_computes_where_the_definition_says(fields: dict[str, Any], device: str) -> None:
    assert parse_flags("ct2", **fields)["device"] == device


PLAIN_FLAGS: dict[str, dict[str, Any]] = {
    "litert_lm": {
        "backend": "cpu",
        "vision_backend": None,
        "audio_backend": None,
        "max_tokens": None,
        "cache_dir": Path("/var/cache/litert-lm"),
        "session_cache": 4,
    },
    "onnx": {"tokenizer": None, "max_tokens": None, "pooling": "mean", "no_normalize": False, "threads": 0},
}


@pytest.mark.parametrize(
    ("backend", "fields", "changed"),
    [
        ("litert_lm", {}, {}),
        ("litert_lm", {"gpus": 1}, {"backend": "gpu"}),
        ("litert_lm", {"gpus": 1, "litert_lm_backend": "cpu"}, {}),
        ("litert_lm", {"device": "cuda", "litert_lm_backend": "gpu"}, {"backend": "gpu"}),
        ("litert_lm", {"litert_lm_vision_backend": "cpu"}, {"vision_backend": "cpu"}),
        ("litert_lm", {"litert_lm_audio_backend": "cpu"}, {"audio_backend": "cpu"}),
        ("litert_lm", {"litert_lm_max_tokens": 100}, {"max_tokens": 100}),
        ("litert_lm", {"session_cache": 7}, {"session_cache": 7}),
        ("litert_lm", {"extra_args": ["--max-tokens", "7"]}, {"max_tokens": 7}),
        ("onnx", {}, {}),
        ("onnx", {"onnx_tokenizer": "b/t.json"}, {"tokenizer": Path("/srv/models/b/t.json")}),
        ("onnx", {"onnx_max_tokens": 100}, {"max_tokens": 100}),
        ("onnx", {"onnx_pooling": "cls"}, {"pooling": "cls"}),
        ("onnx", {"onnx_normalize": False}, {"no_normalize": True}),
        ("onnx", {"onnx_threads": 2}, {"threads": 2}),
        ("onnx", {"extra_args": ["--threads", "3"]}, {"threads": 3}),
    ],
)
def test_every_field_reaches_the_worker(backend: str, fields: dict[str, Any], changed: dict[str, Any]) -> None:
    assert parse_flags(backend, **fields) == PLAIN_FLAGS[backend] | changed


@pytest.mark.parametrize("backend", ["litert_lm", "onnx"])
def test_workers_run_in_their_image_or_by_the_hosts_python(backend: str) -> None:
    contained = render(backend, env={"A": "b"})
    assert contained.argv[0] == "/opt/roundhouse/bin/python"
    assert (contained.image, contained.token_env) == ("img/worker", "ROUNDHOUSE_ENGINE_TOKEN")
    assert contained.env == {"A": "b"}
    assert render(backend, image="mine:2").image == "mine:2"


def test_the_worker_knows_every_choice() -> None:
    fields = ENGINES["litert_lm"].definition.model_fields
    [named, _] = get_args(fields["litert_lm_backend"].annotation)
    assert get_args(named) == BACKENDS
    assert get_args(ENGINES["onnx"].definition.model_fields["onnx_pooling"].annotation) == POOLINGS


@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "m-vocab.txt", "vocab.txt"])
def test_an_embedding_model_s_tokenizer_is_looked_for(tmp_path: Path, tokenizer: str) -> None:
    def fault(**fields: Any) -> str | None:
        files = ENGINES["onnx"].list_files(define("onnx", model_path="a/m.onnx", **fields))
        return check_files(ModelRoots((tmp_path,)), files)

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "m.onnx").write_bytes(b"x")
    (tmp_path / tokenizer).write_text("in another folder")
    wanted = "tokenizer.json or *-vocab.txt or vocab.txt"
    assert fault() == f"model_path: a/m.onnx needs a file beside it that is not there: {wanted}"
    assert str(fault(onnx_tokenizer="t.json")).startswith(f"onnx_tokenizer: t.json is missing from {tmp_path}")
    (tmp_path / "a" / tokenizer).write_text("x")
    assert fault() is None


# vLLM

SILENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
VLLMS = pytest.mark.parametrize("backend", ["vllm", "vllm_serve"])


def test_vllm_serve_in_a_container() -> None:
    launch = render(
        "vllm_serve",
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
        *("vllm", "serve", "/models/m", "--host", "0.0.0.0", "--port", "8000", "--served-model-name", "chat"),
        *("--max-num-seqs", "64", "--tensor-parallel-size", "2", "--disable-uvicorn-access-log"),
        *("--kv-cache-memory-bytes", "2147483648", "--reasoning-parser", "gemma4", "--tool-call-parser", "gemma4"),
        *("--gpu-memory-utilization", "0.01"),
        *("--enable-auto-tool-choice", "--chat-template", "/models/t.jinja"),
        *("--mm-processor-kwargs", '{"min_pixels":1,"max_pixels":4014080}', "--limit-mm-per-prompt", '{"image":2}'),
        *("--speculative-config", '{"method":"mtp","num_speculative_tokens":1,"model":"google/assistant"}'),
        *("--seed", "3"),
    )
    own = {"VLLM_CACHE_ROOT": "/cache/vllm", "HF_HOME": "/cache/huggingface", "HF_TOKEN": "t", "DO_NOT_TRACK": "0"}
    assert launch.env == SILENT | own
    assert (launch.image, launch.token_env, launch.shm_bytes) == ("img/vllm", "VLLM_API_KEY", 10 * 2**30)


@VLLMS
def test_lora_modules_are_named_folders(backend: str) -> None:
    modules = {"french": "lora/fr", "terse": "lora/terse"}
    launch = render(
        backend, vllm_lora_modules=modules, vllm_max_lora_rank=32, vllm_max_loras=2, extra_args=["--seed", "3"]
    )
    assert launch.argv[launch.argv.index("--disable-uvicorn-access-log") + 1 :] == (
        *("--max-lora-rank", "32", "--max-loras", "2", "--enable-lora"),
        *("--lora-modules", "french=/models/lora/fr", "terse=/models/lora/terse", "--seed", "3"),
    )
    assert launch.env == render(backend).env, "modules are paths, so nothing is fetched"
    engine, definition = ENGINES[backend], define(backend, vllm_lora_modules=modules)
    assert engine.lora_modules(definition) == ("french", "terse")
    files = [(check.field, check.full_path, check.kind) for check in engine.list_files(definition)[1:]]
    assert files == [
        ("vllm_lora_modules", path, kind)
        for folder in modules.values()
        for path, kind in ((folder, "folder"), (f"{folder}/adapter_config.json", "file"))
    ]
    with pytest.raises(ValueError, match="vllm_lora_modules: 'chat' is the name of the model itself"):
        render(backend, vllm_lora_modules={"chat": "lora/fr"})
    for name in ("", "a=b", "a b", "-a", "a/b", "x" * 65):
        with pytest.raises(ValueError, match="vllm_lora_modules"):
            render(backend, vllm_lora_modules={name: "lora/fr"})


def test_only_vllm_serves_modules_as_models() -> None:
    assert ENGINES["vllm"].lora_modules(define("vllm")) == ()
    assert ENGINES["llama_server"].lora_modules(define("llama_server")) is None


def test_vllm_serve_as_a_process() -> None:
    named = {"vllm_serve_binary": "/opt/bin/vllm", "vllm_serve_library_path": "/opt/lib:/lib2"}
    launch = render("vllm_serve", PROCESS, vllm_model="Qwen/Qwen3-8B", target_inflight=3, vllm_embedding=True, **named)
    assert launch.argv[:3] == ("/opt/bin/vllm", "serve", "Qwen/Qwen3-8B")
    assert launch.argv[launch.argv.index("--max-num-seqs") :] == (
        *("--max-num-seqs", "3", "--tensor-parallel-size", "1", "--disable-uvicorn-access-log"),
        *("--runner", "pooling"),
    )
    assert launch.env == SILENT | {"VLLM_CACHE_ROOT": "/var/cache/vllm", "LD_LIBRARY_PATH": "/opt/lib:/lib2"}
    assert launch.shm_bytes is None
    assert render_argv("vllm_serve", PROCESS)[:2] == ["vllm", "serve"]


def test_vllm_in_a_worker_s_process_has_the_same_arguments() -> None:
    fields: dict[str, Any] = {
        "vllm_max_model_len": 512, "vllm_enforce_eager": True, "vllm_trust_remote_code": True,
    }  # fmt: skip
    inside, serve = render("vllm", PROCESS, **fields), render("vllm_serve", PROCESS, **fields)
    assert inside.argv[:5] == ("/venv/bin/python", "-m", "worker", "vllm", "--")
    assert inside.argv[5:] == serve.argv[2:]
    assert (inside.env, inside.token_env) == (serve.env, serve.token_env)
    assert render("vllm", **fields).argv[0] == "/opt/roundhouse/bin/python"


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({"vllm_num_speculative_tokens": 3}, None),
        ({"vllm_speculative_model": "google/assistant", "vllm_num_speculative_tokens": 3}, None),
        ({"vllm_speculative_config": {"prompt_lookup_max": 4}}, None),
        (
            {"vllm_speculative_method": "ngram", "vllm_num_speculative_tokens": 3},
            '{"method":"ngram","num_speculative_tokens":3}',
        ),
        (
            {"vllm_speculative_method": "ngram", "vllm_speculative_config": {"prompt_lookup_max": 4}},
            '{"prompt_lookup_max":4,"method":"ngram","num_speculative_tokens":1}',
        ),
    ],
)
def test_without_a_method_nothing_is_speculated(fields: dict[str, Any], config: str | None) -> None:
    values = [
        value for flag, value in pairwise(render_argv("vllm", PROCESS, **fields)) if flag == "--speculative-config"
    ]
    assert values == ([] if config is None else [config])


def test_groups_of_layers_divide_the_gpus() -> None:
    argv = render_argv("vllm_serve", gpus=4, vllm_pipeline_parallel_size=2)
    assert argv[argv.index("--tensor-parallel-size") + 1] == "2"
    assert argv[argv.index("--pipeline-parallel-size") + 1] == "2"
    declared = render_argv("vllm_serve", gpus=4, vllm_pipeline_parallel_size=2, vllm_tensor_parallel_size=1)
    assert declared[declared.index("--tensor-parallel-size") + 1] == "1"


def test_code_by_override_is_taken_where_the_models_code_is_trusted() -> None:
    trusted: dict[str, Any] = {"vllm_trust_remote_code": True}
    assert "--hf-overrides" in render_argv("vllm", vllm_hf_overrides={"auto_map": {}}, **trusted)
    fields: dict[str, Any] = {"vllm_speculative_method": "custom_class", "vllm_speculative_model": "m.Own"}
    assert "--speculative-config" in render_argv("vllm", **fields, **trusted)


@VLLMS
@pytest.mark.parametrize("context", [DOCKER, PROCESS])
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
    backend: str, context: RenderContext, fields: dict[str, Any], is_offline: bool
) -> None:
    # vLLM#39039: a file that is missing in the folder was looked for on the hub, with time-outs on a closed network.
    env = render(backend, context, **fields).env
    assert {name: env[name] for name in OFFLINE if name in env} == (OFFLINE if is_offline else {})
    own = render(backend, context, **fields, env={"HF_HUB_OFFLINE": "0"})
    assert own.env["HF_HUB_OFFLINE"] == "0", "a definition's own word rules"


def test_what_is_not_installed_is_said_before_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert check_program(render("vllm_serve", PROCESS).argv) == (
        "program vllm is not on PATH: install vLLM, or name its program as vllm_serve_binary, or take the backend vllm"
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    argv = (sys.executable, *render("vllm", PROCESS).argv[1:])
    assert check_program(argv) == "Python package vllm is not installed: pip install 'roundhouse[vllm]'"


@pytest.mark.parametrize(
    ("backend", "fields", "path"),
    [
        *((backend, {}, "/v1/completions") for backend in ("vllm", "vllm_serve")),
        *((backend, {"vllm_embedding": True}, "/v1/embeddings") for backend in ("vllm", "vllm_serve")),
        *((backend, {}, None) for backend in ("exllamav3", "ct2", "litert_lm", "onnx")),
    ],
)
def test_an_engine_is_probed_by_an_api_that_it_has(backend: str, fields: dict[str, Any], path: str | None) -> None:
    engine, definition = ENGINES[backend], define(backend, **fields)
    ready_path = engine.describe_probe(definition).ready_path
    assert ready_path in engine.list_apis(definition)
    assert path in (None, ready_path)


# The share of each GPU that vLLM takes: what `vram_mib` means, which the planner claims.

GIB = 2**30


def shares(backend: str = "vllm", *gpus: ClaimedGpu, **fields: Any) -> list[str]:
    """What follows each `--gpu-memory-utilization`."""
    argv = render_argv(backend, replace(DOCKER, gpus=gpus), **{"gpus": 1, "vram_mib": 20_000, **fields})
    return [value for flag, value in pairwise(argv) if flag == "--gpu-memory-utilization"]


@VLLMS
@pytest.mark.parametrize(
    ("claim", "totals", "share"),
    [
        (20_000, (81_559,), "0.2333"),
        (81_559, (81_559,), "0.9805"),
        (73_403, (81_559,), "0.8815"),
        (20_000, (81_559, 40_960), "0.4208"),
        (780, (81_559,), "0.0001"),
    ],
)
def test_what_is_declared_becomes_the_share_of_the_smallest_gpu(
    backend: str, claim: int, totals: tuple[int, ...], share: str
) -> None:
    gpus = [ClaimedGpu(f"GPU-{total}", claim, total) for total in totals]
    assert shares(backend, *gpus, gpus=len(gpus), vram_mib=claim) == [share]
    assert float(share) * min(totals) < claim, "never more than is claimed"


H200_MIB, H200_CUDA_MIB, H200_SHARE_STEP_MIB = 143_771, 143_155, 15
"""What NVML and CUDA say that an H200 has, and 0.0001 of it."""


@pytest.mark.parametrize(
    ("declared", "old_share", "held"), [(20_127, 0.1399, 20_616), (43_131, 0.2999, 43_604), (86_262, 0.5999, 86_702)]
)
def test_an_h200_holds_no_more_than_is_declared(declared: int, old_share: float, held: int) -> None:
    """vLLM, without CUDA graphs, with the whole claim as its share: what it held then, after one long prompt."""
    beside = held - old_share * H200_CUDA_MIB
    [share] = shares("vllm", ClaimedGpu("GPU-a", declared, H200_MIB), vram_mib=declared)
    holds = float(share) * H200_CUDA_MIB + beside
    # The last two were perhaps held before the long prompt, which took 272 MiB more of the first.
    assert holds <= declared
    assert declared - 272 - 616 - declared // 100 - H200_SHARE_STEP_MIB < holds, "and not much less"
    if declared > 20_127:
        assert holds + 272 <= declared


def test_an_engine_that_was_told_less_than_the_declared_share_applies_it() -> None:
    definition = define("vllm", gpus=1, vllm_gpu_memory_utilization=0.3)
    compare = ENGINES["vllm"].compare_figures
    assert compare(definition, AppliedFigures(gpu_share=0.2916)) == ()
    assert compare(definition, AppliedFigures(gpu_share=0.3)) == ()
    [gap] = compare(definition, AppliedFigures(gpu_share=0.35))
    assert (gap.field, gap.declared, gap.applied) == ("vllm_gpu_memory_utilization", 0.3, 0.35)


def test_an_h200_holds_no_more_than_a_declared_share() -> None:
    """vLLM 0.25.1 with the declared share as its own held 43,604 MiB of 43,131 after one long prompt."""
    beside = 43_604 - 0.3 * H200_CUDA_MIB
    fields: dict[str, Any] = {"vram_mib": None, "vllm_gpu_memory_utilization": 0.3, "target_inflight": 8}
    [share] = shares("vllm", ClaimedGpu("GPU-a", 43_132, H200_MIB), **fields)
    assert share == "0.2916"
    assert float(share) * H200_CUDA_MIB + beside <= 0.3 * H200_MIB


@pytest.mark.parametrize(
    ("declared", "eager", "sequences", "loaded", "held"),
    [
        (20_127, True, 64, 19_201, 19_781),
        (20_127, False, 64, 19_337, 19_853),
        (43_131, True, 64, 41_889, 42_469),
        (43_131, False, 64, 42_061, 42_609),
        (86_262, False, 64, 84_589, 85_137),
        (20_000, False, 256, 19_659, None),
    ],
)
def test_an_h200_held_so_much_of_what_was_declared(
    declared: int, eager: bool, sequences: int, loaded: int, held: int | None
) -> None:
    """Real vLLM 0.25.1 by this project's command line: after the load, and at last, after a prompt of the whole context
    and 64 at once. The last engine, another model, was seen after its load alone; the others grew by 580 at most."""
    share_then = round(int((declared - 768 - -(-declared // 100)) / H200_MIB * 10_000) / 10_000, 4)
    beside = (held if held is not None else loaded + 580) - share_then * H200_CUDA_MIB
    fields: dict[str, Any] = {"vram_mib": declared, "vllm_enforce_eager": eager, "target_inflight": sequences}
    [share] = shares("vllm", ClaimedGpu("GPU-a", declared, H200_MIB), **fields)
    assert float(share) * H200_CUDA_MIB + beside <= declared


@VLLMS
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"vllm_gpu_memory_utilization": 0.3}, ["0.2874"]),
        ({"vllm_kv_cache_memory_bytes": GIB}, ["0.01"]),
        ({"extra_args": ["--gpu-memory-utilization", "0.5"]}, ["0.5"]),
        ({"extra_args": ["--gpu_memory_utilization=0.5"]}, []),
        ({"extra_args": ["--device-memory-utilization", "0.5"]}, []),
        ({"extra_args": ["--kv-cache-memory-bytes", "1G"]}, []),
        ({"extra_args": ["--kv-cache-memory-bytes", "1G"], "vllm_gpu_memory_utilization": 0.3}, ["0.3"]),
        ({"vllm_kv_cache_memory_bytes": GIB, "vllm_gpu_memory_utilization": 0.3}, ["0.3"]),
        ({"vram_mib": None}, ["0.9012"]),
        ({"vram_mib": None, "gpus": 0}, []),
    ],
)
def test_what_says_more_rules(backend: str, fields: dict[str, Any], expected: list[str]) -> None:
    assert shares(backend, ClaimedGpu("GPU-a", 20_000, 80_000), **fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"gpus": 0}, []),
        ({"vram_mib": 700, "gpus": 0}, []),
        ({"vram_mib": 700, "vllm_kv_cache_memory_bytes": GIB}, ["0.01"]),
        ({"vram_mib": None, "vllm_kv_cache_memory_bytes": GIB}, ["0.01"]),
        ({"vram_mib": None, "gpus": None, "device": "cuda", "vllm_kv_cache_memory_bytes": GIB}, ["0.01"]),
        (
            {"vram_mib": None, "vllm_kv_cache_memory_bytes": GIB, "vllm_gpu_memory_utilization": 0.3},
            ["0.3"],
        ),
        ({"vram_mib": None, "gpus": 0, "vllm_kv_cache_memory_bytes": GIB}, []),
    ],
)
def test_before_the_gpus_are_known_little_is_said_of_them(fields: dict[str, Any], expected: list[str]) -> None:
    assert shares(**fields) == expected


def test_too_little_is_refused_before_the_gpus_are_known() -> None:
    with pytest.raises(ValueError, match=r"^vram_mib: 700 MiB leave nothing for weights and KV cache"):
        shares(vram_mib=700)


# Sleep

GUARDED = ("--enable-sleep-mode", "--middleware", "roundhouse_route_guard.RouteGuard")


@pytest.mark.parametrize("level", ["level1", "level2"])
def test_a_vllm_that_can_sleep_has_a_guard_before_the_routes_of_its_development_mode(level: str) -> None:
    plain = render("vllm_serve", PROCESS, gpus=1, extra_args=["--seed", "1"])
    launch = render("vllm_serve", PROCESS, gpus=1, extra_args=["--seed", "1"], vllm_sleep=level)
    folder = PurePosixPath("/var/cache/vllm-guard")
    guard = Path(str(vllm_guard.__file__)).read_text(encoding="utf-8")
    # Behind what is declared: the last middleware is the first that sees a request.
    assert launch.argv == (*plain.argv, *GUARDED)
    assert launch.env == {**plain.env, "VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(folder)}
    assert launch.folders == (*plain.folders, folder)
    assert (launch.files, plain.files) == ({folder / "roundhouse_route_guard.py": guard}, {})
    assert not {*GUARDED, "VLLM_SERVER_DEV_MODE"} & {*plain.argv, *plain.env}


def test_the_guard_s_folder_comes_before_a_declared_python_path() -> None:
    fields: dict[str, Any] = {"gpus": 1, "env": {"PYTHONPATH": "/opt/own:/opt/more"}}
    assert render("vllm_serve", PROCESS, **fields).env["PYTHONPATH"] == "/opt/own:/opt/more"
    sleeps = render("vllm_serve", DOCKER, **fields, vllm_sleep="level1")
    assert sleeps.env["PYTHONPATH"] == "/cache/vllm-guard:/opt/own:/opt/more"


def test_a_vllm_sleeps_and_wakes_by_the_calls_of_its_level() -> None:
    engine = ENGINES["vllm_serve"]
    assert engine.describe_sleep(define("vllm_serve", gpus=1)) is None
    first, second = (engine.describe_sleep(define("vllm_serve", gpus=1, vllm_sleep=f"level{each}")) for each in (1, 2))
    assert first is not None
    assert second is not None
    assert (first.sleep, first.wake, first.keeps_weights) == ((("/sleep?level=1", None),), (("/wake_up", None),), True)
    assert (second.sleep, second.keeps_weights) == ((("/sleep?level=2", None),), False)
    assert second.wake == (
        ("/wake_up?tags=weights", None),
        ("/collective_rpc", {"method": "reload_weights"}),
        ("/wake_up?tags=kv_cache", None),
    )
    assert first.canary_body == second.canary_body
    assert first.canary_body["temperature"] == 0
    assert all(each.describe_sleep(define(name)) is None for name, each in ENGINES.items() if name != "vllm_serve")
