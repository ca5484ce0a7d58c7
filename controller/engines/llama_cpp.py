"""llama-cpp-python in a worker process: GGUF models without llama-server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from contract.admin import Capabilities, PairPresets
from contract.desired import Definition, Settable
from contract.routing import SessionBinding, ThinkingControl
from controller.artifacts.heads import Artifact, longest_token_at
from controller.engines.base import (
    EMBEDDINGS,
    Engine,
    FigureGap,
    FileCheck,
    Launch,
    Probe,
    PromptFormat,
    RenderContext,
    Verdict,
    apply_declared,
    compare_figure,
    compare_padded_context,
    compare_slots,
    family_of,
    thinking_modes,
)
from controller.engines.llama_server import (
    GPU_VERDICTS,
    MISSING_GPU_VERDICTS,
    dots_progress,
    llama_memory_verdicts,
    tensor_split_args,
)
from controller.engines.llama_server_fields import GgmlType
from controller.engines.memory import WORKER_OVERHEAD, Forecast, LlamaLoad, Unpredicted, predict_gguf
from controller.engines.options import Flag, Hashed, Loadable, Switch, render_options
from controller.engines.worker import WORKER_CHAT_APIS, WORKER_TOKEN_ENV, worker_probe, worker_program
from controller.state import AppliedFigures

_LOADABLE_TYPE: Final = Loadable(
    {"kind": "string_or_null", "format": "ggml_type_name", "default": "f16", "examples": ["f16", "q8_0", "q4_0"]},
    null="the default",
)


class LlamaCppDefinition(Definition):
    """A GGUF model served by llama-cpp-python. `gguf_chat_format` and `prompt_format` exclude each other."""

    backend: Annotated[Literal["llama_cpp"], Settable.ALWAYS]
    model_path: Annotated[str, Settable.IN_MODELS_FOLDER] = Field(
        description="Path of the GGUF file, in a models folder."
    )
    gguf_n_ctx: Annotated[int | None, Flag("--n-ctx"), Loadable(), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, ge=1, description="Context length in tokens; default: the model's own."
    )
    gguf_n_gpu_layers: Annotated[int | None, Flag("--n-gpu-layers"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, ge=-1, description="Layers on the GPU; -1: all; default: all."
    )
    gguf_flash_attn: Annotated[
        Literal["on", "off", "auto"],
        Flag("--flash-attn"),
        Loadable({"default": "auto", "examples": ["auto", "on", "off"]}),
        Hashed.ALWAYS,
        Settable.ALWAYS,
    ] = Field(default="auto", description="Whether to use flash attention.")
    gguf_type_k: Annotated[GgmlType | None, Flag("--type-k"), _LOADABLE_TYPE, Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, description="Data type of the K cache, a GGML type; default: f16."
    )
    gguf_type_v: Annotated[GgmlType | None, Flag("--type-v"), _LOADABLE_TYPE, Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, description="Data type of the V cache, a GGML type; default: f16."
    )
    gguf_embedding: Annotated[bool, Switch("--embedding"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=False, description="Serve embeddings only."
    )
    gguf_chat_format: Annotated[str | None, Flag("--chat-format"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, description="Chat format; default: the model's own template."
    )
    prompt_format: Annotated[PromptFormat | None, Flag("--prompt-format"), Settable.ALWAYS] = Field(
        default=None,
        description="Prompt format of the file's own chat template; default: derived from the file's name.",
    )

    @model_validator(mode="after")
    def _one_chat_template(self) -> Self:
        if self.gguf_chat_format is not None and self.prompt_format is not None:
            raise ValueError("gguf_chat_format and prompt_format exclude each other")
        return self


_BATCH = 512
"""llama-cpp-python's own batch size, in tokens."""
_EMBEDDING_TOKENS = 2048
"""Batch size of an embedding model whose context length is not declared, as the worker sets it."""

_PAIRS = PairPresets(
    kind="pair_presets",
    fields=["gguf_type_k", "gguf_type_v"],
    recommended_pairs=[
        {"label": f"{each}/{each}", "gguf_type_k": each, "gguf_type_v": each} for each in ("f16", "q8_0", "q4_0")
    ],
    notes=[
        "Service-curated presets for GGUF cache types.",
        "Prefer symmetric GGUF K/V pairs by default; asymmetric pairs may reduce or disable GPU offload in upstream "
        "llama.cpp.",
    ],
)

_VERDICTS: tuple[tuple[str, Verdict], ...] = (
    *MISSING_GPU_VERDICTS,
    (
        r"it was built without CUDA: llama\.cpp sees no GPU",
        Verdict(
            "this llama-cpp-python was built without CUDA, as the worker's own image is, and the definition asks for a "
            "GPU: take an image with a CUDA build of it (`image`), or the backend llama_server, or `gpus: 0`",
            True,
        ),
    ),
    (
        r"llama\.cpp sees (no GPU|\d+ of the)",
        Verdict("llama.cpp does not see all of its GPUs: look at `nvidia-smi` where the engine runs"),
    ),
    (r"No module named .?llama_cpp", Verdict("llama-cpp-python is not installed (extra `llama-cpp`)", True)),
    (r"not a GGUF", Verdict("not a GGUF file", True)),
    (r"unknown cache type|unrecognized arguments|invalid choice|neither the model nor", Verdict("bad argument", True)),
    (r"the file has no chat template", Verdict("no chat template in the file", True)),
    *llama_memory_verdicts(
        context="gguf_n_ctx", cache_types="`gguf_type_k`, `gguf_type_v`", gpu_layers="gguf_n_gpu_layers"
    ),
    *GPU_VERDICTS,
    (r"port .*(taken|in use)|address already in use", Verdict("port taken")),
)


class LlamaCpp(Engine[LlamaCppDefinition]):
    """The backend `llama_cpp`: renders the command line of a worker process that runs llama-cpp-python, one request at
    a time. Starts nothing itself, has no state."""

    name: ClassVar[str] = "llama_cpp"
    definition = LlamaCppDefinition
    render_version: ClassVar[int] = 2
    image_kind: ClassVar[str | None] = "worker"
    most_inflight: ClassVar[int | None] = 1
    thinking_switch: ClassVar[ThinkingControl] = "thinking"
    load_recommendations: ClassVar[Mapping[str, PairPresets]] = MappingProxyType({"gguf_cache_type_pairs": _PAIRS})
    renders_sessions: ClassVar[bool] = True
    verdicts: ClassVar[tuple[tuple[str, Verdict], ...]] = _VERDICTS

    def session_cache(self, definition: LlamaCppDefinition) -> int:
        """Return the declared number of sessions, else 0, since what a session has computed takes main memory. 0 with
        `gguf_embedding`, whatever is declared."""
        return 0 if definition.gguf_embedding else definition.session_cache or 0

    def session_binding(self, definition: LlamaCppDefinition) -> SessionBinding | None:
        """Return `name` if the replica keeps sessions (`session_cache` above 0): a request names its session by the
        field `session_id`. Else None."""
        return "name" if self.session_cache(definition) else None

    def derive_capabilities(self, definition: LlamaCppDefinition) -> Capabilities:
        """Return which requests the model takes: embeddings alone with `gguf_embedding`; else text, without log
        probabilities. TranslateGemma takes one turn and no tools, `gguf_chat_format` no tools; Gemma 4 takes all
        thinking modes. What the definition declares takes precedence."""
        if definition.gguf_embedding:
            return apply_declared(definition, EMBEDDINGS)
        family = family_of(definition.prompt_format, definition.model_path)
        if definition.gguf_chat_format is not None:
            family = None  # another template than the file's own
        translates = definition.prompt_format == "translategemma_template"
        derived = Capabilities(
            multi_turn=not translates,
            thinking_modes=thinking_modes(family, "gemma4"),
            tools=not translates and definition.gguf_chat_format is None,
            logprobs=False,
        )
        return apply_declared(definition, derived)

    def context_length(self, definition: LlamaCppDefinition) -> int | None:
        """Return the declared context length in tokens; None: not declared."""
        return definition.gguf_n_ctx

    def compare_figures(self, definition: LlamaCppDefinition, applied: AppliedFigures) -> tuple[FigureGap, ...]:
        """Return what differs of the context length, the slots and the data types of the KV cache."""
        return (
            *compare_padded_context(definition, "gguf_n_ctx", definition.gguf_n_ctx, applied.context_length),
            *compare_slots(definition, self.target_inflight(definition), applied.slots),
            *compare_figure(definition, "gguf_type_k", definition.gguf_type_k, applied.cache_type_k),
            *compare_figure(definition, "gguf_type_v", definition.gguf_type_v, applied.cache_type_v),
        )

    def list_artifacts(self, definition: LlamaCppDefinition) -> tuple[str, ...]:
        """Return the model path, a GGUF file, as a tuple of one."""
        return (definition.model_path,)

    def longest_token(self, definition: LlamaCppDefinition, artifacts: Mapping[str, Artifact]) -> int | None:
        """Return the length in bytes of the longest token of the file's vocabulary; None: it was not read."""
        return longest_token_at(definition.model_path, artifacts)

    def predict_memory(self, definition: LlamaCppDefinition, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """Predict the memory of one replica, in bytes, by llama.cpp's own formulas (see `predict_gguf`), with the batch
        size of llama-cpp-python and logits of all tokens. Never None: `Unpredicted` where the file was not read or its
        architecture is not known. `extra_args` are not looked at."""
        type_v = definition.gguf_type_v or "f16"
        batch = (definition.gguf_n_ctx or _EMBEDDING_TOKENS) if definition.gguf_embedding else _BATCH
        layers = definition.gguf_n_gpu_layers
        load = LlamaLoad(
            context=definition.gguf_n_ctx,
            batch=batch,
            micro_batch=batch,
            flash_attention=definition.gguf_flash_attn == "on"
            or (definition.gguf_flash_attn == "auto" and type_v not in ("f32", "f16", "bf16")),
            type_k=definition.gguf_type_k or "f16",
            type_v=type_v,
            gpu_layers=None if layers is None or layers < 0 else layers,
            gpus=definition.gpu_count or 0,
            full_window=True,  # the default of llama.cpp's library, though not of its server
            host_overhead=WORKER_OVERHEAD,
        )
        forecast = predict_gguf(definition.model_path, artifacts, load)
        if isinstance(forecast, Unpredicted) or not self.session_cache(definition):
            return forecast
        kept = forecast.host.kv_cache + forecast.gpu.kv_cache * forecast.gpus  # states of a whole context at most
        return replace(forecast, host=replace(forecast.host, kv_cache=forecast.host.kv_cache + kept), host_grows=True)

    def render_command(self, definition: LlamaCppDefinition, ctx: RenderContext) -> Launch:
        """Return the command line `python -m worker llama_cpp ...` and the definition's environment. As a process,
        raises KeyError if the runtime knows no `python`."""
        args = [*worker_program(self.name, ctx), "--model", ctx.resolve_path(definition.model_path)]
        args += render_options(definition, Flag)
        args += render_options(definition, Switch)
        args += tensor_split_args(ctx.gpus)
        if definition.session_cache is not None:
            args += ("--session-cache", str(self.session_cache(definition)))
        if definition.gpu_count:
            args += ("--gpu-count", str(definition.gpu_count))
        args += definition.extra_args
        return Launch(tuple(args), dict(definition.env), self.resolve_image(definition, ctx.images), WORKER_TOKEN_ENV)

    def list_files(self, definition: LlamaCppDefinition) -> tuple[FileCheck, ...]:
        """Return checks of the model, a GGUF file, and of the files that options name."""
        return (FileCheck("model_path", definition.model_path, "gguf"), *super().list_files(definition))

    def describe_probe(self, definition: LlamaCppDefinition) -> Probe:
        """Return the worker's probe: `/health`, then one token of a completion or, with `gguf_embedding`, one
        embedding."""
        return worker_probe(embedding=definition.gguf_embedding)

    def list_apis(self, definition: LlamaCppDefinition) -> tuple[str, ...]:
        """Return the request paths that a worker answers for text or, with `gguf_embedding`, for embeddings."""
        if definition.gguf_embedding:
            return ("/v1/embeddings", "/tokenize", "/detokenize")
        return WORKER_CHAT_APIS

    def parse_progress(self, log_tail: str) -> float | None:
        """Return the progress of a load, from 0 to 1, by the dots that llama.cpp writes while it loads (see
        `dots_progress`); None: the log has no dots."""
        return dots_progress(log_tail)
