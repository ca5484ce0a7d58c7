"""What requests a model takes, by its backend and its definition."""

from __future__ import annotations

from typing import Any

import pytest

from controller.engines import ENGINES, spec_hash
from controller.engines.families import family_of
from controller.schema.admin import Capabilities
from controller.schema.desired import Definition

TEXT, IMAGES = ("text",), ("text", "image")
DEFAULT, ALL = ("default",), ("default", "enabled", "disabled")


def _definition(backend: str, **fields: Any) -> Definition:
    needed: dict[str, Any] = {"openai_remote": {"base_url": "https://x/v1"}, "stub": {}}.get(
        backend, {} if "vllm_model" in fields else {"model_path": "some/model"}
    )
    definition: Definition = ENGINES[backend].definition.model_validate({"backend": backend, **needed, **fields})
    return definition


def _capabilities(backend: str, **fields: Any) -> Capabilities:
    return ENGINES[backend].derive_capabilities(_definition(backend, **fields))


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
def test_by_backend(
    backend: str,
    fields: dict[str, Any],
    modalities: tuple[str, ...],
    multi_turn: bool,
    thinking: tuple[str, ...],
) -> None:
    found = _capabilities(backend, **fields)
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
    found = _capabilities(backend, **fields)
    assert (found.tools, found.structured_output) == (tools, structured_output)


@pytest.mark.parametrize("backend", ENGINES)
def test_who_tells_the_probabilities_of_tokens(backend: str) -> None:
    assert _capabilities(backend).logprobs is (backend in ("llama_server", "vllm", "vllm_serve", "openai_remote"))


FORCE = ("llama_server", "llama_cpp", "vllm", "vllm_serve", "openai_remote")
"""Backends whose engines can be made to call a tool."""


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("backend", ENGINES)
def test_who_can_be_made_to_call_a_tool(backend: str, tools: bool) -> None:
    assert _capabilities(backend, tools=tools).forced_tools is (tools and backend in FORCE)


@pytest.mark.parametrize("backend", ENGINES)
def test_what_is_declared_rules(backend: str) -> None:
    derived = _capabilities(backend)
    declared = _capabilities(
        backend,
        modalities=["audio"],
        media_urls=not derived.media_urls,
        multi_turn=not derived.multi_turn,
        thinking_modes=["enabled"],
        tools=not derived.tools,
        structured_output=not derived.structured_output,
    )
    assert declared == Capabilities(
        modalities=("audio",),
        media_urls=not derived.media_urls,
        multi_turn=not derived.multi_turn,
        thinking_modes=("default", "enabled"),
        tools=not derived.tools,
        structured_output=not derived.structured_output,
        forced_tools=not derived.tools and backend in FORCE,
        logprobs=derived.logprobs,
    )


SWITCHES = {
    "llama_server": "chat_template_kwargs",
    "llama_cpp": "thinking",
    "vllm_serve": "chat_template_kwargs",
    "vllm": "chat_template_kwargs",
    "exllamav3": "thinking",
    "ct2": "thinking",
    "litert_lm": "thinking",
    "openai_remote": "chat_template_kwargs",
    "stub": "thinking",
}
"""Backend to how it is told to think or not."""


@pytest.mark.parametrize(("backend", "switch"), SWITCHES.items())
def test_how_an_engine_is_told_to_think(backend: str, switch: str) -> None:
    engine = ENGINES[backend]
    assert engine.thinking_control(_definition(backend, thinking_modes=["disabled"])) == switch
    assert engine.thinking_control(_definition(backend)) is None
    assert engine.thinking_control(_definition(backend, thinking_modes=["default"])) is None


def test_a_remote_says_how_itself() -> None:
    remote = _definition("openai_remote", thinking_modes=["enabled"], thinking_field="reasoning_effort")
    assert ENGINES["openai_remote"].thinking_control(remote) == "reasoning_effort"
    silent = _definition("openai_remote", thinking_field="reasoning_effort")
    assert ENGINES["openai_remote"].thinking_control(silent) is None


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
    assert ENGINES[backend].context_length(_definition(backend, **fields)) == length


@pytest.mark.parametrize(
    "fields", [{"tools": False}, {"structured_output": False}, {"matryoshka": True}, {"thinking_modes": ["enabled"]}]
)
def test_what_is_said_of_requests_restarts_nothing(fields: dict[str, Any]) -> None:
    for backend in ENGINES:
        before, after = _definition(backend), _definition(backend, **fields)
        assert spec_hash(before, None, "m") == spec_hash(after, None, "m"), backend
    remote = _definition("openai_remote", thinking_field="thinking")
    assert spec_hash(remote, None, "m") == spec_hash(_definition("openai_remote"), None, "m")


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("google_gemma-4-E2B-it-Q8_0.gguf", "gemma4"),
        ("Gemma4-31B", "gemma4"),
        ("gemma_4_e4b", "gemma4"),
        ("Qwen/Qwen3-30B-A3B", "qwen3"),
        ("qwen-3-8b", "qwen3"),
        ("QWEN3.5-4B", "qwen3"),
        ("qwen3-coder-30b", None),
        ("Qwen3-4B-Instruct-2507", None),
        ("qwen-32b", None),
        ("gemma-3-4b-it", None),
        ("translategemma-4b-it", None),
        ("medgemma-4b", None),
        ("clockwork.gguf", None),
    ],
)
def test_families_by_name(name: str, family: str | None) -> None:
    assert family_of(None, name) == family
    assert family_of(None, None, name) == family
    assert family_of("generic", name) is None
