"""Reads what a folder of the Hugging Face hub says of a model, from bytes. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from controller.artifacts.facts import ArtifactError

HEAD_LENGTH: Final = 8
"""Bytes before a safetensors header, which say how long it is."""
LONGEST_HEAD: Final = 100_000_000
"""What safetensors itself takes at most."""
_TEXT_MODELS: Final = ("text_config", "llm_config", "language_config")


def head_length(data: bytes) -> int:
    """Bytes of a safetensors header, from the file's first 8."""
    length = int.from_bytes(data, "little")
    if len(data) < HEAD_LENGTH or not 0 < length <= LONGEST_HEAD:
        raise ArtifactError("is not a safetensors file")
    return length


def tensor_bytes(head: bytes) -> dict[str, int]:
    """Bytes of a safetensors file's tensors, by the type of their elements in lower case."""
    sums: dict[str, int] = {}
    for name, tensor in json_object(head).items():
        if name == "__metadata__":
            continue
        try:
            kind, (start, end) = tensor["dtype"].lower(), tensor["data_offsets"]
            length = int(end) - int(start)
        except (TypeError, KeyError, ValueError, AttributeError):
            raise ArtifactError(f"has no type and offsets of the tensor {name:.100}: it is damaged") from None
        if length < 0:
            raise ArtifactError(f"has wrong offsets of the tensor {name:.100}: it is damaged")
        sums[kind] = sums.get(kind, 0) + length
    return sums


def text_config(data: bytes) -> Mapping[str, object]:
    """The part of a `config.json` that describes the text model, with what stands beside it."""
    config = json_object(data)
    for name in _TEXT_MODELS:
        inner = config.get(name)
        if isinstance(inner, dict):
            return {**config, **inner}
    return config


def shard_names(index: bytes) -> frozenset[str]:
    """The files that a `model.safetensors.index.json` names."""
    files = json_object(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ArtifactError("has no `weight_map`")
    return frozenset(files.values())


def json_object(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises ArtifactError."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ArtifactError("is not JSON") from None
    if not isinstance(value, dict):
        raise ArtifactError("is not a JSON object")
    return value
