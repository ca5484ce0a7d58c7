"""`roundhouse up` where nobody takes its output: its reader is gone, or reads no more, or its terminal was closed.

The programs and the engines (the stub backend) are real, and so are the pipe and the pseudo-terminal.
"""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from cli.app import run
from cli.output import ExitCode
from cli.up.supervisor import find_children
from tests.support.cli import PROGRAM
from tests.support.roundhouse_stack import REPOSITORY, RoundhouseStack
from tests.support.runtime_fixtures import ProcessRuntimeFixture
from tests.support.stand_in_up import ENDED_IN_ORDER, Up
from tests.support.wait import until

pytestmark = pytest.mark.slow

ANNOUNCEMENT = b"a is ready. Try: curl"
WITH_TERMINAL = ("setsid", "--ctty")
"""Lead a session whose terminal is the standard input, as a shell in a window does."""
WITHOUT_OUTPUT = ("bash", "-c", 'exec "$@" >&- 2>&-', "bash")


class RealUp:
    """`roundhouse up` with one stub model, whose output is what a test gives it."""

    def __init__(self, folder: Path) -> None:
        self.stack = RoundhouseStack(folder, "process", {"ROUNDHOUSE_STOP_TIMEOUT_S": "1", "ROUNDHOUSE_PAGE": "0"})
        self.stack.declare({"a": {"backend": "stub"}})
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, output: int, *, stdin: int = subprocess.DEVNULL, by: Sequence[str] = ()) -> None:
        """`by` is a program that starts it. `output` is closed here: whoever holds its other end sees its end."""
        environment = self.stack.environment()
        # It hides what a failed write leaves behind: lines that the interpreter's end tries to write again.
        environment.pop("PYTHONUNBUFFERED", None)
        command = [*by, str(PROGRAM), "up"]
        self.process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdin=stdin, stdout=output, stderr=output
        )
        os.close(output)

    async def end(self, number: signal.Signals | None = None) -> None:
        """Send a signal, if one is needed: it ends well, and leaves nothing."""
        assert self.process is not None
        if number is not None:
            self.process.send_signal(number)
        assert await asyncio.to_thread(self.process.wait, 60) == ExitCode.DONE
        assert self.has_left() == []

    def has_left(self) -> list[str]:
        """What runs of it: programs and engines."""
        programs = [f"{name} {pid}" for name in ("controller", "gateway") for pid in self.children(name)]
        return [*programs, *ProcessRuntimeFixture().left(self.stack)]

    def children(self, name: str) -> list[int]:
        return [child.pid for child in find_children(self.stack.state, name)]

    def kill_all(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.has_left():
            assert run(["down", "--state", str(self.stack.state), "--runtime", "process"]) == ExitCode.DONE


@pytest.fixture
async def up(folder: Path) -> AsyncIterator[RealUp]:
    made = RealUp(folder)
    yield made
    await asyncio.to_thread(made.kill_all)


@pytest.fixture
async def stand_in_up(folder: Path) -> AsyncIterator[Up]:
    made = Up(folder)
    yield made
    made.kill_all()


async def announced(reader: int) -> None:
    """Read until the first model is announced."""
    seen = b""
    while ANNOUNCEMENT not in seen:
        chunk = await asyncio.to_thread(os.read, reader, 65536)
        assert chunk, seen.decode()
        seen += chunk


def read_until_quiet(reader: int) -> None:
    """Read until nothing has come for a second: two that take the last room of a pipe at the same moment may block."""
    while select.select([reader], [], [], 1.0)[0]:
        os.read(reader, 65536)


def fill_pipe(writer: int) -> None:
    """Write until there is no room."""
    poll = select.poll()
    poll.register(writer, select.POLLOUT)
    while poll.poll(0):
        os.write(writer, b"x" * select.PIPE_BUF)


async def test_without_a_reader_it_serves_and_ends(up: RealUp) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    up.start(writer)
    await up.stack.loaded("a")
    await up.stack.gateway_connected()
    await up.end(signal.SIGTERM)


async def test_a_terminal_that_goes_away_ends_it(up: RealUp) -> None:
    master, terminal = pty.openpty()
    up.start(os.dup(terminal), stdin=terminal, by=WITH_TERMINAL)
    os.close(terminal)
    await announced(master)
    os.close(master)
    await up.end()


async def test_ctrl_c_that_also_ends_the_reader_of_its_output(up: RealUp) -> None:
    """As in `roundhouse up 2>&1 | tee log`."""
    master, terminal = pty.openpty()
    reader, writer = os.pipe()
    up.start(writer, stdin=terminal, by=WITH_TERMINAL)
    os.close(terminal)
    await announced(reader)
    os.close(reader)
    os.write(master, b"\x03")
    try:
        await up.end()
    finally:
        os.close(master)


async def test_a_reader_that_reads_no_more_holds_nothing_up(up: RealUp) -> None:
    """A terminal after Ctrl-S, a pager: the pipe is full, and a write would wait for ever."""
    reader, writer = os.pipe()
    own_writer = os.dup(writer)
    up.start(writer)
    await announced(reader)
    await asyncio.to_thread(read_until_quiet, reader)
    fill_pipe(own_writer)
    os.close(own_writer)
    # It says that it starts the controller again, and that one and the gateway have something to log.
    [controller] = up.children("controller")
    os.kill(controller, signal.SIGKILL)
    await until("it was started again", lambda: up.children("controller") not in ([], [controller]))
    await up.stack.loaded("a")
    try:
        await up.end(signal.SIGTERM)
    finally:
        os.close(reader)


async def test_without_output_it_writes_into_no_other_file(up: RealUp) -> None:
    """Started as `roundhouse up >&- 2>&-`, where the next files that it opens would be its output."""
    up.start(os.open(os.devnull, os.O_WRONLY), by=WITHOUT_OUTPUT)
    await up.stack.loaded("a")
    assert up.process is not None
    programs = [up.process.pid, *up.children("controller"), *up.children("gateway")]
    assert len(programs) == 3
    for pid in programs:
        assert [str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in (1, 2)] == [os.devnull] * 2
    await up.end(signal.SIGTERM)


async def test_a_second_sighup_does_not_force_it(stand_in_up: Up) -> None:
    """A shell whose window is closed passes SIGHUP on, and the kernel sends it once more."""
    up = stand_in_up
    last_request = up.folder / "last-request"
    up.start(GATEWAY_DOES=f"until:{last_request}")
    await up.ready()
    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
        up.send(number)
        await until("it has the signal", lambda: not up.is_running() or not is_pending(up, number))  # noqa: B023
        await until("the gateway was told", lambda: "gateway got SIGTERM" in up.events())
    last_request.touch()
    assert await up.ended() == ExitCode.DONE
    assert up.events()[2:] == ENDED_IN_ORDER
    assert "forced" not in up.err


def is_pending(up: Up, number: signal.Signals) -> bool:
    """Whether the signal was sent and not taken yet."""
    assert up.process is not None
    status = Path(f"/proc/{up.process.pid}/status").read_text()
    return any(int(mask, 16) >> (number - 1) & 1 for mask in re.findall(r"(?:SigPnd|ShdPnd):\s*(\w+)", status))
