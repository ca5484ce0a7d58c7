"""An SQLite file at a path: opened when needed, and begun anew where it was lost or is damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from common.sqlite_files import (
    DatabaseFile,
    FileConnection,
    check_content,
    insert_rows,
    is_damaged,
    open_connection,
    open_existing,
    transaction,
)

MIB = 1024 * 1024


def count_rows(db: sqlite3.Connection) -> int:
    [count] = db.execute("SELECT count(*) FROM t").fetchone()
    return int(count)


class Place:
    """A path, the file there as `DatabaseFile` has it, and what became of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened = 0
        self.lost: list[str] = []
        self.file = DatabaseFile(path, self._open, self.lost.append)

    def _open(self) -> FileConnection:
        self.opened += 1
        db = open_connection(self.path, busy_s=0.05)
        try:
            db.execute("CREATE TABLE IF NOT EXISTS t (value INTEGER)")
        except BaseException:
            db.close()
            raise
        return db

    def add(self) -> None:
        self.file.run(lambda db: db.execute("INSERT INTO t VALUES (1)"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "file.db")


def test_rows_beyond_the_databases_limit_of_variables_are_inserted_all_the_same() -> None:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE t (a INTEGER, b INTEGER)")
    db.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 5)
    insert_rows(db, "INSERT INTO t (a, b)", [(number, -number) for number in range(7)])
    assert db.execute("SELECT a, b FROM t ORDER BY a").fetchall() == [(number, -number) for number in range(7)]


def test_it_is_opened_once_and_after_its_close_again(place: Place) -> None:
    place.add()
    place.add()
    assert (place.file.run(count_rows), place.opened) == (2, 1)
    place.file.close()
    assert (place.file.run(count_rows), place.opened, place.lost) == (2, 2, [])


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.rename(path.with_name("elsewhere"))])
def test_a_file_that_left_its_path_is_left(place: Place, lose: Callable[[Path], None]) -> None:
    place.add()
    lose(place.path)
    assert place.file.run(count_rows) == 0
    assert place.lost == ["was deleted or replaced: it is opened anew, or a new one is begun"]


def test_a_damaged_file_is_set_aside_and_the_work_done_once_more(place: Place) -> None:
    place.path.write_bytes(b"this is no database" * 500)
    assert place.file.run(count_rows) == 0
    [words] = place.lost
    assert "it is now file.db.damaged" in words
    assert place.path.with_name("file.db.damaged").read_bytes().startswith(b"this is no")


def test_damage_that_a_new_file_has_too_is_raised(place: Place) -> None:
    damage = sqlite3.DatabaseError("malformed")
    damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT

    def fail(_: object) -> None:
        raise damage

    with pytest.raises(sqlite3.DatabaseError, match="malformed"):
        place.file.run(fail)
    assert (len(place.lost), place.opened) == (1, 2)


def test_other_errors_change_nothing(place: Place) -> None:
    place.add()
    with pytest.raises(sqlite3.OperationalError):
        place.file.run(lambda db: db.execute("SELECT * FROM other"))
    assert (place.file.run(count_rows), place.opened, place.lost) == (1, 1, [])


def test_a_held_file_is_one_processs_at_a_time_and_others_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    db = open_connection(path, busy_s=0.0, is_held=True)
    db.execute("CREATE TABLE t (value INTEGER)")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        open_connection(path, busy_s=0.0, is_held=True)
    other = open_existing(path, busy_s=0.0)
    assert count_rows(other) == 0
    other.close()
    db.close()
    open_connection(path, busy_s=0.0, is_held=True).close()


def test_an_existing_file_is_opened_and_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        open_existing(tmp_path / "none.db", busy_s=0.0)
    assert not (tmp_path / "none.db").exists()


def test_a_transaction_is_whole_or_nothing(tmp_path: Path) -> None:
    db = open_connection(tmp_path / "file.db", busy_s=0.0)
    db.execute("CREATE TABLE t (value INTEGER NOT NULL)")
    with pytest.raises(sqlite3.IntegrityError), transaction(db):
        db.executemany("INSERT INTO t VALUES (?)", [(1,), (None,)])
    with transaction(db):
        db.execute("INSERT INTO t VALUES (2)")
    assert count_rows(db) == 1
    check_content(db)
    db.close()


def test_which_errors_are_damage() -> None:
    damage = sqlite3.DatabaseError()
    damage.sqlite_errorcode = sqlite3.SQLITE_NOTADB
    assert is_damaged(damage)
    assert not is_damaged(sqlite3.OperationalError("disk I/O error"))


def test_large_values_do_not_stay_in_memory_once_they_are_inserted(folder: Path) -> None:
    db = open_connection(folder / "file.db", busy_s=1)
    db.execute("CREATE TABLE texts (number INTEGER PRIMARY KEY, text BLOB NOT NULL)")
    large = bytes(40 * MIB)
    insert_rows(db, "INSERT INTO texts (number, text)", [(1, b"a"), (2, "b")])
    before = resident_bytes()
    insert_rows(db, "INSERT INTO texts (number, text)", [(3, large)])
    insert_rows(db, "INSERT OR REPLACE INTO texts (number, text)", [(3, large), (4, large)])
    assert resident_bytes() - before < 40 * MIB
    rows = db.execute("SELECT number, length(text) FROM texts ORDER BY number").fetchall()
    assert rows == [(1, 1), (2, 1), (3, 40 * MIB), (4, 40 * MIB)]
    db.close()


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
