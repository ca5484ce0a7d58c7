"""A fake engine that computes as real ones do: in steps, of a piece of one prompt and one token of each answer, with a
cache of the prompts before. It waits where an engine would compute, so that any number of them fit on few cores.

    python -m tests.bench.batching_engine slots 4     prints a port per engine, then serves until SIGTERM

Two kinds of cache: `slots`, of which each has the last conversation in it, as llama-server's do; and `prefixes`, which
finds any conversation for as long as there is room, as vLLM's does. A token is a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, Protocol

import uvloop
from aiohttp import web

STEP_S, PROMPT_TOKEN_S, ANSWER_TOKEN_S = 0.005, 0.0002, 0.0001
"""What a step costs, and each token in it: 5,000 tokens of a prompt a second, and 170 of one answer."""
PIECE: Final = 512
"""Tokens of a prompt in one step."""
SLOTS: Final = 12
ROOM: Final = 32_000
"""Tokens that a cache of prefixes holds."""
SIMILAR: Final = 0.1
"""Part of a prompt that a slot must have for llama-server to choose it."""


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@dataclass(eq=False)
class Job:
    prompt: list[str]
    answer_tokens: int
    asked_slot: int | None
    to_compute: int = 0
    """Tokens of the prompt that are left."""
    cached: int = 0
    slot: int = 0
    said: list[str] = field(default_factory=list)
    out: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)


class Cache(Protocol):
    def enter(self, job: Job) -> bool:
        """Let a request in, and say how much of it is cached; False: not now."""

    def leave(self, job: Job) -> None:
        """Keep what a request computed."""


class SlotCache:
    def __init__(self) -> None:
        self._held: list[list[str]] = [[] for _ in range(SLOTS)]
        self._is_busy = [False] * SLOTS
        self._used_at = [0.0] * SLOTS

    def enter(self, job: Job) -> bool:
        """See Cache. The slot that is asked for; else the one that is most like the prompt; else the one used longest
        ago."""
        slot = job.asked_slot if job.asked_slot is not None else self._choose(job.prompt)
        if slot is None or self._is_busy[slot]:
            return False
        self._is_busy[slot] = True
        job.slot, job.cached = slot, min(_shared(self._held[slot], job.prompt), len(job.prompt) - 1)
        return True

    def _choose(self, prompt: list[str]) -> int | None:
        idle = [slot for slot in range(SLOTS) if not self._is_busy[slot]]
        if not idle:
            return None
        best = max(idle, key=lambda slot: _shared(self._held[slot], prompt))
        is_similar = _shared(self._held[best], prompt) > SIMILAR * len(prompt)
        return best if is_similar else min(idle, key=self._used_at.__getitem__)

    def leave(self, job: Job) -> None:
        self._is_busy[job.slot] = False
        self._used_at[job.slot] = time.monotonic()
        self._held[job.slot] = job.prompt + job.said


class PrefixCache:
    """Conversations by their first words, as many as there is room for."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, list[str]] = OrderedDict()

    def enter(self, job: Job) -> bool:
        held = self._held.get(job.prompt[0], [])
        job.cached = min(_shared(held, job.prompt), len(job.prompt) - 1)
        return True

    def leave(self, job: Job) -> None:
        self._held[job.prompt[0]] = job.prompt + job.said
        self._held.move_to_end(job.prompt[0])
        while sum(map(len, self._held.values())) > ROOM:
            self._held.popitem(last=False)


class BatchingEngine:
    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._waiting: list[Job] = []
        self._inside: list[Job] = []
        self._has_work = asyncio.Event()

    async def compute(self) -> None:
        """Make one step after the other, until cancelled."""
        due_at = time.monotonic()
        while True:
            self._let_in()
            if not self._inside:
                self._has_work.clear()
                await self._has_work.wait()
                due_at = time.monotonic()
                continue
            prefilling = next((job for job in self._inside if job.to_compute), None)
            piece = 0 if prefilling is None else min(PIECE, prefilling.to_compute)
            answering = [job for job in self._inside if not job.to_compute]
            due_at += STEP_S + piece * PROMPT_TOKEN_S + len(answering) * ANSWER_TOKEN_S
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            for job in answering:
                self._say(job)
            if prefilling is not None:
                prefilling.to_compute -= piece

    def _let_in(self) -> None:
        for job in [job for job in self._waiting if self._cache.enter(job)]:
            self._waiting.remove(job)
            job.to_compute = len(job.prompt) - job.cached
            self._inside.append(job)

    def _say(self, job: Job) -> None:
        job.said.append(f"word{len(job.said)}")
        job.out.put_nowait(job.said[-1])
        if len(job.said) == job.answer_tokens:
            self._end(job)

    def _end(self, job: Job) -> None:
        if job in self._inside:
            self._inside.remove(job)
            self._cache.leave(job)
        with contextlib.suppress(ValueError):
            self._waiting.remove(job)
        job.out.put_nowait(None)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        words = [word for message in body["messages"] for word in message["content"].split()]
        job = Job(words, body["max_tokens"], body.get("id_slot"))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        self._waiting.append(job)
        self._has_work.set()
        try:
            while (word := await job.out.get()) is not None:
                await response.write(_event([{"index": 0, "delta": {"content": f"{word} "}}]))
        finally:
            self._end(job)
        details = {"prompt_tokens_details": {"cached_tokens": job.cached}}
        counts = {"prompt_tokens": len(words), "completion_tokens": len(job.said)}
        usage = {**counts, "total_tokens": sum(counts.values()), **details}
        await response.write(_event([{"index": 0, "delta": {}, "finish_reason": "stop"}]))
        await response.write(_event([], usage=usage) + b"data: [DONE]\n\n")
        return response


def _event(choices: list[dict[str, Any]], **fields: Any) -> bytes:
    payload = {"id": "bench-1", "object": "chat.completion.chunk", "created": 1, "model": "bench", "choices": choices}
    return b"data: " + json.dumps(payload | fields, separators=(",", ":")).encode() + b"\n\n"


async def _serve(kind: str, count: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            engine = BatchingEngine(SlotCache() if kind == "slots" else PrefixCache())
            app = web.Application()
            app.router.add_post("/v1/chat/completions", engine.answer)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            group.create_task(engine.compute())
            print(runner.addresses[0][1], flush=True)


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], int(sys.argv[2])))
