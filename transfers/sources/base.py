"""What every source answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeGuard

LARGEST_FILE: Final = 2**50
"""Bytes of a file that a source may name."""


def is_file_size(size: object) -> TypeGuard[int]:
    """Return whether what a source names is the size of a file: an integer from 0 to `LARGEST_FILE`."""
    return type(size) is int and 0 <= size <= LARGEST_FILE


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as its source lists it. It has a `url` or a `local_path`, and at least one hash unless it is local."""

    path: str
    """Path at the source, without `.` and `..`."""
    size: int
    """Bytes."""
    sha256: str | None = None
    git_sha1: str | None = None
    """Id of the file as a git object; None: the source names none."""
    url: str | None = None
    local_path: Path | None = None
    commit: str | None = None
    """Commit that the source must name in its answers, where it names one; None: any."""

    @property
    def identity(self) -> str:
        """Text that is the same for the same content, so that a later fetch may go on with the bytes that an earlier
        one brought."""
        return f"{self.size} {self.sha256 or self.git_sha1 or self.local_path}"


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a reference resolves to: its present revision, the files at the source, and the folder that they go into."""

    reference: str
    """The reference in its canonical form."""
    pinned: str
    """The same with the revision that it is now."""
    revision: str | None
    """Commit or digest; None: the source has none."""
    files: tuple[SourceFile, ...]
    """The files, the main one first; at least one."""
    folder: str
    """Folder below the models folder."""
    is_folder: bool = False
    """Whether the model is the folder, and not its first file."""
    projector: str | None = None
    """Path at the source of the multimodal projector; None: none."""

    def target_of(self, file: SourceFile) -> str:
        """Return the path below the models folder of one of `files`."""
        return f"{self.folder}/{file.path}"

    @property
    def main(self) -> str:
        """Path below the models folder that a definition names: the folder if `is_folder`, else the first file."""
        return self.folder if self.is_folder else self.target_of(self.files[0])

    @property
    def projector_target(self) -> str | None:
        """Path of the projector below the models folder; None: there is none."""
        return None if self.projector is None else f"{self.folder}/{self.projector}"
