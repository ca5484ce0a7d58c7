"""The store of responses: one thread that has the database, and does what it is asked, in order.

The event loop never waits for the disk: each answer comes as a future. A response that was given to `save` is seen by
whatever is asked for later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from controller.schema.errors import RoundhouseError
from gateway.responses.database import Database
from gateway.responses.schema import NewerDatabaseError, is_damaged, move_aside
from gateway.responses.stored import Bounds, Found, History, Stored, StoredResponse
from gateway.translation.conversation import Fields

T = TypeVar("T")

logger = logging.getLogger(__name__)

FILE_NAME: Final = "responses.db"
MOST_WAITING: Final = 1024
"""Requests that may wait for the database; more means that it hangs."""
MOST_WAITING_BYTES: Final = 256 * 1024 * 1024
"""Of responses that wait to be written."""
SWEEP_EVERY_S: Final = 10.0


class StoreError(Exception):
    """The database cannot be had; the message says why, and what to do."""


class _Job(NamedTuple):
    work: Callable[[Database], Any]
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    size: int


class ResponseStore:
    """Its methods are called in the event loop, and raise RoundhouseError `response_store_failed` through their
    futures where the database fails."""

    def __init__(self, folder: Path, *, max_bytes: int, retention_s: float, clock: Callable[[], float]) -> None:
        """Open the database in `folder`, which is made if it is missing. `clock` gives Unix time.

        Raises:
            StoreError: it cannot be opened.
        """
        self._path = folder / FILE_NAME
        self._open: Callable[[], Database] = lambda: Database(
            self._path, max_bytes=max_bytes, retention_s=retention_s, clock=clock
        )
        self._database: Database | None = _first_opened(self._path, self._open)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._waiting = 0
        self._waiting_bytes = 0
        self.stored = Stored()
        """As it was when last looked at."""
        self.failures = 0
        """How often the database has failed, or had no room."""
        self._thread = threading.Thread(target=self._run, name="responses", daemon=True)
        self._thread.start()

    def save(self, made: StoredResponse) -> asyncio.Future[None]:
        """Write a response, instead of an earlier one of its id. Who does not look at the future need not: that it
        could not be written is said in the log."""
        saving = self._ask(lambda database: database.save(made), made.size)
        saving.add_done_callback(lambda done: self._look_at_saved(done, made.id))
        return saving

    def find(self, tenant: str, response_id: str) -> asyncio.Future[Found | None]:
        """One response of a tenant."""
        return self._ask(lambda database: database.find(tenant, response_id))

    def input_of(self, tenant: str, response_id: str) -> asyncio.Future[tuple[str, list[Fields]] | None]:
        """See Database."""
        return self._ask(lambda database: database.input_of(tenant, response_id))

    def history(
        self, tenant: str, previous: str | None, references: Sequence[str], bounds: Bounds
    ) -> asyncio.Future[History]:
        """See Database."""
        return self._ask(lambda database: database.history(tenant, previous, references, bounds))

    def delete(self, tenant: str, response_id: str) -> asyncio.Future[bool]:
        """Delete one response of a tenant. Whether there was one."""
        return self._ask(lambda database: database.delete(tenant, response_id))

    async def close(self) -> None:
        """Do what was asked for, and close the database."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _ask(self, work: Callable[[Database], T], size: int = 0) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        if self._waiting >= MOST_WAITING or self._waiting_bytes + size > MOST_WAITING_BYTES:
            self.failures += 1
            answer.set_exception(_failed("too much waits for it"))
            return answer
        self._waiting += 1
        self._waiting_bytes += size
        self._jobs.put(_Job(work, answer, loop, size))
        return answer

    def _answer(self, job: _Job, result: Any, error: Exception | None) -> None:
        self._waiting -= 1
        self._waiting_bytes -= job.size
        if job.answer.done():
            return  # cancelled: nobody waits for it any more
        if error is None:
            job.answer.set_result(result)
        else:
            job.answer.set_exception(error)

    def _look_at_saved(self, saving: asyncio.Future[None], response_id: str) -> None:
        error = None if saving.cancelled() else saving.exception()
        if error is not None:
            logger.error("the response %s is not stored: %s", response_id, error)

    # In the thread

    def _run(self) -> None:
        sweep_at = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= sweep_at:
                sweep_at = now if self._sweep() else now + SWEEP_EVERY_S
            try:
                job = self._jobs.get(timeout=max(0.0, sweep_at - time.monotonic()))
            except queue.Empty:
                continue
            if job is None:
                break
            self._do(job)
        if self._database is not None:
            self._database.close()

    def _do(self, job: _Job) -> None:
        result, error = None, None
        try:
            result = self._tried(job.work)
        except RoundhouseError as refusal:
            error = refusal
        except (sqlite3.Error, OSError) as failure:
            self.failures += 1
            error = _failed(str(failure))
            error.__cause__ = failure
        except Exception as failure:
            logger.exception("the database of stored responses failed")
            error = _failed(repr(failure))
        with contextlib.suppress(RuntimeError):  # a loop that was closed waits for nothing
            job.loop.call_soon_threadsafe(self._answer, job, result, error)

    def _tried(self, work: Callable[[Database], T]) -> T:
        """Work done; in a new database where the old one proves to be damaged."""
        if self._database is None:
            self._database = self._open()
        try:
            return work(self._database)
        except sqlite3.DatabaseError as error:
            if not is_damaged(error):
                raise
            self._database.close()
            self._database = None
            _put_aside(self._path, error)
        self._database = self._open()
        return work(self._database)

    def _sweep(self) -> bool:
        """Whether there is more to do."""
        try:
            more = self._tried(Database.sweep)
            self.stored = self._tried(Database.stored)
        except (sqlite3.Error, OSError) as error:
            self.failures += 1
            logger.error("the stored responses could not be tidied up: %s", error)  # noqa: TRY400
            return False
        return more


def _first_opened(path: Path, open_it: Callable[[], Database]) -> Database:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return open_it()
        except sqlite3.DatabaseError as error:
            if not is_damaged(error):
                raise
            _put_aside(path, error)
            return open_it()
    except NewerDatabaseError as error:
        raise StoreError(f"{path}: {error}. Use that version, or name another folder.") from error
    except (OSError, sqlite3.Error) as error:
        why = "another gateway uses it" if _is_locked(error) else getattr(error, "strerror", None) or str(error)
        raise StoreError(f"cannot keep responses in {path}: {why}") from error


def _put_aside(path: Path, error: sqlite3.DatabaseError) -> None:
    aside = move_aside(path)
    logger.error("%s is damaged (%s): it is now %s, and a new one is begun", path, error, aside)


def _is_locked(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY


def _failed(why: str) -> RoundhouseError:
    return RoundhouseError("response_store_failed", f"The database of stored responses failed: {why}.")
