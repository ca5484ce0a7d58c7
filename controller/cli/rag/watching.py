"""`roundhouse rag add --watch`: add what changes and delete what vanishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from watchfiles import awatch

from controller.cli.exit_codes import CommandError
from controller.cli.output import print_error, print_line
from controller.cli.rag.adding import FileToAdd, add_files, find_files
from controller.cli.rag.client import RagClient

CLOCK_SLACK_S: Final = 2.0
"""Seconds by which a file's time may be coarser than the clock, or of another one."""
SETTLE_MS: Final = 500
"""Milliseconds without a change after which a file counts as written."""


class AddedFiles(NamedTuple):
    """The files that were added before `follow_files` began to watch them, and when they were looked for."""

    files: Sequence[FileToAdd]
    began_at: float
    """Unix time at which the files were looked for."""


async def follow_files(
    client: RagClient,
    paths: Sequence[Path],
    metadata: Mapping[str, Any],
    added: AddedFiles,
    on_result: Callable[[FileToAdd, dict[str, Any] | CommandError], None],
) -> None:
    """Add files below `paths` that change, and delete the documents of files that vanish, until cancelled. Prints to
    stdout that it watches, and each deletion. A path that does not exist at the start is not watched.

    `added`: what was added before; files that changed meanwhile are sent first. `metadata`: attributes of each document
    that is sent, beside `path` (see `add_files`). `on_result`: called once per file, with the document or the error. A
    file that fails is sent again when it changes; a deletion that fails is printed, and tried again after the next
    change. A new file that would have the document id of another one is printed, and nothing is done until it is gone.
    """
    known = {file.document_id: file for file in added.files}
    watched = [path for path in paths if path.exists()]
    watch = awatch(*watched, debounce=SETTLE_MS, step=SETTLE_MS, yield_on_timeout=True, rust_timeout=SETTLE_MS)
    print_line("watching; Ctrl-C ends")
    is_first = True
    async for changes in watch:
        if not (changes or is_first):
            continue
        changed = {Path(name).resolve() for _, name in changes}
        try:
            present = {file.document_id: file for file in find_files([path for path in paths if path.exists()])}
        except CommandError as error:
            print_error(str(error))
            continue
        kept = {}
        for document_id in known.keys() - present.keys():
            try:
                await client.delete_document(document_id)
            except CommandError as error:
                print_error(f"{document_id}: {error}")
                kept[document_id] = known[document_id]
            else:
                print_line(f"deleted {document_id}")
        updated = [
            file
            for file in present.values()
            if file.path.resolve() in changed or (is_first and _changed_since(file.path, added.began_at))
        ]
        await add_files(client, updated, metadata, waits=True, on_result=on_result)
        known, is_first = present | kept, False


def _changed_since(path: Path, began_at: float) -> bool:
    try:
        return path.stat().st_mtime >= began_at - CLOCK_SLACK_S
    except OSError:  # it has vanished, which the next look shows
        return False
