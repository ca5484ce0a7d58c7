"""llama.cpp's own server: a container, a program, or embedded in a worker process through xllamacpp; and the memory of
a replica by its definition. Pure. The options are in `llama_server_fields`.

Arguments of `extra_args` count as well. Where one changes memory in a way that is not followed, there is no forecast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from pathlib import PurePosixPath
from typing import ClassVar, Final
from urllib.parse import quote

from contract.admin import Capabilities
from contract.routing import SessionBinding
from controller.artifacts.heads import Artifact, longest_token_at
from controller.engines.base import (
    EMBEDDINGS,
    ClaimedGpu,
    Engine,
    EngineFigures,
    FigureGap,
    FileCheck,
    Launch,
    Probe,
    RenderContext,
    Verdict,
    apply_declared,
    compare_figure,
    compare_padded_context,
)
from controller.engines.llama_server_fields import DRAFT_N_MAX, DRAFT_P_MIN, LlamaServerDefinition
from controller.engines.memory import (
    MIB,
    NOTHING,
    Forecast,
    LlamaLoad,
    MemoryParts,
    Prediction,
    Unpredicted,
    predict_adapter,
    predict_gguf,
    sum_forecasts,
)
from controller.engines.options import Flag, JsonFlag, PathFlag, Switch, find_memory_mover, render_options
from controller.state import AppliedFigures

HOST_OVERHEAD: Final = 40 * MIB
"""Main memory of llama-server beside its buffers and its vocabulary: 20 MiB, and 20 more embedded in a worker."""
_DRAFT_TOKENS: Final = 3
"""llama-server's own limit of tokens that a draft model drafts."""
_NGRAM_TOKENS: Final = 64
"""The highest of llama-server's limits of tokens that are repeated (`--spec-ngram-mod-n-max`)."""
_OWN_LAYERS: Final = ("draft-mtp", "draft-eagle3")
"""Kinds of speculation whose layers keep a state that is not known."""
SIZE_FLAGS: Final = {
    "-c": "context",
    "--ctx-size": "context",
    "-b": "batch",
    "--batch-size": "batch",
    "-ub": "micro_batch",
    "--ubatch-size": "micro_batch",
    "-np": "sequences",
    "--parallel": "sequences",
}
"""Arguments that set a size, and the field of `LlamaLoad` that they set."""
_CACHE_RAM: Final = ("-cram", "--cache-ram")
_OPAQUE: Final = frozenset(
    {
        *("-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "-nkvo", "--no-kv-offload"),
        *("-ts", "--tensor-split", "-sm", "--split-mode", "-no-kvu", "--no-kv-unified", "-dev", "--device"),
        *("--fit", "-fit", "-ngl", "--n-gpu-layers", "--gpu-layers", "-ctk", "--cache-type-k"),
        *("-ctv", "--cache-type-v", "-fa", "--flash-attn", "--lora", "--lora-scaled", "--control-vector"),
        *("-md", "--model-draft", "--rpc"),
    }
)
"""Arguments that move or change memory in ways that are not followed here."""


def predict_llama_server(
    definition: LlamaServerDefinition, sequences: int, artifacts: Mapping[str, Artifact]
) -> Forecast:
    """Predict the memory, in bytes, of a replica with `sequences` slots: model, adapters, draft model, projector and
    cached prompts, with the sizes that `extra_args` set. `artifacts`: what was read of the files, by model path.
    `Unpredicted` where a file was not read, or where a model, an option or an argument changes memory in a way that is
    not followed."""
    if (mover := find_memory_mover(definition)) is not None:
        return Unpredicted(f"{mover} changes what is where")
    load = _build_load(definition, sequences)
    if isinstance(load, Unpredicted):
        return load
    if definition.llama_server_spec_type in _OWN_LAYERS:
        return Unpredicted(f"what the layers of {definition.llama_server_spec_type} take is not known")
    forecasts = [predict_gguf(definition.model_path, artifacts, load)]
    forecasts += [predict_adapter(path, artifacts, load) for path in definition.llama_server_lora or ()]
    if definition.llama_server_draft_model_path is not None:
        draft = replace(
            load,
            outputs=load.sequences,
            type_k=definition.llama_server_draft_cache_type_k or "f16",
            type_v=definition.llama_server_draft_cache_type_v or "f16",
            gpu_layers=definition.llama_server_draft_n_gpu_layers,
        )
        forecasts.append(predict_gguf(definition.llama_server_draft_model_path, artifacts, draft))
    if definition.llama_server_mmproj is not None:
        gpus = load.gpus if definition.llama_server_mmproj_offload else 0
        forecasts.append(predict_gguf(definition.llama_server_mmproj, artifacts, replace(load, gpus=gpus)))
    forecasts.append(_predict_prompt_cache(definition))
    return sum_forecasts(forecasts)


def _predict_prompt_cache(definition: LlamaServerDefinition) -> Forecast:
    """Predict the prompts that have left their slot, as if the cache were full."""
    cache_mib = definition.llama_server_cache_ram_mib or 0
    for position, arg in enumerate(definition.extra_args):
        if arg in _CACHE_RAM:
            value = definition.extra_args[position + 1] if position + 1 < len(definition.extra_args) else ""
            if not value.isdecimal():
                return Unpredicted(f"extra_args holds {arg}, and sets no limit with it")
            cache_mib = int(value)
    return Prediction(NOTHING, MemoryParts(kv_cache=cache_mib * MIB), host_grows=cache_mib > 0)


def _build_load(definition: LlamaServerDefinition, sequences: int) -> LlamaLoad | Unpredicted:
    layers = definition.llama_server_n_gpu_layers
    sizes = LlamaLoad()
    batch = definition.llama_server_n_batch or sizes.batch
    load = LlamaLoad(
        context=definition.llama_server_n_ctx,
        batch=batch,
        micro_batch=min(definition.llama_server_n_ubatch or sizes.micro_batch, batch),
        sequences=sequences,
        flash_attention=definition.llama_server_flash_attn != "off",
        type_k=definition.llama_server_cache_type_k or "f16",
        type_v=definition.llama_server_cache_type_v or "f16",
        gpu_layers=None if layers is None or layers < 0 else layers,
        gpus=definition.gpu_count or 0,
        full_window=definition.llama_server_swa_full,
        host_overhead=HOST_OVERHEAD,
    )
    adjusted_load = _apply_extra_args(load, definition.extra_args)
    if isinstance(adjusted_load, Unpredicted):
        return adjusted_load
    if definition.llama_server_embedding or definition.llama_server_reranking:
        # A text is embedded in one micro batch, so llama-server makes batches no larger.
        return replace(adjusted_load, batch=adjusted_load.micro_batch, outputs=adjusted_load.micro_batch)
    return replace(adjusted_load, outputs=adjusted_load.sequences * (1 + _count_drafted_tokens(definition)))


def _count_drafted_tokens(definition: LlamaServerDefinition) -> int:
    """Return how many drafted tokens of a slot are verified at a time, at most."""
    if (definition.llama_server_spec_type or "").startswith("ngram"):
        return _NGRAM_TOKENS
    has_draft_model = definition.llama_server_draft_model_path is not None
    return (definition.llama_server_spec_draft_n_max or _DRAFT_TOKENS) if has_draft_model else 0


def _apply_extra_args(load: LlamaLoad, args: Sequence[str]) -> LlamaLoad | Unpredicted:
    sizes: dict[str, int] = {}
    for position, arg in enumerate(args):
        if arg in _OPAQUE:
            return Unpredicted(f"extra_args holds {arg}, which changes what is where")
        if arg == "--swa-full":
            load = replace(load, full_window=True)
        if arg in SIZE_FLAGS:
            value = args[position + 1] if position + 1 < len(args) else ""
            if not value.isdecimal():
                return Unpredicted(f"extra_args holds {arg} without a number")
            sizes[SIZE_FLAGS[arg]] = int(value)
    return replace(
        load,
        context=sizes.get("context", load.context) or None,
        batch=sizes.get("batch", load.batch),
        micro_batch=min(sizes.get("micro_batch", load.micro_batch), sizes.get("batch", load.batch)),
        sequences=sizes.get("sequences", load.sequences) or 1,
    )


__all__ = ["LlamaServer", "LlamaServerDefinition", "tensor_split_args"]

_MOST_SHARES: Final = 15
"""llama-server takes fewer shares than the 16 devices that llama.cpp knows."""
_DECIMALS: Final = 6
"""Its parser takes no number that is too small for a float."""
_CHANGES_PROMPTS: Final = frozenset({"--context-shift", "LLAMA_ARG_CONTEXT_SHIFT", "--override-kv"})
_SPLIT_CACHE: Final = frozenset({"-no-kvu", "--no-kv-unified", "--kv-unified-per-slot"})
"""Arguments after which each slot has a cache of its own, or all slots share a cache of another size."""
_OWN_SLOTS: Final = frozenset(
    {"-cram", "--cache-ram", "LLAMA_ARG_CACHE_RAM", "-np", "--parallel", "LLAMA_ARG_N_PARALLEL"}
)
"""Arguments and variables after which the slots, or who is in them, are not what the definition says."""

_SETS_SPECULATION: Final = re.compile(r"spec|draft|^-md$|^-hfd", re.IGNORECASE)
"""Arguments and variables that may turn speculative decoding on or off."""

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
"""Paths that llama-server answers in every mode."""

_DOTS: Final = re.compile(r"^\.+$", re.MULTILINE)
_DOTS_AT_MOST: Final = 100


def dots_progress(log_tail: str) -> float | None:
    """Return the progress of a load, from 0 to 1, by the dots that llama.cpp writes, one per percent; None: no dots.
    1.0 once anything follows the last line of dots. A large tensor is one dot though it is several percent, so the load
    may be further. llama-server writes no dots since 0.5.0: it reports its progress to its router only."""
    lines = list(_DOTS.finditer(log_tail))
    if not lines:
        return None
    if log_tail[lines[-1].end() :].strip():
        return 1.0
    return min(1.0, len(lines[-1][0]) / _DOTS_AT_MOST)


def llama_memory_verdicts(
    *, context: str, cache_types: str, gpu_layers: str, slots: str | None = None
) -> tuple[tuple[str, Verdict], ...]:
    """Return patterns and verdicts, for `Engine.verdicts`, of an engine with too little memory. None is permanent. The
    arguments name the backend's definition fields to lower, for the messages. `slots` None: the backend has one slot.
    The messages say which memory and when. The patterns are those of llama.cpp's issues #20431 (a load) and #13085 (a
    request), and of ggml (main memory)."""
    fields = f"`{context}` (the cache grows with it), the types of the cache ({cache_types})"
    layers = f"or the layers on the GPU (`{gpu_layers}`)"
    several_slots = f", the requests at a time (`{slots}`)" if slots else ""
    room = "or declare what the model takes (`vram_mib`), so that it is placed where there is room"
    return (
        (
            r"cudaMalloc failed: out of memory|(failed|unable) to allocate CUDA\d+ buffer",
            Verdict(f"out of memory on the GPU while loading: lower {fields} {layers}, {room}"),
        ),
        (
            # The second is cuBLAS's, which llama.cpp begins at the first long prompt (seen on an H200 that was full).
            r"CUDA error: (out of memory|the resource allocation failed)",
            Verdict(
                "out of memory on the GPU while computing, which needs memory beside what the load took: lower "
                f"{fields}{several_slots} {layers}, {room}"
            ),
        ),
        (
            # llama.cpp does without pinned memory where it gets none.
            r"out of memory|insufficient memory|failed to allocate(?!.*pinned memory)|std::bad_alloc|MemoryError",
            Verdict(f"out of memory (main memory, not a GPU's): lower {fields}, or raise `memory_mib` where it is set"),
        ),
    )


GPU_VERDICTS: Final[tuple[tuple[str, Verdict], ...]] = (
    (
        r"CUDA error: no kernel image",
        Verdict("this build has no code for the GPU that it was given: take one that was built for it, or another GPU"),
    ),
    (
        r"CUDA error",
        Verdict("CUDA error: the GPU, its driver or the build failed the engine; `dmesg` may name an Xid"),
    ),
    (
        r"lib(cuda|cudart|cublas|cublasLt|nccl)\.so[.\d]*: cannot open shared object",
        Verdict(
            "a library of CUDA or of the NVIDIA driver is missing where the engine runs: look at `nvidia-smi`; in a "
            "container the NVIDIA Container Toolkit brings the driver's, and the image CUDA's"
        ),
    ),
)
"""Verdicts of failures of CUDA, to be placed after those of memory. None is permanent: another start may succeed."""

_REFUSED: Final = r"(invalid device: |llama\.cpp sees no GPU)"
"""Sentences of llama-server and of our worker, which refuse to compute on the CPU where they were given a GPU."""
MISSING_GPU_VERDICTS: Final[tuple[tuple[str, Verdict], ...]] = (
    (
        rf"(?s)failed to initialize CUDA: [^\n]*driver version is insufficient.*{_REFUSED}",
        Verdict(
            "the NVIDIA driver is older than the CUDA of this build: update the driver, or take a build for an older "
            "CUDA (`image`)",
            True,
        ),
    ),
    (
        rf"(?s)failed to initialize CUDA.*{_REFUSED}",
        Verdict(
            "CUDA did not start, and the engine was given a GPU: look at `nvidia-smi` and at the kernel module "
            "nvidia_uvm (`modprobe nvidia_uvm`), in containers at the NVIDIA Container Toolkit"
        ),
    ),
)
"""Verdicts of a CUDA that did not start. llama.cpp itself only warns of it (#24418, #7218, #27923)."""

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
    # At the beginning of a line: "CUDA error: invalid argument" does not speak of the command line.
    (r"(?m)^error: invalid argument|unknown argument|error while handling argument", Verdict("bad argument", True)),
    (r"No module named .?xllamacpp", Verdict("neither a llama-server binary nor xllamacpp is installed", True)),
    (r"bad magic|invalid magic|not a gguf|failed to read magic", Verdict("not a GGUF file", True)),
    (r"unknown model architecture|unsupported model architecture", Verdict("unsupported model architecture", True)),
    *llama_memory_verdicts(
        context="llama_server_n_ctx",
        cache_types="`llama_server_cache_type_k`, `llama_server_cache_type_v`",
        gpu_layers="llama_server_n_gpu_layers",
        slots="target_inflight",
    ),
    *GPU_VERDICTS,
    (r"corrupted or incomplete", Verdict("the file is corrupted or incomplete", True)),
    (r"couldn't bind|address already in use|port .* in use", Verdict("port taken")),
    (r"No such file or directory|failed to open", Verdict("file missing")),
    (r"failed to load multimodal model", Verdict("`llama_server_mmproj` is no projector of this model", True)),
)


class LlamaServer(Engine[LlamaServerDefinition]):
    """The backend `llama_server`: renders the command line of llama.cpp's own server, in a container, as a program, or
    embedded in a worker process (xllamacpp) where no program was found. Starts nothing itself, has no state."""

    name: ClassVar[str] = "llama_server"
    definition = LlamaServerDefinition
    default_target_inflight: ClassVar[int] = 4
    notices_leaving: ClassVar[bool] = False  # it looks only after a second without any result, of any request
    renders_inflight: ClassVar[bool] = True
    render_version: ClassVar[int] = 2
    image_kind: ClassVar[str | None] = "llama-server"
    verdicts: ClassVar[tuple[tuple[str, Verdict], ...]] = _VERDICTS

    def render_command(self, definition: LlamaServerDefinition, ctx: RenderContext) -> Launch:
        """Return the command line and environment. Slots (`--parallel`) are `target_inflight` and share one KV cache.
        `--fit off`: Roundhouse plans memory. `--cache-ram` is always there: by its own default llama-server fills 8 GiB
        of main memory with prompts. `extra_args` come last. As a process, raises KeyError if the runtime knows neither
        `llama-server` nor `python`."""
        spec_type = definition.llama_server_spec_type
        fallbacks = {
            "llama_server_spec_draft_n_max": DRAFT_N_MAX if spec_type is not None else None,
            "llama_server_spec_draft_p_min": DRAFT_P_MIN if spec_type is not None else None,
        }
        args = [
            *("--model", ctx.resolve_path(definition.model_path), "--alias", ctx.served_name),
            *("--host", ctx.host, "--port", str(ctx.port)),
            *("--parallel", str(self.target_inflight(definition)), "--kv-unified"),
            *("--fit", "off", "--metrics", "--slots", "--jinja", "--no-webui"),
            *("--cache-ram", str(definition.llama_server_cache_ram_mib or 0)),
            *render_options(definition, Flag, fallbacks=fallbacks, decimals=_DECIMALS),
            *_scale_adapters(definition, render_options(definition, PathFlag, ctx.resolve_path)),
        ]
        if definition.llama_server_draft_model_path and spec_type is None:
            # Without a type llama-server loads the draft model and never uses it.
            args += ("--spec-type", "draft-simple")
        args += render_options(definition, Switch | JsonFlag)
        args += _device_flags(definition)
        if definition.llama_server_tensor_split is None:
            args += tensor_split_args(ctx.gpus)
        folders = (_saved_slots_folder(ctx),) if definition.llama_server_slot_save else ()
        args += [argument for folder in folders for argument in ("--slot-save-path", str(folder))]
        args += definition.extra_args
        env = {"LLAMA_CACHE": str(ctx.cache_dir)}
        if definition.llama_server_library_path and ctx.runtime == "process":
            env["LD_LIBRARY_PATH"] = definition.llama_server_library_path
        env.update(definition.env)
        return Launch(
            (*self._build_program(definition, ctx), *args),
            env,
            self.resolve_image(definition, ctx.images),
            "LLAMA_API_KEY",
            folders=folders,
        )

    def _build_program(self, definition: LlamaServerDefinition, ctx: RenderContext) -> tuple[str, ...]:
        if ctx.runtime == "docker":
            return ("/app/llama-server",)
        binary = definition.llama_server_binary or ctx.executables.get("llama-server")
        return (binary,) if binary else (ctx.executables["python"], "-m", "worker", "llama_server", "--")

    def list_files(self, definition: LlamaServerDefinition) -> tuple[FileCheck, ...]:
        """Return checks of the model, a GGUF file, and of the files that options name."""
        return (FileCheck("model_path", definition.model_path, "gguf"), *super().list_files(definition))

    def describe_probe(self, definition: LlamaServerDefinition) -> Probe:
        """Return the probe: `/health`, then one token, one embedding or one ranking, as the definition sets the mode.
        An embedding is asked for at `/embedding`: `/v1/embeddings` refuses where nothing is pooled, which the model
        itself may decide."""
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
            figure_paths=("/v1/models", "/props", "/slots"),
            template_path="/apply-template" if path == "/v1/completions" else None,
        )

    def list_apis(self, definition: LlamaServerDefinition) -> tuple[str, ...]:
        """Return the request paths that llama-server answers: for rankings, for embeddings or for generating text, as
        the definition sets its mode, and those of every mode. `/infill` fails where the model has no tokens for it."""
        if definition.llama_server_reranking:
            return ("/v1/rerank", *_ALWAYS)
        if definition.llama_server_embedding:
            pooled = () if definition.llama_server_pooling == "none" else ("/v1/embeddings",)
            return (*pooled, "/embedding", *_ALWAYS)
        return (*_GENERATING, *_ALWAYS)

    def derive_capabilities(self, definition: LlamaServerDefinition) -> Capabilities:
        """Return which requests the model takes: embeddings or rankings alone in those modes; else text, and images
        where a projector (`llama_server_mmproj`) is declared. What the definition declares takes precedence."""
        if definition.llama_server_embedding or definition.llama_server_reranking:
            return apply_declared(definition, EMBEDDINGS)
        takes_images = definition.llama_server_mmproj is not None
        return apply_declared(definition, Capabilities(modalities=("text", "image") if takes_images else ("text",)))

    def max_choices(self, definition: LlamaServerDefinition) -> int | None:
        """Return the number of slots (`target_inflight`): llama-server starts all answers to a request at once. Never
        None."""
        return self.target_inflight(definition)

    def session_cache(self, definition: LlamaServerDefinition) -> int:
        """Return the configured number of sessions (`configured_sessions`); 0 for embeddings and rankings. Where
        sessions are in slots, the gateway keeps at most as many as there are slots."""
        if definition.llama_server_embedding or definition.llama_server_reranking:
            return 0
        return self.configured_sessions(definition)

    def session_binding(self, definition: LlamaServerDefinition) -> SessionBinding | None:
        """Return `slot`: a request names its session by the slot that holds it. None if the definition gives
        llama-server a prompt cache in main memory or an own choice of slots: llama-server then moves prompts by itself,
        and a request that names a slot does not get its prompt back from main memory."""
        has_cache_ram = bool(definition.llama_server_cache_ram_mib)
        finds_itself = has_cache_ram or not _OWN_SLOTS.isdisjoint((*definition.extra_args, *definition.env))
        return None if finds_itself else "slot"

    def context_length(self, definition: LlamaServerDefinition) -> int | None:
        """Return the declared size of the KV cache in tokens, which slots share, so that one request alone may fill it;
        None: not declared."""
        return definition.llama_server_n_ctx

    def kv_cache_tokens(self, definition: LlamaServerDefinition, told: EngineFigures) -> int | None:
        """Return the size of the cache that all slots share: the larger of the declared size (`--ctx-size` in
        `extra_args` takes precedence) and what the replica reports for one request, which the model may limit. None:
        neither is known.

        When requests fill the cache together, all of them fail (`Context size has been exceeded.`). None also for
        embeddings and rankings, and where `extra_args` give each slot a cache of its own or a size that is not seen
        here.
        """
        if definition.llama_server_embedding or definition.llama_server_reranking:
            return None
        args = definition.extra_args
        if not _SPLIT_CACHE.isdisjoint(args):
            return None
        declared = definition.llama_server_n_ctx or 0
        for flag, value in pairwise(args):
            if SIZE_FLAGS.get(flag) == "context" and value.isdecimal():
                declared = int(value)
        return max(declared, told.context_length or 0) or None

    def compare_figures(self, definition: LlamaServerDefinition, applied: AppliedFigures) -> tuple[FigureGap, ...]:
        """Return what differs of the context length, the slots and the use of speculative decoding. llama-server
        reports no data types of its cache."""
        return (
            *_context_gap(definition, self.target_inflight(definition), applied),
            *compare_figure(
                definition, "target_inflight", self.target_inflight(definition), applied.slots, "--parallel", "-np"
            ),
            *_speculation_gap(definition, applied),
        )

    def list_artifacts(self, definition: LlamaServerDefinition) -> tuple[str, ...]:
        """Return the model path and those of GGUF files that options name (draft model, projector, LoRA adapters)."""
        return tuple(check.path for check in self.list_files(definition) if check.kind == "gguf")

    def longest_token(self, definition: LlamaServerDefinition, artifacts: Mapping[str, Artifact]) -> int | None:
        """Return the length in bytes of the longest token of the model's vocabulary; None: it was not read. None also
        where the vocabulary may be another (`--override-kv`) or the beginning of a prompt may be cut off
        (`llama_server_context_shift`), by `extra_args` and `env` as well."""
        changes_prompts = not _CHANGES_PROMPTS.isdisjoint((*definition.extra_args, *definition.env))
        if changes_prompts or definition.llama_server_context_shift:
            return None
        return longest_token_at(definition.model_path, artifacts)

    def predict_memory(self, definition: LlamaServerDefinition, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """Predict the memory of one replica, in bytes: see `predict_llama_server`. Never None: `Unpredicted` where a
        file was not read, or where a model or an argument is not covered."""
        return predict_llama_server(definition, self.target_inflight(definition), artifacts)

    def parse_progress(self, log_tail: str) -> float | None:
        """Return the progress of a load, from 0 to 1, by the dots that some releases of llama.cpp write (see
        `dots_progress`); None: the log has no dots."""
        return dots_progress(log_tail)


def _context_gap(definition: LlamaServerDefinition, slots: int, applied: AppliedFigures) -> tuple[FigureGap, ...]:
    """Compare the cache that all slots share with what the engine reports for one slot. llama-server gives no slot more
    than the model was trained with. The declared cache is applied nevertheless if all slots together can fill it."""
    declared, told = definition.llama_server_n_ctx, applied.context_length
    if declared is None or told is None or not _SPLIT_CACHE.isdisjoint(definition.extra_args):
        return ()
    is_capped = told < declared and told == applied.trained_context_length
    if is_capped and told * (applied.slots or slots) >= declared:
        return ()
    return compare_padded_context(definition, "llama_server_n_ctx", declared, told, "-c")


def _speculation_gap(definition: LlamaServerDefinition, applied: AppliedFigures) -> tuple[FigureGap, ...]:
    if applied.speculates is None or definition.llama_server_embedding or definition.llama_server_reranking:
        return ()
    method = definition.llama_server_spec_type or ("draft-simple" if definition.llama_server_draft_model_path else None)
    names = (*definition.env, *definition.extra_args)
    if applied.speculates == (method is not None) or any(_SETS_SPECULATION.search(name) for name in names):
        return ()
    return (FigureGap("llama_server_spec_type", method or "none", "none" if method else "on"),)


def tensor_split_args(gpus: Sequence[ClaimedGpu]) -> tuple[str, ...]:
    """Return the arguments `--tensor-split SHARES`, which split a model over several GPUs in proportion to their
    claims. Empty for one GPU or none (a preflight), and for more than 15. Without them llama.cpp splits by free
    memory."""
    if not 1 < len(gpus) <= _MOST_SHARES:
        return ()
    return ("--tensor-split", ",".join(str(gpu.claim_mib) for gpu in gpus))


def _saved_slots_folder(ctx: RenderContext) -> PurePosixPath:
    """Return the folder of the replica's saved slots. It is the same after a restart, a swap and an edit, because it
    follows the model's name and the replica's number. Replicas share no folder, so a client that saves slots of two
    replicas under one name keeps both."""
    return ctx.cache_dir / "slots" / quote(ctx.served_name, safe="") / str(ctx.index)


def _scale_adapters(definition: LlamaServerDefinition, args: list[str]) -> list[str]:
    """Return the arguments with the adapters' scales, if the definition sets them. An adapter without one has 1."""
    scales = definition.llama_server_lora_scales
    if scales is None or not definition.llama_server_lora:
        return args
    position = args.index("--lora") + 1
    pairs = zip_longest(args[position].split(","), scales, fillvalue=1)
    scaled = (f"{path}:{round(scale, _DECIMALS)}" for path, scale in pairs)
    return [*args[: position - 1], "--lora-scaled", ",".join(scaled), *args[position + 1 :]]


def _device_flags(definition: LlamaServerDefinition) -> tuple[str, ...]:
    """Return the GPUs that the engine must have. Without them it computes on the CPU where CUDA does not start."""
    # It refuses the first device that it does not know, so that these cannot stand before a definition's own.
    names_own = {"-dev", "--device"} & set(definition.extra_args) or "LLAMA_ARG_DEVICE" in definition.env
    if not definition.gpu_count or names_own:
        return ()
    return ("--device", ",".join(f"CUDA{number}" for number in range(definition.gpu_count)))
