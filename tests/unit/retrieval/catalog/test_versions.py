"""The queue of versions, and that no statement of a search or a claim reads what is not asked for."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retrieval.catalog.collections import list_missing
from retrieval.catalog.records import DocumentKey, NewVersion
from retrieval.catalog.schema import open_catalog_file
from retrieval.catalog.versions import (
    accept_version,
    claim_version,
    count_chunks,
    count_states,
    delete_documents,
    last_retry_at,
    list_hidden,
    next_retry_at,
    oldest_accepted_at,
    retry_version,
)
from retrieval.parsing.base import ChunkingOptions

NOW = 1_000.0


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    opened = open_catalog_file(tmp_path / "catalog.db")
    yield opened
    opened.close()


def accept(db: sqlite3.Connection, tenant: str, document_id: str) -> int:
    key = DocumentKey(tenant, "", document_id)
    new = NewVersion(key, "0" * 64, 1, None, None, {}, ChunkingOptions(400, 60))
    return accept_version(db, new, NOW).document.newest.number


def claim(db: sqlite3.Connection, *busy: str, now: float = NOW) -> tuple[int, str] | None:
    version = claim_version(db, now, busy)
    return None if version is None else (version.number, version.state)


def test_versions_are_claimed_in_turn_and_those_of_busy_tenants_last(db: sqlite3.Connection) -> None:
    numbers = [accept(db, tenant, str(place)) for place, tenant in enumerate(("b", "b", "a", "c", "b"))]
    assert claim(db) == (numbers[0], "parsing")
    assert claim(db, "b") == (numbers[2], "parsing")
    assert claim(db, "b", "a") == (numbers[3], "parsing")
    assert claim(db, "b", "a", "c") == (numbers[1], "parsing")
    assert next_retry_at(db) == 0.0
    assert [claim(db), claim(db)] == [(numbers[4], "parsing"), None]
    assert next_retry_at(db) is None


def test_a_version_that_failed_is_claimed_when_it_is_due(db: sqlite3.Connection) -> None:
    first, second, third = (accept(db, "a", str(place)) for place in range(3))
    for number, at in ((first, NOW + 2), (second, NOW + 1)):
        assert claim(db) == (number, "parsing")
        retry_version(db, number, at=at, code="storage_failed", message="")
    assert next_retry_at(db) == 0.0
    assert claim(db) == (third, "parsing")
    assert (claim(db), next_retry_at(db)) == (None, NOW + 1)
    assert [claim(db, now=NOW + 2) for _ in range(3)] == [(second, "parsing"), (first, "parsing"), None]


def plans(db: sqlite3.Connection, work: Callable[[sqlite3.Connection], object]) -> list[str]:
    """How SQLite reads `versions` in each statement that `work` executes."""
    statements: list[str] = []
    db.set_trace_callback(statements.append)
    work(db)
    db.set_trace_callback(None)
    steps = [step for statement in statements for *_, step in db.execute(f"EXPLAIN QUERY PLAN {statement}")]
    return [step for step in steps if "versions" in step or step.split()[1:2] in (["v"], ["documents"])]


@pytest.mark.parametrize("is_older_file", [False, True])
def test_searches_claims_and_deletions_read_no_versions_of_others(tmp_path: Path, is_older_file: bool) -> None:
    path = tmp_path / "catalog.db"
    db = open_catalog_file(path)
    if is_older_file:
        for name in ("versions_queued", "versions_tried", "versions_ready", "versions_unready", "documents_visible"):
            db.execute(f"DROP INDEX {name}")
        db.close()
        db = open_catalog_file(path)
    accept(db, "a", "d")
    for work in (
        lambda db: list_hidden(db, "a"),
        lambda db: claim_version(db, NOW, ["a"]),
        lambda db: delete_documents(db, "a", "vs_1"),
    ):
        found = plans(db, work)
        assert found
        assert [step for step in found if not step.startswith("SEARCH")] == []
    # What metrics and the status ask of all versions is in an index, without the rows.
    for look in (count_states, count_chunks, oldest_accepted_at, lambda db: list_missing(db, 1, 64)):
        found = plans(db, look)
        assert found
        of_one = "SEARCH v USING INTEGER PRIMARY KEY (rowid=?)"  # whether the one that is missing is there
        found = [step for step in found if step != of_one]
        assert [step for step in found if " INDEX versions_" not in step and "documents_visible" not in step] == []
    # In the order of the index: the first entry is the one.
    assert plans(db, next_retry_at) == ["SCAN versions USING INDEX versions_waiting"]
    assert plans(db, last_retry_at) == ["SEARCH versions USING INDEX versions_waiting"]
    db.close()


def test_what_may_be_in_the_vector_store_and_is_not_visible_is_hidden(db: sqlite3.Connection) -> None:
    numbers = {state: accept(db, "a", state) for state in ("queued", "parsing", "failed", "embedding", "ready")}
    for state, number in numbers.items():
        db.execute("UPDATE versions SET state = ? WHERE number = ?", (state, number))
    assert list_hidden(db, "a") == {numbers["embedding"]}
    db.execute("UPDATE versions SET chunks = 1")
    assert list_hidden(db, "a") == set(numbers.values()) - {numbers["ready"]}
    assert list_hidden(db, "b") == set()
    delete_documents(db, "a", "")
    assert list_hidden(db, "a") == set(numbers.values())
