"""What a llama-server says of itself, behind the gateway's back."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.runtime_fixtures import stack_of_processes, token_of
from tests.support.wait import until
from worker.clockwork import make_vocabulary, make_weights, write_gguf

LONG_CONTEXT = 131_072
ENDLESS = 100_000
"""Tokens that take a llama-server on the clockwork model half a minute and more."""


def make_endless(path: Path) -> None:
    """A clockwork model that begins again where it would end: it stops only where it is told to."""
    vocabulary = make_vocabulary()
    first = vocabulary.chain[1]
    weights = make_weights(replace(vocabulary, chain=(*vocabulary.chain[:-1], first)))
    write_gguf(path, vocabulary, weights, LONG_CONTEXT)


@contextlib.contextmanager
def endless_stack() -> Iterator[RoundhouseStack]:
    """A stack with a llama-server of four slots that generates for as long as it is asked to; nothing may be left.

    Every blocking call is gathered: of answers that are expected soon, the engine would not notice who leaves.
    """
    with stack_of_processes(ROUNDHOUSE_GATHER_AFTER_S="0") as stack:
        make_endless(stack.models / "long.gguf")
        model = {"model_path": "long.gguf", "llama_server_n_ctx": LONG_CONTEXT, "llama_server_threads": 1}
        stack.declare({"chat": model})
        asyncio.run(stack.open("chat"))
        yield stack


@dataclass
class Sample:
    """The most that was seen at a time, by looking often."""

    looks: int = 0
    slots: int = 0
    processing: float = 0
    deferred: float = 0


@dataclass
class LlamaSlots:
    url: str
    session: aiohttp.ClientSession
    log: Path
    """What it writes."""
    most: Sample = field(default_factory=Sample)

    async def busy(self) -> list[dict[str, Any]]:
        async with self.session.get(f"{self.url}/slots") as answer:
            return [slot for slot in await answer.json() if slot["is_processing"]]

    async def figures(self) -> dict[str, float]:
        """Its metrics, without their prefix."""
        async with self.session.get(f"{self.url}/metrics") as answer:
            lines = [line for line in (await answer.text()).splitlines() if line.startswith("llamacpp:")]
        return {name: float(value) for name, value in (line[9:].split() for line in lines if "{" not in line)}

    async def task_of(self, limit: int) -> int:
        """Wait until the request that asked for `limit` tokens, and no other did, generates: the engine's id of it."""

        async def look() -> int | None:
            for slot in await self.busy():
                if slot["params"]["n_predict"] == limit and slot["next_token"][0]["n_decoded"] > 0:
                    return int(slot["id_task"]) + 1
            return None

        found: int = await until(f"the engine generates {limit} tokens", look)
        return found - 1

    async def cancelled(self, task: int) -> None:
        """Wait until the engine has given up that task, which it says only of one that was not at its end, and its slot
        works on it no more."""
        pattern = re.compile(rf"cancel task, id_task = {task}\b")
        await until(f"the engine cancels task {task}", lambda: pattern.search(self.log.read_text(errors="replace")))

        async def is_free() -> bool:
            return all(slot["id_task"] != task for slot in await self.busy())

        await until(f"the slot of task {task} is free", is_free)

    async def idle(self) -> None:
        """Wait until no slot works."""

        async def look() -> bool:
            return not await self.busy()

        await until("no slot works", look)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[Sample]:
        """Look again and again, until left, at how many requests are inside."""

        async def watch() -> None:
            most = self.most
            while True:
                figures, busy = await self.figures(), await self.busy()
                most.looks += 1
                most.slots = max(most.slots, len(busy))
                most.processing = max(most.processing, figures["requests_processing"])
                most.deferred = max(most.deferred, figures["requests_deferred"])
                await asyncio.sleep(0.01)

        task = asyncio.create_task(watch())
        try:
            yield self.most
        finally:
            assert not task.done(), task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def slots_of(stack: RoundhouseStack, model: str) -> AsyncIterator[LlamaSlots]:
    """The one llama-server of a model, once it is loaded."""
    (replica,) = (await stack.loaded(model))[model].replicas
    assert replica.endpoint is not None
    headers = {"authorization": f"Bearer {token_of(stack, replica.name)}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        yield LlamaSlots(replica.endpoint, session, stack.state / "logs" / f"{replica.name}.log")
