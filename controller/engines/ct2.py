"""CTranslate2 in a worker process: converted model folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from contract.admin import Capabilities
from contract.desired import Definition, Settable
from contract.routing import ThinkingControl
from controller.artifacts.heads import Artifact, Ct2, UnreadArtifact, longest_token_at
from controller.engines.base import (
    ChatFormat,
    Engine,
    FileCheck,
    Launch,
    Probe,
    RenderContext,
    Verdict,
    apply_declared,
    family_of,
    thinking_modes,
)
from controller.engines.memory import (
    CUDA_OVERHEAD,
    NOTHING,
    WORKER_OVERHEAD,
    Forecast,
    MemoryParts,
    Prediction,
    Unpredicted,
    artifact_at,
)
from controller.engines.options import Flag, Hashed, PathFlag, render_options
from controller.engines.worker import (
    HF_VERDICTS,
    OLD_DRIVER,
    WORKER_CHAT_APIS,
    WORKER_TOKEN_ENV,
    gpu_verdict,
    memory_verdicts,
    worker_probe,
    worker_program,
)

_BYTES: Final = {"f32": 4, "i8": 1, "i16": 2, "i32": 4, "f16": 2, "bf16": 2}
_COMPUTES: Final = {
    "int8": (1, 4),
    "int8_float32": (1, 4),
    "int8_float16": (1, 2),
    "int8_bfloat16": (1, 2),
    "int16": (2, 4),
    "float16": (2, 2),
    "bfloat16": (2, 2),
    "float32": (4, 4),
}
"""Bytes per element by compute type: of matrices, and of other variables."""


def predict_ct2(path: str, artifacts: Mapping[str, Artifact], *, compute_type: str, gpus: int) -> Forecast:
    """Predict the memory, in bytes, of a CTranslate2 replica: the weights of the model at `path`, converted to the
    types of `compute_type`, plus what CUDA and the worker take. `gpus` 0: on the CPU. `Unpredicted` where the files
    were not read or are not CTranslate2's. What a text takes is not counted: it is small."""
    facts = artifact_at(path, artifacts)
    if isinstance(facts, UnreadArtifact):
        return Unpredicted(facts.reason)
    if not isinstance(facts, Ct2):
        return Unpredicted(f"{path} has no model.bin")
    matrix_element, other_element = (
        (1, 2 if gpus else 4) if compute_type == "auto" else _COMPUTES.get(compute_type, (None, None))
    )
    least_bytes = 2 if gpus else 4  # without a GPU it computes with floats of 4 bytes, however they are stored
    weights = _converted_bytes(facts.matrices, matrix_element, least_bytes) + _converted_bytes(
        facts.vectors, other_element, least_bytes
    )
    host = MemoryParts(overhead=WORKER_OVERHEAD)
    if gpus:
        return Prediction(MemoryParts(weights, overhead=CUDA_OVERHEAD), host, gpus)
    return Prediction(NOTHING, host + MemoryParts(weights))


def _converted_bytes(stored_sizes: Mapping[str, int], element: int | None, least_bytes: int) -> int:
    """Return the bytes of all variables with elements of `element` bytes; None: as stored, as far as that type can be
    computed with."""
    total = 0
    for kind, length in stored_sizes.items():
        size = max(_BYTES[kind], least_bytes) if kind in ("f16", "bf16") else _BYTES[kind]
        total += length // _BYTES[kind] * (size if element is None or kind == "i32" else element)
    return total


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
    """A converted model served by CTranslate2, on the CPU or on one GPU."""

    backend: Annotated[Literal["ct2"], Settable.ALWAYS]
    model_path: Annotated[str, Settable.IN_MODELS_FOLDER] = Field(
        description="Path of the model's folder (CTranslate2), in a models folder."
    )
    ct2_tokenizer: Annotated[
        str | None, PathFlag("--tokenizer", "folder", inside="tokenizer.json"), Hashed.ALWAYS, Settable.IN_MODELS_FOLDER
    ] = Field(
        default=None, description="Path of the tokenizer's folder, in a models folder; default: the model's folder."
    )
    ct2_compute_type: Annotated[ComputeType | None, Flag("--compute-type"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, description="Data type of the computation; default: as converted."
    )
    ct2_max_tokens: Annotated[int | None, Flag("--max-tokens"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None,
        ge=1,
        description="Maximum tokens of prompt and answer together; default: the model's own.",
    )
    ct2_inter_threads: Annotated[int | None, Flag("--inter-threads"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, ge=1, description="Requests computed in parallel (CPU); default: 1."
    )
    ct2_intra_threads: Annotated[int | None, Flag("--intra-threads"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, ge=1, description="CPU threads per request; default: CTranslate2's choice."
    )
    prompt_format: Annotated[ChatFormat | None, Flag("--prompt-format"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, description="Prompt format; default: the chat template of the tokenizer."
    )

    @model_validator(mode="after")
    def _one_gpu(self) -> Self:
        if (self.gpu_count or 0) > 1:
            raise ValueError(f"ct2 computes on one GPU: `gpus` is {self.gpu_count}")
        return self


_VERDICTS: tuple[tuple[str, Verdict], ...] = (
    (r"CTranslate2 cannot be used: No module named", Verdict("CTranslate2 is not installed (extra `ct2`)", True)),
    (r"cannot open .*/model\.bin", Verdict("not a CTranslate2 folder: convert the model first", True)),
    (r"is not this model's: its token", Verdict("ct2_tokenizer is another model's", True)),
    (r"Requested \w+ compute type", Verdict("the hardware lacks this ct2_compute_type", True)),
    *memory_verdicts("CTranslate2", "ct2_inter_threads, or take a smaller ct2_compute_type"),
    *HF_VERDICTS,
    (r"not compiled with CUDA", Verdict("this CTranslate2 was built without CUDA", True)),
    OLD_DRIVER,
    gpu_verdict("CTranslate2"),
    (r"CTranslate2 cannot be used", Verdict("CTranslate2 cannot be used here: it lacks a library")),
    (r"CTranslate2 cannot load", Verdict("not a model that CTranslate2 can load", True)),
)


class CT2(Engine[CT2Definition]):
    """The backend `ct2`: renders the command line of a worker process that runs CTranslate2. Starts nothing itself, has
    no state."""

    name: ClassVar[str] = "ct2"
    image_kind: ClassVar[str | None] = "worker"
    definition = CT2Definition
    context_field: ClassVar[str] = "ct2_max_tokens"
    thinking_switch: ClassVar[ThinkingControl] = "thinking"
    verdicts: ClassVar[tuple[tuple[str, Verdict], ...]] = _VERDICTS

    def configured_inflight(self, definition: CT2Definition) -> int:
        """Return how many requests one replica is meant to serve in parallel: the declared `target_inflight`, else
        `ct2_inter_threads`, else 1."""
        return definition.target_inflight or definition.ct2_inter_threads or self.default_target_inflight

    def target_inflight(self, definition: CT2Definition) -> int:
        """Return how many requests one replica serves in parallel: the configured number, up to `ct2_inter_threads` (1
        if that is not set)."""
        return min(self.configured_inflight(definition), definition.ct2_inter_threads or 1)

    def derive_capabilities(self, definition: CT2Definition) -> Capabilities:
        """Return which requests the model takes: text in single turns, without tools, JSON schemas or log
        probabilities; all thinking modes for Qwen3. What the definition declares takes precedence."""
        family = family_of(definition.prompt_format, definition.model_path)
        derived = Capabilities(
            multi_turn=False,
            thinking_modes=thinking_modes(family, "qwen3"),
            tools=False,
            forced_tools=False,
            structured_output=False,
            logprobs=False,
        )
        return apply_declared(definition, derived)

    def context_length(self, definition: CT2Definition) -> int | None:
        """Return the declared limit of one request, in tokens; None: not declared."""
        return definition.ct2_max_tokens

    def list_artifacts(self, definition: CT2Definition) -> tuple[str, ...]:
        """Return the model path, a folder, as a tuple of one."""
        return (definition.model_path,)

    def longest_token(self, definition: CT2Definition, artifacts: Mapping[str, Artifact]) -> int | None:
        """Return the length in bytes of the longest token of the tokenizer in the model's folder. None: it was not
        read, or `ct2_tokenizer` names another one."""
        has_own = definition.ct2_tokenizer is None
        return longest_token_at(definition.model_path, artifacts) if has_own else None

    def predict_memory(self, definition: CT2Definition, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """Predict the memory of one replica, in bytes: the weights in the types that CTranslate2 computes in, plus what
        CUDA and the worker take. Never None: `Unpredicted` where the model's files were not read, or are not
        CTranslate2's."""
        return predict_ct2(
            definition.model_path,
            artifacts,
            compute_type=definition.ct2_compute_type or "default",
            gpus=definition.gpu_count or 0,
        )

    def render_command(self, definition: CT2Definition, ctx: RenderContext) -> Launch:
        """Return the command line `python -m worker ct2 ...` and the definition's environment. It computes on the GPU
        if the definition asks for one. As a process, raises KeyError if the runtime knows no `python`."""
        args = [*worker_program(self.name, ctx), "--model", ctx.resolve_path(definition.model_path)]
        args += ("--device", "cuda" if definition.gpu_count else "cpu")
        args += render_options(definition, PathFlag, ctx.resolve_path)
        args += render_options(definition, Flag)
        args += definition.extra_args
        return Launch(tuple(args), dict(definition.env), self.resolve_image(definition, ctx.images), WORKER_TOKEN_ENV)

    def list_files(self, definition: CT2Definition) -> tuple[FileCheck, ...]:
        """Return checks of the model's folder, its `model.bin`, and `tokenizer.json` there or in the folder that
        `ct2_tokenizer` names."""
        model = definition.model_path
        checks: tuple[FileCheck, ...] = (
            FileCheck("model_path", model, "folder"),
            FileCheck("model_path", model, "file", "model.bin"),
        )
        if definition.ct2_tokenizer is None:
            checks = (*checks, FileCheck("model_path", model, "file", "tokenizer.json"))
        return (*checks, *super().list_files(definition))

    def describe_probe(self, definition: CT2Definition) -> Probe:
        """Return the worker's probe: `/health`, then one token of a completion."""
        return worker_probe()

    def list_apis(self, definition: CT2Definition) -> tuple[str, ...]:
        """Return the request paths that a worker answers for text: chat completions and their number of input tokens,
        completions, tokenizing, detokenizing and the chat template (`WORKER_CHAT_APIS`)."""
        return WORKER_CHAT_APIS
