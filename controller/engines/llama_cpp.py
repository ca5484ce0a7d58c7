"""llama-cpp-python in a worker process: GGUF models without a second server program."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field

from controller.engines.base import Engine, FileCheck, Launch, Probe, RenderContext, Verdict
from controller.engines.llama_server import GgmlType
from controller.engines.worker import WORKER_TOKEN_ENV, worker_probe, worker_program
from controller.schema.desired import Definition


class LlamaCppDefinition(Definition):
    """A GGUF model served by llama-cpp-python."""

    backend: Literal["llama_cpp"]
    model_path: str = Field(description="The GGUF file, relative to the models folder.")
    gguf_n_ctx: int | None = Field(
        default=None, ge=1, description="Context length in tokens; default: the model's own."
    )
    gguf_n_gpu_layers: int | None = Field(default=None, ge=-1, description="Layers kept on the GPU; -1: all.")
    gguf_flash_attn: Literal["on", "off", "auto"] = Field(default="auto", description="Flash attention.")
    gguf_type_k: GgmlType | None = Field(default=None, description="Type of the K cache; default f16.")
    gguf_type_v: GgmlType | None = Field(default=None, description="Type of the V cache; default f16.")
    gguf_embedding: bool = Field(default=False, description="Serve embeddings, and nothing else.")
    gguf_chat_format: str | None = Field(default=None, description="Chat format; default: the model's own template.")


_FLAGS = (
    ("gguf_n_ctx", "--n-ctx"),
    ("gguf_n_gpu_layers", "--n-gpu-layers"),
    ("gguf_flash_attn", "--flash-attn"),
    ("gguf_type_k", "--type-k"),
    ("gguf_type_v", "--type-v"),
    ("gguf_chat_format", "--chat-format"),
)

_VERDICTS: tuple[tuple[str, Verdict], ...] = (
    (r"No module named .?llama_cpp", Verdict("llama-cpp-python is not installed (extra `llama-cpp`)", True)),
    (r"not a GGUF", Verdict("not a GGUF file", True)),
    (r"unknown cache type|unrecognized arguments|invalid choice|neither the model nor", Verdict("bad argument", True)),
    (r"out of memory|insufficient memory|failed to allocate|MemoryError", Verdict("out of memory")),
    (r"port .*(taken|in use)|address already in use", Verdict("port taken")),
)


class LlamaCpp(Engine):
    """Renders the worker's command line."""

    name: ClassVar[str] = "llama_cpp"
    definition = LlamaCppDefinition
    image_kind: ClassVar[str | None] = "worker"
    hashed_fields: ClassVar[tuple[str, ...]] = ("gguf_embedding", *(field for field, _ in _FLAGS))

    def render(self, definition: Definition, ctx: RenderContext) -> Launch:
        """`python -m worker llama_cpp ...`."""
        assert isinstance(definition, LlamaCppDefinition)
        args = [*worker_program(self.name, ctx), "--model", ctx.path(definition.model_path)]
        for name, flag in _FLAGS:
            value = getattr(definition, name)
            if value is not None:
                args += (flag, str(value))
        if definition.gguf_embedding:
            args.append("--embedding")
        args += definition.extra_args
        return Launch(tuple(args), dict(definition.env), self.image(definition, ctx.images), WORKER_TOKEN_ENV)

    def files(self, definition: Definition) -> tuple[FileCheck, ...]:
        """The model."""
        assert isinstance(definition, LlamaCppDefinition)
        return (FileCheck("model_path", definition.model_path, "gguf"),)

    def probe(self, definition: Definition) -> Probe:
        """`/health`, then one token or one embedding."""
        assert isinstance(definition, LlamaCppDefinition)
        return worker_probe(embedding=definition.gguf_embedding)

    def apis(self, definition: Definition) -> tuple[str, ...]:
        """An embedding model serves nothing else."""
        assert isinstance(definition, LlamaCppDefinition)
        return ("/v1/embeddings",) if definition.gguf_embedding else ("/v1/chat/completions", "/v1/completions")

    def explain(self, exit_code: int | None, log_tail: str) -> Verdict | None:
        """By the sentences that the worker and llama.cpp write."""
        for pattern, verdict in _VERDICTS:
            if re.search(pattern, log_tail, re.IGNORECASE):
                return verdict
        return None
