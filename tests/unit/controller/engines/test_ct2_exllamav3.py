"""What definitions of the backends say of engines before any is started."""

from __future__ import annotations

from typing import Any

import pytest

from controller.engines import BACKEND_OF_SUFFIX, ENGINES, resolve_backend, spec_hash
from controller.engines.base import FileCheck
from controller.schema.desired import Definition
from tests.support.config_files import parse_text, problems_of


def _definition(backend: str, **fields: Any) -> Definition:
    named = {} if "vllm_model" in fields else {"model_path": "m"}
    definition: Definition = ENGINES[backend].definition.model_validate({"backend": backend, **named, **fields})
    return definition


@pytest.mark.parametrize("backend", ["vllm_serve", "vllm", "exllamav3", "ct2", "litert_lm", "onnx"])
def test_an_engine_is_probed_by_an_api_that_it_has(backend: str) -> None:
    probe = ENGINES[backend].describe_probe(_definition(backend))
    assert probe.ready_path in ENGINES[backend].list_apis(_definition(backend))


def test_defaults() -> None:
    for name, engine in ENGINES.items():
        # ExLlamaV3 compiles itself at its first start.
        long = {"vllm": 1800, "vllm_serve": 1800, "exllamav3": 3600}
        assert engine.start_timeout_s == long.get(name, 600), name
        many = {"vllm": 64, "vllm_serve": 64, "openai_remote": 64, "llama_server": 4}
        assert engine.default_target_inflight == many.get(name, 1), name
        assert engine.renders_inflight == (name in ("vllm", "vllm_serve", "llama_server")), name


def test_llama_cpp_and_litert_lm_honestly_take_one_at_a_time() -> None:
    for backend in ("llama_cpp", "litert_lm"):
        definition = _definition(backend, target_inflight=8)
        assert ENGINES[backend].configured_inflight(definition) == 8
        assert ENGINES[backend].target_inflight(definition) == 1


@pytest.mark.parametrize(
    ("fields", "inflight"),
    [({}, 1), ({"ct2_inter_threads": 3}, 3), ({"ct2_inter_threads": 3, "target_inflight": 2}, 2)],
)
def test_ct2_takes_as_many_as_it_computes_side_by_side(fields: dict[str, Any], inflight: int) -> None:
    definition = _definition("ct2", **fields)
    assert ENGINES["ct2"].target_inflight(definition) == inflight
    many = definition.model_copy(update={"target_inflight": 8})
    assert ENGINES["ct2"].configured_inflight(many) == 8
    assert ENGINES["ct2"].target_inflight(many) == fields.get("ct2_inter_threads", 1)


@pytest.mark.parametrize(
    ("backend", "fields", "artifacts", "checks"),
    [
        (
            "llama_server",
            {"llama_server_mmproj": "p", "llama_server_draft_model_path": "d", "llama_server_chat_template_file": "t"},
            ("m", "p", "d"),
            {"model_path", "llama_server_mmproj", "llama_server_draft_model_path", "llama_server_chat_template_file"},
        ),
        ("llama_cpp", {}, ("m",), {"model_path"}),
        ("vllm", {"vllm_chat_template_file": "t"}, ("m",), {"model_path", "vllm_chat_template_file"}),
        ("vllm_serve", {"vllm_model": "Qwen/Qwen3-8B"}, (), set()),
        ("exllamav3", {}, ("m",), {"model_path"}),
        ("ct2", {"ct2_tokenizer": "t"}, ("m",), {"model_path", "ct2_tokenizer"}),
        ("litert_lm", {}, ("m",), {"model_path"}),
        ("onnx", {"onnx_tokenizer": "t"}, ("m",), {"model_path", "onnx_tokenizer"}),
    ],
)
def test_artifacts_and_files(
    backend: str, fields: dict[str, Any], artifacts: tuple[str, ...], checks: set[str]
) -> None:
    definition = _definition(backend, **fields)
    assert ENGINES[backend].list_artifacts(definition) == artifacts
    assert {check.field for check in ENGINES[backend].list_files(definition)} == checks


def test_folders_are_checked_as_folders() -> None:
    assert ENGINES["exllamav3"].list_files(_definition("exllamav3")) == (
        FileCheck("model_path", "m", "folder"),
        FileCheck("model_path", "m", "file", "config.json"),
        FileCheck("model_path", "m", "file", "tokenizer.json"),
    )
    assert ENGINES["ct2"].list_files(_definition("ct2", ct2_tokenizer="t"))[1:] == (
        FileCheck("model_path", "m", "file", "model.bin"),
        FileCheck("ct2_tokenizer", "t", "folder"),
        FileCheck("ct2_tokenizer", "t", "file", "tokenizer.json"),
    )


@pytest.mark.parametrize("suffix", BACKEND_OF_SUFFIX)
def test_the_backend_of_a_file_and_not_of_a_folder(suffix: str) -> None:
    assert resolve_backend(f"a/model{suffix.upper()}") == BACKEND_OF_SUFFIX[suffix]
    parsed = parse_text(f"models: {{a: {{model_path: model{suffix}}}}}")
    assert parsed.definitions["a"].backend == BACKEND_OF_SUFFIX[suffix]
    assert resolve_backend(f"a/folder{suffix}/weights") is None


def test_files_may_hold_all_of_it() -> None:
    parsed = parse_text(
        """\
        models:
          big:
            backend: vllm_serve
            vllm_model: google/gemma-4-26B-A4B-it
            gpus: 2
            vllm_tensor_parallel_size: 2
            vllm_gpu_memory_utilization: 0.1
            vllm_kv_cache_memory_bytes: 2147483648
            vllm_mm_processor_kwargs: {max_pixels: 4014080, nested: {a: [1, b]}}
            vllm_limit_mm_per_prompt: {image: 2}
            vllm_speculative_method: mtp
            vllm_serve_binary: /opt/vllm/bin/vllm
          small:
            backend: exllamav3
            model_path: /srv/models/small-exl3
            exllama_cache_size: 32768
            exllama_cache_quant: "8,4"
          words:
            backend: onnx
            model_path: words.onnx
            onnx_tokenizer: /srv/models/words-vocab.txt
        """
    )
    assert list(parsed.problems) == []
    assert parsed.definitions["small"].model_path == "small-exl3"
    assert getattr(parsed.definitions["words"], "onnx_tokenizer") == "words-vocab.txt"  # noqa: B009


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("backend: vllm", "models.a: needs one of `model_path` and `vllm_model`"),
        ("{backend: vllm, model_path: m, vllm_model: n/m}", "model_path and vllm_model exclude each other"),
        ("{backend: exllamav3, model_path: m, exllama_cache_quant: fp16}", "exllama_cache_quant: must have the form"),
        ("{backend: exllamav3, model_path: m, exllama_cache_size: 8000}", "multiple of 256"),
        ("{backend: vllm, model_path: m, vllm_limit_mm_per_prompt: {image: two}}", "must be a whole number"),
        ("{backend: ct2, model_path: m, vllm_dtype: auto}", "belongs to backend vllm_serve and vllm"),
        (
            "{backend: vllm, model_path: m, gpus: 2, vllm_tensor_parallel_size: 4}",
            "vllm_tensor_parallel_size is 4, above the 2 GPUs of a replica",
        ),
        ("{backend: onnx, model_path: m, device: cuda}", "onnx computes on the CPU: leave `gpus` and `device` out"),
        ("{backend: ct2, model_path: m, gpus: 2}", "ct2 computes on one GPU: `gpus` is 2"),
        (
            "{backend: litert_lm, model_path: m, litert_lm_backend: gpu}",
            "litert_lm_backend is gpu, and the definition asks for no GPU: set `gpus: 1`",
        ),
        (
            "{backend: litert_lm, model_path: m, gpus: 0, litert_lm_vision_backend: gpu}",
            "litert_lm_vision_backend is gpu, and the definition asks for no GPU: set `gpus: 1`",
        ),
        (
            "{backend: litert_lm, model_path: m, gpus: 0, litert_lm_audio_backend: gpu}",
            "litert_lm_audio_backend is gpu, and the definition asks for no GPU: set `gpus: 1`",
        ),
        (
            "{backend: llama_cpp, model_path: m, gguf_chat_format: x, prompt_format: generic}",
            "gguf_chat_format and prompt_format exclude each other",
        ),
        ("{backend: stub, thinking_modes: [always]}", "thinking_modes[0]: must be `default`, `enabled` or `disabled`"),
    ],
)
def test_what_is_wrong_with_a_definition(line: str, problem: str) -> None:
    text = f"models:\n  a:\n    {line}\n"
    [found] = problems_of(text)
    assert problem in found


HASHES = [
    ("llama_server", {"model_path": "m.gguf"}, "3c9349452fd580d1"),
    (
        "llama_server",
        {
            "model_path": "a/b.gguf",
            "llama_server_n_ctx": 4096,
            "llama_server_mmproj": "mm.gguf",
            "target_inflight": 2,
            "gpus": 1,
            "extra_args": ["-x"],
        },
        "400caad5476ccc32",
    ),
    ("llama_cpp", {"model_path": "m.gguf"}, "5aaaa9c8670fa524"),
    (
        "llama_cpp",
        {"model_path": "m.gguf", "gguf_n_ctx": 512, "gguf_type_k": "q8_0", "env": {"A": "b"}},
        "e32d53243ba43ad4",
    ),
    ("openai_remote", {"base_url": "https://x/v1", "remote_model": "y"}, "0393eff42584e7c6"),
    ("stub", {}, "b0041e5113cb5963"),
    ("stub", {"stub_text": "hi", "stub_load_s": 1.5}, "003e531dc3219442"),
]


@pytest.mark.parametrize(("backend", "fields", "hashed"), HASHES)
def test_fields_that_came_later_restart_nothing(backend: str, fields: dict[str, Any], hashed: str) -> None:
    definition = ENGINES[backend].definition.model_validate({"backend": backend, **fields})
    assert spec_hash(definition, "img", "chat") == hashed
    capable = {"modalities": ["text", "image"], "multi_turn": False, "thinking_modes": ["enabled"]}
    declared = type(definition).model_validate({"backend": backend, **fields, **capable})
    assert spec_hash(declared, "img", "chat") == hashed


@pytest.mark.parametrize(
    ("backend", "field", "value"),
    [
        ("llama_server", "llama_server_library_path", "/opt/lib"),
        ("llama_cpp", "prompt_format", "gemma4_template"),
        ("vllm", "vllm_max_pixels", 5),
        ("exllamav3", "exllama_cache_quant", "8"),
    ],
)
def test_fields_that_touch_the_engine_count_once_they_are_set(backend: str, field: str, value: Any) -> None:
    without, with_it = _definition(backend), _definition(backend, **{field: value})
    assert spec_hash(without, None, "m") != spec_hash(with_it, None, "m")
