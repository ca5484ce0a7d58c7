"""CTranslate2 in a worker process: converted model folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from controller.artifacts.facts import Artifact, longest_token_at
from controller.engines.base import Engine, FileCheck, Launch, Probe, RenderContext, Verdict
from controller.engines.capabilities import apply_declared
from controller.engines.cuda_log import OLD_DRIVER
from controller.engines.families import ChatFormat, family_of, thinking_modes
from controller.engines.hf_worker import HF_VERDICTS
from controller.engines.memory import Forecast
from controller.engines.memory_ct2 import predict_ct2
from controller.engines.worker import (
    WORKER_CHAT_APIS,
    WORKER_TOKEN_ENV,
    first_verdict,
    gpu_verdict,
    memory_verdicts,
    worker_probe,
    worker_program,
)
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
    model_path: str = Field(description="The model's folder (CTranslate2), in a models folder.")
    ct2_tokenizer: str | None = Field(
        default=None, description="Folder of the tokenizer, in a models folder; default: the model's."
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

    @model_validator(mode="after")
    def _one_gpu(self) -> Self:
        if (self.gpu_count or 0) > 1:
            raise ValueError(f"ct2 computes on one GPU: `gpus` is {self.gpu_count}")
        return self


_FLAGS = (
    ("ct2_compute_type", "--compute-type"),
    ("ct2_max_tokens", "--max-tokens"),
    ("ct2_inter_threads", "--inter-threads"),
    ("ct2_intra_threads", "--intra-threads"),
    ("prompt_format", "--prompt-format"),
)

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


class CT2(Engine):
    """Renders the worker's command line."""

    name: ClassVar[str] = "ct2"
    image_kind: ClassVar[str | None] = "worker"
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

    def configured_inflight(self, definition: Definition) -> int:
        """As many as are computed side by side, where nothing else is said."""
        assert isinstance(definition, CT2Definition)
        return definition.target_inflight or definition.ct2_inter_threads or self.default_target_inflight

    def target_inflight(self, definition: Definition) -> int:
        """No more than are computed side by side."""
        assert isinstance(definition, CT2Definition)
        return min(self.configured_inflight(definition), definition.ct2_inter_threads or 1)

    def derive_capabilities(self, definition: Definition) -> Capabilities:
        """One turn; Qwen3 can be told to think."""
        assert isinstance(definition, CT2Definition)
        family = family_of(definition.prompt_format, definition.model_path)
        derived = Capabilities(
            multi_turn=False,
            thinking_modes=thinking_modes(family, "qwen3"),
            tools=False,
            structured_output=False,
            logprobs=False,
        )
        return apply_declared(definition, derived)

    def context_length(self, definition: Definition) -> int | None:
        """As declared."""
        assert isinstance(definition, CT2Definition)
        return definition.ct2_max_tokens

    def list_artifacts(self, definition: Definition) -> tuple[str, ...]:
        """The folder."""
        assert isinstance(definition, CT2Definition)
        return (definition.model_path,)

    def longest_token(self, definition: Definition, artifacts: Mapping[str, Artifact]) -> int | None:
        """Of the tokenizer in the model's folder, unless it is another one."""
        assert isinstance(definition, CT2Definition)
        has_own = definition.ct2_tokenizer is None
        return longest_token_at(definition.model_path, artifacts) if has_own else None

    def predict_memory(self, definition: Definition, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """Its variables in the types that it computes in."""
        assert isinstance(definition, CT2Definition)
        return predict_ct2(
            definition.model_path,
            artifacts,
            compute_type=definition.ct2_compute_type or "default",
            gpus=definition.gpu_count or 0,
        )

    def render_command(self, definition: Definition, ctx: RenderContext) -> Launch:
        """`python -m worker ct2 ...`."""
        assert isinstance(definition, CT2Definition)
        args = [*worker_program(self.name, ctx), "--model", ctx.resolve_path(definition.model_path)]
        args += ("--device", "cuda" if definition.gpu_count else "cpu")
        if definition.ct2_tokenizer is not None:
            args += ("--tokenizer", ctx.resolve_path(definition.ct2_tokenizer))
        for name, flag in _FLAGS:
            value = getattr(definition, name)
            if value is not None:
                args += (flag, str(value))
        args += definition.extra_args
        return Launch(tuple(args), dict(definition.env), self.resolve_image(definition, ctx.images), WORKER_TOKEN_ENV)

    def list_files(self, definition: Definition) -> tuple[FileCheck, ...]:
        """The folder with its weights, and the tokenizer's."""
        assert isinstance(definition, CT2Definition)
        model, tokenizer_path = definition.model_path, definition.ct2_tokenizer
        checks = (FileCheck("model_path", model, "folder"), FileCheck("model_path", model, "file", "model.bin"))
        if tokenizer_path is None:
            return (*checks, FileCheck("model_path", model, "file", "tokenizer.json"))
        tokenizer_check = FileCheck("ct2_tokenizer", tokenizer_path, "folder")
        return (*checks, tokenizer_check, FileCheck("ct2_tokenizer", tokenizer_path, "file", "tokenizer.json"))

    def describe_probe(self, definition: Definition) -> Probe:
        """The worker's."""
        return worker_probe()

    def list_apis(self, definition: Definition) -> tuple[str, ...]:
        """Text."""
        return WORKER_CHAT_APIS

    def explain_exit(self, exit_code: int | None, log_tail: str) -> Verdict | None:
        """By the sentences that the worker and CTranslate2 write."""
        return first_verdict(_VERDICTS, log_tail)
