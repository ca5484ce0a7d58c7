"""The memory of a llama-server replica, by its definition: the model, LoRA adapters, a projector, a draft model, cached
prompts. Pure.

Arguments of `extra_args` count as well. Where one changes memory in a way that is not followed, there is no forecast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from controller.artifacts.facts import Artifact
from controller.engines.llama_server_fields import LlamaServerDefinition
from controller.engines.memory import MIB, NOTHING, Forecast, MemoryParts, Prediction, Unpredicted, sum_forecasts
from controller.engines.memory_llama import LlamaLoad, predict_adapter, predict_gguf
from controller.engines.options import find_memory_mover

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
    cached prompts, with the sizes that `extra_args` set.

    `artifacts`: what was read of the files, by model path. `Unpredicted` where a file was not read, or where a model,
    an option or an argument changes memory in a way that is not followed.
    """
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
