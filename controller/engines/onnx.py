"""ONNX Runtime in a worker process: embedding models. Its engine comes with a later version."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from controller.engines.base import Engine, FileCheck, Probe
from controller.engines.capabilities import EMBEDDINGS, declared_over
from controller.engines.worker import not_yet, worker_probe
from controller.schema.admin import Capabilities
from controller.schema.desired import Definition


class OnnxDefinition(Definition):
    """An embedding model served by ONNX Runtime."""

    backend: Literal["onnx"] | None = None
    model_path: str = Field(description="The `.onnx` file, relative to the models folder.")
    onnx_tokenizer: str | None = Field(
        default=None,
        description="A `tokenizer.json` or `*-vocab.txt`, relative to the models folder; default: the one beside the "
        "model.",
    )
    onnx_max_tokens: int | None = Field(
        default=None, ge=1, description="Tokens of a text that count; default: as the tokenizer says."
    )
    onnx_pooling: Literal["mean", "cls"] = Field(default="mean", description="How tokens become one embedding.")
    onnx_normalize: bool = Field(default=True, description="Embeddings of length 1.")
    onnx_threads: int | None = Field(default=None, ge=1, description="CPU threads.")


class Onnx(Engine):
    """The definition; it starts nothing yet."""

    name: ClassVar[str] = "onnx"
    definition = OnnxDefinition
    hashed_fields: ClassVar[tuple[str, ...]] = (
        "onnx_tokenizer",
        "onnx_max_tokens",
        "onnx_pooling",
        "onnx_normalize",
        "onnx_threads",
    )

    def missing(self, definition: Definition) -> str | None:
        """The engine."""
        return not_yet("ONNX")

    def capabilities(self, definition: Definition) -> Capabilities:
        """Embeddings of texts."""
        return declared_over(definition, EMBEDDINGS)

    def context_length(self, definition: Definition) -> int | None:
        """As declared."""
        assert isinstance(definition, OnnxDefinition)
        return definition.onnx_max_tokens

    def artifacts(self, definition: Definition) -> tuple[str, ...]:
        """The file."""
        assert isinstance(definition, OnnxDefinition)
        return (definition.model_path,)

    def files(self, definition: Definition) -> tuple[FileCheck, ...]:
        """The file, and the tokenizer where named."""
        assert isinstance(definition, OnnxDefinition)
        checks = [FileCheck("model_path", definition.model_path, "file")]
        if definition.onnx_tokenizer is not None:
            checks.append(FileCheck("onnx_tokenizer", definition.onnx_tokenizer, "file"))
        return tuple(checks)

    def probe(self, definition: Definition) -> Probe:
        """The worker's, with one embedding."""
        return worker_probe(embedding=True)

    def apis(self, definition: Definition) -> tuple[str, ...]:
        """Embeddings."""
        return ("/v1/embeddings",)
