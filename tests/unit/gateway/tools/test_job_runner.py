"""Processes of tools: the event loop goes on while they are started, and their places are given back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from gateway.tenancy.api_keys import ANONYMOUS
from gateway.tools.files import job_runner
from gateway.tools.files.job_runner import AT_ONCE, JobRunner
from gateway.tools.spec import ToolCall
from tests.support.wait import DEADLINE_S

WAIT = (sys.executable, "-ISc", "import time; time.sleep(600)")


def call() -> ToolCall:
    """A call of a tool."""
    return ToolCall(ANONYMOUS, "anonymous", {}, "req-1", 30.0, 64 * 1024)


async def test_the_event_loop_goes_on_while_a_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, went_on = asyncio.get_running_loop(), threading.Event()
    start = subprocess.Popen

    def slow(*arguments: Any, **options: Any) -> Any:
        loop.call_soon_threadsafe(went_on.set)
        assert went_on.wait(DEADLINE_S)
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", slow)
    result = await JobRunner().run_job(call(), "html_text", {"charset": "utf-8"}, data=b"<p>Coal</p>")
    assert went_on.is_set()
    assert (result.text.strip(), result.is_error) == ("Coal", False)


async def test_calls_that_are_cancelled_give_their_places_back(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = JobRunner()
    with monkeypatch.context() as patched:
        patched.setattr(job_runner, "_PROGRAM", WAIT)
        asked = [asyncio.create_task(jobs.run_job(call(), "html_text", {})) for _ in range(2 * AT_ONCE)]
        await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        assert [type(each) for each in await asyncio.gather(*asked, return_exceptions=True)] == (
            [asyncio.CancelledError] * 2 * AT_ONCE
        )
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(AT_ONCE):
            assert not (await jobs.run_job(call(), "html_text", {"charset": "utf-8"}, data=b"x")).is_error


async def test_a_process_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = JobRunner()
    with monkeypatch.context() as patched:
        patched.setattr(job_runner, "_PROGRAM", ("/nowhere/at-all",))
        for _ in range(AT_ONCE + 1):
            with pytest.raises(RoundhouseError, match="does not start: No such file") as raised:
                await jobs.run_job(call(), "html_text", {})
            assert raised.value.entry.code == "tool_failed"
    assert not (await jobs.run_job(call(), "html_text", {"charset": "utf-8"}, data=b"x")).is_error


async def test_an_answer_that_ends_early_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for said in ("", "{", '{"text_bytes": 5}\nCoal', "Coal"):
        monkeypatch.setattr(job_runner, "_PROGRAM", (sys.executable, "-ISc", f"print({said!r}, end='')"))
        with pytest.raises(RoundhouseError, match="ended at its limits"):
            await JobRunner().run_job(call(), "html_text", {})
