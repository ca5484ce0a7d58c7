"""The state folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from contract.downloads import DownloadRecord
from contract.override import Override
from contract.routing import GatewayProcess
from contract.status import SCHEMA_VERSION
from controller.state_dir import StateDir, StateError, StateLockedError, StoredState, find_by_reference
from tests.support.small_disk import mount_small_disk, no_space


def test_identity_and_secret_stay(tmp_path: Path) -> None:
    store = StateDir.open_folder(tmp_path / "state")
    first = (store.instance, store.secret)
    store.close()
    store = StateDir.open_folder(tmp_path / "state")
    assert (store.instance, store.secret) == first
    assert (tmp_path / "state" / "identity.json").stat().st_mode & 0o777 == 0o600
    assert first[1].hex() not in repr(store.identity)
    store.close()


def test_one_controller_per_folder_whose_epochs_grow_and_memory_survives(tmp_path: Path) -> None:
    store = StateDir.open_folder(tmp_path, "abc")
    with pytest.raises(StateLockedError, match="in use by process"):
        StateDir.open_folder(tmp_path)
    assert [store.next_epoch(1.0), store.next_epoch(1.0)] == [1, 2]
    override = Override(model="m", action="load", at=1.0, params={"llama_server_n_ctx": None})
    store.save_memory(StoredState(paused=True, demand={"m": 3.0}, overrides={"m": override}))
    store.close()
    store = StateDir.open_folder(tmp_path)
    assert store.next_epoch(1.0) == 3
    memory = store.load_memory()
    assert (memory.paused, memory.overrides) == (True, {"m": override})
    assert "llama_server_n_ctx" in memory.overrides["m"].params
    store.close()


def test_who_was_connected_last_is_known_again_unless_the_file_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, process = StateDir.open_folder(tmp_path), GatewayProcess(id="gw-a", epoch=3, pid=7, host="here")
    assert store.load_gateway() is None
    store.save_gateway(process)
    assert store.load_gateway() == process
    store.save_gateway(None)
    assert store.load_gateway() is None
    (tmp_path / "last-gateway.json").write_text("{")
    assert store.load_gateway() is None, "a controller starts without it"
    assert "last-gateway.json is damaged" in caplog.text
    store.close()


def test_a_full_disk_takes_another_epoch_and_another_holder(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "state", kib=32) as disk:
        store = StateDir.open_folder(disk.folder)
        assert store.next_epoch(1.0) == 1
        store.close()
        (disk.folder / "lock").write_text("1234567890\n")
        disk.fill()
        for epoch in (2, 3):
            store = StateDir.open_folder(disk.folder)
            assert store.next_epoch(1.0) == epoch
            assert store.is_epoch_saved
            with pytest.raises(StateLockedError, match=f"in use by process {os.getpid()}$"):
                StateDir.open_folder(disk.folder)
            with pytest.raises(OSError, match="No space left"):
                store.save_memory(StoredState(paused=True))
            store.close()


def test_an_epoch_that_cannot_be_stored_is_greater_than_every_earlier_one(tmp_path: Path) -> None:
    store = StateDir.open_folder(tmp_path)
    assert store.next_epoch(1.0) == 1
    with no_space():
        first = store.next_epoch(1_700_000_000.0)
        was_saved = store.is_epoch_saved or store.save_epoch()
        assert store.next_epoch(1_700_000_000.0) >= first == 1_700_000_000_000
    assert store.save_epoch()
    assert (was_saved, store.is_epoch_saved) == (False, True)
    assert store.next_epoch(1.0) > first
    store.close()


def test_an_epoch_whose_file_was_deleted_is_greater_than_every_earlier_one(tmp_path: Path) -> None:
    for _ in range(3):
        store = StateDir.open_folder(tmp_path)
        before = store.next_epoch(1_700_000_000.0)
        store.close()
    (tmp_path / "epoch.json").unlink()
    store = StateDir.open_folder(tmp_path)
    after = store.next_epoch(1_700_000_000.0)
    assert (before, after) == (3, 1_700_000_000_000)
    assert store.next_epoch(1_700_000_000.0) == after + 1
    store.close()


def test_a_folder_without_identity_gets_none_on_a_full_disk(tmp_path: Path) -> None:
    with no_space(), pytest.raises(StateError, match=r"identity\.json cannot be written: File too large"):
        StateDir.open_folder(tmp_path)
    StateDir.open_folder(tmp_path).close()


def test_a_newer_or_damaged_file_is_refused_and_the_lock_given_back(tmp_path: Path) -> None:
    StateDir.open_folder(tmp_path).close()
    path = tmp_path / "identity.json"
    good = path.read_text()
    path.write_text(json.dumps(json.loads(good) | {"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(StateError, match="newer Roundhouse"):
        StateDir.open_folder(tmp_path)
    for damaged in (good[:10], "[" * 100_000):
        path.write_text(damaged)
        with pytest.raises(StateError, match="damaged"):
            StateDir.open_folder(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StateError, match=r"identity\.json cannot be read: Is a directory"):
        StateDir.open_folder(tmp_path)
    path.rmdir()
    path.write_text(good)
    StateDir.open_folder(tmp_path).close()


@pytest.mark.parametrize("secret", ["", "zz", "abc", 7])
def test_a_secret_that_is_no_hex_is_refused_and_not_told(tmp_path: Path, secret: object) -> None:
    path = tmp_path / "identity.json"
    path.write_text(json.dumps({"schema_version": SCHEMA_VERSION, "instance": "i", "secret": secret}))
    with pytest.raises(StateError, match=r"damaged \(1 validation error for Identity\nsecret\n") as caught:
        StateDir.open_folder(tmp_path)
    assert "input_value" not in str(caught.value)


def test_other_files_that_cannot_be_read_and_a_folder_that_cannot_be_made_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be used"):
        StateDir.open_folder(tmp_path / "file" / "state")
    store = StateDir.open_folder(tmp_path)
    for name in ("epoch.json", "memory.json"):
        (tmp_path / name).mkdir()
    with pytest.raises(StateError, match=r"epoch\.json cannot be read: Is a directory"):
        store.next_epoch(1.0)
    with pytest.raises(StateError, match=r"memory\.json cannot be read: Is a directory"):
        store.load_memory()
    store.close()


@pytest.mark.parametrize("name", ["", "Upper", "has space", "x" * 17])
def test_an_instance_name_must_fit_into_labels(tmp_path: Path, name: str) -> None:
    if name:
        with pytest.raises(StateError, match="lower case letters and digits"):
            StateDir.open_folder(tmp_path, name)
    store = StateDir.open_folder(tmp_path, "fine")
    store.close()
    with pytest.raises(StateError, match="says instance fine"):
        StateDir.open_folder(tmp_path, "other")


def test_a_download_is_found_by_its_revision_also_while_nothing_of_it_is_in_place() -> None:
    begun = DownloadRecord(id="dl_1", reference="hf:o/r", created_at=1.0, wanted="hf:o/r@1")
    renewed = DownloadRecord(id="dl_2", reference="hf:o/r", created_at=2.0, pinned="hf:o/r@2", wanted="hf:o/r@3")
    records = [begun, renewed]
    found = [find_by_reference(records, text) for text in ("hf:o/r@1", "hf:o/r@2", "hf:o/r@3", "hf:o/r", "?")]
    assert found == [begun, renewed, None, renewed, None]
