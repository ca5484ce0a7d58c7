"""`roundhouse upgrade --check` against a controller that runs, and against a state folder alone."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cli.output import ExitCode
from cli.upgrade import RunningController, find_controller
from contract.status import ReplicaStatus
from contract.tools import replica_model
from controller.engines import spec_hash
from tests.fakes.fake_control_api import FakeControlApi, model, status
from tests.support.backups import Installation, make_installation
from tests.support.cli import Cli, Roundhouse
from tests.support.definitions import parse_text
from tests.support.roundhouse_stack import RoundhouseStack


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """An installation with the stub model `a`, and an environment without settings."""
    for name in [name for name in os.environ if name.startswith("ROUNDHOUSE_")]:
        monkeypatch.delenv(name)
    made = make_installation(tmp_path / "there")
    for name in ("journal.db", "responses.db"):
        (made.state / name).unlink()
    return made


def options(there: Installation) -> tuple[str, ...]:
    return ("--state", str(there.state), "--desired", str(there.desired))


def replica(digest: str) -> ReplicaStatus:
    return ReplicaStatus(name="rh-a-0", index=0, attempt=1, phase="ready", spec_hash=digest, outdated=False)


async def test_it_compares_with_the_controller_that_runs(there: Installation, api: FakeControlApi, cli: Cli) -> None:
    of_this_version = spec_hash(parse_text("models: {a: {backend: stub}}").definitions["a"], None, "a")
    api.status = status(model("a", replicas=[replica(of_this_version)]))
    same = await cli("upgrade", "--check", *options(there))
    assert same == (ExitCode.DONE, "this is Roundhouse 0.1.0; 0.1.0 runs\nnothing would change\n", "")
    api.status = status(model("a", replicas=[replica("0" * 16)]))
    other = await cli("upgrade", "--check", *options(there))
    assert other.code == ExitCode.PENDING
    assert "a: 1 engine would be restarted: " in other.out


def test_without_a_controller_it_reads_the_records_of_processes(there: Installation, roundhouse: Roundhouse) -> None:
    command = ("upgrade", "--check", *options(there))
    shown = roundhouse(*command)
    assert shown.code == ExitCode.DONE
    assert "not known: which engines run" in shown.out
    (there.state / "replicas").mkdir()
    record = {"model": "a", "spec_hash": "0" * 16, "ended": False}
    (there.state / "replicas" / "a.json").write_text(json.dumps(record))
    (there.state / "replicas" / "b.json").write_text(json.dumps({**record, "ended": True}))
    shown = roundhouse(*command, "--json")
    [change] = shown.json["changes"]
    assert (shown.code, change["kind"], change["subject"]) == (ExitCode.PENDING, "engine", "a")


def test_models_that_no_file_declares_are_compared_too(there: Installation, roundhouse: Roundhouse) -> None:
    (there.desired / "models.yaml").write_text("{models: {}, discover: true, mcp_servers: {tools: {command: [serve]}}}")
    said = {"declared_at": 1.0, "actor": "me", "fields": {"backend": "stub"}}
    declared = {"models": {"b": said, "c": {**said, "fields": {"gone": 1}}}}
    discovered = {"d": {"backend": "stub", "model_path": "d"}}
    memory = {"schema_version": 1, "declarations": declared, "discovered": discovered}
    (there.state / "memory.json").write_text(json.dumps(memory))
    (there.state / "replicas").mkdir()
    for name in ("b", "d", replica_model("tools")):
        record = {"model": name, "spec_hash": "0" * 16, "ended": False}
        (there.state / "replicas" / f"{len(name)}{name[0]}.json").write_text(json.dumps(record))
    changes = roundhouse("upgrade", "--check", *options(there), "--json").json["changes"]
    assert {each["subject"] for each in changes if each["kind"] == "engine"} == {"b", "d", replica_model("tools")}
    assert any("models.c.gone" in each["message"] for each in changes)


def test_files_settings_and_state_are_judged(
    there: Installation, roundhouse: Roundhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(code: ExitCode, words: str) -> None:
        shown = roundhouse("upgrade", "--check", *options(there))
        assert shown.code == code
        assert words in shown.out

    monkeypatch.setenv("ROUNDHOUSE_STOP_TIMEOUT", "1")
    check(ExitCode.PENDING, "ROUNDHOUSE_STOP_TIMEOUT: this version does not read it")
    (there.desired / "models.yaml").write_text("models: {a: {backend: stub, gone_field: 1}}")
    check(ExitCode.FAILED, "models.a.gone_field")
    (there.desired / "models.yaml").write_text("models: {a: {backend: stub}}")
    for version, words in (
        (9, "responses.db: a newer Roundhouse wrote it (schema_version 9)"),
        (1, "responses.db: a Roundhouse of before 0.1.0 wrote it (schema_version 1, this"),
    ):
        with closing(sqlite3.connect(there.state / "responses.db")) as db:
            db.execute(f"PRAGMA user_version = {version}")
        check(ExitCode.FAILED, words)


@pytest.mark.slow
async def test_a_controllers_own_environment_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack = RoundhouseStack(folder, "process", {"ROUNDHOUSE_MOON": "1"})
    stack.declare({"a": {"backend": "stub"}})
    stack.start("controller")
    try:
        await stack.loaded("a")
        # Which files it reads is in its environment, too.
        shown = await Cli(capsys)("upgrade", "--check", "--state", str(stack.state))
    finally:
        await stack.close()
    assert (shown.code, shown.lines[1:]) == (ExitCode.PENDING, ["ROUNDHOUSE_MOON: this version does not read it"])


def test_a_controller_that_closes_files_meanwhile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, process = tmp_path / "state", tmp_path / "proc" / "7"
    for folder in (state, process / "fd"):
        folder.mkdir(parents=True)
    (state / "lock").write_text("7\n")
    (process / "environ").write_bytes(b"A=b\0")
    (process / "cwd").symlink_to(tmp_path)
    for number in range(9):
        (process / "fd" / str(number)).touch()  # no link that can be read
    (process / "fd" / "9").symlink_to(state / "lock")
    monkeypatch.setattr("controller.runtimes.process.groups.PROC", tmp_path / "proc")
    assert find_controller(state) == RunningController({"A": "b"}, tmp_path)
