"""The gateway's and the controller's own log files, and what they say to journald. Both are real processes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.gateway_process import running
from tests.support.ports import free_port
from tests.support.wait import until

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"


async def start_program(program: str, state: Path, stderr_path: Path, **settings: str) -> asyncio.subprocess.Process:
    """The program as journald starts it: its stderr is the file that JOURNAL_STREAM names."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    with stderr_path.open("w") as stderr:
        stat = os.fstat(stderr.fileno())
        own = {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}", "ROUNDHOUSE_STATE": str(state)}
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", program, env={**clean, **own, **settings}, stderr=stderr
        )


@pytest.mark.parametrize("program", ["controller", "gateway"])
async def test_a_program_keeps_its_log_and_gives_journald_lines_without_times(folder: Path, program: str) -> None:
    (folder / "models.yaml").write_text("models: {}")
    settings = {
        "ROUNDHOUSE_DESIRED": str(folder),
        "ROUNDHOUSE_RUNTIME": "process",
        "ROUNDHOUSE_PORT": str(free_port()),
    }
    process = await start_program(program, folder / "state", folder / "stderr", **settings)
    log_file = folder / "state" / "logs" / f"{program}.log"
    try:
        await until("it listens", lambda: log_file.exists() and "listening on" in log_file.read_text())
    finally:
        process.terminate()
        await process.wait()
    assert re.search(rf"^{TIME} INFO +{program}: .*listening on", log_file.read_text(), re.MULTILINE)
    said = (folder / "stderr").read_text().splitlines()
    assert any(re.match(rf"<6>{program}: .*listening on", line) for line in said)
    assert not any(re.search(TIME, line) for line in said)
    assert "\x1b" not in "".join(said)


async def test_a_gateway_without_a_state_folder_keeps_no_log(folder: Path) -> None:
    state = folder / "state"
    async with running(ROUNDHOUSE_STATE=str(state), ROUNDHOUSE_RESPONSES_RETENTION_H="0"):
        assert not state.exists()


async def test_a_log_is_not_kept_where_it_is_switched_off(folder: Path) -> None:
    async with running(ROUNDHOUSE_STATE=str(folder), ROUNDHOUSE_LOG_MIB="0"):
        assert not (folder / "logs").exists()
