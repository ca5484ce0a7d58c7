"""The body of a load: what its schema takes (else 422), and whose the fields are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from controller.engines import ENGINES
from controller.engines.load_request import EXAMPLES, find_wrong_backend, load_params, load_request_model

LoadRequest = load_request_model()
SCHEMA = LoadRequest.model_json_schema()
OWNERS = {field.name: name for name, engine in ENGINES.items() for field in engine.load_fields}


def _read(body: dict[str, Any]) -> BaseModel:
    return LoadRequest.model_validate_json(json.dumps(body))


@pytest.mark.parametrize("body", EXAMPLES)
def test_the_seeds_example_bodies_are_taken_and_shown(body: dict[str, Any]) -> None:
    request = _read(body)
    params = load_params(request)
    assert params == {name: value for name, value in body.items() if name != "replicas"}
    assert body in SCHEMA["examples"]
    for backend in {OWNERS[name] for name in params}:
        assert find_wrong_backend(ENGINES[backend], params) is None
        assert ENGINES[backend].load_faults(params) == []
    assert len(EXAMPLES) == 11


def test_present_and_null_is_not_absent() -> None:
    assert load_params(_read({})) == {}
    assert load_params(_read({"exllama_cache_quant": None})) == {"exllama_cache_quant": None}
    assert load_params(_read({"replicas": 2, "gguf_n_ctx": 5})) == {"gguf_n_ctx": 5}


@pytest.mark.parametrize(
    "body",
    [
        {"gguf_n_ctx": 0},
        {"exllama_cache_size": 0},
        {"exllama_max_rq_tokens": 0},
        {"replicas": 0},
        {"replicas": None},
        {"replicas": "3"},
        {"gguf_n_ctx": 4096.5},
        {"gguf_n_ctx": True},
        {"gguf_n_ctx": "4096"},
        {"gguf_n_ctx": 10**30},
        {"gguf_n_ctx": None},
        {"gguf_flash_attn": None},
        {"gguf_type_k": 8},
        {"exllama_cache_k_bits": "8"},
        {"exllama_cache_k_bits": 8.5},
        {"exllama_cache_k_bits": -(10**400)},
        {"llama_server_spec_draft_p_min": float("nan")},
        {"llama_server_spec_draft_p_min": float("inf")},
        {"vllm_kv_cache_dtype": None},
        {"vllm_num_speculative_tokens": None},
        {"model_path": "other.gguf"},
        {"llama_server_threads": 2},
    ],
)
def test_the_schema_refuses(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        _read(body)


@pytest.mark.parametrize(
    "body",
    [
        {"gguf_type_k": "q8-0"},
        {"gguf_type_k": "foo"},
        {"exllama_cache_k_bits": 8},
        {"exllama_cache_k_bits": 1, "exllama_cache_v_bits": 99},
        {"exllama_cache_quant": "8,8", "exllama_cache_k_bits": 8, "exllama_cache_v_bits": 8},
        {"exllama_cache_size": 8000},
        {"exllama_cache_size": 1},
        {"exllama_cache_quant": "fp16"},
        {"llama_server_spec_type": "medusa"},
        {"llama_server_spec_draft_n_max": 7},
        {"llama_server_spec_draft_p_min": 1.5},
        {"llama_server_spec_draft_p_min": -1},
        {"vllm_kv_cache_memory_bytes": 1},
    ],
)
def test_what_the_schema_leaves_to_the_backend(body: dict[str, Any]) -> None:
    params = load_params(_read(body))
    engine = ENGINES[OWNERS[next(iter(params))]]
    assert find_wrong_backend(engine, params) is None
    assert engine.load_faults(params)


def test_fields_of_another_backend() -> None:
    exllama = load_params(_read({"exllama_cache_size": 512}))
    fault = find_wrong_backend(ENGINES["llama_cpp"], exllama)
    assert fault is not None
    assert (fault.field, fault.message) == (
        "exllama_cache_size",
        "belongs to backend exllamav3; this model's backend is llama_cpp",
    )
    fault = find_wrong_backend(ENGINES["stub"], load_params(_read({"vllm_max_pixels": 200704})))
    assert fault is not None
    assert fault.message == "belongs to backend vllm_serve and vllm; this model's backend is stub"
    fault = find_wrong_backend(
        ENGINES["vllm"], load_params(_read({"vllm_max_pixels": 200704, "llama_server_n_ctx": 9}))
    )
    assert fault is not None
    assert fault.field == "llama_server_n_ctx"


def test_the_schema_has_every_field_with_words_and_no_default() -> None:
    fields = {field.name: field for engine in ENGINES.values() for field in engine.load_fields}
    assert set(SCHEMA["properties"]) == {"replicas", *fields}
    assert SCHEMA["additionalProperties"] is False
    assert "required" not in SCHEMA
    for name, schema in SCHEMA["properties"].items():
        assert schema["description"], name
        assert "default" not in schema, name
        takes_null = {"type": "null"} in schema.get("anyOf", [])
        assert takes_null == (name in fields and fields[name].takes_null), name
