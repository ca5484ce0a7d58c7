"""The journal over restarts, damage and disks that take nothing more. Disks fail for real where they can be made to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from contract.journal import RETENTION_CLASSES, EventKind, JournalEntry
from controller.journal import FOLLOWED_AT_ONCE, PRUNE_EVERY, EventLog
from controller.round_events import NewEntry
from tests.support.wait import DEADLINE_S, until

NOW = 1_700_000_000.0
ALL = 1_000


def said(*messages: str, kind: str = "statement", model: str | None = "m") -> list[NewEntry]:
    return [NewEntry(kind, "operator", message, model, {"n": 1}) for message in messages]  # type: ignore[arg-type]


def messages(entries: list[JournalEntry]) -> list[str]:
    return [entry.message for entry in entries]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@contextlib.contextmanager
def opened(path: Path, keep: int = 50_000) -> Iterator[EventLog]:
    journal = EventLog(path, keep=keep)
    yield journal
    journal.close()


def reopened(path: Path) -> list[str]:
    """The messages that another process finds."""
    with opened(path) as journal:
        return messages(journal.read_after(0, 10_000))


@contextlib.contextmanager
def edited(path: Path) -> Iterator[sqlite3.Connection]:
    """The closed file, as another program changes or reads it."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        yield connection


@contextlib.contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes: the nearest thing to a full disk that needs no mount."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_entries_come_back_whole_after_a_restart(path: Path) -> None:
    with opened(path) as journal:
        assert (journal.oldest_id, journal.newest_id) == (0, 0)
        [first, second] = journal.record_entries(said("a", "b"), NOW)
        assert first.id < second.id == journal.newest_id
    with opened(path) as again:
        assert (again.oldest_id, again.newest_id) == (first.id, second.id)
        assert again.read_after(0, ALL) == [first, second]
        assert first.details == {"n": 1}
        [third] = again.record_entries(said("c"), NOW - 5_000)
        assert third.id > second.id, "even when the clock was set back meanwhile"
        assert messages(again.read_after(first.id, ALL)) == ["b", "c"]
        assert messages(again.read_after(0, 1)) == ["a"]


def test_anything_can_be_recorded(path: Path) -> None:
    odd = NewEntry("failure", "engine", "half \ud83d, nul \0", None, {"x": float("nan"), "y": [1, {"\ud800": "z"}]})
    with opened(path) as journal:
        [entry] = journal.record_entries([odd], NOW)
        assert journal.read_after(0, ALL) == [entry]
        assert entry.model_dump_json()


def test_pages_go_from_the_newest_backwards_by_kind_and_model(path: Path) -> None:
    journal = EventLog(path)
    journal.record_entries(said("a", kind="file", model="x"), NOW)
    journal.record_entries(said("b", kind="state", model="x"), NOW)
    journal.record_entries(said("c", "d", kind="failure", model="y"), NOW)
    first = journal.read_page([], None, None, 3)
    assert messages(first) == ["d", "c", "b"]
    assert messages(journal.read_page([], None, first[-1].id, 3)) == ["a"]
    assert messages(journal.read_page(("file", "failure"), None, None, ALL)) == ["d", "c", "a"]
    assert messages(journal.read_page([], "x", None, ALL)) == ["b", "a"]
    assert messages(journal.read_page(["state"], "y", None, ALL)) == []
    journal.close()


def test_only_the_newest_are_kept(path: Path) -> None:
    journal = EventLog(path, keep=20)
    lengths = []
    for number in range(3 * PRUNE_EVERY):
        journal.record_entries(said(str(number)), NOW + number)
        lengths.append(len(journal.read_after(0, ALL)))
        assert messages(journal.read_after(0, ALL)) == [str(each) for each in range(number + 1)][-lengths[-1] :]
    # Not with each entry: what is too old goes a few at a time.
    assert (min(lengths[20:]), max(lengths)) == (20, 39)
    assert journal.oldest_id == journal.read_after(0, 1)[0].id
    journal.close()


def test_neither_chatter_nor_calls_of_tools_displace_history_and_each_kind_has_its_bound(path: Path) -> None:
    assert sorted(kind for kinds in RETENTION_CLASSES for kind in kinds) == sorted(get_args(EventKind))
    with opened(path, keep=20) as journal:

        def record(kind: str, since: float) -> None:
            for number in range(3 * PRUNE_EVERY):
                journal.record_entries(said(f"{kind} {number}", kind=kind), since + number)

        def kept(kind: str) -> list[str]:
            return messages(journal.read_page([kind], None, None, ALL))

        journal.record_entries([*said("loaded"), *said("called", kind="tool")], NOW)
        record("state", NOW)
        assert (kept("statement"), kept("tool"), kept("state")[0]) == (["loaded"], ["called"], "state 299")
        record("tool", NOW + 1_000)
        assert kept("statement") == ["loaded"]
        record("file", NOW + 2_000)
        assert kept("statement") == [], "of one class with the edits"
        assert all(20 <= len(kept(kind)) < 40 for kind in ("state", "tool", "file"))


def test_chatter_does_not_displace_history_in_memory_either(path: Path) -> None:
    path.mkdir()
    journal = EventLog(path, keep=20)
    journal.record_entries(said("loaded"), NOW)
    chatter = [journal.record_entries(said(str(number), kind="state"), NOW + number)[0] for number in range(50)]
    assert messages(journal.read_after(0, ALL)) == ["loaded", *(str(number) for number in range(30, 50))]
    lost = chatter[29].id
    assert (journal.lacks_after(lost - 1), journal.lacks_after(lost)) == (True, False)
    path.rmdir()
    journal.record_entries(said("at last"), NOW + 100)
    journal.close()
    with opened(path, keep=20) as again:
        assert (again.lacks_after(lost - 1), again.lacks_after(lost)) == (True, False)


def test_only_what_is_newer_and_gone_is_lacking(path: Path) -> None:
    journal = EventLog(path, keep=3)
    assert (journal.lacks_after(0), journal.lacks_after(1)) == (False, True)
    [first, second, third] = journal.record_entries(said("a", "b", "c"), NOW)
    assert not journal.lacks_after(first.id)
    for number in range(3):
        journal.record_entries(said(str(number)), NOW + 1_000 + number)
    assert messages(journal.read_after(0, ALL)) == ["0", "1", "2"]
    for restarted in (False, True):
        if restarted:
            journal.close()
            journal = EventLog(path, keep=3)
        # Ids are times: there are many between the third, which went, and what there is, and no entry.
        assert [journal.lacks_after(each) for each in (second.id, third.id, journal.oldest_id)] == [True, False, False]
        assert [journal.lacks_after(journal.newest_id + each) for each in (0, 1)] == [False, True]
    journal.close()


@pytest.mark.parametrize("while_used", [False, True])
def test_all_of_a_damaged_journal_is_lacking_and_ids_go_on(
    path: Path, while_used: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(path) as journal:
        # More than SQLite keeps of the file in memory.
        old = journal.record_entries(said(*("x" * 20_000 for _ in range(300))), NOW)
    if while_used:
        journal = EventLog(path)
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    if not while_used:
        journal = EventLog(path)
    assert journal.read_page([], None, None, ALL) == []
    assert caplog.text.count("was damaged") == 1
    assert path.with_name("journal.db.damaged").exists()
    [new] = journal.record_entries(said("new"), NOW + 1)
    assert new.id > old[-1].id
    assert (journal.lacks_after(old[-2].id), journal.lacks_after(new.id)) == (True, False)
    journal.close()
    assert reopened(path) == ["new"]


def test_nobody_else_may_read_the_files(path: Path) -> None:
    path.touch(mode=0o644)
    journal = EventLog(path)
    journal.record_entries(said("a"), NOW)
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == {"journal.db": 0o600, "journal.db-wal": 0o600, "journal.db-shm": 0o600}
    journal.close()


def test_another_process_reads_along_and_a_killed_writer_loses_nothing(path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from controller.journal import NewEntry;"
        "from controller.journal import EventLog; journal = EventLog(Path(sys.argv[1]));"
        "journal.record_entries([NewEntry('file', 'files', 'from elsewhere')], 1e9); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 9
    journal = EventLog(path)
    [entry] = journal.read_after(0, ALL)
    assert (entry.message, entry.id) == ("from elsewhere", 10**12)
    with edited(path) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM entries").fetchone() == (1,)
        journal.record_entries(said("while it is read"), NOW)
        assert reader.execute("SELECT count(*) FROM entries").fetchone() == (1,)
    assert messages(journal.read_after(entry.id, ALL)) == ["while it is read"]
    journal.close()


@pytest.mark.parametrize("where", ["start", "middle"])
def test_a_damaged_file_is_moved_aside_and_ids_go_on(path: Path, where: str, caplog: pytest.LogCaptureFixture) -> None:
    with opened(path) as journal:
        old = journal.record_entries(said(*(f"entry {number} {'x' * 200}" for number in range(200))), NOW)[-1]
    content = bytearray(path.read_bytes())
    begin = 0 if where == "start" else len(content) // 2
    content[begin : begin + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    with opened(path) as again:
        assert "damaged" in caplog.text
        assert path.with_name("journal.db.damaged").read_bytes() == content
        assert again.read_after(0, ALL) == []
        [new] = again.record_entries(said("new"), NOW + 1)
        assert new.id > old.id
    assert reopened(path) == ["new"]


@pytest.mark.parametrize("suffixes", [("",), ("", "-wal", "-shm")], ids=["the file", "its side files too"])
def test_a_deleted_file_is_begun_anew_and_ids_go_on(
    path: Path, suffixes: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    journal = EventLog(path)
    old = journal.record_entries(said("first", "old"), NOW)
    for suffix in suffixes:
        path.with_name(path.name + suffix).unlink()
    [new] = journal.record_entries(said("new"), NOW + 1)
    assert journal.read_after(0, ALL) == [new]
    assert new.id > old[-1].id
    assert journal.lacks_after(old[0].id)
    assert not journal.lacks_after(new.id)
    assert caplog.text.count("was deleted") == 1
    with edited(path) as reader:
        assert reader.execute("SELECT message FROM entries").fetchall() == [("new",)]
    path.unlink()
    assert journal.read_page([], None, None, ALL) == [], "noticed by who reads, too"
    journal.close()
    assert reopened(path) == []


def test_a_file_that_took_the_journals_place_is_the_journal(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(path.with_name("other.db")) as other:
        other.record_entries(said("of another day"), NOW - 86_400)
    journal = EventLog(path)
    journal.record_entries(said("old"), NOW)
    path.with_name("other.db").replace(path)
    journal.record_entries(said("new"), NOW + 1)
    assert messages(journal.read_after(0, ALL)) == ["of another day", "new"]
    assert "was deleted or replaced" in caplog.text
    journal.close()
    assert reopened(path) == ["of another day", "new"]


def test_a_deleted_folder_is_no_error_and_entries_are_written_when_it_is_back(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = EventLog(path)
    journal.record_entries(said("old"), NOW)
    shutil.rmtree(path.parent)
    journal.record_entries(said("a"), NOW + 1)
    journal.record_entries(said("b"), NOW + 2)
    assert caplog.text.count("in memory only") == 1
    assert messages(journal.read_after(0, ALL)) == ["a", "b"]
    path.parent.mkdir()
    journal.record_entries(said("c"), NOW + 60)
    journal.close()
    assert reopened(path) == ["a", "b", "c"]


def test_a_full_disk_keeps_entries_in_memory_until_it_has_room(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    journal = EventLog(path)
    journal.record_entries(said("a"), NOW)
    with full_disk(path.stat().st_size + 4096):
        lost = journal.record_entries(said("b" * 200_000), NOW + 1)
        more = journal.record_entries(said("c"), NOW + 2)
    assert caplog.text.count("in memory only") == 1
    assert [message[0] for message in messages(journal.read_after(0, ALL))] == ["a", "b", "c"]
    assert [message[0] for message in messages(journal.read_page([], None, None, ALL))] == ["c", "b", "a"]
    assert journal.newest_id == more[0].id > lost[0].id
    # Not tried at each entry: only after a pause.
    journal.record_entries(said("d"), NOW + 3)
    assert "written again" not in caplog.text
    was_saved = journal.is_saved
    # Also when nothing new has happened.
    journal.record_entries([], NOW + 60)
    assert "written again" in caplog.text
    assert (was_saved, journal.is_saved) == (False, True)
    journal.record_entries(said("e"), NOW + 61)
    journal.close()
    assert [message[0] for message in reopened(path)] == ["a", "b", "c", "d", "e"]


def test_a_place_that_cannot_be_written_is_no_error(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.mkdir()
    journal = EventLog(path)
    for number in range(3_000):
        journal.record_entries(said(str(number)), NOW + number / 100)
    assert caplog.text.count("in memory only") == 1
    kept = messages(journal.read_after(0, 10_000))
    assert kept[-1] == "2999"
    assert len(kept) == 1_000
    assert journal.oldest_id == journal.read_after(0, 1)[0].id
    path.rmdir()
    journal.record_entries(said("at last"), NOW + 100)
    journal.close()
    assert reopened(path)[-2:] == ["2999", "at last"]


def test_a_newer_versions_file_is_left_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(path) as journal:
        journal.record_entries(said("old"), NOW)
    with edited(path) as other:
        other.execute("UPDATE meta SET value = 99")
    content = path.read_bytes()
    with opened(path) as journal:
        assert "newer" in caplog.text
        journal.record_entries(said("new"), NOW + 1)
        journal.record_entries(said("newest"), NOW + 100)
        assert messages(journal.read_after(0, ALL)) == ["new", "newest"]
    assert path.read_bytes() == content


async def test_followers_get_every_entry_once_however_late_they_come_and_wait_for_the_next(path: Path) -> None:
    journal = EventLog(path)
    seen: list[list[str]] = [[], []]

    async def follow(into: list[str]) -> None:
        last = 0
        while True:
            for entry in await journal.wait_for_entries(last):
                into.append(entry.message)
                last = entry.id

    followers = [asyncio.create_task(follow(into)) for into in seen]
    expected = []
    for number in range(50):
        journal.record_entries(said(f"{number} a", f"{number} b"), NOW)
        expected += [f"{number} a", f"{number} b"]
        if number % 7 == 0:
            await asyncio.sleep(0)
    await until("both have all", lambda: seen == [expected, expected])
    for follower in followers:
        follower.cancel()
    await asyncio.gather(*followers, return_exceptions=True)
    waiting = asyncio.create_task(journal.wait_for_entries(journal.newest_id))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    journal.record_entries([], NOW)
    journal.record_entries(said("b"), NOW)
    assert messages(await waiting) == ["b"]
    journal.close()


async def test_entries_of_another_version_hide_none_behind_them(path: Path) -> None:
    with opened(path) as journal:
        [first] = journal.record_entries(said("a"), NOW)
        foreign = journal.record_entries(said(*(str(number) for number in range(FOLLOWED_AT_ONCE + 1))), NOW)
        [last] = journal.record_entries(said("b"), NOW)
    ids = (foreign[0].id, foreign[-1].id)
    with edited(path) as file:
        file.execute("UPDATE entries SET kind = 'of tomorrow' WHERE id BETWEEN ? AND ?", ids)
    with opened(path) as again:
        assert await asyncio.wait_for(again.wait_for_entries(first.id), DEADLINE_S) == [last]
        assert again.read_page((), None, None, 2) == [last, first]
