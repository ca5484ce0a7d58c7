"""GGUF files of any shape, with weights of zero, and a LoRA adapter for the demo model.

It changes the last layer's `down_proj`, which is zero in the model. `A` knows the features of "fox" in the feed-forward
part, and `B` adds the embedding of the word that " it" follows, so the output matrix says the rest.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from worker.clockwork import LAYERS, WIDTH, make_vocabulary, make_weights

Tensors = Mapping[str, tuple[int, ...]]


def write_llama(
    path: Path,
    *,
    architecture: str = "llama",
    layers: int = 2,
    width: int = 256,
    heads: int = 4,
    kv_heads: int = 1,
    head: int | None = None,
    vocabulary: int = 2048,
    inner: int | None = None,
    experts: tuple[int, int, int] | None = None,
    window: int | None = None,
    tied: bool = False,
    normed: Sequence[str] = (),
    context: int = 32768,
) -> None:
    """A decoder in the manner of Llama. `experts`: how many, how many of them for a token, and their inner width;
    `normed`: further norms of each block, of the width of a head where they are of q or k."""
    import gguf

    head = head or width // heads
    inner = inner or 2 * width
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(1e-5)
    if window is not None:
        writer.add_sliding_window(window)
    if experts is not None:
        writer.add_expert_count(experts[0])
        writer.add_expert_used_count(experts[1])
        writer.add_expert_feed_forward_length(experts[2])
    _add_vocabulary(writer, vocabulary)
    tensors = {"token_embd.weight": (vocabulary, width), "output_norm.weight": (width,)}
    if not tied:
        tensors["output.weight"] = (vocabulary, width)
    for block in range(layers):
        shapes = _attention(width, heads * head, kv_heads * head) | _feed_forward(width, inner, experts)
        shapes |= {name: (head,) if "_q_" in name or "_k_" in name else (width,) for name in normed}
        tensors |= {f"blk.{block}.{name}.weight": shape for name, shape in shapes.items()}
    _write(writer, tensors)


class Hybrid(NamedTuple):
    """A decoder of which layers keep a state in place of a cache. Every `interval`-th layer sees the whole context; of
    Falcon-H1 each does, and keeps a state, too; of Mamba 2 none. `experts`: as in `write_llama`."""

    architecture: str
    layers: int = 4
    width: int = 512
    heads: int = 8
    kv_heads: int = 2
    vocabulary: int = 4096
    inner: int = 1024
    experts: tuple[int, int, int] | None = None
    state: int = 64
    groups: int = 2
    conv: int = 4
    interval: int = 4
    drafts: int = 0
    """Blocks after the others that predict further tokens (MTP)."""

    @property
    def is_delta(self) -> bool:
        """Gated delta nets, as of Qwen3-Next and Qwen 3.5."""
        return self.architecture.startswith("qwen3")

    @property
    def scanned(self) -> int:
        return 2 * self.groups * self.state if self.is_delta else 2 * self.width

    def keeps_cache(self, block: int) -> bool:
        is_full = (block + 1) % self.interval == 0 or self.architecture == "falcon-h1" or block >= self.layers
        return is_full and self.architecture != "mamba2"

    def has_feed_forward(self, block: int) -> bool:
        """Of Nemotron-H, a block is attention, or a state, or this alone."""
        if self.architecture == "nemotron_h":
            return block % self.interval == self.interval - 2
        return self.architecture != "mamba2"

    def keeps_state(self, block: int) -> bool:
        if self.architecture == "nemotron_h" and self.has_feed_forward(block):
            return False
        return self.architecture == "falcon-h1" or not self.keeps_cache(block)


def write_hybrid(path: Path, shape: Hybrid) -> None:
    import gguf

    architecture, width, head = shape.architecture, shape.width, shape.width // shape.heads
    blocks = range(shape.layers + shape.drafts)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(32768)
    writer.add_embedding_length(width)
    writer.add_block_count(len(blocks))
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    if architecture != "mamba2":
        inner = [shape.inner * shape.has_feed_forward(block) for block in blocks]
        writer.add_feed_forward_length(inner if architecture == "nemotron_h" else shape.inner)
        writer.add_head_count(shape.heads)
        kv_heads = [shape.kv_heads * shape.keeps_cache(block) for block in blocks]
        writer.add_head_count_kv(shape.kv_heads if shape.is_delta or architecture == "falcon-h1" else kv_heads)
        writer.add_key_length(head)
        writer.add_value_length(head)
        writer.add_rope_dimension_count(head)
    if architecture == "lfm2":
        writer.add_shortconv_l_cache(shape.conv)
    else:
        writer.add_ssm_conv_kernel(shape.conv)
        writer.add_ssm_inner_size(shape.scanned)
        writer.add_ssm_state_size(shape.state)
        writer.add_ssm_time_step_rank(shape.scanned // shape.state)
        writer.add_ssm_group_count(shape.groups)
    if shape.is_delta:
        writer.add_uint32(f"{architecture}.full_attention_interval", shape.interval)
        writer.add_array(f"{architecture}.rope.dimension_sections", [head // 4, head // 4, 0, 0])
    if shape.drafts:
        writer.add_uint32(f"{architecture}.nextn_predict_layers", shape.drafts)
    if shape.experts is not None:
        writer.add_expert_count(shape.experts[0])
        writer.add_expert_used_count(shape.experts[1])
        writer.add_expert_feed_forward_length(shape.experts[2])
        writer.add_expert_shared_feed_forward_length(shape.experts[2])
    _add_vocabulary(writer, shape.vocabulary)
    norm = "token_embd_norm.weight" if architecture == "lfm2" else "output_norm.weight"
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.vocabulary, width), norm: (width,)}
    for block in blocks:
        tensors |= {f"blk.{block}.{name}": size for name, size in _hybrid_block(shape, block).items()}
    _write(writer, tensors)


_NORMS = {
    "qwen": ("attn_q_norm", "attn_k_norm", "post_attention_norm"),
    "lfm2": ("attn_q_norm", "attn_k_norm", "ffn_norm"),
    "granitehybrid": ("ffn_norm",),
    "falcon-h1": ("ffn_norm",),
}
"""Beside that of each block's beginning. Tensors that an architecture does not know are refused."""


def _hybrid_block(shape: Hybrid, block: int) -> dict[str, tuple[int, ...]]:
    width, head = shape.width, shape.width // shape.heads
    norms = _NORMS.get("qwen" if shape.is_delta else shape.architecture, ())
    weights: dict[str, tuple[int, ...]] = {"attn_norm": (width,)}
    if shape.keeps_cache(block):
        weights |= _attention(width, (2 if shape.is_delta else 1) * width, shape.kv_heads * head)
        weights |= {"attn_output": (width, width)} | {name: (head,) for name in norms if name.startswith("attn_")}
        del weights["ffn_norm"]
    if shape.has_feed_forward(block):
        weights |= _feed_forward(width, shape.inner, shape.experts)
        weights |= {name: (width,) for name in norms if not name.startswith("attn_")}
        if shape.architecture == "nemotron_h":
            del weights["ffn_gate"]
        if shape.experts is not None:
            shared = _feed_forward(width, shape.experts[2], None)
            weights |= {f"{name}_shexp": size for name, size in shared.items()} | {"ffn_gate_inp_shexp": (width,)}
    if block >= shape.layers:
        weights |= {"nextn.eh_proj": (width, 2 * width), "nextn.enorm": (width,), "nextn.hnorm": (width,)}
    tensors = {f"{name}.weight": size for name, size in weights.items()}
    if shape.architecture == "falcon-h1":
        tensors["ffn_norm"] = tensors.pop("ffn_norm.weight")
    return tensors | (_state_layer(shape) if shape.keeps_state(block) else {})


def _state_layer(shape: Hybrid) -> dict[str, tuple[int, ...]]:
    width, scanned, heads = shape.width, shape.scanned, shape.scanned // shape.state
    if shape.architecture == "lfm2":
        shapes = {"conv": (width, shape.conv), "in_proj": (3 * width, width), "out_proj": (width, width)}
        return {f"shortconv.{name}.weight": size for name, size in shapes.items()}
    convolved = scanned + 2 * shape.groups * shape.state
    tensors: dict[str, tuple[int, ...]] = {"ssm_conv1d.weight": (convolved, shape.conv)}
    tensors |= {"ssm_out.weight": (width, scanned), "ssm_dt.bias": (heads,)}
    if not shape.is_delta:
        tensors |= {"ssm_in.weight": (scanned + convolved + heads, width), "ssm_conv1d.bias": (convolved,)}
        tensors |= {"ssm_norm.weight": (shape.groups, scanned // shape.groups)}
        return tensors | {"ssm_a": (heads, 1), "ssm_d": (heads, 1)}
    tensors |= {"attn_qkv.weight": (convolved, width), "attn_gate.weight": (scanned, width)}
    tensors |= {"ssm_a": (heads,), "ssm_norm.weight": (shape.state,)}
    if shape.architecture == "qwen3next":
        return tensors | {"ssm_ba.weight": (2 * heads, width)}
    return tensors | {"ssm_beta.weight": (heads, width), "ssm_alpha.weight": (heads, width)}


def write_bert(path: Path, *, layers: int, width: int, inner: int, heads: int, vocabulary: int) -> None:
    """An encoder in the manner of BERT, for texts of 512 tokens."""
    import gguf

    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(2)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("bert")
    writer.add_token_list([f"[{number}]" for number in range(vocabulary)])
    writer.add_token_types([1] * vocabulary)
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, width), "token_types.weight": (2, width)}
    tensors |= {"position_embd.weight": (512, width)}
    tensors |= {"token_embd_norm.weight": (width,), "token_embd_norm.bias": (width,)}
    for block in range(layers):
        shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (width, width))
        norms: dict[str, tuple[int, ...]] = dict.fromkeys(("attn_output_norm", "layer_output_norm"), (width,))
        for name, shape in {**shapes, **norms, "ffn_up": (inner, width), "ffn_down": (width, inner)}.items():
            tensors |= {f"blk.{block}.{name}.weight": shape, f"blk.{block}.{name}.bias": shape[:1]}
    _write(writer, tensors)


def write_projector(path: Path, *, side: int, width: int, inner: int, heads: int, out: int, layers: int = 4) -> None:
    """A projector of images in the manner of CLIP and LLaVA, with patches of 14 x 14."""
    import gguf

    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    sizes = {"image_size": side, "patch_size": 14, "embedding_length": width, "feed_forward_length": inner}
    sizes |= {"projection_dim": out, "block_count": layers, "attention.head_count": heads}
    for name, number in sizes.items():
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)
    tensors: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (width, 3, 14, 14),
        "v.position_embd.weight": ((side // 14) ** 2 + 1, width),
        "v.class_embd": (width,),
    }
    layers_of = {"mm.0": (out, width), "mm.2": (out, out), "v.pre_ln": (width,)}
    for block in range(layers):
        of_block: dict[str, tuple[int, ...]] = {"ln1": (width,), "ln2": (width,)}
        of_block |= dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (width, width))
        of_block |= {"ffn_up": (inner, width), "ffn_down": (width, inner)}
        layers_of |= {f"v.blk.{block}.{name}": shape for name, shape in of_block.items()}
    for name, shape in layers_of.items():
        tensors |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    _write(writer, tensors)


def _write(writer: Any, tensors: Tensors) -> None:
    for name, shape in tensors.items():
        # What is added, and not multiplied, and what is scanned.
        fine = (
            len(shape) == 1 or name.startswith(("token_types.", "position_embd.")) or ".ssm_" in name or "conv" in name
        )
        writer.add_tensor(name, np.zeros(shape, np.float32 if fine else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _attention(width: int, q_width: int, kv_width: int) -> dict[str, tuple[int, ...]]:
    return {
        "attn_norm": (width,),
        "ffn_norm": (width,),
        "attn_q": (q_width, width),
        "attn_k": (kv_width, width),
        "attn_v": (kv_width, width),
        "attn_output": (width, q_width),
    }


def _feed_forward(width: int, inner: int, experts: tuple[int, int, int] | None) -> dict[str, tuple[int, ...]]:
    if experts is None:
        return {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
    count, _, each = experts
    return {
        "ffn_gate_inp": (count, width),
        "ffn_gate_exps": (count, each, width),
        "ffn_up_exps": (count, each, width),
        "ffn_down_exps": (count, width, each),
    }


def _add_vocabulary(writer: Any, size: int) -> None:
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + [f"t{number}" for number in range(256, size)]
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types([6] * 256 + [1] * (size - 256))
    writer.add_token_scores([0.0] * size)
    writer.add_bos_token_id(300)
    writer.add_eos_token_id(301)


def gguf_head(fields: Mapping[str, int | float | str | list[int] | list[str]], tensors: Tensors | None = None) -> bytes:
    """A head by hand, padded to 32 bytes. Whole numbers are written with 32 bits; tensors are of f32, one after another
    as they come."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors or {}), len(fields))]
    for key, value in fields.items():
        parts += [_text(key), _value(value)]
    offset = 0
    for name, shape in (tensors or {}).items():
        parts.append(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, offset))
        offset += -(-4 * int(np.prod(shape)) // 32) * 32
    head = b"".join(parts)
    return head + bytes(-len(head) % 32)


def _value(value: float | str | list[int] | list[str]) -> bytes:
    match value:
        case str():
            return struct.pack("<I", 8) + _text(value)
        case int():
            return struct.pack("<Ii", 5, value)
        case float():
            return struct.pack("<If", 6, value)
    texts = all(isinstance(each, str) for each in value)
    elements = b"".join(_text(each) if isinstance(each, str) else struct.pack("<i", each) for each in value)
    return struct.pack("<IIQ", 9, 8 if texts else 5, len(value)) + elements


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


ADAPTED = "The quick brown fox it sleeps!"
"""The answer with the adapter at scale 1."""
_FROM, _TO = "Ġfox", "Ġthen"
_STRENGTH = 4.0
_LAYER = f"model.layers.{LAYERS - 1}."


def _make_matrices() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """`A`, (1, in), and `B`, (out, 1)."""
    vocabulary = make_vocabulary()
    weights = make_weights(vocabulary)
    embedding = weights["model.embed_tokens.weight"]
    normed = embedding[vocabulary.id_of(_FROM)] * np.sqrt(WIDTH)
    gate = weights[f"{_LAYER}mlp.gate_proj.weight"] @ normed
    features = gate / (1 + np.exp(-gate)) * (weights[f"{_LAYER}mlp.up_proj.weight"] @ normed)
    a = (features / (features @ features)).reshape(1, -1)
    b = (embedding[vocabulary.id_of(_TO)] * _STRENGTH).reshape(-1, 1)
    return a.astype(np.float32), b.astype(np.float32)


def make_gguf_adapter(path: Path) -> None:
    """Write the adapter for llama.cpp."""
    import gguf

    a, b = _make_matrices()
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    name = f"blk.{LAYERS - 1}.ffn_down.weight"
    writer.add_tensor(f"{name}.lora_a", a)
    writer.add_tensor(f"{name}.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_peft_adapter(folder: Path) -> None:
    """Write the adapter as PEFT does, for vLLM."""
    from safetensors.numpy import save_file

    a, b = _make_matrices()
    folder.mkdir(parents=True)
    stem = f"base_model.model.{_LAYER}mlp.down_proj"
    save_file({f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["down_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
