"""`roundhouse backup` and `roundhouse restore` on folders where nothing runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from common.sqlite_files import hold_file
from controller.cli.app import run
from controller.cli.exit_codes import ExitCode
from tests.support.backups import ORIGINALS, Installation, add_documents, make_installation
from tests.support.small_disk import mount_small_disk, no_space


def command(name: str, file: Path, there: Installation, *options: str) -> int:
    """Run it on an installation's folders."""
    return run([name, str(file), "--state", str(there.state), "--desired", str(there.desired), *options])


@pytest.fixture
def file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A backup of `make_installation`."""
    path = tmp_path / "b.tar.gz"
    assert command("backup", path, make_installation(tmp_path / "origin")) == ExitCode.DONE
    capsys.readouterr()
    return path


def kept(path: Path) -> str:
    """The one row of a database."""
    with closing(sqlite3.connect(path)) as db:
        return str(db.execute("SELECT what FROM kept").fetchone()[0])


def test_what_is_backed_up_comes_back(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    origin, there = Installation(tmp_path / "origin"), Installation(tmp_path / "there")
    assert command("restore", file, there) == ExitCode.DONE
    assert "7 files restored" in capsys.readouterr().out
    for name in ("identity.json", "memory.json", "desired.json", "observed-memory.json"):
        assert (there.state / name).read_bytes() == (origin.state / name).read_bytes()
        assert (there.state / name).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in there.desired.iterdir()] == ["models.yaml"]
    assert (kept(there.state / "journal.db"), kept(there.state / "responses.db")) == ("journal.db", "responses.db")
    # Gateways take no table of an earlier count, and without one the next is greater than all.
    assert {path.name for path in there.state.iterdir()} & {"epoch.json", "logs"} == set()


def test_a_backup_replaces_an_earlier_one_and_leaves_nothing_beside(file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    origin = Installation(tmp_path / "origin")
    (origin.desired / "more.yaml").write_text("models: {}")
    assert command("backup", file, origin) == ExitCode.DONE
    assert file.read_bytes() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "origin"]


def test_a_backup_that_fails_leaves_the_earlier_one(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = file.read_bytes()
    origin = Installation(tmp_path / "origin")
    with no_space():
        assert command("backup", file, origin) == ExitCode.FAILED
    (origin.state / "journal.db").write_bytes(b"not a database at all" * 100)
    assert command("backup", file, origin) == ExitCode.FAILED
    assert "journal.db cannot be copied" in capsys.readouterr().err
    (origin.state / "identity.json").unlink()
    (origin.state / "journal.db").unlink()
    assert command("backup", file, origin) == ExitCode.FAILED
    assert "no identity.json" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "origin"]


def test_a_full_disk_leaves_nothing_half(file: Path, tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 64) as disk:
        disk.fill()
        there, before = Installation(disk.folder), set(disk.folder.iterdir())
        assert command("backup", disk.folder / "b.tar.gz", Installation(tmp_path / "origin")) == ExitCode.FAILED
        assert set(disk.folder.iterdir()) == before
        disk.free()
        (disk.folder / "ballast").write_bytes(b"x" * 44 * 1024)
        assert command("restore", file, there) == ExitCode.FAILED
        assert {path.name for path in there.state.iterdir()} <= {"lock", "up.lock"}
        assert not list(there.desired.iterdir())


def test_a_torn_backup_changes_nothing(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = Installation(tmp_path / "there")
    file.write_bytes(file.read_bytes()[:-1])
    assert command("restore", file, there) == ExitCode.FAILED
    said = capsys.readouterr().err
    assert said == f"roundhouse: {file} is no whole backup of Roundhouse: it ends too early; nothing was changed\n"
    assert not there.root.exists()
    assert command("restore", tmp_path / "none", there) == ExitCode.FAILED
    assert "No such file" in capsys.readouterr().err


def test_a_state_that_is_there_stays_unless_forced(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = make_installation(tmp_path / "there")
    (there.state / "identity.json").write_text('{"schema_version": 1, "instance": "own", "secret": "11"}')
    (there.state / "memory.json").write_text('{"schema_version": 1}')
    (there.desired / "models.yaml").write_text("models: {other: {backend: stub}}")
    (there.desired / "extra.yaml").write_text("models: {extra: {backend: stub}}")
    (there.state / "lock").touch()
    (there.state / "up.lock").touch()
    before = there.content()
    assert command("restore", file, there) == ExitCode.FAILED
    assert "holds a state already (desired.json, epoch.json, identity.json); --force" in capsys.readouterr().err
    assert {name: content for name, content in there.content().items() if not name.endswith("lock")} == {
        name: content for name, content in before.items() if not name.endswith("lock")
    }
    assert command("restore", file, there, "--force") == ExitCode.DONE
    assert "identity stays" in capsys.readouterr().err
    assert '"own"' in (there.state / "identity.json").read_text()
    assert "paused" in (there.state / "memory.json").read_text()
    assert (there.state / "memory.json.before-restore").read_text() == '{"schema_version": 1}'
    assert (there.state / "epoch.json").exists()
    assert (there.desired / "models.yaml").read_text() == "models: {a: {backend: stub}}"
    assert sorted(path.name for path in there.desired.glob("*.yaml")) == ["models.yaml"]
    assert (there.desired / "extra.yaml.before-restore").exists()


def test_declarations_that_differ_stay_unless_forced(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Installation(tmp_path / "there")
    shutil.copytree(tmp_path / "origin" / "desired-state", there.desired)
    (there.desired / "extra.yaml").write_text("models: {}")
    assert command("restore", file, there) == ExitCode.FAILED
    assert "extra.yaml is there already, and is not in the backup so; --force" in capsys.readouterr().err
    (there.desired / "extra.yaml").unlink()
    assert command("restore", file, there) == ExitCode.DONE


def test_a_copy_beside_the_original_gets_an_identity_of_its_own(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Installation(tmp_path / "there")
    assert command("restore", file, there, "--new-identity") == ExitCode.DONE
    assert not (there.state / "identity.json").exists()
    assert command("restore", file, there, "--new-identity", "--force") == ExitCode.USAGE
    capsys.readouterr()
    assert command("restore", file, there, "--new-identity") == ExitCode.FAILED
    assert capsys.readouterr().err.endswith("; --new-identity is for empty folders\n"), "and does not advise --force"


@pytest.mark.parametrize("lock_name", ["lock", "up.lock"])
def test_what_runs_there_is_not_disturbed(
    file: Path, tmp_path: Path, lock_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Installation(tmp_path / "there")
    there.state.mkdir(parents=True)
    with (there.state / lock_name).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert command("restore", file, there, "--force") == ExitCode.LOCKED
    assert "`roundhouse down` ends it" in capsys.readouterr().err
    assert {path.name for path in there.state.iterdir()} <= {"lock", "up.lock"}


def test_a_gateway_alone_is_not_disturbed(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = make_installation(tmp_path / "there")
    descriptor = hold_file(there.state / "responses.db")
    try:
        assert command("restore", file, there, "--force") == ExitCode.LOCKED
    finally:
        os.close(descriptor)
    assert "a gateway uses" in capsys.readouterr().err


def test_responses_may_lie_elsewhere(tmp_path: Path) -> None:
    origin, there = make_installation(tmp_path / "origin"), Installation(tmp_path / "there")
    (tmp_path / "volume").mkdir()
    (origin.state / "responses.db").replace(tmp_path / "volume" / "responses.db")
    file = tmp_path / "b.tar.gz"
    assert command("backup", file, origin, "--responses", str(tmp_path / "volume")) == ExitCode.DONE
    assert command("restore", file, there, "--responses", str(tmp_path / "new")) == ExitCode.DONE
    assert kept(tmp_path / "new" / "responses.db") == "responses.db"


def originals_in(state: Path) -> dict[str, bytes]:
    """Content of each original, by its name."""
    return {path.name: path.read_bytes() for path in (state / "retrieval" / "originals").glob("??/*")}


def test_documents_are_part_of_a_backup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin, there = make_installation(tmp_path / "origin"), Installation(tmp_path / "there")
    add_documents(origin.state)
    file = tmp_path / "b.tar.gz"
    assert command("backup", file, origin) == ExitCode.DONE
    assert "8 files" in (out := capsys.readouterr().out)
    assert "3 originals of documents" in out
    assert command("restore", file, there) == ExitCode.DONE
    assert originals_in(there.state) == ORIGINALS
    assert kept(there.state / "retrieval" / "catalog.db") == "catalog.db"
    names = {path.name for path in (there.state / "retrieval").iterdir()}
    assert names == {"catalog.db", "originals", "restored"}, "vectors are made again"
    assert command("restore", file, there, "--force") == ExitCode.DONE
    assert originals_in(there.state) == ORIGINALS
    assert (there.state / "retrieval.before-restore" / "catalog.db").exists()


def test_documents_may_lie_elsewhere_or_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin, there = make_installation(tmp_path / "origin"), Installation(tmp_path / "there")
    add_documents(tmp_path / "volume")
    file = tmp_path / "b.tar.gz"
    assert command("backup", file, origin, "--documents", str(tmp_path / "volume")) == ExitCode.DONE
    assert command("restore", file, there, "--no-documents") == ExitCode.DONE
    assert not (there.state / "retrieval").exists()
    # Later, and alone.
    assert run(["rag", "restore", str(file), "--documents", str(tmp_path / "new")]) == ExitCode.DONE
    assert originals_in(tmp_path / "new") == ORIGINALS
    capsys.readouterr()
    assert run(["rag", "backup", str(file), "--documents", str(tmp_path / "new")]) == ExitCode.DONE
    assert command("restore", file, Installation(tmp_path / "third")) == ExitCode.FAILED
    assert "it has documents alone: `roundhouse rag restore` restores them" in capsys.readouterr().err
    assert command("backup", file, origin, "--documents", str(tmp_path / "new"), "--no-documents") == ExitCode.DONE
    assert run(["rag", "restore", str(file), "--documents", str(tmp_path / "fourth")]) == ExitCode.FAILED
    assert "it has no documents; nothing was changed" in capsys.readouterr().err


def test_a_retrieval_program_is_not_disturbed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin, file = make_installation(tmp_path / "origin"), tmp_path / "b.tar.gz"
    folder = add_documents(origin.state)
    assert command("backup", file, origin) == ExitCode.DONE
    descriptor = hold_file(folder / "catalog.db")
    try:
        assert command("restore", file, origin, "--force") == ExitCode.LOCKED
    finally:
        os.close(descriptor)
    assert "retrieval uses" in capsys.readouterr().err


def test_a_damaged_original_is_named_and_the_earlier_backup_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    origin, file = make_installation(tmp_path / "origin"), tmp_path / "b.tar.gz"
    folder = add_documents(origin.state)
    assert command("backup", file, origin) == ExitCode.DONE
    before, damaged = file.read_bytes(), next((folder / "originals").glob("??/*"))
    damaged.write_bytes(b"rotten")
    assert command("backup", file, origin) == ExitCode.FAILED
    assert f"{damaged} is damaged: put the file back" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "origin"]


def test_a_full_disk_leaves_no_documents_half(tmp_path: Path) -> None:
    file = tmp_path / "b.tar.gz"
    add_documents(tmp_path / "origin")
    assert run(["rag", "backup", str(file), "--documents", str(tmp_path / "origin")]) == ExitCode.DONE
    with mount_small_disk(tmp_path / "disk", 64) as disk:
        disk.fill()
        assert run(["rag", "restore", str(file), "--documents", str(disk.folder / "state")]) == ExitCode.FAILED
        assert not list((disk.folder / "state").glob("*"))
