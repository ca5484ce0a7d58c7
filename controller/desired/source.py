"""The desired state: files, runtime declarations, overrides and demand put together.

`FileSource` reads the files and puts the runtime declarations beside them, `OverrideStore` holds what operators said,
`DemandLedger` what requests asked for, and `StatePersistence` keeps all but the files over restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from controller.artifacts.model_roots import ModelRoots
from controller.config.debounce import DebouncedState
from controller.config.model_sources import PlacedSource, list_sources
from controller.config.request_fields import RequestRules, list_declared_names
from controller.config.runtime_declarations import drop_declarations, list_superseded, put_declaration
from controller.desired.demand_ledger import DemandLedger
from controller.desired.file_source import FILES, FileSource
from controller.desired.override_store import OverrideStore
from controller.desired.persistence import StatePersistence
from controller.desired.request_paths import check_request, find_outside_paths
from controller.desired.resolve import DeclaredModel, Defaults, resolve_desired
from controller.schema.attempts import AttemptNumbers
from controller.schema.declarations import DeclarationKind, RuntimeDeclaration, RuntimeDeclarations
from controller.schema.override import Override
from controller.schema.routing import GatewayReport, Stamp
from controller.schema.status import Problem
from controller.schema.tools import replica_model
from controller.state import DesiredState
from controller.storage.state_dir import StateDir, StoredState

OnEdit = Callable[[DebouncedState | None, DebouncedState, Mapping[str, Sequence[str]], str], None]
"""Takes the state before an edit (None: none), the state since, by model what it ended of the override, and who made
the edit."""


class DesiredStateSource:
    """The desired state of one controller: the files, the overrides of operators and the demand of requests.

    There is one for a controller's lifetime. Call `recover_last_good` before the first `read_files`. What must outlast
    the controller is written at each change; a failed write raises nothing (see `list_unsaved`).
    """

    def __init__(
        self,
        folder: Path,
        roots: ModelRoots,
        store: StateDir,
        defaults: Defaults,
        *,
        resync_s: float,
        clock: Callable[[], float],
        learn: Callable[[Mapping[str, Mapping[str, Any]]], None] = lambda _: None,
        on_edit: OnEdit = lambda *_: None,
        on_superseded: Callable[[DeclarationKind, str], None] = lambda *_: None,
        find_sources: Callable[[frozenset[str]], Mapping[str, PlacedSource]] = lambda _: {},
        trusted: frozenset[str] = frozenset(),
    ) -> None:
        """`folder` has the desired-state files; `roots` are absolute. `learn` takes note of secrets: it gets the fields
        of each model and MCP server, and the parameters of each load, before they come into force. `on_edit` is called
        for each edit with the state before (None: there was none), the state now, by model what the edit ended of its
        override, and who made the edit. `on_superseded` is called for each runtime declaration that ends because the
        files declare its name. `find_sources` looks where the files are of those of these sources that are here; it
        blocks. `trusted` names the fields of a model that requests may give any valid value. `resync_s`: see
        `FileSource`. `clock` gives Unix time.

        Raises StateError where the stored state in `store` is damaged, cannot be read, or is of a newer version.
        """
        self._learn = learn
        self._on_edit = on_edit
        self._on_superseded = on_superseded
        self._find_sources = find_sources
        self._sources: Mapping[str, PlacedSource] = {}
        self._source_changes = 0
        self._roots = roots
        self._trusted = trusted
        self._defaults = defaults
        self._clock = clock
        self._persistence = StatePersistence(store)
        self._overrides = OverrideStore(self._persistence)
        self._demand = DemandLedger(self._persistence, clock)
        self._files = FileSource(
            folder,
            roots,
            store.folder,
            resync_s=resync_s,
            clock=clock,
            on_change=self._follow_edit,
            trusted=trusted,
        )
        self._files.set_declarations(self._persistence.state.declarations, FILES)

    @property
    def revision(self) -> int:
        """Counter that grows with every change of what `desired_state` returns. It begins anew with each controller."""
        return self._files.generation + self._persistence.ruling_changes + self._source_changes

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
        return self._files.in_force

    def desired_state(self) -> DesiredState | None:
        """Return the desired state: the declared models, and as models the MCP servers that the controller runs
        (`mcp:NAME`), with overrides, demand and evictions applied, and the keys, tools and MCP servers.

        None: no valid files were ever read, nor a last good state recovered.
        """
        in_force, stored = self._files.in_force, self._persistence.state
        if in_force is None:
            return None
        declared_models = {
            name: DeclaredModel(
                definition,
                in_force.declared_models[name],
                self._files.declared_since(name),
                stored.first_declared_at.get(name),
                is_runtime_declared=name in self._files.runtime_models,
            )
            for name, definition in in_force.definitions.items()
        }
        desired = resolve_desired(
            declared_models,
            stored.overrides,
            stored.demand,
            self._defaults,
            generation=self._files.generation,
            paused=stored.paused,
            evictions=stored.rested,
            sources=self._sources,
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
        self._learn({name: override.params for name, override in self.stored_state.overrides.items()})
        state = self._files.recover_last_good()
        if state is not None:
            self._learn_declared(state)
            self._take_sources(self._find_sources(list_sources(state.definitions.values())))
            self._persistence.update_state({"first_declared_at": self._first_declared_at(state)})

    async def read_files(self) -> None:
        """Read the folder now, and put what it declares into force unless a file has a problem (see `list_problems`).
        Problems raise nothing. Parsing changed files, and what an edit writes to the state folder, block the event
        loop. The removal of a model, an MCP server, or the last key, comes into force only with a second reading at
        `wake_at` or later. An edit ends the overrides, demand and evictions that it contradicts, and runtime
        declarations whose names the files declare end. `on_edit` and `on_superseded` are called before the return."""
        await self._files.read_files()
        self._end_superseded()

    async def refresh_files(self, now: float) -> None:
        """Read the folder as `read_files` does if `resync_s` has passed since the last reading, or `wake_at` is
        reached, and then look for the files of sources; otherwise do nothing. `now` is Unix time."""
        read_at = self._files.read_at
        await self._files.refresh_files(now)
        self._end_superseded()
        if self._files.read_at != read_at:
            await self.refresh_sources()

    async def refresh_sources(self) -> None:
        """Look again for the files of the declared models' sources, in a thread. A model whose files are found waits
        for no download any more; `revision` grows where anything is different. Does nothing before any files were in
        force."""
        if self.in_force is not None:
            sources = list_sources(self.in_force.definitions.values())
            self._take_sources(await asyncio.to_thread(self._find_sources, sources))

    def _take_sources(self, sources: Mapping[str, PlacedSource]) -> None:
        if sources != self._sources:
            self._sources = sources
            self._source_changes += 1

    def _follow_edit(self, before: DebouncedState | None, state: DebouncedState, actor: str) -> None:
        self._learn_declared(state)
        # At once, although it reads the disk: a model whose files are here must not wait for a download.
        self._take_sources(self._find_sources(list_sources(state.definitions.values())))
        overrides, ended_by_model = self._overrides.end_edited(state)
        first_declared_at = {"first_declared_at": self._first_declared_at(state)}
        self._persistence.update_state({**first_declared_at, **overrides, **self._demand.end_edited(before, state)})
        self._on_edit(before, state, ended_by_model, actor)

    def _learn_declared(self, state: DebouncedState) -> None:
        servers = {replica_model(name): fields for name, fields in state.tools.declared_servers.items()}
        self._learn({**state.declared_models, **servers})

    def _first_declared_at(self, state: DebouncedState) -> dict[str, float]:
        known, now = self.stored_state.first_declared_at, self._clock()
        return {name: known.get(name, now) for name in state.declared_models}

    def declared_since(self, name: str) -> float:
        """Return the Unix time since when the files declare the model's present fields, or of this controller's start
        if that is later. For a model that is not declared: the present time."""
        return self._files.declared_since(name)

    def all_declared_since(self) -> dict[str, float]:
        """Return `declared_since` of every model in force, by name, as a new dict."""
        return self._files.all_declared_since()

    def list_problems(self) -> list[Problem]:
        """Return the problems of the files as last read; empty: they are good, or were not read yet."""
        return list(self._files.problems)

    def wake_at(self) -> float | None:
        """Return the Unix time at which the files must be read again, to confirm that a model, an MCP server or the
        last key was removed; None: nothing is to be confirmed."""
        return self._files.wake_at

    # Runtime declarations.

    @property
    def declarations(self) -> RuntimeDeclarations:
        """The runtime declarations, those that are not in force included. They are kept over restarts."""
        return self._persistence.state.declarations

    @property
    def declaration_problems(self) -> tuple[Problem, ...]:
        """Why runtime declarations are not in force, with secrets masked; empty: all are."""
        return self._files.declaration_problems

    def declares(self, kind: DeclarationKind, name: str) -> bool:
        """Return whether the files declare a model or a key of this name, as last valid."""
        files = self._files.from_files
        return files is not None and name in (files.definitions if kind == "models" else files.keys)

    def check_declaration(self, kind: DeclarationKind, name: str, declaration: RuntimeDeclaration) -> list[Problem]:
        """Return the problems, with secrets masked, that a declaration would have beside what is declared now; empty:
        it could be put. Nothing is changed. Before any valid files were read, it is checked by itself. Blocks for a
        look at where its paths lead."""
        files = self._files.from_files or DebouncedState({}, {})
        declarations = put_declaration(self.declarations, kind, name, declaration)
        return list(check_request(files, declarations, kind, name, self._roots, self._trusted))

    def put_declaration(self, kind: DeclarationKind, name: str, declaration: RuntimeDeclaration) -> None:
        """Declare a model or a key, in place of an earlier runtime declaration of that name. It is in force, and
        `on_edit` was called, before the return. Nothing is checked: call `check_declaration` and `declares` first.
        Blocks for a write to the state folder and a look at the models folders; a failed write raises nothing."""
        self._set_declarations(put_declaration(self.declarations, kind, name, declaration), declaration.actor)

    def drop_declaration(self, kind: DeclarationKind, name: str, actor: str) -> bool:
        """Remove a runtime declaration: its model is drained, its key refused. Return whether there was one. `on_edit`
        is called before the return. Blocks for a write to the state folder and a look at the models folders; a failed
        write raises nothing."""
        known = self.declarations.models if kind == "models" else self.declarations.keys
        if name not in known:
            return False
        self._set_declarations(drop_declarations(self.declarations, {kind: [name]}), actor)
        return True

    def _set_declarations(self, declarations: RuntimeDeclarations, actor: str) -> None:
        # First on disk: a declaration is an operator's word, and must outlive a crash in what follows.
        self._persistence.update_state({"declarations": declarations})
        self._files.set_declarations(declarations, actor)

    def _end_superseded(self) -> None:
        if self._files.from_files is None:
            return
        superseded = list_superseded(self._files.from_files, self.declarations)
        if not any(superseded.values()):
            return
        self._set_declarations(drop_declarations(self.declarations, superseded), FILES)
        for kind, names in superseded.items():
            for name in names:
                self._on_superseded(kind, name)

    # Overrides and demand.

    def get_override(self, name: str) -> Override | None:
        """Return the override that stands for a model: see `OverrideStore.get_override`. None: there is none, edits
        have ended it, or the model is not declared."""
        return self._overrides.get_override(name, self._files.in_force)

    def find_load_fault(self, name: str, params: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the first field of a load that a request may not give this value, and why, as the second half of a
        sentence; None: it may give all. `name`: of a declared model; `params`: fields of its definition with valid
        values. Blocks for a look at where paths lead."""
        in_force = self._files.in_force
        assert in_force is not None, "a model is declared"
        definition_class = type(in_force.definitions[name])
        rules = RequestRules(self._roots, self._trusted, list_declared_names(in_force.definitions.values()))
        refusals = rules.find_refusals(definition_class, params)
        outside = find_outside_paths(self._roots, rules.list_bounded_paths(definition_class, params))
        return next(refusals, None) or next(iter(outside), None)

    def set_override(self, override: Override) -> None:
        """Put an operator's load or unload into force, in place of the model's earlier override.

        It ends the model's eviction, and an unload also drops the demand for the model. Nothing is checked: whether the
        model exists and accepts the parameters is the caller's matter. Blocks for a write to the state folder; a failed
        write raises nothing.
        """
        self._learn({override.model: override.params})
        unload_revision = self.revision + 1 if override.action == "unload" else None
        self._persistence.update_state(
            {
                **self._overrides.put_override(override),
                **self._demand.end_for_override(override.model, unload_revision),
            }
        )

    def drop_override(self, name: str) -> bool:
        """Remove a model's override, so that demand and the files decide again. Return whether there was one. Blocks
        for a write to the state folder; a failed write raises nothing."""
        return self._overrides.drop_override(name)

    def take_demand(self, report: GatewayReport) -> bool:
        """Take a gateway's demand for autoload models: record its new requests as of now, and end the evictions of
        their models (see `DemandLedger.take_demand`). Return whether any request was new, so that the caller plans
        again. Blocks for a write to the state folder if so; a failed write raises nothing."""
        return self._demand.take_demand(report)

    def request_reload(self, models: Sequence[str]) -> None:
        """Record demand for each of these models as of now, and end their evictions. Names are not checked; an empty
        sequence does nothing. Blocks for a write to the state folder; a failed write raises nothing."""
        self._demand.request_reload(models)

    def evict_models(self, models: Mapping[str, str]) -> None:
        """Record that these models were evicted, and drop the demand for them until the next request for each.
        `models`: name to the reason, in words. An empty mapping does nothing. No engine is stopped by this. Blocks
        for a write to the state folder; a failed write raises nothing."""
        self._demand.evict_models(models)

    def note_published(self, revision: int, stamp: Stamp) -> None:
        """Note that the routing table with that stamp was built from the desired state of that `revision`.

        Call it for each published table: until one holds an unload, the demand that gateways report for the unloaded
        model counts as older than the unload and is dropped.
        """
        self._demand.note_published(revision, stamp)

    # What the next controller must know.

    def set_paused(self, paused: bool) -> None:
        """Pause or resume the controller, over restarts too. Setting what is set already does nothing. Blocks for a
        write to the state folder; a failed write raises nothing."""
        self._persistence.update_state({"paused": paused})

    def remember_attempts(self, attempts: AttemptNumbers) -> None:
        """Store the highest attempt number of each replica, so that no later controller gives a name twice. Call it
        before a replica with a new number is started. Blocks for a write to the state folder; a failed write raises
        nothing."""
        self._persistence.update_state({"attempts": attempts})

    def remember_loaded(self, loaded_once: frozenset[str], ready_since: dict[str, float]) -> None:
        """Store, in place of what was stored before, the names of the models that have been loaded once, and the Unix
        time by replica name since when each replica is ready. Blocks for a write to the state folder; a failed write
        raises nothing."""
        self._persistence.update_state({"loaded_once": sorted(loaded_once), "ready_since": ready_since})

    def list_unsaved(self) -> list[str]:
        """Return a phrase for each part of the stored state, and of what the files declared, that could not be
        written to disk yet. Empty: a restart would lose nothing. Failed writes are tried again by later changes and
        readings."""
        unsaved = self._persistence.list_unsaved()
        return unsaved if self._files.is_last_good_saved else [*unsaved, "what the files last said"]
