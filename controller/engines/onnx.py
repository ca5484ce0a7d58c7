"""ONNX Runtime in a worker process: embedding models, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from contract.admin import Capabilities
from contract.desired import Definition, Settable
from controller.artifacts.heads import Artifact
from controller.engines.base import EMBEDDINGS, Engine, FileCheck, Launch, Probe, RenderContext, Verdict, apply_declared
from controller.engines.memory import Forecast, artifact_at, predict_by_size
from controller.engines.options import Flag, Hashed, PathFlag, Switch, render_options
from controller.engines.worker import WORKER_TOKEN_ENV, worker_probe, worker_program


class OnnxDefinition(Definition):
    """An embedding model served by ONNX Runtime, on the CPU alone."""

    backend: Annotated[Literal["onnx"] | None, Settable.ALWAYS] = None
    model_path: Annotated[str, Settable.IN_MODELS_FOLDER] = Field(
        description="Path of the `.onnx` file, in a models folder."
    )
    onnx_tokenizer: Annotated[str | None, PathFlag("--tokenizer", "file"), Hashed.ALWAYS, Settable.IN_MODELS_FOLDER] = (
        Field(
            default=None,
            description="Path of a `tokenizer.json`, or of BERT's vocabulary as `*-vocab.txt` or `vocab.txt`, in a "
            "models folder; default: the one beside the model.",
        )
    )
    onnx_max_tokens: Annotated[int | None, Flag("--max-tokens"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None,
        ge=1,
        description="Maximum tokens of a text; longer texts are truncated; default: as the tokenizer says.",
    )
    onnx_pooling: Annotated[Literal["mean", "cls"], Flag("--pooling"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default="mean", description="How the embeddings of a text's tokens become one embedding."
    )
    onnx_normalize: Annotated[bool, Switch(off="--no-normalize"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=True, description="Scale embeddings to length 1."
    )
    onnx_threads: Annotated[int | None, Flag("--threads"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, ge=1, description="CPU threads; default: one per core."
    )

    @model_validator(mode="after")
    def _no_gpu(self) -> Self:
        if self.gpu_count:
            raise ValueError("onnx computes on the CPU: leave `gpus` and `device` out")
        return self


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


class Onnx(Engine[OnnxDefinition]):
    """The backend `onnx`: renders the command line of a worker process that runs ONNX Runtime on the CPU, for
    embeddings. Starts nothing itself, has no state."""

    name: ClassVar[str] = "onnx"
    definition = OnnxDefinition
    image_kind: ClassVar[str | None] = "worker"
    context_field: ClassVar[str] = "onnx_max_tokens"
    most_inflight: ClassVar[int | None] = 1
    verdicts: ClassVar[tuple[tuple[str, Verdict], ...]] = _VERDICTS

    def derive_capabilities(self, definition: OnnxDefinition) -> Capabilities:
        """Return which requests the model takes: embeddings alone. What the definition declares takes precedence."""
        return apply_declared(definition, EMBEDDINGS)

    def context_length(self, definition: OnnxDefinition) -> int | None:
        """Return the declared number of tokens of a text that count; None: not declared."""
        return definition.onnx_max_tokens

    def list_artifacts(self, definition: OnnxDefinition) -> tuple[str, ...]:
        """Return the model path, a file, as a tuple of one."""
        return (definition.model_path,)

    def predict_memory(self, definition: OnnxDefinition, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """Predict the main memory of one replica, in bytes: the size of the model file plus the worker's own memory.
        Never None: `Unpredicted` where the file was not read."""
        return predict_by_size(artifact_at(definition.model_path, artifacts), gpus=0)

    def list_files(self, definition: OnnxDefinition) -> tuple[FileCheck, ...]:
        """Return checks of the model file and of the tokenizer: the file that `onnx_tokenizer` names, else any known
        tokenizer file beside the model."""
        beside = () if definition.onnx_tokenizer is not None else ("tokenizer.json", "*-vocab.txt", "vocab.txt")
        model = FileCheck("model_path", definition.model_path, "file", beside=beside)
        return (model, *super().list_files(definition))

    def render_command(self, definition: OnnxDefinition, ctx: RenderContext) -> Launch:
        """Return the command line `python -m worker onnx ...` and the definition's environment. As a process, raises
        KeyError if the runtime knows no `python`."""
        args = [*worker_program(self.name, ctx), "--model", ctx.resolve_path(definition.model_path)]
        args += render_options(definition, PathFlag, ctx.resolve_path)
        args += render_options(definition, Flag)
        args += render_options(definition, Switch)
        args += definition.extra_args
        return Launch(tuple(args), dict(definition.env), self.resolve_image(definition, ctx.images), WORKER_TOKEN_ENV)

    def describe_probe(self, definition: OnnxDefinition) -> Probe:
        """Return the worker's probe: `/health`, then one embedding."""
        return worker_probe(embedding=True)

    def list_apis(self, definition: OnnxDefinition) -> tuple[str, ...]:
        """Return the only request path that the engine answers, `/v1/embeddings`."""
        return ("/v1/embeddings",)
