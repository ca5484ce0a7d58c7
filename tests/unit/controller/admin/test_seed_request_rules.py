"""Seed 001 on requests: which models take `thinking`, several turns, images; and TranslateGemma's own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from controller.engines import ENGINES
from gateway.protocols.chat.dialect import CHAT
from gateway.protocols.common.capabilities import check_capabilities
from gateway.protocols.common.request import parse_request
from tests.fakes.fake_controller import route

NEEDED: dict[str, dict[str, Any]] = {"openai_remote": {"base_url": "http://x/v1"}, "stub": {}}
TRANSLATES = {"prompt_format": "translategemma_template"}


def model(backend: str, **fields: Any) -> ModelRoute:
    """How the gateway knows a model of this definition."""
    engine = ENGINES[backend]
    needed = NEEDED.get(backend, {} if "vllm_model" in fields else {"model_path": "m"})
    definition = engine.definition.model_validate({"backend": backend, **needed, **fields})
    made = route("m", capabilities=engine.derive_capabilities(definition))
    return made.model_copy(update={"backend": backend, "thinking_control": engine.thinking_control(definition)})


def code_of(known: ModelRoute, **fields: Any) -> str | None:
    """Code of the refusal; None: the request is taken."""
    try:
        check_capabilities({"messages": [{"role": "user", "content": "Hi"}]} | fields, known.capabilities, "m")
    except RoundhouseError as error:
        return error.entry.code
    return None


SWITCHABLE: list[tuple[str, dict[str, Any]]] = [
    ("vllm", {"vllm_model": "google/gemma-4-26B-A4B-it"}),
    ("vllm", {"vllm_model": "Qwen/Qwen3-8B"}),
    ("vllm_serve", {"vllm_model": "google/gemma-4-26B-A4B-it"}),
    ("vllm_serve", {"prompt_format": "qwen3_template"}),
    ("llama_cpp", {"prompt_format": "gemma4_template"}),
    ("exllamav3", {"prompt_format": "gemma4_template"}),
    ("exllamav3", {"prompt_format": "qwen3_template"}),
    ("ct2", {"prompt_format": "qwen3_template"}),
    ("openai_remote", {"thinking_modes": ["default", "enabled", "disabled"]}),
]
NOT_SWITCHABLE: list[tuple[str, dict[str, Any]]] = [
    *((backend, {}) for backend in ENGINES),
    ("llama_cpp", {"prompt_format": "qwen3_template"}),
    ("llama_cpp", TRANSLATES),
    ("ct2", {"prompt_format": "gemma4_template"}),
    ("vllm", {"vllm_model": "mistralai/Mistral-Small"}),
]


@pytest.mark.parametrize(("backend", "fields"), SWITCHABLE)
def test_thinking_is_accepted_where_it_is_advertised(backend: str, fields: dict[str, Any]) -> None:
    known = model(backend, **fields)
    assert [code_of(known, thinking=mode) for mode in ("default", "enabled", "disabled")] == [None] * 3
    assert known.thinking_control is not None, "and the engine is told"


@pytest.mark.parametrize(("backend", "fields"), NOT_SWITCHABLE)
def test_elsewhere_default_alone_is(backend: str, fields: dict[str, Any]) -> None:
    known = model(backend, **fields)
    assert code_of(known, thinking="default") is None
    assert [code_of(known, thinking=mode) for mode in ("enabled", "disabled")] == ["thinking_unsupported"] * 2


def test_default_preserves_the_models_configuration() -> None:
    request = parse_request(b'{"model": "m", "messages": [], "thinking": "default"}', may_stream=True)
    for backend, fields in (*SWITCHABLE, *NOT_SWITCHABLE):
        sent = json.loads(CHAT.engine_body(request, model(backend, **fields), as_stream=False))
        assert sent == {"model": "m", "messages": []}, backend


TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


@pytest.mark.parametrize(
    ("backend", "fields", "code"),
    [
        ("llama_server", {}, None),
        ("vllm", {}, None),
        ("vllm_serve", {}, None),
        *(
            ("llama_cpp", {"prompt_format": name}, None)
            for name in ("generic", "mistral_template", "qwen3_template", "gemma4_template")
        ),
        ("llama_cpp", TRANSLATES, "multi_turn_unsupported"),
        ("litert_lm", {}, None),
        ("ct2", {}, "multi_turn_unsupported"),
    ],
)
def test_several_turns_need_a_model_that_takes_them(backend: str, fields: dict[str, Any], code: str | None) -> None:
    assert code_of(model(backend, **fields), messages=TURNS) == code


@pytest.mark.parametrize(
    ("backend", "fields", "code"),
    [
        ("llama_server", {}, "modality_unsupported"),
        ("llama_server", {"llama_server_mmproj": "mm.gguf"}, None),
        ("vllm", {"vllm_max_pixels": 200704}, None),
        ("llama_cpp", TRANSLATES, "modality_unsupported"),
    ],
)
def test_images_need_a_model_that_sees(backend: str, fields: dict[str, Any], code: str | None) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    assert code_of(model(backend, **fields), messages=[{"role": "user", "content": [picture]}]) == code


@pytest.mark.parametrize(
    "languages",
    [
        {"source_lang_code": "cs", "target_lang_code": "de-DE"},
        {"target_lang_code": "de-DE"},
        {"source_lang_code": "auto", "target_lang_code": "de-DE"},
        {"source_lang_code": "mixed", "target_lang_code": "de-DE"},
    ],
)
def test_what_is_to_be_translated_reaches_translategemma_as_it_came(languages: dict[str, str]) -> None:
    known = model("llama_cpp", **TRANSLATES)
    for where in (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Ahoj", **languages}]}]},
        {"messages": [{"role": "user", "content": "Ahoj"}], **languages},
    ):
        raw = json.dumps({"model": "m", **where}).encode()
        request = parse_request(raw, may_stream=True)
        CHAT.check_request(request, known)
        assert CHAT.engine_body(request, known, as_stream=False) == raw
