"""vLLM's own server, `vllm serve`: a container of vLLM's own image, or a program."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from controller.engines.base import RenderContext
from controller.engines.vllm import VllmEngine
from controller.engines.vllm_fields import HASHED, VllmFields


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
    image_kind: ClassVar[str | None] = "vllm"
    hashed_fields: ClassVar[tuple[str, ...]] = (*HASHED, "vllm_serve_binary", "vllm_serve_library_path")

    def build_program(self, definition: VllmFields, ctx: RenderContext) -> tuple[str, ...]:
        """`vllm serve`, by name where no path is declared: both runtimes look on PATH."""
        assert isinstance(definition, VllmServeDefinition)
        binary = definition.vllm_serve_binary if ctx.runtime == "process" else None
        return (binary or "vllm", "serve")

    def own_environment(self, definition: VllmFields, ctx: RenderContext) -> dict[str, str]:
        """Its libraries."""
        assert isinstance(definition, VllmServeDefinition)
        if definition.vllm_serve_library_path and ctx.runtime == "process":
            return {"LD_LIBRARY_PATH": definition.vllm_serve_library_path}
        return {}
