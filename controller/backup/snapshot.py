"""Writes a backup of an installation while its controller and gateway run. Each file is copied at a moment of its
own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from common.private_files import PRIVATE_MODE
from common.state_files import CATALOG_NAME, RETRIEVAL_FOLDER
from controller import __version__
from controller.backup.archive import describe_file, write_archive
from controller.backup.documents import DocumentsCopy, open_documents
from controller.backup.files import copy_database, sync_folder, write_new
from controller.backup.manifest import (
    CATALOG_MEMBER,
    DESIRED_FOLDER,
    IDENTITY,
    JOURNAL,
    RESPONSES,
    RESPONSES_FOLDER,
    SCHEMA_VERSION,
    SCHEMA_VERSION_WITHOUT_DOCUMENTS,
    STATE_FILES,
    STATE_FOLDER,
    BackupError,
    Manifest,
)
from controller.config.read import read_folder
from controller.storage.state_dir import Identity


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
        work_folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise BackupError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        files = collect(work_folder)
        archive_path = work_folder / "archive"
        with _open_documents(documents, work_folder) as copy:
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
        raise BackupError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)
    return manifest


def _open_documents(documents: Path | None, work_folder: Path) -> AbstractContextManager[DocumentsCopy | None]:
    return nullcontext() if documents is None else open_documents(documents, work_folder)


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
