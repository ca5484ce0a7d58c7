"""The folders that models lie in, as a value: nothing here looks into them."""

from __future__ import annotations

import os
import posixpath
import shlex
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

VARIABLE: Final = "ROUNDHOUSE_MODELS"
_SEPARATOR: Final = ","
_HUB_MODEL: Final = "models--"
"""How a model's folder in the Hugging Face cache begins: its snapshots are links to other files in that folder."""


@dataclass(frozen=True, slots=True)
class ModelRoots:
    """The models folders, at least one. No model path leads out of them."""

    folders: tuple[Path, ...]
    """In the order in which a relative model path is looked for."""
    home: Path | None = None
    """What `~` stands for in a model path; None: for nothing."""

    @property
    def first(self) -> Path:
        """The first models folder, which a relative model path is looked for in before the others."""
        return self.folders[0]

    def absolute(self) -> ModelRoots:
        """The same folders as absolute paths, each once, `~` expanded, with the user's home for model paths."""
        folders: dict[str, Path] = {}
        for each in self.folders:
            folder = Path(os.path.expanduser(each)).absolute()  # noqa: PTH111 - Path's own raises where there is no home
            folders.setdefault(os.path.normpath(folder), folder)
        home = os.path.expanduser("~")  # noqa: PTH111
        return ModelRoots(tuple(folders.values()), Path(home) if home.startswith("/") else None)

    def resolve(self) -> ModelRoots:
        """The same folders without symbolic links on the way to them."""
        return ModelRoots(tuple(each.resolve() for each in self.folders), self.home)

    def __str__(self) -> str:
        """As the setting names them."""
        return _SEPARATOR.join(map(str, self.folders))

    def describe(self) -> str:
        """Return the folders as an error names them: `the models folders /a, /b`."""
        return f"the models folder{'s' if len(self.folders) > 1 else ''} {', '.join(map(str, self.folders))}"

    def advise_adding(self, path: PurePath) -> str | None:
        """Return the setting that adds a models folder for `path`, an absolute path.

        None: no folder above `path` can be added (the root folder, a name with a comma or with control characters).
        """
        folder = str(_folder_to_add(path))
        if folder == "/" or _SEPARATOR in folder or not folder.isprintable():
            return None
        value = _SEPARATOR.join((*map(str, self.folders), folder))
        return f"`{VARIABLE}={shlex.quote(value)}` (or `--models`) adds the folder {folder}"


def split_folders(text: str) -> ModelRoots:
    """The folders of a comma-separated list, as they are written. Raises ValueError where it names none."""
    folders = tuple(Path(each.strip()) for each in text.split(_SEPARATOR) if each.strip())
    if not folders:
        raise ValueError("names no folder")
    return ModelRoots(folders)


def path_below(path: str, folder: PurePath) -> str | None:
    """An absolute path relative to the folder, `.` for the folder itself; None: it lies outside. `..` is taken away as
    it is written, whatever is a symbolic link."""
    inner = posixpath.relpath(plain_path(path), plain_path(str(folder)))
    return None if inner.split("/")[0] == ".." else inner


def plain_path(path: str) -> str:
    """The path without `.`, `..` and doubled slashes."""
    # normpath keeps two leading slashes, which POSIX lets a system read in its own way.
    return posixpath.normpath(path).replace("//", "/", 1)


def _folder_to_add(path: PurePath) -> PurePath:
    hub_model = next((each for each in reversed((path, *path.parents)) if each.name.startswith(_HUB_MODEL)), path)
    return hub_model.parent
