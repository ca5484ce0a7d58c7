"""All programs of `roundhouse up` under hostile clients, beside good ones whose answers are compared; what each holds.

The gateway has the clients of `hostile_clients`; retrieval, transfers and the controller have those of this module. The
models are served by mock engines, which fail on request, so that the gateway asks strangers; downloads come from a hub
that fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from ruamel.yaml import YAML

from tests.fakes.mock_engine import MockEngine
from tests.support.chaos.up_stage import UpStage
from tests.support.fake_hub import Fault, HubRepository
from tests.support.fake_hub.faults import FaultKind, Site
from tests.support.hostile_clients import CHAT, COLD, GONE, KINDS, MODEL, NARROW, Target, torment
from tests.support.memory import memory_of
from tests.support.ports import free_port
from tests.support.tormented_gateway import GOOD, PATIENCE_S, SECRET, SETTINGS, TEXT
from tests.support.wait import until

PROGRAMS = ("controller", "gateway", "retrieval", "transfers")
REPOSITORY = "hostile/noise"
MOST_AT_ONCE = 100
SIDE_SHARE = 0.25
"""Of the hostile clients, those that mean other programs than the gateway."""
GOOD_EVERY_S = 0.5
_HUB_FAULTS: tuple[FaultKind, ...] = ("status", "drop", "stall", "wrong_bytes", "redirect", "encoded", "no_length")


@dataclass
class TormentedSite:
    """A Roundhouse that serves, and all that happens to it. `rate`: hostile clients begun per second."""

    stage: UpStage
    seed: int
    rate: float
    engines: list[MockEngine]
    session: aiohttp.ClientSession
    begun: Counter[str] = field(default_factory=Counter)
    """Hostile clients by kind."""
    good: int = 0
    wrong: list[str] = field(default_factory=list)
    """What good clients got in place of the right answer."""
    _hostile: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, look: Callable[[], None], every_s: float, ends_s: float) -> None:
        """Torment it for so long, and call `look` at the beginning and every `every_s` seconds."""
        parts = [asyncio.create_task(part()) for part in (self._begin_hostile, self._ask_well)]
        begun = time.monotonic()
        try:
            for number in range(int(ends_s // every_s) + 1):
                due = begun + number * every_s - time.monotonic()
                done, _ = await asyncio.wait(parts, timeout=max(0.0, due), return_when=asyncio.FIRST_COMPLETED)
                for part in done:
                    part.result()  # they have no end: this raises what ended it
                look()
        finally:
            for task in (*parts, *self._hostile):
                task.cancel()
            await asyncio.gather(*parts, *self._hostile, return_exceptions=True)

    def read_memory(self) -> dict[str, float]:
        """Anonymous memory of each program and its children, in MiB."""
        return {program: self._memory_of(program) for program in PROGRAMS}

    def _memory_of(self, program: str) -> float:
        pid = self.stage.find_pid(program)
        assert pid is not None, f"{program} does not run"
        total = memory_of(pid)["anonymous"]
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(OSError, KeyError):  # it ended meanwhile
                total += memory_of(child.pid)["anonymous"]
        return total

    async def _begin_hostile(self) -> None:
        rng = random.Random(self.seed)
        kinds = {name: weight for name, (weight, _) in KINDS.items()}
        side: dict[str, Callable[[random.Random], Awaitable[None]]] = {
            "odd_document": self._send_odd_document,
            "odd_search": self._search_oddly,
            "odd_declaration": self._declare_oddly,
            "odd_statement": self._state_oddly,
            "odd_reference": self._inspect_oddly,
        }
        target = Target(int(self.stage.url.rpartition(":")[2]), SECRET, 1 << 20, PATIENCE_S + 1)
        while True:
            await asyncio.sleep(rng.expovariate(self.rate))
            own = random.Random(rng.getrandbits(64))
            if len(self._hostile) >= MOST_AT_ONCE:
                continue
            if rng.random() < SIDE_SHARE:
                name = rng.choice(list(side))
                act = self._spoil(side[name], own)
            else:
                [name] = rng.choices(list(kinds), list(kinds.values()))
                act = torment(name, target, own)
            self.begun[name] += 1
            task = asyncio.create_task(act)
            self._hostile.add(task)
            task.add_done_callback(self._hostile.discard)

    async def _spoil(self, act: Callable[[random.Random], Awaitable[None]], rng: random.Random) -> None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with asyncio.timeout(20):
                await act(rng)

    async def _request(self, method: str, path: str, **request: Any) -> bytes:
        headers = {"authorization": f"Bearer {SECRET}"}
        async with self.session.request(method, self.stage.url + path, headers=headers, **request) as answer:
            return await answer.read()

    async def _send_odd_document(self, rng: random.Random) -> None:
        """Bytes that are no document, or a small one; of an id that comes again, so that the store does not grow."""
        name = f"{rng.randrange(40)}.{rng.choice(('pdf', 'docx', 'html', 'md', 'txt', 'eml', 'csv'))}"
        content = rng.choice(
            (
                rng.randbytes(rng.randrange(1, 20_000)),
                b"%PDF-1.7\n" + rng.randbytes(2000),
                b"PK\x03\x04" + rng.randbytes(2000),
                b"<html>" + b"<div>" * 5000,
                ("a" + "\u0301" * 3000).encode(),
                b"word " * rng.randrange(1, 4000),
            )
        )
        form = aiohttp.FormData()
        form.add_field("id", f"odd-{name}")
        form.add_field("file", content, filename=name)
        await self._request("POST", f"/v1/documents?wait={rng.choice(('true', 'false'))}", data=form)
        if rng.random() < 0.3:
            await self._request("DELETE", f"/v1/documents/odd-{name}")

    async def _search_oddly(self, rng: random.Random) -> None:
        body = rng.choice(
            (
                {"query": rng.randbytes(2000).decode("latin-1"), "mode": "sparse"},
                {"query": "word", "limit": rng.randrange(-5, 10**6)},
                {"query": "word", "filter": {"type": "and", "filters": [{}] * 500}},
                {"query": ["word"] * 1000},
            )
        )
        await self._request("POST", "/v1/search", json=body)

    async def _declare_oddly(self, rng: random.Random) -> None:
        """Declarations with problems, and sound ones, which are taken back."""
        name = f"odd-{rng.randrange(20)}"
        fields = rng.choice(
            (
                {"model_path": f"{rng.getrandbits(64):x}.gguf", "enabled": False},
                {"model_path": "../../etc/passwd"},
                {f"field_{rng.getrandbits(64):x}": 1},
                {"backend": "stub", "env": {"A": "B" * 10_000}},
                {"aliases": [f"a{number}" for number in range(500)], "model_path": "x.gguf", "enabled": False},
            )
        )
        await self._request("PUT", f"/v1/admin/declarations/models/{name}", json=fields)
        await self._request("POST", "/v1/admin/plan", json={"models": {name: fields}})
        await self._request("DELETE", f"/v1/admin/declarations/models/{name}")

    async def _state_oddly(self, rng: random.Random) -> None:
        model = rng.choice((COLD, GONE, f"no-{rng.getrandbits(64):x}"))
        act = rng.choice(("load", "unload", "reset"))
        await self._request("POST", f"/v1/admin/models/{model}/{act}?wait=false", json={f"k{rng.getrandbits(32)}": 1})

    async def _inspect_oddly(self, rng: random.Random) -> None:
        """A download is looked at while the hub fails, or a reference that nobody has."""
        assert self.stage.hub is not None
        self.stage.hub.clear_requests()
        self.stage.hub.faults.clear()
        site: Site = "api" if rng.random() < 0.5 else "storage"
        self.stage.hub.faults.add(Fault(rng.choice(_HUB_FAULTS), site, after_bytes=rng.randrange(200)))
        reference = rng.choice((f"hf:{REPOSITORY}", f"hf:{REPOSITORY}/a.bin", f"hf:no/{rng.getrandbits(64):x}"))
        await self._request("POST", "/v1/admin/downloads/inspect", json={"reference": reference})

    async def _ask_well(self) -> None:
        body = {"model": GOOD, "messages": [{"role": "user", "content": "Hi"}]}
        while True:
            await asyncio.sleep(GOOD_EVERY_S)
            try:
                async with asyncio.timeout(60):
                    answer = await self._request("POST", CHAT, json=body)
                text = json.loads(answer)["choices"][0]["message"]["content"]
            except (aiohttp.ClientError, TimeoutError, KeyError, ValueError) as error:
                text = repr(error)
            if text == TEXT:
                self.good += 1
            else:
                self.wrong.append(f"{text:.300}")


@contextlib.asynccontextmanager
async def tormented_site(folder: Path, seed: int, rate: float) -> AsyncIterator[TormentedSite]:
    """`roundhouse up` in `folder`, with a key and mock engines, when it serves. It is ended afterwards."""
    async with contextlib.AsyncExitStack() as exits:
        engines = [MockEngine(keep=False) for _ in range(2)]
        for engine in engines:
            await engine.start()
            exits.push_async_callback(engine.stop)
        stage = UpStage(folder, env=SETTINGS)
        assert stage.hub is not None
        stage.hub.add(HubRepository(REPOSITORY, {"a.bin": b"a" * 100_000, "README.md": b"hi"}))
        with (stage.desired / "models.yaml").open("w") as file:
            YAML(typ="safe", pure=True).dump({"models": _models(engines), "keys": _keys()}, file)
        exits.push_async_callback(stage.close)
        await stage.start()
        session = await exits.enter_async_context(aiohttp.ClientSession())
        site = TormentedSite(stage, seed, rate, engines, session)
        await until("it serves", lambda: _serves(site), 120)
        yield site


def _models(engines: list[MockEngine]) -> Mapping[str, Any]:
    served, good = (f"{engine.url}/v1" for engine in engines)
    remote = {"backend": "openai_remote", "base_url": served, "target_inflight": 64, "queue_limit": 16}
    return {
        MODEL: remote,
        NARROW: remote | {"target_inflight": 1, "queue_limit": 4},
        GOOD: remote | {"base_url": good},
        GONE: remote | {"base_url": f"http://127.0.0.1:{free_port()}/v1"},
        COLD: remote | {"enabled": False},
    }


def _keys() -> Mapping[str, Any]:
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    return {"good": {"sha256": digest, "scopes": ["inference", "admin"], "requests_per_minute": 1_000_000}}


async def _serves(site: TormentedSite) -> bool:
    try:
        answer = await site._request(
            "POST", CHAT, json={"model": GOOD, "messages": [{"role": "user", "content": "Hi"}]}
        )
        documents = await site._request("GET", "/v1/documents")
        return b"choices" in answer and b'"data"' in documents and site.stage.find_pid("transfers") is not None
    except aiohttp.ClientError:
        return False
