"""What the controller does about the files in the models folders: lists them by names and sizes alone, and has
downloads removed.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from contract.downloads import DownloadRecord, Removal, RemovalOrder
from contract.errors import RoundhouseError
from contract.model_files import ModelFile, ModelFileList
from controller.artifacts.heads import ArtifactError
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import SPLIT_FILE, files_below
from controller.downloads.forecast import ModelPaths, UnknownModelError, build_model
from controller.downloads.service import DownloadLog
from controller.downloads.transfers_client import TransfersClient
from controller.engines import REPLICA_ENGINES
from controller.engines.options import list_paths, split_paths
from controller.memory_estimator import Estimate, Estimator
from controller.model_status import Round
from controller.state import DesiredModel, Phase
from controller.state_dir import find_by_path, find_by_reference, is_below, read_records

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


class ModelFileService:
    """The model files of one controller. Reads the models folders itself; `transfers` removes."""

    def __init__(
        self,
        transfers: TransfersClient,
        *,
        read_round: Callable[[], Round],
        check_allowed: Callable[[], None],
        roots: ModelRoots,
        estimator: Estimator,
        download_log: DownloadLog,
    ) -> None:
        """`read_round` returns the desired state of this moment with the last observation, or raises RoundhouseError
        `controller_unavailable`. `check_allowed` raises `downloads_disabled`. `roots`: the models folders, absolute."""
        self._transfers = transfers
        self._read_round = read_round
        self._check_allowed = check_allowed
        self._roots = roots
        self._estimator = estimator
        self._log = download_log

    async def list_files(self) -> ModelFileList:
        """Return what lies in the models folders, who put it there, which declared models use it, and the memory of one
        replica: of the first model that uses it, or if none does, of a model with default options. A folder that cannot
        be read counts as empty. Raises RoundhouseError `controller_unavailable` before the first observation."""
        current_round = self._read_round()
        desired = current_round.desired.models
        found = await asyncio.to_thread(list_models, self._roots)
        records = await asyncio.to_thread(read_records, self._roots.first)
        users = await asyncio.to_thread(find_users, list(desired.values()), self._roots)
        used_by = {each: users_of(each.root, each.files, users) for each in found.models}
        has_gpus = bool(current_round.observed.gpus)
        models = {each: self._choose_model(each, used_by[each], desired, has_gpus) for each in found.models}
        estimates = await self._estimator.estimate_models([model for model in models.values() if model is not None])
        first = await asyncio.to_thread(self._roots.first.resolve)
        rows = [
            _build_row(
                each,
                _find_record(each, records) if each.root == first else None,
                used_by[each],
                None if (model := models[each]) is None else estimates.get(model.name),
            )
            for each in found.models
        ]
        return ModelFileList(
            folders=[str(folder) for folder in self._roots.folders],
            models=rows,
            total_bytes=sum(each.size for each in rows),
            is_complete=found.is_complete,
        )

    def _choose_model(
        self, found: FoundModel, used_by: Sequence[str], desired: Mapping[str, DesiredModel], has_gpus: bool
    ) -> DesiredModel | None:
        """Return the model whose memory is told for a file; None: no backend is known for it."""
        if used_by:
            return desired[used_by[0]]
        try:
            path = str(found.root / found.path)
            return build_model(ModelPaths(path), self._roots, int(has_gpus), name=f"file:{path}")
        except UnknownModelError:
            return None

    async def remove_model(self, name: str, *, actor: str) -> Removal:
        """Remove what a download put into the models folder, and record that `actor` did so. `name`: a path below the
        models folder, which is a file, a split set by one of its files, or a folder; else a reference.

        Raises RoundhouseError, after these codes with nothing removed: `models_file_kept` if no download put it there,
        `models_file_in_use` if a declared model or a running engine uses it, `downloads_disabled`, and
        `controller_unavailable` before the first observation. After `transfers_unreachable`, or another error that
        `transfers` answers with, a part may have been removed; the journal does not have it.
        """
        current_round = self._read_round()
        records = await asyncio.to_thread(read_records, self._roots.first)
        plan = _plan_removal(name, records)
        users = await asyncio.to_thread(find_users, list(current_round.desired.models.values()), self._roots)
        root = await asyncio.to_thread(self._roots.first.resolve)
        self._check_unused(current_round, plan.paths, await asyncio.to_thread(users_of, root, plan.paths, users))
        try:
            removal = _join_removals([await self._transfers.remove_files(order) for order in plan.orders])
        except RoundhouseError as error:
            if error.entry.code == "transfers_unreachable":
                self._check_allowed()
            raise
        self._log.note_removal(name, removal, actor)
        return removal

    def _check_unused(self, current_round: Round, paths: Sequence[str], users: Sequence[str]) -> None:
        if users:
            raise RoundhouseError("models_file_in_use", f"{paths[0]} is of {_list_names(users)}, and stays.")
        running = {
            replica.id.model
            for replica in current_round.observed.replicas
            if replica.phase is Phase.RUNNING
            and any(argument == path or argument.endswith(f"/{path}") for argument in replica.argv for path in paths)
        }
        if running:
            raise RoundhouseError(
                "models_file_in_use", f"{paths[0]} is in use by an engine of {_list_names(sorted(running))}, and stays."
            )


def _list_names(models: Sequence[str]) -> str:
    return f"the model{'' if len(models) == 1 else 's'} {', '.join(models)}"


@dataclass(frozen=True, slots=True)
class _RemovalPlan:
    orders: tuple[RemovalOrder, ...]
    """What to order, one after the other."""
    paths: tuple[str, ...]
    """Paths of the files that this removes; at least one."""


def _plan_removal(name: str, records: Sequence[DownloadRecord]) -> _RemovalPlan:
    """Return what a path or a reference means. Raises RoundhouseError `models_file_kept` where no download is meant."""
    path = name.rstrip("/")
    by_path = find_by_path(records, path)
    # The main file stands for all files of its downloads: one part of a split set is of no use.
    if whole := [record for record in by_path if record.main == path]:
        return _plan_records(whole, records)
    if by_path:
        placed = {each.path for record in by_path for each in record.placed if is_below(each.path, path)}
        return _RemovalPlan((RemovalOrder(path=path),), tuple(sorted(placed)))
    record = find_by_reference(records, name)
    if record is None:
        message = f"No download put {name!r:.300} into the models folder."
        raise RoundhouseError("models_file_kept", message, param="model")
    return _plan_records([record], records)


def _plan_records(removed: Sequence[DownloadRecord], records: Sequence[DownloadRecord]) -> _RemovalPlan:
    ids = {record.id for record in removed}
    others = {each.path for record in records if record.id not in ids for each in record.placed}
    paths = {each.path for record in removed for each in record.placed} - others
    orders = tuple(RemovalOrder(id=record.id) for record in removed)
    return _RemovalPlan(orders, tuple(sorted(paths)) or (removed[0].reference,))


def _join_removals(removals: Sequence[Removal]) -> Removal:
    removed = sorted({path for each in removals for path in each.removed})
    kept = sorted({path for each in removals for path in each.kept} - set(removed))
    return Removal(removed=removed, kept=kept, freed_bytes=sum(each.freed_bytes for each in removals))


def _find_record(found: FoundModel, records: Sequence[DownloadRecord]) -> DownloadRecord | None:
    """Return the download that put the files there, if one did so with all of them."""
    files = set(found.files)
    candidates = [record for record in records if files <= {each.path for each in record.placed}]
    return max(candidates, key=lambda each: each.created_at, default=None)


def _build_row(
    found: FoundModel, record: DownloadRecord | None, used_by: list[str], estimate: Estimate | None
) -> ModelFile:
    memory_mib = None if estimate is None else estimate.replica_mib(None)
    return ModelFile(
        path=found.path,
        folder=str(found.root),
        kind="folder" if found.is_folder else "file",
        size=found.size,
        origin="hand" if record is None else "download",
        download=None if record is None else record.id,
        reference=None if record is None else record.pinned or record.reference,
        used_by=used_by,
        memory_mib=memory_mib,
        memory_on=None if estimate is None or memory_mib is None else "gpu" if estimate.gpus else "host",
        memory_source=None if estimate is None or memory_mib is None else estimate.source,
    )
