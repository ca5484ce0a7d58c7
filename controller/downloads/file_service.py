"""What the controller does about the files in the models folders: lists them, and has downloads removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.artifacts.model_roots import ModelRoots
from controller.downloads.download_log import DownloadLog
from controller.downloads.forecast import ModelPaths, UnknownModelError, build_model
from controller.downloads.model_files import FoundModel, find_users, list_models, users_of
from controller.downloads.transfers_client import Transfers
from controller.schema.downloads import DownloadRecord, Removal, RemovalOrder
from controller.schema.errors import RoundhouseError
from controller.schema.model_files import ModelFile, ModelFileList
from controller.sizing.estimator import Estimate, Estimator
from controller.state import DesiredModel, Phase
from controller.status.reconcile_round import Round
from controller.storage.download_records import find_by_path, find_by_reference, is_below, read_records


class ModelFileService:
    """The model files of one controller. Reads the models folders itself; `transfers` removes."""

    def __init__(
        self,
        transfers: Transfers,
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

        Raises RoundhouseError. Nothing is removed with `models_file_kept` for what no download put there,
        `models_file_in_use` for what a declared model or a running engine uses, `downloads_disabled`, and
        `controller_unavailable` before the first observation. With `transfers_unreachable`, or an error that
        `transfers` answers with, a part may have been removed, which nothing records.
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
            if replica.phase is Phase.RUNNING and _names_any(replica.argv, paths)
        }
        if running:
            raise RoundhouseError(
                "models_file_in_use", f"{paths[0]} is in use by an engine of {_list_names(sorted(running))}, and stays."
            )


def _list_names(models: Sequence[str]) -> str:
    return f"the model{'' if len(models) == 1 else 's'} {', '.join(models)}"


def _names_any(argv: Iterable[str], paths: Sequence[str]) -> bool:
    return any(argument == path or argument.endswith(f"/{path}") for argument in argv for path in paths)


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
