"""The models folders as a value. Nothing here reads the disk, except to resolve symbolic links."""

from __future__ import annotations

import os
import posixpath
import shlex
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

VARIABLE: Final = "ROUNDHOUSE_MODELS"
"""Environment variable of the models folders."""
_SEPARATOR: Final = ","
_HUB_MODEL: Final = "models--"
"""Prefix of a model's folder in the Hugging Face cache. Its snapshots are symbolic links to other files in that
folder."""


@dataclass(frozen=True, slots=True)
class ModelRoots:
    """The models folders, at least one, as the setting ROUNDHOUSE_MODELS lists them. No model path may lead out of
    them. They need not exist."""

    folders: tuple[Path, ...]
    """Folders in the order in which a relative model path is searched."""
    home: Path | None = None
    """The folder that `~` in a model path means. None means that `~` is refused."""

    @property
    def first(self) -> Path:
        """The first models folder, where a relative model path is searched first."""
        return self.folders[0]

    def absolute(self) -> ModelRoots:
        """Return the folders as absolute paths without duplicates, `~` expanded, and with the user's home folder in
        `home` (None where it is not known). Symbolic links stay."""
        folders: dict[str, Path] = {}
        for each in self.folders:
            folder = Path(os.path.expanduser(each)).absolute()  # noqa: PTH111 - Path's own raises where there is no home
            folders.setdefault(os.path.normpath(folder), folder)
        home = os.path.expanduser("~")  # noqa: PTH111
        return ModelRoots(tuple(folders.values()), Path(home) if home.startswith("/") else None)

    def resolve(self) -> ModelRoots:
        """Return the folders as absolute paths with symbolic links resolved, which reads the disk. A missing folder is
        no error, nor is a loop of symbolic links: a link in it stays."""
        return ModelRoots(tuple(map(resolve_folder, self.folders)), self.home)

    def __str__(self) -> str:
        """Return the folders as the setting writes them, comma-separated."""
        return _SEPARATOR.join(map(str, self.folders))

    def describe(self) -> str:
        """Return the folders in words for an error message: `the models folder` or `the models folders`, and the paths,
        comma-separated."""
        return f"the models folder{'s' if len(self.folders) > 1 else ''} {', '.join(map(str, self.folders))}"

    def advise_adding(self, path: PurePath) -> str | None:
        """Return a phrase for an error message that says with which setting the folder of `path`, an absolute path,
        becomes a models folder. For a path in the Hugging Face cache, that is the folder above the one named
        `models--...`. None: no folder above `path` can be added (the root folder, a name with a comma or with control
        characters)."""
        folder = str(_folder_to_add(path))
        if folder == "/" or _SEPARATOR in folder or not folder.isprintable():
            return None
        value = _SEPARATOR.join((*map(str, self.folders), folder))
        return f"`{VARIABLE}={shlex.quote(value)}` (or `--models`) adds the folder {folder}"


def resolve_folder(folder: Path) -> Path:
    """Return a folder as `ModelRoots.resolve` does. Reads the disk."""
    # Path.resolve raises RuntimeError for a loop in Python 3.11 and 3.12.
    return Path(os.path.realpath(folder))


def split_folders(text: str) -> ModelRoots:
    """Parse a comma-separated list of folders, as they are written: `~` and relative paths stay. Raises ValueError
    where the list names none."""
    folders = tuple(Path(each.strip()) for each in text.split(_SEPARATOR) if each.strip())
    if not folders:
        raise ValueError("names no folder")
    return ModelRoots(folders)


def path_below(path: str, folder: PurePath) -> str | None:
    """Return `path`, an absolute path, relative to `folder`; `.` for the folder itself. None means outside of the
    folder. `..` is removed in the text alone; symbolic links are not resolved."""
    inner = posixpath.relpath(plain_path(path), plain_path(str(folder)))
    return None if inner.split("/")[0] == ".." else inner


def plain_path(path: str) -> str:
    """Return the path without `.`, `..` and doubled slashes, by its text alone: symbolic links are not resolved."""
    # normpath keeps two leading slashes, whose meaning POSIX leaves to the system.
    return posixpath.normpath(path).replace("//", "/", 1)


def _folder_to_add(path: PurePath) -> PurePath:
    hub_model = next((each for each in reversed((path, *path.parents)) if each.name.startswith(_HUB_MODEL)), path)
    return hub_model.parent
