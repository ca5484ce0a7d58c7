"""Clockwork models in folders: as Hugging Face and ExLlamaV3 read them, and converted for CTranslate2."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.scripted_model_file import Token, speaker_vocabulary, token_name
from worker import clockwork
from worker.clockwork import CHAT_TEMPLATE, Vocabulary, hf_files, make_vocabulary, make_weights, write_hf

if TYPE_CHECKING:
    from worker.clockwork import Tensors


def write_tokenizer(
    folder: Path,
    vocabulary: Vocabulary,
    template: str | None = CHAT_TEMPLATE,
    says: Collection[Token] = (),
    hidden: Collection[Token] = (),
) -> None:
    """The JSON files of the Hugging Face form. Texts of `says` are added tokens; those of `hidden` are special."""
    files: dict[str, Any] = hf_files(vocabulary)
    config = files["tokenizer_config.json"]
    config["chat_template"] = template
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    files["tokenizer.json"]["added_tokens"] += [
        {"id": vocabulary.id_of(token_name(each)), "content": each, "special": each in hidden, **flags}
        for each in says
        if isinstance(each, str)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


def make_hf(
    folder: Path,
    says: Sequence[Token] = (),
    template: str | None = CHAT_TEMPLATE,
    *,
    hidden: Collection[Token] = (),
    endless: bool = False,
) -> None:
    """A folder of safetensors, whose model says these tokens, once or `endless`ly; without any, the demo model's
    sentence."""
    vocabulary = _vocabulary(says, endless)
    write_hf(folder, vocabulary, make_weights(vocabulary))
    write_tokenizer(folder, vocabulary, template, says, hidden)


def widen_context(folder: Path, tokens: int) -> None:
    """Let a folder's model, as `make_hf` writes it, take requests of so many tokens."""
    for name, field in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), field: tokens}), encoding="utf-8")


def make_ct2(
    folder: Path,
    says: Sequence[Token] = (),
    template: str | None = CHAT_TEMPLATE,
    *,
    hidden: Collection[Token] = (),
    endless: bool = False,
) -> None:
    """The same, converted: what `ct2-transformers-converter` makes of it, without torch and transformers."""
    vocabulary = _vocabulary(says, endless)
    write_tokenizer(folder, vocabulary, template, says, hidden)
    spec = _ct2_spec(make_weights(vocabulary))
    spec.register_vocabulary([*vocabulary.tokens])
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<|endoftext|>", "<|end|>", "<|endoftext|>"
    spec.config.layer_norm_epsilon = 1e-5
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


def _vocabulary(says: Sequence[Token], endless: bool) -> Vocabulary:
    vocabulary = speaker_vocabulary(says)[0] if says else make_vocabulary()
    return replace(vocabulary, chain=(*vocabulary.chain[:-1], vocabulary.chain[1])) if endless else vocabulary


def _ct2_spec(weights: Tensors) -> Any:
    import numpy as np
    from ctranslate2.specs import TransformerDecoderModelSpec, common_spec

    spec: Any = TransformerDecoderModelSpec.from_config(
        clockwork.LAYERS,
        clockwork.HEADS,
        activation=common_spec.Activation.SWISH,
        pre_norm=True,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        num_heads_kv=clockwork.KV_HEADS,
    )
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = weights["model.embed_tokens.weight"]
    decoder.layer_norm.gamma = weights["model.norm.weight"]
    decoder.projection.weight = weights["lm_head.weight"]
    for number, layer in enumerate(decoder.layer):
        part = {
            name.removeprefix(f"model.layers.{number}.").removesuffix(".weight"): weight
            for name, weight in weights.items()
        }
        layer.self_attention.layer_norm.gamma = part["input_layernorm"]
        layer.self_attention.linear[0].weight = np.concatenate([part[f"self_attn.{each}_proj"] for each in "qkv"])
        layer.self_attention.linear[1].weight = part["self_attn.o_proj"]
        layer.ffn.layer_norm.gamma = part["post_attention_layernorm"]
        layer.ffn.linear_0.weight = part["mlp.gate_proj"]
        layer.ffn.linear_0_noact.weight = part["mlp.up_proj"]
        layer.ffn.linear_1.weight = part["mlp.down_proj"]
    return spec
