"""State folders that earlier commits wrote are read by this one, exactly, or refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.sqlite_files import OlderDatabaseError
from tests.support.goldens.product import RESPONSES_NAME
from tests.support.goldens.state_folders import FOLDERS, copy_of, read_controller, read_gateway

DAYS = sorted(path.name for path in FOLDERS.iterdir())
REFUSED, *READ = DAYS
"""The day whose stored responses are refused, and those whose are read."""


def expected(day: str) -> Any:
    """What the code of that day read."""
    return json.loads((FOLDERS / day / "expected.json").read_text())


@pytest.mark.parametrize("day", DAYS)
def test_what_a_controller_kept_is_read(day: str, tmp_path: Path) -> None:
    assert read_controller(copy_of(FOLDERS / day / "controller", tmp_path / "state")) == expected(day)["controller"]


@pytest.mark.parametrize("day", READ)
def test_what_a_gateway_kept_is_read(day: str, tmp_path: Path) -> None:
    then = expected(day)["gateway"]
    made = read_gateway(copy_of(FOLDERS / day / "gateway", tmp_path / "state"), then["order"])
    assert made == then


def test_what_a_gateway_of_before_the_first_release_kept_is_refused_and_stays(tmp_path: Path) -> None:
    folder = copy_of(FOLDERS / REFUSED / "gateway", tmp_path / "state")
    with pytest.raises(OlderDatabaseError, match=r"before 0\.1\.0 wrote it \(schema version 1, .* move the file away"):
        read_gateway(folder, [])
    assert (folder / RESPONSES_NAME).read_bytes() == (FOLDERS / REFUSED / "gateway" / RESPONSES_NAME).read_bytes()
    assert [path.name for path in folder.iterdir()] == [RESPONSES_NAME]


def test_the_folders_are_small_and_whole() -> None:
    assert DAYS
    files = [path for path in FOLDERS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 160_000 * len(DAYS)
    for day in DAYS:
        then = expected(day)["controller"]
        # Each kind of what is kept is there at least once, or the tests above would compare nothing.
        assert all(then[kind] for kind in ("definitions", "keys", "observed_memory", "journal", "replicas"))
        kept = ("demand", "loaded_once", "overrides", "ready_since", "rested")
        assert all(then["memory"][kind] for kind in kept)
        assert any(override["params"] for override in then["memory"]["overrides"].values())
        assert {each["statement"] for each in then["wanted"].values()} == {"file", "autoload", "load", "unload"}
    assert all(expected(day)["gateway"]["history"] for day in READ)
