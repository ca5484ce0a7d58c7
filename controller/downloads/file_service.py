"""What the controller does about the files in the models folders: lists them, declares them, and has downloads
removed.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from pydantic import JsonValue

from contract.downloads import DownloadRecord, Removal, RemovalOrder
from contract.errors import RoundhouseError
from contract.model_files import (
    FileDeclaration,
    FileDeclarationOrder,
    FileMemory,
    ModelFile,
    ModelFileList,
    ModelSearch,
)
from controller.artifacts.heads import ArtifactError
from controller.artifacts.model_roots import ModelRoots, resolve_folder
from controller.artifacts.read import SPLIT_FILE, files_below, locate_path
from controller.config.messages import suggest_name
from controller.downloads.forecast import ModelPaths, UnknownModelError, build_model
from controller.downloads.service import DownloadLog
from controller.downloads.serving import (
    Discovery,
    FoundModel,
    ModelFolders,
    declare_file,
    describe_declared,
    discover_models,
    empty_host,
    name_models,
)
from controller.engines import REPLICA_ENGINES
from controller.engines.options import list_paths, split_paths
from controller.memory_estimator import FRESH_S, Estimate, Estimator
from controller.model_status import Round
from controller.redaction import mask_fields
from controller.state import DesiredModel, Phase
from controller.state_dir import find_by_path, find_by_reference, is_below, read_records
from controller.transfers_client import TransfersClient

LOOKED_AT_S: Final = 2.0
"""Seconds for which the head of a file counts as read, where a file that was just copied must be seen."""
DISCOVER_EVERY_S: Final = 3.0
"""Seconds between two looks for model files that no declaration names; two looks without a file take its model away."""
MOST_FILES: Final = 100_000
"""Files that are looked at in all."""
_MODEL_SUFFIXES: Final = (".gguf", ".litertlm", ".task")
"""Suffixes of files that are a model each, in any folder, in upper or lower case."""
_FOLDER_MARKS: Final = frozenset({"config.json", "genai_config.json"})
"""Files by which a folder with weights is a model as a whole."""
_WEIGHT_SUFFIXES: Final = (".safetensors", ".bin", ".onnx", ".pt", ".pth")


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

    Hidden files and folders are left out, and those whose names are not UTF-8, which no answer can hold. Symbolic links
    to folders are not followed. A folder that cannot be read or does not exist counts as empty.
    """
    listed = _list_files(roots, most_files)
    models = [
        model for root, files in listed.items() for model in _group(root, {path: files[path][0] for path in files})
    ]
    return FoundModels(tuple(models), sum(map(len, listed.values())) < most_files)


_ListedFiles = dict[Path, dict[str, tuple[int, int]]]
"""Size in bytes, and time of the last change of the inode in nanoseconds, of each file by its path below its models
folder."""


def _list_files(roots: ModelRoots, limit: int = MOST_FILES) -> _ListedFiles:
    """Return the files that `list_models` looks at. It is called every few seconds, and asks the disk for no more."""
    listed: _ListedFiles = {}
    for root in dict.fromkeys(roots.resolve().folders):
        left = limit - sum(map(len, listed.values()))
        listed[root] = {}
        _list_below(f"{root}/", "", listed[root], left)
    return listed


def _time_listing(roots: ModelRoots) -> tuple[_ListedFiles, float]:
    """Return what `_list_files` lists, and the processor's seconds that it took."""
    began = time.thread_time()
    return _list_files(roots), time.thread_time() - began


def _list_below(root: str, folder: str, files: dict[str, tuple[int, int]], limit: int) -> None:
    """Add the files below a folder to `files`, in the order of their names; `folder` is empty or ends with a slash."""
    try:
        with os.scandir(root + folder) as scanned:
            entries = sorted((each for each in scanned if _is_listed(each.name)), key=lambda entry: entry.name)
    except OSError:
        return  # closed, or gone
    folder_names = []
    for entry in entries:
        if len(files) >= limit:
            return
        try:
            if entry.is_dir(follow_symlinks=False):
                folder_names.append(entry.name)
                continue
            status = entry.stat()
        except OSError:
            continue  # gone, or a link to nowhere
        if stat.S_ISREG(status.st_mode):
            files[folder + entry.name] = (status.st_size, status.st_ctime_ns)
    for name in folder_names:
        _list_below(root, f"{folder}{name}/", files, limit)


def _is_listed(name: str) -> bool:
    # The bytes of a name that are not UTF-8 become lone surrogates.
    return not name.startswith(".") and (name.isascii() or not any("\ud800" <= each <= "\udfff" for each in name))


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


def _find_present(roots: ModelRoots, paths: Iterable[str], models: Iterable[DesiredModel]) -> dict[str, list[str]]:
    """Return which of these model paths the first models folder has, each with the names, sorted, of the models that
    use it. A folder counts with a `config.json`. Blocks on the disk."""
    root = roots.first
    here = [path for path in paths if (root / path).is_file() or (root / path / "config.json").is_file()]
    users = find_users(models, roots) if here else {}
    found = {}
    for path in here:
        place = (root / path).resolve()
        names = {name for file, using in users.items() if file == place or place in file.parents for name in using}
        found[path] = sorted(names)
    return found


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
        declare: Callable[[str, Mapping[str, JsonValue], str], object],
    ) -> None:
        """`read_round` returns the desired state of this moment with the last observation, or raises RoundhouseError
        `controller_unavailable`. `check_allowed` raises `downloads_disabled`. `roots`: the models folders, absolute.
        `declare` declares a model at run time: its name, its fields, and who does so."""
        self._transfers = transfers
        self._read_round = read_round
        self._check_allowed = check_allowed
        self._roots = roots
        self._estimator = estimator
        self._log = download_log
        self._declare = declare
        self._discovered: tuple[object, Discovery] | None = None
        """The last discovery, with what it follows from."""
        self._seen: frozenset[FoundModel] = frozenset()
        """What lay there at the last call of `discover_models`."""
        self._looked: tuple[object, Discovery] | None = None
        """What the last call of `discover_models` found, and what it follows from."""
        self._leaving: frozenset[str] = frozenset()
        """Discovered models whose files were gone at the last call of `discover_models`."""
        self.look_pause_s = DISCOVER_EVERY_S
        """Seconds to wait before the next call of `discover_models`, which costs at most 1 % of a core by that."""

    async def list_files(self) -> ModelFileList:
        """Return what lies in the models folders, who put it there, which declared models use it, and the memory of one
        replica of each model that uses it, or if none does, of a model with default options. Of what no model
        uses, also the name under which it can be declared, or why it cannot. A folder that cannot be read counts as
        empty. Raises RoundhouseError `controller_unavailable` before the first observation."""
        current_round = self._read_round()
        desired = current_round.desired.models
        found, folders, used_by = await self._look(desired.values())
        records = await asyncio.to_thread(read_records, self._roots.first)
        discovery = await self._discover(folders, used_by, current_round)
        has_gpus = bool(current_round.observed.gpus)
        models = {each: self._list_users(each, used_by[each], desired, has_gpus) for each in found.models}
        estimates = await self._estimator.estimate_models([model for users in models.values() for model in users])
        first = await asyncio.to_thread(self._roots.first.resolve)
        rows = [
            _build_row(
                each,
                _find_record(each, records) if each.root == first else None,
                used_by[each],
                {model.name: _describe_memory(estimates.get(model.name)) for model in models[each]},
            ).model_copy(
                update={}
                if used_by[each]
                else {"reason": discovery.reasons[each]}
                if each in discovery.reasons
                else {"serve_as": discovery.names[each]}
            )
            for each in found.models
        ]
        return ModelFileList(
            folders=[str(folder) for folder in self._roots.folders],
            models=rows,
            total_bytes=sum(each.size for each in rows),
            is_complete=found.is_complete,
        )

    async def mark_present(self, found: ModelSearch) -> ModelSearch:
        """Return what a search found, with marks on what the models folder for downloads has, and which declared models
        use it. Raises RoundhouseError `controller_unavailable` before the first observation."""
        models = list(self._read_round().desired.models.values())
        paths = {choice.main for each in found.repositories for choice in each.choices}
        present = await asyncio.to_thread(_find_present, self._roots, paths, models)
        return ModelSearch(
            repositories=[
                each.model_copy(
                    update={
                        "choices": [
                            choice.model_copy(update={"is_present": True, "used_by": present[choice.main]})
                            if choice.main in present
                            else choice
                            for choice in each.choices
                        ]
                    }
                )
                for each in found.repositories
            ]
        )

    async def _look(
        self, models: Iterable[DesiredModel], fresh_s: float = FRESH_S
    ) -> tuple[FoundModels, ModelFolders, dict[FoundModel, list[str]]]:
        """Return what lies in the models folders, the same with the heads of what may be a model, and by each the names
        of those of `models` that use it. Heads that were read within `fresh_s` seconds are not looked at again."""
        found = await asyncio.to_thread(list_models, self._roots)
        folders = ModelFolders(found.models, self._roots)
        paths = [folders.name_path(each) for each in found.models if each.is_candidate or each.is_projector]
        artifacts = await self._estimator.read_artifacts(paths, fresh_s)
        users = await asyncio.to_thread(find_users, list(models), self._roots)
        used_by = await asyncio.to_thread(
            lambda: {each: users_of(each.root, each.files, users) for each in found.models}
        )
        return found, replace(folders, artifacts=artifacts), used_by

    async def _discover(
        self, folders: ModelFolders, used_by: Mapping[FoundModel, Sequence[str]], current_round: Round
    ) -> Discovery:
        """Return what can be declared of what lies in `folders`. It is worked out anew only where anything differs."""
        taken = _taken_names(each for each in current_round.desired.models.values() if not each.is_discovered)
        host = empty_host(current_round.observed)
        kept = _find_kept_names(folders, current_round.desired.models.values())
        basis = (folders, used_by, taken, kept, replace(host, at=0.0))
        if self._discovered is None or self._discovered[0] != basis:
            discovery = await asyncio.to_thread(
                discover_models, folders, used_by, taken, host, kept, lambda each: (each.root / each.files[0]).resolve()
            )
            self._discovered = (basis, discovery)
        return self._discovered[1]

    async def discover_models(
        self, known: Mapping[str, Mapping[str, JsonValue]]
    ) -> dict[str, Mapping[str, JsonValue]] | None:
        """Return a declaration, by model name, for each model file that no declaration names, and that has as many
        bytes as at the last call; and those of `known`, found before, whose files are gone for the first time. None: it
        is not known, because a host's GPUs or a models folder cannot be read now. Raises RoundhouseError
        `controller_unavailable` before the first observation."""
        current_round = self._read_round()
        observed = current_round.observed
        if not observed.hosts or observed.unread_gpus or any(host.gpus is None for host in observed.hosts):
            return None
        if await asyncio.to_thread(lambda: any(map(_is_closed, self._roots.folders))):
            return None
        declared = [each for each in current_round.desired.models.values() if not each.is_discovered]
        listed, seconds = await asyncio.to_thread(_time_listing, self._roots)
        self.look_pause_s = max(DISCOVER_EVERY_S, 100 * seconds)
        basis = (listed, {each.name: each.definition for each in declared}, replace(empty_host(observed), at=0.0))
        if self._looked is not None and self._looked[0] == basis:
            declarations = dict(self._looked[1].declarations)
        else:
            _, folders, used_by = await self._look(declared, LOOKED_AT_S)
            discovery = await self._discover(folders, used_by, current_round)
            self._looked = (basis, discovery)
            # A file that grows is being copied: its head may be here already, and be right.
            settled = {discovery.names.get(each) for each in self._seen.intersection(folders.models)}
            self._seen = frozenset(folders.models)
            declarations = {name: each for name, each in discovery.declarations.items() if name in settled}
        # As with files of declarations: something may be about to take the place of what is gone.
        kept = {name: known[name] for name in known.keys() - declarations.keys() - self._leaving}
        self._leaving = frozenset(kept)
        return {**declarations, **kept}

    async def declare_model(self, order: FileDeclarationOrder, *, actor: str) -> FileDeclaration:
        """Declare a file of the models folders at run time for `actor`, with what it says of itself, and return what
        was declared. With `dry_run`, nothing is, and the result may say why it cannot be. What a model serves already
        (the one named, or any without a name) is not declared again: the result has that model.

        Raises RoundhouseError: `invalid_declaration` where nothing of that path lies in the models folders, it cannot
        be served, or another model has the name; `declared_in_files` where the files declare that name;
        `controller_unavailable` before the first observation.
        """
        current_round = self._read_round()
        desired = current_round.desired.models
        _, folders, used_by = await self._look(desired.values(), LOOKED_AT_S)
        found = await asyncio.to_thread(_find_model, folders, order.model)
        users = await asyncio.to_thread(
            lambda: [each for each in used_by[found] if each in desired and _serves(desired[each], found, self._roots)]
        )
        own = [each for each in users if not desired[each].is_discovered]
        if order.name in own or (order.name is None and users):
            model = desired[order.name or (own or users)[0]]
            fields = mask_fields(model.declared_definition.model_dump(mode="json", exclude_unset=True))
            return describe_declared(found, model.name, folders, model.backend, fields)
        kept = _find_kept_names(folders, desired.values())
        names = name_models((each for each in folders.models if each.is_candidate), kept)
        name = order.name or names.get(found, "")
        declared = await asyncio.to_thread(declare_file, found, name, folders, current_round.observed)
        others = _taken_names(each for each in desired.values() if not each.is_discovered)
        if declared.reason is None and name in others:
            declared = declared.model_copy(
                update={"reason": f"another model is named {name}: choose another name", "fields": {}}
            )
        if order.dry_run:
            return declared
        if declared.reason is not None:
            message = f"{found.path} is not served: {declared.reason}."
            raise RoundhouseError("invalid_declaration", message, param="model")
        self._declare(name, declared.fields, actor)
        return declared.model_copy(update={"declared": "new"})

    def _list_users(
        self, found: FoundModel, used_by: Sequence[str], desired: Mapping[str, DesiredModel], has_gpus: bool
    ) -> list[DesiredModel]:
        """Return the models whose memory is told for a file: those that use it, else one with default options; none
        where no backend is known for it."""
        if used_by:
            return [desired[name] for name in used_by]
        try:
            path = str(found.root / found.path)
            return [build_model(ModelPaths(path), self._roots, int(has_gpus), name=f"file:{path}")]
        except UnknownModelError:
            return []

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
        is_there = await asyncio.to_thread(_is_there, self._roots, name)
        plan = _plan_removal(name, records, is_there=is_there)
        # A discovered model is there because its file is, and goes with it.
        declared = [each for each in current_round.desired.models.values() if not each.is_discovered]
        users = await asyncio.to_thread(find_users, declared, self._roots)
        root = await asyncio.to_thread(self._roots.first.resolve)
        mains = {record.main for record in records for each in record.placed if each.path in plan.paths} - {None}
        self._check_unused(current_round, plan.paths, mains, await asyncio.to_thread(users_of, root, plan.paths, users))
        try:
            removal = _join_removals([await self._transfers.remove_files(order) for order in plan.orders])
        except RoundhouseError as error:
            if error.entry.code == "transfers_unreachable":
                self._check_allowed()
            raise
        self._log.note_removal(name, removal, actor)
        return removal

    def _check_unused(
        self, current_round: Round, paths: Sequence[str], mains: Set[str | None], users: Sequence[str]
    ) -> None:
        if users:
            raise RoundhouseError("models_file_in_use", f"{paths[0]} is of {_list_names(users)}, and stays.")
        # Some engines get the folder of a model. The last two parents are `.` and one too short to be told apart.
        folders = {str(parent) for path in paths for parent in [*PurePosixPath(path).parents][:-2]}
        used = {*paths, *mains, *folders}
        running = {
            replica.id.model
            for replica in current_round.observed.replicas
            if replica.phase is Phase.RUNNING
            and any(argument == path or argument.endswith(f"/{path}") for argument in replica.argv for path in used)
        }
        if running:
            raise RoundhouseError(
                "models_file_in_use", f"{paths[0]} is in use by an engine of {_list_names(sorted(running))}, and stays."
            )


def _is_closed(folder: Path) -> bool:
    """Return whether a folder is there and cannot be listed, so that nothing is known of what lies in it."""
    return folder.exists() and not os.access(folder, os.R_OK | os.X_OK)


def _find_kept_names(folders: ModelFolders, models: Iterable[DesiredModel]) -> dict[FoundModel, str]:
    """Return the names of those of `models` that were discovered, by what they serve."""
    paths = {each.name: each.declared_definition.model_path for each in models if each.is_discovered}
    return folders.find_names({name: path for name, path in paths.items() if path is not None})


def _taken_names(models: Iterable[DesiredModel]) -> frozenset[str]:
    """Return the names and aliases of models."""
    return frozenset(name for each in models for name in (each.name, *each.definition.aliases))


def _find_model(folders: ModelFolders, path: str) -> FoundModel:
    """Return the model at a path below the models folders, or an absolute one. Blocks. Raises RoundhouseError
    `invalid_declaration` where nothing lies there."""
    wanted = path.rstrip("/")
    # As the folder is written, or with its symbolic links resolved.
    spelled = {str(each): str(resolve_folder(each)) for each in folders.roots.folders}
    spelled |= {root: root for root in spelled.values()}
    places = {
        (root, wanted.removeprefix(f"{folder}/")) for folder, root in spelled.items() if wanted.startswith(f"{folder}/")
    }
    for found in folders.models:
        for inner in (found.path, *found.files):
            if inner == wanted or (str(found.root), inner) in places:
                return found
    message = f"Nothing lies at {path!r:.300} in {folders.roots.describe()}: copy it there first."
    raise RoundhouseError("invalid_declaration", message, param="model")


def _serves(model: DesiredModel, found: FoundModel, roots: ModelRoots) -> bool:
    """Return whether what was found is the model that `model` serves, and not its draft model, its projector or the
    like. Blocks: resolves symbolic links on the disk."""
    if (path := model.definition.model_path) is None:
        return False
    try:
        served = locate_path(roots, path).path.resolve()
        return any((found.root / each).resolve() == served for each in (found.path, *found.files))
    except (ArtifactError, OSError, RuntimeError):
        return False


def _list_names(models: Sequence[str]) -> str:
    return f"the model{'' if len(models) == 1 else 's'} {', '.join(models)}"


@dataclass(frozen=True, slots=True)
class _RemovalPlan:
    orders: tuple[RemovalOrder, ...]
    """What to order, one after the other."""
    paths: tuple[str, ...]
    """Paths of the files that this removes; at least one."""


def _is_there(roots: ModelRoots, name: str) -> bool:
    """Return whether a file or a folder of this path lies below a models folder. Blocks on the disk."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return False
    try:
        return any((root / path).exists() for root in roots.folders)
    except (OSError, ValueError):  # no path can have such a name
        return False


def _plan_removal(name: str, records: Sequence[DownloadRecord], *, is_there: bool) -> _RemovalPlan:
    """Return what a path or a reference means. `is_there`: it is the path of something in a models folder. Raises
    RoundhouseError `models_file_kept` where no download is meant."""
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
        if is_there:
            message = (
                f"No download put `{name:.300}` into the models folder, somebody did so by hand: remove it by hand."
            )
        else:
            known = {each for record in records for each in (record.main, record.reference) if each is not None}
            message = (
                f"There is no `{name:.300}` in the models folders, and no download of it{suggest_name(name, known)}."
            )
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
    found: FoundModel, record: DownloadRecord | None, used_by: list[str], memories: Mapping[str, FileMemory]
) -> ModelFile:
    most = max(memories.values(), key=lambda each: each.memory_mib or 0, default=FileMemory())
    return ModelFile(
        **most.model_dump(),
        memory_by_model=dict(memories) if len(set(memories.values())) > 1 else {},
        path=found.path,
        folder=str(found.root),
        kind="folder" if found.is_folder else "file",
        size=found.size,
        origin="hand" if record is None else "download",
        download=None if record is None else record.id,
        reference=None if record is None else record.pinned or record.reference,
        used_by=used_by,
    )


def _describe_memory(estimate: Estimate | None) -> FileMemory:
    memory_mib = None if estimate is None else estimate.replica_mib(None)
    if estimate is None or memory_mib is None:
        return FileMemory()
    return FileMemory(
        memory_mib=memory_mib, memory_on="gpu" if estimate.gpus else "host", memory_source=estimate.source
    )
