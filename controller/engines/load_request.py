"""The request body of a load: `replicas`, and the load fields of all backends. Pure.

The schema refuses wrong types, unknown fields, numbers below 1 and null where null is no value (422). What depends on
the model's backend is checked afterwards by `find_wrong_backend` and `Engine.load_faults` (400, the code is
`invalid_load_request`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, create_model

from controller.engines import ENGINES
from controller.engines.base import Engine
from controller.engines.load_fields import LoadFault, LoadField, LoadValue

MOST: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly."""

EXAMPLES: Final[tuple[dict[str, LoadValue], ...]] = (
    {"replicas": 3},
    {"gguf_n_ctx": 8192},
    {"gguf_n_ctx": 16384},
    {"gguf_n_ctx": 32768},
    {"gguf_n_ctx": 32768, "gguf_flash_attn": "auto", "gguf_type_k": "q8_0", "gguf_type_v": "q4_0"},
    {"exllama_cache_size": 32768, "exllama_cache_quant": None, "exllama_max_rq_tokens": 32768},
    {"exllama_cache_size": 32768, "exllama_cache_quant": "8,8", "exllama_max_rq_tokens": 32768},
    {"exllama_cache_size": 32768, "exllama_cache_quant": "8,4", "exllama_max_rq_tokens": 32768},
    {
        "exllama_cache_size": 32768,
        "exllama_cache_k_bits": 8,
        "exllama_cache_v_bits": 4,
        "exllama_max_rq_tokens": 32768,
    },
    {
        "vllm_max_model_len": 16384,
        "vllm_kv_cache_dtype": "fp8",
        "vllm_kv_cache_memory_bytes": 2147483648,
        "vllm_max_pixels": 4014080,
        "vllm_speculative_method": "mtp",
        "vllm_speculative_model": "google/gemma-4-26B-A4B-it-assistant",
        "vllm_num_speculative_tokens": 1,
    },
    {
        "llama_server_n_ctx": 4096,
        "llama_server_image_max_tokens": 512,
        "llama_server_spec_type": "draft-mtp",
        "llama_server_spec_draft_n_max": 4,
        "llama_server_spec_draft_p_min": 0.25,
    },
)
"""Seed 001, "Example load bodies"."""


def load_request_model(engines: Iterable[Engine[Any]] = tuple(ENGINES.values())) -> type[BaseModel]:
    """Return a new pydantic class `LoadRequest` with the field `replicas` and the load fields of all `engines`.

    The class refuses (pydantic.ValidationError) unknown fields, values of another type, and `replicas` below 1. Every
    field is optional: `model_fields_set` says which ones a body gives. Fields of several backends are in it, so a valid
    body may still not fit a model: see `find_wrong_backend`.
    """
    fields: dict[str, Any] = {"replicas": _replicas_field()}
    load_fields = [(engine.name, field) for engine in engines for field in engine.load_fields]
    owners = _group_owners(load_fields)
    for _, field in load_fields:
        fields[field.name] = _optional_field(field, owners[field.name])
    config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [dict(each) for each in EXAMPLES]})
    doc = "What a load may set: replicas, and fields of the model's own backend. Null is a value, and not the same as "
    return create_model("LoadRequest", __config__=config, __doc__=doc + "a field that is left out.", **fields)


def load_params(request: BaseModel) -> dict[str, LoadValue]:
    """Return the fields that the body of a `LoadRequest` gives, also those given as null, without `replicas`, in the
    order of the schema."""
    given_names = request.model_fields_set - {"replicas"}
    return {name: getattr(request, name) for name in type(request).model_fields if name in given_names}


def find_wrong_backend(engine: Engine[Any], params: Mapping[str, LoadValue]) -> LoadFault | None:
    """Return a fault for the first name in `params` that is no load field of the backend of `engine`; None: all are.
    The message names the backends that have the field. Values are not looked at."""
    own_names = {field.name for field in engine.load_fields}
    owners = _group_owners((engine.name, field) for engine in ENGINES.values() for field in engine.load_fields)
    for name in params:
        if name not in own_names:
            other_backends = " and ".join(owners.get(name, ()))
            message = f"belongs to backend {other_backends}" if other_backends else "belongs to no backend"
            return LoadFault(name, f"{message}; this model's backend is {engine.name}")
    return None


def _group_owners(load_fields: Iterable[tuple[str, LoadField]]) -> dict[str, list[str]]:
    """Group pairs of backend and field: the backends by field name."""
    owners: dict[str, list[str]] = {}
    for backend, field in load_fields:
        owners.setdefault(field.name, []).append(backend)
    return owners


def _optional_field(field: LoadField, owners: list[str]) -> Any:
    value_type = _schema_type(field)
    words = f"{field.description} ({', '.join(owners)})"
    return (value_type | None if field.takes_null else value_type, _field_without_default(words))


def _replicas_field() -> Any:
    value_type = Annotated[int, Field(ge=1, le=MOST)]
    return (
        value_type,
        _field_without_default("Replicas of this load, up to the definition's replica_max; default: its replicas."),
    )


def _field_without_default(description: str) -> Any:
    # None is not a value of the field: without a default in the schema, no generated client sends it.
    return Field(default=None, description=description, json_schema_extra=_without_default)


def _without_default(schema: dict[str, Any]) -> None:
    del schema["default"]


def _schema_type(field: LoadField) -> Any:
    match field.constraint.kind:
        case "integer":
            return Annotated[int, Field(ge=1, le=MOST)]
        case "integer_or_null":
            return Annotated[int, Field(ge=-MOST, le=MOST)]
        case "float":
            return Annotated[float, Field(allow_inf_nan=False)]
        case _:
            return str
