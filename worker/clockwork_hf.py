"""The demo model in Hugging Face form: safetensors, tokenizer and configuration, as vLLM and CTranslate2 read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker import clockwork
from worker.clockwork import Vocabulary

if TYPE_CHECKING:
    from worker.clockwork import Tensors


def write_hf(folder: Path, vocabulary: Vocabulary, weights: Tensors) -> None:
    """Each file is replaced whole; the weights come last, so a folder with weights is complete."""
    from safetensors.numpy import save

    for name, content in hf_files(vocabulary).items():
        with clockwork.replacing(folder / name) as draft:
            draft.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    with clockwork.replacing(folder / "model.safetensors") as draft:
        draft.write_bytes(save(weights, metadata={"format": "pt"}))


def hf_files(vocabulary: Vocabulary) -> dict[str, dict[str, Any]]:
    """The JSON files of the Hugging Face form, by file name."""
    start, end = vocabulary.id_of("<|endoftext|>"), vocabulary.id_of("<|end|>")
    ids = {"bos_token_id": start, "eos_token_id": end, "pad_token_id": start}
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": clockwork.WIDTH,
            "num_hidden_layers": clockwork.LAYERS,
            "num_attention_heads": clockwork.HEADS,
            "num_key_value_heads": clockwork.KV_HEADS,
            "head_dim": clockwork.HEAD_WIDTH,
            "intermediate_size": clockwork.FEED_FORWARD,
            "vocab_size": len(vocabulary.tokens),
            "max_position_embeddings": clockwork.CONTEXT,
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
            "chat_template": clockwork.CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": clockwork.CONTEXT,
        },
    }


def _hf_tokenizer(vocabulary: Vocabulary) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocabulary.id_of(token), "content": token, **flags} for token in clockwork.SPECIAL],
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
