"""SQLite files of a state folder: their names and schema versions, opening them, noticing that one was replaced, and
setting a damaged one aside.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

RESPONSES_NAME: Final = "responses.db"
RESPONSES_SCHEMA_VERSION: Final = 4
"""`user_version` of that SQLite file, and the only one that is read. Raise it when an older gateway would misread the
file."""

RETRIEVAL_FOLDER: Final = "retrieval"
"""Folder in retrieval's state folder with all of the names below."""
CATALOG_NAME: Final = "catalog.db"
CATALOG_SCHEMA_VERSION: Final = 2
"""`user_version` of that SQLite file, and the only one that is read. Raise it when an older retrieval program would
misread the file."""
ORIGINALS_FOLDER: Final = "originals"
"""Folder with the files that clients sent, each as `<first two digits of its SHA-256>/<its SHA-256>`. Who holds a
shared `flock` of this folder keeps retrieval from removing any of them."""
RESTORED_NAME: Final = "restored"
"""Empty file that a restore leaves beside the catalog: what the vector store holds is of another catalog. Retrieval
removes the file when it has emptied the vector store."""


_SIDE_FILES: Final = ("-wal", "-shm", "-journal")
_DAMAGE_CODES: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_HOLD_POLL_S: Final = 0.05
_LARGE_BYTES: Final = 64 * 1024
"""Bytes of values above which `insert_rows` has SQLite give its copy of them back."""


class NewerDatabaseError(sqlite3.DatabaseError):
    """A newer Roundhouse wrote the file, so this version neither reads nor writes it. `is_damaged` returns False for
    this error, so that the file is kept. It is a sqlite3.DatabaseError."""


class OlderDatabaseError(sqlite3.DatabaseError):
    """A Roundhouse of before 0.1.0 wrote the file, in a form that this version neither reads nor writes. `is_damaged`
    returns False for this error, so that the file is kept. It is a sqlite3.DatabaseError."""


class FileIdentity(NamedTuple):
    """Identifies a file by device and inode, to notice that another file has taken its path."""

    device: int
    inode: int


def identify_file(path: Path) -> FileIdentity | None:
    """Return which file the path leads to; None: there is no file. Raises OSError if the path cannot be read."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return FileIdentity(status.st_dev, status.st_ino)


class FileConnection(sqlite3.Connection):
    """A connection that `open_connection` made. It knows which file it opened, and may hold that file (`hold_file`)
    until `close`."""

    path: Path
    identity: FileIdentity | None
    """Which file was opened. None: it was gone again before the connection was made."""
    held_descriptor: int | None = None
    """Descriptor that holds the file; None: the file is not held."""

    def is_in_place(self) -> bool:
        """Whether the path still leads to the opened file; False if the file was deleted or replaced.

        Raises OSError if the path cannot be read.
        """
        return identify_file(self.path) == self.identity

    def close(self) -> None:
        """Close the connection, and then give back the hold on the file. May be called repeatedly."""
        super().close()
        if self.held_descriptor is not None:
            os.close(self.held_descriptor)
            self.held_descriptor = None


def open_connection(path: Path, *, busy_s: float, is_held: bool = False) -> FileConnection:
    """Connect to a file in autocommit mode. A missing file is made; its mode becomes 0600 in any case.

    `busy_s`: seconds that statements wait for a lock of another connection. `is_held`: hold the file for this process
    (see `hold_file`) until the connection is closed; blocks up to `busy_s` for that. Any thread may use the connection,
    one at a time.

    Raises sqlite3.OperationalError with SQLITE_BUSY where the file is held already, and OSError or sqlite3.Error where
    it cannot be made or opened. A file that is no database raises only when it is read.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    held_descriptor = _hold_within(path, busy_s) if is_held else None
    try:
        # Before connecting: a file that replaces it between the two is noticed later.
        identity = identify_file(path)
        db = sqlite3.connect(
            path, timeout=busy_s, isolation_level=None, check_same_thread=False, factory=FileConnection
        )
    except BaseException:
        if held_descriptor is not None:
            os.close(held_descriptor)
        raise
    db.path, db.identity, db.held_descriptor = path, identity, held_descriptor
    return db


def open_existing(path: Path, *, busy_s: float) -> sqlite3.Connection:
    """Connect to an existing file in autocommit mode. Raises sqlite3.OperationalError where the file is missing or
    cannot be opened; it is never made. A file that is no database raises only when it is read.

    `busy_s`: seconds to wait for a lock of another connection. Only the thread that calls this may use the connection,
    and the caller closes it. It may write: the last connection that is closed removes SQLite's side files, which a
    read-only one could not.
    """
    uri = f"file:{quote(str(path.absolute()))}?mode=rw"
    return sqlite3.connect(uri, uri=True, timeout=busy_s, isolation_level=None)


def insert_rows(db: sqlite3.Connection, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows with as few statements as the database's limit of variables allows, which is faster than many: each
    releases Python's lock and waits for it again. Large values do not stay in memory afterwards, as they would with
    `db.execute`.

    `into`: the statement as far as its columns, such as `INSERT INTO texts (version, text)`. `rows`: at least one, all
    of the same length. Blocks; raises sqlite3.Error if the database fails.
    """
    most = max(1, (db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) - 1) // len(rows[0]))
    for at in range(0, len(rows), most):
        _insert_part(db, into, rows[at : at + most])


def _insert_part(db: sqlite3.Connection, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
    places = ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))
    statement = f"{into} SELECT * FROM (VALUES {places}) WHERE ?"  # noqa: S608 - constants of ours; values are bound
    values = list(chain.from_iterable(rows))
    db.execute(statement, [*values, True])
    if sum(len(each) for each in values if isinstance(each, bytes | str)) > _LARGE_BYTES:
        # Python keeps the statement, and SQLite its copy of what was bound to it last, until others are bound.
        db.execute(statement, [*([None] * len(values)), False])


def hold_file(path: Path) -> int:
    """Lock an existing file for this process, without waiting. Return the descriptor that holds the lock; closing it,
    or the end of the process, releases the lock.

    The lock is flock's, which SQLite does not use: other processes may still read the file through SQLite. Close the
    descriptor after every connection of this process to the file: closing it earlier would also drop the locks that
    SQLite holds for these connections.

    Raises BlockingIOError where another process, or another call in this one, holds the file, and OSError where the
    file is missing or cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _hold_within(path: Path, within_s: float) -> int:
    deadline = time.monotonic() + within_s
    while True:
        try:
            return hold_file(path)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                error = sqlite3.OperationalError("database is locked: another process holds it")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise error from None
        time.sleep(_HOLD_POLL_S)


def has_tables(db: sqlite3.Connection, known_version: int, name: str, movable: str) -> bool:
    """Return whether the file has the tables of `known_version`, its `user_version`; False: it is empty. Writes
    nothing. Messages contain `name` (of the file) and `movable` (what the operator may move away to begin anew).

    Raises:
        NewerDatabaseError, OlderDatabaseError: the file is of another version. The message is for the operator.
        sqlite3.Error: it cannot be read.
    """
    [version] = db.execute("PRAGMA user_version").fetchone()
    if version > known_version:
        raise NewerDatabaseError(f"a newer Roundhouse wrote {name} (schema version {version})")
    if 0 < version < known_version:
        raise OlderDatabaseError(
            f"a Roundhouse of before 0.1.0 wrote {name} (schema version {version}, this one reads {known_version}): "
            f"run that one, or move {movable} away"
        )
    return bool(version)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Context manager that runs its block as one transaction: all of it is written, or nothing.

    Any exception of the block rolls it back and is raised.

    Takes the write lock first, for which it waits up to the connection's busy timeout. Blocks. Raises
    sqlite3.OperationalError if the lock is not free in time, and sqlite3.Error if the database fails. Cannot be nested.
    The connection must be in autocommit mode.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def check_content(db: sqlite3.Connection) -> None:
    """Check the file's pages and indexes. Blocks while it reads the whole file.

    Returns nothing if the content is sound. Raises sqlite3.DatabaseError for the first fault, for which `is_damaged`
    returns True; another sqlite3.Error if the file cannot be read.
    """
    [verdict] = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        error = sqlite3.DatabaseError(str(verdict))
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def is_damaged(error: BaseException) -> bool:
    """Whether the error is one of SQLite's that says that the file's content is broken or no database, so that trying
    again cannot succeed. False for every other exception."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGE_CODES


def set_aside(path: Path) -> Path:
    """Rename a damaged file to `<name>.damaged`, over an earlier one, and remove SQLite's side files. Return its new
    path. Close all connections first. Raises OSError, FileNotFoundError if there is no file."""
    aside_path = path.with_name(f"{path.name}.damaged")
    path.replace(aside_path)
    remove_side_files(path)
    return aside_path


def remove_side_files(path: Path) -> None:
    """Remove the files `<path>-wal`, `<path>-shm` and `<path>-journal` that SQLite kept beside a database that is no
    longer at `path`, so that the next database there does not use them. Missing ones are no error. Raises OSError where
    one cannot be removed."""
    for suffix in _SIDE_FILES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


class OpenedDatabase(Protocol):
    """A database that `DatabaseFile` has opened: the methods that it calls."""

    def is_in_place(self) -> bool:
        """Whether the path still leads to the opened file; False if the file was deleted or replaced.

        Raises OSError if the path cannot be read.
        """

    def close(self) -> None:
        """Close the database. Blocks; may raise sqlite3.Error.

        `DatabaseFile` calls this once, and no method afterwards.
        """


Database = TypeVar("Database", bound=OpenedDatabase)
Result = TypeVar("Result")


class DatabaseFile(Generic[Database]):
    """A database at a path: opened by the first `run`, and anew by the next one where its file was deleted or replaced.
    A file that proves to be damaged is renamed to `<name>.damaged`.

    Use it from one thread at a time. Call `close` at the end.
    """

    def __init__(self, path: Path, open_database: Callable[[], Database], on_file_lost: Callable[[str], None]) -> None:
        """`open_database` opens the file at `path`, or makes it. `on_file_lost` is called before another file takes the
        place of the opened one, with a text that says what became of the old file and that follows the file's name in a
        log line. Nothing is opened yet."""
        self._path = path
        self._open_database = open_database
        self._on_file_lost = on_file_lost
        self._database: Database | None = None

    def run(self, work: Callable[[Database], Result]) -> Result:
        """Open the database if needed, and return what `work` returns. Blocks.

        Where the file proves to be damaged, set it aside and call `work` once more, with a new file: `work` must bear
        being called twice. `on_file_lost` is called then, and where the opened file was deleted or replaced. Raises
        what opening the file and `work` raise; OSError where the path cannot be read or a damaged file cannot be set
        aside.
        """
        try:
            return work(self._open_in_place())
        except sqlite3.DatabaseError as error:
            if not is_damaged(error):
                raise
            self.close()
            aside_path = set_aside(self._path)
            self._on_file_lost(f"was damaged ({error}): it is now {aside_path.name}, and a new one is begun")
        return work(self._open_in_place())

    def _open_in_place(self) -> Database:
        if self._database is not None and not self._database.is_in_place():
            self.close()
            self._on_file_lost("was deleted or replaced: it is opened anew, or a new one is begun")
            remove_side_files(self._path)
        if self._database is None:
            self._database = self._open_database()
        return self._database

    def close(self) -> None:
        """Close the database if it is open. May be called repeatedly; the next `run` opens it again.

        Blocks; raises what the database's own `close` raises.
        """
        database, self._database = self._database, None
        if database is not None:
            database.close()
