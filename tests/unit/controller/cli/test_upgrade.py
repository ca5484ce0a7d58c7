"""`roundhouse upgrade --check` against a controller that runs, and against a state folder alone."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from controller.cli.app import run
from controller.cli.exit_codes import ExitCode
from controller.engines import get_engine, spec_hash
from controller.schema.desired import Definition
from controller.schema.status import ReplicaStatus
from tests.fakes.fake_control_api import FakeControlApi, model, status
from tests.support.backups import Installation, make_installation
from tests.support.cli import roundhouse
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


def stub_hash() -> str:
    """Of the model `a`, by this version."""
    from controller.artifacts.model_roots import ModelRoots
    from controller.config.parse import parse_folder
    from controller.config.read import FolderSnapshot

    parsed = parse_folder(
        FolderSnapshot("", {"m.yaml": b"models: {a: {backend: stub}}"}), ModelRoots((Path("/models"),))
    )
    definition: Definition = parsed.definitions["a"]
    assert get_engine(definition).name == "stub"
    return spec_hash(definition, None, "a")


def replica(digest: str) -> ReplicaStatus:
    return ReplicaStatus(name="rh-a-0", index=0, attempt=1, phase="ready", spec_hash=digest, outdated=False)


async def test_it_compares_with_the_controller_that_runs(
    there: Installation, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FakeControlApi(folder / "controller.sock") as api:
        api.status = status(model("a", replicas=[replica(stub_hash())]))
        assert await roundhouse(api, "upgrade", "--check", *options(there)) == ExitCode.DONE
        assert capsys.readouterr().out == "this is Roundhouse 0.1.0; 0.1.0 runs\nnothing would change\n"
        api.status = status(model("a", replicas=[replica("0" * 16)]))
        assert await roundhouse(api, "upgrade", "--check", *options(there)) == ExitCode.PENDING
        assert "a: 1 engine would be restarted: " in capsys.readouterr().out


def test_without_a_controller_it_reads_the_records_of_processes(
    there: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["upgrade", "--check", *options(there)]
    assert run(command) == ExitCode.DONE
    assert "not known: which engines run" in capsys.readouterr().out
    (there.state / "replicas").mkdir()
    record = {"model": "a", "spec_hash": "0" * 16, "ended": False}
    (there.state / "replicas" / "a.json").write_text(json.dumps(record))
    (there.state / "replicas" / "b.json").write_text(json.dumps({**record, "ended": True}))
    assert run([*command, "--json"]) == ExitCode.PENDING
    [change] = json.loads(capsys.readouterr().out)["changes"]
    assert (change["kind"], change["subject"]) == ("engine", "a")


def test_files_settings_and_state_are_judged(
    there: Installation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["upgrade", "--check", *options(there)]
    monkeypatch.setenv("ROUNDHOUSE_STOP_TIMEOUT", "1")
    assert run(command) == ExitCode.PENDING
    assert "ROUNDHOUSE_STOP_TIMEOUT: this version does not read it" in capsys.readouterr().out
    (there.desired / "models.yaml").write_text("models: {a: {backend: stub, gone_field: 1}}")
    assert run(command) == ExitCode.FAILED
    assert "models.a.gone_field" in capsys.readouterr().out
    (there.desired / "models.yaml").write_text("models: {a: {backend: stub}}")
    with closing(sqlite3.connect(there.state / "responses.db")) as db:
        db.execute("PRAGMA user_version = 9")
    assert run(command) == ExitCode.FAILED
    assert "responses.db: a newer Roundhouse wrote it (schema_version 9)" in capsys.readouterr().out
    with closing(sqlite3.connect(there.state / "responses.db")) as db:
        db.execute("PRAGMA user_version = 1")
    assert run(command) == ExitCode.FAILED
    assert "responses.db: a Roundhouse of before 0.1.0 wrote it (schema_version 1, this" in capsys.readouterr().out


def test_nothing_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["upgrade"]) == ExitCode.USAGE
    assert "`upgrade --check`" in capsys.readouterr().err


@pytest.mark.slow
async def test_a_controllers_own_environment_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack = RoundhouseStack(folder, "process", {"ROUNDHOUSE_MOON": "1"})
    stack.declare({"a": {"backend": "stub"}})
    stack.start("controller")
    try:
        await stack.loaded("a")
        # Which files it reads is in its environment, too.
        code = await asyncio.to_thread(run, ["upgrade", "--check", "--state", str(stack.state)])
        assert code == ExitCode.PENDING
        said = capsys.readouterr().out
        assert said.splitlines()[1:] == ["ROUNDHOUSE_MOON: this version does not read it"]
    finally:
        await stack.close()
