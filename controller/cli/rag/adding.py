"""`roundhouse rag add`: which files are meant, under which ids, and what has changed."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.rag.client import RagClient

AT_ONCE: Final = 4
"""Files that are sent at the same time."""
POLL_S: Final = 0.3
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._:@+~=-]+")
_LONGEST_ID: Final = 200


@dataclass(frozen=True, slots=True)
class FileToAdd:
    """A file to send, and the id of the document that it becomes or replaces (see `document_id_of`)."""

    path: Path
    document_id: str


def find_files(paths: Sequence[Path]) -> list[FileToAdd]:
    """Return the files that `paths` name, sorted by path, one per document id. A folder stands for all files below it,
    but for files and folders whose names begin with a dot, and what is no file, a pipe for example; links to folders
    are not followed, and a folder that cannot be read counts as empty.

    Raises CommandError (USAGE) for a path that does not exist, and where two files would have the same document id.
    """
    found: dict[str, FileToAdd] = {}
    for path in paths:
        if not path.exists():
            raise CommandError(f"there is no {path}", ExitCode.USAGE)
        for file in _files_below(path):
            added = FileToAdd(file, document_id_of(file))
            other = found.setdefault(added.document_id, added)
            if other.path.resolve() != file.resolve():
                message = f"{other.path} and {file} would both be the document {added.document_id}: add one by one"
                raise CommandError(message, ExitCode.USAGE)
    return sorted(found.values(), key=lambda each: str(each.path))


def document_id_of(path: Path) -> str:
    """Return the id of a file's document: `path` as it was given, neither made absolute nor resolved, with `:` between
    its parts. The same command line therefore replaces the documents that it added before.

    The id lacks a leading `/` and the parts `.` and `..`. Each run of characters other than `A-Za-z0-9._:@+~=-` becomes
    one `-`. Only the last 200 characters are kept, from the first letter or digit on. The id is `document` if nothing
    is left. Two paths may have the same id.
    """
    parts = [part for part in path.parts if part not in ("/", ".", "..")]
    return _UNFIT.sub("-", ":".join(parts))[-_LONGEST_ID:].lstrip("._:@+~=-") or "document"


async def add_files(
    client: RagClient,
    files: Iterable[FileToAdd],
    metadata: Mapping[str, Any],
    *,
    waits: bool,
    on_result: Callable[[FileToAdd, dict[str, Any] | CommandError], None],
) -> None:
    """Send files, up to 4 (`AT_ONCE`) at a time. Each document gets the attributes `metadata`, and `path`, the file's
    path, unless `metadata` has one.

    `on_result` is called once per file, as each is done: with the document as the gateway answers it, or with a
    CommandError that says why the file failed (not readable, refused, or no gateway answers), after which the other
    files go on. `waits`: a file is done when its document is searchable or has failed, which no timeout bounds; else
    when the gateway has accepted it.
    """
    queue = list(files)
    queue.reverse()

    async def work() -> None:
        while queue:
            file = queue.pop()
            on_result(file, await _add_one(client, file, metadata, waits=waits))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def _add_one(
    client: RagClient, file: FileToAdd, metadata: Mapping[str, Any], *, waits: bool
) -> dict[str, Any] | CommandError:
    try:
        document = await client.add_file(file.path, file.document_id, {"path": str(file.path), **metadata})
        while waits and document["status"] not in ("ready", "failed"):
            await asyncio.sleep(POLL_S)
            document = await client.get_document(file.document_id)
    except CommandError as error:
        return error
    except OSError as error:
        return CommandError(error.strerror or str(error), ExitCode.FAILED)
    if document["status"] == "failed":
        return CommandError(document["error"]["message"], ExitCode.FAILED)
    return document


def _files_below(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        files = (Path(folder) / name for name in sorted(names) if not name.startswith("."))
        # Whoever opens a pipe waits for its other end.
        yield from (file for file in files if file.is_file())
