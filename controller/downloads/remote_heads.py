"""Reads the heads of model files at their source, before anything of them is downloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final, Protocol

from controller.artifacts.facts import Artifact, ArtifactError, HfFolder, SizedArtifact, UnreadArtifact, show_text
from controller.artifacts.gguf import GgufHead, TooShort, build_gguf, measure_tensors, parse_head
from controller.artifacts.hf import HEAD_LENGTH, head_length, tensor_bytes, text_config
from controller.artifacts.read import FIRST_READ, LONGEST_GGUF_HEAD, LONGEST_JSON, SPLIT_FILE
from controller.schema.downloads import LONGEST_RANGE, Inspection, RangeOrder, RemoteFile
from controller.schema.errors import RoundhouseError

MOST_FILES: Final = 256
"""Files of one model whose heads are read."""
PARALLEL: Final = 4
"""Heads that are read at the same time."""
_CONFIG: Final = "config.json"


class RangeReader(Protocol):
    """Reads parts of files at their source. `controller.downloads.transfers_client.Transfers` does."""

    async def read_range(self, order: RangeOrder) -> bytes:
        """Return the bytes of a file at its source that `order` names; fewer where the file ends. Raises
        RoundhouseError where they cannot be read."""


async def read_remote_artifacts(reader: RangeReader, inspection: Inspection) -> dict[str, Artifact]:
    """Return what the heads of the model's files say, by model path: of the main file or folder, and of the projector.

    Never raises for what cannot be read: UnreadArtifact says why. SizedArtifact is for kinds that are not read.
    """
    artifacts = {inspection.main: await _read_model(reader, inspection, inspection.main)}
    if inspection.projector is not None:
        artifacts[inspection.projector] = await _read_model(reader, inspection, inspection.projector)
    return artifacts


async def _read_model(reader: RangeReader, inspection: Inspection, path: str) -> Artifact:
    files = select_files(path, inspection.files)
    if not files:
        return UnreadArtifact(f"{path}: the source lists no such file")
    size = sum(file.size for file in files)
    heads = _HeadReader(reader, inspection.pinned)
    try:
        if path.lower().endswith(".gguf"):
            return await heads.read_gguf(files)
        names = {PurePosixPath(file.target).name: file for file in files if _is_in(file, path)}
        if _CONFIG in names and any(name.endswith(".safetensors") for name in names):
            return await heads.read_folder(names, size)
    except ArtifactError as error:
        return UnreadArtifact(f"{path} {error}", size)
    except RoundhouseError as error:
        return UnreadArtifact(f"{path}: {error.message.rstrip('.')}", size)
    return SizedArtifact(size)


def select_files(path: str, files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """Return the files of the model at `path`, a path below the models folder: the file, its split set, or all files of
    the folder. They are sorted by their target path."""
    if split := SPLIT_FILE.fullmatch(path):
        stem, end = f"{split['stem']}-", f"-of-{split['count']}.gguf"
        return sorted(
            (each for each in files if each.target.startswith(stem) and each.target.endswith(end)),
            key=lambda each: each.target,
        )
    return sorted(
        (each for each in files if each.target == path or each.target.startswith(f"{path}/")),
        key=lambda each: each.target,
    )


def _is_in(file: RemoteFile, folder: str) -> bool:
    return str(PurePosixPath(file.target).parent) == folder


class _HeadReader:
    def __init__(self, reader: RangeReader, reference: str) -> None:
        self._reader = reader
        self._reference = reference
        self._limit = asyncio.Semaphore(PARALLEL)

    async def read_gguf(self, files: Sequence[RemoteFile]) -> Artifact:
        _check_count(files)
        heads = await asyncio.gather(*(self._read_gguf_head(file) for file in files))
        return build_gguf([(head, file.size) for head, file in zip(heads, files, strict=True)])

    async def read_folder(self, files: dict[str, RemoteFile], size: int) -> Artifact:
        config = text_config(await self._read(files[_CONFIG], LONGEST_JSON))
        shards = [file for name, file in sorted(files.items()) if name.endswith(".safetensors")]
        _check_count(shards)
        weights: dict[str, int] = {}
        for lengths in await asyncio.gather(*(self._read_tensor_bytes(file) for file in shards)):
            for kind, length in lengths.items():
                weights[kind] = weights.get(kind, 0) + length
        return HfFolder(size, config, weights)

    async def _read_gguf_head(self, file: RemoteFile) -> GgufHead:
        data, length = b"", FIRST_READ
        async with self._limit:
            while True:
                data += await self._read_range(file, len(data), length - len(data))
                try:
                    # A vocabulary takes a while, which must not hold up the controller.
                    head = await asyncio.to_thread(parse_head, data)
                except TooShort:
                    if len(data) < length:
                        raise ArtifactError("ends within its head") from None
                else:
                    measure_tensors(head, file.size)
                    return head
                if length >= LONGEST_GGUF_HEAD:
                    raise ArtifactError(f"has a head of more than {LONGEST_GGUF_HEAD // 2**20} MiB: it is damaged")
                length *= 4

    async def _read_tensor_bytes(self, file: RemoteFile) -> dict[str, int]:
        async with self._limit:
            data = await self._read_range(file, 0, FIRST_READ)
            length = head_length(data[:HEAD_LENGTH], file.size)
            if (missing := HEAD_LENGTH + length - len(data)) > 0:
                data += await self._read_range(file, len(data), missing)
        head = data[HEAD_LENGTH : HEAD_LENGTH + length]
        return await asyncio.to_thread(tensor_bytes, head, file.size - HEAD_LENGTH - length)

    async def _read(self, file: RemoteFile, max_bytes: int) -> bytes:
        if file.size > max_bytes:
            raise ArtifactError(f"has a {show_text(file.path)} of more than {max_bytes // 2**20} MiB")
        async with self._limit:
            return await self._read_range(file, 0, max(1, file.size))

    async def _read_range(self, file: RemoteFile, start: int, length: int) -> bytes:
        """Return up to `length` bytes, in as many answers as they need."""
        parts: list[bytes] = []
        while length > 0:
            asked = min(length, LONGEST_RANGE)
            order = RangeOrder(reference=self._reference, path=file.path, start=start, length=asked)
            part = (await self._reader.read_range(order))[:asked]
            parts.append(part)
            start, length = start + len(part), length - len(part)
            if len(part) < asked:
                break
        return b"".join(parts)


def _check_count(files: Sequence[RemoteFile]) -> None:
    if len(files) > MOST_FILES:
        raise ArtifactError(f"has {len(files)} files, more than are read")
