"""A definition as the command line and environment of vLLM's own server. Pure.

Flags are those of `vllm serve` (vllm/entrypoints/launchers/cli_args.py and vllm/engine/arg_utils.py, 0.32).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from controller.engines.base import ClaimedGpu, RenderContext
from controller.engines.vllm_fields import VllmFields

TOKEN_ENV: Final = "VLLM_API_KEY"  # noqa: S105 - the variable's name, not its value

_NO_SHARE: Final = "0.01"
"""Of a GPU's memory, where the cache has its size in bytes: vLLM takes none by it then, but does not start unless that
share is free (v1/worker/utils.py, `request_memory`), by its default nearly all."""

_OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""huggingface_hub asks nothing of the hub then: what is not in the model's folder is missing at once, where a closed
network would first let each request time out."""
_NAMING_FLAGS: Final = frozenset(
    {"--model", "--tokenizer", "--hf-config-path", "--speculative-config", "-sc", "--lora-modules", "--config"}
)
"""Arguments whose value may be a name on the hub, or hold one."""

_SHARE_STEPS: Final = 10_000

_FLAGS: Final[tuple[tuple[str, str], ...]] = (
    ("vllm_max_model_len", "--max-model-len"),
    ("vllm_dtype", "--dtype"),
    ("vllm_quantization", "--quantization"),
    ("vllm_gpu_memory_utilization", "--gpu-memory-utilization"),
    ("vllm_kv_cache_dtype", "--kv-cache-dtype"),
    ("vllm_kv_cache_memory_bytes", "--kv-cache-memory-bytes"),
    ("vllm_reasoning_parser", "--reasoning-parser"),
    ("vllm_tool_call_parser", "--tool-call-parser"),
)
_SWITCHES: Final[tuple[tuple[str, str], ...]] = (
    ("vllm_tool_call_parser", "--enable-auto-tool-choice"),
    ("vllm_enforce_eager", "--enforce-eager"),
    ("vllm_trust_remote_code", "--trust-remote-code"),
)


def vllm_arguments(definition: VllmFields, ctx: RenderContext, inflight: int) -> list[str]:
    """What follows `vllm serve`: the model, where to listen, then what the definition says, `extra_args` last.

    `--max-num-seqs` is `inflight`. The gateway logs requests, so vLLM does not log them again.
    """
    model = ctx.resolve_path(definition.model_path) if definition.model_path is not None else definition.vllm_model
    assert model is not None, "one of both is validated"
    args = [
        *(model, "--host", ctx.host, "--port", str(ctx.port), "--served-model-name", ctx.served_name),
        *("--max-num-seqs", str(inflight), "--tensor-parallel-size", str(_parallel(definition))),
        "--disable-uvicorn-access-log",
    ]
    for name, flag in _FLAGS:
        value = getattr(definition, name)
        if value is not None:
            args += (flag, str(value))
    if _needs_no_share(definition):
        args += ("--gpu-memory-utilization", _NO_SHARE)
    elif definition.share_follows_vram and ctx.gpus:
        args += ("--gpu-memory-utilization", str(_claimed_share(ctx.gpus)))
    args += [flag for name, flag in _SWITCHES if getattr(definition, name)]
    if definition.vllm_embedding:
        args += ("--runner", "pooling")
    if definition.vllm_chat_template_file is not None:
        args += ("--chat-template", ctx.resolve_path(definition.vllm_chat_template_file))
    for flag, content in _json_flags(definition):
        if content:
            args += (flag, json.dumps(content, separators=(",", ":")))
    return [*args, *definition.extra_args]


def vllm_environment(definition: VllmFields, ctx: RenderContext) -> dict[str, str]:
    """Nothing is told to anybody, and nothing asked where every model is a path. What is compiled outlives the engine,
    and so does what a container downloads; a process uses the operator's own cache of the hub."""
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
    """Whether a model, an assistant or a tokenizer may have to come from the hub or its cache: only an absolute path
    certainly does not."""
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
    return definition.vllm_tensor_parallel_size or definition.gpu_count or 1


def _needs_no_share(definition: VllmFields) -> bool:
    is_sized_in_bytes = (
        definition.vllm_kv_cache_memory_bytes is not None and definition.vllm_gpu_memory_utilization is None
    )
    return is_sized_in_bytes and bool(definition.gpu_count)


def _claimed_share(gpus: Sequence[ClaimedGpu]) -> float:
    """What is claimed of the smallest GPU, as a share of it, rounded down to 0.0001.

    vLLM has one share for all, and as much of the cache on each GPU as fits into the smallest.
    """
    smallest = min(gpus, key=lambda gpu: gpu.total_mib)
    return max(1, min(_SHARE_STEPS, smallest.claim_mib * _SHARE_STEPS // smallest.total_mib)) / _SHARE_STEPS


def _json_flags(definition: VllmFields) -> tuple[tuple[str, dict[str, Any] | None], ...]:
    processor: dict[str, Any] = dict(definition.vllm_mm_processor_kwargs or {})
    if definition.vllm_max_pixels is not None:
        processor["max_pixels"] = definition.vllm_max_pixels
    return (
        ("--mm-processor-kwargs", processor),
        ("--limit-mm-per-prompt", definition.vllm_limit_mm_per_prompt),
        ("--speculative-config", _speculation(definition)),
    )


def _speculation(definition: VllmFields) -> dict[str, Any] | None:
    if definition.vllm_speculative_method is None:
        return None
    tokens = definition.vllm_num_speculative_tokens
    config: dict[str, Any] = {
        "method": definition.vllm_speculative_method,
        "num_speculative_tokens": 1 if tokens is None else tokens,
    }
    if definition.vllm_speculative_model is not None:
        config["model"] = definition.vllm_speculative_model
    return config
