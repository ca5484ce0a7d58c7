"""LiteRT-LM in a worker process: `.litertlm` files. Its engine comes with a later version."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from controller.engines.base import Engine, FileCheck, Probe
from controller.engines.capabilities import declared_over
from controller.engines.worker import not_yet, worker_chat_probe
from controller.schema.admin import Capabilities, Modality
from controller.schema.desired import Definition
from controller.schema.routing import ThinkingControl


class LiteRTLMDefinition(Definition):
    """A `.litertlm` file served by LiteRT-LM."""

    backend: Literal["litert_lm"] | None = None
    model_path: str = Field(description="The `.litertlm` file, relative to the models folder.")
    litert_lm_backend: Literal["cpu", "gpu"] | None = Field(
        default=None, description="Where it computes; default: gpu where the definition asks for GPUs, else cpu."
    )
    litert_lm_vision_backend: Literal["cpu", "gpu"] | None = Field(
        default=None, description="Where images are encoded; without it images are not taken."
    )
    litert_lm_max_tokens: int | None = Field(
        default=None, ge=1, description="Tokens of a conversation at most; default: as the file was compiled."
    )


class LiteRTLM(Engine):
    """The definition; it starts nothing yet."""

    name: ClassVar[str] = "litert_lm"
    definition = LiteRTLMDefinition
    thinking_switch: ClassVar[ThinkingControl] = "thinking"
    most_inflight: ClassVar[int | None] = 1
    hashed_fields: ClassVar[tuple[str, ...]] = (
        "litert_lm_backend",
        "litert_lm_vision_backend",
        "litert_lm_max_tokens",
    )

    def missing(self, definition: Definition) -> str | None:
        """The engine."""
        return not_yet("LiteRT-LM")

    def capabilities(self, definition: Definition) -> Capabilities:
        """One turn; images where they are encoded."""
        assert isinstance(definition, LiteRTLMDefinition)
        images = definition.litert_lm_vision_backend is not None
        modalities: tuple[Modality, ...] = ("text", "image") if images else ("text",)
        derived = Capabilities(modalities=modalities, multi_turn=False, structured_output=False)
        return declared_over(definition, derived)

    def context_length(self, definition: Definition) -> int | None:
        """As declared."""
        assert isinstance(definition, LiteRTLMDefinition)
        return definition.litert_lm_max_tokens

    def artifacts(self, definition: Definition) -> tuple[str, ...]:
        """The file."""
        assert isinstance(definition, LiteRTLMDefinition)
        return (definition.model_path,)

    def files(self, definition: Definition) -> tuple[FileCheck, ...]:
        """The file."""
        assert isinstance(definition, LiteRTLMDefinition)
        return (FileCheck("model_path", definition.model_path, "file"),)

    def probe(self, definition: Definition) -> Probe:
        """The worker's, by its only API."""
        return worker_chat_probe()

    def apis(self, definition: Definition) -> tuple[str, ...]:
        """Its API knows conversations alone."""
        return ("/v1/chat/completions",)
