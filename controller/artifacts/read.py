"""Reads the heads of model files. The only file here with side effects."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from controller.artifacts.ct2 import parse_ct2
from controller.artifacts.facts import Artifact, ArtifactError, HfFolder, SizedArtifact, UnreadArtifact
from controller.artifacts.files import list_files
from controller.artifacts.gguf import GgufHead, TooShort, build_gguf, parse_head
from controller.artifacts.hf import HEAD_LENGTH, head_length, shard_names, tensor_bytes, text_config

FIRST_READ: Final = 2**20
LONGEST_GGUF_HEAD: Final = 2**28
_LONGEST_JSON: Final = 2**24

Stamp = tuple[tuple[str, int, int], ...]
"""Name, size and time of change (ns) of each file: the same stamp, the same content."""


def files_below(root: Path, path: str) -> list[Path]:
    """A model's file, its split set, or the files of its folder, in name order.

    Raises:
        ArtifactError: it is not below `root`, or cannot be looked at.
    """
    target = root / path
    if not Path(os.path.normpath(target)).is_relative_to(root):
        raise ArtifactError("is outside the models folder")
    try:
        return sorted(list_files(target))
    except (OSError, ValueError) as error:  # the latter: a zero byte in the path
        raise ArtifactError(f"cannot be read: {_describe_error(error)}") from None


def stamp_of(files: Iterable[Path]) -> Stamp:
    """How to tell that they changed. Raises ArtifactError."""
    try:
        stats = [(str(file), file.stat()) for file in files]
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot be read: {_describe_error(error)}") from None
    for name, status in stats:
        if not stat.S_ISREG(status.st_mode):  # to open a pipe is to wait for its writer
            raise ArtifactError(f"has something that is no file: {name}")
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in stats)


def read_artifact(path: str, files: list[Path]) -> Artifact:
    """What these files of the model at `path` say."""
    size: int | None = None
    try:
        sizes = {name: length for name, length, _ in stamp_of(files)}
        size = sum(sizes.values())
        if path.endswith(".gguf"):
            return build_gguf([(_gguf_head(file), sizes[str(file)]) for file in files])
        folder = min((file.parent for file in files), key=lambda each: len(each.parts), default=None)
        files_by_name = {file.name: file for file in files if file.parent == folder}
        if "model.bin" in files_by_name and not any(name.endswith(".safetensors") for name in files_by_name):
            with files_by_name["model.bin"].open("rb") as stream:
                return replace(parse_ct2(stream, sizes[str(files_by_name["model.bin"])]), size=size)
        if "config.json" in files_by_name and any(name.endswith((".safetensors", ".bin")) for name in files_by_name):
            config = text_config(_read(files_by_name["config.json"], _LONGEST_JSON))
            return HfFolder(size, config, _weights(files_by_name))
    except (ArtifactError, OSError) as error:
        return UnreadArtifact(f"{path} {_describe_error(error)}", size)
    return SizedArtifact(size)


def _gguf_head(file: Path) -> GgufHead:
    length = FIRST_READ
    while True:
        data = _read_start(file, length)
        try:
            return parse_head(data)
        except TooShort:
            if len(data) < length:
                raise ArtifactError("ends within its head: was it copied to the end?") from None
        if length >= LONGEST_GGUF_HEAD:
            raise ArtifactError(f"has a head of more than {LONGEST_GGUF_HEAD // 2**20} MiB: it is damaged")
        length *= 4


def _weights(files: dict[str, Path]) -> dict[str, int]:
    names = [name for name in files if name.endswith(".safetensors")]
    index = files.get("model.safetensors.index.json")
    if index is not None:
        # Beside them there may be the same weights in their makers' own form.
        names = sorted(shard_names(_read(index, _LONGEST_JSON * 4)))
        if missing_names := [name for name in names if name not in files]:
            raise ArtifactError(f"has no file {missing_names[0]}, which its index names")
    if not names:
        return {"": sum(file.stat().st_size for name, file in files.items() if name.endswith(".bin"))}
    sums: dict[str, int] = {}
    for name in names:
        for kind, length in _tensor_bytes(files[name]).items():
            sums[kind] = sums.get(kind, 0) + length
    return sums


def _tensor_bytes(file: Path) -> dict[str, int]:
    with file.open("rb") as stream:
        length = head_length(stream.read(HEAD_LENGTH))
        head = stream.read(length)
    if len(head) < length:
        raise ArtifactError(f"has a file {file.name} that ends within its head")
    return tensor_bytes(head)


def _read(file: Path, max_bytes: int) -> bytes:
    data = _read_start(file, max_bytes + 1)
    if len(data) > max_bytes:
        raise ArtifactError(f"has a file {file.name} of more than {max_bytes // 2**20} MiB")
    return data


def _read_start(file: Path, length: int) -> bytes:
    with file.open("rb") as stream:
        return stream.read(length)


def _describe_error(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
