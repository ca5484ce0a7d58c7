"""Which user an engine's container runs as: the one with the least rights that can read the model."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from controller.artifacts.facts import ArtifactError
from controller.artifacts.locate import locate_path
from controller.artifacts.model_roots import ModelRoots

UNPRIVILEGED: Final = 10001
"""User and group of engines whose models everybody may read; the same as in our images."""
_LOOKED_AT: Final = 10_000
"""Files of one model whose owners are looked at, at most."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file or folder that an engine must read."""

    uid: int
    gid: int
    mode: int

    def readable_by(self, uid: int, gid: int) -> bool:
        """Whether a process without capabilities can read it, and enter it where it is a folder."""
        needed_bits = 0o5 if stat.S_ISDIR(self.mode) else 0o4
        shift = 6 if uid == self.uid else 3 if gid == self.gid else 0
        return (self.mode >> shift) & needed_bits == needed_bits


@dataclass(frozen=True, slots=True)
class UserIdentity:
    """A container's user and the capabilities it has beyond none."""

    uid: int
    gid: int
    cap_add: tuple[str, ...] = ()

    @property
    def user(self) -> str:
        """As Docker takes it."""
        return f"{self.uid}:{self.gid}"


def choose_identity(entries: Sequence[FileEntry]) -> UserIdentity:
    """The models' owner where that is not root, else the unprivileged user, else root: the first that can read all.

    Only when no single user can, root gets DAC_OVERRIDE: root without capabilities cannot read others' files.
    """
    owners = dict.fromkeys((entry.uid, entry.gid) for entry in entries if entry.uid != 0)
    for uid, gid in (*owners, (UNPRIVILEGED, UNPRIVILEGED), (0, 0)):
        if all(entry.readable_by(uid, gid) for entry in entries):
            return UserIdentity(uid, gid)
    return UserIdentity(0, 0, ("DAC_OVERRIDE",))


def entries_to_read(roots: ModelRoots, paths: Iterable[str]) -> list[FileEntry]:
    """What must be readable for these declared paths: themselves, all below them, and the folders down to them.

    In the order: the models first, then the folders around them, so that a model's own owner is preferred. What does
    not exist is left out: that is preflight's to say.
    """
    root_folders = roots.resolve().folders
    model_entries: dict[Path, FileEntry] = {}
    folder_entries: dict[Path, FileEntry] = {}
    for path in paths:
        try:
            declared = locate_path(roots, path).path
            target = declared.resolve()
        except (ArtifactError, OSError, RuntimeError):
            continue
        files = [target, *islice(_below(target), _LOOKED_AT)]
        for each in files:
            _add_entry(each, model_entries)
        # A link is followed only by who can enter the folders on both sides of it.
        ends = [Path(os.path.realpath(each)) for each in files if each.is_symlink()]
        folders = (folder for end in (target, declared, *ends) for folder in end.parents)
        for folder in dict.fromkeys(folders):
            if any(folder.is_relative_to(root) for root in root_folders):
                _add_entry(folder, folder_entries)
    if not folder_entries:
        _add_entry(root_folders[0], folder_entries)
    return [*model_entries.values(), *folder_entries.values()]


def _below(target: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(target):
        for name in (*folders, *files):
            yield Path(folder, name)


def _add_entry(path: Path, entries: dict[Path, FileEntry]) -> None:
    try:
        status = path.stat()
    except OSError:
        return
    entries[path] = FileEntry(status.st_uid, status.st_gid, status.st_mode)
