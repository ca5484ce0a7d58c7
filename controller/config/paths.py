"""Validation of declared model paths: below a models folder, and in one canonical form. Pure: looks at the text, not at
the disk."""

from __future__ import annotations

import posixpath
from pathlib import PurePath

from controller.artifacts.model_roots import ModelRoots, path_below, plain_path


class PathRefusedError(ValueError):
    """The declared path cannot be used. The message says why, without the name of the field."""


def normalize_model_path(declared_path: str, roots: ModelRoots) -> str:
    """Return the canonical form of a declared path: `~` expanded, without `.` and doubled slashes. `roots` are
    absolute. The disk is not read: the file need not exist.

    A path is relative where it is declared so, or lies below the first models folder; else it is absolute. Therefore
    adding a models folder changes no existing path, and no spec hash.

    Raises:
        PathRefusedError: the path holds `..` or unprintable characters, leads out of the models folders, names one of
            these itself, or begins with a `~` that cannot be expanded.
    """
    if not declared_path.isprintable():
        raise PathRefusedError("a path holds printable characters only")
    if ".." in declared_path.split("/"):
        raise PathRefusedError("a path may not hold `..`")
    path = _expand_home(declared_path, roots)
    if not path.startswith("/"):
        path = posixpath.normpath(path) if path else "."
        if path == ".":
            raise PathRefusedError("names no file or folder below the models folder")
        return path
    for folder in roots.folders:
        inner = path_below(path, folder)
        if inner is not None and inner != ".":
            return inner if folder == roots.first else plain_path(path)
    if any(path_below(path, folder) == "." for folder in roots.folders):
        raise PathRefusedError("names no file or folder below the models folder")
    raise PathRefusedError(f"`{declared_path}` lies outside {roots.describe()}{_advise(path, roots)}")


def _expand_home(declared_path: str, roots: ModelRoots) -> str:
    if not declared_path.startswith("~"):
        return declared_path
    user, _, rest = declared_path[1:].partition("/")
    if user:
        raise PathRefusedError("`~` is your own home folder alone; write the absolute path of another's")
    if roots.home is None:
        raise PathRefusedError("`~` stands for nothing, because HOME is not set; write the absolute path")
    return f"{roots.home}/{rest}"


def _advise(path: str, roots: ModelRoots) -> str:
    # A URL is given no advice: it may hold a password, which is masked only in the form in which it was written.
    advice = None if "://" in path else roots.advise_adding(PurePath(plain_path(path)))
    return f": {advice}" if advice is not None else ""
