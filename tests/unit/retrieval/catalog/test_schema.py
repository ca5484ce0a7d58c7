"""The catalog's file: made, and brought up to date."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from common.sqlite_files import NewerDatabaseError
from retrieval.catalog.collections import add_collection, find_collection
from retrieval.catalog.schema import SCHEMA_VERSION, open_catalog_file
from retrieval.vector_store.base import CollectionSpec
from retrieval.vector_store.bm25_options import Bm25Options


def test_a_file_of_version_1_gets_a_language_for_its_collections(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    open_catalog_file(path).close()
    with sqlite3.connect(path) as old:
        old.execute("ALTER TABLE collections DROP COLUMN bm25")
        old.execute("INSERT INTO collections (name, state) VALUES ('bm25', 'active')")
        old.execute("PRAGMA user_version = 1")
    old.close()
    db = open_catalog_file(path)
    found = find_collection(db, "active")
    assert found is not None
    assert found.spec == CollectionSpec("bm25", None, Bm25Options("english"))
    assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    spec = CollectionSpec("m-4", 4, Bm25Options("german"))
    assert add_collection(db, spec, model="m", is_normalized=True, state="building") == find_collection(db, "building")
    db.close()
    open_catalog_file(path).close()


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    db = open_catalog_file(path)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(NewerDatabaseError):
        open_catalog_file(path)
