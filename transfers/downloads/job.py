"""One run of one download: resolve, look for room, fetch, put into place."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common.model_reference import ModelReference
from controller.schema.downloads import DownloadRecord, PlacedFile
from controller.schema.errors import RoundhouseError
from transfers.downloads.present_files import PresentFiles, find_present
from transfers.downloads.progress import DownloadProgress
from transfers.downloads.revision_folder import choose_folder
from transfers.fetch.file_copy import copy_file
from transfers.fetch.file_fetch import FetchOptions, FileFetch
from transfers.fetch.file_hash import FileHash
from transfers.fetch.segment_fetch import StoppedError
from transfers.folder.models_folder import ModelsFolder
from transfers.network.client import NetworkOptions, SourceClient
from transfers.sources.base import Resolution, SourceFile
from transfers.sources.source_set import SourceSet

log = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True)
class JobTools:
    """What all download jobs of a program share: the sources, the models folder, the locks of the models' folders, and
    how to connect and to fetch."""

    sources: SourceSet
    folder: ModelsFolder
    locks: FolderLocks
    network: NetworkOptions
    fetch: FetchOptions


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
        """`reference`: what to resolve, which may be `record.pinned`. `save`: called with each new state of the record,
        in the thread of `run`. `list_placed`: returns the files that all downloads have put into place."""
        self.progress = DownloadProgress()
        self._tools = tools
        self._record = record
        self._reference = reference
        self._save = save
        self._list_placed = list_placed
        self._stopped = threading.Event()
        self._client = SourceClient(tools.network)

    def stop(self) -> None:
        """Have `run` end soon with StoppedError; does not wait. A question to the source about the reference that is
        under way is not broken off."""
        self._stopped.set()
        self._client.interrupt()

    def run(self) -> None:
        """Resolve the reference, fetch the files that are missing, and put them into place. Blocks, perhaps for hours.
        When it returns, all files are in their places, and the record has them. Call once.

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
                self._reference, include_pickle=self._record.include_pickle, wait=self._wait
            )
            resolution = choose_folder(resolved, self._list_placed())
            # First: a removal that goes on while the record is written has looked at it, or is seen by what follows.
            self.progress.set_files(resolution)
            self._change(pinned=resolution.pinned, main=resolution.main, projector=resolution.projector_target)
            with self._tools.locks.hold(resolution.folder, self._check_stop):
                self._fetch_missing(resolution)
        finally:
            self._client.close()

    def _fetch_missing(self, resolution: Resolution) -> None:
        folder = self._tools.folder
        present = find_present(folder, resolution, self._list_placed(), self._check_stop)
        missing = present.missing
        for file in resolution.files:
            if file not in missing:
                self.progress.set_done(file, file.size)
        partials = {file.path: folder.partial_path(self._record.id, file.path) for file in missing}
        self._check_room(missing, partials)
        found = {file.path: self._fetch(file, partials[file.path]) for file in missing}
        self._place(resolution, present, partials, found)
        folder.remove_partials(self._record.id)

    def _check_room(self, missing: list[SourceFile], partials: dict[str, Path]) -> None:
        here = sum(path.stat().st_blocks * 512 for path in partials.values() if path.exists())
        needed, free = sum(file.size for file in missing) - here, self._tools.folder.measure_free()
        if needed > free:
            raise RoundhouseError(
                "models_disk_full",
                f"The download needs {needed / 2**30:.2f} GiB, and the disk of the models folder has "
                f"{free / 2**30:.2f} GiB for downloads.",
            )

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
    ) -> None:
        """Move the files to their places, the main one last: who sees it sees all."""
        self._check_stop()
        placed = {each.path: each for each in (*self._record.placed, *present.placed)}
        for file in present.missing:
            target = resolution.target_of(file)
            mtime_ns = partials[file.path].stat().st_mtime_ns
            placed[target] = PlacedFile(path=target, size=file.size, sha256=found[file.path].sha256, mtime_ns=mtime_ns)
        # Before the first move: a kill in between must not leave files that nobody may remove.
        self._change(placed=list(placed.values()), found=present.found)
        for file in reversed(present.missing):
            self._tools.folder.place_file(partials[file.path], resolution.target_of(file))

    def _change(self, **fields: object) -> None:
        self._record = self._record.model_copy(update=fields)
        self._save(self._record)

    def _wait(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise StoppedError

    def _check_stop(self) -> None:
        if self._stopped.is_set():
            raise StoppedError
