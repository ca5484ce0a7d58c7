"""all-MiniLM-L6-v2 as an ONNX file, for the backend `onnx`: written by hand from the weights, operator by operator."""

from __future__ import annotations

import json
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
    made = helper.make_graph(graph.nodes, "bert", inputs, [output], graph.constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)])
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
