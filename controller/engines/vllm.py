"""vLLM: what `vllm` and `vllm_serve` declare alike, and `vllm`, whose server our worker launches in its process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

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
from controller.engines.load_fields import LoadFault, LoadField
from controller.engines.memory import MIB, Forecast
from controller.engines.memory_hf import VllmLoad, predict_vllm
from controller.engines.vllm_command import TOKEN_ENV, vllm_arguments, vllm_environment
from controller.engines.vllm_fields import HASHED, LOAD_FIELDS, VllmFields
from controller.engines.vllm_log import vllm_progress, vllm_verdict
from controller.engines.worker import worker_python
from controller.schema.admin import Capabilities
from controller.schema.desired import Definition

_METHOD: Final = "vllm_speculative_method"
_OF_METHOD: Final = ("vllm_speculative_model", "vllm_num_speculative_tokens")
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
"""It ranks by the likeness of embeddings."""


class VllmDefinition(VllmFields):
    """A model served by vLLM in a worker process."""

    backend: Literal["vllm"]


class VllmEngine(Engine):
    """What `vllm` and `vllm_serve` have in common: vLLM's own server, whoever starts it."""

    start_timeout_s: ClassVar[float] = 1800.0
    default_target_inflight: ClassVar[int] = 64
    preempts_when_full: ClassVar[bool] = True
    takes_dimensions: ClassVar[bool] = True
    renders_inflight: ClassVar[bool] = True
    render_version: ClassVar[int] = 2
    takes_mig_instances: ClassVar[bool] = False
    hashed_fields: ClassVar[tuple[str, ...]] = HASHED
    load_fields: ClassVar[tuple[LoadField, ...]] = LOAD_FIELDS

    def max_choices(self, definition: Definition) -> int | None:
        """What does not run at once waits inside of vLLM."""
        return None

    def load_faults(self, params: Mapping[str, Any]) -> list[LoadFault]:
        """Nothing about a speculation that the load itself turns off."""
        faults = super().load_faults(params)
        if params.get(_METHOD, "") is None:
            idle_names = (name for name in _OF_METHOD if params.get(name) is not None)
            faults += [LoadFault(name, f"has no effect without {_METHOD}, which is null") for name in idle_names]
        return faults

    def rendered_vram_mib(self, definition: Definition) -> int | None:
        """`vram_mib`, where it decides which share of each GPU is taken."""
        assert isinstance(definition, VllmFields)
        return definition.vram_mib if definition.share_follows_vram else None

    def derive_capabilities(self, definition: Definition) -> Capabilities:
        """Images where anything is said about them; tools with the parser of their calls."""
        assert isinstance(definition, VllmFields)
        if definition.vllm_embedding:
            return apply_declared(definition, EMBEDDINGS)
        family = family_of(definition.prompt_format, definition.vllm_model, definition.model_path)
        derived = Capabilities(
            modalities=("text", "image") if _takes_images(definition) else ("text",),
            thinking_modes=thinking_modes(family, "gemma4", "qwen3"),
            tools=definition.vllm_tool_call_parser is not None,
        )
        return apply_declared(definition, derived)

    def context_length(self, definition: Definition) -> int | None:
        """As declared."""
        assert isinstance(definition, VllmFields)
        return definition.vllm_max_model_len

    def kv_cache_tokens(self, definition: Definition, told: EngineFigures) -> int | None:
        """Its cache, while it preempts: requests are computed again then, and each of them makes others wait.

        Otherwise nobody is held back: prompts that begin alike share their cache, which cannot be seen from outside.
        """
        return told.kv_cache_tokens if told.is_preempting else None

    def list_artifacts(self, definition: Definition) -> tuple[str, ...]:
        """The model, where it lies in the models folder."""
        return (definition.model_path,) if definition.model_path is not None else ()

    def longest_token(self, definition: Definition, artifacts: Mapping[str, Artifact]) -> int | None:
        """Of the folder's tokenizer, unless the arguments may name another one."""
        assert isinstance(definition, VllmFields)
        path, args = definition.model_path, definition.extra_args
        names_other = any("tokenizer" in arg or arg.startswith("--config") for arg in args)
        return None if names_other or path is None else longest_token_at(path, artifacts)

    def predict_memory(self, definition: Definition, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """A share of each GPU, or weights and a cache of so many bytes."""
        assert isinstance(definition, VllmFields)
        return predict_vllm(_build_load(definition, self.target_inflight(definition)), artifacts)

    def render_command(self, definition: Definition, ctx: RenderContext) -> Launch:
        """The program, then the arguments of `vllm serve`."""
        assert isinstance(definition, VllmFields)
        arguments = vllm_arguments(definition, ctx, self.target_inflight(definition))
        env = vllm_environment(definition, ctx) | self.own_environment(definition, ctx) | definition.env
        return Launch(
            (*self.build_program(definition, ctx), *arguments),
            env,
            self.resolve_image(definition, ctx.images),
            TOKEN_ENV,
            SHM_BYTES if ctx.runtime == "docker" else None,
        )

    def build_program(self, definition: VllmFields, ctx: RenderContext) -> tuple[str, ...]:
        """The command line up to vLLM's arguments."""
        raise TypeError(f"backend {self.name} has no program")

    def own_environment(self, definition: VllmFields, ctx: RenderContext) -> dict[str, str]:
        """What the program needs beyond vLLM's environment."""
        return {}

    def list_files(self, definition: Definition) -> tuple[FileCheck, ...]:
        """The model and the template, where they lie in the models folder."""
        assert isinstance(definition, VllmFields)
        checks = []
        if definition.model_path is not None:
            checks.append(FileCheck("model_path", definition.model_path))
        if definition.vllm_chat_template_file is not None:
            checks.append(FileCheck("vllm_chat_template_file", definition.vllm_chat_template_file, "file"))
        return tuple(checks)

    def list_code_checks(self, definition: Definition) -> tuple[CodeCheck, ...]:
        """The model, unless the definition trusts its code."""
        assert isinstance(definition, VllmFields)
        is_trusted = definition.vllm_trust_remote_code or "--trust-remote-code" in definition.extra_args
        if definition.model_path is None or is_trusted:
            return ()
        return (CodeCheck("model_path", definition.model_path, "vllm_trust_remote_code"),)

    def describe_probe(self, definition: Definition) -> Probe:
        """vLLM's own health, figures, and one token or one embedding."""
        assert isinstance(definition, VllmFields)
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
            template_path=None if is_embedding else "/tokenize",
        )

    def list_apis(self, definition: Definition) -> tuple[str, ...]:
        """An embedding model generates nothing."""
        assert isinstance(definition, VllmFields)
        return _EMBEDDING if definition.vllm_embedding else _GENERATING

    def parse_progress(self, log_tail: str) -> float | None:
        """By the bar that vLLM draws while it reads checkpoint shards."""
        return vllm_progress(log_tail)

    def explain_exit(self, exit_code: int | None, log_tail: str) -> Verdict | None:
        """By the sentences that vLLM, PyTorch and transformers write."""
        return vllm_verdict(log_tail)


def _takes_images(definition: VllmFields) -> bool:
    if definition.vllm_limit_mm_per_prompt and "image" in definition.vllm_limit_mm_per_prompt:
        return definition.vllm_limit_mm_per_prompt["image"] > 0
    return definition.vllm_max_pixels is not None or bool(definition.vllm_mm_processor_kwargs)


class Vllm(VllmEngine):
    """vLLM's server in a worker process."""

    name: ClassVar[str] = "vllm"
    definition = VllmDefinition
    image_kind: ClassVar[str | None] = "worker-vllm"

    def build_program(self, definition: VllmFields, ctx: RenderContext) -> tuple[str, ...]:
        """`python -m worker vllm --`."""
        return (worker_python(ctx), "-m", "worker", self.name, "--")


def _build_load(definition: VllmFields, sequences: int) -> VllmLoad:
    """In the terms of the formulas of memory."""
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
        dtype=definition.vllm_dtype,
        eager=bool(definition.vllm_enforce_eager),
        draft_model=definition.vllm_speculative_model if has_draft_model else None,
        env=definition.env,
        extra_args=definition.extra_args,
    )
