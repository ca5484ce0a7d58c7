"""Documents exported to a file and imported from it: a tar that any tar program opens.

    export.json             what wrote it, and for which tenant
    originals/<sha256>      each original once, named by the hash of its content
    documents.jsonl         a line for each document; the last member, so a file that has it is complete

Nothing but hashes is held in memory. An unfinished file lies beside, as NAME.partial.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cli.gateway_client import RefusedError
from cli.output import CommandError, ExitCode
from cli.rag.client import RagClient
from common.atomic_write import sync_folder
from controller import __version__

PARTIAL_SUFFIX: Final = ".partial"
SCHEMA_VERSION: Final = 1
"""Version of the format. Raised when an earlier Roundhouse would read the file wrongly."""
_DESCRIPTION: Final = "export.json"
_DOCUMENTS: Final = "documents.jsonl"
_ORIGINAL: Final = re.compile(r"originals/([0-9a-f]{64})")
_PART: Final = 1024 * 1024
_LONGEST_DESCRIPTION: Final = 64 * 1024


class ExportDescription(BaseModel):
    """Content of `export.json`, the first member of an export: which Roundhouse wrote the file, and for which
    tenant."""

    model_config = ConfigDict(frozen=True, strict=True)

    format: Literal["roundhouse-documents"] = "roundhouse-documents"
    schema_version: int = SCHEMA_VERSION
    version: str
    """Of the Roundhouse that wrote the file."""
    tenant: str
    """As the gateway named it."""


class ExportedChunking(BaseModel):
    """How a document is cut into chunks: the most tokens of a chunk, and the tokens that two neighbours share."""

    model_config = ConfigDict(frozen=True, strict=True)

    max_tokens: int
    overlap_tokens: int


class ExportedDocument(BaseModel):
    """A line of `documents.jsonl`: the fields of a document, as `/v1/documents` answers them, from which an import
    makes it again. `sha256` (hex) and `bytes` are of its original, `created_at` is Unix time. Other fields are
    ignored."""

    model_config = ConfigDict(frozen=True, strict=True)

    id: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)
    filename: str | None
    declared_media_type: str | None
    metadata: dict[str, Any]
    chunking: ExportedChunking
    created_at: int


class ExportError(CommandError):
    """A file cannot be written or read as an export. The message says which file, why, and mostly what to do. Exit code
    FAILED."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the content of a member (a file in the tar) is in the export, in bytes from its beginning."""

    offset: int
    size: int


class ExportWriter:
    """Writes an export to the file `path` with `.partial` appended, which `finish` renames to `path`. A context
    manager. The originals that are written stay when it ends early, and the next writer for the same `path` and tenant
    goes on with them. Only one at a time may write the file."""

    def __init__(self, path: Path, description: ExportDescription) -> None:
        """Go on with the unfinished file of `path`, whose originals are read and compared with their hashes; what does
        not fit is cut off. Begin one where there is none.

        Raises ExportError: it cannot be written, is of another tenant or version, or another program writes it.
        """
        self._path = path
        self._partial = path.with_name(path.name + PARTIAL_SUFFIX)
        self._hashes: set[bytes] = set()
        try:
            descriptor = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._file = os.fdopen(descriptor, "r+b", buffering=0)  # what fails to be written is not tried again
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._resume(description)
            except BaseException:
                self._file.close()
                raise
        except BlockingIOError:
            raise ExportError(f"another export writes {self._partial}") from None
        except OSError as error:
            raise ExportError(f"{self._partial} cannot be written: {error.strerror or error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def originals(self) -> int:
        """Number of different originals in the file, those of earlier runs included."""
        return len(self._hashes)

    def has_original(self, sha256: str) -> bool:
        """Whether the file has the original with this SHA-256 (hex; else ValueError), of this run or an earlier one."""
        return bytes.fromhex(sha256) in self._hashes

    async def add_original(self, sha256: str, size: int, parts: AsyncIterable[bytes]) -> bool:
        """Append an original that the file does not have yet (see `has_original`), and return whether that was done.
        One call at a time. False: `parts` are not the content with this SHA-256 (hex) and size in bytes, and nothing is
        appended. Raises ExportError where the disk fails, and what `parts` raises; nothing is appended then, either."""
        start = self._file.tell()
        digest, written = hashlib.sha256(), 0
        is_whole = False
        try:
            self._write(_header(f"originals/{sha256}", size))
            async for part in parts:
                written += len(part)
                if written > size:
                    return False
                digest.update(part)
                self._write(part)
            self._write(_padding(size))
            is_whole = written == size and digest.hexdigest() == sha256
        finally:
            if not is_whole:
                self._cut(start)
        if is_whole:
            self._hashes.add(bytes.fromhex(sha256))
        return is_whole

    def finish(self, documents: IO[bytes]) -> None:
        """Append the lines of `documents` (each an `ExportedDocument` as JSON; the file is read from its beginning),
        sync the export to disk, and give it its name, over an earlier one. Call it once, last. Raises ExportError where
        the disk fails."""
        try:
            size = documents.seek(0, io.SEEK_END)
            documents.seek(0)
            self._write(_header(_DOCUMENTS, size))
            while part := documents.read(_PART):
                self._write(part)
            self._write(_padding(size) + b"\0" * (2 * tarfile.BLOCKSIZE))
            os.fsync(self._file.fileno())
            self._partial.replace(self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            raise self._disk_error(error) from None

    def _resume(self, description: ExportDescription) -> None:
        end = 0
        for name, place in _read_members(self._file):
            original = _ORIGINAL.fullmatch(name)
            if end == 0:
                self._check_description(name, place, description)
            elif original is None or _hash_of(self._file, place) != original[1]:
                break
            else:
                self._hashes.add(bytes.fromhex(original[1]))
            end = _padded(place.offset + place.size)
        if end == 0 and self._file.seek(0, io.SEEK_END):
            raise ExportError(f"{self._partial} is no unfinished export: move it away")
        self._cut(end)
        if end == 0:
            content = description.model_dump_json().encode()
            try:
                self._write(_header(_DESCRIPTION, len(content)) + content + _padding(len(content)))
            except ExportError:
                self._cut(0)
                raise

    def _check_description(self, name: str, place: Place, description: ExportDescription) -> None:
        if name != _DESCRIPTION:
            raise ExportError(f"{self._partial} is no unfinished export: move it away")
        found = _read_description(self._file, place, self._partial)
        if found.tenant != description.tenant:
            raise ExportError(
                f"{self._partial} is of the tenant {found.tenant}: finish that export, or delete the file"
            )

    def _write(self, content: bytes) -> None:
        view = memoryview(content)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise self._disk_error(error) from None

    def _cut(self, end: int) -> None:
        self._file.seek(end)
        self._file.truncate()

    def _disk_error(self, error: OSError) -> ExportError:
        reason = error.strerror or str(error)
        return ExportError(f"{self._partial} cannot be written: {reason}; the same command goes on where this one was")


class ExportReader:
    """Reads a complete export. Making it opens the file and finds its originals, or raises ExportError; it is a context
    manager that closes the file. `description` is the content of `export.json`."""

    def __init__(self, path: Path) -> None:
        """Read which originals there are. Raises ExportError: the file cannot be read, is no export, is not complete,
        or a newer Roundhouse wrote it."""
        self.path = path
        self._places: dict[bytes, Place] = {}
        self._documents: Place | None = None
        try:
            self._file = path.open("rb")
            try:
                self.description = self._read_places()
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise ExportError(f"{path} cannot be read: {error.strerror or error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read_documents(self) -> Iterator[ExportedDocument]:
        """Yield the documents, in the order of the file. Raises ExportError for a line that is no document, and OSError
        where the file cannot be read."""
        assert self._documents is not None
        with self.path.open("rb") as file:
            file.seek(self._documents.offset)
            rest, number = self._documents.size, 0
            while rest > 0:
                line = file.readline(rest)
                rest -= max(len(line), 1)
                number += 1
                try:
                    yield ExportedDocument.model_validate_json(line)
                except ValidationError as error:
                    field = ".".join(map(str, error.errors()[0]["loc"])) or "it is no JSON"
                    raise ExportError(f"{self.path}, line {number} of {_DOCUMENTS} is damaged: {field}") from None

    def is_original_whole(self, sha256: str) -> bool:
        """Whether the file has the original with this SHA-256 (lower-case hex; else ValueError), and its content, which
        is read whole, has that hash. Raises OSError."""
        place = self._places.get(bytes.fromhex(sha256))
        return place is not None and _hash_of(self._file, place) == sha256

    async def read_original(self, sha256: str) -> AsyncIterator[bytes]:
        """Yield the parts of the content of the original with this SHA-256 (hex; else ValueError). Check it before with
        `is_original_whole`, since the content is not compared here; one that the file does not have raises KeyError.
        Several may be read at the same time. Raises OSError where the file cannot be read."""
        place = self._places[bytes.fromhex(sha256)]
        at, end = place.offset, place.offset + place.size
        while at < end:
            part = os.pread(self._file.fileno(), min(_PART, end - at), at)
            if not part:
                raise OSError(f"{self.path} became shorter")
            yield part
            at += len(part)

    def _read_places(self) -> ExportDescription:
        description: ExportDescription | None = None
        for name, place in _read_members(self._file):
            original = _ORIGINAL.fullmatch(name)
            if description is None:
                if name != _DESCRIPTION:
                    break
                description = _read_description(self._file, place, self.path)
            elif original is not None:
                self._places[bytes.fromhex(original[1])] = place
            elif name == _DOCUMENTS:
                self._documents = place
        if description is None:
            raise ExportError(f"{self.path} is no export of `roundhouse rag export`")
        if self._documents is None:
            raise ExportError(f"{self.path} is not complete: run `roundhouse rag export` again, which goes on")
        return description


def _read_members(file: IO[bytes]) -> Iterator[tuple[str, Place]]:
    """Yield names and places of the members that are whole, in their order. The caller may move in the file meanwhile.
    Raises OSError."""
    at, size = 0, os.fstat(file.fileno()).st_size
    # Not by tarfile.TarFile, which keeps every member that it has read.
    while True:
        try:
            header = os.pread(file.fileno(), tarfile.BLOCKSIZE, at)
            entry = tarfile.TarInfo.frombuf(header, tarfile.ENCODING, "surrogateescape")
        except tarfile.TarError:
            return
        place = Place(at + tarfile.BLOCKSIZE, entry.size)
        at = _padded(place.offset + place.size)
        if not entry.isreg() or entry.size < 0 or at > size:
            return
        yield entry.name, place


def _read_description(file: IO[bytes], place: Place, path: Path) -> ExportDescription:
    content = os.pread(file.fileno(), min(place.size, _LONGEST_DESCRIPTION), place.offset)
    try:
        description = ExportDescription.model_validate_json(content)
    except ValidationError:
        raise ExportError(f"{path} is no export of `roundhouse rag export`") from None
    if description.schema_version > SCHEMA_VERSION:
        raise ExportError(f"{path} was written by a newer Roundhouse ({description.version}): use that version")
    return description


def _hash_of(file: IO[bytes], place: Place) -> str:
    digest, at, end = hashlib.sha256(), place.offset, place.offset + place.size
    while at < end and (part := os.pread(file.fileno(), min(_PART, end - at), at)):
        digest.update(part)
        at += len(part)
    return digest.hexdigest()


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry.tobuf(tarfile.GNU_FORMAT)  # one block, whatever the size


def _padding(size: int) -> bytes:
    return b"\0" * (_padded(size) - size)


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


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


async def export_of(client: RagClient, tenant: str, path: Path) -> int:
    """Write the documents of a tenant to the file `path`, and return how many there are. Raises CommandError where the
    client asks for another tenant, and what `export_documents` raises."""
    await _check_tenant(client, tenant)
    return (await export_documents(client, path, lambda _: None)).documents


async def add_moved(
    client: RagClient, tenant: str, reader: ExportReader, on_document: Callable[[str], None]
) -> dict[str, str]:
    """Add the documents of an export to a tenant, and return which failed to become searchable, with the reasons.

    Raises CommandError where the client asks for another tenant, or the tenant has another document of one of the ids;
    nothing is added then. Otherwise as `import_documents`.
    """
    await _check_tenant(client, tenant)
    if taken := [each async for each in _find_other_documents(client, reader)]:
        raise CommandError(f"{tenant} has other documents of these ids, so nothing was moved: {', '.join(taken[:9])}")
    return dict((await import_documents(client, reader, waits=True, on_document=on_document)).failed)


async def delete_moved(client: RagClient, reader: ExportReader, failed: Collection[str]) -> int:
    """Delete the documents of an export where they came from, but those that `failed` and those that were changed
    since, and return how many were deleted. Errors: see RagClient."""
    kept = {*failed, *[each async for each in _find_other_documents(client, reader)]}
    moved = [document.id for document in reader.read_documents() if document.id not in kept]
    for document_id in moved:
        await client.delete_document(document_id)
    return len(moved)


async def _check_tenant(client: RagClient, wanted: str) -> None:
    # Where a key decides, both would be the same tenant, and deleting would lose what was "moved".
    if (tenant := await client.read_tenant()) != wanted:
        message = f"the key decides for which tenant this client asks: {tenant}, not {wanted}"
        raise CommandError(f"{message}; `rag export` with a key of the one, and `rag import` with one of the other")


async def _find_other_documents(client: RagClient, reader: ExportReader) -> AsyncIterator[str]:
    """Yield the ids of documents of an export that the tenant has with other content or fields."""
    for document in reader.read_documents():
        if not await _is_there(client, document) and await client.find_document(document.id) is not None:
            yield document.id


async def _is_there(client: RagClient, document: ExportedDocument) -> bool:
    found = await client.find_document(document.id)
    if found is None:
        return False
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
        found = await client.find_document(document.id)
        if found is None or found["status"] == "ready":
            return None
        if found["status"] == "failed":
            return str(found["error"]["message"])
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
