"""Model files as engines see them: their paths where the models folders are at other places (containers), and checks
before a start, since engines' own messages about wrong files are terse.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Final

from contract.desired import Definition
from controller.artifacts.heads import ArtifactError
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import (
    LocatedPath,
    is_inside,
    list_files,
    list_gguf_models,
    locate_path,
    read_custom_code,
)
from controller.engines.base import CodeCheck, Engine, FileCheck
from controller.redaction import clean_text

_MOST_LINKS: Final = 40
"""Symbolic links that Linux follows on the way to one file at most (path_resolution(7))."""
_LOOKED_AT: Final = 10_000
"""Files that are looked at most: of one model, to check them, and for a similar name to suggest."""
_OPENED: Final = (".bin", ".gguf", ".json", ".litertlm", ".model", ".onnx", ".safetensors")
"""Suffixes of the files in a model's folder that engines usually open. Links with other names are not checked."""

Mounts = Mapping[Path, PurePosixPath]
"""Models folder, with symbolic links resolved, to the path at which engines see it."""


def mount_roots(roots: ModelRoots, targets: Sequence[PurePosixPath]) -> Mounts:
    """Return a mapping of each models folder, with its symbolic links resolved, to the path at which engines see it.
    `targets` has that path for each folder of `roots`, in the same order. Reads the disk. If two folders are the same
    once symbolic links are resolved, the first one's target counts. Raises ValueError if the numbers of folders and
    targets differ."""
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
    skipped: `check_files` reports them. Of a folder, at most 10,000 files are checked. Blocks.
    """
    for check in checks:
        try:
            located = locate_path(roots, check.path)
            broken_file = _find_broken_file(located, check, mounts)
        except (ArtifactError, OSError, RuntimeError):
            continue
        if broken_file is not None:
            name, text = broken_file.name, broken_file.readlink() if broken_file.is_symlink() else "elsewhere"
            return clean_text(
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
    """Return whether a path below the models folder `root` leads an engine to the same file as the controller. It does
    if every symbolic link on the way is relative and stays in its models folder, or leads into a models folder that
    controller and engines see at the same path. More than 40 links count as a circle: False. Whether the file exists is
    not checked. `root` must be a key of `mounts`; ValueError is raised if `path` is not below `root`."""
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
    """Return the models folder that contains an absolute path, and the parts of the path below that folder. None if no
    models folder that controller and engines see at the same path contains it."""
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


_SHOWN_NAMES: Final = 5
GGUF_MAGIC: Final = b"GGUF"
_LFS_POINTER: Final = b"version https://git-lfs"


def check_model(roots: ModelRoots, engine: Engine[Any], definition: Definition) -> str | None:
    """Return why a model must not start, as a sentence for the operator; None if it may. Blocks. Reasons are files that
    are missing, unreadable or of a wrong kind, and code in the model's folder that the definition does not allow. Only
    the first problem is returned. `definition` must be one of `engine`'s own class."""
    problem = check_files(roots, engine.list_files(definition))
    problem = problem or _check_code(roots, engine.list_code_checks(definition))
    return None if problem is None else clean_text(problem)


def _check_code(roots: ModelRoots, checks: Sequence[CodeCheck]) -> str | None:
    for check in checks:
        subject = f"{check.field}: {check.path}"
        try:
            folder = locate_path(roots, check.path).path
        except ArtifactError:
            continue  # an assistant that a file names as the engine sees it; a model's own path was checked before
        try:
            found = read_custom_code(folder)
        except ArtifactError as error:
            return f"{subject} has a file that cannot be looked through for code: {error}"
        if found is not None:
            file, name = found
            return (
                f"{subject} brings code of its own along ({name}, in the `auto_map` of {file}), which the engine may"
                f" run: set {check.switch} to true if you trust it, or take `auto_map` out of that file if the engine"
                " knows such models by itself"
            )
    return None


def check_files(roots: ModelRoots, checks: Sequence[FileCheck]) -> str | None:
    """Return what is wrong with the first file that fails its check: field, path and what to do; None if all pass.
    Errors of the file system are not raised but returned. With checks, it is also a problem if no models folder exists.
    Blocks."""
    if checks and not any(folder.is_dir() for folder in roots.folders):
        return _describe_missing_roots(roots)
    for check in checks:
        try:
            located = locate_path(roots, check.path)
            if check.inside:
                located = replace(located, path=located.path / check.inside, searched_roots=(located.root,))
            problem = _check(roots, located, check)
        except ArtifactError as error:
            problem = str(error)
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
        if problem:
            return f"{check.field}: {check.full_path} {problem}"
    return None


def _describe_missing_roots(roots: ModelRoots) -> str:
    folders = roots.absolute().folders
    if len(folders) == 1:
        return f"the models folder {folders[0]} does not exist"
    return f"none of the models folders {', '.join(map(str, folders))} exists"


def _check(roots: ModelRoots, located: LocatedPath, check: FileCheck) -> str | None:
    path = located.path
    try:
        target = path.resolve(strict=True)
    except FileNotFoundError:
        return _missing(located, check)
    except NotADirectoryError:
        return f"is missing from {located.root}: one of its folders is a file"
    except RuntimeError:  # Python 3.11 and 3.12; later ones raise OSError
        return "is a symbolic link that leads in a circle"
    if not is_inside(roots, target):
        advice = roots.absolute().advise_adding(target) or "copy or mount the files below it"
        return f"is a symbolic link to {target}, outside {roots.resolve().describe()}: {advice}"
    mode = target.stat().st_mode
    if stat.S_ISDIR(mode):
        return _check_folder(target, check.kind)
    if not stat.S_ISREG(mode):
        return "is not a regular file"
    if check.kind == "folder":
        return "is a file, and a folder is needed"
    return _check_content(target, check.kind) or _check_beside(path, check.beside)


def _missing(located: LocatedPath, check: FileCheck) -> str:
    if located.path.is_symlink():
        # The link's text as it is written, which `Path.readlink` may change.
        return f"is a symbolic link to {os.readlink(located.path)}, which does not exist"  # noqa: PTH115
    suggestion = _nearest(located, check)
    folders = (f"{root}{'' if root.is_dir() else ' (which does not exist)'}" for root in located.searched_roots)
    return f"is missing from {' and '.join(folders)}" + (f"; did you mean `{suggestion}`?" if suggestion else "")


def _nearest(located: LocatedPath, check: FileCheck) -> str | None:
    suffix = ".gguf" if check.kind == "gguf" else ""
    below_roots = ((root, each) for root in located.searched_roots for each in _below(root))
    names = {
        each: str(each.relative_to(root))
        for root, each in islice(below_roots, _LOOKED_AT)
        if each.name.endswith(suffix)
    }
    wanted_path = str(located.path.relative_to(located.root))
    by_path = difflib.get_close_matches(wanted_path, names.values(), n=1)
    by_name = difflib.get_close_matches(located.path.name, {each.name for each in names}, n=1)
    if by_path or not by_name:
        return by_path[0] if by_path else None
    return min(name for each, name in names.items() if each.name == by_name[0])


def _below(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted((*folders, *files)):
            yield Path(folder, name)


def _check_folder(target: Path, kind: str) -> str | None:
    if kind == "gguf":
        names = list_gguf_models(target)
        if len(names) > 1:
            shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
            return f"is a folder with {len(names)} GGUF models: name one of them ({shown})"
        hint = f": name the file in it, `{names[0]}`" if names else ""
        return f"is a folder, and a GGUF file is needed{hint}"
    if kind == "file":
        return "is a folder, and a file is needed"
    return None if any(target.iterdir()) else "is an empty folder"


def _check_beside(path: Path, names: Sequence[str]) -> str | None:
    if not names or any(each.is_file() for name in names for each in path.parent.glob(name)):
        return None
    return f"needs a file beside it that is not there: {' or '.join(names)}"


def _check_content(target: Path, kind: str) -> str | None:
    with target.open("rb") as file:
        start = file.read(len(_LFS_POINTER))
    if not start:
        return "is empty"
    if start == _LFS_POINTER:
        return "is a Git LFS pointer, not the file itself: run `git lfs pull` where it came from"
    if kind == "gguf" and not start.startswith(GGUF_MAGIC):
        return f"is not a GGUF file: it begins with {start[: len(GGUF_MAGIC)]!r}, not {GGUF_MAGIC!r}"
    return None
