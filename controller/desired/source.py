"""The desired state: files, runtime declarations, overrides and demand put together, and kept over restarts where
files do not say it. Of operators' loads and unloads it knows which stand, and which an edit of the files ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from pydantic import JsonValue

from contract.declarations import DeclarationKind, RuntimeDeclaration, RuntimeDeclarations
from contract.override import Evicted, Override, ended_fields, restate_override
from contract.routing import GatewayReport, Stamp
from contract.status import Problem
from contract.tools import replica_model
from controller.config.debounce import DebouncedState
from controller.config.runtime_declarations import (
    RequestRules,
    drop_declarations,
    list_declared_names,
    list_superseded,
    put_declaration,
)
from controller.config.validate import PlacedSource, list_sources
from controller.desired.file_source import FILES, DesiredOptions, FileSource, check_request, find_outside_paths
from controller.desired.resolve import DeclaredModel, resolve_desired, surviving_override
from controller.state import AttemptNumbers, DesiredState
from controller.state_dir import SleepRecord, StateDir, StoredState

log = logging.getLogger(__name__)


Change = Mapping[str, object]
"""New values of fields of `StoredState`, by field name."""

STORED_FIELD_WORDS: Final[Mapping[str, str]] = {
    "paused": "whether it is paused",
    "declarations": "models and keys that operators declared",
    "discovered": "which model files were found",
    "overrides": "loads, unloads and resets by operators",
    "demand": "which models requests asked for",
    "rested": "which models made room for others",
    "loaded_once": "which models were loaded before",
    "ready_since": "since when replicas are ready",
    "sleepers": "which replicas sleep and how they are known again",
    "drained_hosts": "which hosts are drained",
    "first_declared_at": "when models were declared",
    "keys_used": "when API keys were last used",
    "attempts": "which names replicas had",
}
"""Fields of `StoredState`, in the words of `list_unsaved`."""
_RULING_FIELDS: Final = ("overrides", "demand", "rested", "paused")
"""Fields that the desired state is resolved from."""


class StatePersistence:
    """The stored state of one controller. A change is in force at once, whether or not it could be written. A write
    that failed is tried again by the next `update_state`, which each round calls."""

    def __init__(self, store: StateDir) -> None:
        """Read the state that the last controller stored; defaults where there is none. Raises StateError where the
        stored file is damaged, cannot be read, or is of a newer version."""
        self._store = store
        self._written_state = store.load_memory()
        self._is_writable = True
        self.state: StoredState = self._written_state
        """The state in force."""
        self.ruling_changes = 0
        """Counts the changes of fields that the desired state is resolved from."""

    def update_state(self, change: Change) -> None:
        """Set fields of the state, all in one write, and count a change of ruling fields in `ruling_changes`. Blocks
        for the write. A write that fails raises nothing: the first of several in a row is logged, `list_unsaved` names
        what is not on disk, and the next call writes it again. Where nothing differs from what is on disk, nothing is
        written. `change` is not validated."""
        before, self.state = self.state, self.state.model_copy(update=dict(change))
        self.ruling_changes += any(getattr(before, each) != getattr(self.state, each) for each in _RULING_FIELDS)
        if self.state == self._written_state:
            return
        try:
            self._store.save_memory(self.state)
        except OSError as error:
            if self._is_writable:
                log.warning("the controller's memory is not stored, so a restart would not know it: %s", error)
            self._is_writable = False
        else:
            self._written_state, self._is_writable = self.state, True

    def list_unsaved(self) -> list[str]:
        """Return a phrase for each part of the state that is not on disk yet (see `STORED_FIELD_WORDS`). Empty:
        everything is on disk."""
        before, now = self._written_state, self.state
        return [words for name, words in STORED_FIELD_WORDS.items() if getattr(before, name) != getattr(now, name)]


T = TypeVar("T")

GATEWAYS_HEARD: Final = 64
"""Gateways whose demand is remembered. Each start of a gateway counts as another one."""


class DemandLedger:
    """Demand for autoload models and evictions, by model name. Demand is the Unix time of the last request that makes a
    model wanted; an eviction ends it, and the next request ends the eviction, so a model has at most one of them. Both
    are in the stored state. The last reports of gateways are kept in memory alone, of 64 gateways (`GATEWAYS_HEARD`) at
    most. `clock` gives Unix time."""

    def __init__(self, persistence: StatePersistence, clock: Callable[[], float]) -> None:
        self._persistence = persistence
        self._clock = clock
        self._gateway_demand: dict[str, dict[str, float]] = {}
        """Gateway id to its last reported demand: model to the time of the last request, by the gateway's clock."""
        self._unload_revisions: dict[str, tuple[int, Stamp | None]] = {}
        """Unloaded models to the first revision that holds the unload, and to the first table that tells of it."""

    def take_demand(self, report: GatewayReport) -> bool:
        """Take a gateway's demand for autoload models, and record new requests as demand as of now, which ends the
        models' evictions.

        A model's request is new if it is another than the one in the same gateway's report before. Where that report
        did not have the model, or there was none, the request is new if the model has no demand yet and the request is
        later than its override and eviction. Requests that may be older than an unload are dropped (see
        `note_published`). Return whether any request was new. Blocks for a write to the state folder if so; a failed
        write raises nothing.
        """
        known_demand = self._gateway_demand.pop(report.gateway_id, {})
        self._gateway_demand[report.gateway_id] = dict(report.demand)
        for oldest_id in list(self._gateway_demand)[:-GATEWAYS_HEARD]:
            del self._gateway_demand[oldest_id]
        fresh_names = [
            name
            for name, demanded_at in report.demand.items()
            if not self._is_before_unload(name, report.stamp)
            and self._is_fresh(name, demanded_at, known_demand.get(name))
        ]
        if not fresh_names:
            return False
        for name in fresh_names:
            self._unload_revisions.pop(name, None)
        self.request_reload(fresh_names)
        return True

    def request_reload(self, models: Sequence[str]) -> None:
        """Record demand for each of these models as of now, and end their evictions. Names are not checked; an empty
        sequence does nothing. Blocks for a write to the state folder; a failed write raises nothing."""
        if models:
            state = self._persistence.state
            demand = state.demand | dict.fromkeys(models, self._clock())
            self._persistence.update_state({"rested": _without(state.rested, models), "demand": demand})

    def evict_models(self, models: Mapping[str, str]) -> None:
        """Record that these models were evicted now, and drop the demand for them until the next request for each.
        `models`: name to the reason, in words. An empty mapping does nothing. Blocks for a write to the state
        folder; a failed write raises nothing."""
        if models:
            state = self._persistence.state
            evictions = {name: Evicted(at=self._clock(), reason=reason) for name, reason in models.items()}
            change = {"rested": {**state.rested, **evictions}, "demand": _without(state.demand, models)}
            self._persistence.update_state(change)

    def end_for_override(self, model: str, unload_revision: int | None) -> Change:
        """Return the change of the stored state that a new override of the model makes: its eviction ends, and with an
        unload its demand too. The caller gives the change to `StatePersistence.update_state`. `unload_revision`: the
        revision of the desired state that holds the unload; None: the override is a load. Until `note_published` has
        that revision, gateways' demand for the unloaded model is dropped."""
        state = self._persistence.state
        change: dict[str, object] = {"rested": _without(state.rested, [model])}
        if unload_revision is not None:
            self._unload_revisions[model] = (unload_revision, None)
            change["demand"] = _without(state.demand, [model])
        return change

    def end_edited(self, before: DebouncedState | None, state: DebouncedState) -> Change:
        """Return the change of the stored state that drops the demand and evictions which an edit ended: those of
        models that are not `autoload` any more, are not declared, or whose `enabled` or `replicas` was edited. The
        caller gives the change to `StatePersistence.update_state`. `before`: the state before the edit; None: there was
        none. `state`: the state since."""
        declared_before = before.declared_models if before is not None else {}
        stored = self._persistence.state
        return {
            field: {name: each for name, each in entries.items() if _outlives_edit(name, declared_before, state)}
            for field, entries in (("demand", stored.demand), ("rested", stored.rested))
        }

    def note_published(self, revision: int, stamp: Stamp) -> None:
        """Note that the routing table with that stamp was built from the desired state of that `revision`. Call it for
        each published table: a gateway's demand for an unloaded model counts again once the gateway has the first table
        noted here that holds the unload."""
        for name, (unloaded_at, first_stamp) in self._unload_revisions.items():
            if first_stamp is None and revision >= unloaded_at:
                self._unload_revisions[name] = (unloaded_at, stamp)

    def _is_before_unload(self, name: str, stamp: Stamp | None) -> bool:
        """Whether a gateway with the table of that stamp may report requests from before the model's unload."""
        if name not in self._unload_revisions:
            return False
        _, first_stamp = self._unload_revisions[name]
        return first_stamp is None or stamp is None or stamp < first_stamp

    def _is_fresh(self, name: str, demanded_at: float, known_at: float | None) -> bool:
        """Whether a reported request is new. `known_at`: the last one that the same gateway reported before. Gateways
        report their last request again and again, and an override or an eviction ends earlier ones. A gateway's clock
        is compared with ours only where the gateway has reported nothing before. Any other time is a new request, and
        an end in the future is none: the clock may have been set back since."""
        if known_at is not None:
            return demanded_at != known_at
        state, now = self._persistence.state, self._clock()
        end_times = [each.at for each in (state.overrides.get(name), state.rested.get(name)) if each is not None]
        return name not in state.demand and all(demanded_at > at for at in end_times if at <= now)


def _outlives_edit(name: str, declared_before: Mapping[str, Mapping[str, Any]], state: DebouncedState) -> bool:
    """Whether a model's demand or eviction still counts after an edit: it is `autoload`, and was not restated."""
    definition = state.definitions.get(name)
    if definition is None or not definition.autoload:
        return False
    return not restate_override(declared_before.get(name), state.declared_models[name])


def _without(entries: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: entry for name, entry in entries.items() if name not in names}


def _end_edited_overrides(
    overrides: Mapping[str, Override], state: DebouncedState
) -> tuple[dict[str, Override], dict[str, list[str]]]:
    """Return the overrides without what an edit ended, for good, and by model the names of what ended (see
    `ended_fields`). Models of which nothing ended are left out of these; the override of a removed model ends.
    `state` is in force since the edit."""
    kept_overrides: dict[str, Override] = {}
    ended_by_model: dict[str, list[str]] = {}
    for name, override in overrides.items():
        definition = state.definitions.get(name)
        kept_override = (
            surviving_override(override, definition, state.declared_models[name]) if definition is not None else None
        )
        if kept_override is not None:
            kept_overrides[name] = kept_override
        if ended_names := ended_fields(override, kept_override):
            ended_by_model[name] = ended_names
    return kept_overrides, ended_by_model


OnEdit = Callable[[DebouncedState | None, DebouncedState, Mapping[str, Sequence[str]], str], None]
"""Takes the state before an edit (None: none), the state since, by model what it ended of the override, and who made
the edit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DesiredCallbacks:
    """Who is told what comes into force, and who is asked."""

    learn: Callable[[Mapping[str, Mapping[str, Any]]], None] = lambda _: None
    """Takes note of secrets: it gets the fields of each model and MCP server, and the parameters of each load, before
    they come into force."""
    on_edit: OnEdit = lambda *_: None
    """Called for each edit with the state before (None: there was none), the state now, by model what the edit ended of
    its override, and who made the edit."""
    on_superseded: Callable[[DeclarationKind, str], None] = lambda *_: None
    """Called for each runtime declaration that ends because the files declare its name."""
    find_sources: Callable[[frozenset[str]], Mapping[str, PlacedSource]] = lambda _: {}
    """Returns where the files of sources are, by source; sources whose files are not here are absent. Blocks."""


NO_CALLBACKS: Final = DesiredCallbacks()
KEYS_STORED_EVERY_S: Final = 60.0


class DesiredStateSource:
    """The desired state of one controller: the files, the overrides of operators and the demand of requests. There is
    one for a controller's lifetime. `file_source` has what the files declare and their problems, `demand` what requests
    asked for. Call `recover_last_good` before the first `read_files`. What must outlast the controller is written to
    the state folder at each change, which blocks; a failed write raises nothing (see `list_unsaved`)."""

    def __init__(
        self,
        options: DesiredOptions,
        store: StateDir,
        clock: Callable[[], float],
        callbacks: DesiredCallbacks = NO_CALLBACKS,
    ) -> None:
        """`clock` gives Unix time. Raises StateError where the stored state in `store` is damaged, cannot be read, or
        is of a newer version."""
        self._callbacks = callbacks
        self._sources: Mapping[str, PlacedSource] = {}
        self._source_changes = 0
        self._looks_begun = self._look_taken = 0
        self._roots = options.roots
        self._trusted = options.trusted
        self._defaults = options.defaults
        self._clock = clock
        self._keys_stored_at = float("-inf")
        self._persistence = StatePersistence(store)
        self.demand = DemandLedger(self._persistence, clock)
        self.file_source = FileSource(options, store.folder, clock, self._follow_edit)
        self.file_source.set_declarations(self._persistence.state.declarations, FILES)
        self.file_source.set_discovered(self._persistence.state.discovered)

    @property
    def revision(self) -> int:
        """Counter that grows with every change of what `desired_state` returns. It begins anew with each controller."""
        return self.declared_changes + self._persistence.ruling_changes

    @property
    def declared_changes(self) -> int:
        """Counter of edits of what is declared, and of changes of `sources`. It begins anew with each controller."""
        return self.file_source.generation + self._source_changes

    @property
    def sources(self) -> Mapping[str, PlacedSource]:
        """Where the files are of the declared models' sources that are here, by source in its canonical form, as they
        were last looked for."""
        return self._sources

    @property
    def stored_state(self) -> StoredState:
        """The part of the desired state that is kept over restarts, as in force now, written to disk or not."""
        return self._persistence.state

    @property
    def in_force(self) -> DebouncedState | None:
        """What is declared, by the files as last valid and at run time, without overrides and demand, and among the
        models the MCP servers that the controller runs (`mcp:NAME`); None: no valid files were ever read, and no last
        good state was recovered."""
        return self.file_source.in_force

    def desired_state(self) -> DesiredState | None:
        """Return the desired state: the declared models, and as models the MCP servers that the controller runs
        (`mcp:NAME`), with overrides, demand and evictions applied, and the keys, tools and MCP servers. None: no valid
        files were ever read, nor a last good state recovered."""
        in_force, stored = self.file_source.in_force, self._persistence.state
        if in_force is None:
            return None
        declared_models = {
            name: DeclaredModel(
                definition,
                in_force.declared_models[name],
                self.file_source.declared_since(name),
                stored.first_declared_at.get(name),
                is_runtime_declared=name in self.file_source.runtime_models,
                is_discovered=name in self.file_source.discovered_models,
            )
            for name, definition in in_force.definitions.items()
        }
        desired = resolve_desired(
            declared_models, stored, self._defaults, generation=self.file_source.generation, sources=self._sources
        )
        return replace(
            desired,
            revision=self.revision,
            keys=in_force.keys,
            tools=in_force.tools.tools,
            mcp_servers=in_force.tools.servers,
        )

    # Files.

    def recover_last_good(self) -> None:
        """Put the stored last good state into force, so that broken files do not stop what ran. Where there is none
        that can be used, the state in force stays None. Call it once, before the first `read_files`; it raises nothing
        and does not call `on_edit`. Blocks: reads files, and writes to the state folder."""
        self._callbacks.learn({name: override.params for name, override in self.stored_state.overrides.items()})
        state = self.file_source.recover_last_good()
        if state is not None:
            self._learn_declared(state)
            self._look_at_once(state)
            self._persistence.update_state({"first_declared_at": self._first_declared_at(state)})

    async def read_files(self) -> None:
        """Read the folder now, and put what it declares into force unless a file has a problem. Problems are in
        `file_source.problems`, and raise nothing. Parsing changed files, and what an edit writes to the state folder,
        block the event loop. The removal of a model, an MCP server, or the last key, comes into force only with a
        second reading at `wake_at` or later. An edit ends the overrides, demand and evictions that it contradicts, and
        runtime declarations whose names the files declare end. `on_edit` and `on_superseded` are called before the
        return."""
        await self.file_source.read_files()
        self._end_superseded()

    async def refresh_files(self, now: float) -> None:
        """Read the folder as `read_files` does if `resync_s` has passed since the last reading, or `wake_at` is
        reached, and then look for the files of sources; otherwise do nothing. `now` is Unix time."""
        read_at = self.file_source.read_at
        await self.file_source.refresh_files(now)
        self._end_superseded()
        if self.file_source.read_at != read_at:
            await self.refresh_sources()

    async def refresh_sources(self) -> None:
        """Look again for the files of the declared models' sources, in a thread. A model whose files are found waits
        for no download any more; `revision` grows where anything is different. Does nothing before any files were in
        force."""
        if self.in_force is not None:
            sources = list_sources(self.in_force.definitions.values())
            self._looks_begun = look = self._looks_begun + 1
            self._take_sources(await asyncio.to_thread(self._callbacks.find_sources, sources), look)

    def _look_at_once(self, state: DebouncedState) -> None:
        self._looks_begun += 1
        found = self._callbacks.find_sources(list_sources(state.definitions.values()))
        self._take_sources(found, self._looks_begun)

    def _take_sources(self, sources: Mapping[str, PlacedSource], look: int) -> None:
        if look < self._look_taken:
            return  # one that began later has seen more
        self._look_taken = look
        if sources != self._sources:
            self._sources = sources
            self._source_changes += 1

    def _follow_edit(self, before: DebouncedState | None, state: DebouncedState, actor: str) -> None:
        self._learn_declared(state)
        # At once, although it reads the disk: a model whose files are here must not wait for a download.
        self._look_at_once(state)
        overrides, ended_by_model = _end_edited_overrides(self.stored_state.overrides, state)
        change = {"first_declared_at": self._first_declared_at(state), "overrides": overrides}
        self._persistence.update_state({**change, **self.demand.end_edited(before, state)})
        self._callbacks.on_edit(before, state, ended_by_model, actor)

    def _learn_declared(self, state: DebouncedState) -> None:
        servers = {replica_model(name): fields for name, fields in state.tools.declared_servers.items()}
        self._callbacks.learn({**state.declared_models, **servers})

    def _first_declared_at(self, state: DebouncedState) -> dict[str, float]:
        known, now = self.stored_state.first_declared_at, self._clock()
        return {name: known.get(name, now) for name in state.declared_models}

    def wake_at(self) -> float | None:
        """Return the Unix time at which the files must be read again, to confirm that a model, an MCP server or the
        last key was removed; None: nothing is to be confirmed."""
        return self.file_source.wake_at

    # Runtime declarations.

    @property
    def declarations(self) -> RuntimeDeclarations:
        """The runtime declarations, those that are not in force included. They are kept over restarts."""
        return self._persistence.state.declarations

    def declares(self, kind: DeclarationKind, name: str) -> bool:
        """Return whether the files declare a model or a key of this name, as last valid."""
        files = self.file_source.from_files
        return files is not None and name in (files.definitions if kind == "models" else files.keys)

    def is_last_key(self, name: str) -> bool:
        """Return whether no file and no other runtime declaration declares a key than this runtime declaration."""
        files = self.file_source.from_files
        return self.declarations.keys.keys() == {name} and (files is None or not files.keys)

    def check_declaration(self, kind: DeclarationKind, name: str, declaration: RuntimeDeclaration) -> list[Problem]:
        """Return the problems, with secrets masked, that a declaration would have beside what is declared now; empty:
        it could be put. Nothing is changed. Before any valid files were read, it is checked by itself. Blocks for a
        look at where its paths lead."""
        files = self.file_source.from_files or DebouncedState({}, {})
        declarations = put_declaration(self.declarations, kind, name, declaration)
        return list(check_request(files, declarations, kind, name, self._roots, self._trusted))

    def put_declaration(self, kind: DeclarationKind, name: str, declaration: RuntimeDeclaration) -> None:
        """Declare a model or a key, in place of an earlier runtime declaration of that name. It is in force, and
        `on_edit` was called, before the return. Nothing is checked: call `check_declaration` and `declares` first.
        Blocks for a look at the models folders."""
        self._set_declarations(put_declaration(self.declarations, kind, name, declaration), declaration.actor)

    def drop_declaration(self, kind: DeclarationKind, name: str, actor: str) -> bool:
        """Remove a runtime declaration: its model is drained, its key refused. Return whether there was one. `on_edit`
        is called before the return. Blocks for a look at the models folders."""
        known = self.declarations.models if kind == "models" else self.declarations.keys
        if name not in known:
            return False
        self._set_declarations(drop_declarations(self.declarations, {kind: [name]}), actor)
        return True

    def _set_declarations(self, declarations: RuntimeDeclarations, actor: str) -> None:
        # First on disk: a declaration is an operator's word, and must outlive a crash in what follows.
        self._persistence.update_state({"declarations": declarations})
        self.file_source.set_declarations(declarations, actor)

    def _end_superseded(self) -> None:
        if self.file_source.from_files is None:
            return
        superseded = list_superseded(self.file_source.from_files, self.declarations)
        if not any(superseded.values()):
            return
        self._set_declarations(drop_declarations(self.declarations, superseded), FILES)
        for kind, names in superseded.items():
            for name in names:
                self._callbacks.on_superseded(kind, name)

    @property
    def is_discovering(self) -> bool:
        """Whether the desired-state files in force say `discover: true`, so that each model file which no declaration
        names is declared; False also before any files could be read."""
        return self.file_source.from_files is not None and self.file_source.from_files.discover

    def set_discovered(self, discovered: Mapping[str, Mapping[str, JsonValue]]) -> bool:
        """Store these models that were found in the models folders, fields by name, in place of those found before.
        They are in force only while the files say `discover`, without those that are not valid or whose name or file a
        declaration has. The next controller gets them, too, so that it does not stop their engines before it has
        looked. Return whether they differ from those stored before; if not, nothing is done. Where the declared state
        changes, `on_edit` is called before the return. Blocks for a write."""
        found = {name: dict(fields) for name, fields in discovered.items()}
        if found == self.stored_state.discovered:
            return False
        self._persistence.update_state({"discovered": found})
        self.file_source.set_discovered(found)
        return True

    # Overrides and demand.

    def get_override(self, name: str) -> Override | None:
        """Return the override that stands for a model, without parameters that no longer fit what is declared or were
        edited since. None: there is none, edits have ended all of it, or the model is not declared."""
        override, in_force = self.stored_state.overrides.get(name), self.in_force
        if override is None or in_force is None or name not in in_force.declared_models:
            return None
        return surviving_override(override, in_force.definitions[name], in_force.declared_models[name])

    def find_load_fault(self, name: str, params: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the first field of a load that a request may not give this value, and why, as the second half of a
        sentence; None: it may give all. `name`: of a declared model; `params`: fields of its definition with valid
        values. Blocks for a look at where paths lead."""
        in_force = self.file_source.in_force
        assert in_force is not None, "a model is declared"
        definition_class = type(in_force.definitions[name])
        rules = RequestRules(self._roots, self._trusted, list_declared_names(in_force.definitions.values()))
        refusals = rules.find_refusals(definition_class, params)
        outside = find_outside_paths(self._roots, rules.list_bounded_paths(definition_class, params))
        return next(refusals, None) or next(iter(outside), None)

    def set_override(self, override: Override) -> None:
        """Put an operator's load or unload into force, in place of the model's earlier override. It ends the model's
        eviction, and an unload also drops the demand for the model. The caller checks that the model exists and accepts
        the parameters. Blocks for a write to the state folder; a failed write raises nothing."""
        self._callbacks.learn({override.model: override.params})
        unload_revision = self.revision + 1 if override.action == "unload" else None
        self._persistence.update_state(
            {
                "overrides": {**self.stored_state.overrides, override.model: override},
                **self.demand.end_for_override(override.model, unload_revision),
            }
        )

    def drop_override(self, name: str) -> bool:
        """Remove a model's override, so that demand and the files decide again. Return whether there was one. Blocks
        for a write to the state folder; a failed write raises nothing."""
        overrides = self.stored_state.overrides
        if name not in overrides:
            return False
        self._persistence.update_state({"overrides": _without(overrides, [name])})
        return True

    def request_reload(self, models: Sequence[str]) -> None:
        """Record demand for these models as of now, and end their evictions. Blocks for a write to the state folder; a
        failed write raises nothing."""
        self.demand.request_reload(models)

    def evict_models(self, models: Mapping[str, str]) -> None:
        """Record that these models, name to reason, were evicted now, and drop the demand for them until the next
        request for each. Blocks for a write to the state folder; a failed write raises nothing."""
        self.demand.evict_models(models)

    # What the next controller must know.

    def set_paused(self, paused: bool) -> None:
        """Pause or resume the controller, over restarts too. Setting what is set already does nothing. Blocks for a
        write to the state folder; a failed write raises nothing."""
        self._persistence.update_state({"paused": paused})

    def drained_hosts(self) -> Mapping[str, float]:
        """Return the hosts that an operator drains, by name, to the Unix time of that."""
        return self.stored_state.drained_hosts

    def set_drained(self, host: str, is_drained: bool) -> None:
        """Let a host be drained from now on, or not any more."""
        drained = {name: at for name, at in self.stored_state.drained_hosts.items() if name != host}
        if is_drained:
            drained[host] = self.stored_state.drained_hosts.get(host, self._clock())
        self._persistence.update_state({"drained_hosts": drained})

    def remember_attempts(self, attempts: AttemptNumbers) -> None:
        """Store each replica's highest attempt number, so that no later controller gives a name twice. Call it before
        starting a replica with a new number. Blocks for a write to the state folder; a failed write raises nothing."""
        self._persistence.update_state({"attempts": attempts})

    def remember_loaded(
        self, loaded_once: frozenset[str], ready_since: dict[str, float], sleepers: dict[str, SleepRecord]
    ) -> None:
        """Store, in place of what was stored before, the names of the models that were loaded since they were last
        wanted, the Unix time by replica name since when each replica is ready, and by the same name what must be known
        of each that can sleep. Blocks for a write to the state folder; a failed write raises nothing."""
        self._persistence.update_state(
            {"loaded_once": sorted(loaded_once), "ready_since": ready_since, "sleepers": sleepers}
        )

    def remember_keys_used(self, keys_used: Mapping[str, float]) -> None:
        """Store the Unix time of the last use of each API key, in place of what was stored before. Call it often: it
        writes once a minute at most. Blocks for the write; a failed write raises nothing."""
        now = self._clock()
        if keys_used != self.stored_state.keys_used and not 0 <= now - self._keys_stored_at < KEYS_STORED_EVERY_S:
            self._keys_stored_at = now
            self._persistence.update_state({"keys_used": dict(keys_used)})

    def list_unsaved(self) -> list[str]:
        """Return a phrase for each part of the stored state, and of what the files declared, that could not be
        written to disk yet. Empty: a restart would lose nothing. Failed writes are tried again by later changes and
        readings."""
        unsaved = self._persistence.list_unsaved()
        return unsaved if self.file_source.is_last_good_saved else [*unsaved, "what the files last said"]
