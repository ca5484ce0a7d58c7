"""The desired-state folder as a source: it is read, debounced, and kept as the last good state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from controller.artifacts.model_roots import ModelRoots
from controller.config.debounce import DebouncedState, debounce
from controller.config.last_good import LastGoodError, load_last_good, save_last_good
from controller.config.parse import Document, ParsedFolder, parse_documents, read_documents
from controller.config.read import read_folder
from controller.schema.override import field_digest
from controller.schema.status import Problem

log = logging.getLogger(__name__)

OnChange = Callable[[DebouncedState | None, DebouncedState], None]
"""Takes what was in force before an edit (None: nothing) and what is in force since."""


class FileSource:
    """What the files declare. A file with a problem changes nothing but `problems`: the last good state stays in force.

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
    ) -> None:
        """`state_folder` holds the last good state. `resync_s`: seconds after which the files are read again although
        no change was seen. `on_change` is called for each edit that `read_files` puts into force. `clock` gives Unix
        time."""
        self._folder = folder
        self._roots = roots
        self._state_folder = state_folder
        self._resync_s = resync_s
        self._clock = clock
        self._on_change = on_change
        self._read_lock = asyncio.Lock()
        self._read_at = 0.0
        self._documents: dict[str, Document] = {}
        """The files as last read, so that only files whose bytes changed are parsed again."""
        self._declared_since: dict[str, tuple[str, float]] = {}
        """Model to the digest of its fields, and the Unix time since when the files declare these."""
        self.in_force: DebouncedState | None = None
        """The declared state in force; None: no valid files were ever read."""
        self.generation = 0
        """Counts the states that came into force."""
        self.problems: tuple[Problem, ...] = ()
        """Problems of the files as last read."""
        self.is_last_good_saved = True
        """Whether the state in force is on disk as the last good one."""

    def recover_last_good(self) -> DebouncedState | None:
        """Put the stored last good state into force, and return it; None: there is none that can be used.

        Raises nothing: a stored state that cannot be read is logged. `on_change` is not called. Call it once, before
        the first `read_files`.
        """
        try:
            self.in_force = load_last_good(self._state_folder, self._roots)
        except LastGoodError as error:
            log.warning("the last good state cannot be used: %s", error)
        if self.in_force is not None:
            self._count_edit(self.in_force)
        return self.in_force

    async def refresh_files(self, now: float) -> None:
        """Read the files, as `read_files` does, if `resync_s` has passed since the last reading or `wake_at` is reached
        at `now` (Unix time); otherwise do nothing. The first call reads."""
        resync_at = self._read_at + self._resync_s
        confirm_at = self.wake_at
        if now >= (resync_at if confirm_at is None else min(resync_at, confirm_at)):
            await self.read_files()

    async def read_files(self) -> None:
        """Read the folder, and put what it declares into force unless a file has a problem. Problems are in `problems`
        and raise nothing.

        The removal of a model, or of the last key, comes into force only with a second reading that confirms it, at
        `wake_at` or later. Calls at the same time run one after the other. `on_change` is called before the return.
        """
        # One at a time: an older snapshot must not come into force after a newer one.
        async with self._read_lock:
            snapshot = await asyncio.to_thread(read_folder, self._folder)
            self._documents = read_documents(snapshot, self._documents)
            self._apply_files(parse_documents(snapshot, self._documents, self._roots))

    def _apply_files(self, parsed: ParsedFolder) -> None:
        previous, now = self.in_force, self._clock()
        self.in_force = debounce(previous, parsed, now)
        self._read_at = now
        if parsed.problems != self.problems:
            self.problems = parsed.problems
            for problem in parsed.problems:
                log.error("%s", problem)
            log.info("the desired state is %s", "broken; what was last good rules" if parsed.problems else "good")
        if self.in_force is not None and (previous is None or _differ(previous, self.in_force)):
            self._count_edit(self.in_force)
            self._on_change(previous, self.in_force)
            self.is_last_good_saved &= not parsed.is_valid
        if self.in_force is not None and parsed.is_valid and not self.is_last_good_saved:
            self._save_last_good(self.in_force)

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
            save_last_good(self._state_folder, state.declared_models, state.declared_keys, self._clock())
            self.is_last_good_saved = True
        except OSError as error:
            log.warning("the last good state is not stored, so a restart would not know it: %s", error)

    @property
    def wake_at(self) -> float | None:
        """Unix time at which to read again, to confirm that a model or the last key was removed; None: nothing is to be
        confirmed."""
        return self.in_force.wake_at if self.in_force is not None else None

    def declared_since(self, name: str) -> float:
        """Unix time since when the files declare the model's present fields, or of this controller's start if later.
        For a model that is not declared: now."""
        return self._declared_since.get(name, ("", self._clock()))[1]

    def all_declared_since(self) -> dict[str, float]:
        """Return `declared_since` of every model in force, by name, as a new dict."""
        return {name: since for name, (_, since) in self._declared_since.items()}


def _differ(before: DebouncedState, after: DebouncedState) -> bool:
    return (before.declared_models, before.declared_keys) != (after.declared_models, after.declared_keys)
