"""`roundhouse restore`: restore a backup."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.options import Desired, Documents, Json, NoDocuments, Responses, State
from controller.cli.output import count_words, print_error, print_json, print_line, time_words
from controller.cli.settings import read_settings

if TYPE_CHECKING:
    from controller.backup.manifest import Manifest
    from controller.backup.restoring import Restored, RestoreFolders


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
    from controller.backup.archive import verify_archive
    from controller.backup.manifest import BackupError, OtherVersionError
    from controller.backup.restoring import OccupiedError, RestoreFolders, restore_archive

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
    from common.sqlite_files import hold_file
    from common.state_files import CATALOG_NAME, RETRIEVAL_FOLDER

    catalog = documents / RETRIEVAL_FOLDER / CATALOG_NAME
    try:
        return [hold_file(catalog)] if catalog.exists() else []
    except BlockingIOError:
        raise CommandError(f"retrieval uses {catalog}; `roundhouse down` ends it", ExitCode.LOCKED) from None


@contextmanager
def _hold_folders(folders: RestoreFolders) -> Iterator[None]:
    """Lock the folders against `up`, a controller and a gateway. Raises CommandError where one of them runs."""
    from common.sqlite_files import hold_file
    from controller.backup.manifest import RESPONSES
    from controller.cli.up.record import lock_state
    from controller.storage.state_dir import StateError, StateLockedError, lock_state_folder

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
    print_line(f"{file}: {words}, as of {time_words(manifest.made_at)} (Roundhouse {manifest.version})")
    for path in restored.aside_files:
        print_line(f"kept: {path}")
