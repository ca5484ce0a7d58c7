"""What the thread that listens to the daemon's events survives. Events of a real daemon: test_containers.py."""

from __future__ import annotations

import asyncio

import docker
import pytest

from controller.runtimes.docker import events
from controller.runtimes.docker.events import EventWatch
from tests.fakes.fake_scripted_engine import script, scripted

CUT_OFF = (
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n8\r\n{"Type":\r\n0\r\n\r\n'
)


async def test_a_stream_that_ends_within_an_event_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "FIRST_BACKOFF_S", 0.0)
    async with scripted(*[script(CUT_OFF)] * 3) as daemon, asyncio.timeout(30):
        watch = EventWatch(lambda: docker.APIClient(daemon.url, version="1.41"), [])
        async for _ in watch.watch_wakeups():
            if len(daemon.requests) > 1:
                await watch.close()
