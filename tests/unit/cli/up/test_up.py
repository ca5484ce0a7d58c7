"""`roundhouse up`: the real supervision, over stand-ins for the controller and the gateway. Full disks are real."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cli.output import ExitCode
from cli.up import supervisor
from cli.up.run import UpRun
from cli.up.supervisor import Announcer, ChildSpec, read_record
from controller.settings import ControllerSettings
from tests.support.small_disk import SmallDisk, mount_small_disk
from tests.support.stand_in_up import ENDED_IN_ORDER, Up, down, runs
from tests.support.wait import until

pytestmark = pytest.mark.slow


@pytest.fixture
async def up(folder: Path) -> AsyncIterator[Up]:
    made = Up(folder)
    yield made
    made.kill_all()


async def serve(up: Up, *arguments: str, **env: str) -> None:
    """Start it, and wait until its first model is announced."""
    up.start(*arguments, **env)
    await up.ready()


def kill(up: Up) -> None:
    """Kill it alone, and not its children."""
    assert up.process is not None
    up.process.kill()
    up.process.wait()


def runs_of(up: Up) -> list[int]:
    """The stand-ins that run, of all that it has started."""
    return [pid for pid in up.pids() if runs(pid)]


async def test_it_says_how_to_use_the_first_model_and_ends_in_order(up: Up) -> None:
    await serve(up, PATH="/usr/bin:/bin")
    await until("the hint is there", lambda: up.out.count("\n") == 2)
    ready, hint = up.out.splitlines()  # none of a real model: `chat` is not the demo
    assert ready.startswith(f"chat is ready. Try: curl http://127.0.0.1:{up.port}/v1/chat/completions ")
    assert re.fullmatch(r"Other commands: `.*bin/roundhouse status` and so on.*", hint)
    up.send(signal.SIGINT)
    assert await up.ended() == ExitCode.DONE
    events = up.events()
    assert sorted(events[:2]) == ["controller started", "gateway started"]
    assert events[2:] == ENDED_IN_ORDER
    assert not runs_of(up)
    assert not (up.state / "up.json").exists()
    assert "Traceback" not in up.err
    assert f"roundhouse: a new installation begins in {up.state}" in up.err
    assert up.err.splitlines()[-2:] == [
        "roundhouse: stopping: running requests may finish; Ctrl-C again does not wait",
        "roundhouse: stopped",
    ]


async def test_with_keys_it_says_so_and_that_the_first_model_is_ready(up: Up) -> None:
    await serve(up, GATEWAY_DOES="keys")
    url = f"http://127.0.0.1:{up.port}/v1/models"
    assert up.out.splitlines()[0] == (f"chat is ready. Try, with a key: curl {url} -H 'authorization: Bearer rh-...'")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_every_signal_that_ends_a_program_ends_it_in_order(up: Up, number: signal.Signals) -> None:
    await serve(up, "--json")
    assert json.loads(up.out.splitlines()[0])["event"] == "ready"
    up.send(number)
    assert await up.ended() == ExitCode.DONE
    assert not runs_of(up)


async def test_a_second_ctrl_c_does_not_wait(up: Up) -> None:
    await serve(up, GATEWAY_DOES="deaf", CONTROLLER_DOES="deaf")
    up.send(signal.SIGINT)
    await until("the gateway was told", lambda: "gateway got SIGTERM" in up.events())
    assert "controller was asked to end" not in up.events(), "its engines are still needed"
    up.send(signal.SIGINT)
    assert await up.ended() == ExitCode.DONE
    assert not runs_of(up)
    assert "forced: killing the programs" in up.err
    assert "Traceback" not in up.err


DEAF = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
time.sleep(600)
"""


async def test_programs_that_do_not_end_are_killed_within_the_bound(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bound = supervisor.UP_GATEWAY_S + supervisor.UP_PROGRAMS_S + supervisor.UP_LEFT_S
    assert bound < supervisor.UP_ENDS_S <= 40
    assert supervisor.UP_ENGINES_S < supervisor.UP_PROGRAMS_S
    monkeypatch.setenv("ROUNDHOUSE_SHUTDOWN_GRACE_S", "0")
    monkeypatch.setenv("ROUNDHOUSE_PAGE", "0")
    monkeypatch.setattr(supervisor, "UP_SAID_S", 0.1)
    monkeypatch.setattr(supervisor, "UP_GATEWAY_S", 0.2)
    monkeypatch.setattr(supervisor, "UP_PROGRAMS_S", 0.3)
    settings = ControllerSettings(desired=folder, state=folder / "state", models=folder, runtime="process")
    settings.state.mkdir()
    specs = [
        ChildSpec(name, (sys.executable, "-c", DEAF, str(folder / name)), os.environ)
        for name in ("controller", "gateway", "retrieval", "transfers")
    ]
    running = asyncio.create_task(UpRun(settings, specs, Announcer(as_json=False)).run())
    await until("all are deaf", lambda: all((folder / spec.name).exists() for spec in specs))
    pids = [child.pid for child in read_record(settings.state).children.values()]
    os.kill(os.getpid(), signal.SIGINT)
    assert await running == ExitCode.DONE
    assert len(pids) == 4
    assert not any(runs(pid) for pid in pids)
    err = capfd.readouterr().err
    assert "waiting for the gateway to end, 0.1 s more at most" in err
    assert "the gateway did not end within 0.2 s and is killed; its running requests are cut off" in err
    for name in ("retrieval", "transfers", "controller"):
        assert f"the {name} did not end within 0.3 s and is killed; nothing that it accepted is lost" in err


async def test_a_child_that_dies_is_started_again_and_the_record_follows(up: Up) -> None:
    await serve(up)
    before = read_record(up.state).children
    os.kill(before["gateway"].pid, signal.SIGKILL)
    await until("it was started again", lambda: up.events().count("gateway started") == 2)
    await until("the record follows", lambda: read_record(up.state).children["gateway"] != before["gateway"])
    assert read_record(up.state).children["controller"] == before["controller"]
    assert "the gateway was ended by SIGKILL; it is started again in 0.5 s" in up.err
    up.send(signal.SIGTERM)
    assert await up.ended() == ExitCode.DONE


async def test_a_crash_at_the_start_passes(up: Up) -> None:
    await serve(up, CONTROLLER_DOES="exit-once:1")
    assert "the controller ended with exit code 1; it is started again in 0.5 s" in up.err


@pytest.mark.parametrize(
    ("program", "code"), [("GATEWAY", 2), ("GATEWAY", 3), ("CONTROLLER", 2), ("CONTROLLER", 3), ("CONTROLLER", 4)]
)
async def test_what_is_fatal_at_first_is_tried_again_once_all_ran(up: Up, program: str, code: int) -> None:
    await serve(up, **{f"{program}_DOES": f"exit-second:{code}"})
    name = program.lower()
    os.kill(read_record(up.state).children[name].pid, signal.SIGKILL)
    await until("it was started a third time", lambda: up.events().count(f"{name} started") == 3)
    assert f"the {name} ended with exit code {code}; it is started again in 1 s" in up.err
    assert up.is_running()
    other = "controller" if name == "gateway" else "gateway"
    assert up.events().count(f"{other} started") == 1


@pytest.mark.parametrize(
    ("program", "code", "exit_code", "words"),
    [
        ("gateway", 2, ExitCode.USAGE, "a setting is wrong; stopping everything"),
        ("gateway", 3, ExitCode.ADDRESS_TAKEN, "its address is taken; choose another with --host or"),
        ("controller", 2, ExitCode.USAGE, "a setting is wrong"),
        ("controller", 4, ExitCode.LOCKED, "the state folder is in use; `roundhouse down` ends what"),
        ("controller", 5, ExitCode.FAILED, "the runtime does not answer"),
    ],
)
async def test_what_a_new_start_cannot_mend_ends_everything(
    up: Up, program: str, code: int, exit_code: ExitCode, words: str
) -> None:
    up.start(**{f"{program.upper()}_DOES": f"exit:{code}"})
    assert await up.ended() == exit_code
    assert f"the {program} ended: {words}" in up.err
    assert not runs_of(up)


async def test_a_second_up_on_the_same_state_folder_is_refused(up: Up, folder: Path) -> None:
    await serve(up)
    assert up.process is not None
    (folder / "other").mkdir()
    other = Up(folder / "other")
    other.start(ROUNDHOUSE_STATE=str(up.state))
    assert await other.ended() == ExitCode.LOCKED
    assert other.err == (
        f"roundhouse: another `roundhouse up` (process {up.process.pid}) runs on state folder {up.state}; "
        "`roundhouse down` ends it\n"
    )
    assert other.events() == []


async def test_what_a_killed_up_left_is_not_started_beside(up: Up) -> None:
    await serve(up)
    kill(up)
    left = up.pids()
    assert all(runs(pid) for pid in left)
    up.start()
    assert await up.ended() == ExitCode.LOCKED
    assert "an earlier `roundhouse up` left its " in up.err
    assert "`roundhouse down` ends that" in up.err
    assert up.pids() == left
    assert await down(up) == ExitCode.DONE
    assert up.events()[2:] == ENDED_IN_ORDER
    assert not any(runs(pid) for pid in left)
    assert not (up.state / "up.json").exists()


async def test_down_ends_a_running_up_in_order(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    await serve(up)
    assert up.process is not None
    ending = asyncio.create_task(up.ended())
    assert await down(up) == ExitCode.DONE
    assert await ending == ExitCode.DONE
    out, err = capsys.readouterr()
    assert out == f"stopped roundhouse up (process {up.process.pid})\n"
    assert err.startswith(
        f"roundhouse: waiting for roundhouse up (process {up.process.pid}): it lets running requests finish, then ends "
        f"{process_words(up, 'gateway')}, {process_words(up, 'controller')}, the engines; it is killed after 100 s "
        "(--timeout)\n"
    )
    assert "gateway got SIGTERM" in up.events()
    assert "controller was asked to end" in up.events()


def process_words(up: Up, name: str) -> str:
    """The last stand-in of that name, as `down` names it."""
    [*_, pid] = re.findall(rf"{name} started (\d+)", up.events_file.read_text())
    return f"{name} (process {pid})"


async def test_down_kills_an_up_that_does_not_end_and_does_its_work(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    await serve(up)
    assert up.process is not None
    up.send(signal.SIGSTOP)
    assert await down(up, "--timeout", "2") == ExitCode.DONE
    assert await up.ended() == -signal.SIGKILL
    out, err = capsys.readouterr()
    up_words = f"roundhouse up (process {up.process.pid})"
    assert out.splitlines() == [
        f"killed {up_words}, which did not end within 2 s",
        f"stopped {process_words(up, 'gateway')}",
        f"stopped {process_words(up, 'controller')}",
    ]
    assert f"{up_words} did not end within 2 s: it is killed, and what it leaves is ended\n" in err
    assert f"waiting for {process_words(up, 'gateway')}: it lets running requests finish; it is killed after 2 s" in err
    assert up.events()[2:] == ENDED_IN_ORDER
    assert not runs_of(up)
    assert not (up.state / "up.json").exists()


async def test_down_kills_what_a_killed_up_left_and_does_not_end(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    await serve(up, GATEWAY_DOES="deaf", CONTROLLER_DOES="deaf")
    kill(up)
    gateway, controller = process_words(up, "gateway"), process_words(up, "controller")
    assert await down(up, "--timeout", "0.5", "--json") == ExitCode.DONE
    assert json.loads(capsys.readouterr().out) == {"stopped": [gateway, controller], "killed": [gateway, controller]}
    assert not runs_of(up)


@pytest.fixture
def disk(folder: Path) -> Iterator[SmallDisk]:
    """Where the state folder is."""
    with mount_small_disk(folder / "state") as mounted:
        yield mounted


@pytest.fixture
async def up_on_disk(disk: SmallDisk, up: Up) -> Up:
    """One whose stand-ins are killed before the disk is taken away."""
    assert up.state == disk.folder
    return up


async def test_on_a_full_disk_a_child_that_dies_is_started_again(up_on_disk: Up, disk: SmallDisk) -> None:
    up = up_on_disk
    await serve(up)
    before = read_record(up.state).children
    disk.fill()
    os.kill(before["gateway"].pid, signal.SIGKILL)
    await until("it answers again", up.answers)
    os.kill(before["controller"].pid, signal.SIGKILL)
    await until("it was started again", lambda: up.events().count("controller started") == 2)
    assert up.is_running()
    assert read_record(up.state).children == before, "it could not be written"
    line = f"what runs cannot be recorded in {up.state}/up.json (No space left on device); `down` finds it"
    await until("it was said", lambda: line in up.err)
    assert up.err.count("cannot be recorded") == 1
    disk.free()
    os.kill(up.pids()[-1], signal.SIGKILL)
    await until("the record follows", lambda: read_record(up.state).children["controller"].pid == up.pids()[-1])
    up.send(signal.SIGTERM)
    assert await up.ended() == ExitCode.DONE
    assert not runs_of(up)


async def test_down_finds_what_could_not_be_recorded(
    up_on_disk: Up, disk: SmallDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    up = up_on_disk
    await serve(up)
    disk.fill()
    os.kill(read_record(up.state).children["gateway"].pid, signal.SIGKILL)
    await until("it answers again", up.answers)
    gateway = up.pids()[-1]
    kill(up)
    up.start()
    assert await up.ended() == ExitCode.LOCKED
    assert f"gateway (process {gateway})" in up.err
    assert await down(up) == ExitCode.DONE
    assert f"stopped gateway (process {gateway})\n" in capsys.readouterr().out
    assert up.events()[-4:] == ENDED_IN_ORDER
    assert not runs_of(up)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_down_needs_no_record(up: Up, capsys: pytest.CaptureFixture[str], is_killed: bool) -> None:
    await serve(up)
    assert up.process is not None
    (up.state / "up.json").unlink()
    if is_killed:
        up.process.kill()
    ending = asyncio.create_task(up.ended())
    if is_killed:
        await ending
    # Somebody else's, of another state folder.
    (up.folder / "other").mkdir()
    other = Up(up.folder / "other")
    other.start()
    try:
        await other.ready()
        assert await down(up) == ExitCode.DONE
        said = capsys.readouterr().out
        assert (f"stopped roundhouse up (process {up.process.pid})\n" == said) is not is_killed
        await ending
        assert up.events()[2:] == ENDED_IN_ORDER
        assert not runs_of(up)
        assert other.is_running()
        assert all(runs(pid) for pid in other.pids())
    finally:
        other.kill_all()


async def test_what_cannot_be_said_ends_nothing(up_on_disk: Up, disk: SmallDisk) -> None:
    up = up_on_disk
    up.log_folder = up.state
    await serve(up)
    before = read_record(up.state).children
    disk.fill()
    os.kill(before["gateway"].pid, signal.SIGKILL)
    await until("it answers again", up.answers)
    os.kill(up.pids()[-1], signal.SIGKILL)
    await until("it was started again", lambda: up.events().count("gateway started") == 3)
    await until("it answers once more", up.answers)
    assert up.is_running()
    up.send(signal.SIGTERM)
    await up.ended()
    assert up.events()[-4:] == ENDED_IN_ORDER
    assert not runs_of(up)
