"""What proposed desired-state files would do: the differences, the restarts, the first steps. Nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from controller.config.parse import Parsed, parse
from controller.config.read import MAX_FILE_BYTES, SUFFIXES, FolderSnapshot, is_read, merge_order, read_folder
from controller.desired.config_diff import Edit, edits, key_edits
from controller.desired.resolve import Declared, Defaults, resolve, standing
from controller.planning.actions import Plan
from controller.reconcile.preflight import preflight
from controller.redaction.redactor import Conceal, Concealment
from controller.reports.views import plan_view
from controller.runtimes.base import Runtime
from controller.schema.admin import DryRun, ModelChange, ProposedFiles
from controller.schema.errors import RoundhouseError
from controller.schema.override import Override, Rested, ended, restated
from controller.state import DesiredModel, DesiredState, ObservedReplica, ObservedState, Phase, PreflightResult
from controller.status.reconcile_round import Round

AT_ONCE: Final = 4
"""Preflights at a time."""

DeclaredState = Mapping[str, Mapping[str, Any]]
"""Per model, or per key, what the files say."""
Effect = Literal["none", "start", "stop", "restart", "scale"]


@dataclass(frozen=True, slots=True)
class Stage:
    """What is declared, and what that comes to with the runtime's statements."""

    declared: DeclaredState
    desired: DesiredState


async def dry_run(
    proposed: ProposedFiles,
    *,
    folder: Path,
    models_root: Path,
    desired_now: DesiredState,
    observed: ObservedState,
    overrides: Mapping[str, Override],
    demand: Mapping[str, float],
    rested: Mapping[str, Rested],
    defaults: Defaults,
    declared_now: DeclaredState,
    keys_now: DeclaredState,
    runtime: Runtime,
    concealment: Concealment,
    now: float,
) -> DryRun:
    """What these files would do in place of those of the same name in `folder`. `models_root` is absolute.

    Raises RoundhouseError: a name that no desired-state file has, a file too large, the removal of one that is not
    there. Problems of the files are an answer.
    """
    contents = _contents(proposed)
    snapshot = await asyncio.to_thread(read_folder, folder)
    # A large file takes seconds to parse.
    parsed = await asyncio.to_thread(parse, _with(snapshot, contents), models_root)
    if not parsed.ok:
        return DryRun(ok=False, problems=list(parsed.problems), changes=[], plan=None)
    current_stage = Stage(declared_now, desired_now)
    proposed_stage = Stage(parsed.declared, _desired(current_stage, parsed, overrides, demand, rested, defaults, now))
    changes = compare(current_stage, proposed_stage, observed, overrides)
    changed_models = [
        proposed_stage.desired.models[each.model] for each in changes if each.model in proposed_stage.desired.models
    ]
    conceal = concealment.with_proposed(parsed.declared)
    preflights = await _preflights(
        runtime, [model for model in changed_models if model.runs and model.replicas], conceal, now
    )
    proposed_round = Round(
        proposed_stage.desired,
        replace(observed, preflights={**observed.preflights, **preflights}),
        Plan(proposed_stage.desired.generation),
        (),
    )
    keys = key_edits(keys_now, parsed.declared_keys)
    return DryRun(ok=True, problems=[], changes=changes, keys=keys, plan=plan_view(proposed_round, now))


# The files.


def _contents(proposed: ProposedFiles) -> dict[str, bytes | None]:
    contents: dict[str, bytes | None] = {}
    for name, text in proposed.files.items():
        if "/" in name or not name.isprintable() or not is_read(name):
            kinds = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
            raise RoundhouseError(
                "invalid_request", f"{name!a:.80} is no name of a desired-state file ({kinds})", param="files"
            )
        try:
            content = None if text is None else text.encode()
        except UnicodeEncodeError as error:
            raise RoundhouseError("invalid_request", f"{name} holds half a character", param="files") from error
        if content is not None and len(content) > MAX_FILE_BYTES:
            limit = MAX_FILE_BYTES // 1024**2
            raise RoundhouseError("invalid_request", f"{name} is larger than {limit} MiB", param="files")
        contents[name] = content
    return contents


def _with(snapshot: FolderSnapshot, contents: Mapping[str, bytes | None]) -> FolderSnapshot:
    """The folder as it would be. What could not be read and is replaced is no problem any more."""
    replaced_paths = {snapshot.path_of(name) for name in contents}
    known_paths = snapshot.files.keys() | {problem.file for problem in snapshot.problems}
    for name, content in contents.items():
        if content is None and name not in known_paths and snapshot.path_of(name) not in known_paths:
            raise RoundhouseError("invalid_request", f"there is no file {name} to remove", param="files")
    merged_contents = {name: content for name, content in {**snapshot.files, **contents}.items() if content is not None}
    return FolderSnapshot(
        snapshot.folder,
        {name: merged_contents[name] for name in sorted(merged_contents, key=merge_order)},
        tuple(problem for problem in snapshot.problems if problem.file not in replaced_paths),
    )


# What would be wanted.


def _desired(
    current_stage: Stage,
    parsed: Parsed,
    overrides: Mapping[str, Override],
    demand: Mapping[str, float],
    rested: Mapping[str, Rested],
    defaults: Defaults,
    now: float,
) -> DesiredState:
    declared = {}
    for name, definition in parsed.definitions.items():
        current_model = current_stage.desired.models.get(name)
        is_unchanged = current_model is not None and current_stage.declared.get(name) == parsed.declared[name]
        since = (
            current_model.statement.since
            if current_model is not None and is_unchanged and current_model.statement.kind == "file"
            else now
        )
        declared[name] = Declared(definition, parsed.declared[name], since)
    ended_names = {name for name in declared if restated(current_stage.declared.get(name), parsed.declared[name])}
    return resolve(
        declared,
        overrides,
        {name: at for name, at in demand.items() if name not in ended_names},
        defaults,
        generation=current_stage.desired.generation + 1,
        paused=current_stage.desired.paused,
        evictions={name: eviction for name, eviction in rested.items() if name not in ended_names},
    )


# The differences. Pure.


def compare(
    current_stage: Stage, proposed_stage: Stage, observed: ObservedState, overrides: Mapping[str, Override]
) -> list[ModelChange]:
    """What becomes of each model that would be declared otherwise, in name order."""
    return [
        _change(edit, current_stage, proposed_stage, observed, overrides.get(edit.model))
        for edit in edits(current_stage.declared, proposed_stage.declared)
    ]


def _change(
    edit: Edit, current_stage: Stage, proposed_stage: Stage, observed: ObservedState, override: Override | None
) -> ModelChange:
    current_model, proposed_model = (
        current_stage.desired.models.get(edit.model),
        proposed_stage.desired.models.get(edit.model),
    )
    alive_replicas = [replica for replica in observed.replicas if replica.id.model == edit.model and _stays(replica)]
    restarts = _restarts(current_model, proposed_model, alive_replicas)
    return ModelChange(
        model=edit.model,
        change=edit.change,
        fields=list(edit.fields),
        effect=_effect(current_model, proposed_model, alive_replicas, restarts),
        restarts=restarts,
        ends=_ends(_left(override, current_stage), _left(override, proposed_stage)),
    )


def _stays(replica: ObservedReplica) -> bool:
    return replica.phase is not Phase.EXITED and replica.draining is None


def _engines(model: DesiredModel | None) -> int:
    return model.replicas if model is not None and model.runs else 0


def _restarts(
    current_model: DesiredModel | None, proposed_model: DesiredModel | None, alive_replicas: Collection[ObservedReplica]
) -> list[str]:
    """Engines that run something else than what would be declared, and would be wanted. By name."""
    if proposed_model is None or (current_model is not None and current_model.spec_hash == proposed_model.spec_hash):
        return []
    wanted_indices = range(_engines(proposed_model))
    return sorted(
        each.name
        for each in alive_replicas
        if each.id.spec_hash != proposed_model.spec_hash and each.id.index in wanted_indices
    )


def _effect(
    current_model: DesiredModel | None,
    proposed_model: DesiredModel | None,
    alive_replicas: Collection[ObservedReplica],
    restarts: Collection[str],
) -> Effect:
    current_count, proposed_count = _engines(current_model), _engines(proposed_model)
    if proposed_count == 0:
        return "stop" if current_count or alive_replicas else _elsewhere(current_model, proposed_model)
    if restarts:
        return "restart"
    is_redefined = (
        current_model is None or proposed_model is None or current_model.spec_hash != proposed_model.spec_hash
    )
    if current_count == 0 or (is_redefined and not alive_replicas):
        return "start"
    return "scale" if current_count != proposed_count else "none"


def _elsewhere(current_model: DesiredModel | None, proposed_model: DesiredModel | None) -> Effect:
    """The effect where no engine runs or will: a remote counts as one, which clients gain or lose."""
    had_remote, will_have_remote = (
        model is not None and not model.runs and model.replicas > 0 for model in (current_model, proposed_model)
    )
    return "none" if had_remote == will_have_remote else "start" if will_have_remote else "stop"


def _left(override: Override | None, stage: Stage) -> Override | None:
    if override is None or override.model not in stage.desired.models:
        return None
    return standing(override, stage.desired.models[override.model].declared, stage.declared[override.model])


def _ends(current_override: Override | None, proposed_override: Override | None) -> list[str]:
    return ended(current_override, proposed_override) if current_override is not None else []


# The first steps.


async def _preflights(
    runtime: Runtime, models: Iterable[DesiredModel], conceal: Conceal, now: float
) -> dict[tuple[str, str], PreflightResult]:
    """Whether each model could be started as it would be declared: reads only."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def look(model: DesiredModel) -> PreflightResult:
        async with slots:
            result = await preflight(runtime, model, conceal=conceal, clock=lambda: now)
        # Of the same moment as the plan, which trusts no result from later.
        return replace(result, at=now)

    async with asyncio.TaskGroup() as group:
        tasks = {(model.name, model.spec_hash): group.create_task(look(model)) for model in models}
    return {key: task.result() for key, task in tasks.items()}
