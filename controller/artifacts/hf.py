"""Reads what a folder of the Hugging Face hub says of a model, from bytes. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from controller.artifacts.facts import ArtifactError, show_text

HEAD_LENGTH: Final = 8
"""Bytes before a safetensors header, which say how long it is."""
_LONGEST_HEAD: Final = 100_000_000
"""What safetensors itself takes at most."""
LONGEST_READ_HEAD: Final = 2**25
"""What is read at most: 200,000 tensors. Python's objects take thirty times as much as the worst JSON."""
_MOST_VALUES: Final = 2_000_000
"""Values of a JSON text at most, counted by what stands between them."""
_TEXT_MODELS: Final = ("text_config", "llm_config", "language_config")


def head_length(data: bytes, size: int) -> int:
    """Bytes of the header of a safetensors file of so many bytes, from its first 8. Raises ArtifactError."""
    length = int.from_bytes(data, "little")
    if len(data) < HEAD_LENGTH or not 0 < length <= _LONGEST_HEAD:
        raise ArtifactError("is not a safetensors file")
    if HEAD_LENGTH + length > size:
        raise ArtifactError("ends within its head: was it copied to the end?")
    if length > LONGEST_READ_HEAD:
        raise ArtifactError(f"has a head of more than {LONGEST_READ_HEAD // 2**20} MiB")
    return length


def tensor_bytes(head: bytes, data_size: int) -> dict[str, int]:
    """Bytes of a safetensors file's tensors, by the type of their elements in lower case. `data_size`: bytes that
    follow the head. Raises ArtifactError."""
    sums: dict[str, int] = {}
    for name, tensor in json_object(head).items():
        if name == "__metadata__":
            continue
        match tensor:
            case {"dtype": str(kind), "data_offsets": [int(start), int(end)]}:
                pass
            case _:
                raise ArtifactError(f"has no type and offsets of the tensor {show_text(name)}: it is damaged")
        if not 0 <= start <= end:
            raise ArtifactError(f"has wrong offsets of the tensor {show_text(name)}: it is damaged")
        sums[kind.lower()] = sums.get(kind.lower(), 0) + end - start
        if end > data_size:
            raise ArtifactError("ends before its tensors do: was it copied to the end?")
    if sum(sums.values()) > data_size:
        raise ArtifactError("has tensors that overlap: it is damaged")
    return sums


def text_config(data: bytes) -> Mapping[str, object]:
    """The part of a `config.json` that describes the text model, with what stands beside it."""
    config = json_object(data)
    for name in _TEXT_MODELS:
        inner = config.get(name)
        if isinstance(inner, dict):
            return {**config, **inner}
    return config


def find_custom_code(data: bytes) -> str | None:
    """The first class in an `auto_map`, at any depth, of a folder's `config.json` or the like: code that comes with the
    model, which transformers imports where it is trusted, and vLLM did where it was not (CVE-2025-66448,
    CVE-2026-22807). None: there is none. Raises ArtifactError."""
    values: list[object] = [json_object(data)]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            if auto_map := value.get("auto_map"):
                return show_text(_first_text(auto_map))
            values += value.values()
        elif isinstance(value, list):
            values += value
    return None


def _first_text(value: object) -> str:
    while isinstance(value, dict | list) and value:
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return str(value)


def shard_names(index: bytes) -> frozenset[str]:
    """The files that a `model.safetensors.index.json` names."""
    files = json_object(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ArtifactError("has no `weight_map`")
    return frozenset(files.values())


def json_object(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises ArtifactError: it is none, or one of so many values that it would fill the memory."""
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > _MOST_VALUES:
        raise ArtifactError(f"holds more than {_MOST_VALUES:,} values")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ArtifactError("is not JSON") from None
    if not isinstance(value, dict):
        raise ArtifactError("is not a JSON object")
    return value
