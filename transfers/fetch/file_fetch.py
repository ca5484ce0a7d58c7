"""Fetching one file into a partial file: parallel ranges, kept over a kill, and the hash of the whole."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from controller.schema.errors import RoundhouseError
from transfers.fetch.file_hash import FileHash, hash_file
from transfers.fetch.journal import FetchJournal
from transfers.fetch.segment_fetch import FetchProgress, FileContext, IgnoredRangeError, SegmentFetch, StoppedError
from transfers.fetch.segments import Segment, plan_segments
from transfers.network.client import SourceClient
from transfers.network.retry import RetryPolicy
from transfers.sources.base import SourceFile


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How files are fetched: in ranges of at most `segment_bytes`, of which `connections` are fetched at the same time,
    and with the repetitions of `policy`."""

    connections: int = 4
    """Ranges of one file that are fetched at the same time."""
    segment_bytes: int = 32 * 1024 * 1024
    """Bytes that a kill costs at most, for each connection."""
    policy: RetryPolicy = field(default_factory=RetryPolicy)


class FileFetch:
    """Fetches one file of a download into its partial file. Use it once."""

    def __init__(
        self,
        client: SourceClient,
        file: SourceFile,
        partial: Path,
        options: FetchOptions,
        progress: FetchProgress,
        stopped: threading.Event,
    ) -> None:
        """`file` must have a `url`. `partial`: path of the partial file, which may not exist yet, in a folder that
        nobody else writes; the journal is kept beside it. `stopped`: when it is set, the fetch ends soon with
        StoppedError."""
        self._client = client
        self._file = file
        self._partial = partial
        self._journal = FetchJournal(partial.with_name(f"{partial.name}.journal"))
        self._options = options
        self._progress = progress
        self._stopped = stopped

    def run(self) -> FileHash:
        """Fetch what the partial file lacks, compare the whole with the source's hash, and return its hashes. The
        partial file then has the right content, on disk. Blocks, perhaps for hours. Call once.

        Raises:
            RoundhouseError: `source_not_found`, `source_forbidden`, `source_address_refused`, `source_unavailable`,
                `source_mismatch` or `models_disk_full`. After a wrong hash (`source_mismatch`), the partial file is
                removed.
            StoppedError: `stopped` was set, or the client interrupted. What is here stays.
            OSError: the partial file or its journal cannot be written.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._partial, flags, 0o600)
        try:
            return self._fetch_checked(self._open_context(descriptor))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            message = f"The disk became full while {self._file.path} was fetched."
            raise RoundhouseError("models_disk_full", message) from None
        finally:
            os.close(descriptor)

    def _open_context(self, descriptor: int) -> FileContext:
        file, options = self._file, self._options
        assert file.url is not None, "a local file is copied"
        return FileContext(self._client, file, file.url, descriptor, options.policy, self._progress, self._stopped)

    def _fetch_checked(self, context: FileContext) -> FileHash:
        file = self._file
        done = self._journal.read(file.identity, file.size)
        found = self._fetch_whole(context, done)
        if not is_right(file, found) and done:
            # A power cut may have kept the journal and lost bytes.
            found = self._fetch_whole(context, [])
        if not is_right(file, found):
            self._journal.remove()
            self._partial.unlink(missing_ok=True)
            expected, got = (file.sha256, found.sha256) if file.sha256 else (file.git_sha1, found.git_sha1)
            raise RoundhouseError(
                "source_mismatch", f"{file.path}: the hash of what came is {got}, and not {expected}."
            )
        os.fsync(context.descriptor)
        return found

    def _fetch_whole(self, context: FileContext, done: list[Segment]) -> FileHash:
        file = self._file
        if not done:
            self._start_over(context)
        os.ftruncate(context.descriptor, file.size)
        segments = plan_segments(file.size, done, self._options.segment_bytes)
        self._progress.set_done(file, file.size - sum(end - start for start, end in segments))
        if segments:
            self._fetch_segments(context, segments)
        self._progress.set_waiting(None)
        self._progress.set_verifying(file)
        return hash_file(context.descriptor, file.size, context.check_stop)

    def _start_over(self, context: FileContext) -> None:
        os.ftruncate(context.descriptor, 0)
        self._journal.begin(self._file.identity)
        self._progress.set_done(self._file, 0)

    def _fetch_segments(self, context: FileContext, segments: list[Segment]) -> None:
        """Fetch the first segment, and the others together once the source has shown that it knows ranges."""
        try:
            self._fetch_segment(context, segments[0])
            self._fetch_parallel(context, segments[1:])
        except IgnoredRangeError:
            self._start_over(context)
            os.ftruncate(context.descriptor, self._file.size)
            self._fetch_segment(context, (0, self._file.size), restarts=True)

    def _fetch_parallel(self, context: FileContext, segments: list[Segment]) -> None:
        failed = threading.Event()

        def fetch(segment: Segment) -> None:
            if failed.is_set():
                return
            try:
                self._fetch_segment(context, segment)
            except BaseException:
                failed.set()
                raise

        with ThreadPoolExecutor(self._options.connections, "range") as pool:
            waiting = [pool.submit(fetch, segment) for segment in segments]
        errors = [error for each in waiting if (error := each.exception()) is not None]
        if errors:
            raise next((each for each in errors if not isinstance(each, StoppedError)), errors[0])

    def _fetch_segment(self, context: FileContext, segment: Segment, *, restarts: bool = False) -> None:
        SegmentFetch(context, segment, restarts=restarts).run()
        os.fdatasync(context.descriptor)
        self._journal.add(segment)


def is_right(file: SourceFile, found: FileHash) -> bool:
    """Return whether the content has the hash that the source names. Any content is right for a file without a hash."""
    if file.sha256 is not None:
        return found.sha256 == file.sha256
    return file.git_sha1 is None or found.git_sha1 == file.git_sha1
