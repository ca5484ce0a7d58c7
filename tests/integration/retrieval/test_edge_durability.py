"""What the embedded store has after its program was killed, or its files were damaged."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import random
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from retrieval.vector_store.base import CollectionSpec, SearchScope, VectorStoreError
from retrieval.vector_store.edge.collection import CollectionFolder, CollectionRecord
from retrieval.vector_store.edge.store import EdgeStore
from tests.support.campaign import campaign_seeds
from tests.support.edge_writer import CHUNKS, SPEC, STEPS, find_processes, make_version
from tests.support.wait import until

EVERYWHERE = [1.0] * 8


async def run_writer(folder: Path, step: str, lines: int | None = None) -> list[str]:
    """What the writer printed before it was killed: at the step, or else after so many lines."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.edge_writer", str(folder), step, stdout=PIPE
    )
    assert process.stdout is not None
    printed = []
    while line := await process.stdout.readline():
        printed.append(line.decode().strip())
        if len(printed) == lines:
            process.kill()
    assert await process.wait() == -signal.SIGKILL
    return printed


async def check_store(folder: Path, acknowledged: list[int]) -> EdgeStore:
    """Open the store; every acknowledged version is whole, and found in every way. Return it open."""
    store = await EdgeStore.open(folder)
    assert await store.list_collections() == [SPEC]
    last = max(acknowledged, default=-1)
    # Of the version that was being written, some points may be there.
    assert 0 <= await store.count_points("dense") - CHUNKS * len(acknowledged) <= CHUNKS
    for number in {*acknowledged[:2], *acknowledged[-2:]}:
        scope = SearchScope(f"t{number % 3}", [""], None, frozenset())
        found = await store.search_sparse("dense", f"v{number}", scope, 100)
        assert sorted((each.version, each.ordinal) for each in found) == [(number, i) for i in range(CHUNKS)]
    for tenant in range(3):
        scope = SearchScope(f"t{tenant}", [""], None, frozenset({last + 1}))
        expected = {number for number in acknowledged if number % 3 == tenant}
        for found in (
            await store.search_dense("dense", EVERYWHERE, scope, 100_000),
            await store.search_sparse("dense", "everywhere", scope, 100_000),
        ):
            assert len(found) == len(expected) * CHUNKS
            assert {each.version for each in found} == expected
    return store


def list_files(folder: Path) -> list[str]:
    """What is in the collection's folder."""
    return sorted(entry.name for entry in (folder / "dense").iterdir())


@pytest.mark.parametrize("step", STEPS)
async def test_a_kill_at_any_step_of_an_optimization_loses_nothing(tmp_path: Path, step: str) -> None:
    acknowledged = [int(line) for line in await run_writer(tmp_path, step) if line != "optimized"]
    assert len(acknowledged) >= 30
    store = await check_store(tmp_path, acknowledged)
    assert len(list_files(tmp_path)) == 2  # the record and one shard
    assert len(find_processes("shard_process", tmp_path)) == 1
    assert find_processes("optimizer", tmp_path) == []
    await store.upsert_points("dense", make_version(max(acknowledged) + 1))
    await store.optimize_collection("dense")
    await store.close()
    store = await check_store(tmp_path, [*acknowledged, max(acknowledged) + 1])
    await store.close()


@pytest.mark.parametrize("seed", campaign_seeds(3, 50))
async def test_a_kill_at_any_moment_loses_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    acknowledged: list[int] = []
    for _ in range(2):
        printed = await run_writer(tmp_path, "none", chance.randrange(1, 120))
        # A version of which nobody said that it was written may be there in part: it is written again.
        acknowledged += [int(line) for line in printed if line != "optimized"]
        store = await check_store(tmp_path, acknowledged)
        counted = await store.count_points("dense")
        await store.delete_versions("dense", [max(acknowledged, default=-1) + 1])
        assert await store.count_points("dense") <= counted
        await store.close()


async def test_a_shards_process_that_is_killed_is_started_again_with_all_writes(tmp_path: Path) -> None:
    store = await EdgeStore.open(tmp_path)
    await store.create_collection(SPEC)
    await store.upsert_points("dense", make_version(0))
    scope = SearchScope("t0", [""], None, frozenset())
    for number in range(1, 4):
        for pid in find_processes("shard_process", tmp_path):
            os.kill(pid, signal.SIGKILL)
        assert len(await store.search_dense("dense", EVERYWHERE, scope, 100)) == CHUNKS * (1 + (number - 1) // 3)
        await store.upsert_points("dense", make_version(number))
        assert await store.count_points("dense") == CHUNKS * (number + 1)
    await store.close()


async def test_one_program_has_a_store_and_a_second_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.vector_store.edge.store._LOCK_TRIES", 1)
    store = await EdgeStore.open(tmp_path)
    with pytest.raises(VectorStoreError, match="in use by another program"):
        await EdgeStore.open(tmp_path)
    await store.create_collection(SPEC)
    await store.close()
    store = await EdgeStore.open(tmp_path)
    assert await store.list_collections() == [SPEC]
    await store.close()


async def make_store(folder: Path) -> Path:
    """A closed store with one version, optimized, in `dense`, and the collection `words`. Return the shard's folder."""
    store = await EdgeStore.open(folder)
    await store.create_collection(SPEC)
    await store.create_collection(CollectionSpec("words", None))
    await store.upsert_points("dense", make_version(0))
    await store.close()
    (shard,) = (folder / "dense").glob("shard-*")
    return shard


def damage(shard: Path, how: str) -> None:
    """Break the shard's files in a way that it cannot be loaded."""
    match how:
        case "no segments":
            for path in shard.rglob("segment.json"):
                path.write_text("{")
        case "no shard":
            subprocess.run(["rm", "-r", str(shard)], check=True)
        case "record":
            (shard.parent / "collection.json").write_text('{"version": 1}')
        case "dies":
            # A length that no machine's memory holds: the process is ended by SIGABRT.
            for path in shard.rglob("mutable_id_tracker.mappings"):
                path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize("how", ["no segments", "no shard", "record", "dies"])
async def test_a_damaged_collection_is_set_aside(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    damage(await make_store(tmp_path), how)
    with caplog.at_level(logging.ERROR):
        store = await EdgeStore.open(tmp_path)
    assert await store.list_collections() == [CollectionSpec("words", None)]
    (record,) = caplog.records
    assert "collection dense of the vector store is damaged" in record.message
    assert (tmp_path / "dense.damaged").is_dir()
    with pytest.raises(KeyError):
        await store.count_points("dense")
    await store.create_collection(SPEC)
    await store.upsert_points("dense", make_version(1))
    await store.close()
    store = await EdgeStore.open(tmp_path)
    assert await store.count_points("dense") == CHUNKS
    await store.close()


async def test_a_damaged_collection_that_cannot_be_set_aside_can_be_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await make_store(tmp_path)
    store = await EdgeStore.open(tmp_path)
    for pid in find_processes("shard_process", shard):
        os.kill(pid, signal.SIGKILL)
    damage(shard, "no segments")

    def fail(_: CollectionFolder) -> Path:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(CollectionFolder, "set_aside", fail)
    with pytest.raises(VectorStoreError, match="Permission denied"):
        await store.count_points("dense")
    assert await store.list_collections() == [CollectionSpec("words", None)]
    await store.create_collection(SPEC)
    assert await store.count_points("dense") == 0
    await store.close()


async def test_a_shard_that_is_found_damaged_while_it_serves_is_set_aside(tmp_path: Path) -> None:
    shard = await make_store(tmp_path)
    store = await EdgeStore.open(tmp_path)
    for pid in find_processes("shard_process", shard):
        os.kill(pid, signal.SIGKILL)
    damage(shard, "no segments")
    with pytest.raises(KeyError):
        await store.count_points("dense")
    assert await store.list_collections() == [CollectionSpec("words", None)]
    assert await store.count_points("words") == 0
    await store.close()


async def test_a_process_that_does_not_start_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_store(tmp_path)
    with monkeypatch.context() as machine:
        machine.setattr(sys, "executable", "/bin/false")
        with pytest.raises(VectorStoreError, match=r"process did not start \(exit code 1\)"):
            await EdgeStore.open(tmp_path)
    store = await EdgeStore.open(tmp_path)
    assert await store.count_points("dense") == CHUNKS
    await store.close()


async def test_an_optimization_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    store = await EdgeStore.open(tmp_path)
    await store.create_collection(SPEC)
    await store.upsert_points("dense", make_version(0))
    before = list_files(tmp_path)
    optimizing = asyncio.create_task(store.optimize_collection("dense"))
    await until("the copy is made", lambda: optimizing.done() or len(list_files(tmp_path)) > 2)
    optimizing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await optimizing
    assert len(list_files(tmp_path)) == len(before)
    assert await store.count_points("dense") == CHUNKS

    await store.upsert_points("dense", make_version(1))
    optimizing = asyncio.create_task(store.optimize_collection("dense"))
    await until("the copy is made", lambda: optimizing.done() or len(list_files(tmp_path)) > 2)
    await store.close()
    with contextlib.suppress(VectorStoreError):
        await optimizing
    assert len(list_files(tmp_path)) == len(before)
    assert find_processes("optimizer", tmp_path) == []


async def test_a_record_that_is_in_place_and_cannot_be_synced_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await EdgeStore.open(tmp_path)
    await store.create_collection(SPEC)
    await store.upsert_points("dense", make_version(0))
    write = CollectionFolder.write_record

    def fail(folder: CollectionFolder, record: CollectionRecord) -> None:
        write(folder, record)
        raise OSError(errno.EIO, "as of a sync")

    with monkeypatch.context() as patch:
        patch.setattr(CollectionFolder, "write_record", fail)
        await store.optimize_collection("dense")
    await store.upsert_points("dense", make_version(1))
    await store.close()
    store = await check_store(tmp_path, [0, 1])
    await store.close()


async def test_a_copy_whose_record_cannot_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await EdgeStore.open(tmp_path)
    await store.create_collection(SPEC)
    await store.upsert_points("dense", make_version(0))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as disk:
        disk.setattr(CollectionFolder, "write_record", fail)
        with pytest.raises(VectorStoreError, match="no space left"):
            await store.optimize_collection("dense")
    assert list_files(tmp_path) == ["collection.json", "shard-000001"]
    assert await store.count_points("dense") == CHUNKS
    await store.close()


async def test_an_optimizer_that_dies_is_an_error_and_the_store_goes_on(tmp_path: Path) -> None:
    store = await EdgeStore.open(tmp_path)
    await store.create_collection(SPEC)
    await store.upsert_points("dense", make_version(0))
    optimizing = asyncio.create_task(store.optimize_collection("dense"))
    (optimizer,) = await until("it runs", lambda: find_processes("optimizer", tmp_path))
    os.kill(optimizer, signal.SIGKILL)
    with pytest.raises(VectorStoreError, match=r"building the indexes failed \(signal 9\)"):
        await optimizing
    assert len(list_files(tmp_path)) == 2
    await store.upsert_points("dense", make_version(1))
    await store.optimize_collection("dense")
    assert await store.count_points("dense") == 2 * CHUNKS
    await store.close()


async def test_a_folder_that_cannot_be_used_is_an_error_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(VectorStoreError, match="cannot be read or written: Not a directory") as raised:
        await EdgeStore.open(tmp_path / "file" / "store")
    assert str(tmp_path) not in str(raised.value)


async def test_a_full_disk_leaves_no_process_or_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await EdgeStore.open(tmp_path)

    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as disk:
        disk.setattr(CollectionFolder, "write_record", is_full)
        with pytest.raises(VectorStoreError, match="no space left"):
            await store.create_collection(SPEC)
    assert not find_processes("shard_process", tmp_path)
    assert await store.list_collections() == []
    await store.create_collection(SPEC)
    with monkeypatch.context() as disk:
        disk.setattr(CollectionFolder, "remove", is_full)
        with pytest.raises(VectorStoreError, match="no space left"):
            await store.delete_collection(SPEC.name)
    await store.delete_collection(SPEC.name)
    assert await store.list_collections() == []
    await store.close()
    again = await EdgeStore.open(tmp_path)
    assert await again.list_collections() == []
    await again.close()
