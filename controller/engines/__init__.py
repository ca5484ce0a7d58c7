"""The backends, one module each: a definition's fields, command line, APIs, probe, memory forecast and exit messages. A
definition without `backend:` gets the backend of its file's suffix. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from controller.engines.base import Engine
from controller.engines.ct2 import CT2
from controller.engines.exllamav3 import ExLlamaV3
from controller.engines.litert_lm import LiteRTLM
from controller.engines.llama_cpp import LlamaCpp
from controller.engines.llama_server import LlamaServer
from controller.engines.onnx import Onnx
from controller.engines.openai_remote import OpenAIRemote
from controller.engines.stub import Stub
from controller.engines.vllm import Vllm
from controller.engines.vllm_serve import VllmServe
from controller.schema.desired import Definition

_ALL: Final = (
    LlamaServer(),
    LlamaCpp(),
    VllmServe(),
    Vllm(),
    ExLlamaV3(),
    CT2(),
    LiteRTLM(),
    Onnx(),
    OpenAIRemote(),
    Stub(),
)
ENGINES: Final[Mapping[str, Engine]] = MappingProxyType({engine.name: engine for engine in _ALL})

BACKEND_OF_SUFFIX: Final[Mapping[str, str]] = MappingProxyType(
    {".gguf": LlamaServer.name, ".litertlm": LiteRTLM.name, ".onnx": Onnx.name}
)
"""Which backend a file is for when none is named. A folder does not tell: vLLM, ExLlamaV3 and CTranslate2 take one."""

_HASHED_COMMON: Final = ("model_path", "env", "extra_args", "image", "memory_mib")


def resolve_backend(model_path: str | None) -> str | None:
    """The backend for an artifact, or None when the artifact does not tell."""
    suffix = PurePosixPath(model_path).suffix.lower() if model_path is not None else ""
    return BACKEND_OF_SUFFIX.get(suffix)


def get_engine(definition: Definition) -> Engine:
    """The engine that serves a validated definition."""
    name = definition.backend or resolve_backend(definition.model_path)
    assert name is not None, "validation resolves the backend"
    return ENGINES[name]


def spec_hash(definition: Definition, image: str | None, served_name: str, *, render_version: int | None = None) -> str:
    """Digest (64 bits, hex) of all that affects a running engine, and of nothing else.

    Never aliases, scheduling fields, which GPU, port or secrets; `target_inflight` and `vram_mib` only where the engine
    renders them. `render_version`: as an engine that an earlier version started; None: as this version starts it.
    """
    engine = get_engine(definition)
    set_names = [name for name in engine.hashed_when_set if getattr(definition, name) is not None]
    content = {
        "backend": engine.name,
        "render_version": engine.render_version if render_version is None else render_version,
        "image": image,
        "served_name": served_name,
        "gpus": definition.gpu_count,
        "target_inflight": engine.target_inflight(definition) if engine.renders_inflight else None,
        "fields": {name: getattr(definition, name) for name in (*_HASHED_COMMON, *engine.hashed_fields, *set_names)},
    }
    if (vram_mib := engine.rendered_vram_mib(definition)) is not None:
        content["vram_mib"] = vram_mib
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
