"""Definitions x overrides x demand -> DesiredState. Pure.

Which statement rules: an override, else `autoload` on demand, else `enabled` (DESIGN.md §3, "What is wanted").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue, ValidationError

from controller.engines import engine_of, spec_hash
from controller.schema.desired import Definition
from controller.schema.override import Override
from controller.state import DesiredModel, DesiredState, Statement


@dataclass(frozen=True, slots=True)
class Declared:
    """One model of the files: validated, and raw for the digests of overrides."""

    definition: Definition
    raw: Mapping[str, Any]
    since: float
    """Unix time since when the files say this."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What settings say where a definition does not."""

    images: Mapping[str, str] = field(default_factory=dict)
    """Image by image kind; empty where replicas are processes."""
    start_timeout_s: float | None = None
    """None: by backend."""
    drain_timeout_s: float = 300.0


def resolve(
    declared: Mapping[str, Declared],
    overrides: Mapping[str, Override],
    demand: Mapping[str, float],
    defaults: Defaults,
    *,
    generation: int,
    paused: bool = False,
) -> DesiredState:
    """`demand`: autoload model to Unix time of the last request for it."""
    models = {}
    for name, entry in declared.items():
        override = overrides.get(name)
        standing = override.surviving(entry.raw) if override is not None else None
        models[name] = _model(name, entry, standing, demand.get(name), defaults)
    return DesiredState(generation, models, paused)


def _model(
    name: str, entry: Declared, override: Override | None, demanded_at: float | None, defaults: Defaults
) -> DesiredModel:
    definition, params = effective(entry.definition, override)
    engine = engine_of(definition)
    statement, loaded = _statement(entry, override, demanded_at)
    replicas = definition.replicas
    if override is not None and override.replicas is not None:
        replicas = min(override.replicas, definition.replica_max or definition.replicas)
    image = engine.image(definition, defaults.images) if defaults.images and engine.runs else None
    count, choice = _gpus(definition)
    return DesiredModel(
        name=name,
        definition=definition,
        backend=engine.name,
        spec_hash=spec_hash(definition, image, name),
        replicas=replicas if loaded else 0,
        statement=statement,
        runs=engine.runs,
        image=image,
        gpu_count=count,
        gpu_choice=choice,
        vram_mib=definition.vram_mib,
        start_timeout_s=definition.start_timeout_s or defaults.start_timeout_s or engine.start_timeout_s,
        drain_timeout_s=(
            defaults.drain_timeout_s if definition.drain_timeout_s is None else definition.drain_timeout_s
        ),
        autoload=definition.autoload and not (statement.kind == "unload" and override is not None and override.hold),
        drain_ends=statement.kind != "unload",
        in_files=entry.definition,
        params=params,
    )


def effective(definition: Definition, override: Override | None) -> tuple[Definition, Mapping[str, JsonValue]]:
    """The definition with the override's parameters, and those; a present key rules, even when its value is null."""
    if override is None or not override.params:
        return definition, {}
    try:
        return with_params(definition, override.params), override.params
    except ValidationError:
        # The parameters fitted the definition they were said over; a later edit of other fields made them misfit.
        return definition, {}


def with_params(definition: Definition, params: Mapping[str, JsonValue]) -> Definition:
    """The definition with these fields instead. Raises pydantic's ValidationError."""
    return type(definition).model_validate(definition.model_dump(exclude_unset=True) | dict(params))


def _statement(entry: Declared, override: Override | None, demanded_at: float | None) -> tuple[Statement, bool]:
    definition = entry.definition
    if override is not None and override.action == "load":
        return Statement("load", override.at, f"loaded by {override.actor}"), True
    if override is not None:
        asked_again = demanded_at is not None and demanded_at > override.at
        if not (definition.autoload and asked_again and not override.hold):
            return Statement("unload", override.at, f"unloaded by {override.actor}"), False
    if definition.autoload and demanded_at is not None:
        return Statement("autoload", demanded_at, "autoload: a request asked for it"), True
    if definition.enabled:
        return Statement("file", entry.since, "enabled in the files"), True
    reason = "autoload: no request asked for it yet" if definition.autoload else "enabled: false in the files"
    return Statement("file", entry.since, reason), False


def _gpus(definition: Definition) -> tuple[int, tuple[str, ...]]:
    choice = tuple(definition.gpus) if isinstance(definition.gpus, list) else ()
    return definition.gpu_count or 0, choice
