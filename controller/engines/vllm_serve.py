"""vLLM's own server, `vllm serve`: a container or a program. Its engine comes with a later version."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from controller.engines.vllm import SHARED_HASHED, VllmEngine, VllmFields
from controller.engines.worker import not_yet
from controller.schema.desired import Definition

_TOKENS = ("/tokenize", "/detokenize")


class VllmServeDefinition(VllmFields):
    """A model served by `vllm serve`."""

    backend: Literal["vllm_serve"]
    vllm_serve_binary: str | None = Field(
        default=None, description="Path of the vllm program (process); default: on PATH."
    )
    vllm_serve_library_path: str | None = Field(
        default=None, description="Folders of its shared libraries (process), as LD_LIBRARY_PATH takes them."
    )


class VllmServe(VllmEngine):
    """As `vllm`, with a program of its own."""

    name: ClassVar[str] = "vllm_serve"
    definition = VllmServeDefinition
    hashed_fields: ClassVar[tuple[str, ...]] = (*SHARED_HASHED, "vllm_serve_binary", "vllm_serve_library_path")

    def apis(self, definition: Definition) -> tuple[str, ...]:
        """Its own server knows more than the worker; it ranks by the likeness of embeddings."""
        assert isinstance(definition, VllmFields)
        if definition.vllm_embedding:
            return ("/v1/embeddings", "/v1/rerank", *_TOKENS)
        return (*super().apis(definition), "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", *_TOKENS)

    def missing(self, definition: Definition) -> str | None:
        """The engine."""
        return not_yet("vLLM Serve")
