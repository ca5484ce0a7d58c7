"""One download, from its resolved reference to its files in their place, and which of them the models folder has."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from contract.downloads import DownloadRecord, PlacedFile
from contract.errors import RoundhouseError
from contract.model_reference import HeadReference, ModelReference
from transfers.fetch import (
    DownloadProgress,
    FetchJournal,
    FetchOptions,
    FileFetch,
    FileHash,
    StoppedError,
    copy_file,
    hash_file,
    is_right,
    plan_segments,
)
from transfers.models_folder import ModelsFolder
from transfers.network import NetworkOptions
from transfers.sharing import DigestStore
from transfers.sources.base import Resolution, SourceFile
from transfers.sources.source_set import SourceSet

log = logging.getLogger(__name__)


@dataclass(slots=True)
class PresentFiles:
    """Which files of a download the models folder lacks, and which it has, by who put them there."""

    missing: list[SourceFile] = field(default_factory=list)
    placed: list[PlacedFile] = field(default_factory=list)
    """Here, and put there by a download."""
    found: list[PlacedFile] = field(default_factory=list)
    """Here, and put there by somebody else."""


def has_kept_state(folder: ModelsFolder, placed: PlacedFile) -> bool:
    """Return whether the file is in the models folder with the size and the modification time that it had when it was
    put there. False if anything else is there. Blocks on the disk. Raises OSError."""
    try:
        status = folder.find_file(placed.path)
    except RoundhouseError:
        return False
    return status is not None and (status.st_size, status.st_mtime_ns) == (placed.size, placed.mtime_ns)


def is_unchanged(folder: ModelsFolder, placed: PlacedFile, check_stop: Callable[[], None] = lambda: None) -> bool:
    """Return whether the file is in the models folder as a download put it. If its size and time are the same, its
    content is not read; if only the size is, its SHA-256 is compared, which may take minutes. `check_stop` is called
    meanwhile; what it raises is raised. Blocks. Raises OSError.
    """
    if has_kept_state(folder, placed):
        return True
    try:
        status = folder.find_file(placed.path)
    except RoundhouseError:
        return False
    if status is None or status.st_size != placed.size:
        return False
    with folder.open_file(placed.path) as descriptor:
        return hash_file(descriptor, placed.size, check_stop).sha256 == placed.sha256


def find_present(
    folder: ModelsFolder,
    resolution: Resolution,
    placed: Iterable[PlacedFile],
    check_stop: Callable[[], None],
    digests: DigestStore | None = None,
    replaceable: Collection[str] = (),
) -> PresentFiles:
    """Return which files of a download the models folder has, and which are missing. A file of the right size is read
    and compared by its content, which may take minutes. Only the recorded SHA-256 is compared if a download put the
    file there, its time is still the recorded one, and the source names a SHA-256. `placed`: the files that all
    downloads have put into place. `check_stop` is called while contents are read; what it raises is raised. `digests`:
    known hashes, in place of reading. `replaceable`: paths where another file counts as missing. Blocks.

    Raises:
        RoundhouseError: `models_file_conflict`: a file of another size or content is where a file belongs.
        OSError: the folder, or a local source, cannot be read.
    """
    known = {each.path: each for each in placed}
    present = PresentFiles()
    for file in resolution.files:
        target = resolution.target_of(file)
        status = folder.find_file(target)
        if status is None:
            present.missing.append(file)
            continue
        record = known.get(target)
        here = _compare(folder, file, target, status, record, check_stop, digests)
        if here is None and target in replaceable:
            present.missing.append(file)
            continue
        if here is None:
            raise RoundhouseError(
                "models_file_conflict", f"{target!r:.300} in the models folder is another file than the source's."
            )
        is_ours = record is not None and (record.size, record.sha256) == (here.size, here.sha256)
        (present.placed if is_ours else present.found).append(here)
    return present


def _compare(
    folder: ModelsFolder,
    file: SourceFile,
    target: str,
    status: os.stat_result,
    placed: PlacedFile | None,
    check_stop: Callable[[], None],
    digests: DigestStore | None,
) -> PlacedFile | None:
    """Return what is there; None: it is not the source's."""
    if status.st_size != file.size:
        return None
    if placed is not None and placed.mtime_ns == status.st_mtime_ns and file.sha256 is not None:
        return placed if placed.sha256 == file.sha256 else None
    known = None if digests is None else digests.find(folder.path / target, status)
    if known is not None and file.sha256 is not None:
        is_same = known == file.sha256
        return PlacedFile(path=target, size=file.size, sha256=known, mtime_ns=status.st_mtime_ns) if is_same else None
    with folder.open_file(target) as descriptor:
        found = hash_file(descriptor, file.size, check_stop)
    if digests is not None:
        digests.note(folder.path / target, status, found.sha256)
    is_same = is_right(file, found) if file.local_path is None else _is_copy(file, found, check_stop)
    if not is_same:
        return None
    return PlacedFile(path=target, size=file.size, sha256=found.sha256, mtime_ns=status.st_mtime_ns)


def _is_copy(file: SourceFile, found: FileHash, check_stop: Callable[[], None]) -> bool:
    assert file.local_path is not None
    descriptor = os.open(file.local_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return hash_file(descriptor, file.size, check_stop).sha256 == found.sha256
    finally:
        os.close(descriptor)


SHOWN_DIGITS: Final = 12
"""Digits of the revision in the name of a folder."""


def choose_folder(resolution: Resolution, placed: Iterable[PlacedFile]) -> Resolution:
    """Return the resolution with the folder that its files go into. This is its own folder, or `FOLDER@REVISION` if
    downloads have put files of another revision into its own: engines may be reading those, so they are not
    overwritten. A resolution without a revision keeps its folder.

    `placed`: the files that all downloads have put into the models folder.
    """
    if resolution.revision is None:
        return resolution
    beside = f"{resolution.folder}@{resolution.revision.rpartition(':')[2][:SHOWN_DIGITS]}"
    known = {each.path: each for each in placed}
    if any(path.startswith(f"{beside}/") for path in known):
        return replace(resolution, folder=beside)
    for file in resolution.files:
        other = known.get(resolution.target_of(file))
        if other is not None and (other.size != file.size or file.sha256 not in (None, other.sha256)):
            return replace(resolution, folder=beside)
    return resolution


LOCK_POLL_S: Final = 0.2


class FolderLocks:
    """One lock per folder of a model: two downloads never work on the same files."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    @contextmanager
    def hold(self, folder: str, check_stop: Callable[[], None]) -> Iterator[None]:
        """Return a context manager that holds the lock of a model's folder in its block. Blocks until the lock is free,
        and calls `check_stop` meanwhile; what that raises is raised."""
        with self._guard:
            lock = self._locks.setdefault(folder, threading.Lock())
        while not lock.acquire(timeout=LOCK_POLL_S):
            check_stop()
        try:
            yield
        finally:
            lock.release()


class RoomLedger:
    """The room on the disk that downloads under way have still to take, so that no two of them count on the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._missing_bytes: dict[object, Callable[[], int]] = {}

    @contextmanager
    def reserve(self, count_missing_bytes: Callable[[], int], measure_free: Callable[[], int]) -> Iterator[None]:
        """Return a context manager that keeps room for a download in its block. `count_missing_bytes`: how many bytes
        it has still to write, at any moment of the block. `measure_free`: how many the disk has for downloads. Blocks
        on the disk. Raises RoundhouseError `models_disk_full`, and OSError."""
        key = object()
        with self._lock:
            reserved = sum(max(0, count()) for count in self._missing_bytes.values())
            needed, free = count_missing_bytes(), max(0, measure_free() - reserved)
            if needed > free:
                others = " beside those that are under way" if reserved else ""
                raise RoundhouseError(
                    "models_disk_full",
                    f"The download needs {needed / 2**30:.2f} GiB, and the disk of the models folder has "
                    f"{free / 2**30:.2f} GiB for downloads{others}.",
                )
            self._missing_bytes[key] = count_missing_bytes
        try:
            yield
        finally:
            with self._lock:
                del self._missing_bytes[key]


@dataclass(frozen=True, slots=True)
class JobTools:
    """What all download jobs of a program share: the sources, the models folder, the locks of the models' folders, how
    to connect and to fetch, the room that they take, and the known hashes."""

    sources: SourceSet
    folder: ModelsFolder
    locks: FolderLocks
    network: NetworkOptions
    fetch: FetchOptions
    room: RoomLedger = field(default_factory=RoomLedger)
    digests: DigestStore = field(default_factory=DigestStore)


class DownloadJob:
    """One run of one download. Call `run` once, in a thread; `stop` may be called from any thread, also before."""

    def __init__(
        self,
        tools: JobTools,
        record: DownloadRecord,
        reference: ModelReference,
        save: Callable[[DownloadRecord], None],
        list_placed: Callable[[], list[PlacedFile]],
    ) -> None:
        """`reference`: what to resolve, which may be `record.wanted`. `save`: called with each new state of the record,
        in the thread of `run`. `list_placed`: returns the files that all downloads have put into place."""
        self.progress = DownloadProgress()
        self.result: dict[str, object] = {}
        """Fields of the record that say what is in place; empty until `run` has returned."""
        self._tools = tools
        self._record = record
        self._reference = reference
        self._save = save
        self._list_placed = list_placed
        self._stopped = threading.Event()
        self._peers = tuple(record.peers) if isinstance(reference, HeadReference) else ()
        self._client = tools.sources.open_client(tools.network, self._peers)
        self._partials: Mapping[str, tuple[SourceFile, Path]] = {}
        """By path below the models folder, while they are fetched."""

    def stop(self) -> None:
        """Have `run` end soon with StoppedError; does not wait. A question to the source about the reference that is
        under way is not broken off."""
        self._stopped.set()
        self._client.interrupt()

    def run(self) -> None:
        """Resolve the reference, fetch the files that are missing, and put them into place. Blocks, perhaps for hours.
        When it returns, all files are in their places, the record has those that it put there, and `result` is what
        the record does not say yet. Call once.

        Raises:
            RoundhouseError: `source_not_found`, `source_forbidden`, `source_address_refused`, `source_unavailable`,
                `source_mismatch`, `models_disk_full` or `models_file_conflict`.
            StoppedError: `stop` was called. What is here stays.
            InterruptedConnectionError: all connections of the program were ended while the reference was resolved.
            OSError: the models folder cannot be read or written, or `save` raises it.
        """
        try:
            self._check_stop()
            self.progress.set_state("resolving")
            resolved = self._tools.sources.resolve(
                self._reference,
                include_pickle=self._record.include_pickle,
                peers=self._peers,
                wait=self._wait,
            )
            resolution = choose_folder(resolved, self._list_placed())
            # First: a removal that goes on while the record is written has looked at it, or is seen by what follows.
            self.progress.set_files(resolution)
            self._change(wanted=resolution.pinned)
            # A copy of one file has no folder of its own: others in the same one need not wait for it.
            is_alone = isinstance(self._reference, HeadReference) and len(resolution.files) == 1
            locked = resolution.main if is_alone else resolution.folder
            with self._tools.locks.hold(locked, self._check_stop):
                found = self._fetch_missing(resolution)
            self.result = {
                "pinned": resolution.pinned,
                "main": resolution.main,
                "projector": resolution.projector_target,
                "found": found,
            }
        finally:
            self._client.close()

    def _fetch_missing(self, resolution: Resolution) -> list[PlacedFile]:
        """Return the files that were there already, put by somebody else."""
        folder = self._tools.folder
        is_copy = isinstance(self._reference, HeadReference)
        # A file that is not as it was put there is somebody's own by now.
        mine = [each for each in self._record.placed if is_copy and is_unchanged(folder, each, self._check_stop)]
        replaceable = {each.path: each for each in mine}
        digests = self._tools.digests if is_copy else None
        present = find_present(folder, resolution, self._list_placed(), self._check_stop, digests, replaceable)
        missing = present.missing
        if is_copy:  # what another download put there stays its own
            own = {each.path for each in self._record.placed}
            present.found += [each for each in present.placed if each.path not in own]
            present.placed = [each for each in present.placed if each.path in own]
        for file in resolution.files:
            if file not in missing:
                self.progress.set_done(file, file.size)
        partials = {file.path: folder.partial_path(self._record.id, file.path) for file in missing}

        def count_missing_bytes() -> int:
            here = 0
            for path in partials.values():
                with suppress(FileNotFoundError):  # not begun, or cancelled just now
                    here += path.stat().st_blocks * 512
            return sum(file.size for file in missing) - here

        self._partials = {resolution.target_of(file): (file, partials[file.path]) for file in missing}
        with self._tools.room.reserve(count_missing_bytes, folder.measure_free):
            found = {file.path: self._fetch(file, partials[file.path]) for file in missing}
        self._place(resolution, present, partials, found, replaceable)
        folder.remove_partials(self._record.id)
        return present.found

    def find_partial(self, path: str, sha256: str, start: int, end: int) -> Path | None:
        """Return the partial file that has these bytes of the file at a path below the models folder, on disk. None:
        there is none, or the file has another hash. Blocks. May be called from any thread."""
        file, partial = self._partials.get(path, (None, None))
        if file is None or partial is None or file.sha256 != sha256:
            return None
        with suppress(OSError):
            done = FetchJournal.of_partial(partial).read(file.identity, file.size)
            lacks = plan_segments(min(end, file.size), done, file.size)
            return partial if all(stop <= start for _, stop in lacks) else None
        return None

    def _fetch(self, file: SourceFile, partial: Path) -> FileHash:
        self._check_stop()
        if file.local_path is not None:
            return copy_file(file, partial, self.progress, self._stopped)
        return FileFetch(self._client, file, partial, self._tools.fetch, self.progress, self._stopped).run()

    def _place(
        self,
        resolution: Resolution,
        present: PresentFiles,
        partials: dict[str, Path],
        found: dict[str, FileHash],
        replaceable: Mapping[str, PlacedFile],
    ) -> None:
        """Move the files to their places, the main one last: who sees it sees all. `replaceable`: by path, files that
        are there, of earlier runs."""
        self._check_stop()
        placed = {each.path: each for each in (*self._record.placed, *replaceable.values(), *present.placed)}
        replaced = [placed[path] for path in map(resolution.target_of, present.missing) if path in replaceable]
        for file in present.missing:
            target = resolution.target_of(file)
            if file.mtime_ns is not None:
                os.utime(partials[file.path], ns=(file.mtime_ns, file.mtime_ns))
            mtime_ns = partials[file.path].stat().st_mtime_ns
            placed[target] = PlacedFile(path=target, size=file.size, sha256=found[file.path].sha256, mtime_ns=mtime_ns)
        # Before the first move: a kill in between must not leave files that nobody may remove, old or new.
        self._change(placed=[*replaced, *placed.values()])
        for file in reversed(present.missing):
            target = resolution.target_of(file)
            before, folder = replaceable.get(target), self._tools.folder
            replaces = before is not None and is_unchanged(folder, before)
            status = folder.place_file(partials[file.path], target, replaces=replaces)
            self._tools.digests.note(folder.path / target, status, found[file.path].sha256)
        if replaced:
            self._change(placed=list(placed.values()))

    def _change(self, **fields: object) -> None:
        self._record = self._record.model_copy(update=fields)
        self._save(self._record)

    def _wait(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise StoppedError

    def _check_stop(self) -> None:
        if self._stopped.is_set():
            raise StoppedError
