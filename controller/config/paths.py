"""Declared model paths: below the models folder, and written one way only. Pure: looks at the string, not at a disk."""

from __future__ import annotations

import posixpath
from pathlib import PurePath


class PathRefusedError(ValueError):
    """The declared path cannot be used; the message says why."""


def relative_to_models(declared_path: str, models_root: PurePath) -> str:
    """The path relative to the models folder, without `.` and doubled slashes. `models_root` is absolute."""
    if not declared_path.isprintable():
        raise PathRefusedError("a path holds printable characters only")
    if declared_path.startswith("~"):
        raise PathRefusedError("`~` is not expanded; write the path relative to the models folder")
    if ".." in declared_path.split("/"):
        raise PathRefusedError("a path may not hold `..`")
    path = posixpath.normpath(declared_path) if declared_path else "."
    if declared_path.startswith("/"):
        root = posixpath.normpath(str(models_root))
        # normpath keeps two leading slashes, which POSIX lets a system read in its own way.
        path = posixpath.relpath(path.replace("//", "/", 1), root)
        if path.split("/")[0] == "..":
            raise PathRefusedError(f"`{declared_path}` lies outside the models folder {root}")
    if path == ".":
        raise PathRefusedError("names no file or folder below the models folder")
    return path
