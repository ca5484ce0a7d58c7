"""The desired-state folder as a source: it is read, debounced, and kept as the last good state; and where the paths
that are named lead. No network is asked for a model that is here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from contract.declarations import DeclarationKind, RuntimeDeclarations
from contract.desired import Definition
from contract.downloads import DownloadRecord
from contract.model_reference import InvalidReferenceError, parse_reference
from contract.override import field_digest
from contract.status import Problem
from controller.artifacts.heads import ArtifactError
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import find_outside_link
from controller.config.debounce import DebouncedState, LastGoodError, debounce, load_last_good, save_last_good
from controller.config.parse import Document, ParsedFolder, list_places, parse_documents, read_documents, read_folder
from controller.config.runtime_declarations import PLACE, CombinedDeclarations, check_declaration, combine_declarations
from controller.config.validate import PlacedSource, list_sources, named_path, place_source
from controller.desired.resolve import Defaults
from controller.redaction import clean_text
from controller.state_dir import find_by_reference, read_records

log = logging.getLogger(__name__)


def check_request(
    files: DebouncedState,
    declarations: RuntimeDeclarations,
    kind: DeclarationKind,
    name: str,
    roots: ModelRoots,
    trusted: frozenset[str],
) -> tuple[Problem, ...]:
    """Return the problems, with secrets masked, that the runtime declaration of this kind and name, which
    `declarations` contains, has beside the other declarations; empty: it can be put. Blocks. Never raises."""
    checked = check_declaration(files, declarations, kind, name, roots, trusted)
    outside = find_outside_paths(roots, checked.paths)
    return checked.problems or tuple(
        Problem(file=PLACE.file, line=None, field=field, message=message) for field, message in outside
    )


def find_outside_paths(roots: ModelRoots, paths: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the field and what is wrong, as the second half of a sentence, of each of these fields and declared paths
    that leads out of the models folders. What does not exist leads nowhere. Blocks on the disk."""
    found: list[tuple[str, str]] = []
    for field, path in paths:
        try:
            link = find_outside_link(roots, path)
        except (ArtifactError, OSError, ValueError) as error:
            found.append((field, f"{path:.200} cannot be followed: {error}"))
            continue
        if link is not None:
            words = f"{path:.200} leads out of {roots.describe()} by the symbolic link {link}"
            found.append((field, clean_text(words)))
    return found


def find_placed_sources(models_folder: Path, sources: Iterable[str]) -> dict[str, PlacedSource]:
    """Return, by source, where the files are of the sources that are here: downloaded, or put by hand where the
    reference says. The paths are below `models_folder`. `sources` are canonical; one that is no reference of a model is
    not here. Blocks. What cannot be looked at counts as not here, with a warning in the log."""
    wanted = list(sources)
    records = read_records(models_folder) if wanted else []
    found = {source: _find_placed(models_folder, records, source) for source in wanted}
    return {source: placed for source, placed in found.items() if placed is not None}


def place_models(
    models_folder: Path, definitions: Mapping[str, Definition], raw_fields: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Definition], dict[str, str]]:
    """Return by model name the definitions of models that need no download, with paths in place of sources, and the
    sources of models whose files must be downloaded first. `raw_fields`: the fields as declared. Blocks."""
    sources = find_placed_sources(models_folder, list_sources(definitions.values()))
    placed: dict[str, Definition] = {}
    missing: dict[str, str] = {}
    for name, declared in definitions.items():
        definition, source = place_source(declared, raw_fields[name], sources)
        if source is None:
            placed[name] = definition
        else:
            missing[name] = source
    return placed, missing


def _find_placed(models_folder: Path, records: list[DownloadRecord], source: str) -> PlacedSource | None:
    record = find_by_reference(records, source)
    has_finished = record is not None and (record.has_finished or record.state == "finished")
    if record is not None and has_finished and record.main is not None and _exists(models_folder, record.main):
        has_projector = record.projector is not None and _exists(models_folder, record.projector)
        return PlacedSource(record.main, record.projector if has_projector else None)
    try:
        path = named_path(parse_reference(source))
    except InvalidReferenceError:
        return None
    return None if path is None or not _exists(models_folder, path) else PlacedSource(path)


def _exists(models_folder: Path, path: str) -> bool:
    try:
        return (models_folder / path).exists()
    except OSError as error:
        log.warning("%s cannot be looked at: %s", path, error)
        return False


OnChange = Callable[[DebouncedState | None, DebouncedState, str], None]
"""Takes what was in force before an edit (None: nothing), what is in force since, and who made the edit: `files`,
`discover`, or the name of whoever declared something at run time."""
FILES: Final = "files"
"""Who makes the edits that are read from files."""
DISCOVERY: Final = "discover"
"""Who makes the edits that follow from what lies in the models folders."""


@dataclass(frozen=True, slots=True)
class DesiredOptions:
    """How the desired-state files are read, and what fills in what they leave out (`defaults`)."""

    folder: Path
    """Has the desired-state files."""
    roots: ModelRoots
    """Absolute."""
    defaults: Defaults
    resync_s: float
    """Seconds after which the files are read again although no change was seen."""
    trusted: frozenset[str] = frozenset()
    """Fields of a model that requests may give any valid value."""


class FileSource:
    """What the files declare, and beside it what operators declare at run time. A file with a problem changes nothing
    but `problems`: the last good state stays in force. `DesiredStateSource` owns it. It watches nothing: its owner says
    when to read. Call `recover_last_good` before the first `read_files`."""

    def list_places(self) -> dict[str, str]:
        """Return what `list_places` of controller.config.parse returns for the files as last read."""
        return list_places(self._documents.values())

    def __init__(
        self, options: DesiredOptions, state_folder: Path, clock: Callable[[], float], on_change: OnChange
    ) -> None:
        """`state_folder` has the last good state. `on_change` is called for each edit that `read_files` or
        `set_declarations` puts into force, with the state before (None: nothing was in force), the state since, and who
        made the edit (`files`, or the actor). `clock` gives Unix time."""
        self._options = options
        self._state_folder = state_folder
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
        self._discovered: Mapping[str, Mapping[str, Any]] = {}
        self._combined: CombinedDeclarations | None = None
        self.generation = 0
        """Counts the states that came into force."""
        self.problems: tuple[Problem, ...] = ()
        """Problems of the files as last read."""
        self.is_last_good_saved = True
        """Whether the state in force is on disk as the last good one."""

    def recover_last_good(self) -> DebouncedState | None:
        """Put the stored last good state into force, and return it; None: there is none that can be used. Blocks: reads
        a file. Raises nothing: a stored state that cannot be read is logged. `on_change` is not called. Call it once,
        before the first `read_files`."""
        try:
            self.from_files = load_last_good(self._state_folder, self._options.roots)
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
    def discovered_models(self) -> frozenset[str]:
        """Names of the models in force that nobody declares: their files lie in a models folder."""
        return self._combined.discovered_models if self._combined is not None else frozenset()

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

    def set_discovered(self, discovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Put these discovered models, fields by name, into force in place of the earlier ones, if the files say
        `discover`. `on_change` is called before the return where the declared state differs."""
        previous, self._discovered = self.in_force, discovered
        self._combine()
        self._follow_change(previous, DISCOVERY)

    def _combine(self) -> None:
        if self.from_files is not None:
            before = self.declaration_problems
            self._combined = combine_declarations(
                self.from_files, self._declarations, self._options.roots, self._options.trusted, self._discovered
            )
            for problem in self._combined.problems if self._combined.problems != before else ():
                log.error("%s", problem)

    async def refresh_files(self, now: float) -> None:
        """Read the files, as `read_files` does, if `resync_s` has passed since the last reading or `wake_at` is reached
        at `now` (Unix time); otherwise do nothing. The first call reads."""
        resync_at = self.read_at + self._options.resync_s
        confirm_at = self.wake_at
        # A reading of a later time is one before the clock was set back.
        if not self.read_at <= now < (resync_at if confirm_at is None else min(resync_at, confirm_at)):
            await self.read_files()

    async def read_files(self) -> None:
        """Read the folder, and put what it declares into force unless a file has a problem. Problems are in `problems`
        and raise nothing. The files are read in a thread; parsing those that changed blocks the event loop. The removal
        of a model, an MCP server, or the last key, comes into force only with a second reading that confirms it, at
        `wake_at` or later. Calls at the same time run one after the other. `on_change` is called before the return."""
        # One at a time: an older snapshot must not come into force after a newer one.
        async with self._read_lock:
            snapshot = await asyncio.to_thread(read_folder, self._options.folder)
            self._documents = read_documents(snapshot, self._documents)
            self._apply_files(parse_documents(snapshot, self._documents, self._options.roots))

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
            save_last_good(
                self._state_folder,
                state.declared_models,
                state.declared_keys,
                self._clock(),
                state.tools,
                state.discover,
            )
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
    return (before.declared_models, before.declared_keys, before.tools.declared, before.discover) != (
        after.declared_models,
        after.declared_keys,
        after.tools.declared,
        after.discover,
    )
