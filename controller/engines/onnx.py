"""ONNX Runtime in a worker process: embedding models, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from controller.artifacts.facts import Artifact
from controller.engines.base import Engine, FileCheck, Launch, Probe, RenderContext, Verdict
from controller.engines.capabilities import EMBEDDINGS, apply_declared
from controller.engines.memory import Forecast, artifact_at, predict_by_size
from controller.engines.worker import WORKER_TOKEN_ENV, first_verdict, worker_probe, worker_program
from controller.schema.admin import Capabilities
from controller.schema.desired import Definition


class OnnxDefinition(Definition):
    """An embedding model served by ONNX Runtime."""

    backend: Literal["onnx"] | None = None
    model_path: str = Field(description="The `.onnx` file, in a models folder.")
    onnx_tokenizer: str | None = Field(
        default=None,
        description="A `tokenizer.json`, or BERT's vocabulary as `*-vocab.txt` or `vocab.txt`, in a models "
        "folder; default: the one beside the model.",
    )
    onnx_max_tokens: int | None = Field(
        default=None, ge=1, description="Tokens of a text that count; default: as the tokenizer says."
    )
    onnx_pooling: Literal["mean", "cls"] = Field(default="mean", description="How tokens become one embedding.")
    onnx_normalize: bool = Field(default=True, description="Embeddings of length 1.")
    onnx_threads: int | None = Field(default=None, ge=1, description="CPU threads.")

    @model_validator(mode="after")
    def _no_gpu(self) -> Self:
        if self.gpu_count:
            raise ValueError("onnx computes on the CPU: leave `gpus` and `device` out")
        return self


_FLAGS = (
    ("onnx_max_tokens", "--max-tokens"),
    ("onnx_pooling", "--pooling"),
    ("onnx_threads", "--threads"),
)

_VERDICTS: tuple[tuple[str, Verdict], ...] = (
    (
        r"No module named .?(onnxruntime|tokenizers|numpy)",
        Verdict("ONNX Runtime is not installed (extra `onnx`)", True),
    ),
    (r"External data", Verdict("the model's external data is not beside it, or not whole", True)),
    (r"it is not an ONNX file", Verdict("not an ONNX file", True)),
    (r"no tokenizer beside|several vocabularies lie beside", Verdict("no tokenizer beside the model", True)),
    (r"is not a tokenizer\.json|is not a (BERT )?vocabulary", Verdict("not a tokenizer", True)),
    (r"the model has (an|no) input|no output of the model", Verdict("not an embedding model", True)),
    (r"unrecognized arguments|invalid choice|leaves no room for a text", Verdict("bad argument", True)),
    (r"bad_alloc|failed to allocate|out of memory|MemoryError", Verdict("out of memory")),
    (r"port .*(taken|in use)|address already in use", Verdict("port taken")),
)


class Onnx(Engine):
    """Renders the worker's command line."""

    name: ClassVar[str] = "onnx"
    definition = OnnxDefinition
    image_kind: ClassVar[str | None] = "worker"
    most_inflight: ClassVar[int | None] = 1
    hashed_fields: ClassVar[tuple[str, ...]] = (
        "onnx_tokenizer",
        "onnx_max_tokens",
        "onnx_pooling",
        "onnx_normalize",
        "onnx_threads",
    )

    def derive_capabilities(self, definition: Definition) -> Capabilities:
        """Embeddings of texts."""
        return apply_declared(definition, EMBEDDINGS)

    def context_length(self, definition: Definition) -> int | None:
        """As declared."""
        assert isinstance(definition, OnnxDefinition)
        return definition.onnx_max_tokens

    def list_artifacts(self, definition: Definition) -> tuple[str, ...]:
        """The file."""
        assert isinstance(definition, OnnxDefinition)
        return (definition.model_path,)

    def predict_memory(self, definition: Definition, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """The file, and what runs it."""
        assert isinstance(definition, OnnxDefinition)
        return predict_by_size(artifact_at(definition.model_path, artifacts), gpus=0)

    def list_files(self, definition: Definition) -> tuple[FileCheck, ...]:
        """The file, and the tokenizer: the one that is named, or one beside it."""
        assert isinstance(definition, OnnxDefinition)
        path = definition.model_path
        if definition.onnx_tokenizer is not None:
            return FileCheck("model_path", path, "file"), FileCheck("onnx_tokenizer", definition.onnx_tokenizer, "file")
        return (FileCheck("model_path", path, "file", beside=("tokenizer.json", "*-vocab.txt", "vocab.txt")),)

    def render_command(self, definition: Definition, ctx: RenderContext) -> Launch:
        """`python -m worker onnx ...`."""
        assert isinstance(definition, OnnxDefinition)
        args = [*worker_program(self.name, ctx), "--model", ctx.resolve_path(definition.model_path)]
        if definition.onnx_tokenizer is not None:
            args += ("--tokenizer", ctx.resolve_path(definition.onnx_tokenizer))
        for name, flag in _FLAGS:
            value = getattr(definition, name)
            if value is not None:
                args += (flag, str(value))
        if not definition.onnx_normalize:
            args.append("--no-normalize")
        args += definition.extra_args
        return Launch(tuple(args), dict(definition.env), self.resolve_image(definition, ctx.images), WORKER_TOKEN_ENV)

    def describe_probe(self, definition: Definition) -> Probe:
        """The worker's, with one embedding."""
        return worker_probe(embedding=True)

    def list_apis(self, definition: Definition) -> tuple[str, ...]:
        """Embeddings."""
        return ("/v1/embeddings",)

    def explain_exit(self, exit_code: int | None, log_tail: str) -> Verdict | None:
        """By the sentences that the worker and ONNX Runtime write."""
        return first_verdict(_VERDICTS, log_tail)
