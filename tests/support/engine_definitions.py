"""Definitions of models as tests make them, and what an engine renders of one."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from controller.engines import ENGINES
from controller.engines.base import Launch, RenderContext
from controller.schema.desired import Definition

DOCKER = RenderContext(
    runtime="docker",
    served_name="chat",
    models_root=PurePosixPath("/models"),
    host="0.0.0.0",
    port=8000,
    cache_dir=PurePosixPath("/cache"),
    images={name: f"img/{name}" for name in ("llama-server", "worker", "vllm", "worker-vllm")},
)
PROCESS = RenderContext(
    runtime="process",
    served_name="chat",
    models_root=PurePosixPath("/srv/models"),
    host="127.0.0.1",
    port=4242,
    cache_dir=PurePosixPath("/var/cache"),
    executables={"python": "/venv/bin/python"},
)


def define(backend: str, **fields: Any) -> Definition:
    """A definition that names a model, `m`, unless the fields do."""
    needed: dict[str, Any] = {"model_path": "m"}
    if backend == "openai_remote":
        needed = {"base_url": "https://x/v1"}
    elif backend == "stub" or "vllm_model" in fields:
        needed = {}
    definition: Definition = ENGINES[backend].definition.model_validate({"backend": backend, **needed, **fields})
    return definition


def render(backend: str, context: RenderContext = DOCKER, **fields: Any) -> Launch:
    """The engine's command line, environment and image."""
    return ENGINES[backend].render_command(define(backend, **fields), context)


def render_argv(backend: str, context: RenderContext = DOCKER, **fields: Any) -> list[str]:
    """The command line alone."""
    return list(render(backend, context, **fields).argv)
