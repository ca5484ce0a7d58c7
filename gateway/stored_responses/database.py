"""What is asked of the database of stored responses. Every method waits for the disk, and may raise sqlite3.Error.

A process that is killed loses nothing that was written; a power cut may cost the last responses (`synchronous` is
NORMAL), never the file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from sqlite3 import DatabaseError
from typing import Any, Final, NamedTuple

from common.sqlite_files import identify_file
from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.responses.response_object import fail_response
from gateway.stored_responses.errors import not_continuable, previous_not_found, too_long
from gateway.stored_responses.records import (
    CONTINUABLE,
    FoundResponse,
    History,
    HistoryBounds,
    StoredResponse,
    StoredTotals,
    response_of,
)
from gateway.stored_responses.schema import open_database, transaction

SWEPT_AT_ONCE: Final = 100
"""Responses: a longer transaction would keep requests waiting."""
FREE_PAGES: Final = 256
"""So many may lie idle in the file before it is made smaller."""
RESTARTED: Final = "The gateway was restarted before the response was complete."

_CHAIN: Final = """
WITH RECURSIVE chain (number, model, previous, status, items, bytes, depth) AS (
    SELECT number, model, previous, status, items, bytes, 1 FROM responses
    WHERE id = :id AND tenant = :tenant AND used_at >= :cutoff
    UNION ALL
    SELECT r.number, r.model, r.previous, r.status, r.items, r.bytes, depth + 1
    FROM chain JOIN responses AS r ON r.id = chain.previous
    WHERE r.tenant = :tenant AND r.used_at >= :cutoff AND depth < :most
)
SELECT number, model, previous, status, items, bytes FROM chain ORDER BY depth
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
INSERT INTO responses (number, id, tenant, model, created_at, used_at, previous, status, items, bytes) VALUES {}
"""
_INSERT_DOCUMENTS: Final = "INSERT INTO documents (number, response, input, output) VALUES {}"
_RUNNING: Final = """
SELECT number, response FROM responses JOIN documents USING (number) WHERE status IN ('queued', 'in_progress')
"""
_EVICT: Final = """
DELETE FROM responses WHERE number =
    (SELECT number FROM responses WHERE status NOT IN ('queued', 'in_progress') ORDER BY used_at, number LIMIT 1)
"""
_SWEEP: Final = """
DELETE FROM responses WHERE number IN
    (SELECT number FROM responses WHERE used_at < ? AND status NOT IN ('queued', 'in_progress') LIMIT ?)
"""


class DatabaseFullError(DatabaseError):
    """There is no room for the response, whatever else goes."""


class _ChainLink(NamedTuple):
    """One response of a conversation."""

    number: int
    model: str
    previous_id: str | None
    status: str
    items: int
    bytes: int


class ResponseDatabase:
    """An opened file. Belongs to one thread at a time."""

    def __init__(self, path: Path, *, max_bytes: int, retention_s: float, clock: Callable[[], float]) -> None:
        """Open it. What was running when it was last closed has failed. `clock` gives Unix time. May raise OSError."""
        self._clock = clock
        self._retention_s = retention_s
        self._db = open_database(path)
        self._path, self._identity = path, identify_file(path)
        try:
            self._page_size = self._read_pragma("page_size")
            self._max_pages = max_bytes // self._page_size
            [number] = self._db.execute("SELECT coalesce(max(number), 0) FROM responses").fetchone()
            self._next_number = number + 1
            self._end_running()
        except BaseException:
            self._db.close()
            raise

    def is_in_place(self) -> bool:
        """Whether the path still leads to the opened file. Raises OSError where that cannot be said."""
        return identify_file(self._path) == self._identity

    def _end_running(self) -> None:
        error = RoundhouseError("gateway_stopping", RESTARTED).build_envelope().error.model_dump()
        with transaction(self._db):
            for number, response in self._db.execute(_RUNNING).fetchall():
                failed_response = json_bytes(fail_response(json.loads(response), [], error))
                self._db.execute("UPDATE documents SET response = ? WHERE number = ?", (failed_response, number))
                self._db.execute("UPDATE responses SET status = 'failed' WHERE number = ?", (number,))

    # What requests ask for

    def save_responses(self, *responses: StoredResponse) -> None:
        """Write responses, all or none, each instead of an earlier one of its id; each id once. What was used longest
        ago makes room; what they continue counts as used now. Many at once cost little more than one.

        Raises:
            FullError: they are larger than all that may be stored.
        """
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
            rows.append((*row, response.items, response.items_size))
            documents.append((number, response.response, response.input, response.output))
        with transaction(self._db):
            self._execute("DELETE FROM responses WHERE (id) IN (VALUES {})", [(response.id,) for response in responses])
            continued_rows = [
                (response.previous_id, response.tenant) for response in responses if response.previous_id is not None
            ]
            if continued_rows:
                self._execute(_USE_CHAINS, continued_rows, self._cutoff(now), self._cutoff(now), now)
            self._make_room(sum(response.size for response in responses), len(responses))
            self._execute(_INSERT, rows)
            self._execute(_INSERT_DOCUMENTS, documents)

    def find_response(self, tenant: str, response_id: str) -> FoundResponse | None:
        """One response of a tenant."""
        row = self._db.execute(_FIND, (response_id, tenant, self._cutoff(self._clock()))).fetchone()
        if row is None:
            return None
        model, response, output = row
        return FoundResponse(model, {**json.loads(response), "output": json.loads(output)})

    def list_input_items(self, tenant: str, response_id: str) -> tuple[str, list[Fields]] | None:
        """The own name of the model that made a response, and all items that it was made of: of the responses before
        it, as far as they are still stored, and its own input."""
        chain = self._load_chain(tenant, response_id, self._clock())
        if not chain:
            return None
        last_link, *earlier_links = chain
        [own_input, _] = self._db.execute(_ITEMS, (last_link.number,)).fetchone()
        return last_link.model, [*self._load_items(earlier_links), *json.loads(own_input)]

    def load_history(
        self, tenant: str, previous_id: str | None, references: Sequence[str], bounds: HistoryBounds
    ) -> History:
        """What a request continues and refers to, which counts as used now.

        Raises:
            RoundhouseError: `previous_response_not_found`: the response, or one before it, is not there.
                `invalid_request`: the response cannot be continued, or all of it is too much.
        """
        now = self._clock()
        with transaction(self._db):
            chain = self._continued_chain(tenant, previous_id, now, bounds) if previous_id is not None else []
            self._mark_used(chain, now)
            referenced_items, models = self._load_referenced(tenant, references, now, bounds)
            return History(chain[0].model if chain else None, tuple(self._load_items(chain)), referenced_items, models)

    def delete_response(self, tenant: str, response_id: str) -> bool:
        """Delete one response of a tenant. Whether there was one."""
        with transaction(self._db):
            cursor = self._db.execute(
                "DELETE FROM responses WHERE id = ? AND tenant = ? AND used_at >= ?",
                (response_id, tenant, self._cutoff(self._clock())),
            )
        return cursor.rowcount > 0

    # What time asks for

    def sweep_expired(self) -> bool:
        """Delete some of what is kept no longer, and give back some of what is free. Whether there is more to do."""
        with transaction(self._db):
            deleted_count = self._db.execute(_SWEEP, (self._cutoff(self._clock()), SWEPT_AT_ONCE)).rowcount
        return self._shrink_file() or deleted_count == SWEPT_AT_ONCE

    def _shrink_file(self) -> bool:
        free_pages = self._read_pragma("freelist_count")
        if free_pages <= FREE_PAGES:
            return False
        # `execute` would take the first step alone, which is one page.
        self._db.executescript(f"PRAGMA incremental_vacuum({FREE_PAGES})")
        if free_pages - FREE_PAGES > FREE_PAGES:
            return True
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return False

    def count_stored(self) -> StoredTotals:
        """How much there is."""
        [responses] = self._db.execute("SELECT count(*) FROM responses").fetchone()
        return StoredTotals(responses, self._used_pages() * self._page_size)

    def close(self) -> None:
        """Close it; what was written is then in the one file."""
        self._db.close()

    # Parts of these

    def _cutoff(self, now: float) -> float:
        return now - self._retention_s

    def _read_pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def _used_pages(self) -> int:
        return self._read_pragma("page_count") - self._read_pragma("freelist_count")

    def _execute(self, statement: str, rows: Sequence[tuple[Any, ...]], *extra_values: Any) -> None:
        """One statement for all rows: SQLite gives up Python's lock for each, and waits for it again."""
        values = ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))
        self._db.execute(statement.format(values), [*itertools.chain.from_iterable(rows), *extra_values])

    def _make_room(self, size: int, responses: int) -> None:
        pages = size // self._page_size + 8 * responses  # a few for what is around each
        if pages > self._max_pages:
            raise DatabaseFullError("it is larger than all that may be stored")
        while self._used_pages() + pages > self._max_pages:
            if not self._db.execute(_EVICT).rowcount:
                raise DatabaseFullError("all that is stored still runs")

    def _load_chain(
        self, tenant: str, response_id: str, now: float, max_length: int = HistoryBounds(0).responses
    ) -> list[_ChainLink]:
        """A response and those before it, the newest first, as far as they are stored."""
        parameters = {"id": response_id, "tenant": tenant, "cutoff": self._cutoff(now), "most": max_length}
        return [_ChainLink(*row) for row in self._db.execute(_CHAIN, parameters)]

    def _continued_chain(self, tenant: str, previous_id: str, now: float, bounds: HistoryBounds) -> list[_ChainLink]:
        chain = self._load_chain(tenant, previous_id, now, bounds.responses)
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
        """Of these responses, the oldest first."""
        items: list[Fields] = []
        for link in reversed(chain):
            [own_input, output] = self._db.execute(_ITEMS, (link.number,)).fetchone()
            items += json.loads(own_input) + json.loads(output)
        return items

    def _load_referenced(
        self, tenant: str, ids: Sequence[str], now: float, bounds: HistoryBounds
    ) -> tuple[dict[str, Fields], dict[str, str]]:
        """Items by their id, and the models whose responses they belong to."""
        items: dict[str, Fields] = {}
        models: dict[str, str] = {}
        bytes_left = bounds.bytes
        for response_id in dict.fromkeys(map(response_of, ids)):
            row = self._db.execute(_REFERENCED, (response_id, tenant, self._cutoff(now))).fetchone()
            if row is not None:
                number, model, size, own_input, output = row
                bytes_left -= size
                if bytes_left < 0:
                    raise too_long(bounds, "input")
                stored_items = {item["id"]: item for item in json.loads(own_input) + json.loads(output)}
                items |= stored_items
                models |= dict.fromkeys(stored_items, model)
                self._db.execute(_USE, (now, number))
        return {item_id: items[item_id] for item_id in ids if item_id in items}, models
