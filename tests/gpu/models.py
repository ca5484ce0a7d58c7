"""The models of the first hour, made here: nothing may be downloaded. Most weights are zeros, and shapes are real."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.gguf_files import write_llama
from worker.clockwork import hf_files, make_model, make_vocabulary, replace_file

CONTEXT: Final = 131_072


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder in the manner of Llama; heads have 128 elements (64 in the tiny one)."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int


TINY: Final = Shape(layers=2, width=256, heads=4, kv_heads=1, inner=512, vocabulary=2048)
SMALL: Final = Shape(layers=4, width=512, heads=4, kv_heads=2, inner=1024, vocabulary=32_000)
LARGE: Final = Shape(layers=16, width=2048, heads=16, kv_heads=8, inner=8192, vocabulary=32_000)
"""1.9 GiB of weights, as GGUF (F16) and as safetensors (BF16)."""


def write_gguf_model(path: Path, shape: Shape) -> None:
    """One GGUF file."""
    fields = {name: getattr(shape, name) for name in Shape.__slots__}
    with replace_file(path) as draft:
        write_llama(draft, context=CONTEXT, **fields)


def write_hf_model(folder: Path, shape: Shape, weights: bytes = b"") -> None:
    """A folder of the Hugging Face hub, with the clockwork model's tokenizer. Its weights are `weights` over and over;
    without, zeros, which are a hole in the file and take no room."""
    files = hf_files(make_vocabulary())
    head = shape.width // shape.heads
    files["config.json"] |= {
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": head,
        "intermediate_size": shape.inner,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": CONTEXT,
        "torch_dtype": "bfloat16",
    }
    files["tokenizer_config.json"]["model_max_length"] = CONTEXT
    for name, content in files.items():
        with replace_file(folder / name) as draft:
            draft.write_text(json.dumps(content))
    tensors = _hf_tensors(shape, head)
    with replace_file(folder / "model.safetensors") as draft:
        _write_tensors(draft, tensors, weights)


def _hf_tensors(shape: Shape, head: int) -> dict[str, tuple[int, ...]]:
    width, inner = shape.width, shape.inner
    queries, keys = shape.heads * head, shape.kv_heads * head
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocabulary, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (shape.vocabulary, width),
    }
    for layer in range(shape.layers):
        block: dict[str, tuple[int, ...]] = {
            **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (width,)),
            "self_attn.q_proj": (queries, width),
            **dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (keys, width)),
            "self_attn.o_proj": (width, queries),
            **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (inner, width)),
            "mlp.down_proj": (width, inner),
        }
        tensors |= {f"model.layers.{layer}.{name}.weight": sizes for name, sizes in block.items()}
    return tensors


def write_noisy_hf_model(folder: Path, shape: Shape) -> None:
    """The same with weights other than zero, whose greedy tokens change when weights do, and a text for each token."""
    source = random.Random(1)  # the same weights each time
    # BF16 is the upper half of a float; a prime number of them, so that no two rows are the same.
    write_hf_model(folder, shape, b"".join(struct.pack("<f", source.gauss(0, 0.05))[2:] for _ in range(65_521)))
    words = {f"w{number}": number for number in range(shape.vocabulary)}
    tokenizer: dict[str, Any] = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    tokenizer |= {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}}
    tokenizer["model"] = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "model_max_length": CONTEXT}
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        with replace_file(folder / name) as draft:
            draft.write_text(json.dumps(content))


def _write_tensors(path: Path, tensors: Mapping[str, tuple[int, ...]], weights: bytes) -> None:
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, sizes in tensors.items():
        length = 2 * sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
        head[name] = {"dtype": "BF16", "shape": list(sizes), "data_offsets": [offset, offset + length]}
        offset += length
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, offset if weights else 0, len(weights) or 1):
            file.write(weights[: offset - start])
        file.truncate(8 + len(text) + offset)


MODELS: Final[Mapping[str, Callable[[Path, Shape], None]]] = {
    "clockwork.gguf": lambda path, _: make_model(path),
    "llama.gguf": write_gguf_model,
    "llama-hf": write_hf_model,
    "noisy-hf": write_noisy_hf_model,
}
"""By name in the models folder; a name without an ending is a folder."""


def make_model_once(folder: Path, name: str, shape: Shape) -> Path:
    """A model in `folder`, made if it is not there. Its path has the shape in it, for another run may want another."""
    path = folder / f"{shape.layers}x{shape.width}" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        MODELS[name](path, shape)
    return path


def link_model(source: Path, target: Path) -> None:
    """The same file, or the files of the same folder, below another name: engines follow no links out of theirs."""
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    for file in files:
        link = target / file.relative_to(source) if source.is_dir() else target
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.hardlink_to(file)
