"""What the gateway says of loops of its own that end."""

from __future__ import annotations

import asyncio

import pytest

from gateway import app


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
