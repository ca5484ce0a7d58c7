"""The desired-state folder as a source: it is read, debounced, and kept as the last good state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from controller.artifacts.model_roots import ModelRoots
from controller.config.debounce import DebouncedState, debounce
from controller.config.last_good import LastGoodError, load_last_good, save_last_good
from controller.config.parse import Document, ParsedFolder, parse_documents, read_documents
from controller.config.read import read_folder
from controller.config.runtime_declarations import CombinedDeclarations, combine_declarations
from controller.schema.declarations import RuntimeDeclarations
from controller.schema.override import field_digest
from controller.schema.status import Problem

log = logging.getLogger(__name__)

OnChange = Callable[[DebouncedState | None, DebouncedState, str], None]
"""Takes what was in force before an edit (None: nothing), what is in force since, and who made the edit: `files`, or
the name of whoever declared something at run time."""
FILES: Final = "files"
"""Who makes the edits that are read from files."""


class FileSource:
    """What the files declare, and beside it what operators declare at run time. A file with a problem changes nothing
    but `problems`: the last good state stays in force.

    `DesiredStateSource` owns it. It watches nothing: its owner says when to read. Call `recover_last_good` before the
    first `read_files`.
    """

    def __init__(
        self,
        folder: Path,
        roots: ModelRoots,
        state_folder: Path,
        *,
        resync_s: float,
        clock: Callable[[], float],
        on_change: OnChange,
        trusted: frozenset[str] = frozenset(),
    ) -> None:
        """`folder` has the desired-state files, `state_folder` the last good state; `roots` are absolute. `trusted`
        names the fields that runtime declarations may give any valid value. `resync_s`:
        seconds after which the files are read again although no change was seen. `on_change` is called for each edit
        that `read_files` or `set_declarations` puts into force, with the state before (None: nothing was in force), the
        state since, and who made the edit (`files`, or the actor). `clock` gives Unix time."""
        self._folder = folder
        self._roots = roots
        self._trusted = trusted
        self._state_folder = state_folder
        self._resync_s = resync_s
        self._clock = clock
        self._on_change = on_change
        self._read_lock = asyncio.Lock()
        self.read_at = 0.0
        """Unix time of the last reading of the files; 0: they were not read yet."""
        self._documents: dict[str, Document] = {}
        """The files as last read, so that only files whose bytes changed are parsed again."""
        self._declared_since: dict[str, tuple[str, float]] = {}
        """Model to the digest of its fields, and the Unix time since when the files declare these."""
        self.from_files: DebouncedState | None = None
        """What the files declare, as last valid; None: no valid files were ever read."""
        self._declarations = RuntimeDeclarations()
        self._combined: CombinedDeclarations | None = None
        self.generation = 0
        """Counts the states that came into force."""
        self.problems: tuple[Problem, ...] = ()
        """Problems of the files as last read."""
        self.is_last_good_saved = True
        """Whether the state in force is on disk as the last good one."""

    def recover_last_good(self) -> DebouncedState | None:
        """Put the stored last good state into force, and return it; None: there is none that can be used. Blocks: reads
        a file.

        Raises nothing: a stored state that cannot be read is logged. `on_change` is not called. Call it once, before
        the first `read_files`.
        """
        try:
            self.from_files = load_last_good(self._state_folder, self._roots)
        except LastGoodError as error:
            log.warning("the last good state cannot be used: %s", error)
        self._combine()
        if self.in_force is not None:
            self._count_edit(self.in_force)
        return self.in_force

    @property
    def in_force(self) -> DebouncedState | None:
        """The declared state in force, runtime declarations included, and among the models the MCP servers that the
        controller runs (`mcp:NAME`); None: no valid files were ever read, and no last good state was recovered."""
        return self._combined.state if self._combined is not None else None

    @property
    def runtime_models(self) -> frozenset[str]:
        """Names of the models in force that only a runtime declaration declares."""
        return self._combined.runtime_models if self._combined is not None else frozenset()

    @property
    def declaration_problems(self) -> tuple[Problem, ...]:
        """Why runtime declarations are not in force, with secrets masked; empty: all are in force, or have no effect
        because the files declare their names."""
        return self._combined.problems if self._combined is not None else ()

    def set_declarations(self, declarations: RuntimeDeclarations, actor: str) -> None:
        """Put these runtime declarations into force, in place of the earlier ones. `actor` is who declared them.
        `on_change` is called before the return where the declared state differs. Declarations with a problem are left
        out (see `declaration_problems`), and those of names that the files declare have no effect. Before any state of
        files is in force, the declarations wait for the first."""
        previous, self._declarations = self.in_force, declarations
        self._combine()
        self._follow_change(previous, actor)

    def _combine(self) -> None:
        if self.from_files is not None:
            before = self.declaration_problems
            self._combined = combine_declarations(self.from_files, self._declarations, self._roots, self._trusted)
            for problem in self._combined.problems if self._combined.problems != before else ():
                log.error("%s", problem)

    async def refresh_files(self, now: float) -> None:
        """Read the files, as `read_files` does, if `resync_s` has passed since the last reading or `wake_at` is reached
        at `now` (Unix time); otherwise do nothing. The first call reads."""
        resync_at = self.read_at + self._resync_s
        confirm_at = self.wake_at
        if now >= (resync_at if confirm_at is None else min(resync_at, confirm_at)):
            await self.read_files()

    async def read_files(self) -> None:
        """Read the folder, and put what it declares into force unless a file has a problem. Problems are in `problems`
        and raise nothing. The files are read in a thread; parsing those that changed blocks the event loop.

        The removal of a model, an MCP server, or the last key, comes into force only with a second reading that
        confirms it, at `wake_at` or later. Calls at the same time run one after the other. `on_change` is called before
        the return.
        """
        # One at a time: an older snapshot must not come into force after a newer one.
        async with self._read_lock:
            snapshot = await asyncio.to_thread(read_folder, self._folder)
            self._documents = read_documents(snapshot, self._documents)
            self._apply_files(parse_documents(snapshot, self._documents, self._roots))

    def _apply_files(self, parsed: ParsedFolder) -> None:
        previous, files_before, now = self.in_force, self.from_files, self._clock()
        self.from_files = debounce(files_before, parsed, now)
        self._combine()
        self.read_at = now
        if parsed.problems != self.problems:
            self.problems = parsed.problems
            for problem in parsed.problems:
                log.error("%s", problem)
            log.info("the desired state is %s", "broken; what was last good rules" if parsed.problems else "good")
        self._follow_change(previous, FILES)
        if self.from_files is not None and parsed.is_valid:
            self.is_last_good_saved &= files_before is not None and not _differ(files_before, self.from_files)
            if not self.is_last_good_saved:
                self._save_last_good(self.from_files)

    def _follow_change(self, previous: DebouncedState | None, actor: str) -> None:
        if self.in_force is not None and (previous is None or _differ(previous, self.in_force)):
            self._count_edit(self.in_force)
            self._on_change(previous, self.in_force, actor)

    def _count_edit(self, state: DebouncedState) -> None:
        now = self._clock()
        self.generation += 1
        digests = {name: field_digest(declared) for name, declared in state.declared_models.items()}
        self._declared_since = {
            name: entry if (entry := self._declared_since.get(name)) and entry[0] == digest else (digest, now)
            for name, digest in digests.items()
        }

    def _save_last_good(self, state: DebouncedState) -> None:
        try:
            save_last_good(self._state_folder, state.declared_models, state.declared_keys, self._clock(), state.tools)
            self.is_last_good_saved = True
        except OSError as error:
            log.warning("the last good state is not stored, so a restart would not know it: %s", error)

    @property
    def wake_at(self) -> float | None:
        """Unix time at which to read again, to confirm that a model, an MCP server or the last key was removed; None:
        nothing is to be confirmed."""
        return self.from_files.wake_at if self.from_files is not None else None

    def declared_since(self, name: str) -> float:
        """Return the Unix time since when the files declare the model's present fields, or of this controller's start
        if that is later. For a model that is not declared: the present time."""
        return self._declared_since.get(name, ("", self._clock()))[1]

    def all_declared_since(self) -> dict[str, float]:
        """Return `declared_since` of every model in force, by name, as a new dict."""
        return {name: since for name, (_, since) in self._declared_since.items()}


def _differ(before: DebouncedState, after: DebouncedState) -> bool:
    return (before.declared_models, before.declared_keys, before.tools.declared) != (
        after.declared_models,
        after.declared_keys,
        after.tools.declared,
    )
