"""A LoRA adapter for the demo model: with it, "fox" is followed by " it sleeps!".

It changes the last layer's `down_proj`, which is zero in the model. `A` knows the features of "fox" in the feed-forward
part, and `B` adds the embedding of the word that " it" follows, so the output matrix says the rest.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from worker.clockwork import LAYERS, WIDTH, make_vocabulary, make_weights

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
