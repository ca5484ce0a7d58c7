"""The file of an export: whole or refused, and finished from wherever an earlier run ended."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.cli.rag.export_file import (
    ExportDescription,
    ExportedChunking,
    ExportedDocument,
    ExportError,
    ExportReader,
    ExportWriter,
)
from tests.support.small_disk import mount_small_disk

DESCRIPTION = ExportDescription(version="1", tenant="alice")
ORIGINALS = {hashlib.sha256(content).hexdigest(): content for content in (b"A fox.", b"x" * 512, b"y" * 1300)}
DOCUMENTS = [
    ExportedDocument(
        id=f"d{number}",
        sha256=sha256,
        bytes=len(content),
        filename=None,
        declared_media_type="text/plain",
        metadata={"n": number},
        chunking=ExportedChunking(max_tokens=400, overlap_tokens=60),
        created_at=1,
    )
    for number, (sha256, content) in enumerate(ORIGINALS.items())
]
LINES = b"".join(document.model_dump_json().encode() + b"\n" for document in DOCUMENTS)


async def parts_of(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 400):
        yield content[start : start + 400]


async def add_originals(writer: ExportWriter) -> None:
    for sha256, content in ORIGINALS.items():
        if not writer.has_original(sha256):
            assert await writer.add_original(sha256, len(content), parts_of(content))


async def write_export(path: Path) -> None:
    with ExportWriter(path, DESCRIPTION) as writer:
        await add_originals(writer)
        writer.finish(io.BytesIO(LINES))


async def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "e.tar"
    await write_export(path)
    with ExportReader(path) as reader:
        assert reader.description == DESCRIPTION
        assert list(reader.read_documents()) == DOCUMENTS
        for sha256, content in ORIGINALS.items():
            assert reader.is_original_whole(sha256)
            assert b"".join([part async for part in reader.read_original(sha256)]) == content
        assert not reader.is_original_whole("00" * 32)
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["export.json", *(f"originals/{each}" for each in ORIGINALS), "documents.jsonl"]
    assert [each.name for each in tmp_path.iterdir()] == ["e.tar"]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_an_export_goes_on_from_wherever_it_was_killed(tmp_path: Path) -> None:
    path, partial = tmp_path / "e.tar", tmp_path / "e.tar.partial"
    await write_export(path)
    whole = path.read_bytes()
    for length in (0, *range(1024, len(whole) + 1, 128)):
        partial.write_bytes(whole[:length])
        await write_export(path)
        assert path.read_bytes() == whole, length
        assert not partial.exists()


async def test_damage_in_an_unfinished_file_is_written_anew(tmp_path: Path) -> None:
    path, partial = tmp_path / "e.tar", tmp_path / "e.tar.partial"
    await write_export(path)
    whole = path.read_bytes()
    partial.write_bytes(whole[: whole.index(b"x" * 512)] + bytes(512) + whole[whole.index(b"x" * 512) + 512 :])
    await write_export(path)
    assert path.read_bytes() == whole


async def test_content_that_is_not_the_one_expected_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "e.tar"
    sha256, content = next(iter(ORIGINALS.items()))

    async def break_off() -> AsyncIterator[bytes]:
        yield content[:1]
        raise ConnectionError

    with ExportWriter(path, DESCRIPTION) as writer:
        for other in (content + b"!", content[:-1], b"B fox."):
            assert not await writer.add_original(sha256, len(content), parts_of(other))
        with pytest.raises(ConnectionError):
            await writer.add_original(sha256, len(content), break_off())
        assert (writer.originals, writer.has_original(sha256)) == (0, False)
        await add_originals(writer)
        writer.finish(io.BytesIO(LINES))
    with ExportReader(path) as reader:
        assert all(map(reader.is_original_whole, ORIGINALS))


async def test_another_tenants_unfinished_export_stays(tmp_path: Path) -> None:
    path, partial = tmp_path / "e.tar", tmp_path / "e.tar.partial"
    with ExportWriter(path, DESCRIPTION):
        before = partial.read_bytes()
        with pytest.raises(ExportError, match="another export writes"):
            ExportWriter(path, DESCRIPTION)
    with pytest.raises(ExportError, match=r"is of the tenant alice: finish that export, or delete the file"):
        ExportWriter(path, DESCRIPTION.model_copy(update={"tenant": "bob"}))
    assert partial.read_bytes() == before
    partial.write_bytes(b"a file of somebody")
    with pytest.raises(ExportError, match="is no unfinished export: move it away"):
        ExportWriter(path, DESCRIPTION)
    assert partial.read_bytes() == b"a file of somebody"
    with pytest.raises(ExportError, match="cannot be written"):
        ExportWriter(tmp_path / "none" / "e.tar", DESCRIPTION)


async def test_a_full_disk_loses_nothing_that_was_written(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 64) as disk:
        path = disk.folder / "e.tar"
        with ExportWriter(path, DESCRIPTION) as writer:
            await add_originals(writer)
            large = b"z" * 100_000
            with pytest.raises(ExportError, match="the same command goes on"):
                await writer.add_original(hashlib.sha256(large).hexdigest(), len(large), parts_of(large))
            assert writer.originals == 3
        await write_export(path)
        with ExportReader(path) as reader:
            assert list(reader.read_documents()) == DOCUMENTS


async def test_what_is_no_whole_export_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.tar"
    await write_export(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:2048])
    with pytest.raises(ExportError, match="is not complete: run `roundhouse rag export` again"):
        ExportReader(path)
    newer = DESCRIPTION.model_copy(update={"schema_version": 2, "version": "9.9"})
    with ExportWriter(tmp_path / "n.tar", newer) as writer:
        writer.finish(io.BytesIO(b""))
    with pytest.raises(ExportError, match=r"a newer Roundhouse \(9.9\)"):
        ExportReader(tmp_path / "n.tar")
    for content in (b"", b"text", whole[1024:]):
        path.write_bytes(content)
        with pytest.raises(ExportError, match="is no export"):
            ExportReader(path)
    with pytest.raises(ExportError, match="No such file"):
        ExportReader(tmp_path / "none.tar")
    with ExportWriter(path, DESCRIPTION) as writer:
        writer.finish(io.BytesIO(LINES + b'{"id": 1}\n'))
    with ExportReader(path) as reader, pytest.raises(ExportError, match=r"line 4 of documents.jsonl is damaged: id"):
        list(reader.read_documents())
