"""The records of downloads, which the controller reads."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from controller.schema.downloads import RECORDS_FOLDER, DownloadRecord, PlacedFile
from transfers.folder.models_folder import ModelsFolder
from transfers.folder.records import RecordStore, make_download_id

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
