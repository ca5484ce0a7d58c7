"""The models folder: what gets into it, where, and with whose rights; and the records of downloads in it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.downloads import RECORDS_FOLDER, DownloadRecord, PlacedFile
from contract.errors import RoundhouseError
from tests.support.small_disk import no_space
from tests.support.transfers_harness import refused
from transfers.models_folder import OWN_FOLDER, ModelsFolder, RecordStore, make_download_id


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ModelsFolder]:
    (tmp_path / "models").mkdir()
    opened = ModelsFolder(tmp_path / "models", 0)
    opened.open()
    yield opened
    opened.close()


def make_partial(folder: ModelsFolder, content: bytes = b"content") -> Path:
    partial = folder.partial_path("dl", "file")
    partial.write_bytes(content)
    return partial


def check_refusal(folder: ModelsFolder, target: str, *words: str) -> None:
    """A file is not placed there, and stays where it was."""
    partial = make_partial(folder)
    with refused("models_file_conflict", *words):
        folder.place_file(partial, target)
    assert partial.read_bytes() == b"content"


def test_a_file_gets_into_its_place_whole(folder: ModelsFolder) -> None:
    partial = make_partial(folder)
    placed = folder.place_file(partial, "u/r/m.gguf")
    assert (folder.path / "u/r/m.gguf").read_bytes() == b"content"
    assert (placed.st_size, partial.exists()) == (7, False)
    found = folder.find_file("u/r/m.gguf")
    assert found is not None
    assert found.st_ino == placed.st_ino


OUTSIDE = ("../m", "/etc/m", "u/../../m", "u//m", "", ".", "u/.")
ODD = ("a\\..\\m", "line\nfeed", "null\0", "turned\u202e", "x" * 256, "/".join(["deep"] * 250))
OWN = (f"{OWN_FOLDER}/lock", f"{OWN_FOLDER}/records/x")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        *((target, "cannot be a path of a model") for target in (*OUTSIDE, *ODD)),
        *((target, "folder of the downloads") for target in OWN),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(folder: ModelsFolder, target: str, words: str) -> None:
    check_refusal(folder, target, words)
    for act in (folder.find_file, folder.remove_file):
        with refused("models_file_conflict", words):
            act(target)
    assert not (folder.path.parent / "m").exists()


def test_a_link_in_the_way_is_not_followed(folder: ModelsFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "m.gguf").write_bytes(b"theirs")
    (folder.path / "u").symlink_to(outside)
    (folder.path / "r").mkdir()
    (folder.path / "r" / "m.gguf").symlink_to(outside / "m.gguf")
    for target in ("u/m.gguf", "u/new.gguf", "r/m.gguf"):
        check_refusal(folder, target)
        with pytest.raises((RoundhouseError, OSError)), folder.open_file(target):
            pass
        if target != "r/m.gguf":
            with pytest.raises(RoundhouseError):
                folder.remove_file(target)
    assert [path.name for path in outside.iterdir()] == ["m.gguf"]
    assert (outside / "m.gguf").read_bytes() == b"theirs"


def test_nothing_is_written_over(folder: ModelsFolder) -> None:
    (folder.path / "m.gguf").write_bytes(b"by hand")
    (folder.path / "file").touch()
    check_refusal(folder, "m.gguf")
    check_refusal(folder, "file/m.gguf")
    assert (folder.path / "m.gguf").read_bytes() == b"by hand"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_nothing_is_written_over_without_links(
    number: int, folder: ModelsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    folder.place_file(make_partial(folder), "u/m.gguf")
    assert (folder.path / "u/m.gguf").read_bytes() == b"content"
    check_refusal(folder, "u/m.gguf", "is there already")


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o2775])
def test_what_is_made_has_the_rights_of_the_models_folder(folder: ModelsFolder, mode: int) -> None:
    folder.path.chmod(mode)
    folder.place_file(make_partial(folder), "u/r/m.gguf")
    for name in ("u", "u/r"):
        assert stat.S_IMODE((folder.path / name).stat().st_mode) == mode & 0o777
    assert stat.S_IMODE((folder.path / "u/r/m.gguf").stat().st_mode) == mode & 0o666


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give files away")
def test_what_is_made_has_the_owner_of_the_models_folder(folder: ModelsFolder) -> None:
    os.chown(folder.path, 4321, 8765)
    folder.place_file(make_partial(folder), "u/r/m.gguf")
    for name in ("u", "u/r", "u/r/m.gguf"):
        status = (folder.path / name).stat()
        assert (status.st_uid, status.st_gid) == (4321, 8765), name


def test_a_removed_file_takes_its_empty_folders_along(folder: ModelsFolder) -> None:
    folder.place_file(make_partial(folder), "u/r/a/m.gguf")
    (folder.path / "u" / "mine").touch()
    folder.remove_file("u/r/a/m.gguf")
    assert [path.name for path in (folder.path / "u").iterdir()] == ["mine"]


def test_one_program_has_the_folder(folder: ModelsFolder) -> None:
    with pytest.raises(BlockingIOError):
        ModelsFolder(folder.path, 0).open()
    folder.close()
    other = ModelsFolder(folder.path, 0)
    other.open()
    other.close()


def test_what_is_to_stay_free_is_not_for_downloads(folder: ModelsFolder) -> None:
    assert folder.measure_free() > 0
    assert ModelsFolder(folder.path, 1 << 60).measure_free() == 0


PLACED = PlacedFile(path="u/r/m.gguf", size=1, sha256="a" * 64, mtime_ns=1)


def make_record(reference: str = "hf:u/r") -> DownloadRecord:
    name = make_download_id(reference, include_pickle=False)
    return DownloadRecord(id=name, reference=reference, placed=[PLACED], created_at=1.0)


def test_records_are_read_back(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "records")
    assert store.read_all() == []
    store.write(make_record())
    store.write(make_record("hf:u/s"))
    store.write(make_record())
    assert {each.reference for each in RecordStore(tmp_path / "records").read_all()} == {"hf:u/r", "hf:u/s"}
    store.remove(make_record().id)
    store.remove(make_record().id)
    assert store.read_all() == [make_record("hf:u/s")]


def test_a_record_is_on_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RecordStore(tmp_path / "records")
    store.read_all()
    sync, synced = os.fsync, list[tuple[str, bool]]()

    def note(descriptor: int) -> None:
        synced.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), path.exists()))
        sync(descriptor)

    path = tmp_path / "records" / f"{make_record().id}.json"
    monkeypatch.setattr(os, "fsync", note)
    store.write(make_record())
    assert synced == [(str(path.with_name(f".{path.name}.new")), False), (str(path.parent), True)]


def test_what_is_no_record_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = RecordStore(tmp_path)
    store.write(make_record())
    text = make_record().model_dump_json()
    (tmp_path / "dl_broken.json").write_text(text[:20])
    (tmp_path / f"dl_{'0' * 24}.json").write_text(text)
    (tmp_path / ".dl_x.json.new").write_text("half")
    assert store.read_all() == [make_record()]
    assert not (tmp_path / ".dl_x.json.new").exists()
    assert "dl_broken.json" in caplog.text


def test_the_same_order_has_the_same_id() -> None:
    assert make_download_id("a", include_pickle=False) == make_download_id("a", include_pickle=False)
    assert make_download_id("a", include_pickle=False) != make_download_id("a", include_pickle=True)


def test_whoever_reads_the_models_reads_the_records(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    models.chmod(0o750)
    if os.geteuid() == 0:
        os.chown(models, 4321, 8765)
    folder = ModelsFolder(models, 0)
    folder.open()
    try:
        store = RecordStore(models / RECORDS_FOLDER)
        store.read_all()
        store.write(make_record())
    finally:
        folder.close()
    record = models / RECORDS_FOLDER / f"{make_record().id}.json"
    for path, mode in ((record, 0o640), (record.parent, 0o750), (record.parent.parent, 0o750)):
        status = path.stat()
        assert stat.S_IMODE(status.st_mode) == mode, path
        assert (status.st_uid, status.st_gid) == (models.stat().st_uid, models.stat().st_gid), path
    assert stat.S_IMODE(folder.partial_path("dl", "f").parent.stat().st_mode) == 0o700


def test_a_full_disk_keeps_nobody_out_of_the_folder(folder: ModelsFolder) -> None:
    folder.close()
    with no_space():
        folder.open("the next one")
    folder.close()
    folder.open("a longer one")
    folder.close()
    folder.open("short")
    assert folder.read_holder() == "short"
