"""One collection of an embedded store: its files, its shard's process, its writes, and its optimization.

    STORE/lock
    STORE/NAME/collection.json    {"version": 1, "name": ..., "dimension": ..., "bm25": ..., "shard": "shard-000002"}
    STORE/NAME/shard-000002/      Qdrant Edge's files
    STORE/NAME/shard-000003/      a copy that is being optimized, or what a killed program left
    STORE/NAME.damaged/           a collection that could not be opened

The record is replaced atomically, so at every moment it names one whole shard. Everything else is removed at the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import stat
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from retrieval.vector_store.base import (
    COLLECTION_NAME,
    CollectionSpec,
    Point,
    ScoredPoint,
    VectorStoreError,
    check_name,
)
from retrieval.vector_store.edge.connection import (
    ShardConnection,
    ShardDamagedError,
    ShardEndedError,
    open_shard,
    optimize_shard,
)
from retrieval.vector_store.edge.frames import decode_vector_text, encode_frame, encode_vector
from retrieval.vector_store.payload import make_payload
from retrieval.vector_store.tokenizer import dump_options, load_options

logger = logging.getLogger(__name__)


def copy_sparse_file(source: str, target: str) -> str:
    """Copy a file that nobody writes to, and leave holes where it has holes. Return `target`; it is replaced where it
    exists. For `shutil.copytree`. Blocks.

    Raises:
        OSError: the source is no regular file, or one of both cannot be read or written.
    """
    if not stat.S_ISREG(Path(source).stat().st_mode):
        raise OSError(errno.EINVAL, "no regular file", source)  # opening a pipe would wait for its writer
    with Path(source).open("rb") as read, Path(target).open("wb") as write:
        size = os.fstat(read.fileno()).st_size
        os.ftruncate(write.fileno(), size)
        for start, end in _find_data(read.fileno(), size):
            _copy_range(read.fileno(), write.fileno(), start, end)
    return target


def _find_data(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges that are no holes. A file system without holes has one, the whole file."""
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole to the end
                return
            raise
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, end


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    os.lseek(target, start, os.SEEK_SET)
    while start < end:
        copied = os.sendfile(target, source, start, end - start)
        if copied == 0:
            raise OSError(errno.EIO, "the file became shorter while it was copied")
        start += copied


RECORD: Final = "collection.json"
_RECORD_VERSION: Final = 1
_SHARD: Final = re.compile(r"shard-(\d{6,})")
_DAMAGED: Final = ".damaged"


class RecordError(Exception):
    """A collection's record is missing or malformed. The text says which."""


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """The content of a collection's `collection.json`: its name, dimension and options of BM25, and which shard is
    current."""

    spec: CollectionSpec
    shard: str
    """Name of the shard's folder in the collection's, as `shard-000002`."""


def lock_store(folder: Path) -> int:
    """Create the store's folder where it is missing, lock it, and return the descriptor that holds the lock.

    The lock lasts until this descriptor is closed here and in all child processes that inherited it. Does not wait for
    the lock. Raises BlockingIOError if another program has the lock, and OSError if the folder cannot be used.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class CollectionFolder:
    """Reads and changes the files of one collection. Methods block, and raise OSError where the disk refuses."""

    def __init__(self, store: Path, name: str) -> None:
        """Name the folder, which need not exist; nothing is read. Raises ValueError for a name that no collection can
        have (see `base.check_name`)."""
        check_name(name)
        self.path = store / name
        self._damaged = store / f"{name}{_DAMAGED}"

    @property
    def has_record(self) -> bool:
        """Whether the file `collection.json` exists. A folder without it is no collection. Blocks."""
        return (self.path / RECORD).exists()

    def read_record(self) -> CollectionRecord:
        """Return the collection's record. Raises RecordError where the file is missing or malformed, or names another
        collection. Does not check that the shard exists. Blocks. Raises OSError if the file cannot be read."""
        try:
            record = json.loads((self.path / RECORD).read_text())
            spec = CollectionSpec(record["name"], record["dimension"], load_options(record.get("bm25")))
            shard = record["shard"]
            is_valid = (
                record["version"] == _RECORD_VERSION
                and spec.name == self.path.name
                and (spec.dimension is None or (type(spec.dimension) is int and spec.dimension > 0))
                and _SHARD.fullmatch(shard)
            )
        except FileNotFoundError as error:
            raise RecordError(f"{RECORD} is missing") from error
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{RECORD} is malformed") from error
        if not is_valid:
            raise RecordError(f"{RECORD} is malformed")
        return CollectionRecord(spec, shard)

    def write_record(self, record: CollectionRecord) -> None:
        """Replace `collection.json`, atomically and durably. The collection's folder must exist. Blocks. Raises
        OSError."""
        fields = {
            "version": _RECORD_VERSION,
            "name": record.spec.name,
            "dimension": record.spec.dimension,
            "bm25": dump_options(record.spec.bm25),
            "shard": record.shard,
        }
        new = self.path / f"{RECORD}.new"
        with new.open("w") as file:
            json.dump(fields, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path / RECORD)
        _sync(self.path)
        _sync(self.path.parent)

    def make_shard(self) -> str:
        """Create an empty folder for a new shard, with the next free number, and return its name. The collection's
        folder is created where it is missing; the store's must exist. Blocks. Raises OSError."""
        self.path.mkdir(exist_ok=True)
        numbers = [int(found[1]) for entry in self.path.iterdir() if (found := _SHARD.fullmatch(entry.name))]
        name = f"shard-{max(numbers, default=0) + 1:06}"
        (self.path / name).mkdir()
        return name

    def copy_shard(self, source: str) -> str:
        """Copy a shard that nobody writes to, and return the copy's name. Blocks, about 0.5 s per GB that is cached.
        Raises OSError after it has removed the copy."""
        name = self.make_shard()
        try:
            shutil.copytree(self.path / source, self.path / name, copy_function=copy_sparse_file, dirs_exist_ok=True)
        except OSError:
            self.remove_shard(name)
            raise
        return name

    def sync_shard(self, shard: str) -> None:
        """Call fsync on the shard's files and folders. What its process still holds in memory is not written. Files
        that vanish meanwhile are skipped. Blocks. Raises OSError."""
        for folder, _, files in os.walk(self.path / shard):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    _sync(Path(folder, name))
            with contextlib.suppress(FileNotFoundError):
                _sync(Path(folder))

    def remove_shard(self, shard: str) -> None:
        """Remove the folder of a shard that nobody has open. Errors are ignored; the next start removes the rest.
        Blocks."""
        shutil.rmtree(self.path / shard, ignore_errors=True)

    def remove_leftovers(self, shard: str) -> None:
        """Remove everything in the collection's folder but `collection.json` and the folder of this shard. Blocks.
        Raises OSError."""
        for entry in self.path.iterdir():
            if entry.name not in (RECORD, shard):
                _remove(entry)

    def remove(self) -> None:
        """Delete the collection's folder, its record first and durably, so that what a killed program leaves is no
        collection. Does nothing if there is no folder. Blocks. Raises OSError."""
        (self.path / RECORD).unlink(missing_ok=True)
        if self.path.exists():
            _sync(self.path)
            shutil.rmtree(self.path)

    def set_aside(self) -> Path:
        """Rename the folder to `NAME.damaged`, so that it is no collection any more, and return the new path. An
        earlier folder of that name is removed. Blocks. Raises OSError."""
        if self._damaged.exists():
            shutil.rmtree(self._damaged)
        self.path.rename(self._damaged)
        return self._damaged


def list_collection_folders(store: Path) -> list[CollectionFolder]:
    """Return the store's folders whose names a collection can have, sorted by name; damaged ones that were renamed are
    not among them. A folder may lack its record. Raises OSError where the store's folder cannot be read. Blocks."""
    names = sorted(entry.name for entry in store.iterdir() if entry.is_dir() and COLLECTION_NAME.fullmatch(entry.name))
    return [CollectionFolder(store, name) for name in names]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


_LENGTH: Final = struct.Struct("<I")


class WriteLog:
    """A queue of encoded requests in a temporary file, first in, first out. `append` and `take` block on the disk.

    The file has no name, so a killed program leaves nothing. The owner calls `close`.
    """

    def __init__(self, folder: Path) -> None:
        """Create the file on the disk of `folder`, which must exist. Blocks. Raises OSError if that fails."""
        # Without a buffer, so that a full disk fails the request that does not fit, and neither `take` nor `close`.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - close() closes it
        self._end = 0
        self._read = 0
        self._pending = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of the requests that `take` has not returned yet, and 4 more for each."""
        return self._end - self._read

    @property
    def pending_count(self) -> int:
        """How many requests `take` has not returned yet."""
        return self._pending

    def append(self, frame: bytes) -> None:
        """Add a request at the end of the queue. Blocks: writes to the file. Raises OSError if the disk is full or
        fails; the request is then not in the queue, and the queue stays usable."""
        record = _LENGTH.pack(len(frame)) + frame
        self._file.seek(self._end)
        left = memoryview(record)
        while left:
            left = left[self._file.write(left) :]
        self._end += len(record)
        self._pending += 1

    def take(self) -> bytes | None:
        """Remove the oldest request from the queue, and return it; None if the queue is empty. Blocks: reads the file.
        Raises OSError if the file cannot be read; the request then stays in the queue."""
        if self._read == self._end:
            return None
        self._file.seek(self._read)
        (length,) = _LENGTH.unpack(self._read_bytes(_LENGTH.size))
        frame = self._read_bytes(length)
        self._read += _LENGTH.size + length
        self._pending -= 1
        return frame

    def close(self) -> None:
        """Close the file, which frees its space. No method may be called afterwards but `close`."""
        self._file.close()

    def _read_bytes(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._file.read(size)
            if not part:
                raise OSError(errno.EIO, "the log of writes became shorter")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


UPSERT_BATCH: Final = 16
"""Points per request: 12 ms at dimension 384, most of it for the words, which a search may have to wait."""
FLUSH_EVERY: Final = 5000
"""Points between flushes that the store makes by itself. A flush stops searches: for 15 ms per 5000 points on an idle
disk, and for up to 0.3 s, whatever it writes, where other programs write too."""
_CATCH_UP_BYTES: Final = 1_000_000
"""With no more than this left to apply, writes wait until the copy has it (0.1 s)."""
_CATCH_UP_PASSES: Final = 5


class EdgeCollection:
    """Serves one collection of an `EdgeStore`: owns the process of its shard, and orders the writes.

    Methods may be called concurrently. A process that ends is started again by the next call, with all writes that it
    had answered. Methods that ask the shard raise VectorStoreError where the shard refuses the request, the process
    ends twice, or the collection was closed; ShardDamagedError where the files cannot be opened again; and OSError
    where files cannot be written or a process cannot be started.
    """

    def __init__(self, folder: CollectionFolder, lock: int, record: CollectionRecord) -> None:
        """Describe an existing collection, without any access to its files; `open` starts its process.

        `lock`: the descriptor of the store's lock (see `lock_store`), which every process inherits.
        """
        self._folder = folder
        self._lock = lock
        self._record = record
        self._connection: ShardConnection | None = None
        self._starting = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._optimizing = asyncio.Lock()
        self._write_log: WriteLog | None = None
        self._stop_optimizing = asyncio.Event()
        self._kept_shards = {record.shard}
        self._is_optimized = False
        self._unflushed = 0
        self._is_closed = False

    @property
    def spec(self) -> CollectionSpec:
        """The collection's name, the dimension of its dense vectors, and its options of BM25."""
        return self._record.spec

    @classmethod
    async def create(cls, folder: CollectionFolder, lock: int, spec: CollectionSpec) -> EdgeCollection:
        """Create the collection's files durably, and return it with its process running.

        No collection of this name may exist. `lock`: the descriptor of the store's lock, which the process inherits.
        Raises VectorStoreError where the shard cannot be created, and OSError where files cannot be written; what was
        written then has no record, so it is no collection.
        """
        shard = await asyncio.to_thread(folder.make_shard)
        try:
            connection = await open_shard(folder.path / shard, lock, spec, create=True)
        except ShardDamagedError as error:
            raise VectorStoreError(f"the vector store cannot create a collection: {error}") from error
        record = CollectionRecord(spec, shard)
        try:
            await asyncio.to_thread(folder.sync_shard, shard)
            await asyncio.to_thread(folder.write_record, record)
        except BaseException:
            await connection.kill()
            raise
        collection = cls(folder, lock, record)
        collection._connection = connection
        return collection

    async def open(self) -> None:
        """Start the shard's process, if it does not run.

        Raises:
            ShardDamagedError: the files cannot be opened.
            VectorStoreError: the machine does not allow it (memory, space, permissions), or `close` was called.
            OSError: the process cannot be started.
        """
        await self._connect()

    async def upsert_points(self, points: Sequence[Point]) -> None:
        """Write points that `base.check_points` has checked, in batches; one with the id of a stored point replaces it.
        Writes are applied in the order of the calls. Searches see all of them when the call returns, and some of them
        earlier. The points are durable after `flush`. Raises VectorStoreError, ShardDamagedError or OSError (see the
        class), after which some batches may be written."""
        async with self._writing:
            for start in range(0, len(points), UPSERT_BATCH):
                batch = points[start : start + UPSERT_BATCH]
                frame = self._encode_upsert(batch)
                self._note_write(frame)
                await self._request(frame)
                await self._flush_after(len(batch))

    async def delete_points(self, where: Mapping[str, Any]) -> None:
        """Delete the points that match the filter (see `retrieval.vector_store.payload`), in batches, after all earlier
        writes. Raises VectorStoreError, ShardDamagedError or OSError, after which some may be deleted."""
        frame = encode_frame({"op": "delete", "where": where})
        async with self._writing:
            self._note_write(frame)
            while deleted := await self._request(frame):
                await self._flush_after(deleted)

    async def flush(self) -> None:
        """Wait for earlier writes, and make them durable, so that they survive a loss of power. Raises
        VectorStoreError, ShardDamagedError or OSError (see the class)."""
        async with self._writing:
            await self._flush()

    async def read_vectors(self, ids: Sequence[str]) -> dict[str, list[float]]:
        """Return the dense vectors of stored points by their ids, scaled to length 1; ids without a point or vector are
        missing. Only for a collection with dense vectors, and for ids that are UUIDs (see `base.check_ids`). Raises
        VectorStoreError, ShardDamagedError or OSError (see the class)."""
        vectors: dict[str, list[float]] = {}
        for start in range(0, len(ids), UPSERT_BATCH):
            found = await self._request(encode_frame({"op": "vectors", "ids": ids[start : start + UPSERT_BATCH]}))
            vectors.update((id_, decode_vector_text(text)) for id_, text in found.items())
        return vectors

    async def search(self, request: Mapping[str, Any], data: bytes = b"") -> list[ScoredPoint]:
        """Run a search in the shard's process, and return up to `request["limit"]` points, best first. `request["op"]`
        is `search_dense`, with the keys `dimension`, `where` and `limit` and the query's vector in `data` (from
        `encode_vector`), or `search_sparse`, with `text`, `where`, `corpus` and `limit`, and no data; `Shard` describes
        them. Raises UnicodeEncodeError for text that is not valid Unicode, and VectorStoreError, ShardDamagedError or
        OSError (see the class)."""
        found = await self._request(encode_frame(request, data))
        return [ScoredPoint(version, ordinal, score) for version, ordinal, score in found]

    async def count(self, where: Mapping[str, Any] | None) -> int:
        """Return the exact number of points that match the filter, or of all points where `where` is None. Raises
        VectorStoreError, ShardDamagedError or OSError (see the class)."""
        counted: int = await self._request(encode_frame({"op": "count", "where": where}))
        return counted

    async def optimize(self) -> None:
        """Build the indexes in a copy of the shard, and serve the copy from then on.

        Searches go on meanwhile; writes wait while the copy is made and while it takes the shard's place. Returns at
        once where nothing was written since the last optimization; a concurrent call waits for the first. Cancelling
        the call, or `close`, gives up the optimization. Raises VectorStoreError if it is given up; after any error the
        old shard is then still served.
        """
        async with self._optimizing:
            if self._is_optimized:
                return
            self._is_optimized = True  # until the next write
            task = asyncio.create_task(self._optimize())
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                # The task is not cancelled: it must not stop between the record and what follows from it.
                self._stop_optimizing.set()
                await asyncio.wait((task,))
                raise
            finally:
                if not task.done() or task.cancelled() or task.exception() is not None:
                    self._is_optimized = False
                self._stop_optimizing.clear()

    async def close(self) -> None:
        """Flush the shard, and end its process. An optimization under way is given up, writes under way are finished,
        and later calls raise VectorStoreError. A second call does nothing. A flush that fails is not reported."""
        self._is_closed = True
        self._stop_optimizing.set()
        async with self._optimizing, self._writing, self._starting:
            if self._connection is not None:
                await self._connection.close()

    async def delete(self) -> None:
        """Close the collection, and delete its files. Raises OSError where they cannot be deleted; the collection is
        closed then, too."""
        await self.close()
        await asyncio.to_thread(self._folder.remove)

    async def _connect(self) -> ShardConnection:
        async with self._starting:
            if self._is_closed:
                raise VectorStoreError("the collection was closed")
            if self._connection is None or not self._connection.is_open:
                self._connection = await open_shard(self._folder.path / self._record.shard, self._lock, self.spec)
            return self._connection

    async def _request(self, frame: bytes) -> Any:
        connection = self._connection
        if connection is not None and connection.is_open:
            try:
                return await connection.request_encoded(frame)
            except ShardEndedError as error:
                logger.warning("collection %s: %s; it is started again", self.spec.name, error)
        connection = await self._connect()
        try:
            return await connection.request_encoded(frame)
        except ShardEndedError as error:
            raise VectorStoreError(str(error)) from error

    def _note_write(self, frame: bytes) -> None:
        """Keep a write for the copy that is being optimized. Called before the write is applied: one that fails is
        repeated by its caller, or was no loss."""
        self._is_optimized = False
        if self._write_log is not None:
            self._write_log.append(frame)

    async def _flush_after(self, written: int) -> None:
        self._unflushed += written
        if self._unflushed >= FLUSH_EVERY:
            await self._flush()

    async def _flush(self) -> None:
        # A thread of this process writes the bulk of it, while the shard's process answers searches.
        await asyncio.to_thread(self._folder.sync_shard, self._record.shard)
        await self._request(encode_frame({"op": "flush"}))
        self._unflushed = 0

    def _encode_upsert(self, points: Sequence[Point]) -> bytes:
        dimension = self.spec.dimension
        stored = [
            {"id": point.id, "text": point.text, "payload": make_payload(point), "dense": point.vector is not None}
            for point in points
        ]
        vectors = b"".join(encode_vector(point.vector) for point in points if point.vector is not None)
        return encode_frame({"op": "upsert", "dimension": dimension, "points": stored}, vectors)

    async def _optimize(self) -> None:
        served, copy, connection = self._record.shard, None, None
        try:
            copy = await self._copy_shard(served)
            await optimize_shard(self._folder.path / copy, self._lock, self._stop_optimizing)
            connection = await self._open_copy(copy)
            await self._catch_up(connection)
            await asyncio.to_thread(self._folder.sync_shard, copy)
            async with self._writing:
                replaced = await self._serve_copy(copy, connection)
        except ShardEndedError as error:
            raise VectorStoreError(str(error)) from error
        finally:
            self._drop_write_log()
            if connection is not None and connection is not self._connection:
                await connection.kill()
            if copy is not None and copy not in self._kept_shards:
                await asyncio.to_thread(self._folder.remove_shard, copy)
        if replaced is not None:
            await replaced.close()
        if served not in self._kept_shards:
            await asyncio.to_thread(self._folder.remove_shard, served)

    async def _copy_shard(self, served: str) -> str:
        """Copy the shard while nobody writes, and note all writes from then on."""
        async with self._writing:
            if self._is_closed:
                raise VectorStoreError("the collection was closed")
            await self._flush()
            log = WriteLog(self._folder.path)
            try:
                copy = await asyncio.to_thread(self._folder.copy_shard, served)
            except BaseException:
                log.close()
                raise
            self._write_log = log
            return copy

    async def _open_copy(self, copy: str) -> ShardConnection:
        try:
            return await open_shard(self._folder.path / copy, self._lock, self.spec)
        except ShardDamagedError as error:
            raise VectorStoreError(f"the optimized copy cannot be opened: {error}") from error

    async def _catch_up(self, connection: ShardConnection) -> None:
        """Give the copy what was written meanwhile, until little is left."""
        assert self._write_log is not None
        for _ in range(_CATCH_UP_PASSES):
            if self._write_log.pending_bytes <= _CATCH_UP_BYTES:
                return
            await _apply(self._write_log, connection)

    async def _serve_copy(self, copy: str, connection: ShardConnection) -> ShardConnection | None:
        """Give the copy the last writes, and put it in the served shard's place. Return the connection that served."""
        assert self._write_log is not None
        await _apply(self._write_log, connection)
        await connection.request({"op": "flush"})
        await asyncio.to_thread(self._folder.sync_shard, copy)
        record = CollectionRecord(self.spec, copy)
        async with self._starting:
            # Until it is known which of them the record names, neither may be removed.
            self._kept_shards = {self._record.shard, copy}
            try:
                await asyncio.to_thread(self._folder.write_record, record)
            except OSError as error:
                # The record may be in place, and only not be synced: then the next start would serve the copy.
                if (await asyncio.to_thread(self._folder.read_record)).shard != copy:
                    self._kept_shards = {self._record.shard}
                    raise
                logger.warning("the record of collection %s may be lost by a power cut: %s", self.spec.name, error)
            else:
                self._kept_shards = {copy}
            replaced, self._connection, self._record = self._connection, connection, record
        self._unflushed = 0
        return replaced

    def _drop_write_log(self) -> None:
        if self._write_log is not None:
            self._write_log.close()
            self._write_log = None


async def _apply(log: WriteLog, connection: ShardConnection) -> None:
    """Send what is in the log now. What arrives meanwhile stays there. Reading a request blocks the event loop: it was
    written moments before, and is in memory as a rule."""
    for _ in range(log.pending_count):
        frame = log.take()
        assert frame is not None
        # A deletion answers how many points it found, a batch at a time; another write answers nothing.
        while await connection.request_encoded(frame):
            pass
