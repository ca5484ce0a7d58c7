"""The file of stored objects: its tables are made whole, and a file of another version is refused."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from common.sqlite_files import OlderDatabaseError, is_damaged
from common.state_files import RESPONSES_SCHEMA_VERSION
from gateway.storage import schema
from tests.support.stored import Clock, opened


def tables_of(path: Path) -> list[str]:
    """The names of the file's tables."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        return [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


@pytest.mark.parametrize("version", range(1, RESPONSES_SCHEMA_VERSION))
def test_a_file_of_before_the_first_release_is_refused_and_stays(tmp_path: Path, version: int) -> None:
    path = tmp_path / "responses.db"
    opened(tmp_path, Clock()).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    with pytest.raises(OlderDatabaseError) as caught:
        opened(tmp_path, Clock())
    assert str(caught.value) == (
        f"a Roundhouse of before 0.1.0 wrote it (schema version {version}, this one reads {RESPONSES_SCHEMA_VERSION}): "
        "run that one, or move the file away"
    )
    assert not is_damaged(caught.value)
    assert path.read_bytes() == before
    path.rename(tmp_path / "away.db")
    opened(tmp_path, Clock()).close()


def test_tables_that_are_not_all_made_leave_the_file_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "responses.db"
    with monkeypatch.context() as patch:
        patch.setattr(schema, "_TABLES", schema._TABLES + "CREATE TABLE completions (number INTEGER);\n")
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            opened(tmp_path, Clock())
    assert tables_of(path) == []
    opened(tmp_path, Clock()).close()
    assert "completions" in tables_of(path)
