"""The database of stored responses: what is kept, for whom, for how long, and how much of it."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assistant.storage import database as state_database
from assistant.storage.database import FREE_PAGES, RESTARTED, StateDatabase
from assistant.storage.records import HistoryBounds
from assistant.storage.table_file import DatabaseFullError
from common.sqlite_files import RESPONSES_SCHEMA_VERSION, NewerDatabaseError, OlderDatabaseError, is_damaged
from contract.errors import RoundhouseError
from tests.support.outcomes import error_of, present
from tests.support.stored import HOUR, MIB, Clock, iid, message, opened, response, rid, stored

BOUNDS = HistoryBounds(MIB)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path, clock: Clock) -> Iterator[StateDatabase]:
    made = opened(tmp_path, clock)
    yield made
    made.close()


def history(database: StateDatabase, previous: str, *, tenant: str = "t", bounds: HistoryBounds = BOUNDS) -> list[str]:
    """Ids of the items that a request continues."""
    return [item["id"] for item in database.load_history(tenant, rid(previous), (), bounds).items]


def refused(database: StateDatabase, previous: str, **more: Any) -> tuple[str, str]:
    error = error_of(lambda: history(database, previous, **more))
    assert error.param == "previous_response_id"
    return error.entry.code, error.message


def ids(*names: str) -> list[str]:
    """The items of these responses, in order."""
    return [item for name in names for item in (iid(name, "in"), iid(name, "out"))]


def chain(database: StateDatabase, names: str) -> None:
    """Responses, each continuing the one before."""
    for before, name in itertools.pairwise([None, *names]):
        assert name is not None
        database.save_objects(stored(name, before))


def test_what_is_saved_is_found_as_it_was_the_last_of_each(database: StateDatabase) -> None:
    database.save_objects(stored("a", answer="\ud800 é"))
    found = present(database.find_response("t", rid("a")))
    assert found == ("m", response("a", answer="\ud800 é"))
    assert list(found.response) == list(response("a"))
    database.save_objects(stored("a", status="queued"))
    database.save_objects(stored("a", answer="at last"))
    found = present(database.find_response("t", rid("a")))
    assert found.response == response("a", answer="at last")
    assert database.count_stored().responses == 1


def test_a_conversation_is_told_from_its_beginning(database: StateDatabase) -> None:
    chain(database, "abc")
    database.save_objects(stored("x", "a"))
    assert history(database, "c") == ids("a", "b", "c")
    assert history(database, "x") == ids("a", "x")
    made_of = present(database.list_input_items("t", rid("c")))
    assert [item["id"] for item in made_of[1]] == [*ids("a", "b"), iid("c", "in")]
    chain(database, "abc")
    size = sum(stored(name).items_size for name in "abc")
    assert history(database, "c", bounds=HistoryBounds(size, items=6, responses=3)) == ids("a", "b", "c")


def test_of_another_tenant_nothing_is_told_apart_from_nothing(database: StateDatabase) -> None:
    database.save_objects(stored("a"))
    database.save_objects(stored("b", "a", tenant="other"))
    assert database.find_response("other", rid("a")) is None
    assert database.list_input_items("other", rid("a")) is None
    assert not database.delete_response("other", rid("a"))
    code, said = refused(database, "a", tenant="other")
    assert (code, said.replace(rid("a"), rid("z"))) == refused(database, "z", tenant="other")
    # Its conversation cannot reach into another tenant's, whatever it says that it continues.
    assert refused(database, "b", tenant="other")[0] == "previous_response_not_found"
    referred = database.load_history("other", None, (iid("a", "in"), iid("b", "in")), BOUNDS)
    assert list(referred.referenced_items) == [iid("b", "in")]


def test_what_lost_a_part_of_its_beginning_cannot_be_continued(database: StateDatabase) -> None:
    chain(database, "abc")
    assert database.delete_response("t", rid("a"))
    assert not database.delete_response("t", rid("a"))
    assert refused(database, "c") == (
        "previous_response_not_found",
        f"The response '{rid('a')}', which '{rid('c')}' continues, is not stored any more.",
    )
    assert database.find_response("t", rid("c")) is not None
    made_of = present(database.list_input_items("t", rid("c")))
    assert [item["id"] for item in made_of[1]] == [*ids("b"), iid("c", "in")]


@pytest.mark.parametrize("status", ["queued", "in_progress", "failed", "cancelled"])
def test_what_has_no_answer_cannot_be_continued(database: StateDatabase, status: str) -> None:
    database.save_objects(stored("a", status=status), stored("b", status="incomplete"))
    code, said = refused(database, "a")
    assert code == "invalid_request"
    assert f"it is {status}" in said
    assert history(database, "b") == ids("b"), "what was cut can be"


def test_items_are_found_by_their_ids_the_newest_of_each(database: StateDatabase) -> None:
    database.save_objects(stored("a", question="old"))
    database.save_objects(stored("b", question="new"))
    with pytest.raises(RoundhouseError) as caught:
        database.load_history("t", None, (iid("a", "in"), iid("a", "in"), iid("b", "in")), HistoryBounds(200))
    assert (caught.value.entry.code, caught.value.param) == ("invalid_request", "input")
    found = database.load_history("t", None, (iid("a", "in"), "none", iid("b", "out")), BOUNDS)
    assert found.items == ()
    assert found.model is None
    assert found.referenced_items == {
        iid("a", "in"): message(iid("a", "in"), "old"),
        iid("b", "out"): message(iid("b", "out"), "yes", "assistant"),
    }


@pytest.mark.parametrize(
    "bounds",
    [HistoryBounds(400), HistoryBounds(MIB, items=5), HistoryBounds(MIB, responses=2)],
    ids=["bytes", "items", "responses"],
)
def test_a_conversation_is_bounded(database: StateDatabase, bounds: HistoryBounds) -> None:
    chain(database, "abc")
    code, said = refused(database, "c", bounds=bounds)
    assert code == "invalid_request"
    assert "longer than what may be continued" in said
    assert history(database, "a", bounds=bounds) == ids("a")


def test_what_nobody_continues_goes_after_its_time(database: StateDatabase, clock: Clock) -> None:
    database.save_objects(stored("a"))
    database.save_objects(stored("lonely"))
    clock.now += 0.9 * HOUR
    database.save_objects(stored("b", "a"))
    clock.now += 0.2 * HOUR
    assert database.find_response("t", rid("lonely")) is None
    assert refused(database, "lonely")[0] == "previous_response_not_found"
    assert not database.delete_response("t", rid("lonely"))
    assert database.count_stored().responses == 3
    assert not database.sweep_expired()
    assert database.count_stored().responses == 2
    assert history(database, "b") == ids("a", "b")
    clock.now += 0.95 * HOUR
    assert list(database.load_history("t", None, (iid("a", "in"),), BOUNDS).referenced_items) == [iid("a", "in")]
    clock.now += 0.1 * HOUR
    assert database.find_response("t", rid("a")) is not None, "it was referred to"
    assert database.find_response("t", rid("b")) is None


def test_what_was_used_longest_ago_makes_room(tmp_path: Path, clock: Clock) -> None:
    database = opened(tmp_path, clock, max_mib=1)
    names = [f"r{number}" for number in range(10)]
    for name in names:
        clock.now += 1
        database.save_objects(stored(name, question="x" * 60_000))
    clock.now += 1
    assert history(database, "r0") == ids("r0")
    for name in ("s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"):
        clock.now += 1
        database.save_objects(stored(name, question="x" * 60_000))
    left = [name for name in [*names, "s0", "s7"] if database.find_response("t", rid(name)) is not None]
    assert left[0] == "r0", "it was continued"
    assert "r1" not in left
    assert left[-2:] == ["s0", "s7"]
    assert left == ["r0", *[name for name in names if name in left[1:]], "s0", "s7"]
    assert database.count_stored().bytes <= MIB
    database.close()
    assert (tmp_path / "responses.db").stat().st_size <= MIB


def test_what_is_too_large_is_refused_and_costs_nobody_anything(tmp_path: Path, clock: Clock) -> None:
    database = opened(tmp_path, clock, max_mib=1)
    database.save_objects(stored("a"))
    with pytest.raises(DatabaseFullError):
        database.save_objects(stored("b", question="x" * MIB))
    assert database.find_response("t", rid("a")) is not None
    assert database.find_response("t", rid("b")) is None
    database.close()


def test_what_runs_makes_no_room(tmp_path: Path, clock: Clock) -> None:
    database = opened(tmp_path, clock, max_mib=1)
    for name in ("a", "b"):
        database.save_objects(stored(name, status="queued", question="x" * 400_000))
    with pytest.raises(DatabaseFullError):
        database.save_objects(stored("c", question="x" * 400_000))
    assert database.find_response("t", rid("c")) is None
    clock.now += 2 * HOUR
    database.sweep_expired()
    assert database.count_stored().responses == 2
    database.close()


def test_the_file_becomes_smaller_again(tmp_path: Path, clock: Clock) -> None:
    database = opened(tmp_path, clock)
    for number in range(30):
        database.save_objects(stored(f"r{number}", question="x" * 200_000))
    clock.now += 2 * HOUR
    sweeps = 0
    while database.sweep_expired():
        sweeps += 1
    assert sweeps > 1
    assert (tmp_path / "responses.db").stat().st_size <= (FREE_PAGES + 20) * 4096
    database.close()


def test_what_ran_when_it_was_closed_has_failed(tmp_path: Path, clock: Clock) -> None:
    database = opened(tmp_path, clock)
    database.save_objects(stored("a", status="queued"))
    database.save_objects(stored("b"))
    database.close()
    database = opened(tmp_path, clock)
    found = present(database.find_response("t", rid("a")))
    assert (found.response["status"], found.response["error"]["message"]) == ("failed", RESTARTED)
    assert found.response["error"]["code"] == "server_error"
    assert found.response["metadata"] == {"name": "a"}
    assert history(database, "b") == ids("b")
    assert refused(database, "a")[0] == "invalid_request"
    database.close()


def test_the_file_is_its_owners_alone_and_one_process_at_a_time_has_it(tmp_path: Path, clock: Clock) -> None:
    database = opened(tmp_path, clock)
    assert (tmp_path / "responses.db").stat().st_mode & 0o777 == 0o600
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        opened(tmp_path, clock)
    database.close()
    opened(tmp_path, clock).close()


def test_a_newer_file_is_left_alone(tmp_path: Path, clock: Clock) -> None:
    opened(tmp_path, clock).close()
    with sqlite3.connect(tmp_path / "responses.db") as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    before = (tmp_path / "responses.db").read_bytes()
    with pytest.raises(NewerDatabaseError, match="schema version 99"):
        opened(tmp_path, clock)
    assert (tmp_path / "responses.db").read_bytes() == before


def test_a_damaged_file_is_known_as_such(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "responses.db").write_bytes(b"this is no database" * 500)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        opened(tmp_path, clock)
    assert is_damaged(caught.value)
    assert not is_damaged(sqlite3.OperationalError("disk I/O error"))


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
    assert (is_damaged(caught.value), path.read_bytes()) == (False, before)


def test_tables_that_are_not_all_made_leave_the_file_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def list_tables() -> list[str]:
        with contextlib.closing(sqlite3.connect(tmp_path / "responses.db")) as db:
            return [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]

    with monkeypatch.context() as patch:
        patch.setattr(
            state_database, "_TABLES", state_database._TABLES + "CREATE TABLE completions (number INTEGER);\n"
        )
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            opened(tmp_path, Clock())
    assert list_tables() == []
    opened(tmp_path, Clock()).close()
    assert "completions" in list_tables()
