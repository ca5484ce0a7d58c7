"""All downloads, and the removal of their files.

What is ordered twice is one, and what was under way at the last end of the program goes on. Nothing is removed but what
downloads put into the models folder, and nothing that was changed since.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from common.network.transport import InterruptedConnectionError
from contract.downloads import FINAL_STATES, Download, DownloadFile, DownloadRecord, PlacedFile, Removal, StoredFile
from contract.errors import RoundhouseError
from contract.model_reference import ModelReference
from transfers.downloads.job import DownloadJob, JobTools, has_kept_state, is_unchanged
from transfers.fetch import StoppedError, build_view
from transfers.models_folder import ModelsFolder, RecordStore, make_download_id
from transfers.sources.model_files import are_of_one_set
from transfers.sources.source_set import read_reference

log = logging.getLogger(__name__)


_QUERY: Final = re.compile(r"\?[^#]*")
"""Query of an address, which may hold a secret: no log has it."""
CANCEL_WAIT_S: Final = 10.0
"""Seconds that a cancellation waits for the end of the threads."""


class DownloadBoard:
    """The downloads of this program, which run in threads of its own. Call `open` once before anything else. Methods
    may be called from several threads; they may block on the disk, and while another thread holds the downloads still
    (`hold_still`)."""

    def __init__(
        self, tools: JobTools, store: RecordStore, parallel: int, clock: Callable[[], float] = time.time
    ) -> None:
        """Start nothing yet. `parallel`: most downloads that run at the same time; further ones wait. `clock`: returns
        Unix time in seconds."""
        self._tools = tools
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._records: dict[str, DownloadRecord] = {}
        self._jobs: dict[str, DownloadJob] = {}
        self._runs: dict[str, Future[Download]] = {}
        """Each returns the download as it has ended."""
        self._cancelled: set[str] = set()
        self._reordered: dict[str, DownloadRecord] = {}
        """Downloads that were ordered again while the end of a cancelled run is waited for, as they will be then."""
        self._changes = 0
        self._is_closing = False
        self._pool = ThreadPoolExecutor(parallel, "download")

    def open(self) -> None:
        """Read the records of downloads, and go on with the downloads that were under way. Partial files of downloads
        that are unknown, finished or cancelled are removed. Call once. Blocks on the disk. Raises OSError."""
        with self._lock:
            records = {record.id: record for record in self._store.read_all()}
            for name in self._tools.folder.list_partials():
                # A failed one goes on when it is ordered again.
                if name not in records or records[name].state in ("finished", "cancelled"):
                    self._tools.folder.remove_partials(name)
            for record in records.values():
                self._records[record.id] = record
                if record.state not in FINAL_STATES:
                    self._go_on(record)

    def stop(self) -> None:
        """Have all downloads stop soon, for good; does not wait. Their records stay as they are, so that they go on
        after the `open` of the next program. `order` must not be called afterwards."""
        with self._lock:
            self._is_closing = True
            jobs = list(self._jobs.values())
        for job in jobs:
            job.stop()

    def close(self) -> None:
        """Stop all downloads as `stop` does, and block until their threads have ended. Only methods that read may be
        called afterwards."""
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def order(
        self, reference: ModelReference, *, include_pickle: bool, peers: tuple[str, ...] = ()
    ) -> tuple[Download, bool]:
        """Begin a download, or begin again one that has ended; one that is just being cancelled begins again when its
        threads have ended. Return it, and True; if the same reference is under way with the same `include_pickle`,
        return that download, and False. `include_pickle`: whether weights in pickle files are taken, too. `peers`: see
        `CopyOrder.peers`. Does not wait for the source. Blocks on the disk. Raises OSError if the download cannot
        be recorded."""
        text = str(reference)
        download = make_download_id(text, include_pickle=include_pickle)
        with self._lock:
            if download in self._jobs and (download not in self._cancelled or download in self._reordered):
                return self._view(download), False
            record = DownloadRecord(
                id=download,
                reference=text,
                include_pickle=include_pickle,
                peers=list(peers),
                created_at=self._clock(),
            )
            if download in self._jobs:
                self._reordered[download] = record
            else:
                self._begin(record)
            return self._view(download), True

    def find(self, download: str) -> Download:
        """Return a download as it is now. Waits while another thread is in `hold_still`. Raises RoundhouseError
        `download_not_found`."""
        with self._lock:
            return self._view(download)

    def list_downloads(self) -> list[Download]:
        """Return all downloads as they are now, newest first. Waits while another thread is in `hold_still`."""
        with self._lock:
            newest = sorted(self._records.values(), key=lambda each: (-each.created_at, each.id))
            return [self._view(record.id) for record in newest]

    def cancel(self, download: str) -> Download:
        """End a download, and return it as it has ended, also if it was ordered again since. What was fetched of it and
        is not in its place is removed. A failed one becomes `cancelled`; one that has finished stays as it is. Blocks
        for `CANCEL_WAIT_S` at most; the state may not be final then.

        Raises:
            RoundhouseError: `download_not_found`.
            OSError: the models folder cannot be written.
        """
        with self._lock:
            job, record = self._jobs.get(download), self._records.get(download)
            if record is None:
                raise _not_found(download)
            if job is None:
                if record.state == "failed":
                    self._tools.folder.remove_partials(download)
                    self._save(record.model_copy(update={"state": "cancelled", "error": None}))
                return self._view(download)
            run = self._runs[download]
            self._cancelled.add(download)
            self._reordered.pop(download, None)
        job.stop()
        if run.cancel():
            return self._end(download, job, None)
        try:
            return run.result(CANCEL_WAIT_S)
        except TimeoutError:
            log.warning("download %s: its threads have not ended yet", download)
        return self.find(download)

    def list_placed(self) -> list[tuple[DownloadRecord, PlacedFile]]:
        """Return the files that downloads have put into the models folder, each with the record of its download. A file
        that several downloads have is there several times. The folder is not looked at. Waits while another thread is
        in `hold_still`."""
        with self._lock:
            return [(record, placed) for record in self._records.values() for placed in record.placed]

    def forget_files(self, paths: set[str]) -> None:
        """Take the files with these paths (below the models folder) out of all records. A download that has no other
        file and does not run is forgotten. The files themselves stay. Blocks on the disk. Raises OSError."""
        with self._lock:
            for record in list(self._records.values()):
                placed = [each for each in record.placed if each.path not in paths]
                removed = [each.path for each in record.placed if each.path in paths]
                if not removed:
                    continue
                if placed or record.id in self._jobs:
                    self._save(record.model_copy(update={"placed": placed, **_find_lost(record, removed)}))
                else:
                    self.forget(record.id)

    def forget(self, download: str) -> None:
        """Forget a download that does not run, and remove what was fetched of it and is not in its place. Its files in
        their places stay. Does nothing for an unknown id. Blocks on the disk. Raises OSError."""
        with self._lock:
            self._tools.folder.remove_partials(download)
            self._store.remove(download)
            self._records.pop(download, None)
            self._changes += 1

    @contextmanager
    def hold_still(self) -> Iterator[None]:
        """Return a context manager in whose block no download begins, and none puts files into their places. Waits
        until no other thread is in a method of the board or in another block. Calls of other threads wait until the
        block ends; the calling thread may use all methods."""
        with self._lock:
            yield

    def is_running(self, download: str) -> bool:
        """Return whether a download runs or waits for its turn. False for an unknown id. Waits while another thread is
        in `hold_still`."""
        with self._lock:
            return download in self._jobs

    def count_changes(self) -> int | None:
        """Return a number that rises with each change of a record; the same number as before means that nothing has
        changed. None: downloads run, so their progress changes all the time. Waits while another thread is in
        `hold_still`."""
        with self._lock:
            return None if self._jobs else self._changes

    def is_under_way(self, path: str) -> bool:
        """Return whether a download that runs or waits for its turn has the file at this path below the models folder.
        Waits while another thread is in `hold_still`."""
        with self._lock:
            return any(
                path in {each.path for each in job.progress.build_view(self._records[download]).files}
                or path in {each.path for each in self._records[download].placed}
                for download, job in self._jobs.items()
            )

    def find_partial(self, path: str, sha256: str, start: int, end: int) -> Path | None:
        """Return the partial file of a download under way that has these bytes of the file at a path below the models
        folder, on disk. None: none has, or the file has another hash. Blocks."""
        with self._lock:
            jobs = list(self._jobs.values())
        found = (job.find_partial(path, sha256, start, end) for job in jobs)
        return next((each for each in found if each is not None), None)

    def _go_on(self, record: DownloadRecord) -> None:
        try:
            self._start(record, read_reference(record.wanted or record.reference))
        except RoundhouseError as error:
            self._save(record.model_copy(update={"state": "failed", "error": error.build_envelope().error}))

    def _begin(self, record: DownloadRecord) -> None:
        """Begin what was ordered as this new record says."""
        record = self._with_earlier(record)
        self._save(record)
        if not self._is_closing:
            self._start(record, read_reference(record.reference))

    def _with_earlier(self, record: DownloadRecord) -> DownloadRecord:
        """Return the new record of a download with what is in place by earlier runs."""
        if (old := self._records.get(record.id)) is None:
            return record
        kept = ("pinned", "main", "projector", "placed", "found", "has_finished")
        return record.model_copy(update={name: getattr(old, name) for name in kept})

    def _start(self, record: DownloadRecord, reference: ModelReference) -> None:
        job = DownloadJob(
            self._tools, record, reference, self._save, lambda: [placed for _, placed in self.list_placed()]
        )
        self._jobs[record.id] = job
        self._runs[record.id] = self._pool.submit(self._run, record.id, job)

    def _run(self, download: str, job: DownloadJob) -> Download:
        error: RoundhouseError | None = None
        try:
            job.run()
        except (StoppedError, InterruptedConnectionError):
            pass
        except RoundhouseError as failure:
            error = failure
        except OSError as failure:
            log.error("download %s: the models folder fails: %s", download, failure)  # noqa: TRY400 - the disk's error
            error = _describe_disk(failure)
        except Exception:
            log.exception("download %s failed", download)
            error = RoundhouseError("internal_error", "The download failed; the log has the reason.")
        return self._end(download, job, error)

    def _end(self, download: str, job: DownloadJob, error: RoundhouseError | None) -> Download:
        """Record the end of a run, unless somebody else has, and begin the next one that was ordered meanwhile. Return
        the download as it has ended. A job with a result has all files in their places, also if it was cancelled just
        then."""
        with self._lock:
            is_done, is_cancelled = bool(job.result), download in self._cancelled
            if self._jobs.get(download) is not job:
                return self._view(download)  # of two who cancel a waiting one, both come here
            if self._is_closing and not is_done and (not is_cancelled or download in self._reordered):
                return self._view(download)  # the record stays as it is, and the next start goes on
            is_cancelled = is_cancelled and not is_done
            record = self._records[download].model_copy(
                update={
                    "state": "cancelled" if is_cancelled else "finished" if error is None else "failed",
                    "error": None if error is None or is_cancelled else error.build_envelope().error,
                    "ended_at": self._clock(),
                }
                | ({**job.result, "wanted": None, "has_finished": True} if is_done else {})
            )
            self._cancelled.discard(download)
            del self._runs[download], self._jobs[download]
            try:
                if is_cancelled:
                    self._tools.folder.remove_partials(download)
                placed = [each for each in record.placed if is_done or self._is_there(each)]
                self._save(record.model_copy(update={"placed": placed}))
            except OSError as failure:
                self._records[download] = record
                log.warning("download %s: its end cannot be recorded: %s", download, failure)
            ordered = self._reordered.pop(download, None)
            ended = self._view(download)
            if ordered is not None:
                self._begin_again(ordered)
        shown = _QUERY.sub("?…", record.reference)
        log.info("download %s of %s: %s%s", download, shown, record.state, f": {error}" if error else "")
        return ended

    def _begin_again(self, ordered: DownloadRecord) -> None:
        try:
            self._begin(ordered)
        except OSError as failure:
            log.error("download %s: it cannot be recorded: %s", ordered.id, failure)  # noqa: TRY400 - the disk's error
            failed = {"state": "failed", "error": _describe_disk(failure).build_envelope().error}
            self._records[ordered.id] = self._records[ordered.id].model_copy(
                update={"created_at": ordered.created_at, "ended_at": self._clock(), **failed}
            )
            self._changes += 1

    def _is_there(self, placed: PlacedFile) -> bool:
        """Return whether anything lies where a file was put, or was to be put when its run broke off."""
        try:
            return self._tools.folder.find_file(placed.path) is not None
        except RoundhouseError:
            return True

    def _save(self, record: DownloadRecord) -> None:
        with self._lock:
            self._store.write(record)
            self._records[record.id] = record
            self._changes += 1

    def _view(self, download: str) -> Download:
        record = self._records.get(download)
        if record is None:
            raise _not_found(download)
        job = self._jobs.get(download)
        if (ordered := self._reordered.get(download)) is not None:
            return build_view(self._with_earlier(ordered), [])
        if job is not None:
            return job.progress.build_view(record)
        done = [
            DownloadFile(path=each.path, size=each.size, done_bytes=each.size, sha256=each.sha256)
            for each in (*record.placed, *record.found)
        ]
        return build_view(record, done)


def _describe_disk(failure: OSError) -> RoundhouseError:
    code = "models_disk_full" if failure.errno in (errno.ENOSPC, errno.EDQUOT) else "models_folder_failed"
    return RoundhouseError(code, f"{failure.strerror or failure}: {failure.filename}.")


def _find_lost(record: DownloadRecord, removed: Iterable[str]) -> dict[str, object]:
    """Return the fields of a record that are not true without these files."""
    main, lost = record.main, dict[str, object]()
    for path in removed:
        if path == record.projector:
            lost["projector"] = None
        # Of the main file itself, of its folder, or of its split set; others beside it are of earlier revisions.
        elif main is not None and (path.startswith(main) or are_of_one_set(path, main)):
            return {"pinned": None, "main": None, "projector": None, "has_finished": False}
    return lost


def _not_found(download: str) -> RoundhouseError:
    return RoundhouseError("download_not_found", f"There is no download {download!r:.60}.")


class StoredFiles:
    """Lists and removes the files that downloads put into the models folder. Safe for threads."""

    def __init__(self, board: DownloadBoard, folder: ModelsFolder) -> None:
        self._board = board
        self._folder = folder

    def list_files(self) -> list[StoredFile]:
        """Return the files that downloads put into the models folder, as recorded, sorted by path. A file that several
        downloads have comes once, with the download that was ordered first. `is_unchanged` goes by size and time, and
        is False for a file that is gone; the content is not read. Blocks on the disk. Raises OSError."""
        found: dict[str, tuple[DownloadRecord, PlacedFile]] = {}
        for record, placed in sorted(self._board.list_placed(), key=lambda pair: (pair[0].created_at, pair[0].id)):
            found.setdefault(placed.path, (record, placed))
        return [
            StoredFile(
                path=path,
                size=placed.size,
                sha256=placed.sha256,
                download=record.id,
                reference=record.pinned or record.reference,
                is_unchanged=has_kept_state(self._folder, placed),
            )
            for path, (record, placed) in sorted(found.items())
        ]

    def remove_download(self, download: str) -> Removal:
        """Remove the files of a download, and forget the download. Files that another download has, too, stay. Return
        what was removed. Blocks; may read whole files, to see whether they were changed.

        Raises:
            RoundhouseError: `download_not_found`; `models_file_kept`: it is under way, or a file of it was changed.
                Nothing was removed.
            OSError: the models folder cannot be written. Some of the files may be removed; the download is still known.
        """
        self._board.find(download)
        mine = [placed for record, placed in self._board.list_placed() if record.id == download]
        others = {placed.path for record, placed in self._board.list_placed() if record.id != download}
        return self._remove(
            [each for each in mine if each.path not in others],
            download,
            sorted(each.path for each in mine if each.path in others),
        )

    def remove_path(self, path: str) -> Removal:
        """Remove a file that a download put into the models folder, or all such files below a folder. `path` is below
        the models folder. Return what was removed. Blocks; may read whole files, to see whether they were changed.

        Raises:
            RoundhouseError: `models_file_kept`: no download put it there, one that has it is under way, or it was
                changed. Nothing was removed.
            OSError: the models folder cannot be written. Some of the files may be removed.
        """
        named = path.rstrip("/")
        found = [
            placed
            for _, placed in self._board.list_placed()
            if placed.path == named or placed.path.startswith(f"{named}/")
        ]
        if not found:
            raise _kept(f"No download put {path!r:.300} into the models folder.")
        return self._remove(found, None, [])

    def _remove(self, files: list[PlacedFile], download: str | None, kept: list[str]) -> Removal:
        """`download`: forget this one; None: take the files out of all downloads."""
        chosen: dict[str, PlacedFile] = {}
        for each in files:  # of a file that a broken-off run was to replace, the old version and the new one are listed
            if each.path not in chosen or is_unchanged(self._folder, each):
                chosen[each.path] = each
        files = list(chosen.values())
        present = {each.path: status for each in files if (status := self._check_file(each)) is not None}
        with self._board.hold_still():
            self._check_rest(each.path for each in files)
            if download is not None and self._board.is_running(download):
                raise _kept("The download is under way: cancel it first.")
            for each in files:
                if not _is_same_state(present.get(each.path), self._folder.find_file(each.path)):
                    raise _kept(f"{each.path!r:.300} was changed just now.")
            for path in present:
                self._folder.remove_file(path)
            self._board.forget_files({each.path for each in files})
            if download is not None:
                self._board.forget(download)
        return Removal(removed=sorted(present), kept=kept, freed_bytes=sum(each.st_size for each in present.values()))

    def _check_rest(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self._board.is_under_way(path):
                raise _kept(f"A download that is under way has {path!r:.300}: cancel it first.")

    def _check_file(self, placed: PlacedFile) -> os.stat_result | None:
        """Return the status of a file to remove; None: it is not there. Raises RoundhouseError `models_file_kept` for
        one that was changed."""
        try:
            status = self._folder.find_file(placed.path)
        except RoundhouseError:
            raise _kept(f"{placed.path!r:.300} is something else than was downloaded.") from None
        if status is not None and not is_unchanged(self._folder, placed):
            raise _kept(f"{placed.path!r:.300} was changed since it was downloaded.")
        return status


def _is_same_state(before: os.stat_result | None, now: os.stat_result | None) -> bool:
    if before is None or now is None:
        return before is now
    return (before.st_ino, before.st_size, before.st_mtime_ns) == (
        now.st_ino,
        now.st_size,
        now.st_mtime_ns,
    )


def _kept(message: str) -> RoundhouseError:
    return RoundhouseError("models_file_kept", message)
