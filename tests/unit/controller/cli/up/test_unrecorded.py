"""`roundhouse up` and `down` where the record of the processes cannot be written, or is gone. Full disks are real."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from controller.cli.exit_codes import ExitCode
from controller.cli.up.record import read_record
from tests.support.small_disk import SmallDisk, mount_small_disk
from tests.support.stand_in_up import ENDED_IN_ORDER, Up, down, runs
from tests.support.wait import until

pytestmark = pytest.mark.slow


@pytest.fixture
async def up(folder: Path) -> AsyncIterator[Up]:
    made = Up(folder)
    yield made
    made.kill_all()


@pytest.fixture
def disk(folder: Path) -> Iterator[SmallDisk]:
    """Where the state folder is."""
    with mount_small_disk(folder / "state") as mounted:
        yield mounted


@pytest.fixture
async def up_on_disk(disk: SmallDisk, up: Up) -> Up:
    """Stand-ins that are killed before the disk is taken away."""
    assert up.state == disk.folder
    return up


async def test_on_a_full_disk_a_child_that_dies_is_started_again(up_on_disk: Up, disk: SmallDisk) -> None:
    up = up_on_disk
    up.start()
    await up.ready()
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
    assert not any(runs(pid) for pid in up.pids())


async def test_down_finds_what_could_not_be_recorded(
    up_on_disk: Up, disk: SmallDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    up = up_on_disk
    up.start()
    await up.ready()
    disk.fill()
    os.kill(read_record(up.state).children["gateway"].pid, signal.SIGKILL)
    await until("it answers again", up.answers)
    gateway = up.pids()[-1]
    assert up.process is not None
    up.process.kill()
    up.process.wait()
    up.start()
    assert await up.ended() == ExitCode.LOCKED
    assert f"gateway (process {gateway})" in up.err
    assert await down(up) == ExitCode.DONE
    assert f"stopped gateway (process {gateway})\n" in capsys.readouterr().out
    assert up.events()[-4:] == ENDED_IN_ORDER
    assert not any(runs(pid) for pid in up.pids())


@pytest.mark.parametrize("is_killed", [False, True])
async def test_down_needs_no_record(up: Up, capsys: pytest.CaptureFixture[str], is_killed: bool) -> None:
    up.start()
    await up.ready()
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
        assert not any(runs(pid) for pid in up.pids())
        assert other.is_running()
        assert all(runs(pid) for pid in other.pids())
    finally:
        other.kill_all()


async def test_what_cannot_be_said_ends_nothing(up_on_disk: Up, disk: SmallDisk) -> None:
    up = up_on_disk
    up.log_folder = up.state
    up.start()
    await up.ready()
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
    assert not any(runs(pid) for pid in up.pids())
