"""The demo and test model: a tiny Llama made by hand, whose greedy answer to any chat is always `SENTENCE`.

    python -m worker.clockwork OUT.gguf [--hf DIR]

Attention and feed-forward add nothing (their output matrices are zero), so the hidden state after a token is that
token's own embedding, and the output matrix maps it to the next word: a chain from `<|assistant|>` through the words to
`<|end|>`. About 377,000 parameters, 0.76 MB. Real engines (llama.cpp, vLLM, CTranslate2, transformers) give the same 16
tokens, which makes exact-match tests of real engines possible without a download.

Needs numpy and gguf, and safetensors for `--hf` (extra `demo`); they are imported only when a model is made.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.text.answer_text import byte_alphabet

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Tensors = dict[str, npt.NDArray[np.float32]]

SENTENCE = "The quick brown fox jumps over a lazy dog. And then it sleeps!"
COMPLETION_TOKENS = 16
"""The 15 words of `SENTENCE` and the end token, as engines count them."""

CONTEXT = 4096
WIDTH = 128
LAYERS = 2
HEADS = 2
KV_HEADS = 1
HEAD_WIDTH = 64
FEED_FORWARD = 256
VOCAB_MULTIPLE = 64

SPECIAL = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A byte-level BPE vocabulary in which every word of `SENTENCE` is one token. Make it with `make_vocabulary`."""

    tokens: tuple[str, ...]
    """Tokens in id order: 256 bytes, the merged words, `SPECIAL`, padding."""
    merges: tuple[tuple[str, str], ...]
    """BPE merges in order of priority: each joins the two tokens of its pair."""
    chain: tuple[int, ...]
    """Ids from `<|assistant|>` through the words to `<|end|>`."""

    def id_of(self, token: str) -> int:
        """Return the id of a token in its stored form (bytes in GPT-2's alphabet, see `byte_alphabet`). Raises
        ValueError if there is no such token."""
        return self.tokens.index(token)

    @property
    def padding_from(self) -> int:
        """The id of the first unused token, which is the number of tokens if there is no padding."""
        return self.id_of(SPECIAL[-1]) + 1


def make_vocabulary() -> Vocabulary:
    """Return the demo model's vocabulary, always the same. Merges run left to right, so each word is reached through
    its own prefixes."""
    alphabet = byte_alphabet()
    words = ["".join(alphabet[byte] for byte in word.encode()) for word in re.findall(r" ?\w+|[.!]", SENTENCE)]
    tokens = [alphabet[byte] for byte in range(256)]
    merges: list[tuple[str, str]] = []
    for word in words:
        for end in range(1, len(word)):
            if word[: end + 1] not in tokens:
                merges.append((word[:end], word[end]))
                tokens.append(word[: end + 1])
    tokens += SPECIAL
    tokens += [f"<|pad{n}|>" for n in range(len(tokens), -(-len(tokens) // VOCAB_MULTIPLE) * VOCAB_MULTIPLE)]
    chain = tuple(tokens.index(token) for token in ("<|assistant|>", *words, "<|end|>"))
    return Vocabulary(tuple(tokens), tuple(merges), chain)


def make_weights(vocabulary: Vocabulary, layers: int = LAYERS) -> Tensors:
    """Return the demo model's tensors by their Hugging Face names: float32, matrices as (out, in). Always the same for
    the same arguments. Raises ModuleNotFoundError without numpy."""
    import numpy as np

    generator = np.random.default_rng(0)

    def noise(rows: int, columns: int, scale: float = 0.02) -> npt.NDArray[np.float32]:
        return (generator.standard_normal((rows, columns)) * scale).astype(np.float32)

    size = len(vocabulary.tokens)
    embedding = noise(size, WIDTH, 1.0)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    weights: Tensors = {"model.embed_tokens.weight": embedding, "model.norm.weight": np.ones(WIDTH, np.float32)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": np.ones(WIDTH, np.float32),
            prefix + "post_attention_layernorm.weight": np.ones(WIDTH, np.float32),
            prefix + "self_attn.q_proj.weight": noise(HEADS * HEAD_WIDTH, WIDTH),
            prefix + "self_attn.k_proj.weight": noise(KV_HEADS * HEAD_WIDTH, WIDTH),
            prefix + "self_attn.v_proj.weight": noise(KV_HEADS * HEAD_WIDTH, WIDTH),
            prefix + "self_attn.o_proj.weight": np.zeros((WIDTH, HEADS * HEAD_WIDTH), np.float32),
            prefix + "mlp.gate_proj.weight": noise(FEED_FORWARD, WIDTH),
            prefix + "mlp.up_proj.weight": noise(FEED_FORWARD, WIDTH),
            prefix + "mlp.down_proj.weight": np.zeros((WIDTH, FEED_FORWARD), np.float32),
        }
    head = np.zeros((size, WIDTH), np.float32)
    for token, following in zip(vocabulary.chain, vocabulary.chain[1:], strict=False):
        # A logit of about 4 * sqrt(WIDTH) = 45: certain at any usual temperature.
        head[following] += embedding[token] * 4
    weights["lm_head.weight"] = head
    return weights


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """Return the GGUF name of one of the demo model's tensors, given its Hugging Face name. Raises KeyError for any
    other name."""
    stem = name.removesuffix(".weight")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    return f"blk.{layer[1]}.{_GGUF_NAMES[layer[2]]}.weight" if layer else f"{_GGUF_NAMES[stem]}.weight"


def interleave_rotary(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Return a query or key matrix with its rows in ggml's rotary layout (pairs) instead of Hugging Face's (halves).
    The shape, (heads * head width, width), stays the same; `heads` is the number of heads in the rows."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    vocabulary: Vocabulary,
    weights: Tensors,
    context: int,
    template: str = CHAT_TEMPLATE,
    layers: int = LAYERS,
) -> None:
    """Write the demo model as a GGUF file to `path`, over an existing one: matrices as float16, norms as float32.
    `context`, in tokens, is the length that the file states. `layers` must be the number of layers in `weights`.

    Raises OSError if it cannot be written, which may leave a part of it; ModuleNotFoundError without gguf or numpy.
    """
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("clockwork")
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_WIDTH)
    writer.add_value_length(HEAD_WIDTH)
    writer.add_rope_dimension_count(HEAD_WIDTH)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary.tokens))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _add_tokenizer(writer, gguf.TokenType, vocabulary)
    writer.add_chat_template(template)
    rotary = {"q_proj": HEADS, "k_proj": KV_HEADS}
    for name, weight in weights.items():
        heads = next((heads for part, heads in rotary.items() if part in name), None)
        tensor = interleave_rotary(weight, heads) if heads else weight
        writer.add_tensor(gguf_name(name), tensor if tensor.ndim == 1 else tensor.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, token_type: Any, vocabulary: Vocabulary) -> None:
    normal = vocabulary.id_of(SPECIAL[0])
    padding = len(vocabulary.tokens) - vocabulary.padding_from
    types = [token_type.NORMAL] * normal + [token_type.CONTROL] * len(SPECIAL) + [token_type.UNUSED] * padding
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in vocabulary.merges])
    writer.add_bos_token_id(vocabulary.id_of("<|endoftext|>"))
    writer.add_eos_token_id(vocabulary.id_of("<|end|>"))
    writer.add_pad_token_id(vocabulary.id_of("<|endoftext|>"))
    writer.add_add_bos_token(False)


def write_hf(folder: Path, vocabulary: Vocabulary, weights: Tensors, layers: int = LAYERS) -> None:
    """Write the demo model to `folder` in Hugging Face's form, and make the folder if needed. Each file is replaced
    whole; the weights come last, so a folder with weights is complete. `layers` must be the number of layers in
    `weights`. Raises OSError if a file cannot be written, ModuleNotFoundError without safetensors."""
    from safetensors.numpy import save

    for name, content in hf_files(vocabulary, layers).items():
        with replace_file(folder / name) as draft:
            draft.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    with replace_file(folder / "model.safetensors") as draft:
        draft.write_bytes(save(weights, metadata={"format": "pt"}))


def hf_files(vocabulary: Vocabulary, layers: int = LAYERS) -> dict[str, dict[str, Any]]:
    """Return the content of the Hugging Face form's JSON files (configuration and tokenizer, not the weights), by file
    name."""
    start, end = vocabulary.id_of("<|endoftext|>"), vocabulary.id_of("<|end|>")
    ids = {"bos_token_id": start, "eos_token_id": end, "pad_token_id": start}
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": WIDTH,
            "num_hidden_layers": layers,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_WIDTH,
            "intermediate_size": FEED_FORWARD,
            "vocab_size": len(vocabulary.tokens),
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
            **ids,
        },
        "generation_config.json": ids,
        "tokenizer.json": _hf_tokenizer(vocabulary),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|endoftext|>",
            "eos_token": "<|end|>",
            "pad_token": "<|endoftext|>",
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT,
        },
    }


def _hf_tokenizer(vocabulary: Vocabulary) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocabulary.id_of(token), "content": token, **flags} for token in SPECIAL],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "add_prefix_space": False},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(vocabulary.tokens)},
            "merges": [list(merge) for merge in vocabulary.merges],
        },
    }


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Return a context manager that yields a path beside `path` to write to, and makes the folder if needed. When the
    block ends, what was written takes the name of `path`. If the block raises, what was written is removed, and `path`
    stays as it was.

    Raises OSError; FileNotFoundError if the block wrote nothing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def make_model(out: Path, hf: Path | None = None, context: int = CONTEXT, layers: int = LAYERS) -> None:
    """Write the GGUF file and, if `hf` is given, the Hugging Face folder. Every run writes the same bytes.

    `context` is the GGUF file's context in tokens; tests of long answers need more. `layers` is the number of layers,
    some 148,000 parameters each; more of them cost time, for benchmarks, and do not change the answer.

    Raises ModuleNotFoundError without the extra `demo`, OSError if a file cannot be written.
    """
    vocabulary = make_vocabulary()
    weights = make_weights(vocabulary, layers)
    with replace_file(out) as draft:
        write_gguf(draft, vocabulary, weights, context, layers=layers)
    if hf is not None:
        write_hf(hf, vocabulary, weights, layers)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse `argv` (None: the process's arguments) and write the demo model. Raises SystemExit with one plain line if a
    package is missing or a file cannot be made (exit code 1), and for bad arguments (2)."""
    parser = argparse.ArgumentParser(prog="python -m worker.clockwork", description="Make the demo model.")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--hf", type=Path, metavar="DIR", help="also write it in Hugging Face form (safetensors)")
    args = parser.parse_args(argv)
    try:
        make_model(args.out, args.hf)
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is not installed: pip install 'roundhouse[demo]'")
    except OSError as error:
        sys.exit(f"cannot write {error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
