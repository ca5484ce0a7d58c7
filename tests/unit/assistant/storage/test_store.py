"""The store's thread: what is asked is answered in order, and what fails is told and stands in the way of nothing."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from assistant.storage import store as stores
from assistant.storage.records import HistoryBounds
from assistant.storage.store import StateStore, StoreError
from contract.errors import RoundhouseError
from tests.support.outcomes import present
from tests.support.small_disk import mount_small_disk
from tests.support.stored import HOUR, MIB, Clock, response, rid, stored
from tests.support.wait import until


def made(folder: Path, clock: Clock | None = None, *, max_bytes: int = 64 * MIB) -> StateStore:
    return StateStore(folder, max_bytes=max_bytes, retention_s=HOUR, clock=clock or Clock())


@contextlib.asynccontextmanager
async def opened(folder: Path, **more: Any) -> AsyncIterator[StateStore]:
    store = made(folder, **more)
    try:
        yield store
    finally:
        await store.close()


@contextlib.contextmanager
def held(store: StateStore) -> Iterator[None]:
    """Its thread is kept busy."""
    go_on = threading.Event()
    store.submit_job(lambda _: go_on.wait())
    try:
        yield
    finally:
        go_on.set()


async def found(store: StateStore, name: str) -> Any:
    answer = await store.submit_job(methodcaller("find_response", "t", rid(name)))
    return answer and answer.response


async def save_and_find(store: StateStore, name: str = "a") -> None:
    """The store works."""
    await store.submit_job(methodcaller("save_objects", stored(name)))
    assert await found(store, name) == response(name)


async def test_later_jobs_see_what_was_saved_before_and_all_are_done_before_it_closes(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    async with opened(folder) as store:
        with held(store):
            saving = store.submit_job(methodcaller("save_objects", stored("a")))
            finding = store.submit_job(methodcaller("find_response", "t", rid("a")))
            deleting = store.submit_job(methodcaller("delete_response", "t", rid("a")))
            again = store.submit_job(methodcaller("find_response", "t", rid("a")))
            continuing = store.submit_job(methodcaller("load_history", "t", rid("a"), (), HistoryBounds(MIB)))
            await asyncio.sleep(0)
            assert not saving.done()
        assert present(await finding).response == response("a")
        assert await deleting
        assert await again is None
        with pytest.raises(RoundhouseError, match="not found"):
            await continuing
        for number in range(50):
            store.save_object(stored(f"r{number}"))
    assert folder.stat().st_mode & 0o777 == 0o700
    async with opened(folder) as store:
        assert await found(store, "r49") == response("r49")


async def test_a_database_that_hangs_does_not_keep_the_gateway_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stores, "CLOSE_WITHIN_S", 0.05)
    store = made(tmp_path)
    with held(store):
        store.save_object(stored("a"))
        await store.close()
        assert "responses.db hangs" in caplog.text
    await until("it ends after all", lambda: not store._thread.is_alive())


async def test_who_does_not_wait_any_more_disturbs_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path) as store:
        with held(store):
            leaving, staying = (
                store.submit_job(methodcaller("find_response", "t", rid("a"))),
                store.submit_job(methodcaller("find_response", "t", rid("a"))),
            )
            leaving.cancel()
        assert await staying is None
    assert store.waiting_count == 0
    assert "Exception" not in caplog.text


async def test_what_is_larger_than_all_that_may_be_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path, max_bytes=MIB) as store:
        store.save_object(stored("b", question="x" * MIB))
        assert await found(store, "b") is None
    assert f"the response {rid('b')} is not stored: it is larger than all that may be stored" in caplog.text


async def test_a_database_that_hangs_is_given_only_so_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stores, "MOST_UNWRITTEN_BYTES", 2 * stored("a").size)
    monkeypatch.setattr(stores, "MOST_WAITING", 3)
    async with opened(tmp_path) as store:
        with held(store):
            for name in ("a", "b", "lost"):
                store.save_object(stored(name))
            asked = [store.submit_job(methodcaller("find_response", "t", rid(name))) for name in "ab"]
            with pytest.raises(RoundhouseError, match="too many wait for it") as caught:
                await store.submit_job(methodcaller("save_objects", stored("c")))
            assert caught.value.entry.code == "response_store_failed"
            # Who waits for what is stored until now waits all the same.
            written = store.submit_job(lambda _: None, is_bounded=False)
            assert not written.done()
        await written
        assert all([await each for each in asked])
        await store.submit_job(methodcaller("save_objects", stored("d")))
    assert f"the response {rid('lost')} is not stored: too much waits" in caplog.text
    assert store.failures == 2


async def test_a_full_disk_costs_only_what_does_not_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path) as store:
        await store.submit_job(methodcaller("save_objects", stored("a")))
        database: Any = store._file._database
        await store.submit_job(lambda _: database._db.execute("PRAGMA max_page_count = 30").fetchall())
        with held(store):  # so that they are written at once
            for name, size in (("b", 10), ("big", 200_000), ("c", 10)):
                store.save_object(stored(name, question="x" * size))
        assert [await found(store, name) is not None for name in ("a", "b", "big", "c")] == [True, True, False, True]
        with pytest.raises(RoundhouseError, match="database or disk is full") as caught:
            await store.submit_job(methodcaller("save_objects", stored("first", question="x" * 200_000)))
        assert caught.value.entry.code == "response_store_failed"
    assert caplog.text.count("is not stored") == 1
    assert f"the response {rid('big')} is not stored: database or disk is full" in caplog.text
    assert store.failures == 2


async def test_a_store_opens_as_soon_as_the_disk_has_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mount_small_disk(tmp_path / "state") as disk:
        disk.fill()
        async with opened(disk.folder) as store:
            assert "disk is full; it is tried again" in caplog.text
            with pytest.raises(RoundhouseError, match="database or disk is full"):
                await store.submit_job(methodcaller("save_objects", stored("a")))
            disk.free()
            await save_and_find(store)


async def test_many_that_come_at_once_are_all_written_the_last_of_each(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with held(store):
            for number in range(200):
                store.save_object(stored(f"r{number}", None if number == 0 else f"r{number - 1}"))
            store.save_object(stored("r7", answer="again"))
            store.save_object(stored("r7", answer="and again"))
        counted = await store.submit_job(lambda database: database.count_stored())
        assert counted.responses == 200
        assert await found(store, "r7") == response("r7", answer="and again")
        history = await store.submit_job(methodcaller("load_history", "t", rid("r199"), (), HistoryBounds(MIB)))
        assert len(history.items) == 2 * (200 - 8) + 2 * 1
    assert store._bytes_asked == store._bytes_done


async def test_a_damaged_file_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage, path, aside = b"this is no database" * 500, tmp_path / "responses.db", tmp_path / "responses.db.damaged"
    path.write_bytes(damage)
    (tmp_path / "responses.db-wal").write_bytes(damage)
    async with opened(tmp_path) as store:
        for number in range(20):
            await store.submit_job(methodcaller("save_objects", stored(f"r{number}", question="x" * 10_000)))
    assert aside.read_bytes() == damage
    assert caplog.text.count("was damaged") == 1
    assert "responses.db.damaged" in caplog.text
    with path.open("r+b") as file:
        file.seek(12 * 4096)
        file.write(b"\xff" * (path.stat().st_size - 12 * 4096))
    async with opened(tmp_path) as store:
        assert [await found(store, f"r{number}") for number in range(20)][-1] is None
        await save_and_find(store)
    assert aside.read_bytes()[12 * 4096 :].startswith(b"\xff" * 8)
    assert caplog.text.count("was damaged") == 2
    async with opened(tmp_path) as store:
        assert await found(store, "a") == response("a")


@pytest.mark.parametrize("suffixes", [("",), ("", "-wal")], ids=["the file", "its side file too"])
async def test_a_deleted_file_is_begun_anew(
    tmp_path: Path, suffixes: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as store:
        await store.submit_job(methodcaller("save_objects", stored("lost")))
        for suffix in suffixes:
            (tmp_path / f"responses.db{suffix}").unlink()
        assert await found(store, "lost") is None
        await save_and_find(store)
        assert (tmp_path / "responses.db").stat().st_mode & 0o777 == 0o600
    assert caplog.text.count("was deleted or replaced") == 1
    async with opened(tmp_path) as store:
        assert [await found(store, name) for name in ("a", "lost")] == [response("a"), None]


async def test_a_file_that_took_the_databases_place_is_the_database(tmp_path: Path) -> None:
    async with opened(tmp_path / "other") as store:
        await store.submit_job(methodcaller("save_objects", stored("other")))
    async with opened(tmp_path) as store:
        await store.submit_job(methodcaller("save_objects", stored("lost")))
        (tmp_path / "other" / "responses.db").replace(tmp_path / "responses.db")
        assert [await found(store, name) for name in ("other", "lost")] == [response("other"), None]
        await store.submit_job(methodcaller("save_objects", stored("a")))
    async with opened(tmp_path) as store:
        assert [await found(store, name) for name in ("a", "other")] == [response("a"), response("other")]


async def test_a_deleted_folder_is_told_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    async with opened(folder) as store:
        await store.submit_job(methodcaller("save_objects", stored("lost")))
        shutil.rmtree(folder)
        for _ in range(2):
            with pytest.raises(RoundhouseError, match="No such file") as refused:
                await store.submit_job(methodcaller("save_objects", stored("refused")))
            assert refused.value.entry.code == "response_store_failed"
        folder.mkdir()
        await save_and_find(store)


async def test_a_database_that_could_not_be_begun_anew_is_tried_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        open_it = store._file._open_database
        damage = sqlite3.DatabaseError("image is malformed")
        damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT

        def fail(_: object) -> None:
            raise damage

        def cannot() -> Any:
            raise OSError(28, "No space left on device")

        store._file._open_database = cannot
        for attempt in (store.submit_job(fail), store.submit_job(methodcaller("save_objects", stored("a")))):
            with pytest.raises(RoundhouseError, match="No space left"):
                await attempt
        store._file._open_database = open_it
        await save_and_find(store)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_text(""), "File exists"),
        (lambda path: (path.mkdir(), (path / "responses.db").mkdir()), "Is a directory"),
        (
            lambda path: (path.mkdir(), (path / "responses.db").symlink_to("/proc/version")),
            "unable to open|Permission denied|Read-only",
        ),
    ],
    ids=["a file", "a folder there", "not writable"],
)
def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path, spoil: Any, words: str) -> None:
    folder = tmp_path / "state"
    spoil(folder)
    with pytest.raises(StoreError, match=words) as caught:
        made(folder)
    assert str(folder / "responses.db") in str(caught.value)


@pytest.mark.parametrize(("version", "writer"), [(5, "a newer Roundhouse"), (3, "a Roundhouse of before 0.1.0")])
def test_a_database_of_another_version_is_left_alone(tmp_path: Path, version: int, writer: str) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "responses.db")) as other:
        other.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(StoreError, match=rf"{writer} wrote it \(schema version {version}"):
        made(tmp_path)


async def test_it_tidies_up_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "SWEEP_EVERY_S", 0.02)
    clock = Clock()
    async with opened(tmp_path, clock=clock) as store:
        for number in range(250):
            store.save_object(stored(f"r{number}", question="x" * 2000))
        await until("they are counted", lambda: store.totals.responses == 250)
        assert store.totals.bytes > 250 * 2000
        clock.now += 2 * HOUR
        await until("they are gone", lambda: store.totals.responses == 0)
        assert store.totals.bytes < 250 * 2000


async def test_a_store_that_waited_for_a_file_which_it_cannot_open_says_so_to_each_job(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        waiting = StateStore(tmp_path, max_bytes=MIB, retention_s=HOUR, clock=Clock(), lock_wait_s=60)
        asked = waiting.submit_job(methodcaller("find_response", "t", rid("a")))
        await save_and_find(store)
        # As a newer version leaves it, before anybody else can open it.
        await store.submit_job(lambda database: database._db.execute("PRAGMA user_version = 1000").close())
    async with asyncio.timeout(20):
        with pytest.raises(RoundhouseError) as raised:
            await asked
    assert raised.value.entry.code == "response_store_failed"
    await waiting.close()


async def test_another_process_can_read_the_file_and_another_gateway_does_not_use_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.submit_job(methodcaller("save_objects", stored("a")))
        with pytest.raises(StoreError, match="another gateway uses it"):
            made(tmp_path)
        waiting = StateStore(tmp_path, max_bytes=MIB, retention_s=HOUR, clock=Clock(), lock_wait_s=60)
        writing, finding = waiting.save_object(stored("c")), asyncio.create_task(found(waiting, "a"))
        assert writing.extra_s > 50
        ids = "import sqlite3, sys; print(*next(sqlite3.connect(sys.argv[1]).execute('SELECT id FROM responses')))"
        command = (sys.executable, "-c", ids, str(tmp_path / "responses.db"))
        reader = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        said, _ = await reader.communicate()
        assert said.decode().strip() == response("a")["id"]
        await save_and_find(store, "b")
        assert [finding.done(), writing.done.done()] == [False, False]
    assert await finding == response("a")
    assert await writing.done is None
    assert waiting.save_object(stored("d")).extra_s == 0
    await waiting.close()
