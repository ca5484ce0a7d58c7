"""llama.cpp's own server: a container, a program, or embedded in a worker process through xllamacpp."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from pathlib import PurePosixPath
from typing import ClassVar, Final
from urllib.parse import quote

from controller.artifacts.facts import Artifact, longest_token_at
from controller.engines.base import ClaimedGpu, Engine, EngineFigures, FileCheck, Launch, Probe, RenderContext, Verdict
from controller.engines.capabilities import EMBEDDINGS, apply_declared
from controller.engines.figure_gaps import FigureGap, compare_figure, compare_padded_context
from controller.engines.llama_log import GPU_VERDICTS, MISSING_GPU_VERDICTS, dots_progress, memory_verdicts
from controller.engines.llama_server_fields import DRAFT_N_MAX, DRAFT_P_MIN, LlamaServerDefinition
from controller.engines.llama_server_memory import SIZE_FLAGS, predict_llama_server
from controller.engines.memory import Forecast
from controller.engines.options import Flag, JsonFlag, PathFlag, Switch, render_options
from controller.schema.admin import Capabilities
from controller.schema.applied_figures import AppliedFigures
from controller.schema.routing import SessionBinding

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
        `llama-server` nor `python`.
        """
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
        itself may decide.
        """
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
        """Return the model path and the paths of GGUF files that options name (draft model, projector, LoRA
        adapters)."""
        return tuple(check.path for check in self.list_files(definition) if check.kind == "gguf")

    def longest_token(self, definition: LlamaServerDefinition, artifacts: Mapping[str, Artifact]) -> int | None:
        """Return the length in bytes of the longest token of the model's vocabulary; None: it was not read.

        None also where the vocabulary may be another (`--override-kv`) or the beginning of a prompt may be cut off
        (`llama_server_context_shift`), by `extra_args` and `env` as well.
        """
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
    """Compare the cache that all slots share with what the engine reports for one slot.

    llama-server gives no slot more than the model was trained with. The declared cache is applied nevertheless if all
    slots together can fill it.
    """
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
    claims.

    Empty for one GPU or none (a preflight), and for more than 15. Without them llama.cpp splits by free memory.
    """
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
