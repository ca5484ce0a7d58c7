"""Ranges of a file in parallel into a partial file, with a journal and a hash."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from common.network.transport import InterruptedConnectionError
from contract.downloads import Download, DownloadFile, DownloadRecord, DownloadState
from contract.errors import RoundhouseError
from transfers.network import FAILURES, RetryPolicy, SourceClient, describe_failure
from transfers.sources.base import AskAgainError, RangeAnswer, Resolution, SourceFile, read_range

WINDOW_S: Final = 10.0
"""Seconds over which the speed is measured."""
_SHORTEST_S: Final = 0.5


class SpeedMeter:
    """Measures the speed of a download over the last `WINDOW_S`, from samples of the number of bytes that are here. Not
    safe for threads."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add_sample(self, now: float, done_bytes: int) -> None:
        """Note that `done_bytes` bytes are here at the time `now`, in seconds of a clock that never goes back. If there
        are fewer bytes than before, because a part is fetched anew, the measurement begins again."""
        if self._samples and done_bytes < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, done_bytes))
        while len(self._samples) > 2 and self._samples[1][0] < now - WINDOW_S:
            self._samples.popleft()

    def measure(self) -> float | None:
        """Return the speed in bytes per second; None: the samples are fewer than two, or cover less than half a
        second."""
        if len(self._samples) < 2:
            return None
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_at - first_at) if last_at - first_at >= _SHORTEST_S else None


@dataclass(slots=True)
class _FileProgress:
    target: str
    size: int
    sha256: str | None
    done_bytes: int = 0


class DownloadProgress:
    """The progress of one run of a download. Safe for threads: methods are called from several, often, and do
    not block. `set_files` is called before any method that takes a file."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: returns seconds, and never goes back."""
        self._clock = clock
        self._lock = threading.Lock()
        self._files: dict[str, _FileProgress] = {}
        self._model: dict[str, str | None] = {}
        """What the run brings, by fields of a record; empty until it is known."""
        self._speed = SpeedMeter()
        self._waiting: str | None = None
        self._state: DownloadState | None = None

    def set_files(self, resolution: Resolution) -> None:
        """Note the files that the download consists of, none of them here yet. Replaces the files of an earlier
        call."""
        with self._lock:
            self._model = {"main": resolution.main, "projector": resolution.projector_target}
            self._files = {
                each.path: _FileProgress(resolution.target_of(each), each.size, each.sha256)
                for each in resolution.files
            }

    def set_state(self, state: DownloadState) -> None:
        """Note what the run does now, which views show in place of the record's state."""
        with self._lock:
            self._state = state

    def set_done(self, file: SourceFile, done_bytes: int) -> None:
        """Note that `done_bytes` bytes of the file are here in all. Replaces the number before. Also sets the state
        `downloading`. Raises KeyError for a file that `set_files` did not get."""
        with self._lock:
            self._files[file.path].done_bytes = done_bytes
            self._state = "downloading"

    def add_done(self, file: SourceFile, added_bytes: int) -> None:
        """Note that `added_bytes` more bytes of the file are here. Raises KeyError for a file that `set_files` did not
        get."""
        with self._lock:
            self._files[file.path].done_bytes += added_bytes

    def set_waiting(self, reason: str | None) -> None:
        """Note that nothing comes just now, and why. None: the fetch goes on."""
        with self._lock:
            self._waiting = reason

    def set_verifying(self, file: SourceFile) -> None:
        """Note that all bytes of the file are here, and are compared with the source's hash now. Sets the state
        `verifying`."""
        with self._lock:
            self._state = "verifying"

    def build_view(self, record: DownloadRecord) -> Download:
        """Return the download as it is now: the record with this run's state, files and speed; and unless an earlier
        run has finished, with the model that this one brings. Each call also takes a sample for the speed, which is
        None before the second call."""
        with self._lock:
            files = [
                DownloadFile(path=each.target, size=each.size, done_bytes=each.done_bytes, sha256=each.sha256)
                for each in self._files.values()
            ]
            total, done = sum(each.size for each in files), sum(each.done_bytes for each in files)
            self._speed.add_sample(self._clock(), done)
            speed = self._speed.measure()
            return build_view(
                record.model_copy(
                    update={"state": self._state or record.state} | ({} if record.has_finished else self._model)
                ),
                files,
                bytes_per_s=speed,
                remaining_s=(total - done) / speed if speed else None,
                waiting=self._waiting,
            )


def build_view(
    record: DownloadRecord,
    files: Sequence[DownloadFile],
    *,
    bytes_per_s: float | None = None,
    remaining_s: float | None = None,
    waiting: str | None = None,
) -> Download:
    """Return a download as the API answers it, with the sums of the files' bytes. `bytes_per_s`: its speed; None:
    unknown. `remaining_s`: seconds until its end; None: unknown. `waiting`: why nothing comes just now; None: it does
    not wait."""
    return Download(
        id=record.id,
        reference=record.reference,
        pinned=record.pinned or record.wanted,
        state=record.state,
        files=list(files),
        main=record.main,
        projector=record.projector,
        total_bytes=sum(each.size for each in files),
        done_bytes=sum(each.done_bytes for each in files),
        bytes_per_s=bytes_per_s,
        remaining_s=remaining_s,
        waiting=waiting,
        has_finished=record.has_finished,
        error=record.error,
        created_at=record.created_at,
        ended_at=record.ended_at,
    )


Segment = tuple[int, int]
"""First byte, and the byte after the last one."""


def plan_segments(size: int, done: Iterable[Segment], segment_bytes: int) -> list[Segment]:
    """Return the bytes of a file that no segment of `done` has, as segments of at most `segment_bytes` (at least 1), in
    ascending order. `done` may be in any order, and its segments may touch or overlap. `size`: bytes of the file."""
    missing, position = [], 0
    for start, end in [*sorted(done), (size, size)]:
        while position < min(start, size):
            stop = min(position + segment_bytes, start, size)
            missing.append((position, stop))
            position = stop
        position = max(position, end)
    return missing


class FetchJournal:
    """The journal of one partial file: the content's identity, then one line per range that is done. A line that was
    cut off by a kill is left out. Methods block on the disk; `add` may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    @classmethod
    def of_partial(cls, partial: Path) -> FetchJournal:
        """Return the journal that is kept beside a partial file."""
        return cls(partial.with_name(f"{partial.name}.journal"))

    def read(self, identity: str, size: int) -> list[Segment]:
        """Return the ranges that are done, in the order in which they were noted. Empty if there is no journal, or one
        of other content (another `identity`). A range beyond `size` bytes is left out. Blocks. Raises OSError."""
        try:
            text = self._path.read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return []
        lines = text.split("\n")[:-1]  # what follows the last newline is cut off
        if not lines or lines[0] != identity:
            return []
        found = (_parse_line(line) for line in lines[1:])
        return [each for each in found if each is not None and 0 <= each[0] < each[1] <= size]

    def begin(self, identity: str) -> None:
        """Write a journal without ranges over whatever is there. `identity`: one line of text. Durable on return.
        Blocks. Raises OSError."""
        self._write(f"{identity}\n", os.O_TRUNC)

    def add(self, segment: Segment) -> None:
        """Note a range whose bytes are on disk. Durable on return. Blocks. Raises OSError."""
        with self._lock:
            # A line of its own, whatever a kill left of the one before.
            self._write(f"\n{segment[0]} {segment[1]}\n", os.O_APPEND)

    def remove(self) -> None:
        """Remove the journal's file if it is there. Blocks. Raises OSError."""
        self._path.unlink(missing_ok=True)

    def _write(self, text: str, flag: int) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flag, 0o600)
        try:
            data = text.encode()
            while data:
                data = data[os.write(descriptor, data) :]
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def _parse_line(line: str) -> Segment | None:
    start, _, end = line.partition(" ")
    if not (start.isascii() and start.isdigit() and end.isascii() and end.isdigit()):
        return None
    return int(start), int(end)


ENOUGH_BYTES: Final = 256 * 1024
"""A connection that brought as many bytes counts as a success, however it ended."""


class StoppedError(Exception):
    """The download was stopped by this program: its stop event was set, or its connections were interrupted."""


class IgnoredRangeError(AskAgainError):
    """The source sends the whole file instead of a range. Asking again does not help."""


class Mirrors:
    """Further addresses of one file, for which each range is asked first. Safe for threads."""

    def __init__(self, urls: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: returns seconds, and never goes back."""
        self._clock = clock
        self._resting_until = dict.fromkeys(urls, 0.0)

    def choose_urls(self) -> list[str]:
        """Return the addresses to ask now, in a random order, so that not all hosts ask the same one."""
        now = self._clock()
        urls = [url for url, until in self._resting_until.items() if until <= now]
        random.shuffle(urls)
        return urls

    def rest(self, url: str, seconds: float) -> None:
        """Leave an address out for so many seconds, because it has not answered a range."""
        self._resting_until[url] = self._clock() + seconds


MISS_S: Final = 1.0
"""Seconds for which a mirror is left out that has not got a range yet."""
GONE_S: Final = 30.0
"""Seconds for which a mirror is left out that does not answer."""


@dataclass(frozen=True, slots=True)
class FileContext:
    """What the fetches of all segments of one file share. It closes neither `descriptor` nor `client`."""

    client: SourceClient
    file: SourceFile
    url: str
    descriptor: int
    """Of the partial file, open for writing."""
    policy: RetryPolicy
    progress: DownloadProgress
    stopped: threading.Event
    mirrors: Mirrors = field(default_factory=lambda: Mirrors(()))

    def check_stop(self) -> None:
        """Raise StoppedError after `stopped` was set."""
        if self.stopped.is_set():
            raise StoppedError


class SegmentFetch:
    """Fetches one segment of a file into its place in the partial file. Use it once."""

    def __init__(self, context: FileContext, segment: Segment, *, restarts: bool = False) -> None:
        """`restarts`: the source ignores ranges, and the segment is the whole file, so that each new try begins with
        the first byte."""
        self._context = context
        self._start, self._end = segment
        self._position = self._start
        self._restarts = restarts
        self._url = context.url

    def run(self) -> None:
        """Fetch the segment, and write its bytes into their place in the partial file, which is not flushed. A
        connection that breaks off is made again, and the fetch goes on from there, as often as the policy allows.
        Blocks. Call once.

        Raises:
            IgnoredRangeError: the source sends the whole file instead of the range. Bytes that came before stay.
            RoundhouseError: `source_not_found`, `source_forbidden`, `source_address_refused`, `source_unavailable` or
                `source_mismatch`.
            StoppedError: `stopped` was set, or the client interrupted.
            OSError: the partial file cannot be written.
        """
        self._ask_mirrors()
        failures, furthest = 0, self._start
        while self._position < self._end:
            self._context.check_stop()
            try:
                self._receive()
            except IgnoredRangeError:
                raise
            except AskAgainError as error:
                # Bytes that an earlier try brought too are no progress.
                failures = 1 if self._position - furthest >= ENOUGH_BYTES else failures + 1
                furthest = max(furthest, self._position)
                self._pause(error, failures)
                if self._restarts:
                    self._position = self._start
                    self._context.progress.set_done(self._context.file, 0)
            else:
                failures = 0

    def _ask_mirrors(self) -> None:
        """Take what the file's mirrors have of the segment."""
        for url in self._context.mirrors.choose_urls():
            if self._position >= self._end:
                break
            self._context.check_stop()
            self._url = url
            try:
                self._receive()
            except AskAgainError as error:
                self._context.mirrors.rest(url, MISS_S if error.is_answer else GONE_S)
            except RoundhouseError as error:
                self._context.mirrors.rest(url, MISS_S if error.entry.code == "source_not_found" else GONE_S)
        self._url = self._context.url

    def _receive(self) -> None:
        context = self._context
        try:
            with read_range(context.client, self._url, self._position, self._end) as answer:
                self._check_answer(answer)
                context.progress.set_waiting(None)
                for chunk in answer.chunks:
                    context.check_stop()
                    if self._position + len(chunk) > answer.end:
                        raise AskAgainError("the source sends more bytes than it announced")
                    self._write(chunk)
                if self._position < answer.end:
                    raise AskAgainError("the source ended the answer early")
        except InterruptedConnectionError:
            raise StoppedError from None
        except FAILURES as error:
            raise describe_failure(error, "the source") from None

    def _check_answer(self, answer: RangeAnswer) -> None:
        file = self._context.file
        for hop in answer.hops:
            commit = hop.headers.get("x-repo-commit")
            if file.commit is not None and commit is not None and commit != file.commit:
                raise RoundhouseError("source_mismatch", f"{file.path}: the source answers commit {commit!r:.50}.")
            etag = hop.headers.get("x-linked-etag", "").strip('"')
            if file.sha256 is not None and len(etag) == len(file.sha256) and etag != file.sha256:
                raise RoundhouseError("source_mismatch", f"{file.path}: the source has another file, {etag!r:.70}.")
        if answer.total != file.size:
            raise RoundhouseError(
                "source_mismatch", f"{file.path}: the source has {answer.total} bytes, and not {file.size}."
            )
        if answer.start != self._position or answer.end > self._end:
            raise IgnoredRangeError("the source ignores which range is asked for")

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            written = os.pwrite(self._context.descriptor, view, self._position)
            self._position += written
            self._context.progress.add_done(self._context.file, written)
            view = view[written:]

    def _pause(self, error: AskAgainError, failures: int) -> None:
        context = self._context
        delay = context.policy.choose_delay(failures, error.asked_s)
        if delay is None:
            raise RoundhouseError(
                "source_unavailable", f"{context.file.path}: {error}.", retry_after_s=error.asked_s
            ) from None
        context.progress.set_waiting(str(error))
        if context.stopped.wait(delay):
            raise StoppedError


_HASHED_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileHash:
    """The hashes that identify a file's content, in lower-case hex."""

    sha256: str
    git_sha1: str
    """Id of the content as a git object."""


def hash_file(descriptor: int, size: int, check_stop: Callable[[], None]) -> FileHash:
    """Return the hashes of a file's content, read from its beginning to its end. `size`: the file's size in bytes,
    which the git id depends on. Blocks. `check_stop` is called for every MiB; what it raises is raised. Raises OSError.
    """
    sha256 = hashlib.sha256()
    # Not for security: it is the name that git gives the content.
    git_sha1 = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    position = 0
    while chunk := os.pread(descriptor, _HASHED_BYTES, position):
        check_stop()
        sha256.update(chunk)
        git_sha1.update(chunk)
        position += len(chunk)
    return FileHash(sha256.hexdigest(), git_sha1.hexdigest())


_COPIED_BYTES: Final = 8 * 1024 * 1024


def _copy_some(source: int, copy: int, position: int) -> int:
    """Copy bytes from `position` on to the same place, and return their number; 0: the source ends there."""
    try:
        return os.copy_file_range(source, copy, _COPIED_BYTES, position, position)
    except OSError as error:
        # Some file systems cannot do it, and few can from another one.
        if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
    return os.pwrite(copy, os.pread(source, _COPIED_BYTES, position), position)


def copy_file(file: SourceFile, partial: Path, progress: DownloadProgress, stopped: threading.Event) -> FileHash:
    """Copy a local file into the partial file, over what that has, and return the hash of the copy, which is on disk
    then. `partial` may not exist yet. Blocks.

    Raises:
        RoundhouseError: `models_disk_full`; `source_mismatch` if the file changed meanwhile.
        StoppedError: `stopped` was set.
        OSError: a file cannot be read or written.
    """
    assert file.local_path is not None

    def check_stop() -> None:
        if stopped.is_set():
            raise StoppedError

    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with file.local_path.open("rb") as source, os.fdopen(os.open(partial, flags, 0o600), "w+b", buffering=0) as copy:
        progress.set_done(file, 0)
        copied = 0
        try:
            while count := _copy_some(source.fileno(), copy.fileno(), copied):
                check_stop()
                copied += count
                progress.set_done(file, copied)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise RoundhouseError(
                    "models_disk_full", f"The disk became full while {file.path} was copied."
                ) from None
            raise
        if copied != file.size:
            raise RoundhouseError("source_mismatch", f"{file.path} changed while it was copied.")
        progress.set_verifying(file)
        os.fsync(copy.fileno())
        return hash_file(copy.fileno(), copied, check_stop)


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
        progress: DownloadProgress,
        stopped: threading.Event,
    ) -> None:
        """`file` must have a `url`. `partial`: path of the partial file, which may not exist yet, in a folder that
        nobody else writes; the journal is kept beside it. `stopped`: when it is set, the fetch ends soon with
        StoppedError."""
        self._client = client
        self._file = file
        self._partial = partial
        self._journal = FetchJournal.of_partial(partial)
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
        file, options, progress = self._file, self._options, self._progress
        assert file.url is not None, "a local file is copied"
        mirrors = Mirrors(file.mirrors)
        return FileContext(self._client, file, file.url, descriptor, options.policy, progress, self._stopped, mirrors)

    def _fetch_checked(self, context: FileContext) -> FileHash:
        file = self._file
        done = self._journal.read(file.identity, file.size)
        found = self._fetch_whole(context, done)
        if not is_right(file, found) and (done or file.mirrors):
            # A power cut may have kept the journal and lost bytes; a mirror may have others than it says.
            found = self._fetch_whole(replace(context, mirrors=Mirrors(())), [])
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
        if file.mirrors:  # of several hosts, each begins elsewhere, and has something for the others
            random.shuffle(segments)
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
