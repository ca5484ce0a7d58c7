"""The file of stored objects, from version to version: what earlier gateways wrote stays."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from common.state_files import RESPONSES_SCHEMA_VERSION
from gateway.storage import schema
from gateway.storage.conversations.item_outline import Hit, fold_words
from gateway.storage.conversations.listing import ConversationSearch
from gateway.storage.conversations.records import ItemListForm
from gateway.storage.pagination import ListQuery
from gateway.storage.responses.records import HistoryBounds
from tests.support.stored import MIB, Clock, iid, opened, response, rid, stored


def objects_of(path: Path) -> list[tuple[str, str, str]]:
    """Type, name and statement of everything that the file's schema has."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        return sorted(db.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master").fetchall())


def write_first_version(path: Path) -> None:
    """A file as a gateway of schema version 1 left it, with two responses, one of them running."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.executescript(schema.SCHEMA_STEPS[0])
        for number, (name, previous, status) in enumerate((("a", None, "completed"), ("b", "a", "in_progress")), 1):
            made = stored(name, previous, status=status)
            row = (number, made.id, "t", "m", 7, 1_000_000.0, made.previous_id, status, made.items, made.items_size)
            db.execute(f"INSERT INTO responses VALUES ({', '.join('?' * len(row))})", row)
            db.execute("INSERT INTO documents VALUES (?, ?, ?, ?)", (number, made.response, made.input, made.output))
        db.execute("PRAGMA user_version = 1")


def test_each_version_has_its_step() -> None:
    assert len(schema.SCHEMA_STEPS) == RESPONSES_SCHEMA_VERSION


def test_an_old_file_keeps_its_rows_and_takes_new_ones(tmp_path: Path) -> None:
    write_first_version(tmp_path / "responses.db")
    database = opened(tmp_path, Clock())
    found = database.find_response("t", rid("a"))
    assert found is not None
    assert found.response == response("a")
    running = database.find_response("t", rid("b"))
    assert running is not None
    assert running.response["status"] == "failed"
    database.save_objects(stored("c", "a"))
    history = database.load_history("t", rid("c"), (), HistoryBounds(MIB))
    assert [item["id"] for item in history.items] == [iid(name, side) for name in "ac" for side in ("in", "out")]
    with database.transaction():
        database.conversations.create("t", "conv_a", {}, [])
    database.close()
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    opened(fresh, Clock()).close()
    assert objects_of(tmp_path / "responses.db") == objects_of(fresh / "responses.db")


def test_items_of_an_old_file_are_found_and_outlined(tmp_path: Path) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    item = {"id": "i", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Straße"}, image]}
    with contextlib.closing(sqlite3.connect(tmp_path / "responses.db", isolation_level=None)) as db:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        for step in schema.SCHEMA_STEPS[:2]:
            db.executescript(step)
        db.execute("INSERT INTO conversations VALUES (1, 'conv_a', 't', 'm', 7, 1000000, 'i', '{}')")
        row = (1, 1, "i", None, 7, json.dumps(item).encode())
        db.execute("INSERT INTO conversation_items VALUES (?, ?, ?, ?, ?, ?)", row)
        db.execute("PRAGMA user_version = 2")
    database = opened(tmp_path, Clock())
    found = database.listing.list_part("t", ConversationSearch(fold_words("strasse")), None, 9, lambda _: True).found
    assert [(each.item_id, each.hit) for each in found] == [("i", Hit("", "Straße", ""))]
    assert (found[0].conversation.active_item, found[0].conversation.settings) == ("i", None)
    for omits_media, part in (
        (False, image),
        (True, {"type": "input_image", "omitted": {"media_type": "image/png", "bytes": 4}}),
    ):
        listed = database.conversations.list_items("t", "conv_a", ListQuery(), ItemListForm(omits_media=omits_media))
        assert listed["data"][0]["content"][1] == part
    database.close()


def test_a_migration_that_does_not_come_to_its_end_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "responses.db"
    write_first_version(path)
    before = objects_of(path)
    broken = (*schema.SCHEMA_STEPS[:-1], schema.SCHEMA_STEPS[-1] + "CREATE TABLE completions (number INTEGER);\n")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "SCHEMA_STEPS", broken)
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            opened(tmp_path, Clock())
    assert objects_of(path) == before
    database = opened(tmp_path, Clock())
    assert database.find_response("t", rid("a")) is not None
    database.close()
