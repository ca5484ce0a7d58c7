"""LiteRT-LM in a worker process: `.litertlm` files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from controller.artifacts.facts import Artifact
from controller.engines.base import Engine, FileCheck, Launch, Probe, RenderContext, Verdict
from controller.engines.capabilities import apply_declared
from controller.engines.memory import Forecast, artifact_at, predict_by_size
from controller.engines.worker import WORKER_TOKEN_ENV, first_verdict, worker_chat_probe, worker_program
from controller.schema.admin import Capabilities, Modality
from controller.schema.desired import Definition
from controller.schema.routing import ThinkingControl


class LiteRTLMDefinition(Definition):
    """A `.litertlm` file served by LiteRT-LM."""

    backend: Literal["litert_lm"] | None = None
    model_path: str = Field(description="The `.litertlm` file, in a models folder.")
    litert_lm_backend: Literal["cpu", "gpu"] | None = Field(
        default=None, description="Where it computes; default: gpu where the definition asks for GPUs, else cpu."
    )
    litert_lm_vision_backend: Literal["cpu", "gpu"] | None = Field(
        default=None, description="Where images are encoded; without it images are not taken."
    )
    litert_lm_max_tokens: int | None = Field(
        default=None, ge=1, description="Tokens of a conversation at most; default: as the file was compiled."
    )

    @model_validator(mode="after")
    def _gpu_asked_for(self) -> Self:
        for name in ("litert_lm_backend", "litert_lm_vision_backend"):
            if getattr(self, name) == "gpu" and not self.gpu_count:
                raise ValueError(f"{name} is gpu, and the definition asks for no GPU: set `gpus: 1`")
        return self


_VERDICTS: tuple[tuple[str, Verdict], ...] = (
    (r"No module named .?litert_lm", Verdict("LiteRT-LM is not installed (extra `litert-lm`)", True)),
    (r"is not a \.litertlm file|unknown file format", Verdict("not a .litertlm file", True)),
    (r"is too large for|too large for file size|is greater than file size", Verdict("the file is not complete", True)),
    (r"holds no language model", Verdict("not a language model", True)),
    (r"takes no images: leave", Verdict("the model takes no images", True)),
    (r"is more than the \d+ that|unrecognized arguments|invalid choice", Verdict("bad argument", True)),
    (r"libvulkan|Vulkan", Verdict("no GPU that LiteRT-LM can use: it needs Vulkan", True)),
    (r"out of memory|bad_alloc|MemoryError|RESOURCE_EXHAUSTED", Verdict("out of memory")),
    (r"port .*(taken|in use)|address already in use", Verdict("port taken")),
)


class LiteRTLM(Engine):
    """Renders the worker's command line."""

    name: ClassVar[str] = "litert_lm"
    definition = LiteRTLMDefinition
    image_kind: ClassVar[str | None] = "worker"
    # It computes with WebGPU, which is Vulkan there.
    gpu_capabilities: ClassVar[tuple[str, ...]] = ("compute", "utility", "graphics")
    thinking_switch: ClassVar[ThinkingControl] = "thinking"
    most_inflight: ClassVar[int | None] = 1
    hashed_fields: ClassVar[tuple[str, ...]] = (
        "litert_lm_backend",
        "litert_lm_vision_backend",
        "litert_lm_max_tokens",
    )

    def derive_capabilities(self, definition: Definition) -> Capabilities:
        """Conversations; images where they are encoded. Its answers cannot be held to a schema."""
        assert isinstance(definition, LiteRTLMDefinition)
        takes_images = definition.litert_lm_vision_backend is not None
        modalities: tuple[Modality, ...] = ("text", "image") if takes_images else ("text",)
        derived = Capabilities(modalities=modalities, structured_output=False, logprobs=False)
        return apply_declared(definition, derived)

    def context_length(self, definition: Definition) -> int | None:
        """As declared."""
        assert isinstance(definition, LiteRTLMDefinition)
        return definition.litert_lm_max_tokens

    def list_artifacts(self, definition: Definition) -> tuple[str, ...]:
        """The file."""
        assert isinstance(definition, LiteRTLMDefinition)
        return (definition.model_path,)

    def render_command(self, definition: Definition, ctx: RenderContext) -> Launch:
        """`python -m worker litert_lm ...`. What it compiles goes into the cache, not beside the model."""
        assert isinstance(definition, LiteRTLMDefinition)
        args = [*worker_program(self.name, ctx), "--model", ctx.resolve_path(definition.model_path)]
        args += ("--backend", definition.litert_lm_backend or ("gpu" if definition.gpu_count else "cpu"))
        if definition.litert_lm_vision_backend is not None:
            args += ("--vision-backend", definition.litert_lm_vision_backend)
        if definition.litert_lm_max_tokens is not None:
            args += ("--max-tokens", str(definition.litert_lm_max_tokens))
        args += ("--cache-dir", str(ctx.cache_dir / "litert-lm"), *definition.extra_args)
        return Launch(tuple(args), dict(definition.env), self.resolve_image(definition, ctx.images), WORKER_TOKEN_ENV)

    def predict_memory(self, definition: Definition, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """The file, and what runs it."""
        assert isinstance(definition, LiteRTLMDefinition)
        return predict_by_size(artifact_at(definition.model_path, artifacts), definition.gpu_count or 0)

    def list_files(self, definition: Definition) -> tuple[FileCheck, ...]:
        """The file."""
        assert isinstance(definition, LiteRTLMDefinition)
        return (FileCheck("model_path", definition.model_path, "file"),)

    def describe_probe(self, definition: Definition) -> Probe:
        """The worker's, by its only API."""
        return worker_chat_probe()

    def list_apis(self, definition: Definition) -> tuple[str, ...]:
        """Its API knows conversations alone."""
        return ("/v1/chat/completions",)

    def explain_exit(self, exit_code: int | None, log_tail: str) -> Verdict | None:
        """By the sentences that the worker and LiteRT-LM write."""
        return first_verdict(_VERDICTS, log_tail)
