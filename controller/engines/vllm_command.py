"""The command line and environment of vLLM's own server. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from controller.engines.base import ClaimedGpu, RenderContext
from controller.engines.memory_hf import beside_share_mib
from controller.engines.options import Flag, JsonFlag, PathFlag, Switch, render_options
from controller.engines.vllm_fields import VllmFields

TOKEN_ENV: Final = "VLLM_API_KEY"  # noqa: S105 - the variable's name, not its value

_NO_SHARE: Final = "0.01"
"""Share of a GPU's memory to ask for where the size of the cache is declared in bytes. vLLM ignores the share then, but
does not start unless that much is free (v1/worker/utils.py, `request_memory`); its default is nearly all."""

_OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Variables that keep huggingface_hub from asking the hub. A file that is not in the model's folder is then missing at
once; in a closed network every request would first time out."""
_NAMING_FLAGS: Final = frozenset(
    {"--model", "--tokenizer", "--hf-config-path", "--speculative-config", "-sc", "--lora-modules", "--config"}
)
"""Arguments whose value may be, or contain, a name on the hub."""

SHARE_FLAG: Final = "--gpu-memory-utilization"
_SHARE_STEPS: Final = 10_000


def vllm_arguments(definition: VllmFields, ctx: RenderContext, inflight: int) -> list[str]:
    """Return the arguments of `vllm serve`: the model, the address, the options, and `extra_args` last.

    The program itself is not among them. `inflight` becomes `--max-num-seqs`. Without `ctx.gpus`, as in a preflight, no
    share of GPU memory follows from `vram_mib`. vLLM does not log requests, because the gateway does. Raises ValueError
    if a LoRA module has the model's own name, because requests could not choose it, or if `vram_mib` sets the share and
    leaves nothing for it.
    """
    model = ctx.resolve_path(definition.model_path) if definition.model_path is not None else definition.vllm_model
    assert model is not None, "one of both is validated"
    args = [
        *(model, "--host", ctx.host, "--port", str(ctx.port), "--served-model-name", ctx.served_name),
        *("--max-num-seqs", str(inflight), "--tensor-parallel-size", str(_parallel(definition))),
        "--disable-uvicorn-access-log",
    ]
    args += render_options(definition, Flag)
    if _needs_no_share(definition):
        args += (SHARE_FLAG, _NO_SHARE)
    elif definition.share_follows_vram:
        beside_mib = _check_beside_share(definition, inflight)
        if ctx.gpus:
            args += (SHARE_FLAG, str(_claimed_share(ctx.gpus, beside_mib)))
    if definition.vllm_tool_call_parser:
        args.append("--enable-auto-tool-choice")
    if definition.vllm_lora_modules:
        if ctx.served_name in definition.vllm_lora_modules:
            raise ValueError(f"vllm_lora_modules: {ctx.served_name!r} is the name of the model itself")
        args.append("--enable-lora")
    args += render_options(definition, Switch)
    if definition.vllm_embedding:
        args += ("--runner", "pooling")
    args += render_options(definition, PathFlag, ctx.resolve_path)
    args += JsonFlag("--mm-processor-kwargs").render(_processor_arguments(definition), str)
    args += render_options(definition, JsonFlag)
    args += JsonFlag("--speculative-config").render(_speculation(definition, ctx), str)
    return [*args, *definition.extra_args]


def vllm_environment(definition: VllmFields, ctx: RenderContext) -> dict[str, str]:
    """Return the environment variables of `vllm serve`, without the definition's `env` and without the token.

    They disable telemetry, and access to the hub where every model is certainly a path. Compiled kernels go to
    `ctx.cache_dir`, which outlives the engine; in containers so do downloads. Processes use the operator's Hub cache.
    """
    env = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "VLLM_CACHE_ROOT": str(ctx.cache_dir / "vllm"),
    }
    if ctx.runtime == "docker":
        env["HF_HOME"] = str(ctx.cache_dir / "huggingface")
    return env if _names_hub_models(definition) else env | _OFFLINE


def _names_hub_models(definition: VllmFields) -> bool:
    """Return whether a model, an assistant or a tokenizer may have to come from the hub or its cache. Only an absolute
    path certainly does not."""
    assistant = definition.vllm_speculative_model if definition.vllm_speculative_method is not None else None
    if definition.model_path is None or (assistant is not None and not assistant.startswith("/")):
        return True
    words = definition.extra_args
    for number, word in enumerate(words):
        flag, has_value, value = word.partition("=")
        value = value if has_value else next(iter(words[number + 1 :]), "")
        if flag.replace("_", "-") in _NAMING_FLAGS and not value.startswith("/"):
            return True
    return False


def _parallel(definition: VllmFields) -> int:
    groups = definition.vllm_pipeline_parallel_size or 1
    return definition.vllm_tensor_parallel_size or (definition.gpu_count or groups) // groups


def _needs_no_share(definition: VllmFields) -> bool:
    is_sized_in_bytes = (
        definition.vllm_kv_cache_memory_bytes is not None and definition.vllm_gpu_memory_utilization is None
    )
    return is_sized_in_bytes and bool(definition.gpu_count)


def _check_beside_share(definition: VllmFields, inflight: int) -> int:
    """Return the MiB of `vram_mib` that the share leaves, at `inflight` sequences at a time. Raises ValueError if that
    is all of it."""
    vram_mib = definition.vram_mib or 0
    gpu_count, is_eager = definition.gpu_count or 1, bool(definition.vllm_enforce_eager)
    beside_mib = beside_share_mib(vram_mib, gpu_count, definition.env, sequences=inflight, eager=is_eager)
    if vram_mib <= beside_mib:
        raise ValueError(
            f"vram_mib: {vram_mib} MiB leave nothing for weights and KV cache, because vLLM takes up to {beside_mib} "
            "MiB for CUDA and its libraries: declare more"
        )
    return beside_mib


def _claimed_share(gpus: Sequence[ClaimedGpu], beside_mib: int) -> float:
    """Return the claim on the smallest GPU less `beside_mib`, as a share of its memory, rounded down to 0.0001.

    vLLM has one share for all GPUs, and its cache is as large on each as fits into the smallest. It takes the share of
    what CUDA can give, which is less than the memory of the GPU by what the driver keeps, and never more.
    """
    smallest = min(gpus, key=lambda gpu: gpu.total_mib)
    share_mib = smallest.claim_mib - beside_mib
    return max(1, min(_SHARE_STEPS, share_mib * _SHARE_STEPS // smallest.total_mib)) / _SHARE_STEPS


def _processor_arguments(definition: VllmFields) -> dict[str, Any]:
    arguments: dict[str, Any] = dict(definition.vllm_mm_processor_kwargs or {})
    if definition.vllm_max_pixels is not None:
        arguments["max_pixels"] = definition.vllm_max_pixels
    return arguments


def _speculation(definition: VllmFields, ctx: RenderContext) -> dict[str, Any] | None:
    if definition.vllm_speculative_method is None:
        return None
    tokens = definition.vllm_num_speculative_tokens
    config: dict[str, Any] = {
        **(definition.vllm_speculative_config or {}),
        "method": definition.vllm_speculative_method,
        "num_speculative_tokens": 1 if tokens is None else tokens,
    }
    if (assistant := definition.vllm_speculative_model) is not None:
        config["model"] = ctx.model_paths.get(assistant, assistant)
    return config
