"""Queries of the tables of chat completions. Methods wait for the disk, and may raise sqlite3.Error.

Call methods that write within a transaction.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from common.sqlite_files import insert_rows
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.storage.completions.records import CompletionFilter, FoundCompletion, StoredCompletion
from gateway.storage.pagination import ListQuery, list_object, unknown_cursor
from gateway.storage.table_file import TableFile

_FIND: Final = """
SELECT number, model, metadata, completion FROM completions WHERE id = ? AND tenant = ? AND used_at >= ?
"""
_INSERT: Final = """
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
        insert_rows(self._db, _INSERT, rows)
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
        row = self._db.execute(_FIND, (completion_id, tenant, self._file.cutoff())).fetchone()
        return None if row is None else _Row(*row)

    def _load_completion(self, number: int) -> Fields:
        statement = "SELECT metadata, completion FROM completions WHERE number = ?"
        return _join(*self._db.execute(statement, (number,)).fetchone())


def _join(metadata: bytes, completion: bytes) -> Fields:
    return {**json.loads(completion), "metadata": json.loads(metadata)}
