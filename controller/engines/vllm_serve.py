"""vLLM's own server, `vllm serve`: a container of vLLM's own image, or a program."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controller.engines.base import RenderContext
from controller.engines.options import Hashed
from controller.engines.vllm import VllmEngine
from controller.engines.vllm_fields import VllmFields


class VllmServeDefinition(VllmFields):
    """A model served by `vllm serve`."""

    backend: Literal["vllm_serve"]
    vllm_serve_binary: Annotated[str | None, Hashed.ALWAYS] = Field(
        default=None, description="Path of the vllm program (process); default: on PATH."
    )
    vllm_serve_library_path: Annotated[str | None, Hashed.ALWAYS] = Field(
        default=None, description="Folders of its shared libraries (process), as LD_LIBRARY_PATH takes them."
    )


class VllmServe(VllmEngine[VllmServeDefinition]):
    """Starts vLLM's server as a program of its own."""

    name: ClassVar[str] = "vllm_serve"
    definition = VllmServeDefinition
    image_kind: ClassVar[str | None] = "vllm"

    def build_program(self, definition: VllmServeDefinition, ctx: RenderContext) -> tuple[str, ...]:
        """Return `vllm serve`, with the declared path of the program as a process; else the runtime looks on PATH."""
        binary = definition.vllm_serve_binary if ctx.runtime == "process" else None
        return (binary or "vllm", "serve")

    def own_environment(self, definition: VllmServeDefinition, ctx: RenderContext) -> dict[str, str]:
        """Return the declared folders of shared libraries."""
        if definition.vllm_serve_library_path and ctx.runtime == "process":
            return {"LD_LIBRARY_PATH": definition.vllm_serve_library_path}
        return {}
