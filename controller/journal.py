"""The journal of events: an ordered log that survives restarts and that clients can follow.

The only writer is the controller that holds the state folder's lock. Other processes may read the file at any time
(`sqlite3 state/journal.db`): with SQLite's write-ahead log, readers do not block the writer. A power cut may lose the
newest entries (`synchronous` is NORMAL) but never damages the file.

Ids only grow. An entry's id is the Unix time in milliseconds, or the newest id plus one where that is greater. So ids
never go back, even if the file is lost, damaged or unwritable for a while, and a client that resumes after an id
misses no entry that still exists.

A journal that fails never stops the controller. Entries that cannot be written (the disk is full or read-only) stay
in memory, up to a limit, and are written once that works again. A damaged file is moved aside and a new one is
started; a new one is also started if the file is deleted while it is open.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, get_args

from pydantic import JsonValue

from common.sqlite_files import DatabaseFile, NewerDatabaseError, check_content, open_connection, transaction
from contract.admin import KeyChange, ToolChange
from contract.declarations import DeclarationKind
from contract.journal import HISTORY_KINDS, RETENTION_CLASSES, EventKind, JournalEntry
from contract.override import is_whole_statement
from contract.routing import MOST_TOOL_CALLS, GatewayReport
from contract.status import SCHEMA_VERSION
from contract.tools import REPLICA_PREFIX, ToolCallRecord, replica_model
from controller.config.debounce import DebouncedState
from controller.desired.differences import ModelEdit, diff_keys, diff_models, diff_tools
from controller.model_status import Round
from controller.planning.draining import GatewayView
from controller.redaction import Redact, clean_text, mask_text
from controller.round_events import NewEntry, Trouble, round_events, trouble_events

log = logging.getLogger(__name__)


class Recorder:
    """Makes journal entries of what the controller does and sees, and appends them to `journal`, stamped with the
    clock's time (Unix seconds). Never raises where the journal cannot be written. `redact(model, text)` masks the
    secrets of a model in a text."""

    def __init__(self, journal: EventLog, clock: Callable[[], float], redact: Redact) -> None:
        self._redact = redact
        self._journal = journal
        self._clock = clock
        self._trouble = Trouble()

    def record_start(self, version: str, instance: str) -> None:
        """Record that the controller started."""
        self._record_entry(
            NewEntry("controller", "controller", f"the controller of {instance} started (version {version})")
        )

    def record_end(self) -> None:
        """Record that the controller stopped in order; after a crash the entry is missing."""
        self._record_entry(NewEntry("controller", "controller", "the controller stopped"))

    def record_statement(self, message: str, actor: str, details: Mapping[str, JsonValue]) -> None:
        """Record an order about all models, for example to pause. `actor` is who gave it, `message` the entry's text.
        Secrets in `message` and `details` are not masked."""
        self._record_entry(NewEntry("statement", actor, message, details=details))

    def record_superseded(self, kind: DeclarationKind, name: str) -> None:
        """Record that a runtime declaration ended, because the files declare its name now."""
        subject = f"key {name}" if kind == "keys" else name
        message = f"the runtime declaration of {subject} has ended: the files declare it"
        model = name if kind == "models" else None
        self._record_entry(NewEntry("file", "files", message, model, {"kind": kind, "name": name}))

    def record_gateway(self, gateway_id: str, is_connected: bool) -> None:
        """Record that a gateway connected (True) or disconnected (False)."""
        word = "connected" if is_connected else "disconnected"
        self._record_entry(
            NewEntry("gateway", gateway_id, f"gateway {gateway_id} is {word}", details={"connected": is_connected})
        )

    def record_edits(
        self,
        before: DebouncedState | None,
        after: DebouncedState,
        ended_by_model: Mapping[str, Sequence[str]],
        actor: str,
    ) -> None:
        """Record one entry for each model, API key, tool and MCP server whose declaration was added, removed or changed
        between `before` and `after`, by `actor`: `files`, or whoever declared it at run time. `before` None (the
        controller's first reading) records nothing. `ended_by_model` maps a model to the fields of its runtime
        statement (an operator's load or unload) that the edit ended."""
        if before is None:
            return
        model_edits = diff_models(before.declared_models, after.declared_models)
        entries = [
            _edit_entry(each, ended_by_model.get(each.model, ()), actor)
            for each in model_edits
            # An edit of an MCP server is told with the tools.
            if each.model in ended_by_model or not each.model.startswith(REPLICA_PREFIX)
        ]
        entries += [_key_edit_entry(each, actor) for each in diff_keys(before.declared_keys, after.declared_keys)]
        entries += [_tool_edit_entry(each, actor) for each in diff_tools(before.tools, after.tools)]
        self._journal.record_entries(entries, self._clock())

    def record_round(self, before: Round | None, after: Round, gateways: Iterable[GatewayView]) -> None:
        """Record what changed between two complete rounds: failures, refused starts and fetches, actions, states,
        overdue unloads, drift, GPUs that cannot be read. `before` None: `after` is the first; then no state counts as
        changed. `gateways` are the last reports of all gateways, which name the requests that hold up an unload."""
        leaving_requests: dict[str, dict[str, float]] = {}
        for view in gateways:
            for replica, requests in view.report.leaving.items():
                leaving_requests.setdefault(replica, {}).update(requests)
        self._journal.record_entries(round_events(before, after, leaving_requests, self._redact), self._clock())

    def record_trouble(self, trouble: Trouble) -> None:
        """Record what began, changed or ended of the controller's trouble since the previous call. Call it with the
        present trouble after every round; `Trouble()` means that there is none."""
        entries = trouble_events(self._trouble, trouble)
        self._trouble = trouble
        self._journal.record_entries(entries, self._clock())

    def _record_entry(self, entry: NewEntry) -> None:
        self._journal.record_entries([entry], self._clock())


def _edit_entry(edit: ModelEdit, ended_names: Sequence[str], actor: str) -> NewEntry:
    words = _change_words(edit.change, (change.field for change in edit.fields))
    is_entire = is_whole_statement(ended_names)
    details: dict[str, JsonValue] = {
        "change": edit.change,
        "fields": [change.model_dump(mode="json") for change in edit.fields],
        "ended_statement": is_entire,
        "ends": list(ended_names),
    }
    ended_words = "its runtime statement" if is_entire else f"{', '.join(ended_names)} of its load"
    suffix = f"; this ended {ended_words}" if ended_names else ""
    return NewEntry("file" if actor == "files" else "statement", actor, f"{words}{suffix}", edit.model, details)


def _key_edit_entry(edit: KeyChange, actor: str) -> NewEntry:
    message = f"the key {edit.key} is {_change_words(edit.change, edit.fields)}"
    return NewEntry("file" if actor == "files" else "statement", actor, message, details=edit.model_dump(mode="json"))


def _tool_edit_entry(edit: ToolChange, actor: str) -> NewEntry:
    subject = "tool" if edit.kind == "tool" else "MCP server"
    message = f"the {subject} {edit.name} is {_change_words(edit.change, edit.fields)}"
    return NewEntry("file", actor, message, details=edit.model_dump(mode="json"))


def _change_words(change: str, fields: Iterable[str]) -> str:
    return {"added": "declared", "removed": "no longer declared", "edited": f"edited: {', '.join(fields)}"}[change]


KNOWN_GATEWAYS: Final = 64
"""Starts of gateways whose last written call is remembered."""
SHOWN_CHARS: Final = 200
"""Characters of a call's arguments, and of each of its names, that an entry has at most."""


class ToolCallRecorder:
    """Appends an entry to `journal` for each call of a tool that a gateway reports for the first time, stamped with the
    clock's time. Every report repeats a gateway's latest calls; which of them are written already follows from the
    gateway's id, which is new with each start of a gateway, and from the call's number. An earlier controller's calls
    are read from the journal."""

    def __init__(self, journal: EventLog, clock: Callable[[], float], redact: Redact) -> None:
        """`redact` masks the secrets of a model; an MCP server's are known by its `replica_model`."""
        self._journal = journal
        self._clock = clock
        self._redact = redact
        found = journal.find_last_details("tool", "gateway", "sequence").items()
        self._written = {gateway: last for gateway, last in [*found][-KNOWN_GATEWAYS:] if isinstance(last, int)}
        """Gateway to the number of its last written call, the gateway that wrote last at the end."""

    def record_calls(self, report: GatewayReport) -> None:
        """Record the calls of a report that are not recorded yet, in their order, and how many are missing before them:
        a report holds at most 64 (`MOST_TOOL_CALLS`). Secrets are masked, and each text is cut to 200 characters
        (`SHOWN_CHARS`). Never raises."""
        gateway, last = report.gateway_id, self._written.get(report.gateway_id, 0)
        calls = [call for call in report.tool_calls[-MOST_TOOL_CALLS:] if call.sequence > last]
        if not calls:
            return
        self._journal.record_entries(self._make_entries(gateway, last, calls), self._clock())
        self._written.pop(gateway, None)
        self._written[gateway] = max(call.sequence for call in calls)
        for forgotten in list(self._written)[:-KNOWN_GATEWAYS]:
            del self._written[forgotten]

    def _make_entries(self, gateway: str, last: int, calls: list[ToolCallRecord]) -> Iterator[NewEntry]:
        for call in sorted(calls, key=lambda each: each.sequence):
            if call.sequence <= last:
                continue
            if (missing := call.sequence - last - 1) > 0:
                message = f"{missing} calls of tools are not recorded: there were more than a report holds"
                yield NewEntry("tool", gateway, message, details={"gateway": gateway, "missing": missing})
            last = call.sequence
            yield self._make_entry(gateway, call)

    def _make_entry(self, gateway: str, call: ToolCallRecord) -> NewEntry:
        tool = self._shown(call, call.tool)
        outcome = self._shown(call, call.outcome)
        return NewEntry(
            "tool",
            self._shown(call, call.caller),
            f"called {tool}: {outcome}, {call.duration_ms} ms",
            details={
                "tool": tool,
                "server": None if call.server is None else self._shown(call, call.server),
                "arguments": self._shown(call, call.arguments),
                "outcome": outcome,
                "duration_ms": call.duration_ms,
                "output_bytes": call.output_bytes,
                "at": call.at,
                "request_id": self._shown(call, call.request_id),
                "gateway": gateway,
                "sequence": call.sequence,
            },
        )

    def _shown(self, call: ToolCallRecord, text: str) -> str:
        """Return a text of a gateway with the secrets masked that it marks and that are known of the call's server, cut
        to `SHOWN_CHARS`."""
        text = mask_text(text)
        if call.server is not None:
            text = self._redact(replica_model(call.server), text)
        return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."


BUSY_S: Final = 0.05
"""Seconds that SQLite waits at most for another process's lock. The wait blocks the event loop."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    model TEXT,
    actor TEXT NOT NULL,
    message TEXT NOT NULL,
    details TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS entries_by_model ON entries (model, id);
CREATE INDEX IF NOT EXISTS entries_by_kind ON entries (kind, id);
"""
_COLUMNS: Final = "id, at, kind, model, actor, message, details"


def _in_kinds(kinds: Iterable[EventKind]) -> str:
    return f"kind IN ({', '.join(map(repr, sorted(kinds)))})"


# The last class is what is in none of the others: a kind that only a newer version knows is pruned, too.
_CLASSES: Final = (*map(_in_kinds, RETENTION_CLASSES[:-1]), f"NOT {_in_kinds(HISTORY_KINDS)}")


# With max(), SQLite takes the other columns of a group from the row that has it.
_LAST_DETAILS: Final = """
SELECT subject, value, max(id) FROM (
    SELECT id, json_extract(details, ?) AS subject, json_extract(details, ?) AS value
    FROM entries WHERE kind = ? AND json_valid(details)
) WHERE typeof(subject) = 'text' AND value IS NOT NULL GROUP BY subject ORDER BY max(id)
"""
# `+`: rows are read by their ids, not by the index of kinds.
_IS_KNOWN: Final = "+" + _in_kinds(get_args(EventKind))
"""Which entries are of kinds that this version knows."""


class JournalBounds(NamedTuple):
    """Ids in a journal file: of the oldest and the newest entry that it holds, and of the newest entry that it once
    held and no longer holds (`lost_id`). 0: there is no such entry."""

    oldest_id: int = 0
    newest_id: int = 0
    lost_id: int = 0


class JournalDatabase:
    """An open journal file. `EventLog` uses it through a `DatabaseFile`. Every method may raise sqlite3.Error, and
    blocks: it reads or writes the file, and waits up to 0.05 s (`BUSY_S`) for another process's lock."""

    def __init__(self, path: Path) -> None:
        """Open the file, and make it if it is missing. Reads the whole file to check it. Raises sqlite3.Error (one that
        `is_damaged` for a damaged file, NewerDatabaseError for one of a newer Roundhouse) and OSError."""
        self._db = open_connection(path, busy_s=BUSY_S)
        try:
            self._prepare_tables()
        except BaseException:
            self._db.close()
            raise

    def _prepare_tables(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        check_content(self._db)
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        row = "meta" in tables and self._db.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
        if row and row[0] > SCHEMA_VERSION:
            raise NewerDatabaseError(f"it was written by a newer Roundhouse (schema_version {row[0]})")
        if not row:
            self._db.executescript(_TABLES)
            self._db.execute("INSERT INTO meta VALUES ('schema_version', ?)", (SCHEMA_VERSION,))

    def is_in_place(self) -> bool:
        """Whether the path still leads to the opened file; False if the file was deleted or replaced. Raises OSError
        where that cannot be read."""
        return self._db.is_in_place()

    def read_bounds(self) -> JournalBounds:
        """Return the oldest, the newest and the newest lost id; each 0 where there is none. Blocks. Raises
        sqlite3.Error."""
        row = self._db.execute(
            "SELECT (SELECT min(id) FROM entries), (SELECT max(id) FROM entries),"
            " (SELECT value FROM meta WHERE key = 'lost')"
        ).fetchone()
        return JournalBounds(*(each or 0 for each in row))

    def insert_entries(self, entries: Iterable[JournalEntry], *, keep: int | None, lost: int) -> None:
        """Write the entries in one transaction, all or none, and raise `JournalBounds.lost_id` to at least `lost` (0:
        leave it). Blocks. Raises sqlite3.Error; for an id that exists already, sqlite3.IntegrityError. With `keep`,
        delete all but the newest `keep` entries of each of the `RETENTION_CLASSES`; None deletes nothing."""
        rows = [_to_row(entry) for entry in entries]
        with transaction(self._db):
            self._db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            if keep is not None:
                lost = max(lost, *(self._prune_entries(condition, keep) for condition in _CLASSES))
            if lost:
                self._db.execute(
                    "INSERT INTO meta VALUES ('lost', ?)"
                    " ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
                    (lost,),
                )

    def _prune_entries(self, condition: str, keep: int) -> int:
        """Delete all but the newest `keep` entries that match. Return the newest deleted id; 0 means none was."""
        row = self._db.execute(
            f"SELECT id FROM entries WHERE {condition} ORDER BY id DESC LIMIT 1 OFFSET ?",  # noqa: S608
            (keep,),
        ).fetchone()
        if row is None:
            return 0
        self._db.execute(f"DELETE FROM entries WHERE {condition} AND id <= ?", row)  # noqa: S608
        return int(row[0])

    def read_after(self, entry_id: int, limit: int) -> list[JournalEntry]:
        """Return at most `limit` entries with ids above `entry_id`, oldest first. Entries of kinds that this version
        does not know are left out. Blocks. Raises sqlite3.Error."""
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM entries WHERE id > ? AND {_IS_KNOWN} ORDER BY id LIMIT ?",  # noqa: S608
            (entry_id, limit),
        )
        return list(_parse_rows(rows))

    def read_page(self, kinds: Sequence[str], model: str | None, before: int | None, limit: int) -> list[JournalEntry]:
        """Return at most `limit` entries, newest first. Entries of kinds that this version does not know are left out.
        Blocks. Raises sqlite3.Error. `kinds` and `model` select entries; an empty `kinds` and a `model` of None select
        all. `before` is an id: only entries with smaller ones are returned; None: no bound."""
        conditions, values = [_IS_KNOWN], list[Any]()
        if kinds:
            conditions.append(f"kind IN ({', '.join('?' * len(kinds))})")
            values += kinds
        if model is not None:
            conditions.append("model = ?")
            values.append(model)
        if before is not None:
            conditions.append("id < ?")
            values.append(before)
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM entries WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT ?",  # noqa: S608
            (*values, limit),
        )
        return list(_parse_rows(rows))

    def find_last_details(self, kind: EventKind, key: str, field: str) -> dict[str, Any]:
        """As `EventLog.find_last_details`. Reads all entries of the kind. Blocks. Raises sqlite3.Error."""
        rows = self._db.execute(_LAST_DETAILS, (f"$.{key}", f"$.{field}", kind))
        return {subject: value for subject, value, _ in rows}

    def close(self) -> None:
        """Close the file. SQLite then merges its write-ahead log into it. May be called repeatedly; no other method
        afterwards."""
        self._db.close()


def _to_row(entry: JournalEntry) -> tuple[Any, ...]:
    details = json.dumps(entry.details, ensure_ascii=False, separators=(",", ":"))
    return entry.id, entry.at, entry.kind, entry.model, entry.actor, entry.message, details


def _parse_rows(rows: Iterable[tuple[Any, ...]]) -> Iterator[JournalEntry]:
    for entry_id, at, kind, model, actor, message, details in rows:
        try:
            yield JournalEntry(
                id=entry_id, at=at, kind=kind, model=model, actor=actor, message=message, details=json.loads(details)
            )
        except ValueError as error:
            # Of a kind that another version has; the others are worth no less.
            log.debug("entry %s is left out: %s", entry_id, error)


T = TypeVar("T")

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
            actor=clean_text(entry.actor),
            message=clean_text(entry.message),
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
        memory are returned. `kinds` and `model` select entries; an empty `kinds` and a `model` of None select all.
        `before` is an id: only entries with smaller ones are returned; None: no bound."""
        entries = [
            entry
            for entry in reversed(self._unwritten)
            if (not kinds or entry.kind in kinds)
            and (model is None or entry.model == model)
            and (before is None or entry.id < before)
        ]
        entries += self._try_file(lambda file: file.read_page(sorted(kinds), model, before, limit), [])
        return entries[:limit]

    def find_last_details(self, kind: EventKind, key: str, field: str) -> dict[str, Any]:
        """Return the detail `field` of the newest entry of this kind by its detail `key`, which is a text; the newest
        entry's at the end. Entries without one of the two are left out, and those that are not written yet. Takes some
        10 ms for 10,000 entries. Never raises: while the file cannot be read, the result is empty."""
        return self._try_file(lambda file: file.find_last_details(kind, key, field), dict[str, Any]())

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


def _clean_value(value: Any) -> JsonValue:
    """Convert a value to valid JSON: containers element by element, NaN, infinity and other objects to text."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _clean_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean_value(each) for each in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return clean_text(str(value))
