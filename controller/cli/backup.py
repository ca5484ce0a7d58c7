"""`roundhouse backup`: write a backup of the installation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.options import Desired, Documents, Json, NoDocuments, Responses, State
from controller.cli.output import count_words, print_json, print_line
from controller.cli.settings import read_settings
from controller.cli.work_bar import open_work_bar


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
    """Write everything that cannot be recreated into one file, while Roundhouse runs.

    The file contains declarations and keys, operators' loads and unloads, history, stored responses, documents,
    observed memory, and the identity of this installation. It contains no models, no vectors and no logs of engines.
    Protect the file like the state folder: it contains secrets. An existing FILE stays as it is until the new one is
    complete. Exit code 1: something cannot be read or written.
    """
    from controller.backup.manifest import BackupError
    from controller.backup.snapshot import BackupFolders, write_backup

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
