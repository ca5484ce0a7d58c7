"""Load for a monitored site: of every kind that a panel or an alert is about."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp

from tests.support.monitored_site import SECRETS, MonitoredSite


class SiteLoad:
    """Clients of a site. Each public method is one thing that clients do, or that befalls the site."""

    def __init__(self, site: MonitoredSite, seed: int = 1) -> None:
        self._site = site
        self._chance = random.Random(seed)
        self._turn = itertools.count()

    async def ask_in_turn(self) -> None:
        """One blocking and one streamed request to `chat`, by different keys and clients."""
        key = self._chance.choice(["research", "research", "website"])
        client = self._chance.choice(["notebook", "crawler", "chat-page", "coding-agent"])
        words = " ".join(["word"] * self._chance.randint(5, 400))
        await self._chat("chat", key, client=client, words=words, stream=True)
        await self._chat("chat", "website", client=client, words=words)

    async def overload(self) -> None:
        """More requests at a time than `small` has places for: some wait, some are refused."""
        await asyncio.gather(*(self._chat("small", "research", words="a") for _ in range(4)))

    async def swap(self) -> None:
        """Requests to two models, of which only one fits beside the others."""
        await self._chat("coder", "research")
        await self._chat("writer", "research")

    async def meet_faults(self) -> None:
        """A server that answers 500, breaks off streams, and is left by a client; and requests that are refused."""
        await self._chat("elsewhere", "research", fault="error_json")
        await self._chat("elsewhere", "research", fault="die_before_answer")
        await self._chat("elsewhere", "research", fault="die_mid_stream", stream=True)
        await self._leave("chat")
        await self._chat("nothing-like-that", "research")
        await self._chat("chat", "nobody")
        await self._chat("small", "batch")

    async def take_turns(self) -> None:
        """A session's two turns, with an engine that has some of the prompt cached, and with one that has nothing."""
        name = f"session-{next(self._turn)}"
        first = [{"role": "user", "content": "Hi"}]
        second = [*first, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "More"}]
        for model, messages in itertools.product(("elsewhere", "forgetful", "clockwork"), (first, second)):
            await self._chat(model, "website", session_id=name, messages=messages)

    async def store_and_read(self) -> None:
        """A response that is stored, and a resumable stream that is read again."""
        await self._post("/v1/responses", "research", {"model": "chat", "input": "Hi", "store": True})
        name = {"X-Conversation-Id": f"conv-{next(self._turn) % 5}"}
        await self._chat("chat", "research", stream=True, headers=name)
        url = f"{self._site.gateway_url}/v1/stream/{name['X-Conversation-Id']}"
        async with self._site.client.get(url, headers=_authorize("research")) as answer:
            await answer.read()

    async def search(self) -> None:
        text = f"Coal is stored beside shed {next(self._turn) % 40}."
        async with self._site.client.post(
            f"{self._site.gateway_url}/v1/documents?wait=true", data=text, headers=_authorize("research")
        ) as answer:
            await answer.read()
        await self._post("/v1/search", "research", {"query": "coal"})

    async def call_tools(self) -> None:
        """Calls that succeed, that fail, that take too long, and that are refused."""
        for tool, params in (
            ("current_time", {}),
            ("calculate", {"expression": "2 ** 10"}),
            ("calculate", {"expression": "1 / 0"}),
            ("weather__add", {"a": 1, "b": 2}),
            ("weather__add", {"a": "one"}),
            ("weather__wait", {"seconds": 60}),
        ):
            await self._post("/tools", "research", {"tool": tool, "params": params})

    async def crash(self) -> None:
        """One engine of `chat` is killed."""
        pids = {name: pid for name, pid in self._site.engine_pids().items() if "-chat-" in name}
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[min(pids)], signal.SIGKILL)

    async def _leave(self, model: str) -> None:
        """Read the beginning of a stream, and close the connection."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        url = f"{self._site.gateway_url}/v1/chat/completions"
        async with self._site.client.post(url, json=body, headers=_authorize("research")) as answer:
            await answer.content.readany()
            answer.close()

    async def _chat(self, model: str, key: str, *, client: str = "test", words: str = "Hi", **fields: Any) -> None:
        headers = {"X-Client-Id": client, **fields.pop("headers", {})}
        body = {"model": model, "messages": [{"role": "user", "content": words}], **fields}
        await self._post("/v1/chat/completions", key, body, headers)

    async def _post(self, path: str, key: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        """Send a request and read its answer, whatever it is."""
        url = self._site.gateway_url + path
        with contextlib.suppress(aiohttp.ClientError):
            async with self._site.client.post(url, json=body, headers=_authorize(key) | (headers or {})) as answer:
                await answer.read()


def _authorize(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRETS.get(key, 'unknown-secret')}"}


@contextlib.asynccontextmanager
async def under_load(site: MonitoredSite, *, crash_every_s: float) -> AsyncIterator[None]:
    """Send load of all kinds while the block runs, and crash an engine every so many seconds.

    An error of the load itself fails the block's end.
    """
    load = SiteLoad(site)
    await site.controller.find_drift()

    async def repeat(act: Callable[[], Awaitable[None]], pause_s: float, first_s: float = 0.0) -> None:
        await asyncio.sleep(first_s)
        while True:
            await act()
            await asyncio.sleep(pause_s)

    acts = (
        (load.ask_in_turn, 0.05),
        (load.ask_in_turn, 0.3),
        (load.overload, 0.5),
        (load.swap, 3.0),
        (load.meet_faults, 0.4),
        (load.take_turns, 0.4),
        (load.store_and_read, 0.5),
        (load.search, 0.3),
        (load.call_tools, 0.5),
    )
    tasks = [asyncio.create_task(repeat(act, pause_s)) for act, pause_s in acts]
    tasks.append(asyncio.create_task(repeat(load.crash, crash_every_s, crash_every_s / 2)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [each for each in ended if isinstance(each, Exception)]
    if failed:
        raise ExceptionGroup("the load failed", failed)
