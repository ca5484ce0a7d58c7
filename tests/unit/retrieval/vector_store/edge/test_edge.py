"""The embedded store's files, its messages to shards' processes and the log of them, and copies of files with holes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from retrieval.vector_store.base import CollectionSpec
from retrieval.vector_store.edge.collection import (
    CollectionFolder,
    CollectionRecord,
    RecordError,
    WriteLog,
    copy_sparse_file,
    list_collection_folders,
    lock_store,
)
from retrieval.vector_store.edge.connection import ShardConnection, ShardEndedError
from retrieval.vector_store.edge.frames import decode_vectors, encode_frame, encode_vector, read_frame, receive_frame
from retrieval.vector_store.tokenizer import Bm25Options
from tests.support.small_disk import no_space


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
    assert folder.read_record().spec == CollectionSpec("c", 4, Bm25Options("english", version=1))


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


def test_a_frame_is_read_as_it_was_written() -> None:
    stream = io.BytesIO(encode_frame({"text": "ß\x00\n"}, b"\x00\x01") + encode_frame({}))
    assert read_frame(stream) == ({"text": "ß\x00\n"}, b"\x00\x01")
    assert read_frame(stream) == ({}, b"")
    assert read_frame(stream) is None


@pytest.mark.parametrize("cut", [1, 7, 9, 14])
def test_a_frame_that_ends_early_is_no_frame(cut: int) -> None:
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(encode_frame({"a": 1}, b"data")[:cut]))


async def test_a_frame_is_received_from_a_stream() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(encode_frame({"result": [1, None]}))
    reader.feed_eof()
    assert await receive_frame(reader) == {"result": [1, None]}
    with pytest.raises(asyncio.IncompleteReadError):
        await receive_frame(reader)


def test_vectors_travel_as_32_bit_floats() -> None:
    data = encode_vector([1, 0.5]) + encode_vector((-2.0, 1e-3))
    assert len(data) == 16
    assert decode_vectors(data, 2) == [[1.0, 0.5], [-2.0, pytest.approx(1e-3, rel=1e-6)]]


def test_a_log_returns_what_was_noted_in_its_order_and_leaves_no_file(tmp_path: Path) -> None:
    log = WriteLog(tmp_path)
    log.append(b"first")
    log.append(b"")
    assert (log.pending_count, log.pending_bytes) == (2, 13)
    assert log.take() == b"first"
    log.append(b"third")
    assert [log.take(), log.take(), log.take()] == [b"", b"third", None]
    assert (log.pending_count, log.pending_bytes) == (0, 0)
    assert list(tmp_path.iterdir()) == []
    log.close()


def test_a_full_disk_fails_the_request_that_does_not_fit_and_nothing_else_of_a_log(tmp_path: Path) -> None:
    log = WriteLog(tmp_path)
    log.append(b"first")
    with no_space(after_bytes=100):
        with pytest.raises(OSError, match="File too large"):
            log.append(bytes(200))
        assert (log.pending_count, log.pending_bytes) == (1, 9)
        log.append(b"second")
        assert [log.take(), log.take(), log.take()] == [b"first", b"second", None]
        log.close()


MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (0, {}),
        (MIB, {}),
        (5, {0: b"x"}),
        (32 * MIB, {0: b"begin", 16 * MIB + 7: b"middle", 32 * MIB - 3: b"end"}),
        (3 * MIB, {0: b"x" * 3 * MIB}),
    ],
)
def test_a_copy_has_the_bytes_and_the_holes(tmp_path: Path, size: int, parts: dict[int, bytes]) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    with source.open("wb") as file:
        file.truncate(size)
        for offset, data in parts.items():
            file.seek(offset)
            file.write(data)
    assert copy_sparse_file(str(source), str(copy)) == str(copy)
    assert copy.stat().st_size == source.stat().st_size == size
    assert copy.read_bytes() == source.read_bytes()
    assert copy.stat().st_blocks <= source.stat().st_blocks + 8


def test_what_is_no_file_is_not_copied(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        copy_sparse_file(str(tmp_path / "pipe"), str(tmp_path / "copy"))


async def test_a_process_whose_answer_cannot_be_read_is_ended_and_nobody_waits_for_it() -> None:
    said = encode_frame({"neither": "a result nor an error"})
    program = f"import sys, time; sys.stdout.buffer.write({said!r}); sys.stdout.flush(); time.sleep(60)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=PIPE, stdout=PIPE)
    connection = ShardConnection(process)
    with pytest.raises(ShardEndedError, match="process ended"):
        async with asyncio.timeout(20):
            await connection.request({"op": "count"})
    assert process.returncode is not None
