"""The tables of chat completions: what is kept, in which order it is listed, and by what it is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assistant.storage.database import StateDatabase
from assistant.storage.pagination import ListQuery
from assistant.storage.records import CompletionFilter, StoredCompletion, describe_completion, list_messages
from contract.errors import RoundhouseError
from tests.support.stored import HOUR, Clock, opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path, clock: Clock) -> Iterator[StateDatabase]:
    made = opened(tmp_path, clock)
    yield made
    made.close()


def completion(name: str, tenant: str = "t", model: str = "m", said: str = "yes", **metadata: str) -> StoredCompletion:
    fields = json.dumps({"id": name, "said": said}).encode()
    return StoredCompletion(name, tenant, model, 7, metadata, fields, b'[{"role": "user", "content": "Hi"}]')


def listed(database: StateDatabase, *, sees: str = "mn", **query: Any) -> tuple[list[str], bool]:
    """Ids of a page, and whether there are more."""
    wanted = CompletionFilter(query.pop("model", None), list(query.pop("metadata", {}).items()))
    page_query = ListQuery(**{"is_ascending": True, **query})
    page = database.completions.list_page("t", wanted, page_query, lambda model: model in sees)
    return [each["id"] for each in page["data"]], page["has_more"]


def test_pages_hold_what_is_asked_for_and_seen(database: StateDatabase) -> None:
    database.save_objects(completion("a", odd="1", n="1"), completion("b", tenant="u", odd="1"))
    database.save_objects(completion("c", model="n", odd="1"), completion("d", odd="0", n="1"), completion("e"))
    assert listed(database) == (["a", "c", "d", "e"], False)
    assert listed(database, sees="m", limit=2) == (["a", "d"], True)
    assert listed(database, is_ascending=False, after="e", limit=2) == (["d", "c"], True)
    assert listed(database, model="n") == (["c"], False)
    assert listed(database, metadata={"odd": "1"}) == (["a", "c"], False)
    assert listed(database, metadata={"odd": "1", "n": "1"}) == (["a"], False)
    for after in ("z", "b"):
        with pytest.raises(RoundhouseError, match="`after`"):
            listed(database, after=after)
    with pytest.raises(RoundhouseError, match="`after`"):
        listed(database, sees="m", after="c")


def test_a_completion_goes_with_its_pairs(database: StateDatabase, clock: Clock) -> None:
    database.save_objects(*(completion(name, n=name) for name in "abc"))
    with database.transaction():
        assert database.completions.delete("t", "a")
        assert not database.completions.delete("t", "a")
        assert not database.completions.delete("u", "b")
        clock.now += 0.6 * HOUR
        updated = database.completions.update_metadata("t", "b", {"m": "x"})
        assert updated == {"id": "b", "said": "yes", "metadata": {"m": "x"}}
    clock.now += 0.6 * HOUR
    assert listed(database) == (["b"], False)
    assert database.completions.load_messages("t", "c") == []
    database.sweep_expired()
    assert database._db.execute("SELECT key, value FROM completion_metadata").fetchall() == [("m", "x")]
    assert database.count_stored().completions == 1


def test_numbers_go_on_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    for name in ("a", "b"):
        database = opened(tmp_path, clock)
        database.save_objects(completion(name))
        assert listed(database)[0][-1] == name
        database.close()


def test_what_is_told_of_a_completion_and_its_messages() -> None:
    told = describe_completion({"id": "x", "service_tier": "flex"}, {"seed": 7, "user": "Ann", "top_k": 3}, "req_1")
    assert (told["seed"], told["input_user"], told["top_p"], told["request_id"]) == (7, "Ann", None, "req_1")
    assert (told["id"], told["service_tier"], "top_k" in told) == ("x", "flex", False)
    parts = [{"type": "text", "text": "x"}]
    messages = list_messages("c", [{"role": "user", "content": "x"}, {"role": "user", "content": parts, "id": "y"}])
    assert [each["id"] for each in messages] == ["c-0", "c-1"]
    assert [(each["content"], each["content_parts"]) for each in messages] == [("x", None), (None, parts)]
