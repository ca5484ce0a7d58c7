"""The file that `roundhouse rag export` writes and `import` reads: a tar that any tar program opens.

    export.json             what wrote it, and for which tenant
    originals/<sha256>      each original once, named by the hash of its content
    documents.jsonl         a line for each document; the last member, so a file that has it is complete

Nothing but hashes is held in memory. An unfinished file lies beside, as NAME.partial.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import re
import tarfile
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.backup.files import sync_folder
from controller.cli.exit_codes import CommandError

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
        """Whether the file has the original with this SHA-256 (hex; else ValueError), and its content, which is read
        whole, has that hash. Raises OSError."""
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
