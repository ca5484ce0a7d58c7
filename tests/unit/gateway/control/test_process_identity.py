"""Which gateway a process is, by its state folder."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gateway.control.process_identity import take_identity
from tests.support.small_disk import mount_small_disk


def test_the_id_stays_and_starts_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert take_identity(folder).epoch == 0
    assert not folder.exists(), "a gateway that stores nothing has none"
    folder.mkdir()
    first, second = take_identity(folder), take_identity(folder)
    assert (first.epoch, second.epoch) == (1, 2)
    assert first.id == second.id
    assert take_identity(tmp_path).id != first.id
    assert (folder / "gateway.json").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_changes_no_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mount_small_disk(tmp_path / "state", 64) as disk:
        epochs, ids = [], set()
        for step in (disk.free, disk.free, disk.fill, disk.fill, disk.free):
            step()
            process = take_identity(disk.folder)
            epochs.append(process.epoch)
            ids.add(process.id)
        assert (epochs, len(ids)) == ([1, 2, 3, 4, 5], 1)
        assert [path.name for path in disk.folder.iterdir()] == ["gateway.json"]
    assert not caplog.text


def test_a_damaged_file_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "gateway.json").write_text('{"id": "gw-1"}')
    with caplog.at_level(logging.WARNING):
        first, second = take_identity(tmp_path), take_identity(tmp_path)
    assert (first.id, first.epoch, second.epoch) == (second.id, 1, 2)
    assert caplog.text.count("gateway.json is damaged") == 1


def test_without_a_folder_each_start_is_a_gateway_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "state"
    folder.write_text("a file")
    with caplog.at_level(logging.WARNING):
        first, second = take_identity(folder), take_identity(folder)
    assert (first.epoch, second.epoch) == (0, 0)
    assert first.id != second.id
    assert first.name == first.id
    assert "gateway.json cannot be written" in caplog.text
    assert "Set ROUNDHOUSE_STATE" in caplog.text
