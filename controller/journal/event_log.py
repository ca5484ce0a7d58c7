"""The journal: an ordered log of what happened. It survives restarts, and clients can follow it live.

Ids only grow. An entry's id is the Unix time in milliseconds, or the newest id plus one where that is greater. So ids
never go back, even if the file is lost, damaged or unwritable for a while, and a client that resumes after an id
misses no entry that still exists.

A journal that fails never stops the controller. Entries that cannot be written (the disk is full or read-only) stay in
memory, up to a limit, and are written once that works again. A damaged file is moved aside and a new one is started; a
new one is also started if the file is deleted while it is open.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import JsonValue

from common.sqlite_files import DatabaseFile, NewerDatabaseError
from controller.journal.database import JournalBounds, JournalDatabase
from controller.journal.entry import NewEntry
from controller.schema.journal import RETENTION_CLASSES, JournalEntry

T = TypeVar("T")

log = logging.getLogger(__name__)

KEEP: Final = 10_000
"""Entries of each of the `RETENTION_CLASSES` that the journal file keeps."""
UNWRITTEN: Final = 1_000
"""Entries of each of the `RETENTION_CLASSES` that stay in memory while the file cannot be written."""
PRUNE_EVERY: Final = 100
"""New entries between two deletions of the oldest ones."""
RETRY_S: Final = 30.0
"""Seconds between a failed write and the next try."""
FOLLOWED_AT_ONCE: Final = 500
"""Entries that `wait_for_entries` returns at most."""


class EventLog:
    """The controller's journal, in memory and in an SQLite file: an ordered log of its newest entries, `keep` of each
    of the `RETENTION_CLASSES`.

    Ids only grow: an entry's id is its Unix time in milliseconds, or the newest id plus one where that is greater. A
    file that cannot be used raises nothing, here and in every method: entries stay in memory, up to a limit, and are
    written later; a damaged file is moved aside, and a new one is begun. Making one opens the file. Use it on one event
    loop only, and call `close` at the end. Every call except `wait_for_entries` returns in well below a millisecond,
    but opening the file, first and where it was replaced, reads all of it, and another process's lock may take 0.05
    s.
    """

    def __init__(self, path: Path, *, keep: int = KEEP) -> None:
        self._path = path
        self._keep = keep
        self._unwritten: list[JournalEntry] = []
        self._is_failing = False
        """Whether the last write failed. The program's log has a warning then, and gets no second one."""
        self._retry_at = 0.0
        self._is_abandoned = False
        self._unpruned_count = PRUNE_EVERY
        self._changed = asyncio.Event()
        self._file = DatabaseFile(path, lambda: JournalDatabase(path), self._note_lost_file)
        self._newest_id = 0
        self._lost_id = 0
        """Id of the newest entry that was lost without a note in the file; 0 means none was."""
        self._newest_id = self._read_bounds().newest_id

    @property
    def newest_id(self) -> int:
        """Id of the newest entry that was recorded, also where it is not written yet; 0 before the first one."""
        return self._newest_id

    @property
    def oldest_id(self) -> int:
        """Id of the oldest entry that still exists; 0 means there is none. While the file cannot be read, of the oldest
        entry in memory. Never raises."""
        return self._read_bounds().oldest_id or (self._unwritten[0].id if self._unwritten else 0)

    @property
    def is_saved(self) -> bool:
        """Whether every recorded entry is written to the journal file."""
        return not self._unwritten

    def lacks_after(self, entry_id: int) -> bool:
        """Return whether a client that resumes after `entry_id` misses entries: newer ones existed, or may have existed
        in an earlier journal, and are no longer kept; or `entry_id` is above `newest_id`, so that it is not of this
        journal. Never raises."""
        lost_id = max(self._lost_id, self._read_bounds().lost_id)
        # Before its first entry there may have been another journal.
        return entry_id > self._newest_id or entry_id < (lost_id or self.oldest_id - 1)

    def record_entries(self, entries: Iterable[NewEntry], now: float) -> list[JournalEntry]:
        """Append entries that happened at `now` (Unix time in seconds), write them to the file at once, and wake every
        `wait_for_entries`.

        Return the entries with their ids; in them, what is not valid Unicode or JSON is replaced by text. A write that
        fails raises nothing: the entries stay in memory, up to 1,000 of each of the `RETENTION_CLASSES` (`UNWRITTEN`),
        and calls 30 s (`RETRY_S`) or more later try again. Call it with no entries just to retry.
        """
        new_entries = [self._make_entry(entry, now) for entry in entries]
        self._unwritten.extend(new_entries)
        if self._unwritten:
            self._write_entries(now)
            self._bound_memory()
        if new_entries:
            self._changed.set()
            self._changed = asyncio.Event()
        return new_entries

    def _make_entry(self, entry: NewEntry, now: float) -> JournalEntry:
        self._newest_id = max(self._newest_id + 1, int(now * 1000))
        return JournalEntry(
            id=self._newest_id,
            at=now,
            kind=entry.kind,
            model=entry.model,
            actor=_clean(entry.actor),
            message=_clean(entry.message),
            details={key: _clean_value(value) for key, value in entry.details.items()},
        )

    def read_after(self, entry_id: int, limit: int) -> list[JournalEntry]:
        """Return at most `limit` entries with ids above `entry_id`, oldest first; empty if there are none. 0 asks for
        all. Never raises: while the file cannot be read, only entries in memory are returned."""
        if entry_id >= self._newest_id:
            return []
        file_entries = self._try_file(lambda file: file.read_after(entry_id, limit), list[JournalEntry]())
        return [*file_entries, *(entry for entry in self._unwritten if entry.id > entry_id)][:limit]

    def read_page(
        self, kinds: Collection[str], model: str | None, before: int | None, limit: int
    ) -> list[JournalEntry]:
        """Return at most `limit` entries, newest first. Never raises: while the file cannot be read, only entries in
        memory are returned.

        `kinds` and `model` select entries; an empty `kinds` and a `model` of None select all. `before` is an id: only
        entries with smaller ones are returned; None: no bound.
        """
        entries = [
            entry
            for entry in reversed(self._unwritten)
            if (not kinds or entry.kind in kinds)
            and (model is None or entry.model == model)
            and (before is None or entry.id < before)
        ]
        entries += self._try_file(lambda file: file.read_page(sorted(kinds), model, before, limit), [])
        return entries[:limit]

    async def wait_for_entries(self, after_id: int) -> list[JournalEntry]:
        """Wait without limit until there are entries with ids above `after_id`. Return at most 500 (`FOLLOWED_AT_ONCE`)
        of them, oldest first, never none; call again with the last one's id for more."""
        while not (entries := self.read_after(after_id, FOLLOWED_AT_ONCE)):
            await self._changed.wait()
        return entries

    def close(self) -> None:
        """Close the file for good. Entries recorded afterwards stay in memory alone, and are lost with the process. May
        be called repeatedly."""
        self._is_abandoned = True
        self._file.close()

    # The file, and what happens when it fails.

    def _write_entries(self, now: float) -> None:
        # Later than a whole pause ahead: the clock was set back.
        if self._is_failing and now < self._retry_at <= now + RETRY_S:
            return
        if self._try_file(self._insert_entries, False):
            if self._is_failing:
                log.info("the journal is written again")
            self._is_failing = False
        else:
            self._retry_at = now + RETRY_S

    def _bound_memory(self) -> None:
        limit = min(UNWRITTEN, self._keep)
        if len(self._unwritten) <= limit:
            return
        surplus_ids = {
            entry_id
            for kinds in RETENTION_CLASSES
            for entry_id in [entry.id for entry in self._unwritten if entry.kind in kinds][:-limit]
        }
        self._unwritten = [entry for entry in self._unwritten if entry.id not in surplus_ids]
        self._lost_id = max(self._lost_id, *surplus_ids, 0)

    def _read_bounds(self) -> JournalBounds:
        return self._try_file(JournalDatabase.read_bounds, JournalBounds())

    def _insert_entries(self, file: JournalDatabase) -> bool:
        self._unpruned_count += len(self._unwritten)
        must_prune = self._unpruned_count >= min(PRUNE_EVERY, self._keep)
        file.insert_entries(self._unwritten, keep=self._keep if must_prune else None, lost=self._lost_id)
        self._unwritten.clear()
        if must_prune:
            self._unpruned_count = 0
        return True

    def _try_file(self, operation: Callable[[JournalDatabase], T], fallback: T) -> T:
        """Return what `operation` returns for the file (see `DatabaseFile.run`), or `fallback` where that fails."""
        if self._is_abandoned:
            return fallback
        try:
            return self._file.run(operation)
        except (sqlite3.Error, OSError) as error:
            self._is_abandoned = isinstance(error, NewerDatabaseError)
            if not self._is_failing:
                log.warning("the journal is kept in memory only, for %s cannot be used: %s", self._path, error)
            self._is_failing = True
            return fallback

    def _note_lost_file(self, words: str) -> None:
        """Count what was written before as lost."""
        self._lost_id = max(self._lost_id, self._unwritten[0].id - 1 if self._unwritten else self._newest_id)
        log.warning("the journal %s %s", self._path, words)


def _clean(text: str) -> str:
    """Replace what is not valid Unicode: an engine's log may hold halves of characters."""
    return text.encode("utf-8", "replace").decode()


def _clean_value(value: Any) -> JsonValue:
    """Convert a value to valid JSON: containers element by element, NaN, infinity and other objects to text."""
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, Mapping):
        return {_clean(str(key)): _clean_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean_value(each) for each in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _clean(str(value))
