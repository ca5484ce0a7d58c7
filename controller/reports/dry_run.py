"""Dry runs: what proposed desired files would change, restart and do first. Nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from contract.admin import DryRun, ModelChange, ProposedFiles
from contract.declarations import RuntimeDeclaration, RuntimeDeclarations
from contract.errors import RoundhouseError
from contract.override import Override, ended_fields, restate_override
from contract.status import Problem
from controller.config.debounce import DebouncedState, settled_state
from controller.config.parse import (
    MAX_FILE_BYTES,
    SUFFIXES,
    FolderSnapshot,
    is_read,
    merge_order,
    parse_folder,
    read_folder,
)
from controller.config.runtime_declarations import combine_declarations, list_superseded, put_declaration
from controller.config.validate import PlacedSource, list_sources
from controller.desired.differences import ModelEdit, diff_keys, diff_models, diff_tools
from controller.desired.file_source import DesiredOptions, check_request
from controller.desired.resolve import DeclaredModel, Defaults, resolve_desired, surviving_override
from controller.executor import run_preflight
from controller.model_status import Round
from controller.planning.actions import Plan
from controller.planning.placement import usable_hosts
from controller.redaction import Redact, Redactor
from controller.reports.views import plan_view
from controller.runtimes.base import Runtime
from controller.state import (
    DesiredModel,
    DesiredState,
    ObservedReplica,
    ObservedState,
    Phase,
    PreflightKey,
    PreflightResult,
)
from controller.state_dir import StoredState

AT_ONCE: Final = 4
"""Concurrent preflights of a dry run at most."""

DeclaredState = Mapping[str, Mapping[str, Any]]
"""Name of a model (or of an API key) to its fields in the files."""
Effect = Literal["none", "start", "stop", "restart", "scale"]
"""What a change of files does to a model. A remote model, which has no engines, starts or stops for its clients."""


@dataclass(frozen=True, slots=True)
class DryRunStage:
    """One side of the comparison: the current files or the proposed ones."""

    declared: DeclaredState
    """What the files declare."""
    desired: DesiredState
    """What is wanted, after operators' overrides and demand are applied to what the files declare."""


@dataclass(frozen=True, slots=True)
class DryRunner:
    """Makes dry runs. `find_sources` returns, by source, where the files are of those sources that are here; it is
    called in a thread. `runtime` runs preflights."""

    options: DesiredOptions
    find_sources: Callable[[frozenset[str]], Mapping[str, PlacedSource]]
    runtime: Runtime
    redactor: Redactor

    async def run(
        self,
        proposed: ProposedFiles,
        loads: Sequence[Override],
        *,
        current: Round,
        in_force: DebouncedState,
        stored: StoredState,
        now: float,
    ) -> DryRun:
        """Return what the proposed files would do if they replaced those of the same names, together with the proposed
        declarations at run time and `loads`, statements about models. A proposed content of None removes the file.
        Nothing is written, started or stopped.

        `in_force` is what the current files and the runtime declarations of `stored` declare together; what is desired
        in `current` follows from it and from `stored`. The runtime runs preflights of the changed models that are
        wanted, and the plan follows from what is observed in `current` and these at `now`, Unix time.

        Raises RoundhouseError: `invalid_request` if a name is not that of a desired file, a file is too large or not
        valid Unicode, or a file to remove does not exist; `declared_in_files` if a file declares a model that is to be
        declared at run time. Errors in the content of files and declarations do not raise: the result then has `ok`
        false, lists them, and has no changes and no plan. A failed preflight does not raise either.
        """
        options, observed = self.options, current.observed
        contents = _check_contents(proposed)
        snapshot = await asyncio.to_thread(read_folder, options.folder)
        # In a thread, since a large file takes seconds to parse.
        parsed = await asyncio.to_thread(parse_folder, _merge_files(snapshot, contents), options.roots)
        if not parsed.is_valid:
            return DryRun(ok=False, problems=list(parsed.problems), changes=[], plan=None)
        files = settled_state(parsed)
        declarations, problems = await asyncio.to_thread(
            _propose_declarations, proposed, files, stored.declarations, options, now
        )
        if problems:
            return DryRun(ok=False, problems=problems, changes=[], plan=None)
        superseded = list_superseded(files, declarations)
        proposed_state = combine_declarations(
            files, declarations, options.roots, options.trusted, stored.discovered
        ).state
        sources = await asyncio.to_thread(self.find_sources, list_sources(proposed_state.definitions.values()))
        current_stage = DryRunStage(in_force.declared_models, current.desired)
        stated = stored.model_copy(update={"overrides": {**stored.overrides, **{each.model: each for each in loads}}})
        proposed_stage = DryRunStage(
            proposed_state.declared_models,
            _resolve_proposed(current_stage, proposed_state, stated, sources, options.defaults, now),
        )
        changes = compare_stages(current_stage, proposed_stage, observed, stored.overrides)
        changed_names = dict.fromkeys([*(each.model for each in changes), *(each.model for each in loads)])
        models = proposed_stage.desired.models
        changed_models = [models[name] for name in changed_names if name in models]
        preflights = await _run_preflights(
            self.runtime,
            [
                (model, host.name)
                for model in changed_models
                if model.runs and model.replicas and model.missing_source is None
                for host in usable_hosts(model, observed)
            ],
            self.redactor.with_proposed(proposed_state.declared_models),
            now,
        )
        # A load tries again at once.
        loaded = {each.model for each in loads}
        failures = {key: failure for key, failure in observed.failures.items() if key.model not in loaded}
        proposed_observed = replace(observed, preflights={**observed.preflights, **preflights}, failures=failures)
        proposed_plan = Plan(proposed_stage.desired.generation)
        return DryRun(
            ok=True,
            problems=[],
            changes=changes,
            keys=diff_keys(in_force.declared_keys, proposed_state.declared_keys),
            tools=diff_tools(in_force.tools, proposed_state.tools),
            plan=plan_view(Round(proposed_stage.desired, proposed_observed, proposed_plan, ()), now),
            superseded=[*superseded["models"], *(f"key {name}" for name in superseded["keys"])],
        )


# The files.


def _check_contents(proposed: ProposedFiles) -> dict[str, bytes | None]:
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


def _merge_files(snapshot: FolderSnapshot, contents: Mapping[str, bytes | None]) -> FolderSnapshot:
    """Return the folder with the proposed contents. A file that could not be read is no problem once it is replaced."""
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


def _resolve_proposed(
    current_stage: DryRunStage,
    proposed: DebouncedState,
    stored: StoredState,
    sources: Mapping[str, PlacedSource],
    defaults: Defaults,
    now: float,
) -> DesiredState:
    declared = {}
    for name, definition in proposed.definitions.items():
        current_model = current_stage.desired.models.get(name)
        is_unchanged = current_model is not None and current_stage.declared.get(name) == proposed.declared_models[name]
        since = (
            current_model.statement.since
            if current_model is not None and is_unchanged and current_model.statement.kind == "file"
            else now
        )
        declared[name] = DeclaredModel(definition, proposed.declared_models[name], since)
    ended_names = {
        name for name in declared if restate_override(current_stage.declared.get(name), proposed.declared_models[name])
    }
    demand = {name: at for name, at in stored.demand.items() if name not in ended_names}
    rested = {name: eviction for name, eviction in stored.rested.items() if name not in ended_names}
    return resolve_desired(
        declared,
        stored.model_copy(update={"demand": demand, "rested": rested}),
        defaults,
        generation=current_stage.desired.generation + 1,
        sources=sources,
    )


def _propose_declarations(
    proposed: ProposedFiles,
    files: DebouncedState,
    declarations: RuntimeDeclarations,
    options: DesiredOptions,
    now: float,
) -> tuple[RuntimeDeclarations, list[Problem]]:
    """Return the declarations at run time with the proposed ones, and the problems that these have. Blocks on the disk.
    Raises RoundhouseError `declared_in_files` for a model that `files` declare."""
    for name, fields in proposed.models.items():
        if name in files.definitions:
            message = f"The desired-state files declare the model {name}: edit them."
            raise RoundhouseError("declared_in_files", message, param="models")
        declaration = RuntimeDeclaration(fields=fields, declared_at=now, actor="dry run")
        declarations = put_declaration(declarations, "models", name, declaration)
    problems = [
        each
        for name in proposed.models
        for each in check_request(files, declarations, "models", name, options.roots, options.trusted)
    ]
    return declarations, problems


# The differences. Pure.


def compare_stages(
    current_stage: DryRunStage, proposed_stage: DryRunStage, observed: ObservedState, overrides: Mapping[str, Override]
) -> list[ModelChange]:
    """Return the effect on each model whose declaration differs between the two stages, in name order. `observed` says
    which replicas run now, `overrides` maps models to an operator's load or unload that the change may end. Pure."""
    return [
        _model_change(edit, current_stage, proposed_stage, observed, overrides.get(edit.model))
        for edit in diff_models(current_stage.declared, proposed_stage.declared)
    ]


def _model_change(
    edit: ModelEdit,
    current_stage: DryRunStage,
    proposed_stage: DryRunStage,
    observed: ObservedState,
    override: Override | None,
) -> ModelChange:
    current_model = current_stage.desired.models.get(edit.model)
    proposed_model = proposed_stage.desired.models.get(edit.model)
    alive_replicas = [
        each
        for each in observed.replicas
        if each.id.model == edit.model and each.phase is not Phase.EXITED and each.draining is None
    ]
    restarts = _restarted_names(current_model, proposed_model, alive_replicas)
    standing = _surviving_override(override, current_stage)
    return ModelChange(
        model=edit.model,
        change=edit.change,
        fields=list(edit.fields),
        effect=_effect(current_model, proposed_model, alive_replicas, restarts),
        restarts=restarts,
        ends=ended_fields(standing, _surviving_override(override, proposed_stage)) if standing is not None else [],
    )


def _engine_count(model: DesiredModel | None) -> int:
    return model.replicas if model is not None and model.runs else 0


def _restarted_names(
    current_model: DesiredModel | None, proposed_model: DesiredModel | None, alive_replicas: Collection[ObservedReplica]
) -> list[str]:
    """Return the names of the replicas that stay wanted but would have to restart with the proposed definition."""
    if proposed_model is None or (current_model is not None and current_model.spec_hash == proposed_model.spec_hash):
        return []
    wanted_indices = range(_engine_count(proposed_model))
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
    current_count, proposed_count = _engine_count(current_model), _engine_count(proposed_model)
    if proposed_count == 0:
        return "stop" if current_count or alive_replicas else _remote_effect(current_model, proposed_model)
    if restarts:
        return "restart"
    is_redefined = (
        current_model is None or proposed_model is None or current_model.spec_hash != proposed_model.spec_hash
    )
    if current_count == 0 or (is_redefined and not alive_replicas):
        return "start"
    return "scale" if current_count != proposed_count else "none"


def _remote_effect(current_model: DesiredModel | None, proposed_model: DesiredModel | None) -> Effect:
    """Return the effect on a model without engines before and after. A remote model that clients gain or lose counts as
    started or stopped."""
    had_remote, will_have_remote = (
        model is not None and not model.runs and model.replicas > 0 for model in (current_model, proposed_model)
    )
    return "none" if had_remote == will_have_remote else "start" if will_have_remote else "stop"


def _surviving_override(override: Override | None, stage: DryRunStage) -> Override | None:
    if override is None or override.model not in stage.desired.models:
        return None
    return surviving_override(
        override, stage.desired.models[override.model].declared_definition, stage.declared[override.model]
    )


# The first steps.


async def _run_preflights(
    runtime: Runtime, places: Iterable[tuple[DesiredModel, str]], redact: Redact, now: float
) -> dict[PreflightKey, PreflightResult]:
    """Check whether each model could be started as proposed on the host of this name. Reads only."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def look(model: DesiredModel, host: str) -> PreflightResult:
        async with slots:
            result = await run_preflight(runtime, model, host=host, redact=redact, clock=lambda: now)
        # Dated like the plan, which does not trust results from after its own time.
        return replace(result, at=now)

    async with asyncio.TaskGroup() as group:
        tasks = {
            PreflightKey(model.name, model.spec_hash, host): group.create_task(look(model, host))
            for model, host in places
        }
    return {key: task.result() for key, task in tasks.items()}
