"""Copies of each part of an installation, each file at a moment of its own, while the programs run, and their archive.

The archive is a tar.gz whose first member, `manifest.json`, has the SHA-256 of every other member.

Of retrieval, the catalog is copied; the originals are never copied before they are archived. Vectors are left out;
retrieval makes them again.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pydantic import ValidationError

from cli.backup.manifest import (
    CATALOG_MEMBER,
    DESIRED_FOLDER,
    DOCUMENTS_FOLDER,
    IDENTITY,
    JOURNAL,
    MANIFEST_NAME,
    RESPONSES,
    RESPONSES_FOLDER,
    SCHEMA_VERSION,
    SCHEMA_VERSION_WITHOUT_DOCUMENTS,
    STATE_FILES,
    STATE_FOLDER,
    BackupError,
    DamagedArchiveError,
    DocumentsSummary,
    ForeignArchiveError,
    Manifest,
    Member,
    hash_of_original,
    parse_manifest,
)
from common.atomic_write import PRIVATE_MODE, give_to_owner, sync_folder
from common.sqlite_files import (
    CATALOG_NAME,
    ORIGINALS_FOLDER,
    RESTORED_NAME,
    RETRIEVAL_FOLDER,
    check_content,
    open_existing,
)
from controller import __version__
from controller.config.parse import read_folder
from controller.state_dir import Identity

MAX_MANIFEST_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of `manifest.json` that is read."""
CHUNK_BYTES: Final = 1024 * 1024
"""Maximum bytes that are held in memory at a time."""


def describe_file(path: Path) -> Member:
    """Return size in bytes and SHA-256 of a file, which is read whole. Blocks. Raises OSError."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Member(bytes=file.tell(), sha256=digest)


def write_archive(
    path: Path,
    manifest: Manifest,
    files: Mapping[str, Path],
    originals: Iterable[tuple[str, Path]] = (),
    on_original: Callable[[], None] = lambda: None,
) -> None:
    """Write the archive to `path`, which must not exist, readable by its owner alone, and sync it to disk. `files` maps
    the member names of `manifest` to source files, which must not change meanwhile; nothing compares them with the
    manifest. `originals` are SHA-256 (hex) and file of each original (the file of a document) that the manifest counts,
    ascending by hash. `on_original`: called after each of them.

    Raises FileExistsError where `path` exists. Raises BackupError for an original whose content has another hash, and
    OSError; the caller must then remove the partial archive.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with (
            gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            content = manifest.model_dump_json(indent=1).encode()
            _add(archive, MANIFEST_NAME, len(content), 0o600, manifest.made_at, io.BytesIO(content))
            for member, source in files.items():
                with source.open("rb") as opened:
                    status = os.fstat(opened.fileno())
                    _add(archive, member, status.st_size, status.st_mode & 0o666, manifest.made_at, opened)
            for sha256, source in originals:
                _add_original(archive, sha256, source, manifest.made_at)
                archive.getmembers().clear()  # it would keep all of them
                on_original()
        file.flush()
        os.fsync(file.fileno())


def _add_original(archive: tarfile.TarFile, sha256: str, source: Path, at: float) -> None:
    with source.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        try:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:  # of the disk, without the file's name
            raise BackupError(f"{source} cannot be read: {error.strerror or error}") from error
        if digest != sha256:
            raise BackupError(f"{source} is damaged: put the file back, or delete its documents and run it again")
        opened.seek(0)
        _add(archive, f"{DOCUMENTS_FOLDER}/originals/{sha256}", size, 0o600, at, opened)


def _add(archive: tarfile.TarFile, name: str, size: int, mode: int, at: float, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, mode, int(at)
    archive.addfile(entry, content)


def verify_archive(file: IO[bytes]) -> Manifest:
    """Read a whole archive from its beginning, compare every member with the manifest, and return the manifest. Writes
    nothing. `file` must be seekable.

    Raises a subclass of BackupError where the archive cannot be restored: ForeignArchiveError (not a backup of
    Roundhouse), OtherVersionError or DamagedArchiveError (also incomplete). Raises OSError where the file cannot be
    read.
    """
    return read_archive(file, lambda *_: None)


def read_archive(file: IO[bytes], take: Callable[[str, int, Iterator[bytes]], None]) -> Manifest:
    """Read a whole archive from its beginning, call `take` with the name, the permissions and the chunks of content of
    each member after the manifest, and return the manifest. `file` must be seekable.

    Keep what `take` received only once this returns: a member's digest is checked at the member's end, and the
    archive's checksum at the end of the file. `take` may leave content unread; the chunks can be read only until it
    returns.

    Raises ForeignArchiveError where the archive is not a backup of Roundhouse, OtherVersionError, and
    DamagedArchiveError where the archive is damaged or incomplete (all BackupError); OSError where it cannot be read;
    and what `take` raises, but a ValueError of `take` becomes DamagedArchiveError.
    """
    file.seek(0)
    with _as_damage(), gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        if unpacked.peek(1) == b"":
            raise DamagedArchiveError("it is empty")
        with tarfile.open(fileobj=unpacked, mode="r|") as archive:
            manifest = _read_manifest(archive)
            seen_members: set[str] = set()
            originals = _OriginalCount()
            while (entry := archive.next()) is not None:
                declared = originals.declare(entry, manifest) or manifest.members.get(entry.name)
                if declared is None or entry.name in seen_members:
                    raise ForeignArchiveError(f"it holds {entry.name!r}, which its manifest does not")
                if entry.name in manifest.members:
                    seen_members.add(entry.name)
                _take_member(archive, entry, declared, take)
                archive.members.clear()  # type: ignore[attr-defined]  # it would keep all of them
        # gzip checks the archive's checksum when the end of the file is read.
        while unpacked.read(CHUNK_BYTES):
            pass
    if missing_members := sorted(set(manifest.members) - seen_members):
        raise DamagedArchiveError(f"{', '.join(missing_members)} of its manifest is missing")
    originals.check_complete(manifest)
    return manifest


class _OriginalCount:
    """Counts the originals of an archive, which the manifest does not name."""

    def __init__(self) -> None:
        self._count = self._bytes = 0
        self._last = ""

    def declare(self, entry: tarfile.TarInfo, manifest: Manifest) -> Member | None:
        """Return what an original must be; None: the member is none, or the archive has none. Raises
        ForeignArchiveError where it does not come after the one before."""
        sha256 = hash_of_original(entry.name)
        if sha256 is None or manifest.documents is None:
            return None
        if sha256 <= self._last:
            raise ForeignArchiveError(f"it holds {entry.name!r} in a wrong place")
        self._last = sha256
        self._count += 1
        self._bytes += entry.size
        return Member(bytes=entry.size, sha256=sha256)

    def check_complete(self, manifest: Manifest) -> None:
        """Raise DamagedArchiveError where the archive has other originals than its manifest counts."""
        expected = manifest.documents
        if expected is not None and (self._count, self._bytes) != (expected.originals, expected.bytes):
            raise DamagedArchiveError(f"it has {self._count} of its {expected.originals} originals of documents")


def _read_manifest(archive: tarfile.TarFile) -> Manifest:
    entry = archive.next()
    if entry is None or entry.name != MANIFEST_NAME or not entry.isreg() or entry.size > MAX_MANIFEST_BYTES:
        raise ForeignArchiveError(f"it does not begin with a {MANIFEST_NAME}")
    opened = archive.extractfile(entry)
    assert opened is not None, "it is a regular file"
    try:
        content = json.loads(opened.read())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ForeignArchiveError(f"its {MANIFEST_NAME} is no JSON object")
    return parse_manifest(content)


def _take_member(
    archive: tarfile.TarFile,
    entry: tarfile.TarInfo,
    declared: Member,
    take: Callable[[str, int, Iterator[bytes]], None],
) -> None:
    if not entry.isreg() or entry.issparse():
        raise ForeignArchiveError(f"it holds {entry.name!r}, which is no file")
    if entry.size != declared.bytes:
        raise DamagedArchiveError(f"{entry.name} has {entry.size} bytes in place of {declared.bytes}")
    opened = archive.extractfile(entry)
    assert opened is not None, "it is a regular file"
    digest = hashlib.sha256()
    chunks = _hashed_chunks(opened, digest.update)
    take(entry.name, entry.mode, chunks)
    for _ in chunks:  # content that `take` left unread counts in the digest
        pass
    if digest.hexdigest() != declared.sha256:
        raise DamagedArchiveError(f"{entry.name} is not what its manifest says")


def _hashed_chunks(opened: IO[bytes], update: Callable[[bytes], None]) -> Iterator[bytes]:
    while chunk := opened.read(CHUNK_BYTES):
        update(chunk)
        yield chunk


@contextmanager
def _as_damage() -> Iterator[None]:
    """Convert errors of the gzip and tar formats to DamagedArchiveError. Disk errors pass unchanged."""
    try:
        yield
    except gzip.BadGzipFile as error:
        words = "it is no tar.gz" if "Not a gzipped" in str(error) else f"its checksum is wrong ({error})"
        raise DamagedArchiveError(words) from None
    except EOFError:
        raise DamagedArchiveError("it ends too early") from None
    except (tarfile.TarError, zlib.error, ValueError, OverflowError) as error:
        raise DamagedArchiveError(str(error)) from None


BUSY_S: Final = 5.0
"""Seconds to wait for a database that another program has locked."""


def copy_database(source: Path, copy: Path) -> list[Path]:
    """Copy an SQLite database to the file `copy` as of its last committed transaction, while others write to it.
    Returns the copy in a list, empty where there is no database. The copy is readable by its owner alone.

    Raises BackupError where the database cannot be read, is damaged, or is locked by another program for 5 s
    (`BUSY_S`), and where the copy cannot be written.
    """
    if not source.exists():
        return []
    write_new(copy, PRIVATE_MODE, iter(()), is_synced=False)
    try:
        with (
            closing(open_existing(source, busy_s=BUSY_S)) as db,
            closing(sqlite3.connect(copy)) as target,
        ):
            # `backup` would wait for ever for a program that has locked the file; a read waits for BUSY_S.
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            db.backup(target)
            check_content(target)
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise BackupError(f"there is no room for a copy of {source} beside the backup") from error
        raise BackupError(f"{source} cannot be copied ({error})") from error
    return [copy]


def write_new(path: Path, mode: int, chunks: Iterator[bytes], *, is_synced: bool = True) -> None:
    """Write `chunks` to a new file at `path`; an existing one is removed first. Syncs the file to disk, unless
    `is_synced` is False because the caller does that. Of `mode` only the read and write permissions count, and the
    owner always has both. Run by root, the file gets the owner of its folder. Raises OSError, and then may leave a
    partial file."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
        os.fchmod(descriptor, mode & 0o666 | 0o600)
        give_to_owner(path)
        file.flush()
        if is_synced:
            os.fsync(descriptor)


ASIDE_NAME: Final = f"{RETRIEVAL_FOLDER}.before-restore"
"""Name of the folder that a restore replaced."""
_LIST_NAME: Final = "originals"
_HASH: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class DocumentsCopy:
    """What a backup takes of one retrieval program. Made by `open_documents`, and valid only inside its block."""

    catalog: Path
    """Copy of the catalog."""
    summary: DocumentsSummary
    list_path: Path
    """File with the hash of each original, a line each, ascending."""
    originals_folder: Path

    def list_originals(self) -> Iterator[tuple[str, Path]]:
        """Yield the SHA-256 (hex) and the path of each original, the file that a document was made of, ascending by
        hash. Raises OSError where the list cannot be read."""
        with self.list_path.open() as lines:
            for line in lines:
                sha256 = line.strip()
                yield sha256, self.originals_folder / sha256[:2] / sha256


@contextmanager
def open_documents(folder: Path, work_folder: Path) -> Iterator[DocumentsCopy | None]:
    """Context manager that copies the catalog to the work folder, lists the originals, and keeps retrieval from
    removing any of them within the block. None: there is no catalog. Retrieval may run; entering waits while it removes
    originals.

    `folder`: retrieval's state folder. `work_folder` must exist; the caller removes it. The list is made after the copy
    of the catalog, so it has every original that this copy names. Raises BackupError where the catalog cannot be copied
    or the folder of originals cannot be opened, or OSError where the originals cannot be listed or the work folder
    cannot be written.
    """
    source = folder / RETRIEVAL_FOLDER
    originals_folder = source / ORIGINALS_FOLDER
    if not (source / CATALOG_NAME).exists():
        yield None
        return
    try:
        descriptor = os.open(originals_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BackupError(f"{originals_folder} cannot be read: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        [catalog] = copy_database(source / CATALOG_NAME, work_folder / CATALOG_NAME)
        list_path = work_folder / _LIST_NAME
        summary = _write_list(originals_folder, list_path)
        yield DocumentsCopy(catalog, summary, list_path, originals_folder)
    finally:
        os.close(descriptor)


def has_documents(folder: Path) -> bool:
    """Return whether a state folder of retrieval has at least one original, the file of a document. False where the
    folder is missing. Raises OSError."""
    return next(_scan_originals(folder / RETRIEVAL_FOLDER / ORIGINALS_FOLDER), None) is not None


class StagedDocuments:
    """Documents of one archive that are being restored to a state folder of retrieval: collected in a hidden staging
    folder inside it, and put in the place of its documents by `move_into_place`. Before that, its documents stay as
    they are. The maker calls `remove` in the end, also after an error."""

    def __init__(self, folder: Path) -> None:
        """Make the staging folder, without what a killed restore left there. `folder`: retrieval's state folder, which
        exists. Raises OSError, also if another restore is staging there."""
        self._folder = folder
        self._staged = folder / f".{RETRIEVAL_FOLDER}.new"
        self._make_folder(self._staged)
        try:
            self._lock = _lock_folder(self._staged)
        except BlockingIOError:
            raise OSError(errno.EBUSY, "another restore works in it", str(folder)) from None
        for left in self._staged.iterdir():
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)

    def take_member(self, member: str, chunks: Iterator[bytes]) -> None:
        """Write one member of the archive, the catalog or an original, to the staging folder. `member` is its name in
        the archive, and must be one of these. Raises OSError."""
        if member == CATALOG_MEMBER:
            path = self._staged / CATALOG_NAME
        else:
            sha256 = hash_of_original(member)
            assert sha256 is not None, "a member of documents is the catalog or an original"
            path = self._staged / ORIGINALS_FOLDER / sha256[:2] / sha256
        self._make_folder(path.parent)
        write_new(path, 0o600, chunks, is_synced=False)

    def check_catalog(self) -> int:
        """Check that the staged catalog, which must have been taken, is a sound SQLite database, and return the number
        of documents in it, those of vector stores included. Raises DamagedArchiveError where it is not."""
        try:
            with closing(sqlite3.connect(self._staged / CATALOG_NAME)) as db:
                check_content(db)
                [(count,)] = db.execute("SELECT count(*) FROM documents")
                return int(count)
        except sqlite3.Error as error:
            raise DamagedArchiveError(f"{CATALOG_MEMBER} is damaged: {error}") from None

    def sync(self) -> None:
        """Complete what was taken, and sync it to disk. Blocks. Raises OSError."""
        self._make_folder(self._staged / ORIGINALS_FOLDER)
        write_new(self._staged / RESTORED_NAME, 0o600, iter(()), is_synced=False)
        os.sync()  # a sync of each of many thousand files takes minutes

    def move_into_place(self) -> Path | None:
        """Rename the staging folder, which `sync` has completed, to the folder of documents. An existing folder of
        documents is renamed first, to a name that ends in `.before-restore`; what an earlier restore left there is
        deleted. Return the new path of that existing folder; None: there was none. Blocks. Raises OSError; the existing
        folder may then have its new name already."""
        target, aside = self._folder / RETRIEVAL_FOLDER, None
        if target.exists():
            aside = self._folder / ASIDE_NAME
            if (target / RESTORED_NAME).exists() and aside.exists():
                shutil.rmtree(target)  # of a restore that failed and was never opened; what it replaced is aside
            else:
                shutil.rmtree(aside, ignore_errors=True)
                target.rename(aside)
        self._staged.rename(target)
        sync_folder(self._folder)
        return aside

    def remove(self) -> None:
        """Remove what was staged and not moved into place. Call it once. Raises nothing."""
        shutil.rmtree(self._staged, ignore_errors=True)
        os.close(self._lock)

    def _make_folder(self, folder: Path) -> None:
        if not folder.exists():
            if folder != self._staged:
                self._make_folder(folder.parent)
            folder.mkdir(mode=0o700)
            give_to_owner(folder)


def _write_list(originals_folder: Path, list_path: Path) -> DocumentsSummary:
    originals = size = 0
    with list_path.open("w") as lines:
        for path, file_bytes in _scan_originals(originals_folder):
            lines.write(f"{path.name}\n")
            originals += 1
            size += file_bytes
    return DocumentsSummary(originals=originals, bytes=size)


def _scan_originals(originals_folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield path and size in bytes of each original, ascending by hash."""
    try:
        folders = sorted(each for each in originals_folder.iterdir() if len(each.name) == 2)
    except FileNotFoundError:
        return
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if _HASH.fullmatch(path.name) and path.name.startswith(folder.name):
                yield path, path.stat().st_size


@dataclass(frozen=True, slots=True)
class BackupFolders:
    """Folders of an installation that a backup reads."""

    desired: Path
    """Folder of the desired-state files."""
    state: Path
    """State folder of the controller."""
    responses: Path
    """Folder of `responses.db`."""
    documents: Path | None
    """State folder of retrieval; None: documents are left out."""


def write_backup(path: Path, folders: BackupFolders, now: float, on_original: Callable[[], None]) -> Manifest:
    """Back up an installation to the file `path`, which is replaced only by a complete archive, and return its
    manifest. `now` is Unix time. `on_original`: called after each original of a document that is written to the
    archive. Blocks. The programs may run meanwhile. Needs room for a copy of all files but the originals beside `path`.

    Raises BackupError, also where a folder cannot be read or `path` cannot be written, and then leaves no partial file.
    """
    return _write(path, folders.documents, lambda work_folder: _collect(work_folder, folders), now, on_original)


def write_documents_backup(path: Path, documents: Path, now: float, on_original: Callable[[], None]) -> Manifest:
    """Back up the documents alone to the file `path`, which is replaced only by a complete archive, and return the
    manifest. `documents`: state folder of retrieval, which may run. `now` is Unix time. `on_original`: called after
    each original of a document that is written to the archive. Blocks. Raises BackupError, also where there is no
    catalog of documents, and then leaves no partial file."""
    if not (documents / RETRIEVAL_FOLDER / CATALOG_NAME).exists():
        raise BackupError(f"{documents} is no state folder of retrieval: it has no {RETRIEVAL_FOLDER}/{CATALOG_NAME}")
    return _write(path, documents, lambda _: {}, now, on_original)


def _write(
    path: Path,
    documents: Path | None,
    collect: Callable[[Path], dict[str, Path]],
    now: float,
    on_original: Callable[[], None],
) -> Manifest:
    try:
        work_folder, lock = _open_work_folder(path)
    except OSError as error:
        raise BackupError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        files = collect(work_folder)
        archive_path = work_folder / "archive"
        with nullcontext() if documents is None else open_documents(documents, work_folder) as copy:
            if copy is not None:
                files[CATALOG_MEMBER] = copy.catalog
            manifest = Manifest(
                schema_version=SCHEMA_VERSION_WITHOUT_DOCUMENTS if copy is None else SCHEMA_VERSION,
                version=__version__,
                made_at=now,
                instance=_read_instance(work_folder / STATE_FOLDER / IDENTITY),
                members={member: describe_file(file) for member, file in files.items()},
                documents=None if copy is None else copy.summary,
            )
            originals = iter(()) if copy is None else copy.list_originals()
            write_archive(archive_path, manifest, files, originals, on_original)
        archive_path.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        source = None if error.filename is None else Path(os.fsdecode(error.filename))
        is_ours = source is None or source in (path, path.parent) or source.is_relative_to(work_folder)
        words = f"{path} cannot be written" if is_ours else f"{source} cannot be read"
        raise BackupError(f"{words}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)
        os.close(lock)
    return manifest


def _open_work_folder(path: Path) -> tuple[Path, int]:
    """Make a hidden folder beside the backup `path`, and return it with the descriptor that locks it. Those that killed
    backups to `path` left, which nobody locks, are removed. Raises OSError."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}")
    for left in [each for each in path.parent.iterdir() if name.fullmatch(each.name)]:
        with suppress(OSError):  # another backup's, or no folder
            descriptor = _lock_folder(left)
            shutil.rmtree(left, ignore_errors=True)
            os.close(descriptor)
    work_folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    return work_folder, _lock_folder(work_folder)


def _lock_folder(folder: Path) -> int:
    """Lock a folder, and return the descriptor whose closing unlocks it. Raises OSError, and BlockingIOError where it
    is locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _collect(work_folder: Path, folders: BackupFolders) -> dict[str, Path]:
    """Copy all files of the backup but documents to `work_folder`. Returns the copies by member name.

    Raises BackupError, or OSError where the work folder cannot be written.
    """
    for name in (STATE_FOLDER, RESPONSES_FOLDER, DESIRED_FOLDER):
        (work_folder / name).mkdir()
    copies = [*_copy_declarations(folders.desired, work_folder / DESIRED_FOLDER)]
    for name in STATE_FILES:
        copies += _copy_state_file(folders.state / name, work_folder / STATE_FOLDER / name)
    for source, folder in ((folders.state / JOURNAL, STATE_FOLDER), (folders.responses / RESPONSES, RESPONSES_FOLDER)):
        copies += copy_database(source, work_folder / folder / source.name)
    if work_folder / STATE_FOLDER / IDENTITY not in copies:
        raise BackupError(f"{folders.state} is no state folder of a Roundhouse: it has no {IDENTITY}")
    return {str(copy.relative_to(work_folder)): copy for copy in copies}


def _copy_declarations(desired: Path, folder: Path) -> list[Path]:
    """Copy the desired-state files. Raises BackupError where they cannot be read."""
    snapshot = read_folder(desired)
    if snapshot.problems:
        raise BackupError("; ".join(str(problem) for problem in snapshot.problems))
    copies = [folder / name for name in snapshot.files]
    for copy, content in zip(copies, snapshot.files.values(), strict=True):
        write_new(copy, _permissions(desired / copy.name), iter((content,)), is_synced=False)
    return copies


def _permissions(path: Path) -> int:
    try:
        return path.stat().st_mode & 0o666 | 0o600
    except OSError:  # it was replaced or removed meanwhile
        return 0o600


def _copy_state_file(source: Path, copy: Path) -> list[Path]:
    """Copy one file. Returns the copy, or nothing where the file does not exist. Raises BackupError, or OSError where
    the copy cannot be written."""
    try:
        content = source.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BackupError(f"{source} cannot be read: {error.strerror or error}") from error
    write_new(copy, PRIVATE_MODE, iter((content,)), is_synced=False)
    return [copy]


def _read_instance(path: Path) -> str:
    """Return the instance's id; empty where the backup has no identity."""
    if not path.exists():
        return ""
    try:
        return Identity.model_validate_json(path.read_bytes()).instance
    except ValidationError:
        raise BackupError(f"{path.name} of the state folder is damaged: restore it or move it away") from None
