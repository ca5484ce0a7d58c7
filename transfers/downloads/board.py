"""All downloads: what is ordered twice is one, and what was under way at the last end of the program goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from common.model_reference import ModelReference
from controller.schema.downloads import FINAL_STATES, Download, DownloadFile
from controller.schema.errors import RoundhouseError
from transfers.downloads.job import DownloadJob, JobTools
from transfers.downloads.progress import build_view
from transfers.fetch.segment_fetch import StoppedError
from transfers.folder.records import DownloadRecord, PlacedFile, RecordStore, make_download_id
from transfers.sources.source_set import read_reference

log = logging.getLogger(__name__)

CANCEL_WAIT_S: Final = 10.0
"""Seconds that a cancellation waits for the end of the threads."""


class DownloadBoard:
    """The downloads of this program, with threads of its own. Safe for threads."""

    def __init__(
        self, tools: JobTools, store: RecordStore, parallel: int, clock: Callable[[], float] = time.time
    ) -> None:
        """`parallel`: downloads at the same time. `clock`: Unix time in seconds."""
        self._tools = tools
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._records: dict[str, DownloadRecord] = {}
        self._jobs: dict[str, DownloadJob] = {}
        self._runs: dict[str, Future[None]] = {}
        self._cancelled: set[str] = set()
        self._is_closing = False
        self._pool = ThreadPoolExecutor(parallel, "download")

    def open(self) -> None:
        """Read the records, and go on with the downloads that were under way. Raises OSError."""
        with self._lock:
            for record in self._store.read_all():
                self._records[record.id] = record
                if record.state not in FINAL_STATES:
                    self._start(record, read_reference(record.pinned or record.reference))

    def close(self) -> None:
        """Stop all downloads, which go on after the next `open`. Blocks until their threads ended."""
        with self._lock:
            self._is_closing = True
            jobs = list(self._jobs.values())
        for job in jobs:
            job.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def order(self, reference: ModelReference, *, include_pickle: bool) -> tuple[Download, bool]:
        """Begin a download. Return it, and whether it is a new run; if one of the same reference is under way, return
        that. Raises OSError where it cannot be recorded."""
        text = str(reference)
        download = make_download_id(text, include_pickle=include_pickle)
        with self._lock:
            old = self._records.get(download)
            if download in self._jobs:
                return self._view(download), False
            record = DownloadRecord(
                id=download,
                reference=text,
                include_pickle=include_pickle,
                placed=[] if old is None else old.placed,
                created_at=self._clock(),
            )
            self._save(record)
            self._start(record, reference)
            return self._view(download), True

    def find(self, download: str) -> Download:
        """Return a download as it is now. Raises RoundhouseError `download_not_found`."""
        with self._lock:
            return self._view(download)

    def list_downloads(self) -> list[Download]:
        """Return all downloads as they are now, newest first."""
        with self._lock:
            newest = sorted(self._records.values(), key=lambda each: (-each.created_at, each.id))
            return [self._view(record.id) for record in newest]

    def cancel(self, download: str) -> Download:
        """End a download, and remove what was fetched of it and is not in its place. One that has finished stays as it
        is. Blocks for `CANCEL_WAIT_S` at most; the state may not be final then.

        Raises:
            RoundhouseError: `download_not_found`.
            OSError: the models folder cannot be written.
        """
        with self._lock:
            job, run, record = self._jobs.get(download), self._runs.get(download), self._records.get(download)
            if record is None:
                raise _not_found(download)
            if job is None:
                if record.state == "failed":
                    self._tools.folder.remove_partials(download)
                    self._save(record.model_copy(update={"state": "cancelled", "error": None}))
                return self._view(download)
            self._cancelled.add(download)
        job.stop()
        if run is not None and not run.cancel():
            try:
                run.result(CANCEL_WAIT_S)
            except TimeoutError:
                log.warning("download %s: its threads have not ended yet", download)
        else:
            self._end(download, None)
        return self.find(download)

    def list_placed(self) -> list[tuple[DownloadRecord, PlacedFile]]:
        """Return the files that downloads have put into the models folder, with their downloads."""
        with self._lock:
            return [(record, placed) for record in self._records.values() for placed in record.placed]

    def forget_files(self, paths: set[str]) -> None:
        """Take files out of all records; a download without files and without a run is forgotten. Raises OSError."""
        with self._lock:
            for record in list(self._records.values()):
                placed = [each for each in record.placed if each.path not in paths]
                if len(placed) == len(record.placed):
                    continue
                if placed or record.id in self._jobs:
                    self._save(record.model_copy(update={"placed": placed}))
                else:
                    self._store.remove(record.id)
                    del self._records[record.id]

    def is_under_way(self, path: str) -> bool:
        """Return whether a download that has not ended has the file."""
        with self._lock:
            return any(
                each.path == path
                for download in self._jobs
                for each in (*self._view(download).files, *self._records[download].placed)
            )

    def _start(self, record: DownloadRecord, reference: ModelReference) -> None:
        job = DownloadJob(
            self._tools, record, reference, self._save, lambda: [placed for _, placed in self.list_placed()]
        )
        self._jobs[record.id] = job
        self._runs[record.id] = self._pool.submit(self._run, record.id, job)

    def _run(self, download: str, job: DownloadJob) -> None:
        error: RoundhouseError | None = None
        try:
            job.run()
        except StoppedError:
            with self._lock:
                if download not in self._cancelled and self._is_closing:
                    return  # the record stays as it is, and the next start goes on
        except RoundhouseError as failure:
            error = failure
        except OSError as failure:
            log.exception("download %s: the models folder fails", download)
            error = RoundhouseError("models_folder_failed", f"{failure.strerror or failure}: {failure.filename}.")
        except Exception:
            log.exception("download %s failed", download)
            error = RoundhouseError("internal_error", "The download failed; the log has the reason.")
        self._end(download, error)

    def _end(self, download: str, error: RoundhouseError | None) -> None:
        with self._lock:
            is_cancelled = download in self._cancelled
            record = self._records[download].model_copy(
                update={
                    "state": "cancelled" if is_cancelled else "finished" if error is None else "failed",
                    "error": None if error is None or is_cancelled else error.build_envelope().error,
                    "ended_at": self._clock(),
                }
            )
            self._cancelled.discard(download)
            self._runs.pop(download, None)
            self._jobs.pop(download, None)
            try:
                if is_cancelled:
                    self._tools.folder.remove_partials(download)
                self._save(record)
            except OSError as failure:
                self._records[download] = record
                log.warning("download %s: its end cannot be recorded: %s", download, failure)
        log.info("download %s of %s: %s%s", download, record.reference, record.state, f": {error}" if error else "")

    def _save(self, record: DownloadRecord) -> None:
        with self._lock:
            self._store.write(record)
            self._records[record.id] = record

    def _view(self, download: str) -> Download:
        record = self._records.get(download)
        if record is None:
            raise _not_found(download)
        job = self._jobs.get(download)
        if job is not None:
            return job.progress.build_view(record)
        done = [
            DownloadFile(path=each.path, size=each.size, done_bytes=each.size, sha256=each.sha256)
            for each in record.placed
        ]
        return build_view(record, done)


def _not_found(download: str) -> RoundhouseError:
    return RoundhouseError("download_not_found", f"There is no download {download!r:.60}.")
