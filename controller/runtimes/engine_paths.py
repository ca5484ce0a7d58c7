"""Translates model paths into the paths of engines, which may see the models folders at other places (containers)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from controller.artifacts.facts import ArtifactError
from controller.artifacts.locate import LocatedPath, locate_path
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import list_files
from controller.engines.base import FileCheck

_MOST_LINKS: Final = 40
"""Symbolic links that Linux follows on the way to one file at most (path_resolution(7))."""
_LOOKED_AT: Final = 10_000
"""Files of one model that are checked at most."""
_OPENED: Final = (".bin", ".gguf", ".json", ".litertlm", ".model", ".onnx", ".safetensors")
"""Suffixes of the files in a model's folder that engines usually open. Links with other names are not checked."""

Mounts = Mapping[Path, PurePosixPath]
"""Models folder, with symbolic links resolved, to the path at which engines see it."""


def mount_roots(roots: ModelRoots, targets: Sequence[PurePosixPath]) -> Mounts:
    """Return a mapping of each models folder, with its symbolic links resolved, to the path at which engines see it.
    `targets` has that path for each folder of `roots`, in the same order. Reads the disk.

    If two folders are the same once symbolic links are resolved, the first one's target counts. Raises ValueError if
    the numbers of folders and targets differ.
    """
    mounts: dict[Path, PurePosixPath] = {}
    for folder, target in zip(roots.resolve().folders, targets, strict=True):
        mounts.setdefault(folder, target)
    return mounts


def find_engine_paths(roots: ModelRoots, paths: Iterable[str], mounts: Mounts | None = None) -> dict[str, str]:
    """Return a mapping of each of `paths`, as it was given, to the path by which an engine reaches it. Paths that
    cannot be located below a models folder are left out; nothing is raised for them, and whether a file exists is not
    checked. Reads the disk. Raises OSError if a folder on the way to a file cannot be looked at.

    `mounts` None means that engines see the same file system as the controller. A symbolic link that engines can follow
    is kept as it is, because its name may matter (a set of split files); for any other link, its target is used if that
    is below a models folder.
    """
    engine_paths: dict[str, str] = {}
    for path in paths:
        try:
            located = locate_path(roots, path)
        except ArtifactError:
            continue
        engine_paths[path] = str(located.path if mounts is None else _path_in_mounts(located, mounts))
    return engine_paths


def find_broken_link(roots: ModelRoots, checks: Iterable[FileCheck], mounts: Mounts) -> str | None:
    """Return a description of the first symbolic link that the controller can follow and engines cannot; None if there
    is none among the files that engines open.

    The text names the definition's field, the path, and what to do. A link to a single file that needs no other file
    beside it is no problem, since the engine is given the path of its target. Files that are missing or unreadable are
    skipped, since `controller.runtimes.model_files` reports them. Of a folder, at most 10,000 files are checked.
    """
    for check in checks:
        try:
            located = locate_path(roots, check.path)
            broken_file = _find_broken_file(located, check, mounts)
        except (ArtifactError, OSError, RuntimeError):
            continue
        if broken_file is not None:
            name, text = broken_file.name, broken_file.readlink() if broken_file.is_symlink() else "elsewhere"
            return (
                f"{check.field}: {check.path} needs {name}, which is reached by a symbolic link ({text}) that engines"
                " in containers cannot follow: there only relative links within one models folder lead to the same"
                " file. Make it relative (`ln -srf`), or put the file itself there"
            )
    return None


def _path_in_mounts(located: LocatedPath, mounts: Mounts) -> PurePosixPath:
    path = located.path
    if not is_reached_alike(path, located.root, mounts):
        try:
            target = path.resolve()
        except (OSError, RuntimeError):  # a circle: Python 3.11 and 3.12 raise the latter
            target = path
        root = next((each for each in mounts if target.is_relative_to(each)), None)
        if root is not None:
            return mounts[root] / target.relative_to(root)
    return mounts[located.root] / path.relative_to(located.root)


def is_reached_alike(path: Path, root: Path, mounts: Mounts) -> bool:
    """Return whether a path below the models folder `root` leads an engine to the same file as the controller.

    It does if every symbolic link on the way is relative and stays in its models folder, or leads into a models folder
    that controller and engines see at the same path. More than 40 links count as a circle: False. Whether the file
    exists is not checked. `root` must be a key of `mounts`; ValueError is raised if `path` is not below `root`.
    """
    current, remaining, links = root, list(path.relative_to(root).parts), 0
    while remaining:
        part = remaining.pop(0)
        absolute_parts: tuple[str, ...] = ()
        if part == "..":
            if current != root:
                current = current.parent
                continue
            if str(mounts[root]) != str(root):
                return False
            absolute_parts = root.parent.parts
        elif (current / part).is_symlink():
            links += 1
            if links > _MOST_LINKS:
                return False
            target = (current / part).readlink()
            if not target.is_absolute():
                remaining[:0] = target.parts
                continue
            absolute_parts = target.parts
        else:
            current /= part
            continue
        entered = _enter_shared_root((*absolute_parts, *remaining), mounts)
        if entered is None:
            return False
        root, remaining = entered
        current = root
    return True


def _enter_shared_root(parts: tuple[str, ...], mounts: Mounts) -> tuple[Path, list[str]] | None:
    """Return the models folder that contains an absolute path, and the parts of the path below that folder.

    None if no models folder that controller and engines see at the same path contains it.
    """
    for root, target in mounts.items():
        count = len(root.parts)
        if str(root) == str(target) and parts[:count] == root.parts:
            return root, list(parts[count:])
    return None


def _find_broken_file(located: LocatedPath, check: FileCheck, mounts: Mounts) -> Path | None:
    is_path_alike = is_reached_alike(located.path, located.root, mounts)
    if located.path.is_dir():
        folder = located.path if is_path_alike else located.path.resolve()
        root = located.root if is_path_alike else next(each for each in mounts if folder.is_relative_to(each))
        files = [file for file in islice(list_files(folder), _LOOKED_AT) if file.name.endswith(_OPENED)]
        return next((file for file in files if not is_reached_alike(file, root, mounts)), None)
    files = list_files(located.path)
    if len(files) == 1 and not check.beside:
        return None  # an engine that cannot follow the link is given the path of its target
    return next((file for file in files if not is_reached_alike(file, located.root, mounts)), None)
