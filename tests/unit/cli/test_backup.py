"""`roundhouse backup` and `roundhouse restore` on folders where nothing runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cli.output import ExitCode
from common.sqlite_files import hold_file
from tests.support.backups import ORIGINALS, Installation, add_documents, make_installation
from tests.support.cli import Output, Roundhouse
from tests.support.small_disk import mount_small_disk, no_space


class Site:
    """Installations below a folder: `origin` has a state, `there` is empty. `file` is where backups are."""

    def __init__(self, folder: Path, roundhouse: Roundhouse) -> None:
        self.folder = folder
        self.file = folder / "b.tar.gz"
        self.origin, self.there = make_installation(folder / "origin"), Installation(folder / "there")
        self.roundhouse = roundhouse

    def backup(self, *options: str, of: Installation | None = None, file: Path | None = None) -> Output:
        return self._run("backup", of or self.origin, file, options)

    def restore(self, *options: str, to: Installation | None = None, file: Path | None = None) -> Output:
        return self._run("restore", to or self.there, file, options)

    def _run(self, name: str, place: Installation, file: Path | None, options: tuple[str, ...]) -> Output:
        folders = ("--state", str(place.state), "--desired", str(place.desired))
        return self.roundhouse(name, str(file or self.file), *folders, *options)

    def names(self) -> list[str]:
        """What is in the folder."""
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def site(tmp_path: Path, roundhouse: Roundhouse) -> Site:
    return Site(tmp_path, roundhouse)


@pytest.fixture
def saved(site: Site) -> Site:
    """A site that has a backup."""
    assert site.backup().code == ExitCode.DONE
    return site


@contextmanager
def in_use(database: Path) -> Iterator[None]:
    """While a program holds it."""
    descriptor = hold_file(database)
    try:
        yield
    finally:
        os.close(descriptor)


def kept(path: Path) -> str:
    """The one row of a database."""
    with closing(sqlite3.connect(path)) as db:
        return str(db.execute("SELECT what FROM kept").fetchone()[0])


def test_what_is_backed_up_comes_back(saved: Site) -> None:
    origin, there = saved.origin, saved.there
    assert saved.file.stat().st_mode & 0o777 == 0o600
    restored = saved.restore()
    assert restored.code == ExitCode.DONE
    assert "7 files restored" in restored.out
    for name in ("identity.json", "memory.json", "desired.json", "observed-memory.json"):
        assert (there.state / name).read_bytes() == (origin.state / name).read_bytes()
        assert (there.state / name).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in there.desired.iterdir()] == ["models.yaml"]
    assert (kept(there.state / "journal.db"), kept(there.state / "responses.db")) == ("journal.db", "responses.db")
    # Gateways take no table of an earlier count, and without one the next is greater than all.
    assert {path.name for path in there.state.iterdir()} & {"epoch.json", "logs"} == set()


def test_a_backup_replaces_an_earlier_one_and_leaves_nothing_beside(saved: Site) -> None:
    before = saved.file.read_bytes()
    (saved.origin.desired / "more.yaml").write_text("models: {}")
    assert saved.backup().code == ExitCode.DONE
    assert saved.file.read_bytes() != before
    assert saved.names() == ["b.tar.gz", "origin"]


def test_a_backup_that_fails_leaves_the_earlier_one(site: Site) -> None:
    state = site.origin.state
    folder = add_documents(state)
    assert site.backup().code == ExitCode.DONE
    before, damaged = site.file.read_bytes(), next((folder / "originals").glob("??/*"))

    def fails() -> str:
        failed = site.backup()
        assert (failed.code, site.file.read_bytes(), site.names()) == (ExitCode.FAILED, before, ["b.tar.gz", "origin"])
        return failed.err

    damaged.write_bytes(b"rotten")
    assert f"{damaged} is damaged: put the file back" in fails()
    with no_space():
        fails()
    (state / "journal.db").write_bytes(b"not a database at all" * 100)
    assert "journal.db cannot be copied" in fails()
    (state / "identity.json").unlink()
    (state / "journal.db").unlink()
    assert "no identity.json" in fails()


def test_a_full_disk_leaves_nothing_half(saved: Site) -> None:
    with mount_small_disk(saved.folder / "disk", 64) as disk:
        disk.fill()
        there, before = Installation(disk.folder), set(disk.folder.iterdir())
        assert saved.backup(file=disk.folder / "b.tar.gz").code == ExitCode.FAILED
        assert set(disk.folder.iterdir()) == before
        disk.free()
        (disk.folder / "ballast").write_bytes(b"x" * 44 * 1024)
        assert saved.restore(to=there).code == ExitCode.FAILED
        assert {path.name for path in there.state.iterdir()} <= {"lock", "up.lock"}
        assert not list(there.desired.iterdir())


def test_a_torn_backup_changes_nothing(saved: Site) -> None:
    file = saved.file
    file.write_bytes(file.read_bytes()[:-1])
    line = f"roundhouse: {file} is no whole backup of Roundhouse: it ends too early; nothing was changed\n"
    assert saved.restore() == Output(ExitCode.FAILED, err=line)
    assert not saved.there.root.exists()
    missing = saved.restore(file=saved.folder / "none")
    assert missing.code == ExitCode.FAILED
    assert "No such file" in missing.err


def test_a_state_that_is_there_stays_unless_forced(saved: Site) -> None:
    there = make_installation(saved.there.root)
    (there.state / "identity.json").write_text('{"schema_version": 1, "instance": "own", "secret": "11"}')
    (there.state / "memory.json").write_text('{"schema_version": 1}')
    (there.desired / "models.yaml").write_text("models: {other: {backend: stub}}")
    (there.desired / "extra.yaml").write_text("models: {extra: {backend: stub}}")
    (there.state / "lock").touch()
    (there.state / "up.lock").touch()

    def content() -> dict[str, bytes]:
        return {name: content for name, content in there.content().items() if not name.endswith("lock")}

    before = content()
    refused = saved.restore()
    assert (refused.code, content()) == (ExitCode.FAILED, before)
    assert "holds a state already (desired.json, epoch.json, identity.json); --force" in refused.err
    forced = saved.restore("--force")
    assert forced.code == ExitCode.DONE
    assert "identity stays" in forced.err
    assert '"own"' in (there.state / "identity.json").read_text()
    assert "paused" in (there.state / "memory.json").read_text()
    assert (there.state / "memory.json.before-restore").read_text() == '{"schema_version": 1}'
    assert (there.state / "epoch.json").exists()
    assert (there.desired / "models.yaml").read_text() == "models: {a: {backend: stub}}"
    assert sorted(path.name for path in there.desired.glob("*.yaml")) == ["models.yaml"]
    assert (there.desired / "extra.yaml.before-restore").exists()


def test_declarations_that_differ_stay_unless_forced(saved: Site) -> None:
    extra = saved.there.desired / "extra.yaml"
    shutil.copytree(saved.origin.desired, saved.there.desired)
    extra.write_text("models: {}")
    refused = saved.restore()
    assert refused.code == ExitCode.FAILED
    assert "extra.yaml is there already, and is not in the backup so; --force" in refused.err
    extra.unlink()
    assert saved.restore().code == ExitCode.DONE


def test_a_copy_beside_the_original_gets_an_identity_of_its_own(saved: Site) -> None:
    assert saved.restore("--new-identity").code == ExitCode.DONE
    assert not (saved.there.state / "identity.json").exists()
    assert saved.restore("--new-identity", "--force").code == ExitCode.USAGE
    refused = saved.restore("--new-identity")
    assert refused.code == ExitCode.FAILED
    assert refused.err.endswith("; --new-identity is for empty folders\n"), "and does not advise --force"


@pytest.mark.parametrize("lock_name", ["lock", "up.lock"])
def test_what_runs_there_is_not_disturbed(saved: Site, lock_name: str) -> None:
    state = saved.there.state
    state.mkdir(parents=True)
    with (state / lock_name).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused = saved.restore("--force")
    assert refused.code == ExitCode.LOCKED
    assert "`roundhouse down` ends it" in refused.err
    assert {path.name for path in state.iterdir()} <= {"lock", "up.lock"}


@pytest.mark.parametrize(
    ("database", "words"), [("responses.db", "a gateway uses"), ("retrieval/catalog.db", "retrieval uses")]
)
def test_a_program_beside_is_not_disturbed(site: Site, database: str, words: str) -> None:
    add_documents(site.origin.state)
    assert site.backup().code == ExitCode.DONE
    with in_use(site.origin.state / database):
        refused = site.restore("--force", to=site.origin)
    assert refused.code == ExitCode.LOCKED
    assert words in refused.err


def test_responses_may_lie_elsewhere(site: Site) -> None:
    volume, new = site.folder / "volume", site.folder / "new"
    volume.mkdir()
    (site.origin.state / "responses.db").replace(volume / "responses.db")
    assert site.backup("--responses", str(volume)).code == ExitCode.DONE
    assert site.restore("--responses", str(new)).code == ExitCode.DONE
    assert kept(new / "responses.db") == "responses.db"


def originals_in(state: Path) -> dict[str, bytes]:
    """Content of each original, by its name."""
    return {path.name: path.read_bytes() for path in (state / "retrieval" / "originals").glob("??/*")}


def test_documents_are_part_of_a_backup(site: Site) -> None:
    state = site.there.state
    add_documents(site.origin.state)
    saved = site.backup()
    assert saved.code == ExitCode.DONE
    assert "8 files" in saved.out
    assert "3 originals of documents" in saved.out
    restored = site.restore()
    assert (restored.code, "files restored, with 2 documents" in restored.out) == (ExitCode.DONE, True)
    assert originals_in(state) == ORIGINALS
    assert kept(state / "retrieval" / "catalog.db") == "catalog.db"
    names = {path.name for path in (state / "retrieval").iterdir()}
    assert names == {"catalog.db", "originals", "restored"}, "vectors are made again"
    assert site.restore("--force").code == ExitCode.DONE
    assert originals_in(state) == ORIGINALS
    assert (state / "retrieval.before-restore" / "catalog.db").exists()
    (state / "retrieval.before-restore" / "mark").touch()
    assert site.restore("--force").code == ExitCode.DONE
    assert (state / "retrieval.before-restore" / "mark").exists(), "what nobody has opened is replaced, not what it was"


def test_documents_may_lie_elsewhere_or_be_left_out(site: Site) -> None:
    volume, new = site.folder / "volume", site.folder / "new"

    def rag(command: str, folder: Path) -> Output:
        return site.roundhouse("rag", command, str(site.file), "--documents", str(folder))

    add_documents(volume)
    assert site.backup("--documents", str(volume)).code == ExitCode.DONE
    assert site.restore("--no-documents").code == ExitCode.DONE
    assert not (site.there.state / "retrieval").exists()
    assert ": 2 documents restored" in rag("restore", new).out, "later, and alone"
    assert originals_in(new) == ORIGINALS
    assert rag("backup", new).code == ExitCode.DONE
    refused = site.restore(to=Installation(site.folder / "third"))
    assert refused.code == ExitCode.FAILED
    assert "it has documents alone: `roundhouse rag restore` restores them" in refused.err
    assert site.backup("--documents", str(new), "--no-documents").code == ExitCode.DONE
    refused = rag("restore", site.folder / "fourth")
    assert refused.code == ExitCode.FAILED
    assert "it has no documents; nothing was changed" in refused.err


def test_a_full_disk_leaves_no_documents_half(site: Site) -> None:
    add_documents(site.folder / "volume")
    command = ("rag", "backup", str(site.file), "--documents", str(site.folder / "volume"))
    assert site.roundhouse(*command).code == ExitCode.DONE
    with mount_small_disk(site.folder / "disk", 64) as disk:
        disk.fill()
        state = disk.folder / "state"
        assert site.roundhouse("rag", "restore", str(site.file), "--documents", str(state)).code == ExitCode.FAILED
        assert not list(state.glob("*"))


def test_a_restore_that_cannot_move_the_documents_replaces_nothing(site: Site) -> None:
    there = make_installation(site.folder / "there")
    for installation in (site.origin, there):
        add_documents(installation.state)
    assert site.backup().code == ExitCode.DONE
    (there.state / "retrieval.before-restore").write_text("a file where a folder is to be")
    before = {path: path.stat().st_ino for path in there.state.iterdir()}
    failed = site.restore("--force", to=there)
    assert (failed.code, "the restore is not done" in failed.err) == (ExitCode.FAILED, True)
    assert before.items() <= {path: path.stat().st_ino for path in there.state.iterdir()}.items()
    assert not [path for path in there.state.glob("*.before-restore") if path.name != "retrieval.before-restore"]


def test_what_a_killed_restore_left_is_in_no_way_and_goes(site: Site) -> None:
    add_documents(site.origin.state)
    assert site.backup().code == ExitCode.DONE
    state = site.there.state
    (state / ".retrieval.new" / "originals" / "ab").mkdir(parents=True)
    for name in (".retrieval.new/originals/ab/stale", ".journal.db.new", ".journal.db.new-journal"):
        (state / name).write_text("stale")
    assert site.restore().code == ExitCode.DONE
    assert not [path.name for path in state.iterdir() if path.name.startswith(".")]
    assert originals_in(state) == ORIGINALS


def test_of_two_restores_of_documents_at_once_one_is_refused(site: Site) -> None:
    add_documents(site.origin.state)
    assert site.backup().code == ExitCode.DONE
    folder = site.there.state / ".retrieval.new"
    folder.mkdir(parents=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert f"{site.there.state}: another restore works in it; the restore is not done" in site.restore().err
    finally:
        os.close(descriptor)


def test_what_a_killed_backup_left_goes_and_what_another_one_makes_stays(site: Site) -> None:
    for name in (".b.tar.gz.killed00", ".b.tar.gz.at_work0", ".c.tar.gz.killed00"):
        (site.folder / name).mkdir()
    descriptor = os.open(site.folder / ".b.tar.gz.at_work0", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert site.backup().code == ExitCode.DONE
        assert site.names() == [".b.tar.gz.at_work0", ".c.tar.gz.killed00", "b.tar.gz", "origin"]
    finally:
        os.close(descriptor)


def test_a_backup_names_what_it_could_not_read(site: Site) -> None:
    original = next((add_documents(site.origin.state) / "originals").glob("??/*"))
    original.unlink()
    original.mkdir()
    assert f"roundhouse: {original} cannot be read: Is a directory" in site.backup().err
    assert "no/b.tar.gz cannot be written: No such file" in site.backup(file=site.folder / "no" / "b.tar.gz").err
