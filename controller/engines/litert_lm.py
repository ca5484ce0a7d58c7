"""LiteRT-LM in a worker process: `.litertlm` files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from contract.admin import Capabilities, Modality
from contract.desired import Definition, Settable
from contract.routing import SessionBinding, ThinkingControl
from controller.artifacts.heads import Artifact
from controller.engines.base import Engine, FileCheck, Launch, Probe, RenderContext, Verdict, apply_declared
from controller.engines.memory import Forecast, artifact_at, predict_by_size
from controller.engines.options import Flag, Hashed, render_options
from controller.engines.worker import WORKER_TOKEN_ENV, worker_chat_probe, worker_program


class LiteRTLMDefinition(Definition):
    """A `.litertlm` file served by LiteRT-LM. An option that is `gpu` needs a GPU in `gpus` or `device`."""

    backend: Annotated[Literal["litert_lm"] | None, Settable.ALWAYS] = None
    model_path: Annotated[str, Settable.IN_MODELS_FOLDER] = Field(
        description="Path of the `.litertlm` file, in a models folder."
    )
    litert_lm_backend: Annotated[Literal["cpu", "gpu"] | None, Flag("--backend"), Hashed.ALWAYS, Settable.ALWAYS] = (
        Field(
            default=None,
            description="Processor that computes the model; default: gpu if the definition asks for GPUs, else cpu.",
        )
    )
    litert_lm_vision_backend: Annotated[
        Literal["cpu", "gpu"] | None, Flag("--vision-backend"), Hashed.ALWAYS, Settable.ALWAYS
    ] = Field(
        default=None, description="Processor that encodes images; default: none, and the model accepts no images."
    )
    litert_lm_audio_backend: Annotated[Literal["cpu", "gpu"] | None, Flag("--audio-backend"), Settable.ALWAYS] = Field(
        default=None, description="Processor that encodes audio; default: none, and the model accepts no audio."
    )
    litert_lm_max_tokens: Annotated[int | None, Flag("--max-tokens"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, ge=1, description="Maximum tokens of a conversation; default: as the file was compiled."
    )

    @model_validator(mode="after")
    def _gpu_asked_for(self) -> Self:
        for name in ("litert_lm_backend", "litert_lm_vision_backend", "litert_lm_audio_backend"):
            if getattr(self, name) == "gpu" and not self.gpu_count:
                raise ValueError(f"{name} is gpu, and the definition asks for no GPU: set `gpus: 1`")
        return self


_VERDICTS: tuple[tuple[str, Verdict], ...] = (
    (r"No module named .?litert_lm", Verdict("LiteRT-LM is not installed (extra `litert-lm`)", True)),
    (r"is not a \.litertlm file|unknown file format", Verdict("not a .litertlm file", True)),
    (r"is too large for|too large for file size|is greater than file size", Verdict("the file is not complete", True)),
    (r"holds no language model", Verdict("not a language model", True)),
    (r"takes no images: leave", Verdict("the model takes no images", True)),
    (r"takes no audio: leave", Verdict("the model takes no audio", True)),
    (r"is more than the \d+ that|unrecognized arguments|invalid choice", Verdict("bad argument", True)),
    (r"libvulkan|Vulkan", Verdict("no GPU that LiteRT-LM can use: it needs Vulkan", True)),
    (r"out of memory|bad_alloc|MemoryError|RESOURCE_EXHAUSTED", Verdict("out of memory")),
    (r"port .*(taken|in use)|address already in use", Verdict("port taken")),
)


class LiteRTLM(Engine[LiteRTLMDefinition]):
    """The backend `litert_lm`: renders the command line of a worker process that runs LiteRT-LM, one request at a time.
    Starts nothing itself, has no state."""

    name: ClassVar[str] = "litert_lm"
    definition = LiteRTLMDefinition
    image_kind: ClassVar[str | None] = "worker"
    # It computes with WebGPU, which is Vulkan there.
    gpu_capabilities: ClassVar[tuple[str, ...]] = ("compute", "utility", "graphics")
    thinking_switch: ClassVar[ThinkingControl] = "thinking"
    context_field: ClassVar[str] = "litert_lm_max_tokens"
    most_inflight: ClassVar[int | None] = 1
    renders_sessions: ClassVar[bool] = True
    verdicts: ClassVar[tuple[tuple[str, Verdict], ...]] = _VERDICTS

    def session_cache(self, definition: LiteRTLMDefinition) -> int:
        """Return the configured number of sessions (`configured_sessions`): each session is a `Conversation` of the
        library, with its own KV cache."""
        return self.configured_sessions(definition)

    def session_binding(self, definition: LiteRTLMDefinition) -> SessionBinding | None:
        """Return `conversation`, never None: a request names its session by the field `session_id`, and a session is
        computed anew when its sampling changes."""
        return "conversation"

    def derive_capabilities(self, definition: LiteRTLMDefinition) -> Capabilities:
        """Return which requests the model takes: conversations with tools that no request can force, and images and
        audio where a backend for them is declared, without JSON schemas or log probabilities. What the definition
        declares takes precedence."""
        encoders: tuple[tuple[Modality, str | None], ...] = (
            ("image", definition.litert_lm_vision_backend),
            ("audio", definition.litert_lm_audio_backend),
        )
        modalities: tuple[Modality, ...] = ("text", *(kind for kind, processor in encoders if processor is not None))
        derived = Capabilities(modalities=modalities, forced_tools=False, structured_output=False, logprobs=False)
        return apply_declared(definition, derived)

    def context_length(self, definition: LiteRTLMDefinition) -> int | None:
        """Return the declared limit of a conversation, in tokens; None: not declared."""
        return definition.litert_lm_max_tokens

    def list_artifacts(self, definition: LiteRTLMDefinition) -> tuple[str, ...]:
        """Return the model path, a file, as a tuple of one."""
        return (definition.model_path,)

    def render_command(self, definition: LiteRTLMDefinition, ctx: RenderContext) -> Launch:
        """Return the command line `python -m worker litert_lm ...` and the definition's environment. Compiled files go
        to the cache folder, not beside the model. As a process, raises KeyError if the runtime knows no `python`."""
        args = [*worker_program(self.name, ctx), "--model", ctx.resolve_path(definition.model_path)]
        device = "gpu" if definition.gpu_count else "cpu"
        args += render_options(definition, Flag, fallbacks={"litert_lm_backend": device})
        if definition.session_cache is not None:
            args += ("--session-cache", str(definition.session_cache))
        args += ("--cache-dir", str(ctx.cache_dir / "litert-lm"), *definition.extra_args)
        return Launch(tuple(args), dict(definition.env), self.resolve_image(definition, ctx.images), WORKER_TOKEN_ENV)

    def predict_memory(self, definition: LiteRTLMDefinition, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """Predict the memory of one replica, in bytes: the size of the model file, on the GPUs if the definition asks
        for any, plus what CUDA and the worker take. Never None: `Unpredicted` where the file was not read."""
        return predict_by_size(artifact_at(definition.model_path, artifacts), definition.gpu_count or 0)

    def list_files(self, definition: LiteRTLMDefinition) -> tuple[FileCheck, ...]:
        """Return checks of the model file and of the files that options name."""
        return (FileCheck("model_path", definition.model_path, "file"), *super().list_files(definition))

    def describe_probe(self, definition: LiteRTLMDefinition) -> Probe:
        """Return the worker's probe: `/health`, then one token of a chat completion."""
        return worker_chat_probe()

    def list_apis(self, definition: LiteRTLMDefinition) -> tuple[str, ...]:
        """Return the only request path that the engine answers, `/v1/chat/completions`."""
        return ("/v1/chat/completions",)
