"""Two hundred clients on a real engine of four slots, under a whole Roundhouse: slots, fairness, the bound, a storm."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.llama_slots import ENDLESS, LONG_CONTEXT, make_endless, slots_of
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack
from tests.support.runtime_fixtures import ProcessRuntimeFixture
from tests.support.wait import until
from worker.clockwork import make

pytestmark = pytest.mark.embedded

SLOTS = 4
CLIENTS = 200
ANSWERS = 1000
"""Requests of the whole load."""
WAITING = 40
"""Requests that may wait for the model `long`."""
HI = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
SECRETS = {"alice": "rh-alice", "bob": "rh-bob"}


@pytest.fixture
async def stack(folder: Path) -> AsyncIterator[RoundhouseStack]:
    """A stack with two keys, and two llama-servers of four slots; `long` generates for as long as it is asked to."""
    made = RoundhouseStack(folder, "process")
    make(made.models / "clockwork.gguf")
    make_endless(made.models / "long.gguf")
    common = {"llama_server_threads": 1, "target_inflight": SLOTS}
    made.declare(
        {
            "chat": common | {"model_path": "clockwork.gguf", "queue_limit": CLIENTS},
            "long": common | {"model_path": "long.gguf", "queue_limit": WAITING, "llama_server_n_ctx": LONG_CONTEXT},
        }
    )
    await made.open()
    try:
        await made.loaded("chat", "long")
        digests = {name: sha256(secret.encode()).hexdigest() for name, secret in SECRETS.items()}
        keys = {"keys": {name: {"sha256": digest} for name, digest in digests.items()}, "models": {}}
        (made.desired / "keys.yaml").write_text(json.dumps(keys))
        await until("the keys are in force", lambda: _status(made, None, 401))
        yield made
    finally:
        await made.close()
    assert ProcessRuntimeFixture().left(made) == []


async def _status(stack: RoundhouseStack, who: str | None, status: int) -> bool:
    async with aiohttp.ClientSession(headers=_headers(who)) as session, session.get(f"{stack.url}/v1/models") as answer:
        return answer.status == status


def _headers(who: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {SECRETS[who]}"} if who else {}


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120))


async def ask(session: aiohttp.ClientSession, stack: RoundhouseStack, who: str, **fields: Any) -> tuple[int, Any, str]:
    """Status, headers and text of a chat."""
    url, body = f"{stack.url}/v1/chat/completions", HI | fields
    async with session.post(url, json=body, headers=_headers(who)) as answer:
        return answer.status, answer.headers, await answer.text()


def said(text: str, *, stream: bool) -> str:
    """What a whole answer says."""
    if not stream:
        return str(json.loads(text)["choices"][0]["message"]["content"])
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
    return "".join(delta.get("content") or "" for delta in deltas)


async def nothing_left(stack: RoundhouseStack) -> None:
    """Wait until the gateway holds nothing, by /metrics and by /health."""

    async def look() -> bool:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{stack.url}/health") as answer:
                health = await answer.json()
            async with session.get(f"{stack.url}/metrics") as answer:
                metrics = await answer.text()
        shown = "roundhouse_gateway_inflight{" in metrics or "roundhouse_gateway_queued{" in metrics
        busy = 'roundhouse_gateway_engine_connections{state="busy"} 0.0' not in metrics
        return not (shown or busy or health["queue_depth"] or any(each["inflight"] for each in health["engines"]))

    await until("the gateway holds nothing", look)


async def test_two_hundred_clients_share_four_slots(stack: RoundhouseStack) -> None:
    served: list[str] = []
    positions: list[int] = []
    started = time.monotonic()

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        # Three of four clients are Alice's: by first come, first served, so would be three of four answers.
        who, stream = ("bob" if number % 4 == 3 else "alice"), bool(number // 4 % 2)
        while len(served) < ANSWERS:
            status, headers, text = await ask(session, stack, who, model="chat", stream=stream)
            assert status == 200, text
            assert said(text, stream=stream) == SENTENCE
            served.append(who)
            position, depth = int(headers["x-queue-position"]), int(headers["x-queue-depth"])
            assert 1 <= position <= depth <= 1 + CLIENTS
            assert headers["x-client-id"] == who
            positions.append(position)

    async with slots_of(stack, "chat") as slots, _session() as session:
        async with slots.watched() as most:
            await asyncio.gather(*(client(session, number) for number in range(CLIENTS)))
        print(f"{len(served)} answers in {time.monotonic() - started:.1f} s; seen inside: {most}")
        assert most.looks > 10
        assert (most.slots, most.processing, most.deferred) == (SLOTS, SLOTS, 0)
    half = Counter(served[: ANSWERS // 2])
    print(f"answers at half time: {dict(half)}; farthest position: {max(positions)}")
    assert half["alice"] == pytest.approx(half["bob"], rel=0.1)
    assert max(positions) > CLIENTS // 2, "they really waited"
    await nothing_left(stack)


async def test_beyond_the_bound_and_after_a_storm(stack: RoundhouseStack) -> None:
    dice = random.Random(3)
    fields = {"model": "long", "max_tokens": ENDLESS}
    async with slots_of(stack, "long") as slots, _session() as session, slots.watched() as most:
        tasks = [
            asyncio.create_task(ask(session, stack, ("alice", "bob")[n % 2], **fields, stream=bool(n // 2 % 2)))
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
        await nothing_left(stack)
        again = [ask(session, stack, who, model="long", max_tokens=15) for who in ("alice", "bob") * 2]
        for status, _, text in await asyncio.gather(*again):
            assert (status, said(text, stream=False)) == (200, SENTENCE)
        print(f"seen inside: {most}")
        # Deferred: who left has given up the slot, and the engine has not seen it for another moment.
        assert (most.slots, most.processing) == (SLOTS, SLOTS)
    await nothing_left(stack)


async def _busy(slots: Any, count: int) -> bool:
    return len(await slots.busy()) == count


def _over(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled()


async def _storm(stack: RoundhouseStack, session: aiohttp.ClientSession, dice: random.Random) -> None:
    """Two hundred clients, each of which leaves after a moment, wherever its request is by then."""

    async def leaving(number: int) -> None:
        who, model = dice.choice(["alice", "bob"]), dice.choice(["chat", "long"])
        call = ask(session, stack, who, model=model, max_tokens=ENDLESS, stream=dice.random() < 0.5)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(call, dice.uniform(0, 1.5))

    await asyncio.gather(*(leaving(number) for number in range(CLIENTS)))
