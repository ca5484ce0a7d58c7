"""Parsers for the files of a Hugging Face model folder: `config.json`, safetensors headers and indexes. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from controller.artifacts.facts import ArtifactError, show_text

HEAD_LENGTH: Final = 8
"""Bytes at the beginning of a safetensors file that hold the length of its header."""
_LONGEST_HEAD: Final = 100_000_000
"""Maximum header length in bytes that the safetensors library accepts."""
LONGEST_READ_HEAD: Final = 2**25
"""Maximum header length in bytes that is read, enough for 200,000 tensors. Python objects of the worst JSON take thirty
times as much memory."""
_MOST_VALUES: Final = 2_000_000
"""Maximum number of values of a JSON text, counted by its commas and brackets."""
_TEXT_MODELS: Final = ("text_config", "llm_config", "language_config")


def head_length(data: bytes, size: int) -> int:
    """Return the length in bytes of the JSON header that follows the first 8 bytes (`HEAD_LENGTH`) of a safetensors
    file.

    `data`: these first bytes, which hold that length and are not part of it. `size`: bytes of the whole file. Raises
    ArtifactError where the file is damaged, cut off, or no safetensors file, and where its header is longer than 32 MiB
    (`LONGEST_READ_HEAD`).
    """
    length = int.from_bytes(data, "little")
    if len(data) < HEAD_LENGTH or not 0 < length <= _LONGEST_HEAD:
        raise ArtifactError("is not a safetensors file")
    if HEAD_LENGTH + length > size:
        raise ArtifactError("ends within its head: was it copied to the end?")
    if length > LONGEST_READ_HEAD:
        raise ArtifactError(f"has a head of more than {LONGEST_READ_HEAD // 2**20} MiB")
    return length


def tensor_bytes(head: bytes, data_size: int) -> dict[str, int]:
    """Sum the bytes of a safetensors file's tensors by element type, in lower case (`bf16`). `head` is the JSON header,
    `data_size` the number of bytes after it.

    Raises ArtifactError where the header is damaged or the file is cut off.
    """
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
    """Return the fields of a `config.json`. If it has a part that describes the text model (`text_config`, `llm_config`
    or `language_config`), the fields of that part override the top-level ones. Raises ArtifactError where `data` is
    not a JSON object, or has more than 2,000,000 values."""
    config = json_object(data)
    for name in _TEXT_MODELS:
        inner = config.get(name)
        if isinstance(inner, dict):
            return {**config, **inner}
    return config


def find_custom_code(data: bytes) -> str | None:
    """Return the first class that an `auto_map` names, at any depth of a model's JSON file, shortened and escaped for
    messages. None means that no `auto_map` names any.

    Such code comes with the model. transformers imports it where remote code is trusted, and vLLM did so where it was
    not trusted (CVE-2025-66448, CVE-2026-22807). Raises ArtifactError where `data` is not a JSON object, or has more
    than 2,000,000 values.
    """
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
    """Return the file names in a `model.safetensors.index.json`, without checking that they exist. Raises ArtifactError
    where it is not a JSON object, has no `weight_map` of texts, or has more than 2,000,000 values."""
    files = json_object(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ArtifactError("has no `weight_map`")
    return frozenset(files.values())


def json_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ArtifactError where `data` is not one, or has so many values (more than 2,000,000)
    that it would fill the memory."""
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > _MOST_VALUES:
        raise ArtifactError(f"holds more than {_MOST_VALUES:,} values")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ArtifactError("is not JSON") from None
    if not isinstance(value, dict):
        raise ArtifactError("is not a JSON object")
    return value
