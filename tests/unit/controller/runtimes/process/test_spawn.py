"""What an engine's process is given, and what its host must have."""

from __future__ import annotations

import gc
import importlib.util
import os
import pkgutil
import socket
import sys
import tomllib
from pathlib import Path

import pytest

from controller.engines import ENGINES
from controller.gpus import Gpu
from controller.runtimes.base import StartError
from controller.runtimes.process.preflight import check_program
from controller.runtimes.process.spawn import check_gpu_support, find_free_port, inherited_environment, spawn_engine
from controller.runtimes.process.stat import boot_id, is_alive, list_stats, read_stat
from worker import engines

PYPROJECT = Path(__file__).parents[5] / "pyproject.toml"


def test_only_what_is_known_to_be_harmless_is_inherited() -> None:
    controller = {
        "PATH": "/bin",
        "LC_TIME": "C",
        "LD_LIBRARY_PATH": "/cuda",
        "ROUNDHOUSE_KEYS": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HF_TOKEN": "secret",
        "http_proxy": "http://proxy",
        "CUDA_VISIBLE_DEVICES": "3",
        "SOME_OTHER": "x",
    }
    assert inherited_environment(controller) == {
        "PATH": "/bin",
        "LC_TIME": "C",
        "LD_LIBRARY_PATH": "/cuda",
        "PYTHONUNBUFFERED": "1",
    }


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


def test_an_exit_code_is_learned_once_and_kept(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        child = spawn_engine(["/bin/sh", "-c", "exit 5"], {}, tmp_path, log.fileno())
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert [child.poll(), child.poll()] == [5, 5]


def test_a_later_start_does_not_take_an_exit_code(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        first = spawn_engine(["/bin/sh", "-c", "exit 5"], {}, tmp_path, log.fileno())
        gc.collect()
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
        second = spawn_engine(["/bin/sh", "-c", "exit 6"], {}, tmp_path, log.fileno())
    os.waitid(os.P_PID, second.pid, os.WEXITED | os.WNOWAIT)
    assert [first.poll(), second.poll()] == [5, 6]


def test_an_exit_code_that_somebody_else_took_is_not_known(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        child = spawn_engine(["/bin/sh", "-c", "exit 5"], {}, tmp_path, log.fileno())
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
    with (tmp_path / "log").open("ab") as log:
        child = spawn_engine([str(program), "600"], {}, tmp_path, log.fileno())
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
