"""llama-cpp-python in a worker process: GGUF models without a second server program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from controller.artifacts.facts import Artifact, longest_token_at
from controller.engines.base import Engine, FileCheck, Launch, Probe, RenderContext, Verdict
from controller.engines.capabilities import EMBEDDINGS, apply_declared
from controller.engines.families import PromptFormat, family_of, thinking_modes
from controller.engines.llama_log import GPU_VERDICTS, MISSING_GPU_VERDICTS, dots_progress, memory_verdicts
from controller.engines.llama_server import GgmlType, tensor_split_args
from controller.engines.load_fields import LoadField
from controller.engines.memory import WORKER_OVERHEAD, Forecast
from controller.engines.memory_llama import LlamaLoad, predict_gguf
from controller.engines.worker import WORKER_CHAT_APIS, WORKER_TOKEN_ENV, worker_probe, worker_program
from controller.schema.admin import Capabilities, LoadConstraint, PairPresets
from controller.schema.desired import Definition
from controller.schema.routing import ThinkingControl


class LlamaCppDefinition(Definition):
    """A GGUF model served by llama-cpp-python."""

    backend: Literal["llama_cpp"]
    model_path: str = Field(description="The GGUF file, in a models folder.")
    gguf_n_ctx: int | None = Field(
        default=None, ge=1, description="Context length in tokens; default: the model's own."
    )
    gguf_n_gpu_layers: int | None = Field(default=None, ge=-1, description="Layers kept on the GPU; -1: all.")
    gguf_flash_attn: Literal["on", "off", "auto"] = Field(default="auto", description="Flash attention.")
    gguf_type_k: GgmlType | None = Field(default=None, description="Type of the K cache; default f16.")
    gguf_type_v: GgmlType | None = Field(default=None, description="Type of the V cache; default f16.")
    gguf_embedding: bool = Field(default=False, description="Serve embeddings, and nothing else.")
    gguf_chat_format: str | None = Field(default=None, description="Chat format; default: the model's own template.")
    prompt_format: PromptFormat | None = Field(
        default=None, description="Names what the chat template in the file is; default: told by the file's name."
    )

    @model_validator(mode="after")
    def _one_chat_template(self) -> Self:
        if self.gguf_chat_format is not None and self.prompt_format is not None:
            raise ValueError("gguf_chat_format and prompt_format exclude each other")
        return self


_FLAGS = (
    ("gguf_n_ctx", "--n-ctx"),
    ("gguf_n_gpu_layers", "--n-gpu-layers"),
    ("gguf_flash_attn", "--flash-attn"),
    ("gguf_type_k", "--type-k"),
    ("gguf_type_v", "--type-v"),
    ("gguf_chat_format", "--chat-format"),
)

_BATCH = 512
"""Tokens of a batch, where llama-cpp-python is told nothing."""
_EMBEDDING_TOKENS = 2048
"""The same of an embedding model of unknown context, as the worker sets it."""

_TYPES: list[int | str] = [*get_args(GgmlType)]
_TYPE = LoadConstraint(
    kind="string_or_null",
    format="ggml_type_name",
    default="f16",
    allowed_values=_TYPES,
    examples=["f16", "q8_0", "q4_0"],
)
_LOAD_FIELDS = (
    LoadField("gguf_n_ctx", "Context length in tokens.", LoadConstraint(kind="integer", minimum=1, step=1)),
    LoadField(
        "gguf_flash_attn",
        "Flash attention.",
        LoadConstraint(
            kind="enum", default="auto", allowed_values=["on", "off", "auto"], examples=["auto", "on", "off"]
        ),
    ),
    LoadField("gguf_type_k", "Type of the K cache, a GGML type; null: the default.", _TYPE),
    LoadField("gguf_type_v", "Type of the V cache, a GGML type; null: the default.", _TYPE),
)
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
    *memory_verdicts(context="gguf_n_ctx", cache_types="`gguf_type_k`, `gguf_type_v`", gpu_layers="gguf_n_gpu_layers"),
    *GPU_VERDICTS,
    (r"port .*(taken|in use)|address already in use", Verdict("port taken")),
)


class LlamaCpp(Engine):
    """Renders the worker's command line."""

    name: ClassVar[str] = "llama_cpp"
    definition = LlamaCppDefinition
    render_version: ClassVar[int] = 2
    image_kind: ClassVar[str | None] = "worker"
    hashed_fields: ClassVar[tuple[str, ...]] = ("gguf_embedding", *(field for field, _ in _FLAGS))
    hashed_when_set: ClassVar[tuple[str, ...]] = ("prompt_format",)
    most_inflight: ClassVar[int | None] = 1
    thinking_switch: ClassVar[ThinkingControl] = "thinking"
    load_fields: ClassVar[tuple[LoadField, ...]] = _LOAD_FIELDS
    load_recommendations: ClassVar[Mapping[str, PairPresets]] = MappingProxyType({"gguf_cache_type_pairs": _PAIRS})

    def derive_capabilities(self, definition: Definition) -> Capabilities:
        """TranslateGemma translates one text, and calls nothing; Gemma 4 can be told to think."""
        assert isinstance(definition, LlamaCppDefinition)
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

    def context_length(self, definition: Definition) -> int | None:
        """As declared."""
        assert isinstance(definition, LlamaCppDefinition)
        return definition.gguf_n_ctx

    def list_artifacts(self, definition: Definition) -> tuple[str, ...]:
        """The model."""
        assert isinstance(definition, LlamaCppDefinition)
        return (definition.model_path,)

    def longest_token(self, definition: Definition, artifacts: Mapping[str, Artifact]) -> int | None:
        """Of the file's vocabulary."""
        assert isinstance(definition, LlamaCppDefinition)
        return longest_token_at(definition.model_path, artifacts)

    def predict_memory(self, definition: Definition, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """By llama.cpp's own sums, with llama-cpp-python's batches, of whose tokens all may be asked for."""
        assert isinstance(definition, LlamaCppDefinition)
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
            full_window=True,  # as llama.cpp's library does where it is told nothing, other than its server
            host_overhead=WORKER_OVERHEAD,
        )
        return predict_gguf(definition.model_path, artifacts, load)

    def render_command(self, definition: Definition, ctx: RenderContext) -> Launch:
        """`python -m worker llama_cpp ...`."""
        assert isinstance(definition, LlamaCppDefinition)
        args = [*worker_program(self.name, ctx), "--model", ctx.resolve_path(definition.model_path)]
        for name, flag in _FLAGS:
            value = getattr(definition, name)
            if value is not None:
                args += (flag, str(value))
        if definition.prompt_format is not None:
            args += ("--prompt-format", definition.prompt_format)
        if definition.gguf_embedding:
            args.append("--embedding")
        args += tensor_split_args(ctx.gpus)
        if definition.gpu_count:
            args += ("--gpu-count", str(definition.gpu_count))
        args += definition.extra_args
        return Launch(tuple(args), dict(definition.env), self.resolve_image(definition, ctx.images), WORKER_TOKEN_ENV)

    def list_files(self, definition: Definition) -> tuple[FileCheck, ...]:
        """The model."""
        assert isinstance(definition, LlamaCppDefinition)
        return (FileCheck("model_path", definition.model_path, "gguf"),)

    def describe_probe(self, definition: Definition) -> Probe:
        """`/health`, then one token or one embedding."""
        assert isinstance(definition, LlamaCppDefinition)
        return worker_probe(embedding=definition.gguf_embedding)

    def list_apis(self, definition: Definition) -> tuple[str, ...]:
        """An embedding model serves nothing else."""
        assert isinstance(definition, LlamaCppDefinition)
        if definition.gguf_embedding:
            return ("/v1/embeddings", "/tokenize", "/detokenize")
        return WORKER_CHAT_APIS

    def parse_progress(self, log_tail: str) -> float | None:
        """By the dots that llama.cpp writes."""
        return dots_progress(log_tail)

    def explain_exit(self, exit_code: int | None, log_tail: str) -> Verdict | None:
        """By the sentences that the worker and llama.cpp write."""
        for pattern, verdict in _VERDICTS:
            if re.search(pattern, log_tail, re.IGNORECASE):
                return verdict
        return None
