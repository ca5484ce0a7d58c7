"""The list of backends, the choice of a backend for a model that names none, and the spec hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Final

from contract.desired import Definition
from controller.engines.base import Engine
from controller.engines.ct2 import CT2
from controller.engines.exllamav3 import ExLlamaV3
from controller.engines.litert_lm import LiteRTLM
from controller.engines.llama_cpp import LlamaCpp
from controller.engines.llama_server import LlamaServer
from controller.engines.mcp import McpBridge
from controller.engines.onnx import Onnx
from controller.engines.openai_remote import OpenAIRemote
from controller.engines.options import read_hashed_values
from controller.engines.stub import Stub
from controller.engines.vllm import Vllm, VllmServe

_ALL: Final[tuple[Engine[Any], ...]] = (
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
ENGINES: Final[Mapping[str, Engine[Any]]] = MappingProxyType({engine.name: engine for engine in _ALL})
"""Engine by backend name, of the backends that a model may have."""
REPLICA_ENGINES: Final[Mapping[str, Engine[Any]]] = MappingProxyType({**ENGINES, McpBridge.name: McpBridge()})
"""Engine by backend name, of everything that the controller runs: also MCP servers, which are no models."""

BACKEND_OF_SUFFIX: Final[Mapping[str, str]] = MappingProxyType(
    {".gguf": LlamaServer.name, ".litertlm": LiteRTLM.name, ".onnx": Onnx.name}
)
"""Backend by suffix of the model file, for models that name no backend. Folders are not here: vLLM, ExLlamaV3 and
CTranslate2 all take folders."""

_HASHED_COMMON: Final = ("model_path", "env", "extra_args", "image", "memory_mib")


def resolve_backend(model_path: str | None) -> str | None:
    """Return the name of the backend for a model file by its suffix, upper or lower case. None: there is no path, or
    the suffix decides nothing, so that the definition must name a backend."""
    suffix = PurePosixPath(model_path).suffix.lower() if model_path is not None else ""
    return BACKEND_OF_SUFFIX.get(suffix)


def get_engine(definition: Definition) -> Engine[Any]:
    """Return the engine of a definition, whose backend is declared or follows from `model_path`. The definition must be
    validated: for another one an AssertionError or a KeyError may be raised."""
    name = definition.backend or resolve_backend(definition.model_path)
    assert name is not None, "validation resolves the backend"
    return REPLICA_ENGINES[name]


def spec_hash(definition: Definition, image: str | None, served_name: str, *, render_version: int | None = None) -> str:
    """Return the digest (64 bits, 16 hex digits) of everything that affects a running engine.

    An engine whose hash differs from that of its definition is replaced. Covered are the backend, `served_name`,
    `model_path`, `env`, `extra_args`, `memory_mib`, the number of GPUs, `image` (the reference in force), the options
    as `Hashed` says, and `target_inflight`, `vram_mib` and `session_cache` where the command line contains them. Never
    aliases, scheduling fields, the choice of GPUs, ports or secrets.

    The definition must be validated, as for `get_engine`. `render_version` None: this version's. Another one gives the
    hash of an engine that an earlier version started.
    """
    engine = get_engine(definition)
    fields = {name: getattr(definition, name) for name in _HASHED_COMMON}
    content = {
        "backend": engine.name,
        "render_version": engine.render_version if render_version is None else render_version,
        "image": image,
        "served_name": served_name,
        "gpus": definition.gpu_count,
        "target_inflight": engine.target_inflight(definition) if engine.renders_inflight else None,
        "fields": fields | read_hashed_values(definition),
    }
    if (vram_mib := engine.rendered_vram_mib(definition)) is not None:
        content["vram_mib"] = vram_mib
    if engine.renders_sessions and definition.session_cache is not None:
        content["session_cache"] = definition.session_cache
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
