"""The backends, listed. Which one serves a model that names none is resolved from its artifact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from controller.engines.base import Engine
from controller.engines.llama_cpp import LlamaCpp
from controller.engines.llama_server import LlamaServer
from controller.engines.openai_remote import OpenAIRemote
from controller.engines.stub import Stub
from controller.schema.desired import Definition

ENGINES: Final[Mapping[str, Engine]] = MappingProxyType(
    {engine.name: engine for engine in (LlamaServer(), LlamaCpp(), OpenAIRemote(), Stub())}
)

LATER: Final = ("exllamav3", "vllm", "vllm_serve", "ct2", "litert_lm", "onnx")
"""Backends of the design whose definitions this version does not accept yet."""

_HASHED_COMMON: Final = ("model_path", "env", "extra_args", "image", "memory_mib")


def resolve_backend(model_path: str | None) -> str | None:
    """The backend for an artifact, or None when the artifact does not tell."""
    if model_path is not None and model_path.lower().endswith(".gguf"):
        return LlamaServer.name
    return None


def engine_of(definition: Definition) -> Engine:
    """The engine that serves a validated definition."""
    name = definition.backend or resolve_backend(definition.model_path)
    assert name is not None, "validation resolves the backend"
    return ENGINES[name]


def spec_hash(definition: Definition, image: str | None, served_name: str) -> str:
    """Digest (64 bits, hex) of all that affects a running engine, and of nothing else.

    Never aliases, scheduling fields, which GPU, port or secrets; `target_inflight` only where the engine renders it.
    """
    engine = engine_of(definition)
    content = {
        "backend": engine.name,
        "render_version": engine.render_version,
        "image": image,
        "served_name": served_name,
        "gpus": len(definition.gpus) if isinstance(definition.gpus, list) else definition.gpus,
        "target_inflight": engine.target_inflight(definition) if engine.renders_inflight else None,
        "fields": {name: getattr(definition, name) for name in (*_HASHED_COMMON, *engine.hashed_fields)},
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
