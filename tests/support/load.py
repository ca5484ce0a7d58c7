"""A bounded load of chat requests, each of which is accounted for."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.support.roundhouse_stack import SENTENCE
from tests.support.wait import until

MOST_REQUESTS = 20_000
TIMEOUT = aiohttp.ClientTimeout(total=60)


@dataclass
class Load:
    """What came of the requests to one model. A request is answered in full, refused in words, or lost."""

    model: str
    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By error code: an explicit error, before or in the answer."""
    lost: list[str] = field(default_factory=list)
    """Neither: a broken connection, a silent end, a wrong text."""

    @asynccontextmanager
    async def running(self, url: str, workers: int = 4, **fields: object) -> AsyncIterator[Load]:
        """Keep `workers` requests under way, blocking and streaming in turns, until left."""
        stop = asyncio.Event()
        async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
            tasks = [
                asyncio.create_task(self._work(session, url, stop, stream=bool(number % 2), fields=fields))
                for number in range(workers)
            ]
            try:
                yield self
            finally:
                stop.set()
                await asyncio.gather(*tasks)

    async def more(self, count: int) -> None:
        """Wait until so many more requests were answered."""
        goal = self.answered + count
        await until(f"{count} more answers", lambda: self.answered >= goal)

    async def _work(
        self, session: aiohttp.ClientSession, url: str, stop: asyncio.Event, *, stream: bool, fields: dict[str, object]
    ) -> None:
        body = {"model": self.model, "messages": [{"role": "user", "content": "Hi"}], "stream": stream, **fields}
        for _ in range(MOST_REQUESTS):
            if stop.is_set():
                return
            try:
                async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                    content = await answer.text()
            except (aiohttp.ClientError, TimeoutError) as error:
                self.lost.append(f"{type(error).__name__}: {error}")
                continue
            self._account(content, stream=stream)
            # Refusals come at once; a client that is told to try again waits a little.
            await asyncio.sleep(0.005)

    def _account(self, content: str, *, stream: bool) -> None:
        try:
            events = _events(content) if stream else [json.loads(content)]
        except ValueError:
            self.lost.append(f"not readable: {content[-300:]!r}")
            return
        errors = [event["error"]["code"] for event in events if "error" in event]
        if errors:
            self.refused.update(errors)
        elif _text(events, stream=stream).startswith(SENTENCE):
            self.answered += 1
        else:
            self.lost.append(f"ended early: {content[-300:]!r}")


def _events(content: str) -> list[dict[str, Any]]:
    if not content.lstrip().startswith(("data:", ":")):
        return [json.loads(content)]
    data = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
    if not data or data[-1] != "[DONE]":
        raise ValueError("the stream ended without [DONE]")
    return [json.loads(each) for each in data[:-1]]


def _text(events: list[dict[str, Any]], *, stream: bool) -> str:
    parts = []
    for event in events:
        for choice in event.get("choices") or []:
            message = choice.get("delta" if stream else "message") or {}
            parts.append(message.get("content") or "")
    return "".join(parts)
