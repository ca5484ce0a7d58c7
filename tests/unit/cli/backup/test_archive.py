"""An archive is restored whole or refused, whatever was done to it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.backup.manifest import (
    BackupError,
    DamagedArchiveError,
    ForeignArchiveError,
    Manifest,
    OtherVersionError,
    parse_member,
)
from cli.backup.snapshot import verify_archive
from tests.support.backups import ORIGINALS, add_documents, make_installation

EVIL_NAMES = ("../evil", "/etc/passwd", "state/../../evil", "desired-state/a/../b.yaml", "state/lock", "a", "")


def back_up(folder: Path, *, documents: bool = False) -> bytes:
    installation = make_installation(folder / "site")
    if documents:
        add_documents(installation.state)
    installation.back_up(folder / "b.tar.gz")
    return (folder / "b.tar.gz").read_bytes()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return back_up(tmp_path_factory.mktemp("backup"))


def members_of(archive: bytes) -> dict[str, bytes]:
    """What it holds."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {entry.name: opened.extractfile(entry).read() for entry in opened}  # type: ignore[union-attr]


def pack(members: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> io.BytesIO:
    """An archive of these; all but the manifest are of this kind."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            if name != "manifest.json":
                entry.type, entry.linkname = kind, "/etc/passwd"
            opened.addfile(entry, io.BytesIO(content))
    packed.seek(0)
    return packed


def with_manifest(archive: bytes, **changes: Any) -> io.BytesIO:
    """The same archive with another manifest."""
    members = members_of(archive)
    members["manifest.json"] = json.dumps(json.loads(members["manifest.json"]) | changes).encode()
    return pack(members)


def test_a_whole_one_is_believed(archive: bytes) -> None:
    manifest = verify_archive(io.BytesIO(archive))
    assert set(manifest.members) == set(members_of(archive)) - {"manifest.json"}
    state = {f"state/{name}" for name in ("identity", "memory", "desired", "observed-memory")}
    others = {"state/journal.db", "responses/responses.db", "desired-state/models.yaml"}
    assert set(manifest.members) == {f"{name}.json" for name in state} | others


def test_its_file_says_nothing_of_the_machine(archive: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        assert {(entry.uid, entry.gid, entry.uname) for entry in opened} == {(0, 0, "")}


def test_a_torn_one_is_refused_wherever_it_is_torn(archive: bytes) -> None:
    for length in range(len(archive)):
        with pytest.raises(DamagedArchiveError):
            verify_archive(io.BytesIO(archive[:length]))


@given(st.data())
def test_a_flipped_bit_changes_nothing_that_is_believed(archive: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(archive) * 8 - 1))
    flipped = bytearray(archive)
    flipped[position // 8] ^= 1 << position % 8
    try:
        manifest = verify_archive(io.BytesIO(flipped))
    except BackupError:
        return
    assert manifest == verify_archive(io.BytesIO(archive))  # gzip's own header, which says nothing


# The time of a gzip header would be a part of the test's name, and the processes of pytest-xdist compare names.
@pytest.mark.parametrize(
    "content",
    [b"models: {}", gzip.compress(b"a log", mtime=0), gzip.compress(b"", mtime=0), b"PK\x03\x04"],
    ids=["text", "gzip", "empty gzip", "zip"],
)
def test_what_is_no_backup_is_refused(content: bytes) -> None:
    with pytest.raises(BackupError):
        verify_archive(io.BytesIO(content))


@pytest.mark.parametrize(
    "field", ["schema_version", "state_schema_version", "responses_schema_version", "catalog_schema_version"]
)
def test_a_newer_one_is_refused_in_words(archive: bytes, field: str) -> None:
    known = Manifest.model_fields[field].default
    words = rf"a newer Roundhouse wrote it \(9.9; {field} {known + 1}, this one reads up to {known}\)"
    with pytest.raises(OtherVersionError, match=words):
        verify_archive(with_manifest(archive, version="9.9", **{field: known + 1}))


@pytest.mark.parametrize(
    ("field", "lowest"), [("schema_version", 1), ("responses_schema_version", 4), ("catalog_schema_version", 2)]
)
def test_one_of_before_the_first_release_is_refused_in_words(archive: bytes, field: str, lowest: int) -> None:
    words = rf"a Roundhouse of before 0.1.0 wrote it \(0.0.9; {field} {lowest - 1}, this one reads from {lowest} on\)"
    with pytest.raises(OtherVersionError, match=words):
        verify_archive(with_manifest(archive, version="0.0.9", **{field: lowest - 1}))
    verify_archive(with_manifest(archive, **{field: lowest}))


@pytest.mark.parametrize(
    "changes", [{"format": "tar"}, {"members": {"state/x": {}}}, {"members": []}, {"instance": None}]
)
def test_another_programs_manifest_is_refused(archive: bytes, changes: dict[str, Any]) -> None:
    with pytest.raises(ForeignArchiveError):
        verify_archive(with_manifest(archive, **changes))


@pytest.mark.parametrize("name", EVIL_NAMES)
def test_no_name_leads_out_of_the_folders(archive: bytes, name: str) -> None:
    with pytest.raises(ForeignArchiveError):
        parse_member(name)
    members = members_of(archive)
    manifest = json.loads(members["manifest.json"])
    manifest["members"][name] = manifest["members"]["state/memory.json"]
    content = {"manifest.json": json.dumps(manifest).encode(), name: members["state/memory.json"]}
    with pytest.raises(ForeignArchiveError):
        verify_archive(pack(content))
    with pytest.raises(BackupError):  # and where the manifest does not name it
        verify_archive(pack(members | {name: b""}))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_nothing_but_files_is_believed_and_each_is_needed(archive: bytes, kind: bytes) -> None:
    members = members_of(archive)
    with pytest.raises(BackupError):
        verify_archive(pack(members, kind))
    del members["state/journal.db"]
    with pytest.raises(DamagedArchiveError, match=r"state/journal.db of its manifest is missing"):
        verify_archive(pack(members))


@pytest.fixture(scope="module")
def with_documents(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return back_up(tmp_path_factory.mktemp("documents"), documents=True)


def test_earlier_versions_refuse_documents_and_read_the_rest(archive: bytes, with_documents: bytes) -> None:
    assert verify_archive(io.BytesIO(archive)).schema_version == 1
    manifest = verify_archive(io.BytesIO(with_documents))
    assert manifest.schema_version == 2
    assert manifest.documents is not None
    assert (manifest.documents.originals, manifest.documents.bytes) == (3, sum(map(len, ORIGINALS.values())))
    assert set(manifest.members) - set(verify_archive(io.BytesIO(archive)).members) == {"documents/catalog.db"}


def test_each_original_is_needed_in_its_place(with_documents: bytes) -> None:
    members = members_of(with_documents)
    names = [name for name in members if name.startswith("documents/originals/")]
    assert names == sorted(f"documents/originals/{sha256}" for sha256 in ORIGINALS)
    for name in names:
        with pytest.raises(DamagedArchiveError, match=r"it has 2 of its 3 originals"):
            verify_archive(pack({other: content for other, content in members.items() if other != name}))
        with pytest.raises(DamagedArchiveError, match="is not what its manifest says"):
            verify_archive(pack(members | {name: b"?" * len(members[name])}))
    with pytest.raises(ForeignArchiveError, match="in a wrong place"):
        verify_archive(pack({name: members[name] for name in [*members][: -len(names)] + names[::-1]}))
    with pytest.raises(ForeignArchiveError, match="is not one of Roundhouse: documents"):
        verify_archive(with_manifest(with_documents, documents=None))
