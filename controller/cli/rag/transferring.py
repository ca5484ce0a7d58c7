"""`roundhouse rag export` and `import`: a tenant's documents between a gateway and a file."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from pydantic import ValidationError

from controller import __version__
from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.rag.client import RagClient, RefusedError
from controller.cli.rag.export_file import (
    ExportDescription,
    ExportedDocument,
    ExportError,
    ExportReader,
    ExportWriter,
)

AT_ONCE: Final = 4
"""Documents that are sent, or waited for, at the same time."""
POLL_S: Final = 0.3
BUSY_S: Final = 5.0
"""Seconds until a document is sent again that the gateway was too busy for, where it does not say."""
_TRIES: Final = 5


@dataclass(slots=True)
class Exported:
    """What an export has done: the tenant as the gateway names it, and how many documents and originals (different
    contents) the file has."""

    tenant: str
    documents: int = 0
    originals: int = 0
    """In the file; documents with the same content share one."""
    fetched: int = 0
    """Originals that this run has fetched; an earlier one has fetched the others."""


@dataclass(slots=True)
class Imported:
    """What an import has done: how many documents were added or there already, and which failed, with the reason."""

    added: int = 0
    """Documents that were accepted, as new ones or as replacements; some may be in `failed`, too."""
    unchanged: int = 0
    """Documents that were there already, with the same content and fields."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Id and reason of documents that were refused, or could not be made searchable."""


async def export_documents(client: RagClient, path: Path, on_document: Callable[[str], None]) -> Exported:
    """Write all documents of the tenant to the file `path`, replacing an existing one. Until the file is complete, it
    is named `path` with `.partial` appended; the next run reuses the originals in it.

    `on_document`: called with the id of each document that is in the file; again for the same documents if the listing
    must begin anew because a document was deleted meanwhile.

    Raises CommandError: no gateway answers, it refuses a request, or its documents are not of this version; the file
    cannot be written; or a document was replaced again and again. The originals that were fetched stay for the next
    run.
    """
    exported = Exported(await client.read_tenant())
    description = ExportDescription(version=__version__, tenant=exported.tenant)
    with (
        ExportWriter(path, description) as writer,
        tempfile.TemporaryFile(dir=path.parent, prefix=f".{path.name}.") as lines,
    ):
        for tries_left in reversed(range(_TRIES)):
            try:
                exported.documents = await _export_listed(client, writer, exported, lines, on_document)
                break
            except RefusedError as error:
                # The document that a page ended with was deleted before the next page was asked for.
                if error.error_code != "invalid_request" or not tries_left:
                    raise
        exported.originals = writer.originals
        writer.finish(lines)
    return exported


async def _export_listed(
    client: RagClient,
    writer: ExportWriter,
    exported: Exported,
    lines: IO[bytes],
    on_document: Callable[[str], None],
) -> int:
    """Write the lines of all documents, over those of an earlier try, and return how many there are."""
    lines.seek(0)
    lines.truncate()
    count = 0
    async for document in client.list_documents():
        if (line := await _export_one(client, writer, exported, document)) is not None:
            _write_line(lines, line)
            count += 1
            on_document(line.id)
    return count


async def _export_one(
    client: RagClient, writer: ExportWriter, exported: Exported, document: dict[str, Any]
) -> ExportedDocument | None:
    """Bring the original of a document into the file, and return the document's line. None: it was deleted."""
    for _ in range(_TRIES):
        line = _to_line(document)
        if writer.has_original(line.sha256):
            return line
        try:
            async with aclosing(client.read_content(line.id)) as content:
                is_whole = await writer.add_original(line.sha256, line.bytes, content)
            if is_whole:
                exported.fetched += 1
                return line
            document = await client.get_document(line.id)  # replaced between the two questions
        except RefusedError as error:
            if error.error_code == "document_not_found":
                return None
            raise
    raise CommandError(f"{document['id']} was replaced again and again; run the same command later, which goes on")


def _to_line(document: dict[str, Any]) -> ExportedDocument:
    try:
        return ExportedDocument.model_validate({key: document[key] for key in ExportedDocument.model_fields})
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        message = f"the gateway is of another version than this command, {__version__}: `{place}` of a document differs"
        raise CommandError(message, ExitCode.FAILED) from None


async def import_documents(
    client: RagClient, reader: ExportReader, *, waits: bool, on_document: Callable[[str], None]
) -> Imported:
    """Add the documents of an export that the tenant lacks, or has with other content or fields; these are replaced.

    Sends up to 4 documents at a time; waits without limit where the gateway has no room. A document that the gateway
    refuses, or that fails to become searchable, raises nothing: the result lists it in `failed`. `waits`: return when
    all accepted documents are searchable, have failed or were deleted; else when all are accepted or refused.
    `on_document`: called with the id of each document when it is accepted, refused or known to be there already, and,
    with `waits`, once more for each that was not refused, when the wait for it ends.

    Raises CommandError: no gateway answers, the gateway refuses a question about a document's status, its documents
    are not of this version, or the file is damaged (ExportError); OSError: the file cannot be read. Documents that were
    accepted stay; the next run skips them.
    """
    imported = Imported()

    async def send(document: ExportedDocument) -> None:
        try:
            if await _is_there(client, document):
                imported.unchanged += 1
            else:
                await _send_one(client, reader, document)
                imported.added += 1
        except RefusedError as error:
            imported.failed.append((document.id, str(error)))
        on_document(document.id)

    async def wait(document: ExportedDocument) -> None:
        if (reason := await _wait_for_one(client, document)) is not None:
            imported.failed.append((document.id, reason))
        on_document(document.id)

    await _work_through(reader.read_documents(), send)
    if waits:
        refused = {document_id for document_id, _ in imported.failed}
        await _work_through((each for each in reader.read_documents() if each.id not in refused), wait)
    return imported


async def _is_there(client: RagClient, document: ExportedDocument) -> bool:
    try:
        found = await client.get_document(document.id)
    except RefusedError as error:
        if error.error_code == "document_not_found":
            return False
        raise
    fields = ("sha256", "filename", "declared_media_type", "metadata", "chunking")
    wanted = document.model_dump()
    return all(found[name] == wanted[name] for name in fields)


async def _send_one(client: RagClient, reader: ExportReader, document: ExportedDocument) -> None:
    if not reader.is_original_whole(document.sha256):
        raise ExportError(f"{reader.path} is damaged: the original of {document.id} is not what its hash says")
    fields = {
        "id": document.id,
        "metadata": json.dumps(document.metadata),
        "chunking": document.chunking.model_dump_json(),
    }
    if document.filename is not None:
        fields["filename"] = document.filename
    while True:
        try:
            content = reader.read_original(document.sha256)
            await client.add_original(fields, document.declared_media_type, content)
        except RefusedError as error:
            if error.error_code != "retrieval_busy":
                raise
            await asyncio.sleep(error.retry_after_s or BUSY_S)
        else:
            return


async def _wait_for_one(client: RagClient, document: ExportedDocument) -> str | None:
    """Wait until a document is searchable, or has failed. Return why it failed; None: it is searchable, or gone."""
    while True:
        try:
            found = await client.get_document(document.id)
        except RefusedError as error:
            if error.error_code == "document_not_found":
                return None  # somebody has deleted it
            raise
        if found["status"] == "failed":
            return str(found["error"]["message"])
        if found["status"] == "ready":
            return None
        await asyncio.sleep(POLL_S)


async def _work_through(documents: Iterator[ExportedDocument], work: Callable[[ExportedDocument], Any]) -> None:
    """Call `work` for each document, AT_ONCE at a time. Raises the first error, after the other calls have ended."""

    async def work_on() -> None:
        for document in documents:  # all tasks take from the same one
            await work(document)

    tasks = [asyncio.create_task(work_on()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _write_line(lines: IO[bytes], document: ExportedDocument) -> None:
    try:
        lines.write(document.model_dump_json().encode() + b"\n")
    except OSError as error:
        raise CommandError(f"the disk of the export fails: {error.strerror or error}", ExitCode.FAILED) from None
