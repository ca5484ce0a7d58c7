"""The database of stored objects: its tables, and the queries for responses and chat completions; those for
conversations are in `ConversationTable`. Methods wait for the disk, and may raise sqlite3.Error.

A process that is killed loses nothing that was written; a power cut may lose the last responses (`synchronous` is
NORMAL), never the file.

Call methods that write within a transaction.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple

from assistant.storage.conversation_records import BranchSize, ConversationTurn
from assistant.storage.conversation_table import ConversationListing, ConversationTable
from assistant.storage.pagination import ListQuery, list_object, unknown_cursor
from assistant.storage.records import (
    CONTINUABLE,
    CompletionFilter,
    FoundCompletion,
    FoundResponse,
    History,
    HistoryBounds,
    StoredCompletion,
    StoredResponse,
    StoredTotals,
    conversation_gone,
    not_continuable,
    previous_not_found,
    too_long,
)
from assistant.storage.table_file import TableFile
from common.sqlite_files import (
    RESPONSES_SCHEMA_VERSION,
    FileConnection,
    has_tables,
    insert_rows,
    open_connection,
    transaction,
)
from contract.errors import RoundhouseError
from gateway.exchange.plain_responses import response_of
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.responses.answer import fail_response
from gateway.protocols.responses.items import BranchStart

BUSY_S: Final = 2.0
"""Seconds to wait until a previous gateway has released the file."""

_TABLES: Final = """
CREATE TABLE responses (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    previous TEXT,
    status TEXT NOT NULL,
    items INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    conversation TEXT,
    conversation_item TEXT
);
CREATE INDEX responses_by_use ON responses (used_at, number);
CREATE INDEX responses_running ON responses (number) WHERE status IN ('queued', 'in_progress');
CREATE INDEX responses_by_conversation ON responses (conversation) WHERE conversation IS NOT NULL;
CREATE TABLE documents (
    number INTEGER PRIMARY KEY REFERENCES responses ON DELETE CASCADE,
    response BLOB NOT NULL,
    input BLOB NOT NULL,
    output BLOB NOT NULL
);
CREATE TABLE response_events (
    number INTEGER PRIMARY KEY REFERENCES responses ON DELETE CASCADE,
    events BLOB NOT NULL
);
CREATE TABLE conversations (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    model TEXT,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    active_item TEXT,
    metadata BLOB NOT NULL,
    settings BLOB
);
CREATE INDEX conversations_by_use ON conversations (used_at, number);
CREATE INDEX conversations_by_tenant ON conversations (tenant, used_at, number);
CREATE TABLE conversation_items (
    number INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    id TEXT NOT NULL,
    parent_id TEXT,
    created_at REAL NOT NULL,
    item BLOB NOT NULL,
    answer BLOB,
    UNIQUE (conversation, id)
);
CREATE INDEX conversation_items_by_id ON conversation_items (id);
CREATE TABLE item_outlines (
    number INTEGER PRIMARY KEY REFERENCES conversation_items ON DELETE CASCADE,
    text BLOB NOT NULL,
    item BLOB
);
CREATE TABLE completions (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    metadata BLOB NOT NULL,
    completion BLOB NOT NULL,
    messages BLOB NOT NULL
);
CREATE INDEX completions_by_use ON completions (used_at, number);
CREATE INDEX completions_by_tenant ON completions (tenant, number, model, used_at);
CREATE TABLE completion_metadata (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    number INTEGER NOT NULL REFERENCES completions ON DELETE CASCADE,
    PRIMARY KEY (tenant, key, value, number)
) WITHOUT ROWID;
CREATE INDEX completion_metadata_by_number ON completion_metadata (number);
"""


def open_database(path: Path) -> FileConnection:
    """Open the file at `path`, creating it and its tables if it is missing.

    The caller closes the connection, which is in autocommit mode and holds the file until then: only one gateway at a
    time can open it, while other programs may read it (`roundhouse backup` does). The file's mode becomes 0600. Blocks.

    Raises:
        NewerDatabaseError, OlderDatabaseError: another version wrote the file, which is unchanged.
        sqlite3.OperationalError: with SQLITE_BUSY if another process holds the file for `BUSY_S` seconds.
        sqlite3.Error, OSError: the file cannot be opened, read or written.
    """
    db = open_connection(path, busy_s=BUSY_S, is_held=True)
    try:
        is_new = not has_tables(db, RESPONSES_SCHEMA_VERSION, "it", "the file")
        if is_new:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts before the first table only
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA journal_size_limit = 16777216")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        with transaction(db):  # all tables, or none: a process that is killed leaves the file empty
            if is_new:
                _create_tables(db)
    except BaseException:
        db.close()
        raise
    return db


def _create_tables(db: sqlite3.Connection) -> None:
    for statement in _TABLES.split(";")[:-1]:
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {RESPONSES_SCHEMA_VERSION}")


FREE_PAGES: Final = 256
"""Unused pages that may remain in the file; more are given back to the file system."""
RESTARTED: Final = "The gateway was restarted before the response was complete."

_CHAIN: Final = """
WITH RECURSIVE chain (number, model, previous, status, items, bytes, conversation, conversation_item, depth) AS (
    SELECT number, model, previous, status, items, bytes, conversation, conversation_item, 1 FROM responses
    WHERE id = :id AND tenant = :tenant AND used_at >= :cutoff
    UNION ALL
    SELECT r.number, r.model, r.previous, r.status, r.items, r.bytes, r.conversation, r.conversation_item, depth + 1
    FROM chain JOIN responses AS r ON r.id = chain.previous
    WHERE r.tenant = :tenant AND r.used_at >= :cutoff AND depth < :most
)
SELECT number, model, previous, status, items, bytes, conversation, conversation_item FROM chain ORDER BY depth
"""
_FIND: Final = """
SELECT model, response, output FROM responses JOIN documents USING (number) WHERE id = ? AND tenant = ? AND used_at >= ?
"""
_ITEMS: Final = "SELECT input, output FROM documents WHERE number = ?"
_REFERENCED: Final = """
SELECT number, model, bytes, input, output FROM responses JOIN documents USING (number)
WHERE id = ? AND tenant = ? AND used_at >= ?
"""
_USE: Final = "UPDATE responses SET used_at = max(used_at, ?) WHERE number = ?"
_USE_CHAINS: Final = """
WITH RECURSIVE chain (number, tenant, previous) AS (
    SELECT number, tenant, previous FROM (VALUES {}) JOIN responses ON id = column1 AND tenant = column2
    WHERE used_at >= ?
    UNION
    SELECT r.number, r.tenant, r.previous FROM chain JOIN responses AS r ON r.id = chain.previous
    WHERE r.tenant = chain.tenant AND r.used_at >= ?
)
UPDATE responses SET used_at = max(used_at, ?) WHERE number IN (SELECT number FROM chain)
"""
_INSERT: Final = """
INSERT INTO responses
    (number, id, tenant, model, created_at, used_at, previous, status, items, bytes, conversation, conversation_item)
"""
_INSERT_DOCUMENTS: Final = "INSERT INTO documents (number, response, input, output)"
_INSERT_EVENTS: Final = "INSERT INTO response_events (number, events)"
_FIND_EVENTS: Final = """
SELECT events FROM responses JOIN response_events USING (number) WHERE id = ? AND tenant = ? AND used_at >= ?
"""
_RUNNING: Final = """
SELECT number, response FROM responses JOIN documents USING (number) WHERE status IN ('queued', 'in_progress')
"""
StoredObject = StoredResponse | StoredCompletion | ConversationTurn
"""Objects that the end of an answer waits for; see `StateStore.save_object`."""


class _ChainLink(NamedTuple):
    """One response of a chain: a response and those that it continues."""

    number: int
    model: str
    previous_id: str | None
    status: str
    items: int
    bytes: int
    conversation_id: str | None
    """The conversation that the response was made in, which ends the chain; None: it was made in none."""
    conversation_item: str | None
    """The conversation's active item when the response was made."""


class StateDatabase:
    """The opened database of stored objects of all tenants. Use it from one thread at a time, as `StateStore` does.

    Methods do not find objects of other tenants, nor expired ones. All wait for the disk, and may raise sqlite3.Error.
    Methods that write have a transaction of their own: do not call them within `transaction`, which is for the methods
    of `conversations` and `completions`.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        retention_s: float,
        clock: Callable[[], float],
        expiry_clock: Callable[[], float] | None = None,
    ) -> None:
        """Open or create the file. Blocks. Responses that were running when it was last closed become `failed`.

        `max_bytes`: maximum bytes of the file. `retention_s`: seconds that an object is stored after its last use.
        `clock`: Unix time in seconds that uses are stamped with. `expiry_clock`: Unix time in seconds by which objects
        expire; None: `clock`.

        Raises:
            NewerDatabaseError, OlderDatabaseError: another version wrote the file.
            sqlite3.Error, OSError: it cannot be opened, read or written, or another process holds it.
        """
        self._clock = clock
        self._db = open_database(path)
        try:
            self._file = TableFile(
                self._db,
                max_bytes=max_bytes,
                retention_s=retention_s,
                clock=clock,
                expiry_clock=clock if expiry_clock is None else expiry_clock,
            )
            self.conversations = ConversationTable(self._file)
            self.listing = ConversationListing(self._file)
            self.completions = CompletionTable(self._file)
            self._next_number = self._file.find_next_number("responses")
            self._end_running()
        except BaseException:
            self._db.close()
            raise

    def is_in_place(self) -> bool:
        """Return whether the path still leads to the opened file; False if the file was deleted or replaced.

        Raises OSError if the path cannot be read.
        """
        return self._db.is_in_place()

    def _end_running(self) -> None:
        error = RoundhouseError("gateway_stopping", RESTARTED).build_envelope().error.model_dump()
        with transaction(self._db):
            for number, response in self._db.execute(_RUNNING).fetchall():
                failed_response = json_bytes(fail_response(json.loads(response), [], error))
                self._db.execute("UPDATE documents SET response = ? WHERE number = ?", (failed_response, number))
                self._db.execute("UPDATE responses SET status = 'failed' WHERE number = ?", (number,))

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context that commits all changes at its end, or none if it raises. Contexts cannot be nested.

        It is for methods of `conversations` and `completions`; those of this class that write have a transaction of
        their own. Entering and leaving it block and may raise sqlite3.Error; entering waits for the lock of another
        connection, up to `BUSY_S` seconds, and then raises sqlite3.OperationalError.
        """
        return transaction(self._db)

    # What requests ask for

    def save_objects(self, *objects: StoredObject) -> None:
        """Write all objects in one transaction, or none of them. Blocks. Do not call within a transaction.

        No two objects may have the same id. A response replaces the stored one with its id; the responses that it
        continues count as used now. A turn of a conversation that is gone is skipped. The least recently used objects
        are deleted if room is needed.

        Raises:
            DatabaseFullError: the objects do not fit, even without all objects that may be deleted.
            sqlite3.IntegrityError: a chat completion with the id of a new one is stored.
            sqlite3.Error: the database fails.
        """
        responses = [each for each in objects if isinstance(each, StoredResponse)]
        completions = [each for each in objects if isinstance(each, StoredCompletion)]
        turns = [each.turn if isinstance(each, StoredResponse) else each for each in objects]
        with transaction(self._db):
            if responses:
                self._save_responses(responses)
            if completions:
                self.completions.save(completions)
            self.conversations.add_turns([turn for turn in turns if isinstance(turn, ConversationTurn)])

    def _save_responses(self, responses: Sequence[StoredResponse]) -> None:
        now = self._clock()
        first_number = self._next_number
        self._next_number += len(responses)
        rows, documents = [], []
        for number, response in enumerate(responses, first_number):
            row = (
                number,
                response.id,
                response.tenant,
                response.model,
                response.created_at,
                now,
                response.previous_id,
                response.status,
            )
            sizes = (response.items, response.items_size)
            rows.append((*row, *sizes, response.conversation_id, response.conversation_item))
            documents.append((number, response.response, response.input, response.output))
        run_with_rows = self._file.run_with_rows
        run_with_rows("DELETE FROM responses WHERE (id) IN (VALUES {})", [(response.id,) for response in responses])
        continued_rows = [
            (response.previous_id, response.tenant) for response in responses if response.previous_id is not None
        ]
        if continued_rows:
            cutoff = self._file.cutoff()
            run_with_rows(_USE_CHAINS, continued_rows, cutoff, cutoff, now)
        self._file.make_room(sum(response.size for response in responses), len(responses))
        insert_rows(self._db, _INSERT, rows)
        insert_rows(self._db, _INSERT_DOCUMENTS, documents)
        events = [(number, each.events) for number, each in enumerate(responses, first_number) if each.events]
        if events:
            insert_rows(self._db, _INSERT_EVENTS, events)

    def find_response(self, tenant: str, response_id: str) -> FoundResponse | None:
        """Return a tenant's response; None: the tenant has no response with this id. Does not count as a use.

        Blocks; raises sqlite3.Error if the database fails.
        """
        row = self._db.execute(_FIND, (response_id, tenant, self._file.cutoff())).fetchone()
        if row is None:
            return None
        model, response, output = row
        return FoundResponse(model, {**json.loads(response), "output": json.loads(output)})

    def find_events(self, tenant: str, response_id: str) -> bytes:
        """Return the stored events of a tenant's response, as `EventLog.to_stored` encoded them.

        Empty: none are stored, or the tenant has no such response. Blocks; raises sqlite3.Error if the database fails.
        """
        row = self._db.execute(_FIND_EVENTS, (response_id, tenant, self._file.cutoff())).fetchone()
        return b"" if row is None else bytes(row[0])

    def list_input_items(self, tenant: str, response_id: str) -> tuple[str, list[Fields]] | None:
        """Return the name of the model that made a response, and all its input items; None: no such response.

        The items of the responses or the conversation that it continues, as far as they are still stored, come first,
        oldest first. Does not count as a use. Blocks; raises sqlite3.Error if the database fails.
        """
        chain = self._load_chain(tenant, response_id)
        if not chain:
            return None
        last_link, *earlier_links = chain
        [own_input, _] = self._db.execute(_ITEMS, (last_link.number,)).fetchone()
        first, branch = chain[-1], None
        if first.conversation_id is not None:
            branch = self.conversations.load_until(tenant, first.conversation_id, first.conversation_item)
        items_before = () if branch is None else branch.items
        return last_link.model, [*items_before, *self._load_items(earlier_links), *json.loads(own_input)]

    def load_history(
        self,
        tenant: str,
        previous_id: str | None,
        references: Sequence[str],
        bounds: HistoryBounds,
        conversation_id: str | None = None,
        start: BranchStart | None = None,
    ) -> History:
        """Load what a request continues, a response or a conversation, and the items that it refers to.

        All of these count as used now. Blocks. Do not call within a transaction. `previous_id`, `conversation_id`: at
        most one is given; None: the request continues none. `start`: the item of the conversation that the response
        follows; None: the active one. `references`: item ids; those that are not stored are absent from the result.

        Raises:
            RoundhouseError: `previous_response_not_found` if the response, one before it, or the conversation that they
                were made in, is not stored; `conversation_not_found`; `conversation_item_not_found` for the item of
                `start`; `invalid_request` if the response is running, failed or cancelled, or what is to be loaded
                exceeds `bounds`.
            sqlite3.Error: the database fails.
        """
        now = self._clock()
        with transaction(self._db):
            history, loaded = History(), BranchSize(0, 0)
            if conversation_id is not None:
                branch = self.conversations.load_branch(tenant, conversation_id, start, bounds)
                history = History(branch.model, branch.items, conversation_item=branch.last_item)
                loaded = BranchSize(len(branch.items), branch.bytes)
            elif previous_id is not None:
                history, loaded = self._continue_response(tenant, previous_id, now, bounds)
            referenced_items, models = self._load_referenced(tenant, references, now, bounds, loaded)
        return history._replace(referenced_items=referenced_items, referred_models=models)

    def _continue_response(
        self, tenant: str, previous_id: str, now: float, bounds: HistoryBounds
    ) -> tuple[History, BranchSize]:
        chain = self._continued_chain(tenant, previous_id, bounds)
        first, size = chain[-1], BranchSize(sum(link.items for link in chain), sum(link.bytes for link in chain))
        items_before: tuple[Fields, ...] = ()
        if first.conversation_id is not None:
            branch = self.conversations.load_until(tenant, first.conversation_id, first.conversation_item, bounds, size)
            if branch is None:
                raise conversation_gone(previous_id, first.conversation_id)
            items_before = branch.items
            size = BranchSize(size.items + len(branch.items), size.bytes + branch.bytes)
            self.conversations.mark_used(tenant, first.conversation_id)
        self._mark_used(chain, now)
        return History(chain[0].model, (*items_before, *self._load_items(chain))), size

    def delete_response(self, tenant: str, response_id: str) -> bool:
        """Delete a tenant's response from the database, whatever its status, and return whether there was one.

        A response that is being made is not stopped. Do not call within a transaction. Blocks; raises sqlite3.Error if
        the database fails.
        """
        with transaction(self._db):
            cursor = self._db.execute(
                "DELETE FROM responses WHERE id = ? AND tenant = ? AND used_at >= ?",
                (response_id, tenant, self._file.cutoff()),
            )
        return cursor.rowcount > 0

    def remove_object(self, each: StoredObject) -> None:
        """Take out an object that `save_objects` may have written, with the items that it added to its conversation.

        Do not call within a transaction. Does nothing if the object is not there. Blocks; raises sqlite3.Error if the
        database fails.
        """
        turn = each.turn if isinstance(each, StoredResponse) else each
        with transaction(self._db):
            if isinstance(each, StoredResponse):
                self._db.execute("DELETE FROM responses WHERE id = ? AND tenant = ?", (each.id, each.tenant))
            if isinstance(turn, StoredCompletion):
                self.completions.delete(turn.tenant, turn.id)
            elif turn is not None:
                for item in reversed(turn.written):
                    with contextlib.suppress(RoundhouseError):  # the item or its conversation is not there
                        self.conversations.delete_item(turn.tenant, turn.conversation_id, item)
                turn.written.clear()

    # What time asks for

    def sweep_expired(self) -> bool:
        """Delete some expired objects, and give some unused pages back to the file system.

        Do not call within a transaction.

        Each call is short. Returns True if there may be more to do, so that the caller should call again soon. Blocks;
        raises sqlite3.Error if the database fails.
        """
        with transaction(self._db):
            has_more = self._file.delete_expired()
        return self._shrink_file() or has_more

    def _shrink_file(self) -> bool:
        free_pages = self._file.read_pragma("freelist_count")
        if free_pages <= FREE_PAGES:
            return False
        # `execute` would take the first step alone, which is one page.
        self._db.executescript(f"PRAGMA incremental_vacuum({FREE_PAGES})")
        if free_pages - FREE_PAGES > FREE_PAGES:
            return True
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return False

    def count_stored(self) -> StoredTotals:
        """Count the stored objects, including expired ones that are not deleted yet, and the used bytes of the file.

        Blocks; raises sqlite3.Error if the database fails.
        """
        responses, completions, conversations = map(
            self._file.count_rows, ("responses", "completions", "conversations")
        )
        return StoredTotals(responses, self._file.count_used_bytes(), completions, conversations)

    def close(self) -> None:
        """Close the database and release the file, for another process to open.

        The write-ahead log is merged into the file. Blocks, and may raise sqlite3.Error. Call no other method
        afterwards.
        """
        self._db.close()

    # Parts of these

    def _load_chain(
        self, tenant: str, response_id: str, max_length: int = HistoryBounds(0).responses
    ) -> list[_ChainLink]:
        """Return a response and those that it continues, newest first, as far as they are stored."""
        parameters = {"id": response_id, "tenant": tenant, "cutoff": self._file.cutoff(), "most": max_length}
        return [_ChainLink(*row) for row in self._db.execute(_CHAIN, parameters)]

    def _continued_chain(self, tenant: str, previous_id: str, bounds: HistoryBounds) -> list[_ChainLink]:
        chain = self._load_chain(tenant, previous_id, bounds.responses)
        if not chain:
            raise previous_not_found(previous_id, previous_id)
        if chain[0].status not in CONTINUABLE:
            raise not_continuable(previous_id, chain[0].status)
        earlier_id = chain[-1].previous_id
        is_long = earlier_id is not None and len(chain) >= bounds.responses
        if (
            is_long
            or sum(link.items for link in chain) > bounds.items
            or sum(link.bytes for link in chain) > bounds.bytes
        ):
            raise too_long(bounds, "previous_response_id")
        if earlier_id is not None:
            raise previous_not_found(previous_id, earlier_id)
        return chain

    def _mark_used(self, chain: Sequence[_ChainLink], now: float) -> None:
        self._db.executemany(_USE, ((now, link.number) for link in chain))

    def _load_items(self, chain: Sequence[_ChainLink]) -> list[Fields]:
        """Return the input and output items of these responses, oldest first."""
        items: list[Fields] = []
        for link in reversed(chain):
            [own_input, output] = self._db.execute(_ITEMS, (link.number,)).fetchone()
            items += json.loads(own_input) + json.loads(output)
        return items

    def _load_referenced(
        self, tenant: str, ids: Sequence[str], now: float, bounds: HistoryBounds, loaded: BranchSize
    ) -> tuple[dict[str, Fields], dict[str, str]]:
        """Return the referenced items that are stored, and the names of the models that made them, both by item id.

        Ids are searched for in responses first, then in conversations. `loaded`: what else the request continues, which
        counts for the bounds, too.
        """
        items: dict[str, Fields] = {}
        models: dict[str, str] = {}
        bytes_left = bounds.bytes - loaded.bytes
        if ids and loaded.items + len(set(ids)) > bounds.items:
            raise too_long(bounds, "input")
        for response_id in dict.fromkeys(map(response_of, ids)):
            row = self._db.execute(_REFERENCED, (response_id, tenant, self._file.cutoff())).fetchone()
            if row is not None:
                number, model, size, own_input, output = row
                bytes_left -= size
                if bytes_left < 0:
                    raise too_long(bounds, "input")
                stored_items = {item["id"]: item for item in json.loads(own_input) + json.loads(output)}
                items |= stored_items
                models |= dict.fromkeys(stored_items, model)
                self._db.execute(_USE, (now, number))
        for item_id in ids:
            found = None if item_id in items else self.conversations.find_referenced(tenant, item_id)
            if found is not None:
                encoded_item, last_model = found
                bytes_left -= len(encoded_item)
                if bytes_left < 0:
                    raise too_long(bounds, "input")
                items[item_id] = json.loads(encoded_item)
                if last_model is not None:
                    models[item_id] = last_model
        return {item_id: items[item_id] for item_id in ids if item_id in items}, models


_FIND_COMPLETION: Final = """
SELECT number, model, metadata, completion FROM completions WHERE id = ? AND tenant = ? AND used_at >= ?
"""
_INSERT_COMPLETION: Final = """
INSERT INTO completions (number, id, tenant, model, created_at, used_at, metadata, completion, messages)
"""
_INSERT_METADATA: Final = "INSERT INTO completion_metadata (tenant, key, value, number)"
_LIST: Final = "SELECT number, model FROM completions WHERE tenant = ? AND used_at >= ?"
_HAS_PAIR: Final = """
 AND number IN (SELECT number FROM completion_metadata WHERE tenant = ? AND key = ? AND value = ?)
"""


class _Row(NamedTuple):
    """A row of the table, without the messages."""

    number: int
    model: str
    metadata: bytes
    completion: bytes


class CompletionTable:
    """The chat completions of all tenants in the database. Used in the store's thread.

    Methods do not find completions of other tenants, nor expired ones. All wait for the disk and may raise
    sqlite3.Error, and so may making the table, which reads the highest row number. Call `save`, `update_metadata` and
    `delete` within a transaction.
    """

    def __init__(self, file: TableFile) -> None:
        self._file = file
        self._db = file.db
        self._next_number = file.find_next_number("completions")

    def save(self, completions: Sequence[StoredCompletion]) -> None:
        """Write new completions, at least one. The least recently used objects are deleted if room is needed.

        Call within a transaction. Blocks.

        Raises:
            DatabaseFullError: the completions do not fit, even without all other objects.
            sqlite3.IntegrityError: a completion with one of the ids exists.
            sqlite3.Error: the database fails.
        """
        now = self._file.clock()
        self._file.make_room(sum(each.size for each in completions), len(completions))
        first_number = self._next_number
        self._next_number += len(completions)
        rows, pairs = [], []
        for number, each in enumerate(completions, first_number):
            row = (number, each.id, each.tenant, each.model, each.created_at, now, json_bytes(each.metadata))
            rows.append((*row, each.completion, each.messages))
            pairs += [(each.tenant, key, value, number) for key, value in each.metadata.items()]
        insert_rows(self._db, _INSERT_COMPLETION, rows)
        if pairs:
            insert_rows(self._db, _INSERT_METADATA, pairs)

    def find(self, tenant: str, completion_id: str) -> FoundCompletion | None:
        """Return a tenant's completion; None: the tenant has no completion with this id. Does not count as a use.

        Blocks; raises sqlite3.Error if the database fails.
        """
        row = self._find_row(tenant, completion_id)
        return None if row is None else FoundCompletion(row.model, _join(row.metadata, row.completion))

    def list_page(
        self, tenant: str, wanted: CompletionFilter, query: ListQuery, is_visible: Callable[[str], bool]
    ) -> Fields:
        """Return a page of a tenant's completions, as a list object.

        The newest completion comes first unless `query.is_ascending`. `wanted.model` must be a model's own name, not an
        alias. Blocks. `is_visible`: whether to list completions of a model, by its own name.

        Raises:
            RoundhouseError: `invalid_request` if the tenant has no visible completion with the id `query.after`.
            sqlite3.Error: the database fails.
        """
        statement = _LIST
        values: list[Any] = [tenant, self._file.cutoff()]
        for pair in wanted.metadata:
            statement += _HAS_PAIR
            values += [tenant, *pair]
        if query.after is not None:
            cursor = self._find_row(tenant, query.after)
            if cursor is None or not is_visible(cursor.model):
                raise unknown_cursor(query.after)
            statement += " AND number > ?" if query.is_ascending else " AND number < ?"
            values.append(cursor.number)
        statement += f" ORDER BY number {'ASC' if query.is_ascending else 'DESC'}"
        # Rows are read until the page is full, and no further.
        found_rows = self._db.execute(statement, values)
        wanted_numbers = (number for number, model in found_rows if wanted.takes_model(model) and is_visible(model))
        numbers = list(itertools.islice(wanted_numbers, query.limit + 1))
        data = [self._load_completion(number) for number in numbers[: query.limit]]
        return list_object(data, has_more=len(numbers) > query.limit)

    def load_messages(self, tenant: str, completion_id: str) -> list[Fields]:
        """Return the messages of a completion's request; empty if the tenant has no such completion.

        Blocks; raises sqlite3.Error if the database fails.
        """
        row = self._find_row(tenant, completion_id)
        if row is None:
            return []
        [messages] = self._db.execute("SELECT messages FROM completions WHERE number = ?", (row.number,)).fetchone()
        loaded_messages: list[Fields] = json.loads(messages)
        return loaded_messages

    def update_metadata(self, tenant: str, completion_id: str, metadata: Mapping[str, str]) -> Fields | None:
        """Replace a completion's metadata. Call within a transaction.

        Returns the completion object with the new metadata; None: the tenant has no completion with this id. The
        completion counts as used now. Blocks; raises sqlite3.Error if the database fails.
        """
        row = self._find_row(tenant, completion_id)
        if row is None:
            return None
        encoded_metadata = json_bytes(metadata)
        self._db.execute(
            "UPDATE completions SET metadata = ?, used_at = max(used_at, ?) WHERE number = ?",
            (encoded_metadata, self._file.clock(), row.number),
        )
        self._db.execute("DELETE FROM completion_metadata WHERE number = ?", (row.number,))
        if metadata:
            pairs = [(tenant, key, value, row.number) for key, value in metadata.items()]
            insert_rows(self._db, _INSERT_METADATA, pairs)
        return _join(encoded_metadata, row.completion)

    def delete(self, tenant: str, completion_id: str) -> bool:
        """Delete a tenant's completion, and return whether there was one. Call within a transaction.

        Blocks; raises sqlite3.Error if the database fails.
        """
        row = self._find_row(tenant, completion_id)
        if row is not None:
            self._db.execute("DELETE FROM completions WHERE number = ?", (row.number,))
        return row is not None

    def _find_row(self, tenant: str, completion_id: str) -> _Row | None:
        row = self._db.execute(_FIND_COMPLETION, (completion_id, tenant, self._file.cutoff())).fetchone()
        return None if row is None else _Row(*row)

    def _load_completion(self, number: int) -> Fields:
        statement = "SELECT metadata, completion FROM completions WHERE number = ?"
        return _join(*self._db.execute(statement, (number,)).fetchone())


def _join(metadata: bytes, completion: bytes) -> Fields:
    return {**json.loads(completion), "metadata": json.loads(metadata)}
