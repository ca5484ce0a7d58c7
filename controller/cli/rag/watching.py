"""`roundhouse rag add --watch`: add what changes and delete what vanishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from watchfiles import awatch

from controller.cli.exit_codes import CommandError
from controller.cli.output import print_error, print_line
from controller.cli.rag.adding import FileToAdd, add_files, find_files
from controller.cli.rag.client import RagClient

SETTLE_MS: Final = 500
"""Milliseconds without a change after which a file counts as written."""


async def follow_files(
    client: RagClient,
    paths: Sequence[Path],
    metadata: Mapping[str, Any],
    files: Sequence[FileToAdd],
    on_result: Callable[[FileToAdd, dict[str, Any] | CommandError], None],
) -> None:
    """Follow `paths` until cancelled. `files`: those that were added already. A file that the gateway refuses is told,
    and the others go on."""
    known = {file.document_id: file for file in files}
    print_line("watching; Ctrl-C ends")
    async for changes in awatch(*(path for path in paths if path.exists()), debounce=SETTLE_MS, step=SETTLE_MS):
        changed = {Path(name).resolve() for _, name in changes}
        present = {file.document_id: file for file in find_files([path for path in paths if path.exists()])}
        for document_id in known.keys() - present.keys():
            try:
                await client.delete_document(document_id)
            except CommandError as error:
                print_error(f"{document_id}: {error}")
            else:
                print_line(f"deleted {document_id}")
        updated = [file for file in present.values() if file.path.resolve() in changed]
        await add_files(client, updated, metadata, waits=True, on_result=on_result)
        known = present
