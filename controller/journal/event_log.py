"""What happened, in order: kept over restarts, followed while it happens.

Ids grow for ever. An entry's id is the Unix time in milliseconds, or one more than the newest id where that is
greater; so ids do not go back when the file is lost, damaged, or could not be written for a while, and a client that
resumes after an id misses nothing that there still is.

The journal never takes the controller down. Entries that cannot be written (a full disk, a read-only one) stay in
memory, bounded, and are written when that is possible again. A damaged file is moved aside and a new one begun; so it
is where the file was deleted while it was open.
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
from controller.schema.admin import HISTORY_KINDS, JournalEntry

T = TypeVar("T")

log = logging.getLogger(__name__)

KEEP: Final = 10_000
UNWRITTEN: Final = 1_000
"""Entries of history, and of the rest, kept in memory while the file cannot be written."""
PRUNE_EVERY: Final = 100
RETRY_S: Final = 30.0
FOLLOWED_AT_ONCE: Final = 500


class EventLog:
    """The newest entries: `keep` of history, and as many of the rest, which come more often.

    Used on one event loop; every call but `following` returns in well below a millisecond.
    """

    def __init__(self, path: Path, *, keep: int = KEEP) -> None:
        self._path = path
        self._keep = keep
        self._unwritten: list[JournalEntry] = []
        self._is_failing = False
        """Whether the last write failed, which was said in the log."""
        self._retry_at = 0.0
        self._is_abandoned = False
        self._unpruned_count = PRUNE_EVERY
        self._changed = asyncio.Event()
        self._file = DatabaseFile(path, lambda: JournalDatabase(path), self._note_lost_file)
        self._newest_id = 0
        self._lost_id = 0
        """The newest id that went without the file's knowledge; 0: none did."""
        self._newest_id = self._read_bounds().newest_id

    @property
    def newest_id(self) -> int:
        """The id of the newest entry; 0 before the first."""
        return self._newest_id

    @property
    def oldest_id(self) -> int:
        """The id of the oldest entry that there still is; 0: there is none."""
        return self._read_bounds().oldest_id or (self._unwritten[0].id if self._unwritten else 0)

    @property
    def is_saved(self) -> bool:
        """Return whether every recorded entry is written to the journal file."""
        return not self._unwritten

    def lacks_after(self, entry_id: int) -> bool:
        """Whether entries newer than that one were there and are no longer, or the id is none of this journal's."""
        lost_id = max(self._lost_id, self._read_bounds().lost_id)
        # Before its first entry there may have been another journal.
        return entry_id > self._newest_id or entry_id < (lost_id or self.oldest_id - 1)

    def record_entries(self, entries: Iterable[NewEntry], now: float) -> list[JournalEntry]:
        """Write down what happened at `now` (Unix time), in this order, and wake who follows.

        What could not be written before is tried again, also where nothing new happened.
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
        """Entries newer than that one, the oldest first."""
        if entry_id >= self._newest_id:
            return []
        file_entries = self._try_file(lambda file: file.read_after(entry_id, limit), list[JournalEntry]())
        return [*file_entries, *(entry for entry in self._unwritten if entry.id > entry_id)][:limit]

    def read_page(
        self, kinds: Collection[str], model: str | None, before: int | None, limit: int
    ) -> list[JournalEntry]:
        """Entries of these kinds (none named: of all) and of this model (None: of all), the newest first.

        `before`: only those older than the entry of this id.
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
        """The entries newer than that one, the oldest first, as soon as there is one. At most `FOLLOWED_AT_ONCE`."""
        while not (entries := self.read_after(after_id, FOLLOWED_AT_ONCE)):
            await self._changed.wait()
        return entries

    def close(self) -> None:
        """Close the file. What is recorded later stays in memory."""
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
        history_ids = [entry.id for entry in self._unwritten if entry.kind in HISTORY_KINDS]
        other_ids = [entry.id for entry in self._unwritten if entry.kind not in HISTORY_KINDS]
        surplus_ids = {*history_ids[:-limit], *other_ids[:-limit]}
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
    """Text that is valid Unicode: an engine's log may hold halves of characters."""
    return text.encode("utf-8", "replace").decode()


def _clean_value(value: Any) -> JsonValue:
    """A value that is valid JSON."""
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, Mapping):
        return {_clean(str(key)): _clean_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean_value(each) for each in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _clean(str(value))
