"""What systemd runs, with a real controller, gateway and engine: engines outlive it, and `down` ends them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.cli import PROGRAM
from tests.support.http_client import answers
from tests.support.process_engines import read_records
from tests.support.roundhouse_stack import REPOSITORY, RoundhouseStack
from tests.support.wait import until

pytestmark = pytest.mark.engines


@pytest.fixture
async def start_service(folder: Path) -> AsyncIterator[tuple[RoundhouseStack, Callable[[], subprocess.Popen[bytes]]]]:
    stack = RoundhouseStack(folder, "process")
    stack.declare({"m": {"backend": "stub"}})
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        with (folder / "service.log").open("ab") as log:
            command = [str(PROGRAM), "service", "run"]
            started.append(subprocess.Popen(command, cwd=REPOSITORY, env=stack.environment(), stdout=log, stderr=log))
        return started[-1]

    yield stack, start
    await asyncio.to_thread(stack.run_command, "down")
    for process in started:
        process.kill()
        process.wait()


async def test_engines_outlive_the_service_and_down_ends_all(
    start_service: tuple[RoundhouseStack, Callable[[], subprocess.Popen[bytes]]],
) -> None:
    stack, start = start_service

    async def serves(starts: int) -> bool:
        """Whether the gateway of that start answers by the model."""
        if (stack.root / "service.log").read_text().count(" gateway: listening on ") < starts:
            return False
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
        return await answers(f"{stack.url}/v1/chat/completions", "POST", body)

    def engine_pids() -> list[int]:
        return [record.leader.pid for record in read_records(stack).values() if record.leader is not None]

    service = start()
    await until("the model answers", lambda: serves(1))
    engines = engine_pids()
    assert len(engines) == 1
    service.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(service.wait, 60) == 0
    assert engine_pids() == engines
    service = start()
    await until("the model answers", lambda: serves(2))
    service.kill()
    service.wait()
    service = start()
    await until("the killed one's gateway is followed by another", lambda: serves(3))
    assert engine_pids() == engines
    done = await asyncio.to_thread(stack.run_command, "down")
    assert done.returncode == 0, done.stderr
    assert "stopped engine rh-" in done.stdout
    assert await asyncio.to_thread(service.wait, 60) == 0
    assert engine_pids() == []
