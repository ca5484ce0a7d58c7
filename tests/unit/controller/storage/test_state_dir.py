"""The state folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller.schema.override import Override
from controller.schema.status import SCHEMA_VERSION
from controller.storage.state_dir import StateDir, StateError, StateLockedError, StoredState


def test_identity_and_secret_stay(tmp_path: Path) -> None:
    store = StateDir.open_folder(tmp_path / "state")
    first = (store.instance, store.secret)
    store.close()
    store = StateDir.open_folder(tmp_path / "state")
    assert (store.instance, store.secret) == first
    assert (tmp_path / "state" / "identity.json").stat().st_mode & 0o777 == 0o600
    assert first[1].hex() not in repr(store.identity)
    store.close()


def test_one_controller_per_folder(tmp_path: Path) -> None:
    store = StateDir.open_folder(tmp_path)
    with pytest.raises(StateLockedError, match="in use by process"):
        StateDir.open_folder(tmp_path)
    store.close()
    StateDir.open_folder(tmp_path).close()


def test_epochs_grow_and_memory_survives(tmp_path: Path) -> None:
    store = StateDir.open_folder(tmp_path, "abc")
    assert [store.next_epoch(), store.next_epoch()] == [1, 2]
    override = Override(model="m", action="load", at=1.0, params={"llama_server_n_ctx": None})
    store.save_memory(StoredState(paused=True, demand={"m": 3.0}, overrides={"m": override}))
    store.close()
    store = StateDir.open_folder(tmp_path)
    assert store.next_epoch() == 3
    memory = store.load_memory()
    assert memory.paused
    assert memory.overrides["m"] == override
    assert "llama_server_n_ctx" in memory.overrides["m"].params
    store.close()


def test_a_newer_or_damaged_file_is_refused_and_the_lock_given_back(tmp_path: Path) -> None:
    StateDir.open_folder(tmp_path).close()
    path = tmp_path / "identity.json"
    good = path.read_text()
    path.write_text(json.dumps(json.loads(good) | {"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(StateError, match="newer Roundhouse"):
        StateDir.open_folder(tmp_path)
    path.write_text(good[:10])
    with pytest.raises(StateError, match="damaged"):
        StateDir.open_folder(tmp_path)
    path.write_text(good)
    StateDir.open_folder(tmp_path).close()


@pytest.mark.parametrize("name", ["", "Upper", "has space", "x" * 17])
def test_an_instance_name_must_fit_into_labels(tmp_path: Path, name: str) -> None:
    if name:
        with pytest.raises(StateError, match="lower case letters and digits"):
            StateDir.open_folder(tmp_path, name)
    store = StateDir.open_folder(tmp_path, "fine")
    store.close()
    with pytest.raises(StateError, match="says instance fine"):
        StateDir.open_folder(tmp_path, "other")


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be used"):
        StateDir.open_folder(tmp_path / "file" / "state")
