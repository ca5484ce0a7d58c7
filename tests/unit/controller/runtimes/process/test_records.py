"""Replica records: atomic, private, and never another instance's."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.process.records import Records, ReplicaRecord
from controller.runtimes.process.stat import Process
from controller.state import ReplicaId

NAME = "rh-a-m-0-12345678-1"


def record(name: str = NAME, instance: str = "a") -> ReplicaRecord:
    return ReplicaRecord(
        instance=instance,
        name=name,
        model="org/m:1",
        index=0,
        spec_hash="1234567890abcdef",
        attempt=1,
        start_id="00",
        boot_id="boot",
        host="127.0.0.1",
        port=1234,
        argv=("program", "--flag"),
        claims={"GPU-a": 10},
        created_at=1.5,
    )


def test_a_record_is_what_was_written(tmp_path: Path) -> None:
    records = Records(tmp_path / "replicas", "a")
    assert records.create_record(record())
    (read,) = Records(tmp_path / "replicas", "a").read_records()
    assert read == record()
    assert read.id == ReplicaId("org/m:1", 0, "1234567890abcdef", 1)
    assert read.leader is None
    begun = records.note_started(NAME, Process(12, 345))
    assert begun is not None
    assert begun.leader == Process(12, 345)
    assert records.read_record(NAME) == begun


def test_a_folder_that_is_away_is_unknown_and_not_empty(tmp_path: Path) -> None:
    records = Records(tmp_path / "replicas", "a")
    assert records.create_record(record())
    (tmp_path / "replicas").rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        records.read_records()
    with pytest.raises(FileNotFoundError):
        records.read_record(NAME)
    (tmp_path / "away").rename(tmp_path / "replicas")
    assert records.read_records() == [record()]


def test_an_existing_record_is_not_created_again(tmp_path: Path) -> None:
    records = Records(tmp_path, "a")
    assert records.create_record(record())
    assert not records.create_record(record().model_copy(update={"port": 1}))
    assert records.read_records() == [record()]


def test_a_removed_record_cannot_be_changed_back_into_being(tmp_path: Path) -> None:
    records = Records(tmp_path, "a")
    records.create_record(record())
    records.remove_record(NAME)
    assert records.update_record(NAME, ended=True) is None
    records.remove_record(NAME)
    assert records.read_records() == []
    assert list(tmp_path.iterdir()) == []


def test_other_instances_records_are_left_alone(tmp_path: Path) -> None:
    records, other = Records(tmp_path, "a"), Records(tmp_path, "ab")
    theirs = record("rh-ab-m-0-12345678-1", "ab")
    other.create_record(theirs)
    records.create_record(record())
    assert (records.read_records(), other.read_records()) == ([record()], [theirs])
    for name in (theirs.name, "rh-a-../x", "x"):
        with pytest.raises(ValueError, match="is not a replica of instance a"):
            records.remove_record(name)
    # Our name, and another's id within.
    (tmp_path / f"{NAME}.json").write_text(record(instance="ab").model_dump_json())
    assert records.read_records() == []
    assert records.update_record(NAME, ended=True) is None
    records.remove_record(NAME)
    assert (tmp_path / f"{NAME}.json").exists()


@pytest.mark.parametrize(
    ("content", "what"),
    [("", "not JSON"), ("[]", "not JSON"), ('{"schema_version": 2}', "schema_version"), ('{"pid": "1"}', "pid")],
)
def test_a_record_that_cannot_be_read_is_unknown_not_absent(tmp_path: Path, content: str, what: str) -> None:
    records = Records(tmp_path, "a")
    records.create_record(record())
    (tmp_path / "rh-a-m-1-12345678-1.json").write_text(content)
    with pytest.raises(RuntimeUnavailableError, match=rf"rh-a-m-1-12345678-1\.json is no record .*{what}.*delete"):
        records.read_records()


def test_a_file_that_a_crash_left_half_written_is_not_a_record(tmp_path: Path) -> None:
    records = Records(tmp_path, "a")
    (tmp_path / f".{NAME}.json.new").write_text("{")
    assert records.read_records() == []
    assert records.create_record(record())
    assert records.read_records() == [record()]


def test_records_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Records(tmp_path / "replicas", "a").create_record(record())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "replicas").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "replicas" / f"{NAME}.json").stat().st_mode) == 0o600


def test_a_full_disk_does_not_hide_what_is_seen(tmp_path: Path) -> None:
    records = Records(tmp_path, "a")
    records.create_record(record())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        changed = records.update_record(NAME, ended=True, exit_code=1)
        with pytest.raises(OSError, match="File too large"):
            records.create_record(record("rh-a-m-1-12345678-1"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert changed is not None
    assert (changed.ended, changed.exit_code) == (True, 1)
    assert records.read_records() == [record()]
