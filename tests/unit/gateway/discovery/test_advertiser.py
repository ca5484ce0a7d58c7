"""What the mDNS advertiser does where there is nothing to advertise, or no network to do it on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.discovery.advert import Advert
from gateway.discovery.advertiser import MdnsAdvertiser
from tests.fakes.gateway_harness import until


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failure_is_said_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def choose() -> Advert | None:
        nonlocal calls
        calls += 1
        if calls in (4, 5):
            return None
        raise OSError("the network is down")

    task = asyncio.create_task(MdnsAdvertiser(choose, recheck_s=0).run())
    await until(lambda: calls > 8)
    await end(task)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["this gateway cannot be advertised by mDNS: the network is down"] * 2


async def test_an_address_that_went_away_is_a_failure_like_another(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def choose() -> Advert | None:
        nonlocal calls
        calls += 1
        return Advert(("203.0.113.9",), 8080, ("203.0.113.9",))

    task = asyncio.create_task(MdnsAdvertiser(choose, recheck_s=0).run())
    await until(lambda: calls > 2)
    assert not task.done()
    await end(task)
    assert "cannot be advertised" in caplog.text
