"""llama.cpp's own server: a container, a binary, or embedded in a worker process through xllamacpp."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from controller.artifacts.facts import Artifact, longest_token_at
from controller.engines.base import ClaimedGpu, Engine, EngineFigures, FileCheck, Launch, Probe, RenderContext, Verdict
from controller.engines.capabilities import EMBEDDINGS, apply_declared
from controller.engines.llama_log import GPU_VERDICTS, MISSING_GPU_VERDICTS, dots_progress, memory_verdicts
from controller.engines.load_fields import LoadField
from controller.engines.memory import MIB, NOTHING, Forecast, MemoryParts, Prediction, Unpredicted, sum_forecasts
from controller.engines.memory_llama import LlamaLoad, predict_gguf
from controller.schema.admin import Capabilities, LoadConstraint
from controller.schema.desired import Definition

GgmlType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
HOST_OVERHEAD: Final = 40 * MIB
"""What llama-server takes beside its buffers and its vocabulary: 20 MiB, embedded in a worker 20 more."""
_DRAFTED: Final = 3
"""Tokens drafted at most where nothing is said."""
_SIZES: Final = {
    "-c": "context",
    "--ctx-size": "context",
    "-b": "batch",
    "--batch-size": "batch",
    "-ub": "micro_batch",
    "--ubatch-size": "micro_batch",
    "-np": "sequences",
    "--parallel": "sequences",
}
_MOST_SHARES: Final = 15
"""llama-server takes fewer than the devices that llama.cpp knows at most, which are 16."""
_CHANGES_PROMPTS: Final = frozenset({"--context-shift", "LLAMA_ARG_CONTEXT_SHIFT", "--override-kv"})
_SPLIT_CACHE: Final = frozenset({"-no-kvu", "--no-kv-unified", "--kv-unified-per-slot"})
"""Arguments after which each slot has a cache of its own, or all share one of another size."""
_CACHE_RAM: Final = ("-cram", "--cache-ram")
_OPAQUE: Final = frozenset(
    {
        *("-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "-nkvo", "--no-kv-offload"),
        *("-ts", "--tensor-split", "-sm", "--split-mode", "-no-kvu", "--no-kv-unified", "-dev", "--device"),
        *(
            "--fit",
            "-fit",
            "-ngl",
            "--n-gpu-layers",
            "--gpu-layers",
            "-ctk",
            "--cache-type-k",
            "-ctv",
            "--cache-type-v",
        ),
        *("-fa", "--flash-attn", "--lora", "--lora-scaled", "--control-vector", "-md", "--model-draft", "--rpc"),
    }
)
"""Arguments that move or change memory in ways that are not followed here."""


class LlamaServerDefinition(Definition):
    """A GGUF model served by llama-server."""

    backend: Literal["llama_server"] | None = None
    model_path: str = Field(description="The GGUF file, in a models folder.")
    llama_server_binary: str | None = Field(
        default=None, description="Path of the llama-server program (process); default: on PATH, else embedded."
    )
    llama_server_library_path: str | None = Field(
        default=None, description="Folders of its shared libraries (process), as LD_LIBRARY_PATH takes them."
    )
    llama_server_n_ctx: int | None = Field(
        default=None, ge=1, description="Context length in tokens, shared by all slots; default: the model's own."
    )
    llama_server_n_gpu_layers: int | None = Field(
        default=None, ge=-1, description="Layers kept on the GPU; -1 or left out: as many as there are."
    )
    llama_server_flash_attn: Literal["on", "off", "auto"] = Field(default="auto", description="Flash attention.")
    llama_server_cache_type_k: GgmlType | None = Field(default=None, description="Type of the K cache; default f16.")
    llama_server_cache_type_v: GgmlType | None = Field(default=None, description="Type of the V cache; default f16.")
    llama_server_mmproj: str | None = Field(default=None, description="Multimodal projector (GGUF), for images.")
    llama_server_image_max_tokens: int | None = Field(default=None, ge=1, description="Vision tokens per image.")
    llama_server_draft_model_path: str | None = Field(default=None, description="Draft model (GGUF), for speculation.")
    llama_server_spec_type: Literal["draft-mtp"] | None = Field(default=None, description="Speculative decoding.")
    llama_server_spec_draft_n_max: int | None = Field(default=None, ge=1, le=6, description="Tokens drafted at most.")
    llama_server_spec_draft_p_min: float | None = Field(
        default=None, ge=0.0, le=1.0, description="Least probability of a drafted token."
    )
    llama_server_embedding: bool = Field(default=False, description="Serve embeddings, and nothing else.")
    llama_server_pooling: Literal["none", "mean", "cls", "last", "rank"] | None = Field(
        default=None, description="Pooling of embeddings; default: the model's own."
    )
    llama_server_reranking: bool = Field(default=False, description="Serve reranking.")
    llama_server_threads: int | None = Field(default=None, ge=1, description="CPU threads for generation.")
    llama_server_cache_ram_mib: int | None = Field(
        default=None, ge=0, description="Main memory for prompts that have left their slot, in MiB; default: none."
    )
    llama_server_reasoning_format: Literal["none", "deepseek", "deepseek-legacy", "auto"] | None = Field(
        default=None, description="How thoughts are returned."
    )
    llama_server_chat_template_file: str | None = Field(
        default=None, description="Jinja chat template, in a models folder; default: the model's own."
    )

    @model_validator(mode="after")
    def _has_room_for_prompts(self) -> Self:
        if self.memory_mib is not None and (self.llama_server_cache_ram_mib or 0) >= self.memory_mib:
            raise ValueError(
                f"llama_server_cache_ram_mib is a part of memory_mib, so it is less than {self.memory_mib}"
            )
        return self


_FLAGS: tuple[tuple[str, str], ...] = (
    ("llama_server_n_ctx", "--ctx-size"),
    ("llama_server_n_gpu_layers", "--n-gpu-layers"),
    ("llama_server_flash_attn", "--flash-attn"),
    ("llama_server_cache_type_k", "--cache-type-k"),
    ("llama_server_cache_type_v", "--cache-type-v"),
    ("llama_server_image_max_tokens", "--image-max-tokens"),
    ("llama_server_spec_type", "--spec-type"),
    ("llama_server_spec_draft_n_max", "--spec-draft-n-max"),
    ("llama_server_spec_draft_p_min", "--spec-draft-p-min"),
    ("llama_server_pooling", "--pooling"),
    ("llama_server_threads", "--threads"),
    ("llama_server_reasoning_format", "--reasoning-format"),
)
_PATH_FLAGS: tuple[tuple[str, str], ...] = (
    ("llama_server_mmproj", "--mmproj"),
    ("llama_server_draft_model_path", "--model-draft"),
    ("llama_server_chat_template_file", "--chat-template-file"),
)

_GENERATING = (
    "/v1/chat/completions",
    "/v1/chat/completions/input_tokens",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/infill",
    "/completion",
)
_ALWAYS = ("/tokenize", "/detokenize", "/apply-template", "/props", "/slots", "/lora-adapters")
"""Paths that it answers whatever its mode."""

_VERDICTS: tuple[tuple[str, Verdict], ...] = (
    *MISSING_GPU_VERDICTS,
    (
        r"invalid device: ",
        Verdict(
            "llama.cpp does not see its GPU: this build may have no CUDA (`image`, `llama_server_binary`; compare "
            "`llama-server --list-devices`), or CUDA did not start (compare `nvidia-smi`); devices of another kind are "
            "named by `--device` in `extra_args`"
        ),
    ),
    # At the line's beginning: "CUDA error: invalid argument" is none of a command line.
    (r"(?m)^error: invalid argument|unknown argument|error while handling argument", Verdict("bad argument", True)),
    (r"No module named .?xllamacpp", Verdict("neither a llama-server binary nor xllamacpp is installed", True)),
    (r"bad magic|invalid magic|not a gguf|failed to read magic", Verdict("not a GGUF file", True)),
    (r"unknown model architecture|unsupported model architecture", Verdict("unsupported model architecture", True)),
    *memory_verdicts(
        context="llama_server_n_ctx",
        cache_types="`llama_server_cache_type_k`, `llama_server_cache_type_v`",
        gpu_layers="llama_server_n_gpu_layers",
        slots="target_inflight",
    ),
    *GPU_VERDICTS,
    (r"corrupted or incomplete", Verdict("the file is corrupted or incomplete", True)),
    (r"couldn't bind|address already in use|port .* in use", Verdict("port taken")),
    (r"No such file or directory|failed to open", Verdict("file missing")),
)

_LOAD_FIELDS = (
    LoadField(
        "llama_server_n_ctx",
        "Context length in tokens, shared by all slots.",
        LoadConstraint(kind="integer", minimum=1, step=1),
    ),
    LoadField(
        "llama_server_image_max_tokens",
        "Vision tokens per image at most.",
        LoadConstraint(kind="integer", minimum=1, step=1),
    ),
    LoadField(
        "llama_server_spec_type",
        "Kind of speculative decoding; null: as if none were configured.",
        LoadConstraint(kind="enum", default="draft-mtp", allowed_values=["draft-mtp"], examples=["draft-mtp"]),
        nullable=True,
    ),
    LoadField(
        "llama_server_spec_draft_n_max",
        "Tokens drafted at most.",
        LoadConstraint(kind="integer", minimum=1, maximum=6, step=1, default=2),
    ),
    LoadField(
        "llama_server_spec_draft_p_min",
        "Least probability of a drafted token.",
        LoadConstraint(kind="float", minimum=0.0, maximum=1.0, default=0.0),
    ),
)
_SPEC_DEFAULTS = {
    field.name: field.constraint.default
    for field in _LOAD_FIELDS
    if field.name in ("llama_server_spec_draft_n_max", "llama_server_spec_draft_p_min")
}
"""Shown as what is in force where nothing is said, so it is rendered: llama-server's own defaults are others."""


class LlamaServer(Engine):
    """Renders llama-server's command line, the same for binary, container and embedded."""

    name: ClassVar[str] = "llama_server"
    definition = LlamaServerDefinition
    default_target_inflight: ClassVar[int] = 4
    notices_leaving: ClassVar[bool] = False  # it looks only after a second without any result, of any request
    renders_inflight: ClassVar[bool] = True
    render_version: ClassVar[int] = 2
    image_kind: ClassVar[str | None] = "llama-server"
    hashed_fields: ClassVar[tuple[str, ...]] = (
        "llama_server_binary",
        "llama_server_embedding",
        "llama_server_reranking",
        *(field for field, _ in _FLAGS),
        *(field for field, _ in _PATH_FLAGS),
    )
    hashed_when_set: ClassVar[tuple[str, ...]] = ("llama_server_library_path", "llama_server_cache_ram_mib")
    load_fields: ClassVar[tuple[LoadField, ...]] = _LOAD_FIELDS

    def render_command(self, definition: Definition, ctx: RenderContext) -> Launch:
        """`--parallel` is `target_inflight`, with one KV cache for all slots; `--fit off`: memory is ours to plan.

        `--cache-ram`: by its own default llama-server fills 8 GiB of main memory with prompts.
        """
        assert isinstance(definition, LlamaServerDefinition)
        args = [
            *("--model", ctx.resolve_path(definition.model_path), "--alias", ctx.served_name),
            *("--host", ctx.host, "--port", str(ctx.port)),
            *("--parallel", str(self.target_inflight(definition)), "--kv-unified"),
            *("--fit", "off", "--metrics", "--slots", "--jinja", "--no-webui"),
            *("--cache-ram", str(definition.llama_server_cache_ram_mib or 0)),
        ]
        for name, flag in _FLAGS:
            value = getattr(definition, name)
            if value is None and definition.llama_server_spec_type is not None:
                value = _SPEC_DEFAULTS.get(name)
            if value is not None:
                # Its parser takes no number that is too small for a float.
                args += (flag, str(round(value, 6))) if isinstance(value, float) else (flag, str(value))
        for name, flag in _PATH_FLAGS:
            value = getattr(definition, name)
            if value is not None:
                args += (flag, ctx.resolve_path(value))
        if definition.llama_server_draft_model_path and definition.llama_server_spec_type is None:
            # Without a type llama-server loads the draft model and never uses it.
            args += ("--spec-type", "draft-simple")
        if definition.llama_server_embedding:
            args.append("--embeddings")
        if definition.llama_server_reranking:
            args.append("--reranking")
        args += (*_device_flags(definition), *tensor_split_args(ctx.gpus), *definition.extra_args)
        env = {"LLAMA_CACHE": str(ctx.cache_dir)}
        if definition.llama_server_library_path and ctx.runtime == "process":
            env["LD_LIBRARY_PATH"] = definition.llama_server_library_path
        env.update(definition.env)
        return Launch(
            (*self._build_program(definition, ctx), *args),
            env,
            self.resolve_image(definition, ctx.images),
            "LLAMA_API_KEY",
        )

    def _build_program(self, definition: LlamaServerDefinition, ctx: RenderContext) -> tuple[str, ...]:
        if ctx.runtime == "docker":
            return ("/app/llama-server",)
        binary = definition.llama_server_binary or ctx.executables.get("llama-server")
        return (binary,) if binary else (ctx.executables["python"], "-m", "worker", "llama_server", "--")

    def list_files(self, definition: Definition) -> tuple[FileCheck, ...]:
        """The model, and the projector, draft and template where named."""
        assert isinstance(definition, LlamaServerDefinition)
        checks = [FileCheck("model_path", definition.model_path, "gguf")]
        if definition.llama_server_mmproj:
            checks.append(FileCheck("llama_server_mmproj", definition.llama_server_mmproj, "gguf"))
        if definition.llama_server_draft_model_path:
            checks.append(FileCheck("llama_server_draft_model_path", definition.llama_server_draft_model_path, "gguf"))
        if definition.llama_server_chat_template_file:
            checks.append(
                FileCheck("llama_server_chat_template_file", definition.llama_server_chat_template_file, "file")
            )
        return tuple(checks)

    def describe_probe(self, definition: Definition) -> Probe:
        """`/health`, then one token, or one embedding, or one ranking. `/v1/embeddings` is refused where nothing is
        pooled, which the model itself may say; `/embedding` never is."""
        assert isinstance(definition, LlamaServerDefinition)
        path, body = "/v1/completions", {"prompt": "a", "max_tokens": 1}
        if definition.llama_server_embedding:
            path, body = "/embedding", {"content": "a"}
        if definition.llama_server_reranking:
            path, body = "/v1/rerank", {"query": "a", "documents": ["a"]}
        return Probe(
            health_path="/health",
            ready_path=path,
            ready_body=body,
            metrics_path="/metrics",
            busy_metrics=("llamacpp:requests_processing", "llamacpp:requests_deferred"),
            progress_metrics=(
                "llamacpp:prompt_tokens_total",
                "llamacpp:tokens_predicted_total",
                "llamacpp:n_decode_total",
            ),
            template_path="/apply-template" if path == "/v1/completions" else None,
        )

    def list_apis(self, definition: Definition) -> tuple[str, ...]:
        """Embedding and reranking models generate nothing. `/infill` answers only where the model knows it."""
        assert isinstance(definition, LlamaServerDefinition)
        if definition.llama_server_reranking:
            return ("/v1/rerank", *_ALWAYS)
        if definition.llama_server_embedding:
            pooled = () if definition.llama_server_pooling == "none" else ("/v1/embeddings",)
            return (*pooled, "/embedding", *_ALWAYS)
        return (*_GENERATING, *_ALWAYS)

    def derive_capabilities(self, definition: Definition) -> Capabilities:
        """Images with a projector."""
        assert isinstance(definition, LlamaServerDefinition)
        if definition.llama_server_embedding or definition.llama_server_reranking:
            return apply_declared(definition, EMBEDDINGS)
        takes_images = definition.llama_server_mmproj is not None
        return apply_declared(definition, Capabilities(modalities=("text", "image") if takes_images else ("text",)))

    def max_choices(self, definition: Definition) -> int | None:
        """As many as it has slots: it launches all answers to a request at once."""
        return self.target_inflight(definition)

    def context_length(self, definition: Definition) -> int | None:
        """All of the cache: its slots share one, so a request alone may have it."""
        assert isinstance(definition, LlamaServerDefinition)
        return definition.llama_server_n_ctx

    def kv_cache_tokens(self, definition: Definition, told: EngineFigures) -> int | None:
        """All slots share one cache: as large as declared, or as one request's context, which the model may limit.

        Requests that fill it together all fail (`Context size has been exceeded.`). Not looked at where no answers are
        generated, or where `extra_args` give each slot a cache of its own, or one of a size that is not said here.
        """
        assert isinstance(definition, LlamaServerDefinition)
        if definition.llama_server_embedding or definition.llama_server_reranking:
            return None
        args = definition.extra_args
        if not _SPLIT_CACHE.isdisjoint(args):
            return None
        declared = definition.llama_server_n_ctx or 0
        for flag, value in pairwise(args):
            if _SIZES.get(flag) == "context" and value.isdecimal():
                declared = int(value)
        return max(declared, told.context_length or 0) or None

    def list_artifacts(self, definition: Definition) -> tuple[str, ...]:
        """The model, and the projector and draft where named."""
        return tuple(check.path for check in self.list_files(definition) if check.kind == "gguf")

    def longest_token(self, definition: Definition, artifacts: Mapping[str, Artifact]) -> int | None:
        """Of the file's vocabulary, which `--override-kv` may change. With `--context-shift` the beginning of a prompt
        may be cut off."""
        assert isinstance(definition, LlamaServerDefinition)
        changes_prompts = not _CHANGES_PROMPTS.isdisjoint((*definition.extra_args, *definition.env))
        return None if changes_prompts else longest_token_at(definition.model_path, artifacts)

    def predict_memory(self, definition: Definition, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """By llama.cpp's own sums."""
        assert isinstance(definition, LlamaServerDefinition)
        return _predict_memory(definition, self.target_inflight(definition), artifacts)

    def parse_progress(self, log_tail: str) -> float | None:
        """By the dots that llama.cpp writes, in releases that do."""
        return dots_progress(log_tail)

    def explain_exit(self, exit_code: int | None, log_tail: str) -> Verdict | None:
        """By the sentences that llama.cpp writes."""
        for pattern, verdict in _VERDICTS:
            if re.search(pattern, log_tail, re.IGNORECASE):
                return verdict
        return None


def tensor_split_args(gpus: Sequence[ClaimedGpu]) -> tuple[str, ...]:
    """Arguments that split a model over several GPUs as these were claimed; by itself llama.cpp goes by free memory."""
    if not 1 < len(gpus) <= _MOST_SHARES:
        return ()
    return ("--tensor-split", ",".join(str(gpu.claim_mib) for gpu in gpus))


def _device_flags(definition: LlamaServerDefinition) -> tuple[str, ...]:
    """The GPUs that it must have. Told nothing, it computes on the CPU where CUDA does not start."""
    # It refuses the first device that it does not know, so that these cannot stand before a definition's own.
    names_own = {"-dev", "--device"} & set(definition.extra_args) or "LLAMA_ARG_DEVICE" in definition.env
    if not definition.gpu_count or names_own:
        return ()
    return ("--device", ",".join(f"CUDA{number}" for number in range(definition.gpu_count)))


def _predict_memory(definition: LlamaServerDefinition, sequences: int, artifacts: Mapping[str, Artifact]) -> Forecast:
    """A replica of so many slots: the model, and the projector and draft model where named."""
    load = _build_load(definition, sequences)
    if isinstance(load, Unpredicted):
        return load
    if definition.llama_server_spec_type is not None:
        return Unpredicted("what the model's own draft layers take is not known")
    forecasts = [predict_gguf(definition.model_path, artifacts, load)]
    if definition.llama_server_draft_model_path is not None:
        draft = replace(load, outputs=load.sequences, type_k="f16", type_v="f16", gpu_layers=None)
        forecasts.append(predict_gguf(definition.llama_server_draft_model_path, artifacts, draft))
    if definition.llama_server_mmproj is not None:
        forecasts.append(predict_gguf(definition.llama_server_mmproj, artifacts, load))
    forecasts.append(_predict_prompt_cache(definition))
    return sum_forecasts(forecasts)


def _predict_prompt_cache(definition: LlamaServerDefinition) -> Forecast:
    """Of prompts that have left their slot, once as many are kept as may be."""
    cache_mib = definition.llama_server_cache_ram_mib or 0
    for position, arg in enumerate(definition.extra_args):
        if arg in _CACHE_RAM:
            value = definition.extra_args[position + 1] if position + 1 < len(definition.extra_args) else ""
            if not value.isdecimal():
                return Unpredicted(f"extra_args holds {arg}, and sets no limit with it")
            cache_mib = int(value)
    return Prediction(NOTHING, MemoryParts(kv_cache=cache_mib * MIB), host_grows=cache_mib > 0)


def _build_load(definition: LlamaServerDefinition, sequences: int) -> LlamaLoad | Unpredicted:
    load = LlamaLoad(
        context=definition.llama_server_n_ctx,
        sequences=sequences,
        flash_attention=definition.llama_server_flash_attn != "off",
        type_k=definition.llama_server_cache_type_k or "f16",
        type_v=definition.llama_server_cache_type_v or "f16",
        gpu_layers=_layers(definition.llama_server_n_gpu_layers),
        gpus=definition.gpu_count or 0,
        host_overhead=HOST_OVERHEAD,
    )
    adjusted_load = _apply_extra_args(load, definition.extra_args)
    if isinstance(adjusted_load, Unpredicted):
        return adjusted_load
    if definition.llama_server_embedding or definition.llama_server_reranking:
        # A text is embedded in one micro batch, so llama-server makes batches no larger.
        return replace(adjusted_load, batch=adjusted_load.micro_batch, outputs=adjusted_load.micro_batch)
    has_draft_model = definition.llama_server_draft_model_path is not None
    draft_tokens = (definition.llama_server_spec_draft_n_max or _DRAFTED) if has_draft_model else 0
    return replace(adjusted_load, outputs=adjusted_load.sequences * (1 + draft_tokens))


def _layers(declared_layers: int | None) -> int | None:
    return None if declared_layers is None or declared_layers < 0 else declared_layers


def _apply_extra_args(load: LlamaLoad, args: Sequence[str]) -> LlamaLoad | Unpredicted:
    sizes: dict[str, int] = {}
    for position, arg in enumerate(args):
        if arg in _OPAQUE:
            return Unpredicted(f"extra_args holds {arg}, which changes what is where")
        if arg == "--swa-full":
            load = replace(load, full_window=True)
        if arg in _SIZES:
            value = args[position + 1] if position + 1 < len(args) else ""
            if not value.isdecimal():
                return Unpredicted(f"extra_args holds {arg} without a number")
            sizes[_SIZES[arg]] = int(value)
    return replace(
        load,
        context=sizes.get("context", load.context) or None,
        batch=sizes.get("batch", load.batch),
        micro_batch=min(sizes.get("micro_batch", load.micro_batch), sizes.get("batch", load.batch)),
        sequences=sizes.get("sequences", load.sequences) or 1,
    )
