"""Names for models, made from what is downloaded. Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from common.model_reference import HubReference, LocalReference, ModelReference, RegistryReference

_SPLIT: Final = re.compile(r"-\d{5}-of-\d{5}$")
_FORMAT_WORDS: Final = re.compile(r"(?:[-_.](?:gguf|ggml|safetensors|litert-?lm|onnx))+$", re.IGNORECASE)
_SUFFIXES: Final = (".gguf", ".safetensors", ".litertlm", ".onnx")
_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST: Final = 200
FALLBACK: Final = "model"
"""The name of a model if `suggest_model_name` finds no other."""


def suggest_model_name(reference: ModelReference) -> str:
    """Return a name for a model: the name of its repository, file or folder, without words for the file format, and
    with the tag of a registry's model unless that is `latest`. The name has at most 200 characters, which are ASCII
    letters, digits, `.`, `_` and `-`; each run of others becomes one `-`.

    For example `gemma-3-4b-it` for `hf:ggml-org/gemma-3-4b-it-GGUF:Q4_K_M`. The name is `model` (`FALLBACK`) if no
    characters are left. Another model may have the name already.
    """
    match reference:
        case HubReference(repo=repo):
            text = repo.rpartition("/")[2]
        case RegistryReference(name=name, tag=tag):
            text = name.rpartition("/")[2] + ("" if tag == "latest" else f"-{tag}")
        case LocalReference(path=path):
            text = path.rstrip("/").rpartition("/")[2]
        case _:
            text = unquote(reference.url.partition("?")[0].rpartition("/")[2])
    for suffix in _SUFFIXES:
        if text.lower().endswith(suffix):
            text = _SPLIT.sub("", text[: -len(suffix)])
    text = _FORBIDDEN.sub("-", _FORMAT_WORDS.sub("", text)).strip("-._")[:_LONGEST]
    return text or FALLBACK
