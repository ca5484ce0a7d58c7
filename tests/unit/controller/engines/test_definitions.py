"""What definitions say of engines before any is started: APIs, requests that they take, files, hashes, sessions."""

from __future__ import annotations

import re
from typing import Any

import pytest

from contract.admin import Capabilities
from controller.artifacts.heads import HfFolder
from controller.engines import BACKEND_OF_SUFFIX, ENGINES, resolve_backend, spec_hash
from controller.engines.base import EngineFigures, FileCheck, family_of
from controller.engines.memory import Prediction, beside_share_mib
from tests.support.definitions import define, parse_text, problems_of
from tests.support.doc_tables import api_rows, modes, native_apis, rows_of

GIB = 2**30
HEADING = "Which APIs a model has"


def test_the_table_of_apis_is_true_and_has_every_backend_and_mode() -> None:
    rows = rows_of("models.md", HEADING)
    assert rows == api_rows()
    documented = {tuple(re.findall(r"`(\w+)`", name)) for row in rows for name in row.split("|")[1].split(", ")}
    found = {
        (name, field)
        for name, engine in ENGINES.items()
        for field in engine.definition.model_fields
        if field.endswith(("_embedding", "_reranking"))
    }
    assert documented == {(name,) for name in ENGINES if name != "openai_remote"} | found
    assert {mode for mode in modes() if len(mode) == 2} == found


def test_a_remote_offers_what_it_declares() -> None:
    assert native_apis("openai_remote") == ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
    assert native_apis("openai_remote", remote_apis=["/v1/messages"]) == ("/v1/messages",)


def test_which_engines_know_the_dimensions_of_embeddings() -> None:
    # To any other they are never sent: llama-server answers with its own, as if nothing had been asked for.
    takers = {name for name, engine in ENGINES.items() if engine.takes_dimensions}
    assert takers == {"vllm", "vllm_serve", "openai_remote"}


# What requests a model takes.

TEXT, IMAGES = ("text",), ("text", "image")
DEFAULT, ALL = ("default",), ("default", "enabled", "disabled")


def derive(backend: str, **fields: Any) -> Capabilities:
    return ENGINES[backend].derive_capabilities(define(backend, **fields))


@pytest.mark.parametrize(
    ("backend", "fields", "modalities", "multi_turn", "thinking"),
    [
        ("llama_server", {}, TEXT, True, DEFAULT),
        ("llama_server", {"llama_server_mmproj": "mm.gguf"}, IMAGES, True, DEFAULT),
        ("llama_server", {"model_path": "gemma-4-E2B.gguf"}, TEXT, True, DEFAULT),
        ("llama_server", {"llama_server_embedding": True, "llama_server_mmproj": "m"}, TEXT, False, DEFAULT),
        ("llama_server", {"llama_server_reranking": True}, TEXT, False, DEFAULT),
        ("llama_cpp", {}, TEXT, True, DEFAULT),
        ("llama_cpp", {"prompt_format": "generic"}, TEXT, True, DEFAULT),
        ("llama_cpp", {"prompt_format": "mistral_template"}, TEXT, True, DEFAULT),
        ("llama_cpp", {"prompt_format": "qwen3_template"}, TEXT, True, DEFAULT),
        ("llama_cpp", {"prompt_format": "gemma4_template"}, TEXT, True, ALL),
        ("llama_cpp", {"prompt_format": "translategemma_template"}, TEXT, False, DEFAULT),
        ("llama_cpp", {"model_path": "google_gemma-4-E2B-it-Q8_0.gguf"}, TEXT, True, ALL),
        ("llama_cpp", {"model_path": "gemma-4-E2B.gguf", "prompt_format": "generic"}, TEXT, True, DEFAULT),
        ("llama_cpp", {"model_path": "gemma-4-E2B.gguf", "gguf_chat_format": "chatml"}, TEXT, True, DEFAULT),
        ("llama_cpp", {"model_path": "Qwen3-8B.gguf"}, TEXT, True, DEFAULT),
        ("llama_cpp", {"gguf_embedding": True}, TEXT, False, DEFAULT),
        *(
            each
            for vllm in ("vllm", "vllm_serve")
            for each in (
                (vllm, {}, TEXT, True, DEFAULT),
                (vllm, {"vllm_model": "google/gemma-4-26B-A4B-it"}, TEXT, True, ALL),
                (vllm, {"model_path": "Qwen3-8B"}, TEXT, True, ALL),
                (vllm, {"prompt_format": "qwen3_template"}, TEXT, True, ALL),
                (vllm, {"prompt_format": "mistral_template", "model_path": "Qwen3-8B"}, TEXT, True, DEFAULT),
                (vllm, {"vllm_max_pixels": 200704}, IMAGES, True, DEFAULT),
                (vllm, {"vllm_mm_processor_kwargs": {"min_pixels": 1}}, IMAGES, True, DEFAULT),
                (vllm, {"vllm_limit_mm_per_prompt": {"image": 4}}, IMAGES, True, DEFAULT),
                (vllm, {"vllm_limit_mm_per_prompt": {"image": 0}, "vllm_max_pixels": 9}, TEXT, True, DEFAULT),
                (vllm, {"vllm_limit_mm_per_prompt": {"audio": 1}}, TEXT, True, DEFAULT),
                (vllm, {"vllm_embedding": True, "vllm_model": "Qwen/Qwen3-Embedding"}, TEXT, False, DEFAULT),
            )
        ),
        ("exllamav3", {}, TEXT, False, DEFAULT),
        ("exllamav3", {"model_path": "gemma-4-E2B-exl3"}, TEXT, False, ALL),
        ("exllamav3", {"prompt_format": "qwen3_template"}, TEXT, True, ALL),
        ("exllamav3", {"prompt_format": "mistral_template"}, TEXT, True, DEFAULT),
        ("exllamav3", {"multi_turn": True}, TEXT, True, DEFAULT),
        ("ct2", {"model_path": "qwen3-8b-ct2"}, TEXT, False, ALL),
        ("ct2", {"model_path": "gemma-4-ct2"}, TEXT, False, DEFAULT),
        ("litert_lm", {"model_path": "gemma-4-e2b.litertlm"}, TEXT, True, DEFAULT),
        ("litert_lm", {"litert_lm_vision_backend": "cpu"}, IMAGES, True, DEFAULT),
        ("litert_lm", {"litert_lm_audio_backend": "cpu"}, ("text", "audio"), True, DEFAULT),
        (
            *("litert_lm", {"litert_lm_vision_backend": "cpu", "litert_lm_audio_backend": "cpu"}),
            *(("text", "image", "audio"), True, DEFAULT),
        ),
        ("onnx", {}, TEXT, False, DEFAULT),
        ("openai_remote", {}, TEXT, True, DEFAULT),
        (
            "openai_remote",
            {"modalities": ["image", "text"], "multi_turn": False, "thinking_modes": ["disabled", "enabled"]},
            IMAGES,
            False,
            ALL,
        ),
        ("stub", {}, TEXT, True, DEFAULT),
    ],
)
def test_capabilities_follow_from_backend_and_fields(
    backend: str, fields: dict[str, Any], modalities: tuple[str, ...], multi_turn: bool, thinking: tuple[str, ...]
) -> None:
    found = derive(backend, **fields)
    assert (found.modalities, found.multi_turn, found.thinking_modes) == (modalities, multi_turn, thinking)


@pytest.mark.parametrize(
    ("backend", "fields", "tools", "structured_output"),
    [
        ("llama_server", {}, True, True),
        ("llama_server", {"llama_server_embedding": True}, False, False),
        ("llama_server", {"llama_server_reranking": True}, False, False),
        ("llama_cpp", {}, True, True),
        ("llama_cpp", {"prompt_format": "translategemma_template"}, False, True),
        ("llama_cpp", {"gguf_chat_format": "chatml"}, False, True),
        ("llama_cpp", {"gguf_embedding": True}, False, False),
        *(
            each
            for vllm in ("vllm", "vllm_serve")
            for each in (
                (vllm, {}, False, True),
                (vllm, {"vllm_tool_call_parser": "hermes"}, True, True),
                (vllm, {"vllm_tool_call_parser": "hermes", "vllm_embedding": True}, False, False),
            )
        ),
        ("exllamav3", {}, False, False),
        ("ct2", {}, False, False),
        ("litert_lm", {}, True, False),
        ("onnx", {}, False, False),
        ("openai_remote", {}, True, True),
        ("stub", {}, False, False),
    ],
)
def test_tools_and_structured_output_by_backend(
    backend: str, fields: dict[str, Any], tools: bool, structured_output: bool
) -> None:
    found = derive(backend, **fields)
    assert (found.tools, found.structured_output) == (tools, structured_output)


FORCE = ("llama_server", "llama_cpp", "vllm", "vllm_serve", "openai_remote")
"""Backends whose engines can be made to call a tool."""


@pytest.mark.parametrize("backend", ENGINES)
def test_probabilities_of_tokens_and_forced_tools(backend: str) -> None:
    assert derive(backend).logprobs is (backend in ("llama_server", "vllm", "vllm_serve", "openai_remote"))
    assert not derive(backend, tools=False).forced_tools
    assert derive(backend, tools=True).forced_tools is (backend in FORCE)


@pytest.mark.parametrize("backend", ENGINES)
def test_what_is_declared_rules(backend: str) -> None:
    derived = derive(backend)
    names = ("media_urls", "multi_turn", "tools", "structured_output")
    opposite: dict[str, Any] = {name: not getattr(derived, name) for name in names}
    declared = derive(backend, modalities=["audio"], thinking_modes=["enabled"], **opposite)
    forced: dict[str, Any] = {"forced_tools": opposite["tools"] and backend in FORCE, "logprobs": derived.logprobs}
    modes: dict[str, Any] = {"modalities": ("audio",), "thinking_modes": ("default", "enabled")}
    assert declared == Capabilities(**opposite, **forced, **modes)


BY_TEMPLATE = ("llama_server", "vllm_serve", "vllm", "openai_remote")


@pytest.mark.parametrize("backend", [each for each in ENGINES if each != "onnx"])
def test_how_an_engine_is_made_to_think(backend: str) -> None:
    def control(backend: str, **fields: Any) -> str | None:
        return ENGINES[backend].thinking_control(define(backend, **fields))

    switch = "chat_template_kwargs" if backend in BY_TEMPLATE else "thinking"
    assert control(backend, thinking_modes=["disabled"]) == switch
    assert control(backend) is None
    assert control(backend, thinking_modes=["default"]) is None
    own = {"thinking_field": "reasoning_effort"}
    assert control("openai_remote", thinking_modes=["enabled"], **own) == "reasoning_effort", "a remote says how itself"
    assert control("openai_remote", **own) is None


@pytest.mark.parametrize(
    ("backend", "fields", "length"),
    [
        ("llama_server", {"llama_server_n_ctx": 8192, "target_inflight": 4}, 8192),
        ("llama_cpp", {"gguf_n_ctx": 4096}, 4096),
        ("vllm_serve", {"vllm_max_model_len": 512}, 512),
        ("vllm", {"vllm_max_model_len": 512}, 512),
        ("exllamav3", {"exllama_cache_size": 1024, "exllama_max_rq_tokens": 700}, 700),
        ("exllamav3", {"exllama_cache_size": 1024}, 1024),
        ("ct2", {"ct2_max_tokens": 100}, 100),
        ("litert_lm", {"litert_lm_max_tokens": 100}, 100),
        ("onnx", {"onnx_max_tokens": 100}, 100),
        *((backend, {}, None) for backend in ENGINES),
    ],
)
def test_the_declared_context_length(backend: str, fields: dict[str, Any], length: int | None) -> None:
    assert ENGINES[backend].context_length(define(backend, **fields)) == length


@pytest.mark.parametrize(
    "fields", [{"tools": False}, {"structured_output": False}, {"matryoshka": True}, {"thinking_modes": ["enabled"]}]
)
def test_what_is_said_of_requests_restarts_nothing(fields: dict[str, Any]) -> None:
    for backend in ENGINES:
        before, after = define(backend), define(backend, **fields)
        assert spec_hash(before, None, "m") == spec_hash(after, None, "m"), backend
    remote = define("openai_remote", thinking_field="thinking")
    assert spec_hash(remote, None, "m") == spec_hash(define("openai_remote"), None, "m")


FAMILIES: dict[str | None, str] = {
    "gemma4": "google_gemma-4-E2B-it-Q8_0.gguf Gemma4-31B gemma_4_e4b",
    "qwen3": "Qwen/Qwen3-30B-A3B qwen-3-8b QWEN3.5-4B",
    None: "qwen3-coder-30b Qwen3-4B-Instruct-2507 qwen-32b gemma-3-4b-it translategemma-4b-it medgemma-4b clockwork",
}


@pytest.mark.parametrize(
    ("name", "family"), [(name, family) for family, names in FAMILIES.items() for name in names.split()]
)
def test_a_family_is_recognised_by_the_models_name(name: str, family: str | None) -> None:
    assert family_of(None, name) == family
    assert family_of(None, None, name) == family
    assert family_of("generic", name) is None


# Requests at a time, sessions, and tokens that are kept.


@pytest.mark.parametrize("backend", ENGINES)
def test_defaults_of_an_engine_are_its_backends(backend: str) -> None:
    engine = ENGINES[backend]
    # ExLlamaV3 compiles itself at its first start.
    assert engine.start_timeout_s == {"vllm": 1800, "vllm_serve": 1800, "exllamav3": 3600}.get(backend, 600)
    many = {"vllm": 64, "vllm_serve": 64, "openai_remote": 64, "llama_server": 4}
    assert engine.default_target_inflight == many.get(backend, 1)
    assert engine.renders_inflight == (backend in ("vllm", "vllm_serve", "llama_server"))


@pytest.mark.parametrize(
    ("backend", "fields", "inflight"),
    [
        *((backend, {"target_inflight": 8}, 1) for backend in ("llama_cpp", "litert_lm", "onnx")),
        ("ct2", {}, 1),
        ("ct2", {"target_inflight": 8}, 1),
        ("ct2", {"ct2_inter_threads": 3}, 3),
        ("ct2", {"ct2_inter_threads": 3, "target_inflight": 2}, 2),
        ("ct2", {"ct2_inter_threads": 3, "target_inflight": 8}, 3),
    ],
)
def test_no_engine_of_a_worker_takes_more_than_it_computes_side_by_side(
    backend: str, fields: dict[str, Any], inflight: int
) -> None:
    engine, definition = ENGINES[backend], define(backend, **fields)
    assert engine.target_inflight(definition) == inflight
    if "target_inflight" in fields:
        assert engine.configured_inflight(definition) == fields["target_inflight"]


@pytest.mark.parametrize(
    ("backend", "fields", "count", "binding"),
    [
        ("llama_server", {}, 4, "slot"),
        ("llama_server", {"target_inflight": 9}, 9, "slot"),
        ("llama_server", {"session_cache": 2}, 2, "slot"),
        ("llama_server", {"session_cache": 0}, 0, "slot"),
        ("llama_server", {"llama_server_cache_ram_mib": 100}, 4, None),
        ("llama_server", {"extra_args": ["--parallel", "2"]}, 4, None),
        ("llama_server", {"env": {"LLAMA_ARG_CACHE_RAM": "100"}}, 4, None),
        ("llama_server", {"llama_server_embedding": True}, 0, "slot"),
        ("vllm", {"target_inflight": 32}, 32, None),
        ("vllm_serve", {}, 64, None),
        ("exllamav3", {}, 4, None),
        ("litert_lm", {}, 4, "conversation"),
        ("litert_lm", {"session_cache": 7}, 7, "conversation"),
        ("llama_cpp", {}, 0, None),
        ("llama_cpp", {"session_cache": 3}, 3, "name"),
        ("llama_cpp", {"session_cache": 3, "gguf_embedding": True}, 0, None),
        ("ct2", {"session_cache": 3}, 0, None),
        ("openai_remote", {}, 0, None),
        ("openai_remote", {"remote_fields": ["session_id"], "session_cache": 5}, 5, "conversation"),
    ],
)
def test_sessions_that_a_backend_keeps(backend: str, fields: dict[str, Any], count: int, binding: str | None) -> None:
    engine, definition = ENGINES[backend], define(backend, **fields)
    assert (engine.session_cache(definition), engine.session_binding(definition)) == (count, binding)


@pytest.mark.parametrize("backend", sorted(set(ENGINES) - {"openai_remote", "stub"}))
def test_engines_are_replaced_for_sessions_only_where_they_are_told(backend: str) -> None:
    hashes = {spec_hash(define(backend, **fields), None, "m") for fields in ({}, {"session_cache": 3})}
    assert len(hashes) == (2 if backend in ("litert_lm", "llama_cpp") else 1)


def tokens_of(backend: str, figures: EngineFigures, **fields: Any) -> int | None:
    return ENGINES[backend].kv_cache_tokens(define(backend, **fields), figures)


@pytest.mark.parametrize(
    ("fields", "told", "tokens"),
    [
        ({}, None, None),
        ({}, 4096, 4096),
        ({"llama_server_n_ctx": 4000}, None, 4000),
        ({"llama_server_n_ctx": 4000}, 4096, 4096),  # rounded up
        ({"llama_server_n_ctx": 65536}, 8192, 65536),  # one request has what the model was trained for
        ({"extra_args": ["-c", "16384"]}, 8192, 16384),
        ({"llama_server_n_ctx": 4096, "extra_args": ["--ctx-size", "8192"]}, 8192, 8192),
        ({"extra_args": ["-c"]}, 4096, 4096),
        ({"extra_args": ["--no-kv-unified"]}, 1024, None),
        ({"llama_server_embedding": True}, 512, None),
        ({"llama_server_reranking": True}, 512, None),
    ],
)
def test_all_slots_of_a_llama_server_share_one_cache(
    fields: dict[str, Any], told: int | None, tokens: int | None
) -> None:
    assert tokens_of("llama_server", EngineFigures(context_length=told), **fields) == tokens


@pytest.mark.parametrize("backend", ["vllm", "vllm_serve"])
def test_a_vllm_holds_nobody_back_until_it_preempts(backend: str) -> None:
    told = EngineFigures(1024, 3072, is_preempting=False)
    assert tokens_of(backend, told) is None
    assert tokens_of(backend, EngineFigures(1024, 3072, is_preempting=True)) == 3072
    assert ENGINES[backend].preempts_when_full


def test_workers_answer_one_after_the_other() -> None:
    assert tokens_of("llama_cpp", EngineFigures(context_length=4096)) is None


# Files, and what a change of a definition restarts.


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
    definition = define(backend, **fields)
    assert ENGINES[backend].list_artifacts(definition) == artifacts
    assert {check.field for check in ENGINES[backend].list_files(definition)} == checks


def test_folders_are_checked_as_folders() -> None:
    assert ENGINES["exllamav3"].list_files(define("exllamav3")) == (
        FileCheck("model_path", "m", "folder"),
        FileCheck("model_path", "m", "file", "config.json"),
        FileCheck("model_path", "m", "file", "tokenizer.json"),
    )
    assert ENGINES["ct2"].list_files(define("ct2", ct2_tokenizer="t"))[1:] == (
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
    assert resolve_backend(None) is None


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
    [found] = problems_of(f"models:\n  a:\n    {line}\n")
    assert problem in found


LARGE = {"model_path": "a/b.gguf", "llama_server_n_ctx": 4096, "llama_server_mmproj": "mm.gguf", "target_inflight": 2}
QUANTISED = {"model_path": "m.gguf", "gguf_n_ctx": 512, "gguf_type_k": "q8_0", "env": {"A": "b"}}
HASHES = [
    ("llama_server", {"model_path": "m.gguf"}, "3c9349452fd580d1"),
    ("llama_server", {**LARGE, "gpus": 1, "extra_args": ["-x"]}, "400caad5476ccc32"),
    ("llama_cpp", {"model_path": "m.gguf"}, "5aaaa9c8670fa524"),
    ("llama_cpp", QUANTISED, "e32d53243ba43ad4"),
    ("openai_remote", {"remote_model": "y"}, "0393eff42584e7c6"),
    ("stub", {}, "b0041e5113cb5963"),
    ("stub", {"stub_text": "hi", "stub_load_s": 1.5}, "003e531dc3219442"),
]


@pytest.mark.parametrize(("backend", "fields", "hashed"), HASHES)
def test_fields_that_came_later_restart_nothing(backend: str, fields: dict[str, Any], hashed: str) -> None:
    assert spec_hash(define(backend, **fields), "img", "chat") == hashed
    capable = {"modalities": ["text", "image"], "multi_turn": False, "thinking_modes": ["enabled"]}
    assert spec_hash(define(backend, **fields, **capable), "img", "chat") == hashed


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
    without, with_it = define(backend), define(backend, **{field: value})
    assert spec_hash(without, None, "m") != spec_hash(with_it, None, "m")


# vLLM's share of each GPU, of which tests/unit/controller/engines/test_rendering.py has the command lines.


def test_several_gpus_uncounted_graphs_and_many_sequences_leave_more_beside_the_share() -> None:
    uncounted = {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}
    counted = {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "1"}
    one = beside_share_mib(20_000, 1, {}, sequences=64, eager=False)
    assert one == 768 + 200
    assert beside_share_mib(20_000, 2, {}, sequences=64, eager=False) == one + 1_792
    assert beside_share_mib(20_000, 1, uncounted, sequences=64, eager=False) == one + 512
    assert beside_share_mib(20_000, 1, uncounted, sequences=65, eager=False) == one + 1_024
    assert beside_share_mib(20_000, 1, uncounted, sequences=65, eager=True) == one
    assert beside_share_mib(20_000, 1, counted, sequences=1, eager=False) == one
    assert beside_share_mib(20_000, 1, counted, sequences=256, eager=False) == one + 512


@pytest.mark.parametrize("backend", ["vllm", "vllm_serve"])
def test_an_edit_of_the_share_restarts_those_alone_that_it_binds(backend: str) -> None:
    def hashed(vram_mib: int | None, **fields: Any) -> str:
        return spec_hash(define(backend, **{"gpus": 1, "vram_mib": vram_mib, **fields}), None, "m")

    assert hashed(20_000) != hashed(30_000) != hashed(None)
    for free in ({"vllm_gpu_memory_utilization": 0.3}, {"vllm_kv_cache_memory_bytes": GIB}, {"gpus": 0}):
        assert hashed(20_000, **free) == hashed(None, **free), free


def test_the_forecast_is_what_is_declared() -> None:
    folder = HfFolder(5 * GIB, {}, {"bf16": 4 * GIB})

    def forecast(**fields: Any) -> Prediction:
        definition = define("vllm", **{"gpus": 1, "vram_mib": 20_000, **fields})
        prediction = ENGINES["vllm"].predict_memory(definition, {"m": folder})
        assert isinstance(prediction, Prediction)
        return prediction

    bound = forecast()
    assert (bound.gpu_share, bound.gpu.weights, bound.gpu.total) == (None, 4 * GIB, 20_000 * 2**20)
    assert forecast(vram_mib=1000).gpu.total == 5 * GIB, "what it needs at least"
    assert forecast(vllm_gpu_memory_utilization=0.3).gpu_share == 0.3
    assert forecast(vram_mib=None).gpu_share == 0.92


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "vllm_sleep needs `gpus`: on the CPU vLLM cannot sleep"),
        ({"gpus": 0}, "vllm_sleep needs `gpus`: on the CPU vLLM cannot sleep"),
        ({"gpus": 1, "vllm_embedding": True}, "vllm_sleep is for models that generate text, not with `vllm_embedding`"),
        ({"gpus": 1, "vllm_lora_modules": {"fox": "fox"}}, "vllm_sleep is not for models with LoRA modules"),
        ({"gpus": 1, "extra_args": ["--enable-lora"]}, "vllm_sleep is not for models with LoRA modules"),
    ],
)
def test_who_cannot_sleep_is_refused_and_may_say_off(fields: dict[str, Any], problem: str) -> None:
    assert define("vllm_serve", **fields, vllm_sleep="off") == define("vllm_serve", **fields)
    for level in ("level1", "level2"):
        with pytest.raises(ValueError, match=re.escape(problem)):
            define("vllm_serve", **fields, vllm_sleep=level)
    with pytest.raises(ValueError, match="vllm_sleep"):
        define("vllm_serve", gpus=1, vllm_sleep="level3")


def test_level_2_is_refused_where_a_draft_would_be_lost() -> None:
    for fields in ({"vllm_speculative_method": "mtp"}, {"extra_args": ["--speculative-config={}"]}):
        assert define("vllm_serve", gpus=1, **fields, vllm_sleep="level1")
        with pytest.raises(ValueError, match="not those of a draft: use level1"):
            define("vllm_serve", gpus=1, **fields, vllm_sleep="level2")


def test_sleep_is_another_engine_and_off_the_one_that_was() -> None:
    plain, off, sleeps = (
        spec_hash(define("vllm_serve", gpus=1, **fields), None, "m")
        for fields in ({}, {"vllm_sleep": "off"}, {"vllm_sleep": "level1"})
    )
    assert plain == off != sleeps
