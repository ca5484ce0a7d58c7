"""What a load may set: the constraints as seed 001 shows them, what the schema of its body takes (else 422), what each
backend refuses, and whose the fields are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from controller.admin.override_rules import EXAMPLES, find_wrong_backend, load_params, load_request_model
from controller.engines import ENGINES
from controller.engines.options import list_constraints


def steps(minimum: int, step: int = 1, **more: Any) -> dict[str, Any]:
    """The constraint of a whole number that goes in steps."""
    return {"kind": "integer", "minimum": minimum, "step": step, **more}


def choice(*values: str, default: str, examples: list[str]) -> dict[str, Any]:
    return {"kind": "enum", "default": default, "allowed_values": list(values), "examples": examples}


def text(kind: str, **more: Any) -> dict[str, Any]:
    """The constraint of a text of a form, or null."""
    return {"kind": "string_or_null", "format": kind, **more}


TYPES = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
TYPE = text("ggml_type_name", default="f16", allowed_values=TYPES, examples=["f16", "q8_0", "q4_0"])
BITS = {
    "kind": "integer_or_null",
    "minimum": 2,
    "maximum": 8,
    "default": None,
    "null_means": "fp16",
    "allowed_values": [2, 3, 4, 5, 6, 7, 8],
}
LLAMA_CPP = {
    "gguf_n_ctx": steps(1),
    "gguf_flash_attn": choice("on", "off", "auto", default="auto", examples=["auto", "on", "off"]),
    "gguf_type_k": TYPE,
    "gguf_type_v": TYPE,
}
EXLLAMAV3 = {
    "exllama_cache_size": steps(256, 256),
    "exllama_max_rq_tokens": steps(1),
    "exllama_cache_k_bits": BITS,
    "exllama_cache_v_bits": BITS,
    "exllama_cache_quant": text("<bits>|<k_bits>,<v_bits>"),
}
CACHE_TYPES = choice("auto", "fp8", "fp8_e4m3", "fp8_e5m2", default="auto", examples=["auto", "fp8"])
METHODS = ["mtp", "draft_model", "mlp_speculator"]
VLLM = {
    "vllm_max_model_len": steps(256, 256),
    "vllm_kv_cache_dtype": CACHE_TYPES,
    "vllm_kv_cache_memory_bytes": steps(268435456, 268435456, unit="bytes", display_unit="mib"),
    "vllm_max_pixels": steps(200704, 200704, unit="pixels"),
    "vllm_speculative_method": text("vllm_speculative_method", default=None, examples=METHODS),
    "vllm_speculative_model": text(
        "hf_id_or_local_path", default=None, examples=["google/gemma-4-26B-A4B-it-assistant"]
    ),
    "vllm_num_speculative_tokens": steps(1, default=1),
}
LLAMA_SERVER = {
    "llama_server_n_ctx": steps(1),
    "llama_server_image_max_tokens": steps(1),
    "llama_server_spec_type": choice("draft-mtp", default="draft-mtp", examples=["draft-mtp"]),
    "llama_server_spec_draft_n_max": steps(1, maximum=6, default=2),
    "llama_server_spec_draft_p_min": {"kind": "float", "minimum": 0.0, "maximum": 1.0, "default": 0.0},
}
SHOWN: dict[str, dict[str, Any]] = {
    "llama_server": LLAMA_SERVER,
    "llama_cpp": LLAMA_CPP,
    "exllamav3": EXLLAMAV3,
    "vllm": VLLM,
    "vllm_serve": VLLM,
    **{name: {} for name in ("ct2", "litert_lm", "onnx", "openai_remote", "stub")},
}


@pytest.mark.parametrize("backend", ENGINES)
def test_constraints_are_the_seeds_key_for_key(backend: str) -> None:
    shown = {
        name: each.model_dump(exclude_unset=True)
        for name, each in list_constraints(ENGINES[backend].load_fields).items()
    }
    assert json.dumps(shown, sort_keys=True) == json.dumps(SHOWN[backend], sort_keys=True)
    assert list(shown) == list(SHOWN[backend])


def test_recommendations_are_the_seeds() -> None:
    shown = {
        name: {key: pairs.model_dump(exclude_unset=True) for key, pairs in engine.load_recommendations.items()}
        for name, engine in ENGINES.items()
        if engine.load_recommendations
    }
    assert shown == {
        "llama_cpp": {
            "gguf_cache_type_pairs": {
                "kind": "pair_presets",
                "fields": ["gguf_type_k", "gguf_type_v"],
                "recommended_pairs": [
                    {"label": "f16/f16", "gguf_type_k": "f16", "gguf_type_v": "f16"},
                    {"label": "q8_0/q8_0", "gguf_type_k": "q8_0", "gguf_type_v": "q8_0"},
                    {"label": "q4_0/q4_0", "gguf_type_k": "q4_0", "gguf_type_v": "q4_0"},
                ],
                "notes": [
                    "Service-curated presets for GGUF cache types.",
                    "Prefer symmetric GGUF K/V pairs by default; asymmetric pairs may reduce or disable GPU offload "
                    "in upstream llama.cpp.",
                ],
            }
        },
        "exllamav3": {
            "exllama_cache_bit_pairs": {
                "kind": "pair_presets",
                "fields": ["exllama_cache_k_bits", "exllama_cache_v_bits"],
                "recommended_pairs": [
                    {"label": "fp16", "exllama_cache_k_bits": None, "exllama_cache_v_bits": None},
                    {"label": "8/8", "exllama_cache_k_bits": 8, "exllama_cache_v_bits": 8},
                    {"label": "8/4", "exllama_cache_k_bits": 8, "exllama_cache_v_bits": 4},
                ],
            }
        },
    }


def test_what_is_recommended_is_accepted() -> None:
    for engine in ENGINES.values():
        for presets in engine.load_recommendations.values():
            for pair in presets.recommended_pairs:
                assert engine.load_faults({name: pair[name] for name in presets.fields}) == []


def _faults(backend: str, **params: Any) -> list[str]:
    return [f"{fault.field} {fault.message}" for fault in ENGINES[backend].load_faults(params)]


PREFIXES = {
    "exllamav3": "exllama_cache_", "llama_server": "llama_server_spec_", "vllm": "vllm_", "vllm_serve": "vllm_",
}  # fmt: skip
"""Of the names of the fields."""
QUANT = "exllama_cache_quant must be `<bits>` or `<k_bits>,<v_bits>`"


@pytest.mark.parametrize(
    ("backend", "params", "fault"),
    [
        ("llama_cpp", {"gguf_type_k": "q8-0"}, "gguf_type_k must be one of f32, f16"),
        ("llama_cpp", {"gguf_type_k": "foo"}, "gguf_type_k must be one of f32, f16"),
        ("llama_cpp", {"gguf_flash_attn": "true"}, "gguf_flash_attn must be one of on, off, auto; is `true`"),
        ("exllamav3", {"k_bits": 8}, "exllama_cache_k_bits must be given together with"),
        ("exllamav3", {"v_bits": None}, "exllama_cache_v_bits must be given together with"),
        (
            "exllamav3",
            {"k_bits": 8, "v_bits": None},
            "exllama_cache_k_bits and exllama_cache_v_bits must be both numbers or both null",
        ),
        (
            "exllamav3",
            {"quant": "8", "k_bits": 8, "v_bits": 8},
            "exllama_cache_k_bits cannot be combined with exllama_cache_quant",
        ),
        (
            "exllamav3",
            {"quant": None, "v_bits": 8},
            "exllama_cache_v_bits cannot be combined with exllama_cache_quant",
        ),
        ("exllamav3", {"k_bits": 9, "v_bits": 8}, "exllama_cache_k_bits must be at most 8, is 9"),
        (
            "exllamav3",
            {"k_bits": 8, "v_bits": -(2**60)},
            "exllama_cache_v_bits must be at least 2, is -1152921504606846976",
        ),
        ("exllamav3", {"size": 8000}, "exllama_cache_size must be a multiple of 256, is 8000"),
        *(("exllamav3", {"quant": each}, QUANT) for each in ("fp16", "1", "9", "8,", "8,4,4", "8, 4", "16", "8,1")),
        ("exllamav3", {"quant": ""}, "exllama_cache_quant must be a printable text"),
        ("exllamav3", {"quant": "8\n"}, "exllama_cache_quant must be a printable text"),
        ("llama_server", {"type": "medusa"}, "llama_server_spec_type must be one of draft-mtp, or"),
        ("llama_server", {"draft_n_max": 7}, "llama_server_spec_draft_n_max must be at most 6, is 7"),
        ("llama_server", {"draft_p_min": 1.5}, "llama_server_spec_draft_p_min must be at most 1.0, is 1.5"),
        (
            "vllm",
            {"speculative_method": None, "num_speculative_tokens": 2},
            "vllm_num_speculative_tokens has no effect without vllm_speculative_method",
        ),
        (
            "vllm_serve",
            {"speculative_method": None, "speculative_model": "a/b"},
            "vllm_speculative_model has no effect without vllm_speculative_method",
        ),
        ("vllm", {"max_model_len": 100}, "vllm_max_model_len must be at least 256, is 100"),
        (
            "vllm_serve",
            {"kv_cache_memory_bytes": 1000000},
            "vllm_kv_cache_memory_bytes must be at least 268435456, is 1000000",
        ),
    ],
)
def test_values_that_a_backend_refuses(backend: str, params: dict[str, Any], fault: str) -> None:
    prefix = PREFIXES.get(backend, "")
    [found] = _faults(backend, **{f"{prefix}{name}": value for name, value in params.items()})
    assert found.startswith(fault)


@pytest.mark.parametrize(
    ("backend", "params"),
    [
        ("vllm", {"vllm_kv_cache_dtype": "nvfp4_new"}),
        ("vllm_serve", {"vllm_max_model_len": 1000, "vllm_max_pixels": 200705}),
        ("vllm", {"vllm_speculative_method": None, "vllm_speculative_model": None}),
        ("vllm", {"vllm_num_speculative_tokens": 2}),  # of the method that the definition names
        ("llama_server", {"llama_server_spec_type": None}),
        ("llama_cpp", {"gguf_type_k": None, "gguf_type_v": "q4_0"}),
        ("exllamav3", {"exllama_cache_quant": None}),
        ("exllamav3", {"exllama_cache_quant": "8"}),
        ("exllamav3", {"exllama_cache_k_bits": None, "exllama_cache_v_bits": None}),
    ],
)
def test_values_beyond_what_is_shown(backend: str, params: dict[str, Any]) -> None:
    assert _faults(backend, **params) == []


@pytest.mark.parametrize(("bits", "quant"), [((8, 8), "8,8"), ((8, 4), "8,4"), ((None, None), None)])
def test_bits_are_reported_as_quant(bits: tuple[int | None, int | None], quant: str | None) -> None:
    params = {"exllama_cache_size": 512, "exllama_cache_k_bits": bits[0], "exllama_cache_v_bits": bits[1]}
    assert ENGINES["exllamav3"].load_override(params) == {"exllama_cache_size": 512, "exllama_cache_quant": quant}


def test_only_the_cache_size_of_exllama_goes_in_steps() -> None:
    binding = {field.name for engine in ENGINES.values() for field in engine.load_fields if field.step_binds}
    assert binding == {"exllama_cache_size"}


# The body of a request.

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


REFUSED = {
    "gguf_n_ctx": (0, 4096.5, True, "4096", 10**30, None),
    "exllama_cache_size": (0,),
    "exllama_max_rq_tokens": (0,),
    "replicas": (0, None, "3"),
    "gguf_flash_attn": (None,),
    "gguf_type_k": (8,),
    "exllama_cache_k_bits": ("8", 8.5, -(10**400)),
    "llama_server_spec_draft_p_min": (float("nan"), float("inf")),
    "vllm_kv_cache_dtype": (None,),
    "vllm_num_speculative_tokens": (None,),
    "model_path": ("other.gguf",),
    "llama_server_threads": (2,),
}


@pytest.mark.parametrize("body", [{name: value} for name, values in REFUSED.items() for value in values])
def test_the_schema_of_a_load_refuses_a_wrong_body(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        _read(body)


LEFT: list[dict[str, Any]] = [
    *({"gguf_type_k": each} for each in ("q8-0", "foo")),
    {"exllama_cache_k_bits": 8},
    {"exllama_cache_k_bits": 1, "exllama_cache_v_bits": 99},
    {"exllama_cache_quant": "8,8", "exllama_cache_k_bits": 8, "exllama_cache_v_bits": 8},
    *({"exllama_cache_size": each} for each in (8000, 1)),
    {"exllama_cache_quant": "fp16"},
    {"llama_server_spec_type": "medusa"},
    {"llama_server_spec_draft_n_max": 7},
    *({"llama_server_spec_draft_p_min": each} for each in (1.5, -1)),
    {"vllm_kv_cache_memory_bytes": 1},
]


@pytest.mark.parametrize("body", LEFT)
def test_what_the_schema_leaves_to_the_backend(body: dict[str, Any]) -> None:
    params = load_params(_read(body))
    engine = ENGINES[OWNERS[next(iter(params))]]
    assert find_wrong_backend(engine, params) is None
    assert engine.load_faults(params)


@pytest.mark.parametrize(
    ("backend", "body", "field", "owners"),
    [
        ("llama_cpp", {"exllama_cache_size": 512}, "exllama_cache_size", "exllamav3"),
        ("stub", {"vllm_max_pixels": 200704}, "vllm_max_pixels", "vllm_serve and vllm"),
        ("vllm", {"vllm_max_pixels": 200704, "llama_server_n_ctx": 9}, "llama_server_n_ctx", "llama_server"),
    ],
)
def test_fields_of_another_backend(backend: str, body: dict[str, Any], field: str, owners: str) -> None:
    fault = find_wrong_backend(ENGINES[backend], load_params(_read(body)))
    assert fault is not None
    words = f"belongs to backend {owners}; this model's backend is {backend}"
    assert (fault.field, fault.message) == (field, words)


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
