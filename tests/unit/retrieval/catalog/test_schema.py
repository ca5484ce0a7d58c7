"""The catalog's file: made, and refused where another version wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.sqlite_files import NewerDatabaseError, OlderDatabaseError
from retrieval.catalog.collections import add_collection, find_collection
from retrieval.catalog.schema import SCHEMA_VERSION, open_catalog_file
from retrieval.vector_store.base import CollectionSpec
from retrieval.vector_store.tokenizer import Bm25Options


def test_a_collection_keeps_its_language(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    db = open_catalog_file(path)
    spec = CollectionSpec("m-4", 4, Bm25Options("german"))
    added = add_collection(db, spec, model="m", is_normalized=True, state="building")
    db.close()
    db = open_catalog_file(path)
    assert find_collection(db, "building") == added
    assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    db.close()


OLDER = (
    "a Roundhouse of before 0.1.0 wrote catalog.db (schema version 1, this one reads 2): "
    "run that one, or move this folder away"
)


@pytest.mark.parametrize(
    ("version", "error", "words"),
    [
        (SCHEMA_VERSION + 1, NewerDatabaseError, "a newer Roundhouse wrote catalog.db (schema version 3)"),
        (SCHEMA_VERSION - 1, OlderDatabaseError, OLDER),
    ],
)
def test_a_file_of_another_version_stays(tmp_path: Path, version: int, error: type[Exception], words: str) -> None:
    path = tmp_path / "catalog.db"
    db = open_catalog_file(path)
    db.execute(f"PRAGMA user_version = {version}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(error) as caught:
        open_catalog_file(path)
    assert str(caught.value) == words
    assert path.read_bytes() == before
