"""What `join` and `leave` refuse before anything is started or asked."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cli.admin_client import AdminClient
from cli.app import run
from cli.output import CommandError, ExitCode
from cli.up import command, hosts
from cli.up.hosts import RAY_ENDS, ControllerRegister, JoinRun, LeaveRun, prepare_head
from cli.up.service import render_unit
from cli.up.supervisor import MARK_ENV, Announcer, ChildSpec, mark_variables
from controller.runtimes.cluster.door import DoorError
from controller.runtimes.cluster.host_actor import JOIN_VARIABLE
from controller.runtimes.cluster.material import HostCredentials, Membership, ensure_material
from controller.runtimes.cluster.ray_node import (
    EXIT_REFUSED,
    _prepare_folder,
    build_environment,
    choose_folder,
    remove_folder,
)
from controller.runtimes.cluster.runtime import NO_HOST
from controller.settings import load_settings
from controller.state_dir import IDENTITY_NAME
from tests.unit.cli.service.test_install import USER_UNIT


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    ensure_material(tmp_path / "head", "abc", is_insecure=False, now=time.time())
    return tmp_path / "head" / "cluster" / "join.json"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["10.0.0.1"], "10.0.0.1 is no HEAD:PORT, as `roundhouse head` prints it"),
        (["unix:/run/x"], "unix:/run/x is no HEAD:PORT"),
        (["127.0.0.1:8093"], "127.0.0.1 is this machine itself, where the head runs"),
        (["10.0.0.1:8093", "--name", "B_b"], "--name B_b: lower case letters"),
        (["10.0.0.1:8093", "--label", "fast"], "--label fast: a label is KEY=VALUE"),
        (["10.0.0.1:8093", "--label", "a=b,c=d"], "--label a=b,c=d: a label is KEY=VALUE"),
        (["10.0.0.1:8093", "--address", "b"], "--address b is no IP address"),
        (["10.0.0.1:8093", "--address", "127.0.0.1"], "--address 127.0.0.1: no other machine reaches this one"),
        (["10.0.0.1:8093", "--address", "203.0.113.9"], "--address 203.0.113.9 is no address of this machine"),
        (["10.0.0.1:8093", "--token-file", "/nowhere"], "there is no file /nowhere: copy the head's"),
    ],
)
def test_a_wrong_command_line_is_refused_and_leaves_no_state(
    arguments: list[str],
    words: str,
    token_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "require_ray", lambda: None)
    state = tmp_path / "state"
    code = run(["join", "--state", str(state), "--token-file", str(token_file), *arguments])
    [line] = capsys.readouterr().err.splitlines()
    assert (code, line[: len(words) + 12]) == (ExitCode.USAGE, f"roundhouse: {words}")
    assert not state.exists()


def test_several_hosts_need_ray(
    token_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "ray" else name)
    for arguments in (["head"], ["leave"], ["join", "10.0.0.1:8093", "--token-file", str(token_file)]):
        assert run(arguments) == ExitCode.FAILED
        assert capsys.readouterr().err == (
            "roundhouse: several hosts need Ray: `pip install 'roundhouse[cluster]'`, or in a clone `.venv/bin/pip "
            "install --require-hashes -r requirements/cluster.txt`\n"
        )


def test_only_a_host_that_has_joined_can_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "require_ray", lambda: None)
    assert run(["leave", "--state", str(tmp_path)]) == ExitCode.FAILED
    assert f"nothing has joined with the state folder {tmp_path}" in capsys.readouterr().err


def test_the_unit_of_a_host_joins() -> None:
    arguments = ("--join", "10.0.0.1:8093", "--token-file", "/root/a b$.json")
    lines = render_unit(replace(USER_UNIT, arguments=arguments)).splitlines()
    [start] = [line for line in lines if line.startswith("ExecStart=")]
    assert start.endswith(' service run "--join" "10.0.0.1:8093" "--token-file" "/root/a b$$.json"')


async def test_a_head_that_never_heard_a_host_lets_the_first_one_in(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = f"the controller refused: {NO_HOST}: none has joined."

    async def list_hosts(_: object) -> None:
        raise CommandError(problem)

    monkeypatch.setattr(AdminClient, "list_hosts", list_hosts)
    register = ControllerRegister(load_settings())
    assert await register.list_hosts() == []
    problem = "the controller refused: the controller has not made its first observation yet."
    with pytest.raises(DoorError) as refused:
        await register.list_hosts()
    assert refused.value.is_passing


def test_what_ray_starts_does_not_count_as_the_program_that_started_ray(tmp_path: Path) -> None:
    environment = {MARK_ENV: "ray node:1:2", "RAY_ADDRESS": "x", "LANG": "C"}
    built = build_environment(environment, HostCredentials.in_state(tmp_path), is_insecure=True)
    assert {"LANG"} == environment.keys() & built.keys()


def test_the_folder_of_ray_s_sockets_is_closed_to_other_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    folder = choose_folder(tmp_path / ("long" * 10))
    assert folder.parent.parent == tmp_path / "tmp"
    _prepare_folder(folder, is_head=False)
    folder.chmod(0o777)  # as Ray does
    (folder / "socket").touch()
    _prepare_folder(folder, is_head=False)
    assert (folder.parent.stat().st_mode & 0o777, list(folder.iterdir())) == (0o700, [])
    remove_folder(tmp_path / ("long" * 10))
    assert not folder.parent.exists()
    folder.parent.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="is a link, another user's or open to others"):
        _prepare_folder(folder, is_head=True)
    folder.parent.unlink()
    folder.parent.mkdir()
    folder.parent.chmod(0o755)
    with pytest.raises(PermissionError):
        _prepare_folder(folder, is_head=False)


@pytest.mark.parametrize("way", ["down", "leave"])
async def test_the_ray_node_of_a_supervisor_that_was_killed_is_ended(tmp_path: Path, way: str) -> None:
    settings = load_settings().model_copy(update={"state": tmp_path, "runtime": "process"})
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    environment = {**os.environ, **mark_variables(tmp_path, "ray node")}
    with subprocess.Popen(argv, env=environment, start_new_session=True) as node:  # noqa: ASYNC220 - it returns at once
        try:
            if way == "down":
                stopped = await command._DownRun(settings, "http://127.0.0.1:1", 5.0).run()
                assert list(stopped) == [f"ray node (process {node.pid})"]
            else:
                member = Membership(head="127.0.0.1:1", name="b", address="127.0.0.1")
                assert await LeaveRun(settings, member, lambda _: None).run(0, is_drained=False) == ExitCode.DONE
            assert node.poll() is not None
        finally:
            node.kill()


async def test_a_join_that_is_refused_ends_no_engines_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def stop_orphans(*_: object, **__: object) -> list[str]:
        return ["an engine that serves"]

    monkeypatch.setattr(hosts, "stop_orphans", stop_orphans)
    (tmp_path / IDENTITY_NAME).touch()
    settings = load_settings().model_copy(update={"state": tmp_path})
    spec = ChildSpec("ray node", (sys.executable, "-c", f"exit({EXIT_REFUSED})"), os.environ, RAY_ENDS)
    assert await JoinRun(settings, [spec], Announcer(as_json=False), ends_engines=True).run() == ExitCode.FAILED
    err = capfd.readouterr().err
    assert err.splitlines()[-1] == "roundhouse: stopped; engines go on, and `roundhouse down` ends them"


def test_each_start_of_a_head_is_a_join_of_its_own_host(tmp_path: Path) -> None:
    settings = load_settings().model_copy(
        update={"state": tmp_path, "runtime": "process", "hosts": ("ray:127.0.0.1:8093",)}
    )
    setups = [
        prepare_head(settings, "a", Announcer(as_json=False), has_engines=True, is_insecure=False) for _ in range(2)
    ]
    first, second = (setup.specs[-1].env.get(JOIN_VARIABLE, "") for setup in setups)
    assert "" != first != second
