"""Lists what lies in the models folders, and which declared models use it. Reads names and sizes alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from controller.artifacts.facts import ArtifactError
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import SPLIT_FILE, files_below
from controller.engines import REPLICA_ENGINES
from controller.engines.options import list_paths, split_paths
from controller.state import DesiredModel

MOST_FILES: Final = 100_000
"""Files that are looked at in all."""
_MODEL_SUFFIXES: Final = (".gguf", ".litertlm", ".task")
"""Suffixes of files that are a model each, in any folder, in upper or lower case."""
_FOLDER_MARKS: Final = frozenset({"config.json", "genai_config.json"})
"""Files by which a folder with weights is a model as a whole."""
_WEIGHT_SUFFIXES: Final = (".safetensors", ".bin", ".onnx", ".pt", ".pth")


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model in a models folder: a file, a split set by its first file, or a folder."""

    root: Path
    """The models folder, with symbolic links resolved."""
    path: str
    """Path below `root`."""
    is_folder: bool
    files: tuple[str, ...]
    """Paths of its files below `root`, sorted."""
    size: int
    """Bytes of its files."""


@dataclass(frozen=True, slots=True)
class FoundModels:
    """What lies in the models folders. `is_complete` False: as many files were found as are looked at, so that there
    may be more."""

    models: tuple[FoundModel, ...]
    is_complete: bool
    """False: there are more files than `MOST_FILES`."""


def list_models(roots: ModelRoots, most_files: int = MOST_FILES) -> FoundModels:
    """Return the models in the models folders, sorted by path in each folder. A split set is one model, and so is a
    folder (not the models folder itself) with a `config.json` or `genai_config.json` beside weights; every other file
    is a model by itself. Blocks on the disk. At most `most_files` files are looked at.

    Hidden files and folders are left out, and symbolic links to folders are not followed. A folder that cannot be read
    or does not exist counts as empty.
    """
    models: list[FoundModel] = []
    left = most_files
    for root in dict.fromkeys(roots.resolve().folders):
        found = _list_files(root, left)
        left -= len(found)
        models += _group(root, found)
    return FoundModels(tuple(models), left > 0)


def _list_files(root: Path, limit: int) -> dict[str, int]:
    """Return the size in bytes of each file below a folder, by its path there."""
    sizes: dict[str, int] = {}
    for folder, folder_names, file_names in os.walk(root):
        folder_names[:] = sorted(name for name in folder_names if not name.startswith("."))
        for name in sorted(file_names):
            if len(sizes) >= limit:
                return sizes
            path = Path(folder, name)
            try:
                status = path.stat()
            except OSError:
                continue  # gone, or a link to nowhere
            if not name.startswith(".") and stat.S_ISREG(status.st_mode):
                sizes[path.relative_to(root).as_posix()] = status.st_size
    return sizes


def _group(root: Path, sizes: Mapping[str, int]) -> list[FoundModel]:
    groups: dict[tuple[str, bool], list[str]] = {}
    marked = {_folder_of(path) for path in sizes if PurePosixPath(path).name in _FOLDER_MARKS}
    model_folders = {_folder_of(path) for path in sizes if path.lower().endswith(_WEIGHT_SUFFIXES)} & marked - {"."}
    for path in sizes:
        groups.setdefault(_key(path, model_folders), []).append(path)
    return [
        FoundModel(
            root,
            path if is_folder else min(files),
            is_folder,
            tuple(sorted(files)),
            sum(sizes[each] for each in files),
        )
        for (path, is_folder), files in sorted(groups.items())
    ]


def _folder_of(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _key(path: str, model_folders: set[str]) -> tuple[str, bool]:
    """Return what a file is part of: a folder, a split set, or itself."""
    if not path.lower().endswith(_MODEL_SUFFIXES):
        # The outermost folder: an engine reads what lies below it, too.
        for parent in reversed(PurePosixPath(path).parents):
            if str(parent) in model_folders:
                return str(parent), True
    if split := SPLIT_FILE.fullmatch(path):
        return f"{split['stem']}-of-{split['count']}", False
    return path, False


def find_users(models: Iterable[DesiredModel], roots: ModelRoots) -> dict[Path, set[str]]:
    """Return the names of the declared models that use each file, by the file's path with symbolic links resolved.
    Blocks on the disk. Paths that lead nowhere, or out of the models folders, are left out."""
    users: dict[Path, set[str]] = {}
    for model in models:
        for path in _list_named(model):
            try:
                files = files_below(roots, path)
            except ArtifactError:
                continue
            for file in files:
                users.setdefault(file.resolve(), set()).add(model.name)
    return users


def _list_named(model: DesiredModel) -> set[str]:
    """Return every model path that a definition names."""
    definition = model.definition
    named = {path for _, _, value in list_paths(definition) for path in split_paths(value)}
    named.update(REPLICA_ENGINES[model.backend].list_artifacts(definition))
    if definition.model_path is not None and model.runs:
        named.add(definition.model_path)
    return named


def users_of(root: Path, files: Sequence[str], users: Mapping[Path, set[str]]) -> list[str]:
    """Return the names, sorted, of the models that use at least one of these files. `files` are paths below `root`,
    `users` is what `find_users` returned. Blocks: resolves symbolic links on the disk."""
    return sorted({name for file in files for name in users.get((root / file).resolve(), ())})
