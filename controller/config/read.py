"""The only reader of the desired-state folder: bytes by name, or the reason why they are not known."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from controller.schema.status import Problem

SUFFIXES: Final = (".yaml", ".yml", ".json")
LAST: Final = "local"
"""Files of this stem are merged after all others."""
SCHEMA_FILE: Final = "schema.json"
"""Lies in the folder for editors and declares nothing."""
MAX_FILE_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FolderSnapshot:
    """What one read of the folder gave. With problems the folder's content is unknown, which is not empty."""

    folder: str
    """As named by the operator; problems name files below it."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By file name, in the order of merging."""
    problems: tuple[Problem, ...] = ()

    def path_of(self, name: str) -> str:
        """The file as problems name it."""
        return str(Path(self.folder) / name)


def is_read(name: str) -> bool:
    """Whether a file of that name belongs to the desired state. Hidden files are editors' and version control's."""
    return name.endswith(SUFFIXES) and not name.startswith(".") and name != SCHEMA_FILE


def merge_order(name: str) -> tuple[bool, str]:
    """Sort key: by name, `local.*` last."""
    return (name.rpartition(".")[0] == LAST, name)


def read_folder(path: Path) -> FolderSnapshot:
    """Every desired-state file directly in the folder. Raises nothing: what cannot be read is a problem."""
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
    """The content; None for a folder, which is none of ours. A dangling link is an error: it should be a file."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise OSError(f"larger than {MAX_FILE_BYTES // 1024**2} MiB")
    return path.read_bytes()
