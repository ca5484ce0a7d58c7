"""`.ci/docker`: which processes it takes for a running dockerd."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.runtimes.process.stat import read_stat
from tests.support.wait import until

SCRIPT = Path(__file__).parents[2] / ".ci" / "docker"


@pytest.fixture
def ended_dockerd(tmp_path: Path) -> Iterator[int]:
    """The pid of a `dockerd` that nobody reaps."""
    program = shutil.which("true")
    assert program is not None
    shutil.copy(program, tmp_path / "dockerd")
    with subprocess.Popen([tmp_path / "dockerd"]) as child:
        yield child.pid


async def test_a_zombie_is_no_running_dockerd(ended_dockerd: int, tmp_path: Path) -> None:
    await until("it is a zombie", lambda: (stat := read_stat(ended_dockerd)) is not None and stat.has_ended)
    note = tmp_path / "note"
    note.write_text(f"{ended_dockerd}\n{tmp_path / 'folder'}\n")
    stop = await asyncio.create_subprocess_exec(SCRIPT, "stop", note)
    try:
        async with asyncio.timeout(30):
            assert await stop.wait() == 0
    finally:
        if stop.returncode is None:
            stop.kill()
            await stop.wait()
    assert not note.exists()
