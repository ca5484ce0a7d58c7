"""CTranslate2 in a worker process: converted model folders. Its engine comes with a later version."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from controller.engines.base import Engine, FileCheck, Probe
from controller.engines.capabilities import declared_over
from controller.engines.families import ChatFormat, family_of, thinking_modes
from controller.engines.worker import not_yet, worker_probe
from controller.schema.admin import Capabilities
from controller.schema.desired import Definition
from controller.schema.routing import ThinkingControl

ComputeType = Literal[
    "default",
    "auto",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
    "int16",
    "float16",
    "bfloat16",
    "float32",
]


class CT2Definition(Definition):
    """A converted model served by CTranslate2."""

    backend: Literal["ct2"]
    model_path: str = Field(description="The model's folder (CTranslate2), relative to the models folder.")
    ct2_tokenizer: str | None = Field(
        default=None, description="Folder of the tokenizer, relative to the models folder; default: the model's."
    )
    ct2_compute_type: ComputeType | None = Field(
        default=None, description="Type that it computes in; default: as converted."
    )
    ct2_max_tokens: int | None = Field(
        default=None, ge=1, description="Tokens of one request at most, prompt and answer; default: the model's own."
    )
    ct2_inter_threads: int | None = Field(default=None, ge=1, description="Requests computed side by side (CPU).")
    ct2_intra_threads: int | None = Field(default=None, ge=1, description="CPU threads of one request.")
    prompt_format: ChatFormat | None = Field(
        default=None, description="Prompt format; default: the chat template of the tokenizer."
    )


class CT2(Engine):
    """The definition; it starts nothing yet."""

    name: ClassVar[str] = "ct2"
    definition = CT2Definition
    thinking_switch: ClassVar[ThinkingControl] = "thinking"
    hashed_fields: ClassVar[tuple[str, ...]] = (
        "ct2_tokenizer",
        "ct2_compute_type",
        "ct2_max_tokens",
        "ct2_inter_threads",
        "ct2_intra_threads",
        "prompt_format",
    )

    def missing(self, definition: Definition) -> str | None:
        """The engine."""
        return not_yet("CTranslate2")

    def capabilities(self, definition: Definition) -> Capabilities:
        """One turn; Qwen3 can be told to think."""
        assert isinstance(definition, CT2Definition)
        family = family_of(definition.prompt_format, definition.model_path)
        derived = Capabilities(
            multi_turn=False,
            thinking_modes=thinking_modes(family, "qwen3"),
            tools=False,
            structured_output=False,
        )
        return declared_over(definition, derived)

    def context_length(self, definition: Definition) -> int | None:
        """As declared."""
        assert isinstance(definition, CT2Definition)
        return definition.ct2_max_tokens

    def artifacts(self, definition: Definition) -> tuple[str, ...]:
        """The folder."""
        assert isinstance(definition, CT2Definition)
        return (definition.model_path,)

    def files(self, definition: Definition) -> tuple[FileCheck, ...]:
        """The folder, and the tokenizer's where named."""
        assert isinstance(definition, CT2Definition)
        checks = [FileCheck("model_path", definition.model_path, "folder")]
        if definition.ct2_tokenizer is not None:
            checks.append(FileCheck("ct2_tokenizer", definition.ct2_tokenizer, "folder"))
        return tuple(checks)

    def probe(self, definition: Definition) -> Probe:
        """The worker's."""
        return worker_probe()

    def apis(self, definition: Definition) -> tuple[str, ...]:
        """Text."""
        return ("/v1/chat/completions", "/v1/completions")
