"""Load and unload requests: the body of a load, and the rules by which a request becomes a new override, changes
nothing, or is refused. Pure.

The schema of a load's body refuses wrong types, unknown fields, numbers below 1 and null where null is no value
(422). What depends on the model's backend is checked afterwards by `find_wrong_backend` and `Engine.load_faults`
(400, the code is `invalid_load_request`).

A refusal changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from contract.errors import RoundhouseError
from contract.override import Override
from contract.status import ModelState
from controller.config.messages import explain_errors
from controller.desired.resolve import with_params
from controller.engines import ENGINES, REPLICA_ENGINES
from controller.engines.base import Engine
from controller.engines.options import LoadFault, LoadField, LoadValue
from controller.state import DesiredModel

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
    """Return a new pydantic class `LoadRequest` with the field `replicas` and the load fields of all `engines`. The
    class refuses (pydantic.ValidationError) unknown fields, values of another type, and `replicas` below 1. Every field
    is optional: `model_fields_set` says which ones a body gives. Fields of several backends are in it, so a valid body
    may still not fit a model: see `find_wrong_backend`."""
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


LEAST_STEP_S = 1e-6
"""Minimum difference in seconds between the times of two statements about one model, so that they sort."""


@dataclass(frozen=True, slots=True)
class ModelStanding:
    """What `decide_load` and `decide_unload` need to know of one model at the moment of a request: what is wanted of
    it, its fields as declared, its state, and the override in force (None: no operator's statement is)."""

    want: DesiredModel
    raw: Mapping[str, Any]
    """The model's fields as the files declare them."""
    state: ModelState
    override: Override | None

    def statement_time(self, now: float) -> float:
        """Return the Unix time for a new statement made at Unix time `now`: `now`, or 1 µs (`LEAST_STEP_S`) after the
        override in force if that is later, so that statements sort by time."""
        return now if self.override is None else max(now, self.override.at + LEAST_STEP_S)


def decide_load(
    standing: ModelStanding,
    params: Mapping[str, LoadValue],
    replicas: int | None,
    *,
    restart: bool,
    actor: str,
    now: float,
) -> Override | None:
    """Return the override of a load, for the caller to put into force. None means that nothing changes, because the
    model is loaded or loading already, cannot be evicted, and the request gives no values. Changes nothing itself.

    `params` are the backend's load fields from the request; `replicas` None means as declared. `restart` allows new
    values for a model that is loaded or loading, and always returns an override. A load of a model with `autoload`
    that the files or a request brought makes the load permanent. `actor` is who asks, and `now` is Unix time.

    Raises RoundhouseError: `invalid_load_request` for wrong fields, too many replicas, or values for a model that is
    loaded or loading without `restart` (`param` is the field); `state_conflict` while the model is being unloaded.
    """
    want = standing.want
    override_params = _checked_params(want, params)
    _check_replicas(want, replicas)
    if standing.state is ModelState.UNLOADING:
        raise RoundhouseError("state_conflict", f"The model {want.name!r} is being unloaded; load it afterwards.")
    if standing.state in (ModelState.LOADED, ModelState.LOADING) and not restart:
        if override_params or replicas is not None:
            field = next(iter(params), "replicas")
            message = (
                f"The model {want.name!r} is {standing.state}; other values need an unload first, or `restart=true` "
                "(`roundhouse load --restart`), which replaces its engines one at a time."
            )
            raise RoundhouseError("invalid_load_request", message, param=field)
        # A model with `autoload` would be unloaded when idle or to make room; an operator's load keeps it.
        if want.statement.kind == "load" or not want.declared_definition.autoload:
            return None
    return Override.from_statement(
        standing.raw,
        model=want.name,
        action="load",
        at=standing.statement_time(now),
        actor=actor,
        replicas=replicas,
        params=override_params,
    )


def decide_unload(standing: ModelStanding, *, hold: bool, actor: str, now: float) -> Override | None:
    """Return the override of an unload, for the caller to put into force. None means that nothing changes: the same
    unload is in force, or the model is unloaded or unloading already and no request would load it again. `hold`:
    whether the unload also keeps requests from loading an autoload model again. `now` is Unix time. Never raises."""
    want, override = standing.want, standing.override
    if override is not None and override.action == "unload" and override.hold == hold and want.replicas == 0:
        return None
    if want.replicas == 0 and not want.declared_definition.autoload:
        return None
    return Override.from_statement(
        standing.raw, model=want.name, action="unload", at=standing.statement_time(now), actor=actor, hold=hold
    )


def _checked_params(want: DesiredModel, params: Mapping[str, LoadValue]) -> dict[str, Any]:
    """Return the load's parameters as definition fields. Raises RoundhouseError `invalid_load_request`."""
    engine = REPLICA_ENGINES[want.backend]
    backend_fault = find_wrong_backend(engine, params)
    fault = backend_fault or next(iter(engine.load_faults(params)), None)
    if fault is not None:
        raise RoundhouseError("invalid_load_request", f"`{fault.field}` {fault.message}.", param=fault.field)
    override_params = engine.load_override(params)
    try:
        with_params(want.declared_definition, override_params)
    except ValidationError as error:
        first_error = error.errors(include_url=False)[0]
        field = str(first_error["loc"][0]) if first_error["loc"] else next(iter(params))
        message = f"`{field}` {explain_errors(first_error)}, with what the definition of {want.name!r} says."
        raise RoundhouseError("invalid_load_request", message, param=field) from None
    return override_params


def _check_replicas(want: DesiredModel, replicas: int | None) -> None:
    max_replicas = want.declared_definition.replica_max or want.declared_definition.replicas
    if replicas is not None and replicas > max_replicas:
        message = f"`replicas` must be at most {max_replicas}, the model's replica_max; is {replicas}."
        raise RoundhouseError("invalid_load_request", message, param="replicas")
