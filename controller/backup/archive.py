"""The archive of a backup: a tar.gz whose first member, `manifest.json`, has the SHA-256 of every other member."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from controller.backup.manifest import (
    DOCUMENTS_FOLDER,
    MANIFEST_NAME,
    BackupError,
    DamagedArchiveError,
    ForeignArchiveError,
    Manifest,
    Member,
    hash_of_original,
    parse_manifest,
)

MAX_MANIFEST_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of `manifest.json` that is read."""
CHUNK_BYTES: Final = 1024 * 1024
"""Maximum bytes that are held in memory at a time."""


def describe_file(path: Path) -> Member:
    """Return size in bytes and SHA-256 of a file, which is read whole. Blocks. Raises OSError."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Member(bytes=file.tell(), sha256=digest)


def write_archive(
    path: Path,
    manifest: Manifest,
    files: Mapping[str, Path],
    originals: Iterable[tuple[str, Path]] = (),
    on_original: Callable[[], None] = lambda: None,
) -> None:
    """Write the archive to `path`, which must not exist, readable by its owner alone, and sync it to disk. `files` maps
    the member names of `manifest` to source files, which must not change meanwhile; nothing compares them with the
    manifest. `originals` are SHA-256 (hex) and file of each original (the file of a document) that the manifest counts,
    ascending by hash. `on_original`: called after each of them.

    Raises FileExistsError where `path` exists. Raises BackupError for an original whose content has another hash, and
    OSError; the caller must then remove the partial archive.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with (
            gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            content = manifest.model_dump_json(indent=1).encode()
            _add(archive, MANIFEST_NAME, len(content), 0o600, manifest.made_at, io.BytesIO(content))
            for member, source in files.items():
                with source.open("rb") as opened:
                    status = os.fstat(opened.fileno())
                    _add(archive, member, status.st_size, status.st_mode & 0o666, manifest.made_at, opened)
            for sha256, source in originals:
                _add_original(archive, sha256, source, manifest.made_at)
                archive.getmembers().clear()  # it would keep all of them
                on_original()
        file.flush()
        os.fsync(file.fileno())


def _add_original(archive: tarfile.TarFile, sha256: str, source: Path, at: float) -> None:
    with source.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if hashlib.file_digest(opened, "sha256").hexdigest() != sha256:
            raise BackupError(f"{source} is damaged: put the file back, or delete its documents and run it again")
        opened.seek(0)
        _add(archive, f"{DOCUMENTS_FOLDER}/originals/{sha256}", size, 0o600, at, opened)


def _add(archive: tarfile.TarFile, name: str, size: int, mode: int, at: float, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, mode, int(at)
    archive.addfile(entry, content)


def verify_archive(file: IO[bytes]) -> Manifest:
    """Read a whole archive from its beginning, compare every member with the manifest, and return the manifest. Writes
    nothing. `file` must be seekable.

    Raises a subclass of BackupError where the archive cannot be restored: ForeignArchiveError (not a backup of
    Roundhouse), OtherVersionError or DamagedArchiveError (also incomplete). Raises OSError where the file cannot be
    read.
    """
    return read_archive(file, lambda *_: None)


def read_archive(file: IO[bytes], take: Callable[[str, int, Iterator[bytes]], None]) -> Manifest:
    """Read a whole archive from its beginning, call `take` with the name, the permissions and the chunks of content of
    each member after the manifest, and return the manifest. `file` must be seekable.

    Keep what `take` received only once this returns: a member's digest is checked at the member's end, and the
    archive's checksum at the end of the file. `take` may leave content unread; the chunks can be read only until it
    returns.

    Raises ForeignArchiveError where the archive is not a backup of Roundhouse, OtherVersionError, and
    DamagedArchiveError where the archive is damaged or incomplete (all BackupError); OSError where it cannot be read;
    and what `take` raises, but a ValueError of `take` becomes DamagedArchiveError.
    """
    file.seek(0)
    with _as_damage(), gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        if unpacked.peek(1) == b"":
            raise DamagedArchiveError("it is empty")
        with tarfile.open(fileobj=unpacked, mode="r|") as archive:
            manifest = _read_manifest(archive)
            seen_members: set[str] = set()
            originals = _OriginalCount()
            while (entry := archive.next()) is not None:
                declared = originals.declare(entry, manifest) or manifest.members.get(entry.name)
                if declared is None or entry.name in seen_members:
                    raise ForeignArchiveError(f"it holds {entry.name!r}, which its manifest does not")
                if entry.name in manifest.members:
                    seen_members.add(entry.name)
                _take_member(archive, entry, declared, take)
                archive.members.clear()  # type: ignore[attr-defined]  # it would keep all of them
        # gzip checks the archive's checksum when the end of the file is read.
        while unpacked.read(CHUNK_BYTES):
            pass
    if missing_members := sorted(set(manifest.members) - seen_members):
        raise DamagedArchiveError(f"{', '.join(missing_members)} of its manifest is missing")
    originals.check_complete(manifest)
    return manifest


class _OriginalCount:
    """Counts the originals of an archive, which the manifest does not name."""

    def __init__(self) -> None:
        self._count = self._bytes = 0
        self._last = ""

    def declare(self, entry: tarfile.TarInfo, manifest: Manifest) -> Member | None:
        """Return what an original must be; None: the member is none, or the archive has none. Raises
        ForeignArchiveError where it does not come after the one before."""
        sha256 = hash_of_original(entry.name)
        if sha256 is None or manifest.documents is None:
            return None
        if sha256 <= self._last:
            raise ForeignArchiveError(f"it holds {entry.name!r} in a wrong place")
        self._last = sha256
        self._count += 1
        self._bytes += entry.size
        return Member(bytes=entry.size, sha256=sha256)

    def check_complete(self, manifest: Manifest) -> None:
        """Raise DamagedArchiveError where the archive has other originals than its manifest counts."""
        expected = manifest.documents
        if expected is not None and (self._count, self._bytes) != (expected.originals, expected.bytes):
            raise DamagedArchiveError(f"it has {self._count} of its {expected.originals} originals of documents")


def _read_manifest(archive: tarfile.TarFile) -> Manifest:
    entry = archive.next()
    if entry is None or entry.name != MANIFEST_NAME or not entry.isreg() or entry.size > MAX_MANIFEST_BYTES:
        raise ForeignArchiveError(f"it does not begin with a {MANIFEST_NAME}")
    opened = archive.extractfile(entry)
    assert opened is not None, "it is a regular file"
    try:
        content = json.loads(opened.read())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ForeignArchiveError(f"its {MANIFEST_NAME} is no JSON object")
    return parse_manifest(content)


def _take_member(
    archive: tarfile.TarFile,
    entry: tarfile.TarInfo,
    declared: Member,
    take: Callable[[str, int, Iterator[bytes]], None],
) -> None:
    if not entry.isreg() or entry.issparse():
        raise ForeignArchiveError(f"it holds {entry.name!r}, which is no file")
    if entry.size != declared.bytes:
        raise DamagedArchiveError(f"{entry.name} has {entry.size} bytes in place of {declared.bytes}")
    opened = archive.extractfile(entry)
    assert opened is not None, "it is a regular file"
    digest = hashlib.sha256()
    chunks = _hashed_chunks(opened, digest.update)
    take(entry.name, entry.mode, chunks)
    for _ in chunks:  # content that `take` left unread counts in the digest
        pass
    if digest.hexdigest() != declared.sha256:
        raise DamagedArchiveError(f"{entry.name} is not what its manifest says")


def _hashed_chunks(opened: IO[bytes], update: Callable[[bytes], None]) -> Iterator[bytes]:
    while chunk := opened.read(CHUNK_BYTES):
        update(chunk)
        yield chunk


@contextmanager
def _as_damage() -> Iterator[None]:
    """Convert errors of the gzip and tar formats to DamagedArchiveError. Disk errors pass unchanged."""
    try:
        yield
    except gzip.BadGzipFile as error:
        words = "it is no tar.gz" if "Not a gzipped" in str(error) else f"its checksum is wrong ({error})"
        raise DamagedArchiveError(words) from None
    except EOFError:
        raise DamagedArchiveError("it ends too early") from None
    except (tarfile.TarError, zlib.error, ValueError, OverflowError) as error:
        raise DamagedArchiveError(str(error)) from None
