"""Chooses the user of an engine's container: the one with the fewest rights that can read the model."""

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
"""User id and group id of engines whose models everybody may read. They are the same in Roundhouse's images."""
_LOOKED_AT: Final = 10_000
"""Files of one model whose owners are checked at most."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Owner, group and mode (`st_mode`) of a file or folder that an engine must read: see `entries_to_read`."""

    uid: int
    gid: int
    mode: int

    def readable_by(self, uid: int, gid: int) -> bool:
        """Return whether a process of this user and group without capabilities can read it, and enter it if it is a
        folder. Root (0) gets no exception; further groups and access lists do not count."""
        needed_bits = 0o5 if stat.S_ISDIR(self.mode) else 0o4
        shift = 6 if uid == self.uid else 3 if gid == self.gid else 0
        return (self.mode >> shift) & needed_bits == needed_bits


@dataclass(frozen=True, slots=True)
class UserIdentity:
    """User, group and capabilities of an engine's container, as `choose_identity` returns them."""

    uid: int
    gid: int
    cap_add: tuple[str, ...] = ()
    """Capabilities that the container keeps, by Docker's names; all others are dropped."""

    @property
    def user(self) -> str:
        """`uid:gid`, as Docker takes it."""
        return f"{self.uid}:{self.gid}"


def choose_identity(entries: Sequence[FileEntry]) -> UserIdentity:
    """Return the first user that can read all entries: an owner among the entries that is not root, in their order,
    then the unprivileged user, then root. Without entries, the unprivileged user.

    If none can, return root with DAC_OVERRIDE, since root without capabilities cannot read others' files.
    """
    owners = dict.fromkeys((entry.uid, entry.gid) for entry in entries if entry.uid != 0)
    for uid, gid in (*owners, (UNPRIVILEGED, UNPRIVILEGED), (0, 0)):
        if all(entry.readable_by(uid, gid) for entry in entries):
            return UserIdentity(uid, gid)
    return UserIdentity(0, 0, ("DAC_OVERRIDE",))


def entries_to_read(roots: ModelRoots, paths: Iterable[str]) -> list[FileEntry]:
    """Return all that must be readable to load these model paths: the files, all below them, and the parent folders.

    The files come before their parent folders, so that `choose_identity` prefers their owner. Files that do not exist
    or cannot be looked at are left out; the preflight reports them. Of a model's folder, at most 10,000 files are
    looked at. Blocks.
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
        # To follow a link, a process must be able to enter the folders on both sides of it.
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
