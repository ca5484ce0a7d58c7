"""Files of an embedded store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from retrieval.vector_store.base import CollectionSpec
from retrieval.vector_store.edge.folder import (
    CollectionFolder,
    CollectionRecord,
    RecordError,
    list_collection_folders,
    lock_store,
)


@pytest.fixture
def folder(tmp_path: Path) -> CollectionFolder:
    """The folder of the collection `c`, with the record of an empty shard."""
    made = CollectionFolder(tmp_path, "c")
    made.write_record(CollectionRecord(CollectionSpec("c", 4), made.make_shard()))
    return made


def test_a_record_is_read_as_it_was_written(folder: CollectionFolder) -> None:
    assert folder.read_record() == CollectionRecord(CollectionSpec("c", 4), "shard-000001")
    assert folder.has_record
    folder.write_record(CollectionRecord(CollectionSpec("c", None), "shard-000002"))
    assert folder.read_record() == CollectionRecord(CollectionSpec("c", None), "shard-000002")


def test_a_record_without_a_language_is_english(folder: CollectionFolder) -> None:
    path = folder.path / "collection.json"
    record = json.loads(path.read_text())
    del record["bm25"]
    path.write_text(json.dumps(record))
    assert folder.read_record().spec == CollectionSpec("c", 4)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"name": "other"},
        {"dimension": "4"},
        {"dimension": 0},
        {"dimension": True},
        {"shard": "../shard-000001"},
        {"shard": 1},
        {"bm25": {"language": "klingon"}},
        {"bm25": {"colour": 1}},
    ],
)
def test_a_malformed_record_is_an_error(folder: CollectionFolder, change: dict[str, object]) -> None:
    path = folder.path / "collection.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RecordError, match="malformed"):
        folder.read_record()


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "\x00\x00"])
def test_what_is_no_record_is_an_error(folder: CollectionFolder, text: str) -> None:
    (folder.path / "collection.json").write_text(text)
    with pytest.raises(RecordError, match="malformed"):
        folder.read_record()


def test_a_missing_record_is_an_error(tmp_path: Path) -> None:
    folder = CollectionFolder(tmp_path, "c")
    assert not folder.has_record
    with pytest.raises(RecordError, match="missing"):
        folder.read_record()


def test_a_copy_has_the_next_number_and_leftovers_are_removed(folder: CollectionFolder) -> None:
    (folder.path / "shard-000001" / "sub").mkdir()
    (folder.path / "shard-000001" / "sub" / "file").write_text("x")
    assert folder.copy_shard("shard-000001") == "shard-000002"
    assert (folder.path / "shard-000002" / "sub" / "file").read_text() == "x"
    (folder.path / "collection.json.new").write_text("{")
    folder.sync_shard("shard-000002")
    folder.remove_leftovers("shard-000002")
    assert sorted(entry.name for entry in folder.path.iterdir()) == ["collection.json", "shard-000002"]
    folder.remove_shard("shard-000002")
    assert [entry.name for entry in folder.path.iterdir()] == ["collection.json"]


def test_a_copy_that_fails_leaves_nothing(folder: CollectionFolder) -> None:
    (folder.path / "shard-000001" / "file").write_text("x")
    os.mkfifo(folder.path / "shard-000001" / "pipe")  # which cannot be copied
    with pytest.raises(OSError):  # noqa: PT011 - of shutil's own text
        folder.copy_shard("shard-000001")
    assert sorted(entry.name for entry in folder.path.iterdir()) == ["collection.json", "shard-000001"]


def test_a_collection_that_is_set_aside_replaces_the_one_before(folder: CollectionFolder, tmp_path: Path) -> None:
    assert [each.path.name for each in list_collection_folders(tmp_path)] == ["c"]
    (tmp_path / "c.damaged").mkdir()
    (tmp_path / "c.damaged" / "old").touch()
    assert folder.set_aside() == tmp_path / "c.damaged"
    assert not (tmp_path / "c.damaged" / "old").exists()
    assert list_collection_folders(tmp_path) == []


def test_a_removed_collection_is_gone_and_removing_again_does_nothing(folder: CollectionFolder) -> None:
    folder.remove()
    folder.remove()
    assert not folder.path.exists()


def test_a_store_is_locked_once(tmp_path: Path) -> None:

    first = lock_store(tmp_path / "store")
    with pytest.raises(BlockingIOError):
        lock_store(tmp_path / "store")
    os.close(first)
    os.close(lock_store(tmp_path / "store"))
