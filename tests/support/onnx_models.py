"""Embedding models in ONNX, made by hand: small enough that numpy says exactly what each must answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]

VOCABULARY = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *["hello", "world", "the", "quick", "brown", "fox", "##es", "jump", "##s", "é", "e", "!"],
)
WIDTH = 4
SPECIAL_TOKENS = 2
"""`[CLS]` and `[SEP]`, around every text."""


def table(rows: int = len(VOCABULARY), seed: int = 7) -> Vectors:
    """What each token is mapped to: (rows, WIDTH)."""
    return np.random.default_rng(seed).standard_normal((rows, WIDTH)).astype(np.float32)


def write_vocabulary(path: Path) -> Path:
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return path


def write_model(
    path: Path,
    *,
    names: tuple[str, ...] = ("input_ids", "attention_mask", "token_type_ids"),
    outputs: tuple[str, ...] = ("last_hidden_state",),
    shape: tuple[Any, Any] = ("batch", "sequence"),
    integers: str = "INT64",
) -> Path:
    """Writes a model whose token vectors are `table()` of the token, plus 10 times its type, plus the mean of all
    `table()` rows that the mask lets through (as attention would: a wrong mask changes every vector).

    `names` are its inputs: ids, then mask, then types, as far as given. Outputs called `sentence_embedding` are
    pooled by the model itself: the first token's vector, doubled.
    """
    from onnx import TensorProto, checker, helper, numpy_helper, save_model

    kind = getattr(TensorProto, integers)
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name in names]
    constants = {
        "table": table(),
        "ten": np.float32(10),
        "two": np.float32(2),
        "last": np.array([2], np.int64),
        "middle": np.array([1], np.int64),
        "zero": np.array(0, np.int64),
    }
    node = helper.make_node
    nodes = [node("Gather", ["table", names[0]], ["rows"])]
    vectors = "rows"
    if len(names) > 1:
        nodes += [
            node("Cast", [names[1]], ["mask"], to=TensorProto.FLOAT),
            node("Unsqueeze", ["mask", "last"], ["mask3"]),
            node("Mul", ["rows", "mask3"], ["seen"]),
            node("ReduceSum", ["seen", "middle"], ["sum"], keepdims=1),
            node("ReduceSum", ["mask3", "middle"], ["number"], keepdims=1),
            node("Div", ["sum", "number"], ["mean"]),
            node("Add", ["rows", "mean"], ["attended"]),
        ]
        vectors = "attended"
    if len(names) > 2:
        nodes += [
            node("Cast", [names[2]], ["types"], to=TensorProto.FLOAT),
            node("Mul", ["types", "ten"], ["tens"]),
            node("Unsqueeze", ["tens", "last"], ["tens3"]),
            node("Add", [vectors, "tens3"], ["typed"]),
        ]
        vectors = "typed"
    values = []
    for name in outputs:
        if name == "sentence_embedding":
            nodes += [node("Gather", [vectors, "zero"], ["first"], axis=1), node("Mul", ["first", "two"], [name])]
            values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, (shape[0], WIDTH)))
        else:
            nodes.append(node("Identity", [vectors], [name]))
            values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, (*shape, WIDTH)))
    kept = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "words", inputs, values, initializer=kept)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    checker.check_model(model)
    save_model(model, str(path))
    return path


def token_vectors(words: str) -> Vectors:
    """What `write_model`'s three-input model makes of tokens, named with spaces between: (tokens, WIDTH)."""
    rows = table()[[VOCABULARY.index(token) for token in words.split()]]
    vectors: Vectors = rows + rows.mean(0)
    return vectors


def unit(vector: Vectors) -> Vectors:
    scaled: Vectors = vector / np.linalg.norm(vector)
    return scaled
