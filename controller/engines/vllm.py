"""vLLM: what `vllm` and `vllm_serve` share, and `vllm`, whose server our worker launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from controller.artifacts.facts import Artifact, longest_token_at
from controller.engines.base import (
    SHM_BYTES,
    CodeCheck,
    Engine,
    EngineFigures,
    FileCheck,
    Launch,
    Probe,
    RenderContext,
    Verdict,
)
from controller.engines.capabilities import EMBEDDINGS, apply_declared
from controller.engines.families import family_of, thinking_modes
from controller.engines.figure_gaps import FigureGap, compare_figure, has_argument
from controller.engines.load_fields import LoadFault
from controller.engines.memory import MIB, Forecast, Unpredicted
from controller.engines.memory_hf import VllmLoad, predict_vllm
from controller.engines.options import find_memory_mover
from controller.engines.vllm_command import SHARE_FLAG, TOKEN_ENV, vllm_arguments, vllm_environment
from controller.engines.vllm_fields import VllmFields
from controller.engines.vllm_log import vllm_progress, vllm_verdict
from controller.engines.worker import worker_python
from controller.schema.admin import Capabilities
from controller.schema.applied_figures import AppliedFigures
from controller.schema.desired import Settable

VllmFieldsT = TypeVar("VllmFieldsT", bound=VllmFields)
_GIB: Final = 1024 * MIB
_METHOD: Final = "vllm_speculative_method"
_OF_METHOD: Final = ("vllm_speculative_model", "vllm_num_speculative_tokens")
_SPECULATION_FLAGS: Final = ("--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens")
_FP8: Final = {"fp8", "fp8_e4m3"}
"""Two words of vLLM's for one data type."""
_TOKENS = ("/tokenize", "/detokenize")
_GENERATING = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    *_TOKENS,
)
_EMBEDDING = ("/v1/embeddings", "/v1/rerank", *_TOKENS)
"""Rankings are by similarity of embeddings."""


class VllmDefinition(VllmFields):
    """A model served by vLLM in a worker process. Either `model_path` or `vllm_model` is required."""

    backend: Annotated[Literal["vllm"], Settable.ALWAYS]


class VllmEngine(Engine[VllmFieldsT]):
    """Base of the backends `vllm` and `vllm_serve`, which both run vLLM's own server: its arguments, probe, memory and
    log. A subclass says by which program the server is started."""

    start_timeout_s: ClassVar[float] = 1800.0
    context_field: ClassVar[str] = "vllm_max_model_len"
    default_target_inflight: ClassVar[int] = 64
    preempts_when_full: ClassVar[bool] = True
    takes_dimensions: ClassVar[bool] = True
    renders_inflight: ClassVar[bool] = True
    render_version: ClassVar[int] = 2
    takes_mig_instances: ClassVar[bool] = False

    def max_choices(self, definition: VllmFieldsT) -> int | None:
        """Return None, for no limit: answers of a request that do not run yet wait inside vLLM."""
        return None

    def load_faults(self, params: Mapping[str, Any]) -> list[LoadFault]:
        """Return what is wrong with a load's values: each field's own faults, and fields of speculative decoding in a
        load that sets its method to null."""
        faults = super().load_faults(params)
        if params.get(_METHOD, "") is None:
            idle_names = (name for name in _OF_METHOD if params.get(name) is not None)
            faults += [LoadFault(name, f"has no effect without {_METHOD}, which is null") for name in idle_names]
        return faults

    def rendered_vram_mib(self, definition: VllmFieldsT) -> int | None:
        """Return `vram_mib` (MiB on each GPU) where it sets the share of each GPU that vLLM takes; else None."""
        return definition.vram_mib if definition.share_follows_vram else None

    def compared_arguments(self, definition: VllmFieldsT, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command line without the share of each GPU where it follows from `vram_mib`: the spec hash covers
        `vram_mib`, and an earlier version computed another share from it."""
        words = tuple(argv)
        if not definition.share_follows_vram or SHARE_FLAG not in words:
            return words
        place = words.index(SHARE_FLAG)
        return words[:place] + words[place + 2 :]

    def session_cache(self, definition: VllmFieldsT) -> int:
        """Return the configured number of sessions (`configured_sessions`): vLLM's prefix cache finds what it has
        computed, while there is room."""
        return self.configured_sessions(definition)

    def derive_capabilities(self, definition: VllmFieldsT) -> Capabilities:
        """Return which requests the model takes: embeddings alone with `vllm_embedding`; else text, images where
        `vllm_limit_mm_per_prompt` allows some or, without such a limit, `vllm_max_pixels` or `vllm_mm_processor_kwargs`
        is set, tools where `vllm_tool_call_parser` is set, and all thinking modes for Gemma 4 and Qwen3. What the
        definition declares takes precedence."""
        if definition.vllm_embedding:
            return apply_declared(definition, EMBEDDINGS)
        family = family_of(definition.prompt_format, definition.vllm_model, definition.model_path)
        derived = Capabilities(
            modalities=("text", "image") if _takes_images(definition) else ("text",),
            thinking_modes=thinking_modes(family, "gemma4", "qwen3"),
            tools=definition.vllm_tool_call_parser is not None,
        )
        return apply_declared(definition, derived)

    def context_length(self, definition: VllmFieldsT) -> int | None:
        """Return the declared context length (`vllm_max_model_len`) in tokens; None: not declared."""
        return definition.vllm_max_model_len

    def compare_figures(self, definition: VllmFieldsT, applied: AppliedFigures) -> tuple[FigureGap, ...]:
        """Return what differs of the context length, the KV cache, the share of each GPU, prefix caching, and the use
        of speculative decoding. Empty where `extra_args` name a file of options."""
        if has_argument(definition, "", "--config"):
            return ()
        speculates = "on" if applied.speculates and definition.vllm_speculative_method is None else None
        declared = (
            ("vllm_max_model_len", definition.vllm_max_model_len, applied.context_length),
            ("vllm_kv_cache_dtype", _told_cache_type(definition, applied), applied.cache_type_k),
            ("vllm_kv_cache_memory_bytes", definition.vllm_kv_cache_memory_bytes, applied.kv_cache_bytes),
            ("vllm_gpu_memory_utilization", definition.vllm_gpu_memory_utilization, applied.gpu_share),
        )
        return (
            *(gap for field, value, told in declared for gap in compare_figure(definition, field, value, told)),
            *compare_figure(
                definition,
                "vllm_enable_prefix_caching",
                definition.vllm_enable_prefix_caching,
                applied.prefix_caching,
                *("--enable-prefix-caching", "--no-enable-prefix-caching"),
            ),
            *compare_figure(definition, "vllm_speculative_method", "none", speculates, *_SPECULATION_FLAGS),
        )

    def kv_cache_tokens(self, definition: VllmFieldsT, told: EngineFigures) -> int | None:
        """Return the size of the KV cache in tokens, as the replica reports it, while vLLM preempts requests; None
        while it does not, or where the size is not reported.

        Without preemption no limit is useful: prompts with a common prefix share the cache, which is not visible from
        outside.
        """
        return told.kv_cache_tokens if told.is_preempting else None

    def lora_modules(self, definition: VllmFieldsT) -> tuple[str, ...] | None:
        """Return the names of the declared LoRA modules, each of which vLLM serves as a model of that name. Empty,
        never None, where none is declared."""
        return tuple(definition.vllm_lora_modules or ())

    def list_artifacts(self, definition: VllmFieldsT) -> tuple[str, ...]:
        """Return the model path, as a tuple of one; empty where the model is a name on the hub."""
        return (definition.model_path,) if definition.model_path is not None else ()

    def longest_token(self, definition: VllmFieldsT, artifacts: Mapping[str, Artifact]) -> int | None:
        """Return the length in bytes of the longest token of the tokenizer in the model's folder. None: it was not
        read, the model is a name on the hub, or `extra_args` may name another tokenizer."""
        path, args = definition.model_path, definition.extra_args
        names_other = any("tokenizer" in arg or arg.startswith("--config") for arg in args)
        return None if names_other or path is None else longest_token_at(path, artifacts)

    def predict_memory(self, definition: VllmFieldsT, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """Predict the memory of one replica, in bytes: a share of each GPU; or, where `vllm_kv_cache_memory_bytes`
        declares the size of the cache, what weights, cache and computing take. See `predict_vllm`.

        Never None: `Unpredicted` where a needed file was not read, or an option changes memory in ways not known.
        """
        if (mover := find_memory_mover(definition)) is not None:
            return Unpredicted(f"{mover} changes what is where")
        if definition.vllm_lora_modules and definition.vllm_kv_cache_memory_bytes is not None:
            return Unpredicted("what vllm_lora_modules take beside the declared cache is not known")
        return predict_vllm(_build_load(definition, self.target_inflight(definition)), artifacts)

    def render_command(self, definition: VllmFieldsT, ctx: RenderContext) -> Launch:
        """Return the program with the arguments of `vllm serve`, and the environment; the definition's `env` takes
        precedence in it. Shared memory is set for containers only. Raises ValueError where a LoRA module has the
        model's own name or `vram_mib` leaves nothing for vLLM's share, and what `build_program` raises."""
        arguments = vllm_arguments(definition, ctx, self.target_inflight(definition))
        env = vllm_environment(definition, ctx) | self.own_environment(definition, ctx) | definition.env
        return Launch(
            (*self.build_program(definition, ctx), *arguments),
            env,
            self.resolve_image(definition, ctx.images),
            TOKEN_ENV,
            SHM_BYTES if ctx.runtime == "docker" else None,
        )

    def build_program(self, definition: VllmFieldsT, ctx: RenderContext) -> tuple[str, ...]:
        """Return the program that starts the server, up to the arguments of `vllm serve`. Each backend overrides it;
        this base raises TypeError."""
        raise TypeError(f"backend {self.name} has no program")

    def own_environment(self, definition: VllmFieldsT, ctx: RenderContext) -> dict[str, str]:
        """Return the environment variables that the program needs beside those of `vllm_environment`. Here none."""
        return {}

    def list_files(self, definition: VllmFieldsT) -> tuple[FileCheck, ...]:
        """Return checks of the model path, unless the model is a name on the hub, and of the files that options
        name."""
        model = () if definition.model_path is None else (FileCheck("model_path", definition.model_path),)
        return (*model, *super().list_files(definition))

    def list_paths(self, definition: VllmFieldsT) -> tuple[str, ...]:
        """Return the paths of `list_files`, and the assistant where its name is an absolute path."""
        assistant = definition.vllm_speculative_model or ""
        return (*super().list_paths(definition), *([assistant] if assistant.startswith("/") else []))

    def list_code_checks(self, definition: VllmFieldsT) -> tuple[CodeCheck, ...]:
        """Return the model path and the assistant, where they are no names on the hub; none if `vllm_trust_remote_code`
        or `--trust-remote-code` in `extra_args` allows their code."""
        if definition.vllm_trust_remote_code or "--trust-remote-code" in definition.extra_args:
            return ()
        switch, assistant = "vllm_trust_remote_code", definition.vllm_speculative_model or ""
        model = () if definition.model_path is None else (CodeCheck("model_path", definition.model_path, switch),)
        if not assistant.startswith("/"):
            return model
        return (*model, CodeCheck("vllm_speculative_model", assistant, switch))

    def describe_probe(self, definition: VllmFieldsT) -> Probe:
        """Return the probe: `/health`, then one token or, with `vllm_embedding`, one embedding; and vLLM's metrics."""
        is_embedding = definition.vllm_embedding
        return Probe(
            health_path="/health",
            ready_path="/v1/embeddings" if is_embedding else "/v1/completions",
            ready_body={"input": "a"} if is_embedding else {"prompt": "a", "max_tokens": 1},
            metrics_path="/metrics",
            busy_metrics=("vllm:num_requests_running", "vllm:num_requests_waiting"),
            progress_metrics=("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
            cache_metric=None if is_embedding else "vllm:cache_config_info",
            preemption_metric=None if is_embedding else "vllm:num_preemptions_total",
            figure_paths=("/v1/models", "/metrics"),
            template_path=None if is_embedding else "/tokenize",
        )

    def list_apis(self, definition: VllmFieldsT) -> tuple[str, ...]:
        """Return the request paths that vLLM answers: those for generating text or, with `vllm_embedding`, for
        embeddings and rankings."""
        return _EMBEDDING if definition.vllm_embedding else _GENERATING

    def parse_progress(self, log_tail: str) -> float | None:
        """Return the progress of reading weights, from 0 to 1 (see `vllm_progress`); None: the log shows none. 1 does
        not mean ready."""
        return vllm_progress(log_tail)

    def explain_exit(self, exit_code: int | None, log_tail: str) -> Verdict | None:
        """Return the cause of the end that the log names, in words (see `vllm_verdict`); None: the log names none.
        `log_tail` must be of one run; `exit_code` is not looked at."""
        return vllm_verdict(log_tail)


def _told_cache_type(definition: VllmFields, applied: AppliedFigures) -> str | None:
    """Return the declared data type of the KV cache, in the engine's word where that means the same; None: the model's
    own is declared, or none."""
    declared, told = definition.vllm_kv_cache_dtype, applied.cache_type_k
    if declared == "auto":
        return None
    return told if {declared, told} == _FP8 else declared


def _takes_images(definition: VllmFields) -> bool:
    if definition.vllm_limit_mm_per_prompt and "image" in definition.vllm_limit_mm_per_prompt:
        return definition.vllm_limit_mm_per_prompt["image"] > 0
    return definition.vllm_max_pixels is not None or bool(definition.vllm_mm_processor_kwargs)


class Vllm(VllmEngine[VllmDefinition]):
    """The backend `vllm`: renders the command line of a worker process that starts vLLM's server as its child. Starts
    nothing itself."""

    name: ClassVar[str] = "vllm"
    definition = VllmDefinition
    image_kind: ClassVar[str | None] = "worker-vllm"

    def build_program(self, definition: VllmDefinition, ctx: RenderContext) -> tuple[str, ...]:
        """Return the worker's Python with `-m worker vllm --`. As a process, raises KeyError if the runtime knows no
        `python`."""
        return (worker_python(ctx), "-m", "worker", self.name, "--")


def _build_load(definition: VllmFields, sequences: int) -> VllmLoad:
    """Return the definition in the terms of the memory formulas."""
    has_draft_model = definition.vllm_speculative_method is not None
    return VllmLoad(
        path=definition.model_path,
        model=definition.vllm_model,
        sequences=sequences,
        gpus=definition.gpu_count or 0,
        tensor_parallel=definition.vllm_tensor_parallel_size,
        kv_cache=definition.vllm_kv_cache_memory_bytes,
        gpu_share=definition.vllm_gpu_memory_utilization,
        claim=definition.vram_mib * MIB if definition.vram_mib and definition.share_follows_vram else None,
        batch=definition.vllm_max_num_batched_tokens,
        host_cache=int((definition.vllm_kv_offloading_size or 0) * _GIB),
        dtype=definition.vllm_dtype,
        eager=bool(definition.vllm_enforce_eager),
        draft_model=definition.vllm_speculative_model if has_draft_model else None,
        env=definition.env,
        extra_args=definition.extra_args,
    )
