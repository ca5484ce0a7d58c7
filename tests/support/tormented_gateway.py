"""A gateway process of its own under hostile clients, beside good ones whose answers are compared; what it holds."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from contract.keys import Key
from contract.routing import ModelRoute
from contract.status import ModelState
from tests.fakes.fake_controller import FakeController, route
from tests.fakes.mock_engine import WORDS, MockEngine
from tests.support.hostile_clients import (
    CHAT,
    COLD,
    GONE,
    KINDS,
    MESSAGES,
    MODEL,
    NARROW,
    RESPONSES,
    TOKENIZE,
    Target,
    torment,
)
from tests.support.memory import memory_of
from tests.support.ports import free_port
from tests.support.wait import until

GOOD = "good"
"""A model whose engine nobody torments."""
TEXT = " ".join(WORDS)
PATIENCE_S = 3
MOST_AT_ONCE = 150
"""Hostile clients; while there are so many, none is added."""
KEY_NAMES = 20
"""Keys that come and go. Series of a declared key stay for good, so their names come again."""
SECRET = "sk-good-and-known"
SETTINGS = {
    "ROUNDHOUSE_CLIENT_TIMEOUT_S": str(PATIENCE_S),
    "ROUNDHOUSE_KEEP_ALIVE_S": str(PATIENCE_S),
    "ROUNDHOUSE_MAX_BODY_MIB": "1",
    "ROUNDHOUSE_ANSWER_BUFFER_MIB": "1",
    "ROUNDHOUSE_RESPONSES_MAX_MIB": "4",
    "ROUNDHOUSE_REQUEST_TIMEOUT_S": "20",
    "ROUNDHOUSE_LOG_LEVEL": "error",
}
"""So that everything that has a bound or a time comes to it."""


@dataclass(frozen=True, slots=True)
class Torment:
    seed: int
    rate: float
    """Hostile clients begun per second."""
    good_rate: float = 2.0
    """Good requests per second."""
    churn_s: float = 10.0
    """Between new routing tables."""


@dataclass(slots=True)
class TormentedGateway:
    port: int
    dead_port: int
    """Where nobody listens."""
    pid: int
    folder: Path
    torment: Torment
    controller: FakeController
    engines: list[MockEngine]
    client: aiohttp.ClientSession
    process: asyncio.subprocess.Process
    begun: Counter[str] = field(default_factory=Counter)
    """Hostile clients by kind."""
    skipped: int = 0
    good: int = 0
    """Good answers, all as they should be."""
    wrong: list[str] = field(default_factory=list)
    """What was wrong with the others."""
    tables: int = 0
    _hostile: set[asyncio.Task[None]] = field(default_factory=set)
    _keyed: bool = False

    @property
    def watched(self) -> Path:
        """Where the gateway tells what its memory is made of."""
        return self.folder / "watched"

    async def run(self, look: Callable[[], Any], every_s: float, ends_s: float) -> None:
        """Torment it for so long, and call `look`, a coroutine function, at the beginning and from time to time."""
        parts = [
            asyncio.create_task(part())
            for part in (self._begin_hostile, self._ask_well, self._change_tables, self._restart_engine)
        ]
        try:
            begun = time.monotonic()
            number = 0
            while True:
                await look()
                number += 1
                if number * every_s > ends_s:
                    break
                wait = asyncio.create_task(asyncio.sleep(max(0.0, begun + number * every_s - time.monotonic())))
                done, _ = await asyncio.wait([wait, *parts], return_when=asyncio.FIRST_COMPLETED)
                for part in done - {wait}:
                    part.result()  # they have no end: this raises what ended it
        finally:
            for task in (*parts, *self._hostile):
                task.cancel()
            await asyncio.gather(*parts, *self._hostile, return_exceptions=True)

    async def publish(self) -> None:
        """A table whose replicas have names that they never had, and whose keys come and go."""
        self.tables += 1
        self._keyed = not self._keyed
        del self.controller.reports[:-1]  # in two hours they would be the largest thing in this process
        keys = (_key("good", SECRET), *(_key(f"key-{(self.tables + n) % KEY_NAMES}", f"sk-{n}") for n in range(5)))
        await self.controller.publish(*self._models(), keys=keys if self._keyed else ())

    def _models(self) -> tuple[ModelRoute, ...]:
        first, second, good = (engine.url for engine in self.engines)
        urls = {MODEL: (first, second), NARROW: (first,), GOOD: (good,)}
        gone = route(GONE, [f"http://127.0.0.1:{self.dead_port}"], apis=(CHAT,))
        models = [route(COLD, state=ModelState.UNLOADED), gone]
        for name, slots, limit in ((MODEL, 64, 16), (NARROW, 1, 4), (GOOD, 64, 16)):
            plain = route(name, urls[name], apis=(CHAT, TOKENIZE), target_inflight=slots, queue_limit=limit)
            named = [each.model_copy(update={"replica": f"{each.replica}-{self.tables}"}) for each in plain.endpoints]
            models.append(plain.model_copy(update={"endpoints": tuple(named)}))
        if self.tables % 3 == 0:
            models.append(route(f"passing-{self.tables % 10}", (first,), apis=(CHAT,)))
        return tuple(models)

    async def _begin_hostile(self) -> None:
        rng = random.Random(self.torment.seed)
        names, weights = list(KINDS), [weight for weight, _ in KINDS.values()]
        target = Target(self.port, SECRET, 1 << 20, PATIENCE_S + 1)
        while True:
            await asyncio.sleep(rng.expovariate(self.torment.rate))
            name = rng.choices(names, weights)[0]
            own = random.Random(rng.getrandbits(64))
            if len(self._hostile) >= MOST_AT_ONCE:
                self.skipped += 1
                continue
            self.begun[name] += 1
            task = asyncio.create_task(torment(name, target, own))
            self._hostile.add(task)
            task.add_done_callback(self._hostile.discard)

    async def _ask_well(self) -> None:
        asks = (self._chat, self._stream, self._message, self._response)
        number = 0
        while True:
            await asyncio.sleep(1 / self.torment.good_rate)
            number += 1
            ask = asks[number % len(asks)]
            try:
                async with asyncio.timeout(60):
                    text = await ask()
            except (aiohttp.ClientError, TimeoutError, KeyError, IndexError, ValueError) as error:
                text = repr(error)
            if text == TEXT:
                self.good += 1
            else:
                self.wrong.append(f"{ask.__name__.strip('_')}: {text:.300}")

    async def _post(self, path: str, **fields: Any) -> str:
        headers = {"authorization": f"Bearer {SECRET}"}
        url = f"http://127.0.0.1:{self.port}{path}"
        async with self.client.post(url, json={"model": GOOD, **fields}, headers=headers) as answer:
            return await answer.text()

    async def _chat(self) -> str:
        answer = json.loads(await self._post(CHAT, messages=_ASKED))
        return str(answer["choices"][0]["message"]["content"])

    async def _stream(self) -> str:
        answer = await self._post(CHAT, messages=_ASKED, stream=True)
        events = [line.removeprefix("data: ") for line in answer.split("\n") if line.startswith("data: {")]
        if not answer.endswith("data: [DONE]\n\n"):
            return answer
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices).strip()

    async def _message(self) -> str:
        answer = json.loads(await self._post(MESSAGES, messages=_ASKED, max_tokens=50))
        return str(answer["content"][0]["text"])

    async def _response(self) -> str:
        answer = json.loads(await self._post(RESPONSES, input="Hi", store=False))
        return str(answer["output"][0]["content"][0]["text"])

    async def _change_tables(self) -> None:
        while True:
            await asyncio.sleep(self.torment.churn_s)
            await self.publish()

    async def _restart_engine(self) -> None:
        """One of the two dies, and comes back at its port."""
        engine = self.engines[0]
        while True:
            await asyncio.sleep(2.3 * self.torment.churn_s)
            port = engine.port
            await engine.stop()
            await asyncio.sleep(self.torment.churn_s / 4)
            await engine.start(port)

    async def metrics(self) -> str:
        async with self.client.get(f"http://127.0.0.1:{self.port}/metrics") as answer:
            return await answer.text()

    async def figures(self) -> dict[str, Any]:
        """What the gateway holds now, as the system and it itself say."""
        inside = await self._inside()
        text = await self.metrics()
        process = psutil.Process(self.pid)
        cpu, own = process.cpu_times(), psutil.Process().cpu_times()
        return {
            "at": time.time(),
            **memory_of(self.pid),
            "fds": process.num_fds(),
            "threads": process.num_threads(),
            "series": sum(not line.startswith("#") for line in text.splitlines()),
            **{name: _metric(text, f"roundhouse_gateway_{name}") for name in _METRICS},
            "cpu_s": cpu.user + cpu.system,
            "own_cpu_s": own.user + own.system,
            "hostile": sum(self.begun.values()),
            "hostile_now": len(self._hostile),
            "skipped": self.skipped,
            "good": self.good,
            "wrong": len(self.wrong),
            "tables": self.tables,
            **inside,
        }

    async def _inside(self) -> dict[str, Any]:
        before = self.watched.stat().st_size if self.watched.exists() else 0
        self.process.send_signal(signal.SIGUSR1)
        await until("the gateway tells of its memory", lambda: _has_line_after(self.watched, before))
        state: dict[str, Any] = json.loads(self.watched.read_text().splitlines()[-1])
        return state


_ASKED = [{"role": "user", "content": "Hi"}]
_METRICS = ("stored_responses", "stored_bytes", "inflight", "queued", "engine_connections")


def _has_line_after(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size > size and path.read_bytes().endswith(b"\n")


def _metric(text: str, name: str) -> float:
    """The sum of a metric's series."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))


def _key(name: str, secret: str) -> Key:
    return Key(
        name=name,
        sha256=hashlib.sha256(secret.encode()).hexdigest(),
        tenant=f"tenant-{name}",
        scopes=("inference", "admin"),
        requests_per_minute=1_000_000,
    )


@contextlib.asynccontextmanager
async def tormented_gateway(
    folder: Path, amount: Torment, trace: Path | None = None
) -> AsyncIterator[TormentedGateway]:
    """The process between a fake controller and three fake engines, with its first table. `trace`: see
    tests/support/watched_gateway.py."""
    async with contextlib.AsyncExitStack() as stack:
        controller = FakeController()
        await controller.start()
        stack.push_async_callback(controller.stop)
        engines = [MockEngine(keep=False) for _ in range(3)]
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.stop)
        port = free_port()
        own = {"ROUNDHOUSE_PORT": str(port), "ROUNDHOUSE_CONTROLLER_URL": controller.url}
        own["ROUNDHOUSE_CORS_ORIGINS"] = "https://chat.example"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
        log = stack.enter_context((folder / "gateway.log").open("wb"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.watched_gateway", str(folder / "watched")),
            *([] if trace is None else [str(trace)]),
            env={
                **clean,
                **SETTINGS,
                "ROUNDHOUSE_CORS_ORIGINS": "https://chat.example",
                **own,
                "ROUNDHOUSE_STATE": str(folder / "state"),
            },
            stdout=log,
            stderr=log,
        )
        stack.push_async_callback(_end, process)
        await until("the gateway connects", lambda: controller.reports or process.returncode is not None)
        assert process.returncode is None, (folder / "gateway.log").read_text()
        client = await stack.enter_async_context(aiohttp.ClientSession())
        gateway = TormentedGateway(port, free_port(), process.pid, folder, amount, controller, engines, client, process)
        await gateway.publish()
        await controller.report_where(lambda report: report.stamp is not None)
        yield gateway


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
