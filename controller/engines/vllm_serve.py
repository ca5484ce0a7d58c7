"""vLLM's own server, `vllm serve`: a container of vLLM's own image, or a program."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controller.engines.base import RenderContext
from controller.engines.options import Hashed
from controller.engines.vllm import VllmEngine
from controller.engines.vllm_fields import VllmFields
from controller.schema.desired import Settable


class VllmServeDefinition(VllmFields):
    """A model served by `vllm serve`. Either `model_path` or `vllm_model` is required."""

    backend: Annotated[Literal["vllm_serve"], Settable.ALWAYS]
    vllm_serve_binary: Annotated[str | None, Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        default=None, description="Path of the vllm program (process runtime only); default: the one on PATH."
    )
    vllm_serve_library_path: Annotated[str | None, Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        default=None,
        description="Folders of vLLM's shared libraries (process runtime only), in the format of LD_LIBRARY_PATH.",
    )


class VllmServe(VllmEngine[VllmServeDefinition]):
    """The backend `vllm_serve`: renders the command line of vLLM's own program, `vllm serve`, in a container or as a
    process. Starts nothing itself, has no state."""

    name: ClassVar[str] = "vllm_serve"
    definition = VllmServeDefinition
    image_kind: ClassVar[str | None] = "vllm"

    def build_program(self, definition: VllmServeDefinition, ctx: RenderContext) -> tuple[str, ...]:
        """Return the program and `serve`. The program is the declared `vllm_serve_binary` where the engine is a
        process, else `vllm`, which is looked up on PATH when it is started."""
        binary = definition.vllm_serve_binary if ctx.runtime == "process" else None
        return (binary or "vllm", "serve")

    def own_environment(self, definition: VllmServeDefinition, ctx: RenderContext) -> dict[str, str]:
        """Return `LD_LIBRARY_PATH` with the declared folders of shared libraries; empty where none are declared, and
        always in a container."""
        if definition.vllm_serve_library_path and ctx.runtime == "process":
            return {"LD_LIBRARY_PATH": definition.vllm_serve_library_path}
        return {}
