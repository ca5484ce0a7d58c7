"""A client that leaves: the engine cancels what it generates, and says so itself.

How soon is a campaign's business: tests/campaigns/campaign_cancellation.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from tests.support.campaign import campaign_count
from tests.support.gateway_rest import nothing_left
from tests.support.http_client import HttpClient
from tests.support.llama_slots import ENDLESS, LlamaSlots, endless_stack, slots_of
from tests.support.roundhouse_stack import RoundhouseStack

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

MESSAGES = [{"role": "user", "content": "Hi"}]
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    # path: the field that bounds the answer, the rest
    "/v1/chat/completions": ("max_tokens", {"messages": MESSAGES}),
    "/v1/completions": ("max_tokens", {"prompt": "<|assistant|>"}),
    "/v1/responses": ("max_output_tokens", {"input": "Hi"}),
    "/v1/messages": ("max_tokens", {"messages": MESSAGES}),
}
TIMES = campaign_count(1, 10)


@pytest.fixture(scope="module")
def stack() -> Iterator[RoundhouseStack]:
    with endless_stack() as stack:
        yield stack


async def leave(stack: RoundhouseStack, slots: LlamaSlots, path: str, limit: int, *, stream: bool) -> float:
    """Ask for `limit` tokens and go, once the engine generates: seconds until its slot is free."""
    bound, fields = ASKED[path]
    body = {"model": "chat", "temperature": 0, "stream": stream, bound: limit, **fields}
    async with aiohttp.ClientSession() as leaving:
        call = asyncio.create_task(_read(leaving, stack.url + path, body))
        task = await slots.task_of(limit)
        assert not call.done()
        left_at = time.monotonic()
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call

    await slots.cancelled(task)
    return time.monotonic() - left_at


async def _read(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
    async with session.post(url, json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for _ in answer.content.iter_any():
            pass


@contextlib.asynccontextmanager
async def kept_busy(stack: RoundhouseStack, slots: LlamaSlots) -> AsyncIterator[None]:
    """Others at work: one that generates all the time, and one that asks again and again."""

    async def again() -> None:
        body = {"model": "chat", "messages": MESSAGES, "max_tokens": 16}
        async with aiohttp.ClientSession() as session:
            while True:
                await _read(session, f"{stack.url}/v1/chat/completions", body)

    async def endless() -> None:
        body = {"model": "chat", "messages": MESSAGES, "max_tokens": ENDLESS, "stream": True}
        async with aiohttp.ClientSession() as session:
            while True:
                await _read(session, f"{stack.url}/v1/chat/completions", body)

    tasks = [asyncio.create_task(again()), asyncio.create_task(endless())]
    try:
        await slots.task_of(ENDLESS)
        yield
    finally:
        assert not [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measured(stack: RoundhouseStack, *, stream: bool, busy: bool) -> dict[str, list[float]]:
    """By path, the seconds after which the engine had stopped. Nothing may be left."""
    limits = itertools.count(ENDLESS + 1)
    times: dict[str, list[float]] = {path: [] for path in ASKED}
    async with slots_of(stack, "chat") as slots:
        async with kept_busy(stack, slots) if busy else contextlib.nullcontext():
            for path in list(ASKED) * TIMES:
                times[path].append(await leave(stack, slots, path, next(limits), stream=stream))
        await slots.idle()
    async with aiohttp.ClientSession() as session:
        await nothing_left(HttpClient(stack.url, session))
    return times


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("stream", [False, True], ids=["blocking", "streaming"])
async def test_the_engine_stops_when_its_client_leaves(stack: RoundhouseStack, stream: bool, busy: bool) -> None:
    times = await measured(stack, stream=stream, busy=busy)
    assert [len(seen) for seen in times.values()] == [TIMES] * len(ASKED)
