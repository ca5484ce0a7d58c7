"""Desired-state files and definitions of models, as tests make them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from textwrap import dedent
from typing import Any

from contract.desired import Definition
from controller.artifacts.model_roots import ModelRoots
from controller.config.parse import FolderSnapshot, ParsedFolder, merge_order, parse_folder
from controller.engines import ENGINES
from controller.engines.base import Launch, RenderContext

FOLDER = "desired-state"
MODELS_ROOT = ModelRoots((Path("/srv/models"),))


def snapshot(files: dict[str, str | bytes]) -> FolderSnapshot:
    """A read of a folder that holds these files."""
    content = {
        name: files[name].encode() if isinstance(files[name], str) else files[name]  # type: ignore[union-attr]
        for name in sorted(files, key=merge_order)
    }
    return FolderSnapshot(FOLDER, content)  # type: ignore[arg-type]


def parse_text(text: str | bytes = "", **files: str | bytes) -> ParsedFolder:
    """What `models.yaml` with this text declares; further files by stem, `local="..."`."""
    all_files: dict[str, str | bytes] = {"models.yaml": text} if text else {}
    all_files.update({f"{stem}.yaml": content for stem, content in files.items()})
    return parse_folder(
        snapshot({name: dedent(c) if isinstance(c, str) else c for name, c in all_files.items()}), MODELS_ROOT
    )


def problems_of(text: str | bytes = "", **files: str | bytes) -> list[str]:
    """The problems of these files, as an operator reads them."""
    return [str(problem) for problem in parse_text(text, **files).problems]


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
