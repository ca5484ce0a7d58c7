"""Resolve definitions, overrides and demand to a `DesiredState`. Pure.

An override decides whether a model is loaded; without one, demand does for an `autoload` model; else `enabled`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue, ValidationError

from contract.desired import Definition
from contract.override import Evicted, Override
from controller.config.validate import PlacedSource, place_source
from controller.engines import get_engine, spec_hash
from controller.state import DesiredModel, DesiredState, Statement
from controller.state_dir import StoredState


@dataclass(frozen=True, slots=True)
class DeclaredModel:
    """One declared model. `definition`: validated and with defaults. `raw_fields`: its fields as the files have them,
    by which edits since an override are seen."""

    definition: Definition
    raw_fields: Mapping[str, Any]
    declared_since: float
    """Unix time since when the files declare the present fields."""
    first_declared_at: float | None = None
    """Unix time since when the files declare a model of this name, with any fields; None: same as `declared_since`."""
    is_runtime_declared: bool = False
    """Whether an operator declared the model at run time, and the files do not."""
    is_discovered: bool = False
    """Whether nobody declared the model: its file lies in a models folder."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Values for fields that a definition leaves out, from the controller's settings. Times are seconds:
    `drain_timeout_s` for running requests to finish before a replica is stopped, `swap_wait_s` for which a request
    waits for memory of an autoload model in use, `preflight_recheck_s` between two checks for a missing file or
    image."""

    images: Mapping[str, str] = field(default_factory=dict)
    """Image kind (`worker`, `vllm`) to image; empty where replicas run as processes."""
    start_timeout_s: float | None = None
    """Seconds from a start until the replica must be ready; None: the backend's own value."""
    drain_timeout_s: float = 300.0
    swap_wait_s: float = 30.0
    preflight_recheck_s: float = 30.0


def resolve_desired(
    declared_models: Mapping[str, DeclaredModel],
    stored: StoredState,
    defaults: Defaults,
    *,
    generation: int,
    sources: Mapping[str, PlacedSource] = MappingProxyType({}),
) -> DesiredState:
    """Return the desired state of every declared model, with the overrides, demand and evictions in `stored` applied.

    `sources`: where the files are of the sources that are here, by source in its canonical form. `generation` (counts
    the declared states) and `stored.paused` are copied into the result. Entries for models that are not declared are
    ignored, and so is what edits have ended of an override (see `surviving_override`). `keys`, `tools`, `mcp_servers`
    and `revision` of the result are not set.
    """
    models = {}
    for name, entry in declared_models.items():
        definition, missing_source = place_source(entry.definition, entry.raw_fields, sources)
        override = surviving_override(stored.overrides.get(name), definition, entry.raw_fields)
        placed = replace(entry, definition=definition)
        model = _resolve_model(name, placed, override, stored.demand.get(name), stored.rested.get(name), defaults)
        models[name] = model if missing_source is None else replace(model, missing_source=missing_source)
    return DesiredState(
        generation,
        models,
        stored.paused,
        swap_wait_s=defaults.swap_wait_s,
        preflight_recheck_s=defaults.preflight_recheck_s,
    )


def _resolve_model(
    name: str,
    entry: DeclaredModel,
    override: Override | None,
    demanded_at: float | None,
    eviction: Evicted | None,
    defaults: Defaults,
) -> DesiredModel:
    params = override.params if override is not None else {}
    definition = with_params(entry.definition, params) if params else entry.definition
    engine = get_engine(definition)
    statement, is_loaded = _statement(entry, override, demanded_at, eviction)
    replicas = definition.replicas
    if override is not None and override.replicas is not None:
        replicas = min(override.replicas, definition.replica_max or definition.replicas)
    image = engine.resolve_image(definition, defaults.images) if defaults.images and engine.runs else None
    is_evicted = eviction is not None and statement.kind == "autoload" and not is_loaded
    gpu_count, gpu_choice = _gpus(definition)
    return DesiredModel(
        name=name,
        definition=definition,
        backend=engine.name,
        spec_hash=spec_hash(definition, image, name),
        replicas=replicas if is_loaded else 0,
        statement=statement,
        first_declared_at=entry.declared_since if entry.first_declared_at is None else entry.first_declared_at,
        runs=engine.runs,
        image=image,
        gpu_count=gpu_count,
        gpu_choice=gpu_choice,
        hosts=tuple(definition.hosts),
        vram_mib=definition.vram_mib,
        start_timeout_s=definition.start_timeout_s or defaults.start_timeout_s or engine.start_timeout_s,
        drain_timeout_s=(
            defaults.drain_timeout_s if definition.drain_timeout_s is None else definition.drain_timeout_s
        ),
        memory_mib=definition.memory_mib,
        pinned=definition.pinned,
        idle_ttl_s=definition.idle_ttl_s,
        min_residency_s=definition.min_residency_s,
        demand_replicas=replicas if is_evicted else 0,
        autoload=definition.autoload and not (statement.kind == "unload" and override is not None and override.hold),
        drain_ends=statement.kind != "unload" and not is_evicted,
        in_files=entry.definition,
        is_runtime_declared=entry.is_runtime_declared,
        is_discovered=entry.is_discovered,
        params=params,
    )


def surviving_override(
    override: Override | None, definition: Definition, raw_fields: Mapping[str, Any]
) -> Override | None:
    """Return the override without what edits of the files have ended, and without parameters that no longer fit the
    definition (see `fitting_params`). `raw_fields`: the model's fields as the files have them. None: there was no
    override, or an edit of `enabled` or `replicas` ended all of it. An override that loses all of its parameters still
    stands."""
    kept_override = override.drop_edited_fields(raw_fields) if override is not None else None
    if kept_override is None or not kept_override.params:
        return kept_override
    kept_params = fitting_params(definition, kept_override.params)
    return (
        kept_override
        if kept_params == kept_override.params
        else kept_override.model_copy(update={"params": kept_params})
    )


def fitting_params(definition: Definition, params: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the largest set of a load's parameters that the definition accepts; an edit may have made some misfit.
    Some parameters fit only together, and some exclude each other. Of several largest sets, the one with the earliest
    parameters is returned, and an empty dict if none fits. Raises nothing."""
    known_names = [name for name in params if name in type(definition).model_fields]
    for count in range(len(known_names), 0, -1):
        for names in combinations(known_names, count):
            kept_params = {name: params[name] for name in names}
            if _fits(definition, kept_params):
                return kept_params
    return {}


def _fits(definition: Definition, params: Mapping[str, JsonValue]) -> bool:
    try:
        with_params(definition, params)
    except ValidationError:
        return False
    return True


def with_params(definition: Definition, params: Mapping[str, JsonValue]) -> Definition:
    """Return a copy of the definition with these fields replaced and all of it validated again. Raises pydantic's
    ValidationError where a value, or the values together, or a field's name is not accepted."""
    return type(definition).model_validate(definition.model_dump(exclude_unset=True) | dict(params))


def _statement(
    entry: DeclaredModel, override: Override | None, demanded_at: float | None, eviction: Evicted | None
) -> tuple[Statement, bool]:
    definition = entry.definition
    if override is not None and override.action == "load":
        return Statement("load", override.at, f"load ordered by {override.actor}"), True
    # Demand from before an unload was dropped with it.
    has_demand = definition.autoload and demanded_at is not None
    if override is not None and (override.hold or not has_demand):
        reload_words = "; the next request loads it" if definition.autoload and not override.hold else ""
        return Statement("unload", override.at, f"unload ordered by {override.actor}{reload_words}"), False
    if definition.autoload and demanded_at is not None:
        return Statement("autoload", demanded_at, "autoload: a request asked for it"), True
    if definition.autoload and eviction is not None:
        return Statement("autoload", eviction.at, f"{eviction.reason}; the next request loads it"), False
    place = "at run time" if entry.is_runtime_declared else "in the files"
    if definition.enabled:
        return Statement("file", entry.declared_since, f"enabled {place}"), True
    reason = "autoload: no request asked for it yet" if definition.autoload else f"enabled: false {place}"
    return Statement("file", entry.declared_since, reason), False


def _gpus(definition: Definition) -> tuple[int, tuple[str, ...]]:
    choice = tuple(definition.gpus) if isinstance(definition.gpus, list) else ()
    return definition.gpu_count or 0, choice
