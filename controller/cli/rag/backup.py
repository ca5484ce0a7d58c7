"""`roundhouse rag backup` and `roundhouse rag restore`: the documents of all tenants, without a gateway."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.options import Documents, Json
from controller.cli.output import count_words, print_json, print_line, time_words
from controller.cli.restore import hold_catalog
from controller.cli.settings import read_settings
from controller.cli.work_bar import open_work_bar


def back_up_documents(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Path of the archive (.tar.gz) to write. An existing file is replaced."),
    ],
    documents: Documents = None,
    as_json: Json = False,
) -> int:
    """Write the documents, files and vector stores of all tenants into one file, while Roundhouse runs or not.

    `roundhouse backup` has them, too. Vectors are left out: they are made again. An existing FILE stays as it is until
    the new one is complete. Exit code 1: there are no documents, or something cannot be read or written.
    """
    from controller.backup.manifest import BackupError
    from controller.backup.snapshot import write_documents_backup

    folder = documents or read_settings().state
    try:
        with open_work_bar("originals", None) as bar:
            manifest = write_documents_backup(file, folder, time.time(), lambda: bar.advance(1))
    except BackupError as error:
        raise CommandError(str(error)) from None
    assert manifest.documents is not None
    if as_json:
        print_json({"file": str(file), "manifest": manifest.model_dump()})
    else:
        size_mib = file.stat().st_size / 1024**2
        words = count_words(manifest.documents.originals, "original")
        print_line(f"{file}: the catalog and {words} of {folder}, {size_mib:.1f} MiB")
    return ExitCode.DONE


def restore_backup(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Path of an archive that `roundhouse rag backup` or `roundhouse backup` wrote."
        ),
    ],
    documents: Documents = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace existing documents. They are kept as `retrieval.before-restore`."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Restore the documents of a backup, and nothing else of it. No retrieval program may run.

    The whole backup is read and verified first. Vectors are made again at the next start. Exit code 1: the backup
    cannot be restored, or there are documents already and --force is not given. 4: a retrieval program or `up` uses the
    folder.
    """
    from controller.backup.archive import verify_archive
    from controller.backup.manifest import BackupError
    from controller.backup.restoring import OccupiedError, restore_documents

    state = read_settings().state
    folder = documents or state
    try:
        with file.open("rb") as archive:
            manifest = verify_archive(archive)
            with _hold_documents(folder, is_own_state=folder == state):
                aside = restore_documents(archive, manifest, folder, force=force)
    except OccupiedError as error:
        raise CommandError(f"{error}; --force replaces them, and keeps them beside") from None
    except BackupError as error:
        raise CommandError(f"{file} cannot be restored: {error}; nothing was changed") from None
    except OSError as error:
        raise CommandError(f"{error.filename or file}: {error.strerror or error}; the restore is not done") from None
    assert manifest.documents is not None, "restore_documents has raised"
    originals = manifest.documents.originals
    if as_json:
        kept = [] if aside is None else [str(aside)]
        print_json({"file": str(file), "made_at": manifest.made_at, "originals": originals, "kept": kept})
    else:
        print_line(f"{file}: {count_words(originals, 'original')} restored, as of {time_words(manifest.made_at)}")
        if aside is not None:
            print_line(f"kept: {aside}")
    return ExitCode.DONE


@contextmanager
def _hold_documents(folder: Path, *, is_own_state: bool) -> Iterator[None]:
    """Lock a state folder of retrieval against retrieval, and against the `up` that would start it. Raises CommandError
    (LOCKED) where one of them runs."""
    from controller.cli.up.record import lock_state

    descriptors = [lock_state(folder)] if is_own_state else []
    try:
        descriptors += hold_catalog(folder)
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
