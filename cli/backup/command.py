"""`roundhouse backup` and `roundhouse restore`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import Desired, Documents, Json, NoDocuments, Responses, State, read_settings
from cli.output import (
    CommandError,
    ExitCode,
    count_words,
    open_work_bar,
    print_error,
    print_json,
    print_line,
    time_words,
)

if TYPE_CHECKING:
    from cli.backup.manifest import Manifest
    from cli.backup.restoring import Restored, RestoreFolders


def backup(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Path of the archive (.tar.gz) to write. An existing file is replaced."),
    ],
    desired: Desired = None,
    state: State = None,
    responses: Responses = None,
    documents: Documents = None,
    no_documents: NoDocuments = False,
    as_json: Json = False,
) -> int:
    """Write everything that cannot be recreated into one file.

    Roundhouse may run meanwhile. The file contains declarations and keys, operators' loads and unloads, history, stored
    responses, documents, observed memory, and the identity of this installation. It contains no models, no vectors and
    no logs of engines. Protect the file like the state folder: it contains secrets. An existing FILE stays as it is
    until the new one is complete. Exit code 1: something cannot be read or written.
    """
    from cli.backup.manifest import BackupError
    from cli.backup.snapshot import BackupFolders, write_backup

    settings = read_settings(desired=desired, state=state)
    documents_folder = None if no_documents else documents or settings.state
    folders = BackupFolders(settings.desired, settings.state, responses or settings.state, documents_folder)
    try:
        with open_work_bar("originals of documents", None) as bar:
            manifest = write_backup(file, folders, time.time(), lambda: bar.advance(1))
    except BackupError as error:
        raise CommandError(str(error)) from None
    if as_json:
        print_json({"file": str(file), "manifest": manifest.model_dump()})
    else:
        size_mib = file.stat().st_size / 1024**2
        words = f"{count_words(len(manifest.members), 'file')} of {settings.state} and {settings.desired}"
        if manifest.documents is not None:
            words += f", {count_words(manifest.documents.originals, 'original')} of documents"
        print_line(f"{file}: {words}, {size_mib:.1f} MiB")
    return ExitCode.DONE


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Path of an archive that `roundhouse backup` wrote.")],
    desired: Desired = None,
    state: State = None,
    responses: Responses = None,
    documents: Documents = None,
    no_documents: NoDocuments = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace existing files. They are kept beside the new ones as NAME.before-restore."
        ),
    ] = False,
    new_identity: Annotated[
        bool,
        typer.Option(
            "--new-identity",
            help="Give the restored installation a new identity, so that it can run beside the original.",
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Restore a backup. Nothing of Roundhouse may run on these folders.

    The whole backup is read and verified first: one that is damaged, or that another program, a newer version or one of
    before 0.1.0 wrote, changes nothing. Exit code 1: the backup cannot be restored, or the folders hold files already
    and --force is not given. 4: a controller, a gateway, retrieval or `up` runs on the folders.
    """
    from cli.backup.manifest import BackupError, OtherVersionError
    from cli.backup.restoring import OccupiedError, RestoreFolders, restore_archive
    from cli.backup.snapshot import verify_archive

    if force and new_identity:
        raise CommandError("--new-identity is for empty folders, so without --force", ExitCode.USAGE)
    settings = read_settings(desired=desired, state=state)
    documents_folder = None if no_documents else documents or settings.state
    folders = RestoreFolders(settings.state, responses or settings.state, settings.desired, documents_folder)
    try:
        with file.open("rb") as archive:
            manifest = verify_archive(archive)
            with _hold_folders(folders):
                restored = restore_archive(archive, manifest, folders, force=force, new_identity=new_identity)
    except OccupiedError as error:
        advice = "--new-identity is for empty folders" if new_identity else "--force replaces it, and keeps it beside"
        raise CommandError(f"{error}; {advice}") from None
    except OtherVersionError as error:
        raise CommandError(f"{file} cannot be restored: {error}") from None
    except BackupError as error:
        raise CommandError(f"{file} is no whole backup of Roundhouse: {error}; nothing was changed") from None
    except OSError as error:
        place = error.filename or file
        raise CommandError(f"{place}: {error.strerror or error}; the restore is not done") from None
    _show(file, manifest, restored, as_json=as_json)
    return ExitCode.DONE


def hold_catalog(documents: Path) -> list[int]:
    """Lock the catalog of a state folder of retrieval against a retrieval program. Return a list of the file descriptor
    that holds the lock, which the caller closes to release it; empty where there is no catalog. Raises CommandError
    (LOCKED) where a program uses it, and OSError where it cannot be opened."""
    from common.sqlite_files import CATALOG_NAME, RETRIEVAL_FOLDER, hold_file

    catalog = documents / RETRIEVAL_FOLDER / CATALOG_NAME
    try:
        return [hold_file(catalog)] if catalog.exists() else []
    except BlockingIOError:
        raise CommandError(f"retrieval uses {catalog}; `roundhouse down` ends it", ExitCode.LOCKED) from None


@contextmanager
def _hold_folders(folders: RestoreFolders) -> Iterator[None]:
    """Lock the folders against `up`, a controller and a gateway. Raises CommandError where one of them runs."""
    from cli.backup.manifest import RESPONSES
    from cli.up.supervisor import lock_state
    from common.sqlite_files import hold_file
    from controller.state_dir import StateError, StateLockedError, lock_state_folder

    descriptors = [lock_state(folders.state)]
    responses_path = folders.responses / RESPONSES
    try:
        descriptors.append(lock_state_folder(folders.state))
        if responses_path.exists():
            descriptors.append(hold_file(responses_path))
        if folders.documents is not None:
            descriptors += hold_catalog(folders.documents)
        yield
    except StateLockedError as error:
        raise CommandError(f"{error}; `roundhouse down` ends it", ExitCode.LOCKED) from None
    except StateError as error:
        raise CommandError(str(error)) from None
    except BlockingIOError:
        raise CommandError(f"a gateway uses {responses_path}; `roundhouse down` ends it", ExitCode.LOCKED) from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _show(file: Path, manifest: Manifest, restored: Restored, *, as_json: bool) -> None:
    if restored.keeps_identity:
        print_error("the state folder's own identity stays: engines that run are known by it")
    if as_json:
        print_json(
            {
                "file": str(file),
                "made_at": manifest.made_at,
                "version": manifest.version,
                "written": [str(path) for path in restored.written_files],
                "kept": [str(path) for path in restored.aside_files],
            }
        )
        return
    words = f"{count_words(len(restored.written_files), 'file')} restored"
    if restored.documents is not None:
        words = f"{words}, with {count_words(restored.documents, 'document')}"
    print_line(f"{file}: {words}, as of {time_words(manifest.made_at)} (Roundhouse {manifest.version})")
    for path in restored.aside_files:
        print_line(f"kept: {path}")
