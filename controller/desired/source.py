"""The desired state that files, overrides and demand make."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from controller.artifacts.model_roots import ModelRoots
from controller.config.debounce import DebouncedState, debounce
from controller.config.last_good import LastGoodError, load_last_good, save_last_good
from controller.config.parse import ParsedFolder, parse_folder
from controller.config.read import read_folder
from controller.desired.resolve import DeclaredModel, Defaults, resolve_desired, surviving_override
from controller.schema.attempts import AttemptNumbers
from controller.schema.override import Evicted, Override, ended_fields, field_digest, restate_override
from controller.schema.routing import GatewayReport, Stamp
from controller.schema.status import Problem
from controller.state import DesiredState
from controller.storage.state_dir import StateDir, StoredState

T = TypeVar("T")

log = logging.getLogger(__name__)

STORED_FIELD_WORDS: Final[Mapping[str, str]] = {
    "paused": "whether it is paused",
    "overrides": "loads, unloads and resets by operators",
    "demand": "which models requests asked for",
    "rested": "which models made room for others",
    "loaded_once": "which models were loaded before",
    "ready_since": "since when replicas are ready",
    "first_declared_at": "when models were declared",
    "attempts": "which names replicas had",
}
"""Fields of `StoredState`, in the words of `list_unsaved`."""
GATEWAYS_HEARD = 64
"""Gateways whose demand is remembered; each start of one is another."""


class DesiredStateSource:
    """The desired state: files, overrides and demand, in the order in which they rule."""

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
        on_edit: Callable[[DebouncedState | None, DebouncedState, Mapping[str, Sequence[str]]], None] = lambda *_: None,
    ) -> None:
        """`learn` takes note of secrets: it is given every model's fields, and every load's, before they come into
        force. `on_edit` is told of each edit: what was in force, what is, and by model what it ended of its statement.
        """
        self._learn = learn
        self._on_edit = on_edit
        self._folder = folder
        self._roots = roots
        self._store = store
        self._defaults = defaults
        self._resync_s = resync_s
        self._clock = clock
        self._read_lock = asyncio.Lock()
        self._read_at = 0.0
        self._stored_state = self._written_state = store.load_memory()
        self._in_force: DebouncedState | None = None
        self._is_last_good_saved = True
        self._is_memory_writable = True
        self._declared_since: dict[str, tuple[str, float]] = {}
        self._generation = 0
        self._gateway_demand: dict[str, dict[str, float]] = {}
        """Demand as each gateway last told it, by its own clock."""
        self._unload_revisions: dict[str, tuple[int, Stamp | None]] = {}
        """Models that were unloaded: the revision that holds it, and the first table that tells of it."""
        self._problems: tuple[Problem, ...] = ()
        self.revision = 0
        """Counts every change of what `state` answers."""

    @property
    def stored_state(self) -> StoredState:
        """What is kept for the next controller."""
        return self._stored_state

    @property
    def in_force(self) -> DebouncedState | None:
        """What the files declare, as it is in force; None: nothing was ever valid."""
        return self._in_force

    def declared_since(self, name: str) -> float:
        """Unix time since when the files say what they say of the model."""
        return self._declared_since.get(name, ("", self._clock()))[1]

    def all_declared_since(self) -> dict[str, float]:
        """The same of every model."""
        return {name: since for name, (_, since) in self._declared_since.items()}

    def get_override(self, name: str) -> Override | None:
        """The runtime statement that stands for the model."""
        override = self._stored_state.overrides.get(name)
        if override is None or self._in_force is None or name not in self._in_force.declared_models:
            return None
        return surviving_override(override, self._in_force.definitions[name], self._in_force.declared_models[name])

    def set_override(self, override: Override) -> None:
        """Let an operator's statement rule."""
        self._learn({override.model: override.params})
        change: dict[str, object] = {"overrides": {**self._stored_state.overrides, override.model: override}}
        if override.action == "unload":
            self._unload_revisions[override.model] = (self.revision + 1, None)
            change["demand"] = _drop_entries(self._stored_state.demand, [override.model])
        self._update_state(change | {"rested": _drop_entries(self._stored_state.rested, [override.model])})

    def evict_models(self, models: Mapping[str, str]) -> None:
        """Want these `autoload` models no more until the next request for each; to each the reason."""
        if models:
            evictions = {name: Evicted(at=self._clock(), reason=reason) for name, reason in models.items()}
            demand = _drop_entries(self._stored_state.demand, models)
            self._update_state({"rested": {**self._stored_state.rested, **evictions}, "demand": demand})

    def request_reload(self, models: Sequence[str]) -> None:
        """Want these again: requests wait for them."""
        if models:
            demand = self._stored_state.demand | dict.fromkeys(models, self._clock())
            self._update_state({"rested": _drop_entries(self._stored_state.rested, models), "demand": demand})

    def drop_override(self, name: str) -> bool:
        """Let the files rule again. Whether there was a statement."""
        if name not in self._stored_state.overrides:
            return False
        self._update_state(
            {"overrides": {key: each for key, each in self._stored_state.overrides.items() if key != name}}
        )
        return True

    def recover_last_good(self) -> None:
        """Take the last good state as what is in force, before the files are read for the first time."""
        self._learn({name: override.params for name, override in self._stored_state.overrides.items()})
        try:
            self._in_force = load_last_good(self._store.folder, self._roots)
        except LastGoodError as error:
            log.warning("the last good state cannot be used: %s", error)
        if self._in_force is not None:
            self._learn(self._in_force.declared_models)
            self._generation += 1
            self._note_edits(self._in_force)

    async def refresh_files(self, now: float) -> None:
        """Read the files if it is time to, though nothing was seen to change."""
        resync_at = self._read_at + self._resync_s
        confirm_at = self.wake_at()
        if now >= (resync_at if confirm_at is None else min(resync_at, confirm_at)):
            await self.read_files()

    async def read_files(self) -> None:
        """Read the files. A bad file changes nothing but `problems`."""
        # One at a time: an older snapshot must not come into force after a newer one.
        async with self._read_lock:
            snapshot = await asyncio.to_thread(read_folder, self._folder)
            self._apply_files(parse_folder(snapshot, self._roots))

    def _apply_files(self, parsed: ParsedFolder) -> None:
        previous, now = self._in_force, self._clock()
        self._in_force = debounce(previous, parsed, now)
        self._read_at = now
        if parsed.problems != self._problems:
            self._problems = parsed.problems
            for problem in parsed.problems:
                log.error("%s", problem)
            log.info("the desired state is %s", "broken; what was last good rules" if parsed.problems else "good")
        if self._in_force is not None and (previous is None or _differ(previous, self._in_force)):
            self._learn(self._in_force.declared_models)
            self._generation += 1
            self._note_edits(self._in_force)
            self._on_edit(previous, self._in_force, self._end_statements(previous, self._in_force))
            self._is_last_good_saved &= not parsed.is_valid
        if self._in_force is not None and parsed.is_valid and not self._is_last_good_saved:
            self._save_last_good(self._in_force)

    def _save_last_good(self, state: DebouncedState) -> None:
        try:
            save_last_good(self._store.folder, state.declared_models, state.declared_keys, self._clock())
            self._is_last_good_saved = True
        except OSError as error:
            log.warning("the last good state is not stored, so a restart would not know it: %s", error)

    def _note_edits(self, state: DebouncedState) -> None:
        now = self._clock()
        self.revision += 1
        digests = {name: field_digest(declared) for name, declared in state.declared_models.items()}
        self._declared_since = {
            name: entry if (entry := self._declared_since.get(name)) and entry[0] == digest else (digest, now)
            for name, digest in digests.items()
        }
        known = self._stored_state.first_declared_at
        self._update_state({"first_declared_at": {name: known.get(name, now) for name in digests}})

    def _end_statements(self, before: DebouncedState | None, state: DebouncedState) -> dict[str, list[str]]:
        """What an edit ended stays ended, even if the edit is taken back. Returns it by model, as `ended` names it."""
        overrides: dict[str, Override] = {}
        ended_by_model: dict[str, list[str]] = {}
        for name, override in self._stored_state.overrides.items():
            definition = state.definitions.get(name)
            kept_override = (
                surviving_override(override, definition, state.declared_models[name])
                if definition is not None
                else None
            )
            if kept_override is not None:
                overrides[name] = kept_override
            if ended_names := ended_fields(override, kept_override):
                ended_by_model[name] = ended_names
        declared_before = before.declared_models if before is not None else {}
        demand = {
            name: demanded_at
            for name, demanded_at in self._stored_state.demand.items()
            if _still_counts(name, declared_before, state)
        }
        evictions = {
            name: eviction
            for name, eviction in self._stored_state.rested.items()
            if _still_counts(name, declared_before, state)
        }
        self._update_state({"overrides": overrides, "demand": demand, "rested": evictions})
        return ended_by_model

    def desired_state(self, now: float) -> DesiredState | None:
        """What is wanted now; None: no valid files were ever read."""
        if self._in_force is None:
            return None
        declared_models = {
            name: DeclaredModel(
                definition,
                self._in_force.declared_models[name],
                self.declared_since(name),
                self._stored_state.first_declared_at.get(name),
            )
            for name, definition in self._in_force.definitions.items()
        }
        desired = resolve_desired(
            declared_models,
            self._stored_state.overrides,
            self._stored_state.demand,
            self._defaults,
            generation=self._generation,
            paused=self._stored_state.paused,
            evictions=self._stored_state.rested,
        )
        return replace(desired, revision=self.revision, keys=self._in_force.keys)

    def list_problems(self) -> list[Problem]:
        """What is wrong with the files."""
        return list(self._problems)

    def list_unsaved(self) -> list[str]:
        """Name each part of the stored state that is not on disk yet, in words. Each write is tried again."""
        before, now = self._written_state, self._stored_state
        unsaved = [words for name, words in STORED_FIELD_WORDS.items() if getattr(before, name) != getattr(now, name)]
        return unsaved if self._is_last_good_saved else [*unsaved, "what the files last said"]

    def wake_at(self) -> float | None:
        """When a model that vanished from the files, or the last key, may be taken as removed."""
        return self._in_force.wake_at if self._in_force is not None else None

    def remember_attempts(self, attempts: AttemptNumbers) -> None:
        """Store the highest attempt number of each replica, so that no later controller gives a name twice."""
        self._update_state({"attempts": attempts})

    def remember_loaded(self, loaded_once: frozenset[str], ready_since: dict[str, float]) -> None:
        """Keep what was loaded and ready."""
        self._update_state({"loaded_once": sorted(loaded_once), "ready_since": ready_since})

    def set_paused(self, paused: bool) -> None:
        """Observe and never act, over restarts."""
        self._update_state({"paused": paused})

    def note_published(self, revision: int, stamp: Stamp) -> None:
        """The table of that stamp holds what was wanted at that revision."""
        for name, (unloaded_at, first_stamp) in self._unload_revisions.items():
            if first_stamp is None and revision >= unloaded_at:
                self._unload_revisions[name] = (unloaded_at, stamp)

    def take_demand(self, report: GatewayReport) -> bool:
        """Take a gateway's demand for autoload models. Whether it was new."""
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

    def _is_before_unload(self, name: str, stamp: Stamp | None) -> bool:
        """Whether a gateway may tell of requests that came before the model was unloaded: it does not know of that."""
        if name not in self._unload_revisions:
            return False
        _, first_stamp = self._unload_revisions[name]
        return first_stamp is None or stamp is None or stamp < first_stamp

    def _is_fresh(self, name: str, demanded_at: float, known_at: float | None) -> bool:
        """Whether a request came that was not known. Gateways tell the last one again and again, and an unload ends
        what was asked before it, as an eviction does. Their clocks are compared with ours only where nothing was
        heard of them."""
        if known_at is not None:
            return demanded_at > known_at
        override, eviction = self._stored_state.overrides.get(name), self._stored_state.rested.get(name)
        end_times = [each.at for each in (override, eviction) if each is not None]
        return name not in self._stored_state.demand and all(demanded_at > end_time for end_time in end_times)

    def _update_state(self, change: Mapping[str, object]) -> None:
        before, self._stored_state = self._stored_state, self._stored_state.model_copy(update=dict(change))
        ruling_fields = ("overrides", "demand", "rested", "paused")
        self.revision += any(getattr(before, each) != getattr(self._stored_state, each) for each in ruling_fields)
        if self._stored_state != self._written_state:
            try:
                self._store.save_memory(self._stored_state)
            except OSError as error:
                # Every round tries again.
                if self._is_memory_writable:
                    log.warning("the controller's memory is not stored, so a restart would not know it: %s", error)
                self._is_memory_writable = False
            else:
                self._written_state, self._is_memory_writable = self._stored_state, True


def _still_counts(name: str, declared_before: Mapping[str, Mapping[str, Any]], state: DebouncedState) -> bool:
    """Whether what requests asked of a model, or that they do not, still counts after an edit."""
    definition = state.definitions.get(name)
    if definition is None or not definition.autoload:
        return False
    return not restate_override(declared_before.get(name), state.declared_models[name])


def _drop_entries(entries: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: entry for name, entry in entries.items() if name not in names}


def _differ(before: DebouncedState, after: DebouncedState) -> bool:
    return (before.declared_models, before.declared_keys) != (after.declared_models, after.declared_keys)
