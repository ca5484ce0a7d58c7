"""How a definition of llama-server loads its files, in the terms of memory's formulas. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from controller.artifacts.facts import Artifact
from controller.engines.memory import MIB, Forecast, Unpredicted, all_of
from controller.engines.memory_llama import LlamaLoad, predict_gguf

if TYPE_CHECKING:
    from controller.engines.llama_server import LlamaServerDefinition

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


def predict_llama_server(
    definition: LlamaServerDefinition, sequences: int, artifacts: Mapping[str, Artifact]
) -> Forecast:
    """A replica of so many slots: the model, and the projector and draft model where named."""
    load = _load(definition, sequences)
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
    return all_of(forecasts)


def _load(definition: LlamaServerDefinition, sequences: int) -> LlamaLoad | Unpredicted:
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
    extra = _with_extra(load, definition.extra_args)
    if isinstance(extra, Unpredicted):
        return extra
    if definition.llama_server_embedding or definition.llama_server_reranking:
        # A text is embedded in one micro batch, so llama-server makes batches no larger.
        return replace(extra, batch=extra.micro_batch, outputs=extra.micro_batch)
    drafts = definition.llama_server_draft_model_path is not None
    drafted = (definition.llama_server_spec_draft_n_max or _DRAFTED) if drafts else 0
    return replace(extra, outputs=extra.sequences * (1 + drafted))


def _layers(declared: int | None) -> int | None:
    return None if declared is None or declared < 0 else declared


def _with_extra(load: LlamaLoad, args: Sequence[str]) -> LlamaLoad | Unpredicted:
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
