"""Restores a backup: reads, verifies and stages every file beside its destination before anything is replaced."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from cli.backup.manifest import (
    DESIRED_FOLDER,
    DOCUMENTS_FOLDER,
    IDENTITY,
    JOURNAL,
    RESPONSES,
    RESPONSES_FOLDER,
    STATE_FILES,
    STATE_FOLDER,
    BackupError,
    DamagedArchiveError,
    Manifest,
    MemberPlace,
    parse_member,
)
from cli.backup.snapshot import (
    ASIDE_NAME,
    StagedDocuments,
    describe_file,
    has_documents,
    read_archive,
    write_new,
)
from common.atomic_write import sync_folder
from common.sqlite_files import RETRIEVAL_FOLDER, check_content, remove_side_files
from controller.config.parse import is_read
from controller.state_dir import LOCK_NAME

ASIDE_SUFFIX: Final = ".before-restore"
"""Suffix of files that a restore replaced. No desired-state file has such a name."""
_NO_STATE: Final = (LOCK_NAME, "up.lock", "lost+found", RETRIEVAL_FOLDER, ASIDE_NAME)
"""Entries of a state folder that contains no state. Documents are checked by `check_no_documents`."""


class OccupiedError(BackupError):
    """The destination of a restore contains files already, and `force` was not given."""


@dataclass(frozen=True, slots=True)
class RestoreFolders:
    """Folders that a restore writes to. They need not exist. Documents are staged and moved as a folder, so `path_of`
    is not for them."""

    state: Path
    """State folder of the controller."""
    responses: Path
    """Folder of `responses.db`."""
    desired: Path
    """Folder of the desired-state files."""
    documents: Path | None
    """State folder of retrieval; None: documents are left out."""

    def folder_of(self, place: MemberPlace) -> Path:
        """Return the destination folder of a member, which need not exist. Raises KeyError for the catalog of
        documents."""
        return {STATE_FOLDER: self.state, RESPONSES_FOLDER: self.responses, DESIRED_FOLDER: self.desired}[place.folder]

    def path_of(self, place: MemberPlace) -> Path:
        """Return the destination file of a member, which need not exist. Raises KeyError for the catalog of
        documents."""
        return self.folder_of(place) / place.name


@dataclass(slots=True)
class Restored:
    """Result of a restore: which files were written (the folder of documents counts as one), which were moved aside,
    and whether the state folder kept its own identity."""

    written_files: list[Path] = field(default_factory=list)
    """Files that were restored, without desired-state files that were there already with the same content."""
    aside_files: list[Path] = field(default_factory=list)
    """Earlier files under their new names, which end in ASIDE_SUFFIX."""
    keeps_identity: bool = False
    """Whether the state folder kept its own identity, so that the archive's was left out."""
    documents: int | None = None
    """Number of documents of all tenants; None: they were not restored."""


def check_vacant(manifest: Manifest, folders: RestoreFolders) -> None:
    """Check that the destination has no state, no `responses.db`, no desired-state files other than equal ones of the
    backup, and no documents where the restore brings some. Missing folders are vacant.

    Raises OccupiedError where it has some, OSError where a folder or file cannot be read.
    """
    try:
        names = [entry.name for entry in folders.state.iterdir()]
        entries = sorted(name for name in names if name not in _NO_STATE and not _is_unfinished(name))
    except FileNotFoundError:
        entries = []
    if entries:
        raise OccupiedError(f"{folders.state} holds a state already ({', '.join(entries[:3])})")
    if (folders.responses / RESPONSES).exists():
        raise OccupiedError(f"{folders.responses / RESPONSES} is there already")
    for path in _desired_files(folders.desired):
        declared = manifest.members.get(f"{DESIRED_FOLDER}/{path.name}")
        if declared is None or describe_file(path) != declared:
            raise OccupiedError(f"{path} is there already, and is not in the backup so")
    if manifest.documents is not None and folders.documents is not None:
        check_no_documents(folders.documents)


def _is_unfinished(name: str) -> bool:
    """Return whether this is what a killed program left of a file or a folder that it wrote."""
    return name.startswith(".") and name.endswith((".new", ".new-journal", ".new-wal", ".new-shm"))


def check_no_documents(folder: Path) -> None:
    """Check that a state folder of retrieval has no documents; an empty catalog is none. Raises OccupiedError, or
    OSError where the folder cannot be read."""
    if has_documents(folder):
        raise OccupiedError(f"{folder / RETRIEVAL_FOLDER} holds documents already")


def restore_documents(file: IO[bytes], manifest: Manifest, folder: Path, *, force: bool) -> Restored:
    """Restore the documents of an archive that `verify_archive` accepted with this `manifest`, and nothing else, to
    retrieval's state folder `folder`, which is made if it is missing. Return how many there are, and the new path of
    the folder of documents that was moved aside, if there was one. `file` must be seekable. No retrieval program may
    run there.

    With `force`, existing documents are moved aside, to a name that ends in `.before-restore`; those that an earlier
    restore left there are deleted. Raises BackupError, also where the archive has no documents (OccupiedError: there
    are some, without `force`), or OSError; the previous documents are then still in place, unless the disk failed
    between two renames.
    """
    if manifest.documents is None:
        raise BackupError("it has no documents")
    if not force:
        check_no_documents(folder)
    with _stage_documents(file, manifest, folder) as (staged, count):
        staged.sync()
        aside = staged.move_into_place()
    return Restored(aside_files=[] if aside is None else [aside], documents=count)


def restore_archive(
    file: IO[bytes], manifest: Manifest, folders: RestoreFolders, *, force: bool, new_identity: bool
) -> Restored:
    """Restore an archive that `verify_archive` accepted with this `manifest`. The caller holds the lock of the state
    folder, and neither a gateway nor retrieval runs. `file` must be seekable. Missing folders are made.

    With `force`, existing files are moved aside, to names that end in `.before-restore`, over those of an earlier
    restore; without it, `check_vacant` must pass. An existing identity stays, because running engines are known by it.
    With `new_identity` (never with `force`), the archive's identity is left out, so that the controller creates a new
    one.

    Raises BackupError (OccupiedError without `force`) or OSError. The previous files are then still in place, unless
    the disk failed between two renames.
    """
    if not manifest.has_installation:
        raise BackupError("it has documents alone: `roundhouse rag restore` restores them")
    if not force:
        check_vacant(manifest, folders)
    if manifest.documents is None or folders.documents is None:
        return _restore_files(file, manifest, folders, lambda: None, new_identity=new_identity)
    with _stage_documents(file, manifest, folders.documents) as (documents, count):
        documents.sync()
        # First the documents, whose renames can fail: the state of another moment is of no use without them.
        restored = _restore_files(file, manifest, folders, documents.move_into_place, new_identity=new_identity)
    restored.written_files.append(folders.documents / RETRIEVAL_FOLDER)
    restored.documents = count
    return restored


@contextmanager
def _stage_documents(file: IO[bytes], manifest: Manifest, folder: Path) -> Iterator[tuple[StagedDocuments, int]]:
    """Read the documents of an archive into a staging folder, which is removed at the end unless it was moved into
    place, and yield them with their number. Raises BackupError or OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    staged = StagedDocuments(folder)

    def _take(member: str, _: int, chunks: Iterator[bytes]) -> None:
        if member.startswith(f"{DOCUMENTS_FOLDER}/"):
            staged.take_member(member, chunks)

    try:
        _read_same(file, manifest, _take)
        yield staged, staged.check_catalog()
    finally:
        staged.remove()


def _read_same(file: IO[bytes], manifest: Manifest, take: Callable[[str, int, Iterator[bytes]], None]) -> None:
    if read_archive(file, take) != manifest:
        raise BackupError("the backup was replaced while it was read")


def _restore_files(
    file: IO[bytes],
    manifest: Manifest,
    folders: RestoreFolders,
    move_documents: Callable[[], Path | None],
    *,
    new_identity: bool,
) -> Restored:
    """Restore everything but documents. `move_documents` is called directly before files are replaced, and returns
    where it moved earlier ones."""
    restored = Restored(keeps_identity=not new_identity and (folders.state / IDENTITY).exists())
    skipped_members = {f"{STATE_FOLDER}/{IDENTITY}"} if new_identity or restored.keeps_identity else set()
    staged_files: dict[MemberPlace, Path] = {}

    def _take(member: str, mode: int, chunks: Iterator[bytes]) -> None:
        if member in skipped_members or member.startswith(f"{DOCUMENTS_FOLDER}/"):
            return
        place = parse_member(member)
        staged_files[place] = folders.folder_of(place) / f".{place.name}.new"
        remove_side_files(staged_files[place])  # those that a killed restore left
        write_new(staged_files[place], mode, chunks)

    try:
        for folder in (folders.state, folders.responses):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folders.desired.mkdir(parents=True, exist_ok=True)
        _read_same(file, manifest, _take)
        _drop_equal_declarations(staged_files, folders)
        for place, staged in staged_files.items():
            if place.is_database:
                _check_staged_database(staged, place)
        if (aside := move_documents()) is not None:
            restored.aside_files.append(aside)
        _move_into_place(staged_files, manifest, folders, restored)
    finally:
        for staged in staged_files.values():
            staged.unlink(missing_ok=True)
            remove_side_files(staged)
    return restored


def _drop_equal_declarations(staged_files: dict[MemberPlace, Path], folders: RestoreFolders) -> None:
    """Leave out declarations that are in place with the same content."""
    for place in [place for place in staged_files if place.folder == DESIRED_FOLDER]:
        path = folders.path_of(place)
        if path.is_file() and path.read_bytes() == staged_files[place].read_bytes():
            staged_files.pop(place).unlink()


def _check_staged_database(path: Path, place: MemberPlace) -> None:
    try:
        with closing(sqlite3.connect(path)) as db:
            check_content(db)
    except sqlite3.Error as error:
        raise DamagedArchiveError(f"{place.member} is damaged: {error}") from None


def _move_into_place(
    staged_files: Mapping[MemberPlace, Path],
    manifest: Manifest,
    folders: RestoreFolders,
    restored: Restored,
) -> None:
    for path in _replaced_files(staged_files, manifest, folders):
        restored.aside_files.append(_move_aside(path))
    for place, staged in staged_files.items():
        path = folders.path_of(place)
        staged.replace(path)
        restored.written_files.append(path)
    for folder in {folders.state, folders.responses, folders.desired}:
        sync_folder(folder)


def _replaced_files(
    staged_files: Mapping[MemberPlace, Path], manifest: Manifest, folders: RestoreFolders
) -> list[Path]:
    """Return the existing files that the restore replaces, or that would take effect beside the restored ones."""
    paths = [folders.state / name for name in (*STATE_FILES, JOURNAL) if name != IDENTITY] + [
        folders.responses / RESPONSES
    ]
    paths += [
        path
        for path in _desired_files(folders.desired)
        if MemberPlace(DESIRED_FOLDER, path.name) in staged_files
        or f"{DESIRED_FOLDER}/{path.name}" not in manifest.members
    ]
    return [path for path in paths if path.exists()]


def _desired_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if is_read(path.name) and not path.is_dir())
    except FileNotFoundError:
        return []


def _move_aside(path: Path) -> Path:
    """Rename a file, with the write-ahead log of a database. Overwrites the file that an earlier restore moved
    aside."""
    aside_path = path.with_name(f"{path.name}{ASIDE_SUFFIX}")
    remove_side_files(aside_path)
    write_ahead_log = path.with_name(f"{path.name}-wal")
    path.replace(aside_path)
    if write_ahead_log.exists():
        write_ahead_log.replace(aside_path.with_name(f"{aside_path.name}-wal"))
    remove_side_files(path)
    return aside_path
