"""Files of resumable streams: one folder under the state folder, used by one gateway at a time (a lock file)."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import FiniteFloat, NonNegativeInt, TypeAdapter

from assistant.streams.stream import ByteRing, ResumableStream, StreamState
from common.sqlite_files import hold_file

logger = logging.getLogger(__name__)


SLOW_WRITE_S: Final = 0.05
"""Seconds from which a write counts as slow. A write into the page cache takes microseconds."""
SHARE: Final = 0.05
"""Share of the event loop's time that slow writes may take in the long run."""
BURST_S: Final = 2.0
"""Seconds that slow writes may take in one burst, beyond SHARE."""
REST_S: Final = 60.0
"""Seconds for which a disk that was too slow is not written to."""


class DiskPace:
    """Leaky bucket of the seconds that slow writes to one disk took: it fills with each slow write and leaks SHARE
    seconds per second."""

    def __init__(self) -> None:
        self._held_s = 0.0
        self._held_at = 0.0
        self.rests_until = 0.0
        """Monotonic time before which nothing may be written; 0: no rest so far. The caller looks at it before each
        write."""

    def record_slow_write(self, took_s: float, now: float) -> bool:
        """Count a write of `took_s` seconds, which is more than SLOW_WRITE_S and ended at `now`. Return True if the
        bucket is over BURST_S: `rests_until` is then `now` plus REST_S, and the bucket is empty."""
        self._held_s = max(0.0, self._held_s - (now - self._held_at) * SHARE) + took_s
        self._held_at = now
        if self._held_s <= BURST_S:
            return False
        self._held_s = 0.0
        self.rests_until = now + REST_S
        return True


FOLDER_NAME: Final = "streams"
FORMAT: Final = 1
"""Version of the file format. Increase it when an older gateway would misread the files; other versions are removed at
the start."""
_LOCK_NAME: Final = "lock"
_MOST_HEADER_BYTES: Final = 64 * 1024


class StreamHeader(NamedTuple):
    """First line of a file, as JSON: which stream the bytes after it belong to. The fields that are not described are
    those of `ResumableStream`."""

    tenant: str
    id: str
    model: str
    path: str
    request_id: str
    response_id: str | None
    """Id of the background response that the stream belongs to; None: it belongs to none."""
    began_at: FiniteFloat
    """Unix time in seconds."""
    first_offset: NonNegativeInt = 0
    """Offset in the stream of the first byte after this line; above 0 once old bytes were dropped."""

    @classmethod
    def decode(cls, line: bytes) -> StreamHeader:
        """Parse a file's first line. Raises ValueError if it is not a header of this FORMAT."""
        fields = json.loads(line)
        if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
            raise ValueError
        return _HEADER.validate_python(fields, strict=True)

    def encode(self) -> bytes:
        """Return the header as one line of JSON in UTF-8, with FORMAT and the newline."""
        return json.dumps({"format": FORMAT, **self._asdict()}).encode() + b"\n"


_HEADER: Final = TypeAdapter(StreamHeader)


class KeptStream(NamedTuple):
    """A file that an earlier process left, with its header read. `state` LIVE: the process was killed before the
    stream's end."""

    path: Path
    header: StreamHeader
    header_bytes: int
    """Length of the header line: where the events begin in the file."""
    state: StreamState
    changed_at: float
    """Unix time in seconds of the last write."""

    def read_events(self) -> bytes:
        """Return the events in the file. Blocks; raises OSError if the file cannot be read.

        The last event may be torn if the process was killed.
        """
        with self.path.open("rb") as file:
            file.seek(self.header_bytes)
            return file.read()


class StreamFolder:
    """The folder `streams/` with one file per stream. Call its methods in the event loop: they write to the page cache,
    which outlives the process, and block only where the system makes writers wait; `DiskPace` bounds that."""

    def __init__(self, state_folder: Path, ring_bytes: int) -> None:
        """`state_folder`: its folder `streams/` is used, and made with the first file. `ring_bytes`: most bytes of one
        stream's ring. A file that exceeds twice that is rewritten with the ring's bytes alone."""
        self._path = state_folder / FOLDER_NAME
        self.most_file_bytes = 2 * ring_bytes
        self._pace = DiskPace()
        self._lock: int | None = None
        self._problem: str | None = None
        self.waits = False
        """Whether an earlier process of this gateway still has the folder: no file is made until its files are read."""
        self.lost_count = 0
        """Streams whose file failed, since the start."""

    # At the start

    def list_kept(self) -> Iterator[KeptStream]:
        """Yield the files that an earlier process left, in no meaningful order. Blocks on the disk.

        Locks the folder for this gateway, until `close`. Files without a valid header are logged and removed. Yields
        nothing if there is no folder, or if another gateway holds it. Raises OSError if the folder cannot be read.
        """
        try:
            os.scandir(self._path).close()  # raises for a file in the folder's place, which `_hold` would only log
        except FileNotFoundError:
            return
        if not self._hold():
            return
        for path in sorted(self._path.iterdir()):
            if path.name == _LOCK_NAME:
                continue
            kept = _read_header(path)
            if kept is not None:
                yield kept
            else:
                logger.warning("%s is no stream of this version: it is removed", path)
                remove_file(path)

    def is_held_elsewhere(self) -> bool:
        """Return whether another process holds the folder's lock. Blocks on the disk; False where that is not known."""
        try:
            os.close(hold_file(self._path / _LOCK_NAME))
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def end_interrupted(self, kept: KeptStream, whole_bytes: int, last_events: bytes, state: StreamState) -> Path:
        """End the file of a stream whose process was killed, and return the file's new path.

        Keeps the first `whole_bytes` bytes of the stream's events, appends `last_events`, and renames the file for
        `state`. Blocks; raises OSError, after which a part may be done.
        """
        os.truncate(kept.path, kept.header_bytes + whole_bytes)
        with kept.path.open("ab") as file:
            file.write(last_events)
        return kept.path.rename(kept.path.with_suffix(f".{state}"))

    def adopt_file(self, kept_path: Path, header: StreamHeader) -> DiskFile:
        """Return a DiskFile for a recovered stream, which has ended. Call only its `remove`. `kept_path`: path of the
        file, under which `end_interrupted` may have renamed it."""
        return DiskFile(self, kept_path, header)

    # While streams are made

    def new_file(self, stream: ResumableStream, response_id: str | None) -> DiskFile | None:
        """Return a file for a stream that begins; nothing is written to it before its first `append`. Makes the folder,
        and locks it for this gateway until `close`, where that is not done yet. None: it `waits`, the disk rests after
        slow writes, the folder cannot be made, or another gateway holds it (logged once). `response_id`: id of the
        background response that the stream belongs to; None: it belongs to none."""
        if self.waits or self._rests() or not self._hold():
            return None
        header = StreamHeader(
            stream.tenant, stream.id, stream.model, stream.path, stream.request_id, response_id, stream.began_at
        )
        return DiskFile(self, self._path / f"{secrets.token_hex(12)}.{StreamState.LIVE}", header)

    def may_write(self) -> bool:
        """Return False while the disk rests because it was too slow."""
        return not self._rests()

    def _rests(self) -> bool:
        return self._pace.rests_until > 0.0 and time.monotonic() < self._pace.rests_until

    def record_slow_write(self, took_s: float) -> None:
        """Count a write by one of the files that took more than SLOW_WRITE_S seconds. Too many of them let the disk
        rest, which is logged."""
        if self._pace.record_slow_write(took_s, time.monotonic()):
            logger.error("%s: the disk is too slow: streams are not kept in files for a while", self._path)

    def record_loss(self, reason: str) -> None:
        """Count a stream whose file failed. Logged unless the last failure had the same reason."""
        self.lost_count += 1
        if reason != self._problem:
            self._problem = reason
            logger.error("a stream is not kept in its file in %s: %s", self._path, reason)

    def record_success(self) -> None:
        """Forget the last failure, so that the next one is logged."""
        self._problem = None

    def close(self) -> None:
        """Release the folder's lock, so that another gateway can use it. Harmless if it is not held. No file may be
        made or written afterwards."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _hold(self) -> bool:
        """Make the folder and lock it for this gateway. Return whether this gateway holds the lock."""
        if self._lock is not None:
            return True
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_path = self._path / _LOCK_NAME
            lock_path.touch(mode=0o600)
            self._lock = hold_file(lock_path)
        except BlockingIOError:
            self._tell("another gateway uses it")
        except OSError as error:
            self._tell(_reason(error))
        return self._lock is not None

    def _tell(self, reason: str) -> None:
        if reason != self._problem:
            self._problem = reason
            logger.error("streams are not kept in files in %s: %s", self._path, reason)


class DiskFile:
    """File of one stream, a `StreamFile`: the header line, then the stream's bytes from the header's `first_offset` on.
    The file's suffix is the state. Get it from `StreamFolder.new_file` or `adopt_file`, whose lock it relies on.

    The file is created by the first `append`, and rewritten with the ring's bytes alone when it has grown too large.
    Writes are not synced: they survive the process, not a power failure.
    """

    __slots__ = ("_descriptor", "_folder", "_header", "_path", "_size")

    def __init__(self, folder: StreamFolder, path: Path, header: StreamHeader) -> None:
        self._folder = folder
        self._path = path
        self._header = header
        self._descriptor: int | None = None
        self._size = 0

    def append(self, events: bytes, ring: ByteRing) -> bool:
        """Write whole events, before they are appended to `ring`.

        The first call creates the file, with the bytes of `ring`.

        A file that grew too long is written anew with the ring's bytes. Returns False if the events could not be
        written, or the disk rests: the file is removed then, and must not be used again. Never raises OSError. May
        block while the disk is slow. See `stream.StreamFile`.
        """
        folder, started_at = self._folder, time.perf_counter()
        if not folder.may_write():
            self._lose("the disk is too slow")
            return False
        try:
            if self._descriptor is None:
                self._open(ring)
            elif self._size + len(events) > folder.most_file_bytes:
                self._write_anew(ring)
            assert self._descriptor is not None
            _write_all(self._descriptor, events)
        except OSError as error:
            self._lose(_reason(error))
            return False
        self._size += len(events)
        took_s = time.perf_counter() - started_at
        if took_s > SLOW_WRITE_S:
            folder.record_slow_write(took_s)
        return True

    def end(self, state: StreamState) -> bool:
        """Close the file and record the final state in its suffix.

        Returns False if that failed: the file is removed then, and must not be used again. If nothing was ever
        appended, does nothing and returns True. Never raises OSError. May block while the disk is slow.
        """
        if self._descriptor is None:
            return True
        self._close()
        try:
            self._path = self._path.rename(self._path.with_suffix(f".{state}"))
        except OSError as error:
            self._lose(_reason(error))
            return False
        return True

    def remove(self) -> None:
        """Close and delete the file. Harmless if there is none. Never raises OSError: a failure is logged."""
        self._close()
        remove_file(self._path)

    def _open(self, ring: ByteRing) -> None:
        self._descriptor = _create(self._path)
        self._size = _write_all(self._descriptor, self._header.encode() + ring.read_all())
        self._folder.record_success()

    def _write_anew(self, ring: ByteRing) -> None:
        """Replace the file by one with the ring's bytes, so that bytes that the ring has dropped leave the disk too."""
        header = self._header._replace(first_offset=ring.first_offset)
        new_path = self._path.with_suffix(".new")
        descriptor = _create(new_path)
        try:
            size = _write_all(descriptor, header.encode() + ring.read_all())
            new_path.rename(self._path)
        except OSError:
            os.close(descriptor)
            remove_file(new_path)
            raise
        self._close()
        self._descriptor, self._size = descriptor, size

    def _lose(self, reason: str) -> None:
        self._folder.record_loss(reason)
        self.remove()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def remove_file(path: Path) -> None:
    """Remove a stream's file, if it exists. An OSError is logged, not raised. Blocks on the disk."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.error("%s cannot be removed: %s", path, error)  # noqa: TRY400


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _write_all(descriptor: int, events: bytes) -> int:
    """Write all of `events`, and return their size. Raises OSError, with a part written, for example on a full disk."""
    written = os.write(descriptor, events)
    while written < len(events):
        written += os.write(descriptor, events[written:])  # says why
    return written


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _read_header(path: Path) -> KeptStream | None:
    """Return the file with its header; None: it cannot be read, or is no stream's file of this FORMAT."""
    with suppress(OSError, ValueError):
        state = StreamState(path.suffix.removeprefix("."))
        with path.open("rb") as file:
            line = file.readline(_MOST_HEADER_BYTES)
            changed_at = os.fstat(file.fileno()).st_mtime
        return KeptStream(path, StreamHeader.decode(line), len(line), state, changed_at)
    return None
