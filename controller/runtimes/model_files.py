"""Checks a model's files before its engine starts, since engines' own messages about wrong files are terse."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from controller.artifacts.facts import ArtifactError
from controller.artifacts.locate import LocatedPath, is_inside, locate_path
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import read_custom_code
from controller.engines.base import CodeCheck, Engine, FileCheck
from controller.schema.desired import Definition

GGUF_MAGIC: Final = b"GGUF"
_LFS_POINTER: Final = b"version https://git-lfs"
_LOOKED_AT: Final = 10_000
"""Files that are searched at most for a similar name to suggest."""


def check_model(roots: ModelRoots, engine: Engine[Any], definition: Definition) -> str | None:
    """Return why a model must not start, as a sentence for the operator; None if it may. Blocks.

    Reasons are files that are missing, unreadable or of a wrong kind, and code in the model's folder that the
    definition does not allow. Only the first problem is returned. `definition` must be one of `engine`'s own class.
    """
    problem = check_files(roots, engine.list_files(definition))
    return problem or _check_code(roots, engine.list_code_checks(definition))


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
    Blocks.
    """
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
    return f"is missing from {' and '.join(folders)}" + (f'; did you mean "{suggestion}"?' if suggestion else "")


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
        gguf_names = sorted(each.name for each in target.iterdir() if each.name.endswith(".gguf"))
        hint = f': name a file in it, such as "{gguf_names[0]}"' if gguf_names else ""
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
