"""What the gateway says of loops of its own that end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from assistant.child_process import NICENESS, ChildProcess
from gateway import app
from tests.support.wait import DEADLINE_S, until


async def test_a_loop_that_fails_is_logged_and_one_that_is_cancelled_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise KeyError("a defect")

    async def run() -> None:
        await asyncio.Event().wait()

    failing, running = asyncio.create_task(fail()), asyncio.create_task(run())
    for task in (failing, running):
        task.add_done_callback(app._log_failed_loop)
    await asyncio.wait([failing])
    running.cancel()
    await asyncio.wait([running])
    await asyncio.sleep(0)
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]
    assert "a defect" in caplog.text


async def test_what_a_loop_uses_is_closed_after_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []
    closed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def used() -> AsyncIterator[None]:
        yield
        closed.set()
        await asyncio.sleep(0)
        ended.append("what they use")

    async def loop(name: str) -> None:
        try:
            await closed.wait()
        finally:
            ended.append(name)
        raise RuntimeError("Session is closed")

    async def close(name: str) -> None:
        ended.append(name)

    link = SimpleNamespace(run=partial(loop, "link"), say_goodbye=partial(close, "goodbye"))
    engines = SimpleNamespace(close=partial(close, "engines"))
    loops, close_extension = [partial(loop, "loop")], partial(close, "extension")
    made = app._new_framework_app(cast("Any", link), cast("Any", engines), [used()], close_extension, loops, "")
    async with made.router.lifespan_context(made):
        await asyncio.sleep(0)
    assert ended == ["engines", "extension", "goodbye", "loop", "link", "what they use"]
    assert not caplog.records


ECHO = (sys.executable, "-ISc", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())")
WAIT = (sys.executable, "-ISc", "import time; time.sleep(600)")


async def test_the_output_is_read_to_its_end() -> None:
    data = bytes(range(256)) * 20_000  # more than a pipe holds, both ways
    process = ChildProcess(ECHO, {}, data)
    assert await process.read_output() == data
    assert process.has_ended
    process.send_signal(signal.SIGKILL)  # does nothing


async def test_a_program_that_is_missing_is_an_error() -> None:
    process = ChildProcess(("/nowhere/at-all",), {}, b"")
    with pytest.raises(FileNotFoundError):
        await process.read_output()
    assert process.has_ended


async def test_a_signal_ends_it_also_before_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    may_start = threading.Event()
    start = subprocess.Popen

    def late(*arguments: Any, **options: Any) -> Any:
        assert may_start.wait(DEADLINE_S)
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", late)
    process = ChildProcess(WAIT, {}, b"")
    process.send_signal(signal.SIGTERM)
    assert not process.has_ended
    may_start.set()
    async with asyncio.timeout(DEADLINE_S):
        assert await process.read_output() == b""


async def test_a_signal_reaches_what_the_program_has_started() -> None:
    # The inner process keeps the output open: it is read to the end once that process is gone, too.
    inner = f"import subprocess, sys, time; subprocess.Popen({WAIT!r}); sys.stdin.read(); time.sleep(600)"
    before = set(psutil.Process().children(recursive=True))  # of other tests
    process = ChildProcess((sys.executable, "-ISc", inner), {}, b"")
    await until("it has started another", lambda: len(set(psutil.Process().children(recursive=True)) - before) == 2)
    process.send_signal(signal.SIGKILL)
    async with asyncio.timeout(DEADLINE_S):
        assert await process.read_output() == b""


async def test_the_gateway_comes_first() -> None:
    # The input comes after the priority is set. Another session might have a share of the processors of its own.
    program = "import os, sys; sys.stdin.read(); print(os.getpriority(os.PRIO_PROCESS, 0), os.getsid(0), os.getpgid(0))"
    said = await ChildProcess((sys.executable, "-ISc", program), {}, b"").read_output()
    niceness, session, group = map(int, said.split())
    assert niceness == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    assert session == os.getsid(0)
    assert group != os.getpgid(0)
