"""Which files of a download the models folder has already."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from controller.schema.errors import RoundhouseError
from transfers.fetch.file_fetch import is_right
from transfers.fetch.file_hash import FileHash, hash_file
from transfers.folder.models_folder import ModelsFolder
from transfers.folder.records import PlacedFile
from transfers.sources.base import Resolution, SourceFile


def is_unchanged(folder: ModelsFolder, placed: PlacedFile) -> bool:
    """Return whether a file is there as a download put it: by size and time, else by its content. Blocks. Raises
    OSError."""
    try:
        status = folder.find_file(placed.path)
    except RoundhouseError:
        return False
    if status is None or status.st_size != placed.size:
        return False
    if status.st_mtime_ns == placed.mtime_ns:
        return True
    with folder.open_file(placed.path) as descriptor:
        return hash_file(descriptor, placed.size, lambda: None).sha256 == placed.sha256


def find_missing(
    folder: ModelsFolder, resolution: Resolution, placed: Iterable[PlacedFile], check_stop: Callable[[], None]
) -> list[SourceFile]:
    """Return the files that the models folder lacks. Those that it has are compared with the source. Blocks.

    Raises:
        RoundhouseError: `models_file_conflict`: something else is where a file belongs.
        OSError: the folder cannot be read.
    """
    known = {each.path: each for each in placed}
    missing = []
    for file in resolution.files:
        target = resolution.target_of(file)
        status = folder.find_file(target)
        if status is None:
            missing.append(file)
        elif not _is_same(folder, file, target, status, known.get(target), check_stop):
            raise RoundhouseError(
                "models_file_conflict", f"{target!r:.300} in the models folder is another file than the source's."
            )
    return missing


def _is_same(
    folder: ModelsFolder,
    file: SourceFile,
    target: str,
    status: os.stat_result,
    placed: PlacedFile | None,
    check_stop: Callable[[], None],
) -> bool:
    if status.st_size != file.size:
        return False
    if placed is not None and placed.mtime_ns == status.st_mtime_ns and file.sha256 is not None:
        return placed.sha256 == file.sha256
    with folder.open_file(target) as descriptor:
        found = hash_file(descriptor, file.size, check_stop)
    return is_right(file, found) if file.local_path is None else _is_copy(file, found, check_stop)


def _is_copy(file: SourceFile, found: FileHash, check_stop: Callable[[], None]) -> bool:
    assert file.local_path is not None
    descriptor = os.open(file.local_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return hash_file(descriptor, file.size, check_stop).sha256 == found.sha256
    finally:
        os.close(descriptor)
