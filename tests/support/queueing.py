"""Clients of a model with few slots, keys, and a clock that a test moves, so that what headers say can be exact."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import aiohttp
import pytest

from contract.keys import Key
from contract.routing import ModelRoute
from tests.fakes.fake_controller import route
from tests.fakes.fake_holding_engine import HoldingEngine, holding
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.gateway_rest import nothing_left
from tests.support.http_client import HttpClient
from tests.support.wait import until

SLOTS = 4


def key(name: str, **fields: Any) -> Key:
    """A key whose secret is `secret-NAME`, and whose tenant is its name."""
    return Key.model_validate(
        {"name": name, "tenant": name, "sha256": sha256(f"secret-{name}".encode()).hexdigest(), **fields}
    )


class Clock:
    """In `time`'s place. Stands until it is moved."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        """Unix time."""
        return 1_700_000_000.0 + self.now

    def clock_gettime(self, clock: int) -> float:
        """Seconds since boot."""
        assert clock == self.CLOCK_BOOTTIME
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every gateway that a test makes. Its timers are the event loop's, and go by real time."""
    clock_by_hand = Clock()
    monkeypatch.setattr("gateway.app.time", clock_by_hand)
    monkeypatch.setattr("common.trusted_clock.time", clock_by_hand)
    return clock_by_hand


@dataclass
class Client:
    """One request under way."""

    tag: str
    task: asyncio.Task[tuple[int, dict[str, str], bytes]]

    async def place(self) -> tuple[int, int, int | None]:
        """Position, depth and estimated wait as its answer's headers say; the answer must be there, or come."""
        status, headers, body = await self.task
        assert status == 200, body
        wait = headers.get("x-estimated-wait-ms")
        return int(headers["x-queue-position"]), int(headers["x-queue-depth"]), None if wait is None else int(wait)

    async def leave(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@dataclass
class Queue:
    """A gateway, its model `m`, and the engine behind it."""

    gateway: GatewayHarness
    engine: HoldingEngine
    clients: dict[str, Client] = field(default_factory=dict)
    sessions: aiohttp.ClientSession = field(init=False)

    def send(self, tag: str, who: str | None = None, **fields: Any) -> Client:
        """A client, with a connection of its own, and the key of that name."""
        client = self.clients[tag] = Client(tag, asyncio.create_task(self._chat(tag, who, fields)))
        return client

    async def _chat(self, tag: str, who: str | None, fields: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        client = HttpClient(self.gateway.url, self.sessions)
        key = f"secret-{who}" if who else None
        reply = await client.chat(**{"tag": tag, **fields}, key=key, headers={"connection": "close"})
        return reply.status, {name.lower(): value for name, value in reply.headers.items()}, reply.content

    async def enter(self, tag: str, who: str | None = None, **fields: Any) -> Client:
        """A client that gets a slot at once."""
        client = self.send(tag, who, **fields)
        await until(f"{tag} is inside", lambda: tag in self.engine.inside)
        return client

    async def wait(self, tag: str, who: str | None = None, **fields: Any) -> Client:
        """A client that has to wait, and has come to the gateway before any that is sent later."""
        before = await self.depth()
        client = self.send(tag, who, **fields)
        await self.depth_is(before + 1)
        return client

    async def refused(self, tag: str, who: str | None = None, **fields: Any) -> tuple[int, dict[str, str], Any]:
        """Status, headers and error of a client that is refused."""

        status, headers, body = await self.send(tag, who, **fields).task
        return status, headers, json.loads(body)["error"]

    async def next_after(self, tag: str) -> str | None:
        """Let `tag` out; who goes in for it, if somebody waits."""
        engine, waits = self.engine, await self.depth()
        count = len(engine.seen)
        engine.release(tag)
        await self.clients[tag].task
        if not waits:
            return None
        await until("the next goes in", lambda: len(engine.seen) > count)
        return engine.seen[-1]

    async def serve_all(self, clock: Clock, takes: Callable[[str], float]) -> list[tuple[str, float]]:
        """Let everybody through, each in its slot for `takes(tag)` seconds of `clock`: tags, and since when inside."""
        begun = [(tag, clock.now) for tag in self.engine.inside]
        ends = [(clock.now + takes(tag), number, tag) for number, (tag, _) in enumerate(begun)]
        heapq.heapify(ends)
        while ends:
            clock.now, _, tag = heapq.heappop(ends)
            following = await self.next_after(tag)
            if following is not None:
                begun.append((following, clock.now))
                heapq.heappush(ends, (clock.now + takes(following), len(begun), following))
        return begun

    async def depth(self) -> int:
        """How many wait, as /health says."""
        return int((await self.gateway.get("/health")).body["queue_depth"])

    async def depth_is(self, count: int) -> None:
        """Wait until so many wait."""

        async def look() -> bool:
            return await self.depth() == count

        await until(f"{count} wait", look)

    async def empty(self) -> None:
        """Wait until nobody is inside or waits, by /metrics, by /health, by the engine, and in what is reported."""

        await nothing_left(self.gateway)
        await until("the engine holds nobody", lambda: not self.engine.inside)
        await self.gateway.idle()


@contextlib.asynccontextmanager
async def queue_at(
    engine: HoldingEngine, *models: ModelRoute, keys: tuple[Key, ...] = (), **settings: Any
) -> AsyncIterator[Queue]:
    """A gateway in front of `engine`, with these models and keys. Whoever still waits at the end goes."""
    connector = aiohttp.TCPConnector(limit=0)
    async with gateway_harness(**settings) as gateway, aiohttp.ClientSession(connector=connector) as sessions:
        await gateway.controller.acknowledged(await gateway.controller.publish(*models, keys=keys))
        queue = Queue(gateway, engine)
        queue.sessions = sessions
        try:
            yield queue
        finally:
            for client in queue.clients.values():
                client.task.cancel()
            await asyncio.gather(*(client.task for client in queue.clients.values()), return_exceptions=True)


@pytest.fixture
async def engine() -> AsyncIterator[HoldingEngine]:
    async with holding() as holding_engine:
        yield holding_engine


def four_slots(engine: HoldingEngine, queue_limit: int = 8) -> ModelRoute:
    return route("m", [engine.url], target_inflight=SLOTS, queue_limit=queue_limit)


async def filled(queue: Queue, who: str | None = None) -> None:
    for number in range(SLOTS):
        await queue.enter(f"first-{number}", who)
