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
    read = await asyncio.to_thread(read_folder, folder)
    # A large file takes seconds to parse.
    parsed = await asyncio.to_thread(parse, _with(read, contents), models_root)
    if not parsed.ok:
        return DryRun(ok=False, problems=list(parsed.problems), changes=[], plan=None)
    before = Stage(declared_now, desired_now)
    after = Stage(parsed.declared, _desired(before, parsed, overrides, demand, rested, defaults, now))
    changes = compare(before, after, observed, overrides)
    wanted = [after.desired.models[each.model] for each in changes if each.model in after.desired.models]
    conceal = concealment.with_proposed(parsed.declared)
    found = await _preflights(runtime, [model for model in wanted if model.runs and model.replicas], conceal, now)
    then = Round(
        after.desired,
        replace(observed, preflights={**observed.preflights, **found}),
        Plan(after.desired.generation),
        (),
    )
    keys = key_edits(keys_now, parsed.declared_keys)
    return DryRun(ok=True, problems=[], changes=changes, keys=keys, plan=plan_view(then, now))


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


def _with(read: FolderSnapshot, contents: Mapping[str, bytes | None]) -> FolderSnapshot:
    """The folder as it would be. What could not be read and is replaced is no problem any more."""
    replaced = {read.path_of(name) for name in contents}
    known = read.files.keys() | {problem.file for problem in read.problems}
    for name, content in contents.items():
        if content is None and name not in known and read.path_of(name) not in known:
            raise RoundhouseError("invalid_request", f"there is no file {name} to remove", param="files")
    merged = {name: content for name, content in {**read.files, **contents}.items() if content is not None}
    return FolderSnapshot(
        read.folder,
        {name: merged[name] for name in sorted(merged, key=merge_order)},
        tuple(problem for problem in read.problems if problem.file not in replaced),
    )


# What would be wanted.


def _desired(
    before: Stage,
    parsed: Parsed,
    overrides: Mapping[str, Override],
    demand: Mapping[str, float],
    rested: Mapping[str, Rested],
    defaults: Defaults,
    now: float,
) -> DesiredState:
    declared = {}
    for name, definition in parsed.definitions.items():
        known = before.desired.models.get(name)
        same = known is not None and before.declared.get(name) == parsed.declared[name]
        since = known.statement.since if known is not None and same and known.statement.kind == "file" else now
        declared[name] = Declared(definition, parsed.declared[name], since)
    ended = {name for name in declared if restated(before.declared.get(name), parsed.declared[name])}
    return resolve(
        declared,
        overrides,
        {name: at for name, at in demand.items() if name not in ended},
        defaults,
        generation=before.desired.generation + 1,
        paused=before.desired.paused,
        rested={name: rest for name, rest in rested.items() if name not in ended},
    )


# The differences. Pure.


def compare(
    before: Stage, after: Stage, observed: ObservedState, overrides: Mapping[str, Override]
) -> list[ModelChange]:
    """What becomes of each model that would be declared otherwise, in name order."""
    return [
        _change(edit, before, after, observed, overrides.get(edit.model))
        for edit in edits(before.declared, after.declared)
    ]


def _change(edit: Edit, before: Stage, after: Stage, observed: ObservedState, override: Override | None) -> ModelChange:
    now, then = before.desired.models.get(edit.model), after.desired.models.get(edit.model)
    alive = [replica for replica in observed.replicas if replica.id.model == edit.model and _stays(replica)]
    restarts = _restarts(now, then, alive)
    return ModelChange(
        model=edit.model,
        change=edit.change,
        fields=list(edit.fields),
        effect=_effect(now, then, alive, restarts),
        restarts=restarts,
        ends=_ends(_left(override, before), _left(override, after)),
    )


def _stays(replica: ObservedReplica) -> bool:
    return replica.phase is not Phase.EXITED and replica.draining is None


def _engines(model: DesiredModel | None) -> int:
    return model.replicas if model is not None and model.runs else 0


def _restarts(now: DesiredModel | None, then: DesiredModel | None, alive: Collection[ObservedReplica]) -> list[str]:
    """Engines that run something else than what would be declared, and would be wanted. By name."""
    if then is None or (now is not None and now.spec_hash == then.spec_hash):
        return []
    wanted = range(_engines(then))
    return sorted(each.name for each in alive if each.id.spec_hash != then.spec_hash and each.id.index in wanted)


def _effect(
    now: DesiredModel | None, then: DesiredModel | None, alive: Collection[ObservedReplica], restarts: Collection[str]
) -> Effect:
    old, new = _engines(now), _engines(then)
    if new == 0:
        return "stop" if old or alive else _elsewhere(now, then)
    if restarts:
        return "restart"
    other = now is None or then is None or now.spec_hash != then.spec_hash
    if old == 0 or (other and not alive):
        return "start"
    return "scale" if old != new else "none"


def _elsewhere(now: DesiredModel | None, then: DesiredModel | None) -> Effect:
    """The effect where no engine runs or will: a remote counts as one, which clients gain or lose."""
    was, will = (model is not None and not model.runs and model.replicas > 0 for model in (now, then))
    return "none" if was == will else "start" if will else "stop"


def _left(override: Override | None, under: Stage) -> Override | None:
    if override is None or override.model not in under.desired.models:
        return None
    return standing(override, under.desired.models[override.model].declared, under.declared[override.model])


def _ends(before: Override | None, after: Override | None) -> list[str]:
    return ended(before, after) if before is not None else []


# The first steps.


async def _preflights(
    runtime: Runtime, models: Iterable[DesiredModel], conceal: Conceal, now: float
) -> dict[tuple[str, str], PreflightResult]:
    """Whether each model could be started as it would be declared: reads only."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def look(model: DesiredModel) -> PreflightResult:
        async with turn:
            result = await preflight(runtime, model, conceal=conceal, clock=lambda: now)
        # Of the same moment as the plan, which trusts no result from later.
        return replace(result, at=now)

    async with asyncio.TaskGroup() as group:
        looks = {(model.name, model.spec_hash): group.create_task(look(model)) for model in models}
    return {key: task.result() for key, task in looks.items()}
