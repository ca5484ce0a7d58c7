"""Which files a model has: one, a split set, or a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_SPLIT: Final = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")
"""One file of a set, as llama.cpp's gguf-split names them."""
_OUTSIDE: Final = ("_data", ".data")
"""Weights of an ONNX model that are not in its file, as exporters name them."""


def list_files(target: Path) -> list[Path]:
    """A file with what it keeps outside itself, the set of a split file, or all files of a folder."""
    if target.is_dir():
        return [file for file in target.rglob("*") if file.is_file()]
    if split := _SPLIT.fullmatch(target.name):
        set_pattern = re.compile(re.escape(split["stem"]) + r"-\d{5}-of-" + split["count"] + r"\.gguf")
        return [file for file in target.parent.iterdir() if set_pattern.fullmatch(file.name)] or [target]
    outside_files = [target.with_name(target.name + suffix) for suffix in _OUTSIDE] if target.suffix == ".onnx" else []
    return [target, *(file for file in outside_files if file.is_file())]
