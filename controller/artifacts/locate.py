"""Where the model paths of a definition lead on this disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from controller.artifacts.facts import ArtifactError
from controller.artifacts.model_roots import ModelRoots, path_below


@dataclass(frozen=True, slots=True)
class LocatedPath:
    """Where a declared model path leads: its models folder and its place there, whether a file is there or not."""

    root: Path
    """The models folder that it lies in, without symbolic links."""
    path: Path
    """`root` and what is declared below it, which may go over symbolic links."""
    searched_roots: tuple[Path, ...]
    """The models folders that were looked into."""


def locate_path(roots: ModelRoots, path: str) -> LocatedPath:
    """Where a model path leads: into the first models folder that has something of that name, where none has into the
    first that it can mean. An absolute one means the folders that it lies in.

    What a symbolic link on the way names is not looked at.

    Raises:
        ArtifactError: it leads out of the models folders.
    """
    candidates: list[LocatedPath] = []
    for folder in roots.folders:
        root = folder.resolve()
        # An absolute path may be written below the folder as it is declared, or as it is without links.
        spellings = (folder.absolute(), root) if PurePosixPath(path).is_absolute() else (root,)
        inner = next((each for spelling in spellings if (each := path_below(str(spelling / path), spelling))), None)
        if inner is not None:
            candidates.append(LocatedPath(root, root / inner, (root,)))
    if not candidates:
        raise ArtifactError(f"is outside {roots.resolve().describe()}")
    located = next((each for each in candidates if os.path.lexists(each.path)), candidates[0])
    return LocatedPath(located.root, located.path, tuple(each.root for each in candidates))


def is_inside(roots: ModelRoots, target: Path) -> bool:
    """Whether a path that goes over no symbolic link lies in one of the models folders."""
    return any(target.is_relative_to(root) for root in roots.resolve().folders)
