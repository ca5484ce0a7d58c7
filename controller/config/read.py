"""Reader of the desired-state folder: file contents by name, or the reason why they are unknown."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from controller.schema.status import Problem

SUFFIXES: Final = (".yaml", ".yml", ".json")
"""File name suffixes of desired-state files."""
LAST: Final = "local"
"""Files with this stem are merged after all others."""
SCHEMA_FILE: Final = "schema.json"
"""Name of the JSON Schema in the folder. It is for editors and declares nothing."""
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a desired-state file. A larger one is a problem."""


@dataclass(frozen=True, slots=True)
class FolderSnapshot:
    """Content of the folder's files at one reading. With problems the content of the folder is unknown, which is not
    the same as empty."""

    folder: str
    """Path of the folder as the operator gave it. Problems name files below it."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """File name to content, in merge order."""
    problems: tuple[Problem, ...] = ()
    """Files that could not be read, or the folder; empty if all were read."""

    def path_of(self, name: str) -> str:
        """Return the path of a file of the folder, by its name, as problems show it."""
        return str(Path(self.folder) / name)


def is_read(name: str) -> bool:
    """Return whether a file of this name belongs to the desired state: it ends with `.yaml`, `.yml` or `.json`, is not
    hidden (does not begin with a dot), and is not `schema.json`."""
    return name.endswith(SUFFIXES) and not name.startswith(".") and name != SCHEMA_FILE


def merge_order(name: str) -> tuple[bool, str]:
    """Return the sort key that puts names of files in merge order: by name, but `local.yaml`, `local.yml` and
    `local.json` after all others."""
    return (name.rpartition(".")[0] == LAST, name)


def read_folder(path: Path) -> FolderSnapshot:
    """Read every desired-state file directly in the folder, of at most 4 MiB (MAX_FILE_BYTES) each. Subfolders are left
    out. Blocks. Never raises: what cannot be read is a problem of the snapshot."""
    folder = str(path)
    try:
        names = sorted((entry.name for entry in path.iterdir() if is_read(entry.name)), key=merge_order)
    except OSError as error:
        message = f"the desired-state folder cannot be read: {error.strerror or error}"
        return FolderSnapshot(folder, problems=(Problem(file=folder, message=message),))
    files: dict[str, bytes] = {}
    problems: list[Problem] = []
    for name in names:
        try:
            content = _read_file(path / name)
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            problems.append(Problem(file=str(path / name), message=message))
            continue
        if content is not None:
            files[name] = content
    return FolderSnapshot(folder, files, tuple(problems))


def _read_file(path: Path) -> bytes | None:
    """Return the content, or None for a folder. Raises OSError, also for a dangling symbolic link, which should be a
    file."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise OSError(f"larger than {MAX_FILE_BYTES // 1024**2} MiB")
    return path.read_bytes()
