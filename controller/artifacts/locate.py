"""Resolves the model paths of a definition to files below the models folders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from controller.artifacts.facts import ArtifactError
from controller.artifacts.model_roots import ModelRoots, path_below, resolve_folder


@dataclass(frozen=True, slots=True)
class LocatedPath:
    """A declared model path on this disk: its models folder and its place in it. The file need not exist."""

    root: Path
    """The models folder that contains the path, with symbolic links resolved."""
    path: Path
    """`root` joined with the rest of the declared path, which may contain symbolic links."""
    searched_roots: tuple[Path, ...]
    """The models folders, resolved, in which the path may lie by its text; all of them for a relative path."""


def locate_path(roots: ModelRoots, path: str) -> LocatedPath:
    """Resolve a model path to a models folder and a place in it, which need not exist. Reads the disk.

    A relative path means the first models folder that has an entry of that name, or the first folder where none has. An
    absolute path means the models folders that contain it, in the same way. Symbolic links below the models folder are
    not followed, so check the result with `is_inside`.

    Raises:
        ArtifactError: the path leads out of the models folders.
    """
    candidates: list[LocatedPath] = []
    for folder in roots.folders:
        root = resolve_folder(folder)
        # An absolute path may begin with the folder as declared, or with its resolved form.
        spellings = (folder.absolute(), root) if PurePosixPath(path).is_absolute() else (root,)
        inner = next((each for spelling in spellings if (each := path_below(str(spelling / path), spelling))), None)
        if inner is not None:
            candidates.append(LocatedPath(root, root / inner, (root,)))
    if not candidates:
        raise ArtifactError(f"is outside {roots.resolve().describe()}")
    located = next((each for each in candidates if os.path.lexists(each.path)), candidates[0])
    return LocatedPath(located.root, located.path, tuple(each.root for each in candidates))


def is_inside(roots: ModelRoots, target: Path) -> bool:
    """Return whether `target`, an absolute path without symbolic links, lies in one of the models folders or is one.
    Reads the disk, for the models folders' own symbolic links."""
    return any(target.is_relative_to(root) for root in roots.resolve().folders)
