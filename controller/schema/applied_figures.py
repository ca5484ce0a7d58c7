"""Figures of its own configuration that a loaded engine reports. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class AppliedFigures:
    """What a loaded engine reports of its own configuration. None in a field: the engine does not report it."""

    context_length: int | None = None
    """Maximum tokens of one request, prompt and answer together."""
    trained_context_length: int | None = None
    """Context length in tokens that the model was trained with. llama-server gives no request more than that."""
    slots: int | None = None
    """Number of requests that the engine serves at a time."""
    cache_type_k: str | None = None
    """Data type of the K cache, in the engine's own words."""
    cache_type_v: str | None = None
    """Data type of the V cache, in the engine's own words."""
    speculates: bool | None = None
    """Whether the engine uses speculative decoding."""
    prefix_caching: bool | None = None
    """Whether the engine reuses the KV cache of prompts with the same beginning."""
    kv_cache_bytes: int | None = None
    """Size of the KV cache per GPU in bytes, where the engine was given one."""
    gpu_share: float | None = None
    """Share (0 to 1) of each GPU's memory that the engine uses."""

    def merge_figures(self, newer: AppliedFigures) -> AppliedFigures:
        """Return these figures with those of `newer` in their place, where `newer` has a figure."""
        names = (field.name for field in fields(self))
        merged: dict[str, Any] = {
            name: getattr(self, name) if getattr(newer, name) is None else getattr(newer, name) for name in names
        }
        return AppliedFigures(**merged)
