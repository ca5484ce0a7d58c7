"""Engines as processes: what they are given, which count as a replica's, and the records of them."""

from __future__ import annotations

import gc
import importlib.util
import os
import pkgutil
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.engines import ENGINES
from controller.hosts import Gpu
from controller.runtimes.base import RuntimeUnavailableError, StartError
from controller.runtimes.process import groups
from controller.runtimes.process.groups import (
    START_ENV,
    Process,
    ReplicaMark,
    boot_id,
    find_leader,
    group_members,
    is_alive,
    list_stats,
    read_stat,
    send_signal,
)
from controller.runtimes.process.launch import (
    Child,
    Records,
    ReplicaRecord,
    check_gpu_support,
    check_program,
    find_free_port,
    inherited_environment,
    spawn_engine,
)
from controller.state import ReplicaId
from worker import engines

PYPROJECT = Path(__file__).parents[5] / "pyproject.toml"


def test_only_what_is_known_to_be_harmless_is_inherited() -> None:
    harmless = {"PATH": "/bin", "LC_TIME": "C", "LD_LIBRARY_PATH": "/cuda"}
    secrets = dict.fromkeys(("ROUNDHOUSE_KEYS", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"), "secret")
    others = {"http_proxy": "http://proxy", "CUDA_VISIBLE_DEVICES": "3", "SOME_OTHER": "x"}
    assert inherited_environment(harmless | secrets | others) == harmless | {"PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize("backend", ["vllm", "vllm_serve"])
def test_an_engine_that_takes_gpus_by_number_gets_no_mig_instance(backend: str) -> None:
    # vllm-project/vllm#41848: int("MIG-..."); 0.32 takes the instance's number for that of a GPU.
    instance = Gpu("MIG-377e0049-554c-540b-93c6-d0976f8426cb", 0, "fake", 1, mig=1)
    whole = Gpu("GPU-a", 1, "fake", 1)
    check_gpu_support(ENGINES[backend], [whole])
    check_gpu_support(ENGINES["llama_server"], [instance])
    with pytest.raises(StartError, match=f"{backend} as a process cannot use the MIG instance 0:1") as caught:
        check_gpu_support(ENGINES[backend], [instance])
    assert caught.value.permanent


def test_a_free_port_is_free_and_not_yet_given_away() -> None:
    port = find_free_port("127.0.0.1", ())
    with socket.create_server(("127.0.0.1", port)):
        pass
    with pytest.raises(StartError, match=r"no port is free on 127\.0\.0\.1"):
        find_free_port("127.0.0.1", range(65536))
    with pytest.raises(StartError, match=r"no port can be had on 192\.0\.2\.1"):
        find_free_port("192.0.2.1", ())


def test_a_command_line_that_cannot_be_passed_is_a_permanent_error(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="embedded null byte") as caught:
        spawn_engine([sys.executable, "a\0b"], {}, tmp_path, 1)
    assert caught.value.permanent
    with pytest.raises(StartError, match="Argument list too long") as caught:
        spawn_engine([sys.executable, "x" * 2**22], {}, tmp_path, 1)
    assert not caught.value.permanent


def spawn(tmp_path: Path, *argv: str) -> Child:
    with (tmp_path / "log").open("ab") as log:
        return spawn_engine(argv, {}, tmp_path, log.fileno())


def test_an_exit_code_is_learned_once_and_no_later_start_takes_it(tmp_path: Path) -> None:
    first = spawn(tmp_path, "/bin/sh", "-c", "exit 5")
    gc.collect()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    second = spawn(tmp_path, "/bin/sh", "-c", "exit 6")
    os.waitid(os.P_PID, second.pid, os.WEXITED | os.WNOWAIT)
    assert [first.poll(), second.poll(), first.poll()] == [5, 6, 5]


def test_an_exit_code_that_somebody_else_took_is_not_known(tmp_path: Path) -> None:
    child = spawn(tmp_path, "/bin/sh", "-c", "exit 5")
    os.waitpid(child.pid, 0)
    assert [child.poll(), child.poll()] == [None, None]


def test_a_program_must_be_there_and_executable(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    plain.chmod(0o644)
    assert check_program(["sh"]) is None
    assert check_program(["/bin/sh"]) is None
    assert check_program(["no-such-program"]) == "program no-such-program is not on PATH"
    assert check_program([str(tmp_path / "x")]) == f"program {tmp_path}/x does not exist"
    assert check_program([str(plain)]) == f"program {plain} is not an executable file"
    assert check_program([str(tmp_path)]) == f"program {tmp_path} is not an executable file"
    assert check_program(["bin/x"]) == "program bin/x is a relative path: give an absolute one, or a name on PATH"


@pytest.mark.parametrize(
    ("engine", "package", "extra"), [("llama_cpp", "llama_cpp", "llama-cpp"), ("llama_server", "xllamacpp", "embedded")]
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, engine: str, package: str, extra: str
) -> None:
    asked = []

    def find_spec(name: str) -> None:
        asked.append(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    wrong = check_program([sys.executable, "-m", "worker", engine, "--model", "m"])
    assert wrong == f"Python package {package} is not installed: pip install 'roundhouse[{extra}]'"
    assert asked == [package]
    assert check_program([sys.executable, "-m", "worker", "stub"]) is None
    assert check_program(["/bin/sh", "-m", "worker", engine]) is None


def test_every_engine_of_the_worker_has_its_package_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    modules = {each.name for each in pkgutil.iter_modules(engines.__path__)}
    for engine in {*modules, "llama_server", "vllm"} - {"stub"}:
        wrong = check_program([sys.executable, "-m", "worker", engine])
        assert wrong is not None, engine
        assert wrong.partition("[")[2].removesuffix("]'") in extras


def test_looking_for_a_package_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)  # another file's test may have imported it
    check_program([sys.executable, "-m", "worker", "llama_server"])
    assert "xllamacpp" not in sys.modules


def test_this_process_is_alive_and_no_other_with_its_pid() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    assert (stat.parent, stat.session, stat.has_ended) == (os.getppid(), os.getsid(0), False)
    assert is_alive(stat.process)
    assert stat.process in {each.process for each in list_stats()}
    assert read_stat(2**22 + 1) is None
    assert boot_id() == boot_id()


def test_a_command_name_may_hold_anything(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (\u00fc"
    program.symlink_to("/bin/sleep")
    child = spawn(tmp_path, str(program), "600")
    stat = read_stat(child.pid)
    assert stat is not None
    assert (stat.parent, stat.session) == (os.getpid(), child.pid)
    os.kill(child.pid, 9)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    zombie = read_stat(child.pid)
    assert zombie is not None
    assert zombie.has_ended
    assert not is_alive(zombie.process)
    assert child.poll() == -9


@pytest.fixture
def stranger() -> Iterator[Process]:
    """A process that leads a session and carries no mark."""
    with subprocess.Popen(["sleep", "600"], env={}, start_new_session=True) as child:
        stat = read_stat(child.pid)
        assert stat is not None
        yield stat.process
        child.kill()


def mark(folder: Path, leader: Process | None = None, start_id: str = "0123") -> ReplicaMark:
    return ReplicaMark(start_id, folder / "work", folder / "log", leader)


def test_a_member_leads_or_was_known_as_one(stranger: Process, tmp_path: Path) -> None:
    assert group_members(mark(tmp_path)) == []
    earlier = Process(stranger.pid, stranger.start_ticks - 1)
    assert group_members(mark(tmp_path, earlier)) == []
    assert find_leader(mark(tmp_path, earlier)) is None
    assert group_members(mark(tmp_path, stranger)) == [stranger]
    assert group_members(mark(tmp_path), {stranger, earlier}) == [stranger]


def test_the_start_id_is_compared_as_a_whole(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], env={START_ENV: "01234", "X": f"{START_ENV}=0123"}) as child:
        stat = read_stat(child.pid)
        assert stat is not None
        assert group_members(mark(tmp_path)) == []
        assert group_members(mark(tmp_path, start_id="01234")) == [stat.process]
        assert find_leader(mark(tmp_path, start_id="01234")) is None, "it leads no session"
        child.kill()


def test_an_environment_that_is_empty_for_a_moment_is_read_again(
    stranger: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / str(stranger.pid)
    folder.mkdir()
    (folder / "exe").symlink_to("/bin/sleep")
    (folder / "environ").touch()
    (folder / "stat").write_text(Path(f"/proc/{stranger.pid}/stat").read_text())
    monkeypatch.setattr(groups, "PROC", tmp_path)
    assert group_members(mark(tmp_path)) == []
    text = f"A=1\0{START_ENV}=0123\0".encode()
    monkeypatch.setattr(time, "sleep", lambda seconds: (folder / "environ").write_bytes(text))
    assert group_members(mark(tmp_path)) == [stranger]


def test_a_process_that_is_hidden_from_this_user_is_left_out(
    stranger: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.parent.name == "1":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert stranger in {each.process for each in list_stats()}


def test_a_signal_reaches_exactly_the_process_that_was_meant(stranger: Process) -> None:
    send_signal(Process(stranger.pid, stranger.start_ticks - 1), signal.SIGKILL)
    send_signal(Process(2**22 + 1, 1), signal.SIGKILL)
    assert os.waitpid(stranger.pid, os.WNOHANG) == (0, 0)
    send_signal(stranger, signal.SIGTERM)
    ended = os.waitid(os.P_PID, stranger.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    assert ended.si_status == signal.SIGTERM
    send_signal(stranger, signal.SIGKILL)


NAME = "rh-a-m-0-12345678-1"


def record(name: str = NAME, instance: str = "a") -> ReplicaRecord:
    replica = {"model": "org/m:1", "index": 0, "spec_hash": "1234567890abcdef", "attempt": 1, "created_at": 1.5}
    process = {"start_id": "00", "boot_id": "boot", "host": "127.0.0.1", "port": 1234, "argv": ("program", "--flag")}
    return ReplicaRecord.model_validate(
        {"instance": instance, "name": name, "claims": {"GPU-a": 10}, **replica, **process}
    )


def test_a_record_is_what_was_written_and_private(tmp_path: Path) -> None:
    records = Records(tmp_path / "replicas", "a")
    before = os.umask(0)
    try:
        assert records.create_record(record())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "replicas").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "replicas" / f"{NAME}.json").stat().st_mode) == 0o600
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


def test_a_record_is_created_and_removed_once_and_a_half_written_file_is_none(tmp_path: Path) -> None:
    records = Records(tmp_path, "a")
    (tmp_path / f".{NAME}.json.new").write_text("{")  # as a crash leaves it
    assert records.read_records() == []
    assert records.create_record(record())
    assert not records.create_record(record().model_copy(update={"port": 1}))
    assert records.read_records() == [record()]
    records.remove_record(NAME)
    assert records.update_record(NAME, ended=True) is None
    records.remove_record(NAME)
    assert records.read_records() == []
    assert [each.name for each in tmp_path.iterdir()] == [f".{NAME}.json.new"], "what the crash left, and no more"


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
