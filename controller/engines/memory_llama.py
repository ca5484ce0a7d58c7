"""The memory of llama.cpp, as its log reports it: `model`, `KV`, `compute` and `output` buffer size. Pure.

The formulas follow the sources in llama-cpp-python 0.3.36, and are checked against its reports
(tests/integration/controller/sizing/test_memory_prediction.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from controller.artifacts.facts import Artifact, Gguf, UnreadArtifact
from controller.engines.memory import (
    MIB,
    NOTHING,
    Forecast,
    MemoryParts,
    Prediction,
    Unpredicted,
    artifact_at,
)

GPU_OVERHEAD: Final = 768 * MIB
"""What llama.cpp holds of one GPU beside its own buffers: CUDA's context, kernels, cuBLAS. On an H200 (driver 580, CUDA
13.0) 589 MiB after a load and 692 to 759 after a prompt, as cuBLAS and its workspaces come with the first one."""
GGML_BLOCKS: Final[Mapping[str, tuple[int, int]]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "iq4_nl": (32, 18),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
}
"""Elements and bytes of one block, by ggml type."""
CONTEXT_MULTIPLE: Final = 256
_FLOAT: Final = 4
_HALF: Final = 2
_PIPELINE_COPIES: Final = 4
"""Copies of the inputs on each GPU where several GPUs hold a whole model (GGML_SCHED_MAX_COPIES)."""
_TOKEN: Final = 128
"""Main memory for each token of the vocabulary."""

# fmt: off
_PLAIN: Final = frozenset({
    "llama", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "mistral3", "gemma", "phi2", "phi3",
    "starcoder2", "granite", "granitemoe", "olmo", "olmoe", "internlm2", "command-r", "stablelm", "falcon",
    "smollm3", "ernie4_5", "glm4", "exaone", "minicpm", "seed_oss", "apertus", "arcee", "orion", "xverse",
    "refact", "baichuan", "nemotron", "dots1",
})
# fmt: on
_ENCODERS: Final = frozenset({"bert", "nomic-bert", "jina-bert-v2"})
"""Architectures without a cache: all tokens of a text are computed at once."""
_SLIDING: Final = {"gemma2": 2, "gemma3": 6, "gemma4": 1, "cohere2": 4, "olmo2": 4, "gpt-oss": 2}
"""Architectures with a sliding window: of each group of so many layers the last sees the whole context and the others a
window, unless the file says otherwise."""
_DEFAULT_WINDOW: Final = {"gemma2": 4096}


@dataclass(frozen=True, slots=True)
class LlamaLoad:
    """How llama.cpp loads a GGUF file, in the terms of its memory: the input of `predict_gguf`. Batches count tokens,
    `sequences` the slots; `gpus` 0: main memory alone. `context` None: the model's own; `outputs` and `gpu_layers`
    None: all tokens, all layers."""

    context: int | None = None
    """Context length in tokens; None: the model's own."""
    batch: int = 2048
    micro_batch: int = 512
    sequences: int = 1
    outputs: int | None = None
    """Tokens of a batch whose logits are computed; None: all."""
    flash_attention: bool = True
    type_k: str = "f16"
    type_v: str = "f16"
    gpu_layers: int | None = None
    """Layers on the GPUs; None: all."""
    gpus: int = 0
    full_window: bool = False
    """Whether layers with a sliding window keep the whole context as well."""
    host_overhead: int = 0
    """Main memory of the process beside buffers and vocabulary."""


@dataclass(frozen=True, slots=True)
class _Layer:
    k_width: int
    v_width: int
    slides: bool


@dataclass(frozen=True, slots=True)
class _Shape:
    layers: tuple[_Layer, ...]
    """The layers with a cache of their own."""
    width: int
    heads: int
    q_width: int
    inner: int
    """Floats that the widest feed-forward block holds per token."""
    window: int
    encodes: bool


def predict_gguf(path: str, artifacts: Mapping[str, Artifact], load: LlamaLoad) -> Forecast:
    """Predict the memory, in bytes, of the model or multimodal projector at `path`. `Unpredicted` where the file was
    not read, is no GGUF file, or is of an architecture that is not covered. Raises KeyError for a cache type that is
    not in `GGML_BLOCKS`; definitions have no other."""
    facts = artifact_at(path, artifacts)
    if isinstance(facts, UnreadArtifact):
        return Unpredicted(facts.reason)
    if not isinstance(facts, Gguf):
        return Unpredicted(f"{path} is not a GGUF file")
    forecast = predict_projector(facts, load) if facts.architecture == "clip" else predict_llama(facts, load)
    return Unpredicted(f"{path}: {forecast.reason}") if isinstance(forecast, Unpredicted) else forecast


def predict_llama(model: Gguf, load: LlamaLoad) -> Forecast:
    """Predict the memory, in bytes, of a language or embedding model, on the fullest of its GPUs and in main memory.

    `Unpredicted` where the architecture is not covered or the file lacks a number that is needed. Raises KeyError for a
    cache type that is not in `GGML_BLOCKS`; definitions have no other.
    """
    shape = _shape(model)
    if isinstance(shape, Unpredicted):
        return shape
    context = load.context or model.get_number("context_length")
    if not context:
        return Unpredicted("the file does not say how long its context is, nor does the definition")
    load = replace(load, context=-(-context // CONTEXT_MULTIPLE) * CONTEXT_MULTIPLE)
    caches = _caches(shape, load)
    compute, outputs = _compute(model, shape, load), load.sequences * model.vocabulary * _FLOAT
    overhead = load.host_overhead + model.vocabulary * _TOKEN
    if not load.gpus:
        return Prediction(NOTHING, MemoryParts(model.weights, sum(caches), compute + outputs, overhead))
    block_count = len(model.blocks)
    layer_count = block_count + 1  # the last of them is the output
    gpu_layers = layer_count if load.gpu_layers is None else min(load.gpu_layers, layer_count)
    host_blocks = min(layer_count - gpu_layers, block_count)
    host_weights = model.embedding + sum(model.blocks[:host_blocks]) + (0 if gpu_layers else model.rest + model.output)
    copies = _PIPELINE_COPIES if load.gpus > 1 and gpu_layers == layer_count else 1
    gpu_shares = [
        _gpu_share(model, shape, load, caches, layers, copies)
        for layers in _split_layers(layer_count, gpu_layers, load.gpus)
    ]
    inputs = copies * (_masks(shape, load) + _hidden_state(shape, load))
    return Prediction(
        max(gpu_shares, key=lambda parts: parts.total),
        MemoryParts(host_weights, sum(caches[:host_blocks]), outputs + (compute if host_blocks else inputs), overhead),
        load.gpus,
    )


def predict_projector(model: Gguf, load: LlamaLoad) -> Forecast:
    """Predict the memory, in bytes, of a multimodal projector: its weights, and the buffers for one image of its own
    size, on each GPU or, without GPUs, in main memory. `Unpredicted` where the file does not say how large its images
    are."""
    names = ("image_size", "patch_size", "embedding_length", "feed_forward_length", "attention.head_count")
    side, patch, width, inner, heads = (model.get_number(f"vision.{name}") or 0 for name in names)
    if not (side and patch and width and inner and heads):
        return Unpredicted("the projector does not say how large its images are")
    tokens = (side // patch) ** 2 + 1
    attention = 6 * width if load.flash_attention else 3 * width + heads * tokens
    parts = MemoryParts(model.weights, compute=(3 * side**2 + tokens * max(attention, 2 * width + inner)) * _FLOAT)
    return Prediction(parts, NOTHING, load.gpus) if load.gpus else Prediction(NOTHING, parts)


def predict_adapter(path: str, artifacts: Mapping[str, Artifact], load: LlamaLoad) -> Forecast:
    """Predict the memory, in bytes, of the weights of the LoRA adapter at `path`, which lie beside those of the layers
    that they change: on the GPUs if any layer is there, else in main memory.

    Counted on each GPU in full, because the shares of several GPUs are not known. `Unpredicted` where the file was not
    read or is no GGUF file.
    """
    facts = artifact_at(path, artifacts)
    if isinstance(facts, UnreadArtifact):
        return Unpredicted(facts.reason)
    if not isinstance(facts, Gguf):
        return Unpredicted(f"{path} is not a GGUF file")
    parts = MemoryParts(facts.weights)
    is_on_gpu = load.gpus and load.gpu_layers != 0
    return Prediction(parts, NOTHING, load.gpus) if is_on_gpu else Prediction(NOTHING, parts)


def _split_layers(layer_count: int, gpu_layers: int, gpus: int) -> list[range]:
    """Return the numbers of the layers on each GPU: the last `gpu_layers` layers in equal parts. The very last layer is
    the output."""
    first_layer = layer_count - gpu_layers
    bounds = [first_layer + -(-gpu * gpu_layers // gpus) for gpu in range(gpus + 1)]
    return [range(start, end) for start, end in pairwise(bounds)]


def _gpu_share(
    model: Gguf, shape: _Shape, load: LlamaLoad, caches: Sequence[int], layers: range, copies: int
) -> MemoryParts:
    """Return the memory of one GPU that holds `layers`, with `copies` of its inputs."""
    held = slice(layers.start, layers.stop)
    has_output = len(model.blocks) in layers
    weights = sum(model.blocks[held])
    if has_output:
        weights += model.rest + model.output
        if model.has_tied_embeddings:
            weights += model.embedding  # which is also kept on the host
    # A GPU without any layer computes large batches for the host, logits among them.
    compute = _compute(
        model, shape, load, _f16_copy(shape, load, shape.layers[held]), has_logits=has_output or not layers
    )
    if copies > 1:
        # Copies are never overwritten. Of a single copy the masks are counted, and `_compute` holds the rest.
        compute += (copies - 1) * _masks(shape, load) + copies * _hidden_state(shape, load)
    return MemoryParts(weights, sum(caches[held]), compute, GPU_OVERHEAD)


def row_bytes(kind: str, width: int) -> int:
    """Return the bytes of a row of `width` elements of the ggml type `kind`, rounded up to whole blocks. Raises
    KeyError for a type that is not in `GGML_BLOCKS`."""
    elements, size = GGML_BLOCKS[kind]
    return -(-width // elements) * size


def _shape(model: Gguf) -> _Shape | Unpredicted:
    name = model.architecture
    if name not in _PLAIN and name not in _ENCODERS and name not in _SLIDING:
        return Unpredicted(f"how the architecture {name!r:.60} keeps its context is not known to this version")
    if model.get_number("nextn_predict_layers"):
        return Unpredicted("the file holds layers that predict several tokens, whose cache is not known")
    width, heads = model.get_number("embedding_length"), model.get_number("attention.head_count")
    if not width or not heads or not model.blocks:
        return Unpredicted("the file does not tell its width, heads and blocks")
    layers = _layers(model, width // heads)
    window = model.get_number("attention.sliding_window", _DEFAULT_WINDOW.get(name, 0)) or 0
    return _Shape(
        layers=() if name in _ENCODERS else layers,
        width=width,
        heads=heads,
        q_width=heads * (model.get_number("attention.key_length") or width // heads),
        inner=_inner(model, width),
        window=window if name in _SLIDING else 0,
        encodes=name in _ENCODERS,
    )


def _layers(model: Gguf, head: int) -> tuple[_Layer, ...]:
    count = len(model.blocks)
    slides = _slides(model)
    key, value = (model.get_number(f"attention.{each}_length", head) or head for each in ("key", "value"))
    key_slides = model.get_number("attention.key_length_swa", key) or key
    value_slides = model.get_number("attention.value_length_swa", value) or value
    kv_heads = model.get_numbers("attention.head_count_kv") or model.get_numbers("attention.head_count")
    cached_count = count - (model.get_number("attention.shared_kv_layers", 0) or 0)
    layers = []
    for number in range(min(count, cached_count)):
        heads = kv_heads[number] if len(kv_heads) == count else max(kv_heads, default=0)
        if slides[number]:
            layers.append(_Layer(heads * key_slides, heads * value_slides, True))
        else:
            layers.append(_Layer(heads * key, heads * value, False))
    return tuple(layers)


def _slides(model: Gguf) -> tuple[bool, ...]:
    count, pattern = len(model.blocks), _SLIDING.get(model.architecture)
    window = model.get_number("attention.sliding_window", _DEFAULT_WINDOW.get(model.architecture, 0))
    if pattern is None or not window:
        return (False,) * count
    declared_pattern = model.get_numbers("attention.sliding_window_pattern")
    if len(declared_pattern) == count > 1:
        return tuple(bool(each) for each in declared_pattern)
    period = declared_pattern[0] if declared_pattern else pattern
    return tuple(period == 0 or number % period < period - 1 for number in range(count))


def _inner(model: Gguf, width: int) -> int:
    dense_width = (1 if model.architecture == "bert" else 3) * (
        model.get_number("feed_forward_length", 0) or 0
    )  # bert has no gate
    experts_used = model.get_number("expert_used_count", 0) or 0
    if not experts_used:
        return dense_width
    expert_width = model.get_number("expert_feed_forward_length") or model.get_number("feed_forward_length", 0) or 0
    return max(
        dense_width if model.get_number("leading_dense_block_count") else 0,
        experts_used * max(3 * expert_width, expert_width + 2 * width),
    )


def _caches(shape: _Shape, load: LlamaLoad) -> list[int]:
    """Return the cache of each layer."""
    # A cache of V that is laid out for matrix products, not for flash attention, has rows of one width.
    widest = 0 if load.flash_attention else max((layer.v_width for layer in shape.layers), default=0)
    return [
        _cells(shape, load, layer.slides)
        * (row_bytes(load.type_k, layer.k_width) + row_bytes(load.type_v, max(layer.v_width, widest)))
        for layer in shape.layers
    ]


def _cells(shape: _Shape, load: LlamaLoad, slides: bool) -> int:
    context = load.context or 0
    if not slides or load.full_window:
        return context
    cells = min(context, shape.window * load.sequences + min(load.micro_batch, context))
    return -(-cells // CONTEXT_MULTIPLE) * CONTEXT_MULTIPLE


def _masks(shape: _Shape, load: LlamaLoad) -> int:
    rows = min(load.context or 0, load.micro_batch)
    slide_kinds = {layer.slides for layer in shape.layers}
    cell_counts = [rows] if shape.encodes else [_cells(shape, load, slides) for slides in slide_kinds]
    return rows * sum(cell_counts) * (_HALF if load.flash_attention else _FLOAT)


def _hidden_state(shape: _Shape, load: LlamaLoad) -> int:
    """Return the bytes that one layer passes on to the next."""
    return min(load.context or 0, load.micro_batch) * shape.width * _FLOAT


def _f16_copy(shape: _Shape, load: LlamaLoad, layers: Sequence[_Layer]) -> int:
    """Return the bytes of the f16 copy that CUDA's flash attention makes of K and V of another type.

    There is one copy, as large as the whole cache of the largest layer, beside the result of the attention.
    """
    if not load.flash_attention:
        return 0
    return max(
        (
            _cells(shape, load, layer.slides)
            * _HALF
            * (layer.k_width * (load.type_k != "f16") + layer.v_width * (load.type_v != "f16"))
            for layer in layers
        ),
        default=0,
    )


def _compute(model: Gguf, shape: _Shape, load: LlamaLoad, f16_copy: int = 0, *, has_logits: bool = True) -> int:
    """Return the largest buffer of one micro batch: that of attention (with `f16_copy`), of feed-forward or of logits;
    and the masks, which stay."""
    rows = min(load.context or 0, load.micro_batch)
    k_width = max((layer.k_width for layer in shape.layers), default=shape.q_width)
    v_width = max((layer.v_width for layer in shape.layers), default=shape.q_width)
    attention = 3 * shape.width + 2 * shape.q_width + k_width + v_width
    if not load.flash_attention:
        cells = rows if shape.encodes else max(_cells(shape, load, layer.slides) for layer in shape.layers)
        attention += shape.heads * cells
    outputs = (rows if load.outputs is None else min(rows, load.outputs)) if has_logits else 0
    moments = (
        rows * attention * _FLOAT + f16_copy,
        rows * (3 * shape.width + shape.inner) * _FLOAT,
        outputs * (shape.width + (0 if shape.encodes else model.vocabulary)) * _FLOAT,
    )
    return _masks(shape, load) + max(moments)
