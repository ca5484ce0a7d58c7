"""Which files of a download the models folder has already."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from controller.schema.downloads import PlacedFile
from controller.schema.errors import RoundhouseError
from transfers.fetch.file_fetch import is_right
from transfers.fetch.file_hash import FileHash, hash_file
from transfers.folder.models_folder import ModelsFolder
from transfers.sources.base import Resolution, SourceFile


@dataclass(slots=True)
class PresentFiles:
    """Which files of a download the models folder lacks, and which it has, by who put them there."""

    missing: list[SourceFile] = field(default_factory=list)
    placed: list[PlacedFile] = field(default_factory=list)
    """Here, and put there by a download."""
    found: list[PlacedFile] = field(default_factory=list)
    """Here, and put there by somebody else."""


def has_kept_state(folder: ModelsFolder, placed: PlacedFile) -> bool:
    """Return whether the file is in the models folder with the size and the modification time that it had when it was
    put there. False if anything else is there. Blocks on the disk. Raises OSError."""
    try:
        status = folder.find_file(placed.path)
    except RoundhouseError:
        return False
    return status is not None and (status.st_size, status.st_mtime_ns) == (placed.size, placed.mtime_ns)


def is_unchanged(folder: ModelsFolder, placed: PlacedFile) -> bool:
    """Return whether the file is in the models folder as a download put it. If its size and time are the same, its
    content is not read; if only the size is, its SHA-256 is compared, which may take minutes. Blocks. Raises OSError.
    """
    if has_kept_state(folder, placed):
        return True
    try:
        status = folder.find_file(placed.path)
    except RoundhouseError:
        return False
    if status is None or status.st_size != placed.size:
        return False
    with folder.open_file(placed.path) as descriptor:
        return hash_file(descriptor, placed.size, lambda: None).sha256 == placed.sha256


def find_present(
    folder: ModelsFolder, resolution: Resolution, placed: Iterable[PlacedFile], check_stop: Callable[[], None]
) -> PresentFiles:
    """Return which files of a download the models folder has, and which are missing. A file of the right size is read
    and compared by its content, which may take minutes. Only the recorded SHA-256 is compared if a download put the
    file there, its time is still the recorded one, and the source names a SHA-256. `placed`: the files that all
    downloads have put into place. `check_stop` is called while contents are read; what it raises is raised. Blocks.

    Raises:
        RoundhouseError: `models_file_conflict`: a file of another size or content is where a file belongs.
        OSError: the folder, or a local source, cannot be read.
    """
    known = {each.path: each for each in placed}
    present = PresentFiles()
    for file in resolution.files:
        target = resolution.target_of(file)
        status = folder.find_file(target)
        if status is None:
            present.missing.append(file)
            continue
        record = known.get(target)
        here = _compare(folder, file, target, status, record, check_stop)
        if here is None:
            raise RoundhouseError(
                "models_file_conflict", f"{target!r:.300} in the models folder is another file than the source's."
            )
        is_ours = record is not None and (record.size, record.sha256) == (here.size, here.sha256)
        (present.placed if is_ours else present.found).append(here)
    return present


def _compare(
    folder: ModelsFolder,
    file: SourceFile,
    target: str,
    status: os.stat_result,
    placed: PlacedFile | None,
    check_stop: Callable[[], None],
) -> PlacedFile | None:
    """Return what is there; None: it is not the source's."""
    if status.st_size != file.size:
        return None
    if placed is not None and placed.mtime_ns == status.st_mtime_ns and file.sha256 is not None:
        return placed if placed.sha256 == file.sha256 else None
    with folder.open_file(target) as descriptor:
        found = hash_file(descriptor, file.size, check_stop)
    is_same = is_right(file, found) if file.local_path is None else _is_copy(file, found, check_stop)
    if not is_same:
        return None
    return PlacedFile(path=target, size=file.size, sha256=found.sha256, mtime_ns=status.st_mtime_ns)


def _is_copy(file: SourceFile, found: FileHash, check_stop: Callable[[], None]) -> bool:
    assert file.local_path is not None
    descriptor = os.open(file.local_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return hash_file(descriptor, file.size, check_stop).sha256 == found.sha256
    finally:
        os.close(descriptor)
