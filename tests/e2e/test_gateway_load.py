"""Two hundred clients on a real engine of four slots, under a whole Roundhouse: slots, fairness, the bound, a storm."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import aiohttp
import pytest

from tests.support.campaign import campaign_count
from tests.support.gateway_rest import nothing_left
from tests.support.http_client import HttpClient
from tests.support.llama_slots import ENDLESS, LONG_CONTEXT, make_endless, slots_of
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack
from tests.support.runtime_fixtures import stack_of_processes
from tests.support.wait import until

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

SLOTS = 4
CLIENTS = 200
ANSWERS = campaign_count(400, 1000)
"""Of the whole load."""
TOKENS = 15
"""Of the model's sentence."""
WAITING = 40
"""Requests that may wait for the model `long`."""
HI = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
SECRETS = {"alice": "rh-alice", "bob": "rh-bob"}


@pytest.fixture(scope="module")
def stack() -> Iterator[RoundhouseStack]:
    """A stack with two keys, and two llama-servers of four slots, which generate for as long as they are asked to."""
    with stack_of_processes() as created:

        async def is_closed() -> bool:
            return (await created.request("GET", "/v1/models")).status == 401

        make_endless(created.models / "long.gguf")
        model = {"model_path": "long.gguf", "llama_server_n_ctx": LONG_CONTEXT, "llama_server_threads": 1}
        model["target_inflight"] = SLOTS
        created.declare({"chat": model | {"queue_limit": CLIENTS}, "long": model | {"queue_limit": WAITING}})
        asyncio.run(created.open("chat", "long"))
        keys = {name: {"sha256": sha256(secret.encode()).hexdigest()} for name, secret in SECRETS.items()}
        created.write("keys.yaml", {"keys": keys})
        asyncio.run(until("the keys are in force", is_closed))
        yield created


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))


async def chat(session: aiohttp.ClientSession, stack: RoundhouseStack, who: str, **fields: Any) -> tuple[int, Any, str]:
    url, body = f"{stack.url}/v1/chat/completions", HI | fields
    async with session.post(url, json=body, headers={"authorization": f"Bearer {SECRETS[who]}"}) as answer:
        return answer.status, answer.headers, await answer.text()


def text_of(text: str, *, stream: bool) -> str:
    if not stream:
        return str(json.loads(text)["choices"][0]["message"]["content"])
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
    return "".join(delta.get("content") or "" for delta in deltas)


@dataclass
class Served:
    answers: int = 0
    first: dict[str, list[int]] = field(default_factory=lambda: {who: [] for who in SECRETS})
    """Positions of everybody's first request, by tenant."""

    async def client(self, session: aiohttp.ClientSession, stack: RoundhouseStack, number: int) -> None:
        """One that asks again when it has its answer. Three of four are Alice's."""
        who, stream = ("bob" if number % 4 == 3 else "alice"), bool(number // 4 % 2)
        for turn in itertools.count():
            status, headers, text = await chat(session, stack, who, model="chat", stream=stream, max_tokens=TOKENS)
            assert status == 200, text
            assert text_of(text, stream=stream) == SENTENCE
            self.answers += 1
            position, depth = int(headers["x-queue-position"]), int(headers["x-queue-depth"])
            assert 1 <= position <= depth <= 1 + CLIENTS
            assert headers["x-client-id"] == who
            if not turn:
                self.first[who].append(position)
            if self.answers >= ANSWERS:
                return


async def test_two_hundred_clients_share_four_slots(stack: RoundhouseStack) -> None:
    served = Served()
    async with slots_of(stack, "chat") as slots, _session() as session:
        holding = [
            asyncio.create_task(chat(session, stack, who, model="chat", stream=True, max_tokens=ENDLESS))
            for who in ("alice", "bob") * 2
        ]
        await until("four are inside", lambda: _busy(slots, SLOTS))
        held = {slot["id_task"] for slot in await slots.busy()}
        clients = [asyncio.create_task(served.client(session, stack, number)) for number in range(CLIENTS)]

        async def all_wait() -> bool:
            return bool((await stack.request("GET", "/health")).body["queue_depth"] == CLIENTS)

        await until("all clients wait", all_wait)
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)

        async def are_gone() -> bool:
            return not held & {slot["id_task"] for slot in await slots.busy()}

        # Until then it defers others: who left has given up the slot, and the engine has not seen it for a moment.
        await until("the engine has seen the four leave", are_gone)
        async with slots.watched() as most:
            await asyncio.gather(*clients)
        assert most.looks
        assert max(most.slots, most.processing) <= SLOTS
        assert most.deferred == 0
    # Both had the same service until then, so they take turns, however many of one wait: whoever is the nth of Bob's
    # has n of Alice's before it at most. By first come, first served, it would be three times as many.
    assert [len(served.first[who]) for who in ("alice", "bob")] == [CLIENTS * 3 // 4, CLIENTS // 4]
    assert all(place <= 1 + 2 * number for number, place in enumerate(sorted(served.first["bob"]), 1))
    assert max(served.first["alice"]) > 1 + CLIENTS // 2, "they really waited"
    await _nothing_left(stack)


async def test_beyond_the_bound_and_after_a_storm(stack: RoundhouseStack) -> None:
    dice = random.Random(3)
    fields = {"model": "long", "max_tokens": ENDLESS}
    async with slots_of(stack, "long") as slots, _session() as session, slots.watched() as most:
        tasks = [
            asyncio.create_task(chat(session, stack, ("alice", "bob")[n % 2], **fields, stream=bool(n // 2 % 2)))
            for n in range(CLIENTS)
        ]
        await until("all but those who fit are refused", lambda: sum(map(_over, tasks)) == CLIENTS - SLOTS - WAITING)
        for task in filter(_over, tasks):
            status, headers, text = task.result()
            error = json.loads(text)["error"]
            assert (status, error["code"], error["request_id"]) == (429, "queue_full", headers["x-request-id"])
            assert int(headers["retry-after"]) >= 5
        await until("four are inside", lambda: _busy(slots, SLOTS))
        await _storm(stack, session, dice)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await slots.idle()
        await _nothing_left(stack)
        again = [chat(session, stack, who, model="long", max_tokens=TOKENS) for who in ("alice", "bob") * 2]
        for status, _, text in await asyncio.gather(*again):
            assert (status, text_of(text, stream=False)) == (200, SENTENCE)
        # Deferred there may be some: who left has given up the slot, and the engine has not seen it for a moment.
        assert most.looks
        assert max(most.slots, most.processing) <= SLOTS
    await _nothing_left(stack)


async def _nothing_left(stack: RoundhouseStack) -> None:
    async with aiohttp.ClientSession() as session:
        await nothing_left(HttpClient(stack.url, session))


async def _busy(slots: Any, count: int) -> bool:
    return len(await slots.busy()) == count


def _over(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled()


async def _storm(stack: RoundhouseStack, session: aiohttp.ClientSession, dice: random.Random) -> None:
    """Two hundred clients, each of which leaves after a moment, wherever its request is by then."""

    async def leaving(number: int) -> None:
        who, model = dice.choice(["alice", "bob"]), dice.choice(["chat", "long"])
        call = chat(session, stack, who, model=model, max_tokens=ENDLESS, stream=dice.random() < 0.5)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(call, dice.uniform(0, 1.5))

    await asyncio.gather(*(leaving(number) for number in range(CLIENTS)))
