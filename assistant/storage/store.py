"""The store of responses, conversations and chat completions: one thread owns the database and runs jobs in order.

The event loop never waits for the disk: results are futures. Jobs see every object that was given to `save_object`
before them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from assistant.storage.conversation_records import ConversationTurn
from assistant.storage.database import StateDatabase, StoredObject
from assistant.storage.records import (
    StoredCompletion,
    StoredResponse,
    StoredTotals,
)
from common.atomic_write import narrow_files
from common.processes import without_tracebacks
from common.sqlite_files import RESPONSES_NAME, DatabaseFile, NewerDatabaseError, OlderDatabaseError
from contract.errors import RoundhouseError
from gateway.exchange.stored_end import ObjectWrite, failed_write, store_error

T = TypeVar("T")

logger = logging.getLogger(__name__)

FILE_NAME: Final = RESPONSES_NAME
MOST_WAITING: Final = 1024
"""Jobs that may wait for the database; more would mean that it hangs."""
MOST_UNWRITTEN_BYTES: Final = 256 * 1024 * 1024
"""Bytes of objects that may wait to be written; further ones are refused."""
WRITTEN_AT_ONCE: Final = 64
"""Objects that are written with the same statements. SQLite releases Python's lock in each statement, and on a busy
gateway takes milliseconds to get the lock back."""
WRITE_WITHIN_S: Final = 0.002
"""Seconds that an object waits for others to be written with, unless a job comes before. The end of an answer waits for
it."""
SWEEP_EVERY_S: Final = 10.0
"""Seconds between deletions of expired objects."""
CLOSE_WITHIN_S: Final = 10.0
"""Seconds that `close` waits for the thread."""


_KINDS: Final[dict[type, str]] = {
    StoredResponse: "response",
    StoredCompletion: "chat completion",
    ConversationTurn: "conversation's part of the response",
}


class StoreError(Exception):
    """The database cannot be opened at the start of the gateway. The text names the file and the reason."""


class _DatabaseJob(NamedTuple):
    """Work for the thread, and the future of its result."""

    work: Callable[[StateDatabase], Any]
    answer: asyncio.Future[Any] | None
    """None: nobody waits for the result."""


class _QueuedWrite(NamedTuple):
    """An object for the thread to write, and whom it tells."""

    stored_object: StoredObject
    write: ObjectWrite


class StateStore:
    """The store of all tenants: a thread that owns the database, and a queue of jobs for it.

    Call its methods in the event loop; none of them blocks, but the constructor does. Jobs run one at a time, in the
    order of the calls. Futures raise RoundhouseError `response_store_failed` if the database fails or if `MOST_WAITING`
    jobs wait when the method is called, and any RoundhouseError that their own job raises. Objects of other tenants and
    expired objects are not found. Do not call any method after `close`: its future would never end.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        retention_s: float,
        clock: Callable[[], float],
        expiry_clock: Callable[[], float] | None = None,
        lock_wait_s: float = 0.0,
    ) -> None:
        """Open the database in `folder`, which is created if it is missing.

        Blocks, and starts the thread. `max_bytes`, `retention_s`, `clock`, `expiry_clock`: see `StateDatabase`. If the
        disk is full, no error is raised: the database is opened later, and jobs fail until then; requests without
        history need none. `lock_wait_s`: seconds for which, if another gateway holds the database, jobs and writes wait
        until it is released.

        Raises:
            StoreError: the database cannot be opened: another gateway uses it, a newer version wrote it, or the file or
                folder cannot be read or written.
        """
        self._path = folder / FILE_NAME
        self._file = DatabaseFile(
            self._path,
            lambda: StateDatabase(
                self._path, max_bytes=max_bytes, retention_s=retention_s, clock=clock, expiry_clock=expiry_clock
            ),
            lambda words: logger.error("%s %s", self._path, words),
        )
        self._locked_until = 0.0
        """Monotonic seconds until which the thread waits for another gateway to release the database; 0: it does
        not."""
        if not _open_first(self._path, self._file, may_be_locked=lock_wait_s > 0):
            self._locked_until = time.monotonic() + lock_wait_s
        self._jobs: queue.SimpleQueue[_DatabaseJob | _QueuedWrite | None] = queue.SimpleQueue()
        # What was asked for, and what is done of it. Each is written by one thread alone.
        self._jobs_asked = self._jobs_done = 0
        self._bytes_asked = self._bytes_done = 0
        self.totals = StoredTotals()
        """Number and size of the stored objects at the last count, which is made every `SWEEP_EVERY_S`."""
        self.failures = 0
        """Number of jobs and objects, since the start, that failed because the database or disk did, or that were
        refused because too many waited."""
        self._sweep_problem = ""
        """Why the last deletion of expired objects failed, which is logged once; empty: it did not."""
        self._unwritten: dict[str, _QueuedWrite] = {}
        """Writes by id of their object that the thread has collected to make together."""
        self._write_at = math.inf
        """Monotonic seconds when to write them."""
        self._thread = threading.Thread(target=self._run_thread, name="responses", daemon=True)
        self._thread.start()

    @property
    def waiting_count(self) -> int:
        """Number of jobs that wait for the database or run in it, not counting `save_object`."""
        return self._jobs_asked - self._jobs_done

    def save_object(self, each: StoredObject) -> ObjectWrite:
        """Begin to write a response, a chat completion or a turn of a conversation. Returns at once.

        Never raises: `ObjectWrite.done` says whether the object is committed. It is not if the database fails or more
        than `MOST_UNWRITTEN_BYTES` wait to be written, which is logged. A response replaces the stored response with
        the same id. Jobs that are submitted later see the object.
        """
        if self._bytes_asked - self._bytes_done + each.size > MOST_UNWRITTEN_BYTES:
            self.failures += 1
            _log_lost(each, "too much waits to be written")
            return failed_write("too much waits to be written")
        extra_s = max(0.0, self._locked_until - time.monotonic()) if self._locked_until else 0.0
        write = ObjectWrite(partial(self._undo_write, each), extra_s)
        self._bytes_asked += each.size
        self._jobs.put(_QueuedWrite(each, write))
        return write

    def _undo_write(self, each: StoredObject) -> None:
        self.failures += 1
        _log_lost(each, "the database does not answer")
        self._put_job(lambda database: database.remove_object(each))

    async def close(self) -> None:
        """Finish all submitted jobs and writes, then close the database and end the thread. Call once.

        Returns after `CLOSE_WITHIN_S` seconds at the latest; if the thread still runs then, an error is logged, and
        what is not written is lost.
        """
        self._locked_until = 0.0
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join, CLOSE_WITHIN_S)
        if self._thread.is_alive():
            logger.error("%s hangs: what is not written yet is lost", self._path)

    def submit_change(self, work: Callable[[StateDatabase], T]) -> asyncio.Future[T]:
        """Run `work` in the store's thread within one transaction. The future has the result of `work`. An exception
        rolls back all that `work` wrote: a RoundhouseError is passed on, any other becomes `response_store_failed`,
        with which the future also fails if `MOST_WAITING` jobs wait. See `submit_job`.

        `work` may call the methods of `conversations` and `completions` only, as those of `StateDatabase` that write
        have a transaction of their own.
        """

        def work_as_one(database: StateDatabase) -> T:
            with database.transaction():
                return work(database)

        return self.submit_job(work_as_one)

    def submit_job(self, work: Callable[[StateDatabase], T], *, is_bounded: bool = True) -> asyncio.Future[T]:
        """Run `work` in the store's thread, after all jobs and objects that were submitted before it.

        The future has the result of `work`. A RoundhouseError that `work` raises is passed on; any other exception
        becomes `response_store_failed`. If `MOST_WAITING` jobs wait, `work` is not called and the future fails with
        `response_store_failed`; `is_bounded` False: it waits even then, so it must hold next to nothing. `work` must
        not change objects of the event loop. It may be called a second time, with a new database, if the file proves
        to be damaged. A cancelled future does not stop `work`.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if is_bounded and self.waiting_count >= MOST_WAITING:
            self.failures += 1
            answer.set_exception(store_error("too many wait for it"))
        else:
            self._put_job(work, answer)
        return answer

    def _put_job(self, work: Callable[[StateDatabase], Any], answer: asyncio.Future[Any] | None = None) -> None:
        self._jobs_asked += 1
        self._jobs.put(_DatabaseJob(work, answer))

    # In the thread

    def _run_thread(self) -> None:
        try:
            while time.monotonic() < self._locked_until and not _open_first(self._path, self._file, may_be_locked=True):
                pass  # each try waits itself
        except StoreError as error:  # each job tries again, and is told if it fails
            logger.error("the database of stored responses cannot be opened: %s", error)  # noqa: TRY400 - a foreign or broken file
        self._locked_until = 0.0
        sweep_at = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= self._write_at:
                self._write_collected()
            if now >= sweep_at:
                sweep_at = now if self._sweep() else now + SWEEP_EVERY_S
            try:
                job = self._jobs.get(timeout=max(0.0, min(self._write_at, sweep_at) - time.monotonic()))
            except queue.Empty:
                continue
            if isinstance(job, _QueuedWrite):
                self._collect_write(job)
                continue
            self._write_collected()
            if job is None:
                break
            self._do_job(job)
        self._file.close()

    def _collect_write(self, write: _QueuedWrite) -> None:
        object_id = write.stored_object.id
        if object_id in self._unwritten or len(self._unwritten) == WRITTEN_AT_ONCE:
            self._write_collected()
        if not self._unwritten:
            self._write_at = time.monotonic() + WRITE_WITHIN_S
        self._unwritten[object_id] = write

    def _write_collected(self) -> None:
        """Write the collected objects together; if that fails, one by one, so that no object keeps others from it."""
        writes, self._unwritten, self._write_at = list(self._unwritten.values()), {}, math.inf
        if not writes:
            return
        wanted = [each for each in writes if not each.write.is_given_up]
        errors: list[RoundhouseError | None] = [None] * len(wanted)
        try:
            if wanted:
                self._file.run(lambda database: database.save_objects(*(each.stored_object for each in wanted)))
        except Exception:  # noqa: BLE001 - told of each
            errors = [self._write_one(each.stored_object) for each in wanted]
        self._bytes_done += sum(each.stored_object.size for each in writes)
        if wanted:
            with contextlib.suppress(RuntimeError):  # a loop that was closed waits for nothing
                loop = wanted[0].write.done.get_loop()
                ended = [(each.write, error) for each, error in zip(wanted, errors, strict=True)]
                loop.call_soon_threadsafe(_end_writes, ended)

    def _write_one(self, each: StoredObject) -> RoundhouseError | None:
        try:
            self._file.run(lambda database: database.save_objects(each))
        except Exception as error:  # noqa: BLE001 - told
            self.failures += 1
            _log_lost(each, error)
            turn = each.turn if isinstance(each, StoredResponse) else each
            if isinstance(turn, ConversationTurn):
                turn.written.clear()
            return store_error(str(error))
        return None

    def _do_job(self, job: _DatabaseJob) -> None:
        result, error = None, None
        try:
            result = self._file.run(job.work)
        except RoundhouseError as refusal:
            error = without_tracebacks(refusal)
        except (sqlite3.Error, OSError) as failure:
            self.failures += 1
            logger.error("the database of stored responses failed: %s", failure)  # noqa: TRY400
            error = store_error(str(failure))
            error.__cause__ = without_tracebacks(failure)
        except Exception as failure:
            logger.exception("the database of stored responses failed")
            error = store_error(repr(failure))
        self._jobs_done += 1
        if job.answer is None:
            return
        with contextlib.suppress(RuntimeError):  # a loop that was closed waits for nothing
            job.answer.get_loop().call_soon_threadsafe(_set_answer, job.answer, result, error)

    def _sweep(self) -> bool:
        """Delete some expired objects and count the rest. Returns whether there is more to delete."""
        try:
            has_more = self._file.run(StateDatabase.sweep_expired)
            self.totals = self._file.run(StateDatabase.count_stored)
        except (sqlite3.Error, OSError) as error:
            self.failures += 1
            if str(error) != self._sweep_problem:
                self._sweep_problem = str(error)
                logger.error("the stored responses could not be tidied up: %s", error)  # noqa: TRY400
            return False
        self._sweep_problem = ""
        return has_more


def _open_first(path: Path, file: DatabaseFile[StateDatabase], *, may_be_locked: bool) -> bool:
    """Open the file, unless the disk is full. Return False if another gateway holds it and `may_be_locked`. Raises
    StoreError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        narrow_files(path.parent)
        file.run(lambda _: None)
    except (NewerDatabaseError, OlderDatabaseError) as error:
        raise StoreError(f"cannot keep responses in {path}: {error}") from error
    except (OSError, sqlite3.Error) as error:
        if _is_disk_full(error):
            logger.error("cannot keep responses in %s: the disk is full; it is tried again", path)  # noqa: TRY400
            return True
        if may_be_locked and _is_locked(error):
            return False
        reason = "another gateway uses it" if _is_locked(error) else getattr(error, "strerror", None) or str(error)
        raise StoreError(f"cannot keep responses in {path}: {reason}") from error
    return True


def _set_answer(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():
        return  # cancelled: nobody waits for it any more
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def _end_writes(writes: Sequence[tuple[ObjectWrite, RoundhouseError | None]]) -> None:
    for write, error in writes:
        if not write.done.done():
            write.done.set_result(error)


def _log_lost(lost: StoredObject, reason: object) -> None:
    logger.error("the %s %s is not stored: %s", _KINDS[type(lost)], lost.id, reason)


def _is_disk_full(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        # The second: no room for the index of the write-ahead log, a file of its own.
        return bool(code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE)
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _is_locked(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY
