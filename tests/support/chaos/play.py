"""Plays a chaos campaign: faults in a seeded order on a stage, under clients that compare every byte."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from ruamel.yaml import YAML

from tests.support.admin import AdminApi
from tests.support.chaos.clients import CheckedClients, Keepers
from tests.support.chaos.stage import LLAMA, Engine, Stage, age_of, kill_process
from tests.support.chaos.verdict import GATEWAY_AWAY, INSIDE, RESTARTING, STABLE_S, Fault, Kill, Record
from tests.support.http_client import Reply, send_request
from tests.support.wait import until

MODELS = Counter({"one": 1, "two": 2, "three": 1, "four": 2})
"""Replicas of each declared model."""
SERVER = "known"
"""The declared MCP server, which the controller runs as it runs engines."""
WANTED = MODELS + Counter({f"mcp:{SERVER}": 1})
"""All replicas that run."""
CLIENTS = 8
"""One that streams and one that does not, of each model."""
WHOLE_WITHIN_S = 240.0
BACK_WITHIN_S = 180.0
MOST_ANSWERS = 40
"""Most answers between two faults: the moment of a fault is drawn from the seed."""
FILE = "models.yaml"


@dataclass
class Chaos:
    """A Roundhouse under faults. `note` takes a line about each."""

    stage: Stage
    dice: random.Random
    note: Callable[[str], None] = lambda _: None
    record: Record = field(default_factory=Record)
    engines: dict[str, Engine] = field(default_factory=dict)
    """By name, when everything was whole for the last time."""
    declared: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            name: LLAMA | {"llama_server_n_ctx": 4096, "replicas": MODELS[name]} for name in MODELS
        }
    )
    edits: int = 0
    patience_s: float = 0.0
    """Most seconds to wait for an engine that has run for a minute, before one is killed to see how soon its model is
    back."""

    def __post_init__(self) -> None:
        """The clients know the public address and nothing else."""
        self.clients = CheckedClients(self.stage.url, tuple(MODELS))
        self.keepers = Keepers(self.stage.url, "one", f"{SERVER}__echo")
        self.admin = AdminApi(self.stage.url)

    # What faults are made of.

    def now(self) -> float:
        return time.monotonic()

    def is_only(self, engine: Engine) -> bool:
        return MODELS[engine.model] == 1

    def stable_engines(self) -> list[Engine]:
        """Those that have run so long that they are started again without a wait."""
        found = self.chat_engines()
        return [each for each in found if self.now() - each.started_at > STABLE_S["engine"]]

    def chat_engines(self) -> list[Engine]:
        found = (each for each in self.engines.values() if each.model in MODELS)
        return sorted(found, key=lambda each: each.name)

    def choose_engine(self) -> Engine:
        """A stable one, where there is one, else that which has run longest."""
        stable = self.stable_engines()
        return self.dice.choice(stable) if stable else min(self.chat_engines(), key=lambda each: each.started_at)

    async def wait_for_stable_engine(self) -> None:
        """As long as the campaign's patience allows."""
        ends = self.now() + self.patience_s
        await until(
            "an engine is stable, or patience ends",
            lambda: bool(self.stable_engines()) or self.now() >= ends,
            self.patience_s + BACK_WITHIN_S,
        )

    async def last(self, seconds: float) -> None:
        """Let a state last so long."""
        ends = self.now() + seconds
        await until(f"{seconds:g} s have passed", lambda: self.now() >= ends)

    async def back(self, model: str | None, killed_at: float) -> float:
        """When the first request that began after `killed_at` was answered."""
        return (await self.clients.first_answer(model, killed_at, BACK_WITHIN_S)).ended

    async def all_back(self, killed_at: float) -> float:
        """The same for every model: when the last of them answered."""
        return max(await asyncio.gather(*(self.back(model, killed_at) for model in MODELS)))

    async def kill_engine(self, fault: Fault, engine: Engine, *, is_alone: bool = False) -> float:
        """SIGKILL; when it has ended. The caller waits until its model answers, and allows for what is lost."""
        at = self.now()
        victim = "engine" if engine.model in MODELS else "MCP server"
        kill = Kill(victim, at, at - engine.started_at, is_alone, WANTED[engine.model])
        await self.stage.host.kill(engine.name)
        fault.kills.append(kill)
        return self.now()

    async def kill_engine_and_wait(self, fault: Fault, engine: Engine, *, is_alone: bool = False) -> None:
        """The same, until requests to its model are answered and another one stands in its place."""
        at = self.now()
        ended = await self.kill_engine(fault, engine)
        start = asyncio.create_task(self.measure_start(engine))
        try:
            back = await self.back(engine.model, ended)
            self.allow_for_engine(fault, engine, at, ended, back)
            start_s = await start
        finally:
            start.cancel()
        fault.kills.append(replace(fault.kills.pop(), is_alone=is_alone, back_s=back - at, start_s=start_s))

    def allow_for_engine(self, fault: Fault, engine: Engine, at: float, ended: float, back: float) -> None:
        """Requests that were inside may be lost; where no other replica stands by, those that came meanwhile, too."""
        fault.allow({engine.model}, INSIDE, at, ended)
        if self.is_only(engine):
            fault.allow({engine.model}, RESTARTING, at, back)

    async def measure_start(self, old: Engine) -> float:
        """Seconds from the process of the engine in the place of `old` to its health."""

        async def look() -> float | None:
            new = self.find_successor(old)
            return self.now() - new.started_at if new is not None and await self.stage.host.is_healthy(new) else None

        return float(await until(f"another engine in the place of {old.name} is healthy", look, BACK_WITHIN_S))

    def find_successor(self, old: Engine) -> Engine | None:
        """The engine that runs in the place of an ended one; None: none yet."""
        found, _ = self.stage.host.look(WANTED)
        return next(
            (
                each
                for each in found.values()
                if (each.model, each.index) == (old.model, old.index) and each.identity != old.identity
            ),
            None,
        )

    async def kill_program(self, fault: Fault, program: str, *, is_alone: bool = False) -> tuple[float, float]:
        """SIGKILL to a program of the stage: when it was killed, and when it had ended."""
        pid = await until(f"the {program} runs", lambda: self.stage.find_pid(program))
        return await self.kill_pid(fault, program, pid, is_alone=is_alone)

    async def kill_pid(self, fault: Fault, victim: str, pid: int, *, is_alone: bool = False) -> tuple[float, float]:
        """The same of a process that the stage does not know by a name."""
        ran_s, at = age_of(pid), self.now()
        await kill_process(pid)
        fault.kills.append(Kill(victim, at, ran_s, is_alone))
        return at, self.now()

    def note_back(self, fault: Fault, back_s: float, start_s: float | None = None) -> None:
        fault.kills.append(replace(fault.kills.pop(), back_s=back_s, start_s=start_s))

    async def wait_for_gateway(self, fault: Fault, at: float, ended: float) -> float:
        """After the gateway was killed: until every model answers. When the first did."""
        first, every = await asyncio.gather(self.back(None, ended), self.all_back(ended))
        fault.allow(None, GATEWAY_AWAY, at, every)
        return first

    async def ask_admin(self, method: str, path: str, body: object = None, **query: object) -> Reply | None:
        """One request to the admin API; None where nobody answers it now."""
        try:
            reply = await self.admin.request(method, path, body, **query)
        except (aiohttp.ClientError, TimeoutError):
            return None
        return None if reply.status == 503 else reply

    async def ask_health(self) -> dict[str, Any]:
        """What the gateway says of itself; empty where nobody answers."""
        try:
            return dict((await send_request(f"{self.stage.url}/health")).body)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return {}

    async def wait_for_controller(self) -> None:
        """Until the admin API answers."""
        await until("the admin API answers", lambda: self.ask_admin("GET", "models"), BACK_WITHIN_S)

    async def model_row(self, model: str) -> dict[str, Any]:
        """A model as the admin API shows it; empty while it answers nothing."""
        reply = await self.ask_admin("GET", f"models/{model}")
        return dict(reply.body) if reply is not None and reply.status == 200 else {}

    async def admin_list(self) -> dict[str, Any]:
        """All models, and how far the list can be believed; empty while nobody answers."""
        reply = await self.ask_admin("GET", "models")
        return dict(reply.body) if reply is not None and reply.status == 200 else {}

    def declare(self) -> None:
        """Write the desired-state file, as an editor does: whole, by rename."""
        temporary = self.stage.desired.parent / f"{FILE}.new"
        with temporary.open("w") as file:
            servers = {SERVER: self.stage.mcp_server}
            YAML(typ="safe", pure=True).dump({"models": self.declared, "mcp_servers": servers}, file)
        temporary.replace(self.stage.desired / FILE)

    def edit(self, model: str) -> set[str]:
        """Declare another context for a model; the engines that it replaces."""
        self.edits += 1
        self.declared[model] = self.declared[model] | {"llama_server_n_ctx": 2048 + 64 * (self.edits % 32)}
        self.declare()
        return {each.name for each in self.engines.values() if each.model == model}

    # From whole to whole.

    async def strike(self, kind: str, act: Callable[[Chaos, Fault], Any]) -> None:
        """One fault, and what must hold of the engines afterwards."""
        await until("answers have come", self._answered_more(self.dice.randint(0, MOST_ANSWERS)))
        fault = Fault(kind, self.now())
        self.record.faults.append(fault)
        self.record.loads.append(os.getloadavg()[0] / (os.cpu_count() or 1))
        before = self.engines
        struck: set[str] | None = await act(self, fault)
        await self.become_whole(fault)
        if struck is not None:
            fault.restarted += [
                f"{name}: {engine.identity} is not there any more"
                for name, engine in before.items()
                if name not in struck and (name not in self.engines or self.engines[name].identity != engine.identity)
            ]
            fault.engine_troubles += [f"{name} is there still or again" for name in struck & self.engines.keys()]
        fault.ended = self.now()
        self.note(f"{kind}: {len(fault.kills)} kills, whole after {fault.ended - fault.began:.1f} s")

    def _answered_more(self, count: int) -> Callable[[], bool]:
        goal = self.clients.answered.total() + count
        return lambda: self.clients.answered.total() >= goal

    async def become_whole(self, fault: Fault | None = None) -> None:
        """Wait until what is declared runs and serves, each engine once, and nothing else runs; then what was kept for
        clients must be there."""
        wrong: list[str] = []

        async def look() -> bool:
            nonlocal wrong
            self.engines, wrong = await self._look()
            return not wrong

        try:
            await until("everything runs as declared", look, WHOLE_WITHIN_S)
        except AssertionError:
            if fault is not None:
                fault.engine_troubles += wrong
            raise AssertionError(f"not whole after {WHOLE_WITHIN_S:g} s: {wrong}") from None
        began = self.now()
        await self.all_back(began)
        await self.keepers.become_whole()

    async def _look(self) -> tuple[dict[str, Engine], list[str]]:
        """The engines, and what is not as it is declared: by the admin API, and by what runs."""
        listed = await self.admin_list()
        if not listed:
            return {}, ["the admin API does not answer"]
        wrong = [f"a problem in a file: {each}" for each in listed["desired_problems"]]
        wrong += [
            f"{row['name']}: {row['runtime_state']}, {row['replica_details']}"
            for row in listed["models"]
            if not is_at_rest(row)
        ]
        if (link := (await self.ask_health()).get("controller")) != "connected":  # it may know engines that are gone
            wrong.append(f"the gateway's link to the controller: {link}")
        engines, wrong_engines = self.stage.host.look(WANTED)
        shown = {each["name"] for row in listed["models"] for each in row["replica_details"]}
        if shown != set(engines):
            wrong.append(f"the admin API shows {sorted(shown)}, and there are {sorted(engines)}")
        return engines, wrong + wrong_engines


def is_at_rest(row: dict[str, Any]) -> bool:
    """Whether all engines of a model's row are ready and as declared."""
    ready = [each for each in row["replica_details"] if each["phase"] == "ready" and not each["outdated"]]
    return bool(row["is_loaded"]) and len(ready) == len(row["replica_details"]) == WANTED[row["name"]]


@dataclass(frozen=True)
class Kind:
    """One kind of fault. `act` returns the names of the engines that had to be started again because of it; None: any
    of them, or none."""

    name: str
    act: Callable[[Chaos, Fault], Any]
    times: int = 1
    """In a round."""
    every: int = 1
    """In which rounds: each, each second, each third."""


def shuffled(kinds: Sequence[Kind], dice: random.Random) -> Iterator[Kind]:
    """Without end, in rounds: each as often as it says before the next round begins."""
    for number in itertools.count():
        chosen = [kind for kind in kinds if number % kind.every == 0 for _ in range(kind.times)]
        yield from dice.sample(chosen, len(chosen))


async def play(chaos: Chaos, kinds: Sequence[Kind], kills: int) -> Record:
    """Faults until there were so many kills. The stage is started here, and ended as the documents say; what it leaves
    is in the record, as is an error that breaks the campaign off."""
    chaos.record.left_out = dict(chaos.stage.left_out)
    possible = [kind for kind in kinds if kind.name not in chaos.stage.left_out]
    chaos.declare()
    try:
        await chaos.stage.start()
        async with chaos.admin, chaos.clients.running(CLIENTS), chaos.keepers.running():
            await _play_faults(chaos, possible, kills)
        await chaos.stage.end()
        chaos.record.left = chaos.stage.find_left()
    except Exception:
        chaos.record.broke = traceback.format_exc()
    finally:
        await chaos.stage.close()
    return chaos.record


async def _play_faults(chaos: Chaos, kinds: Sequence[Kind], kills: int) -> None:
    await chaos.become_whole()
    # What was refused while the first engines loaded is no fault's.
    chaos.clients.lost.clear()
    chaos.clients.answered.clear()
    chaos.keepers.refused.clear()
    try:
        for kind in shuffled(kinds, chaos.dice):
            await chaos.strike(kind.name, kind.act)
            if sum(len(fault.kills) for fault in chaos.record.faults) >= kills:
                break
        await chaos.clients.answer_more(2)
    finally:
        chaos.record.lost = chaos.clients.lost
        chaos.record.answered = chaos.clients.answered.total()
        chaos.record.acknowledged = chaos.keepers.acknowledged
        chaos.record.refused = chaos.keepers.refused
        chaos.record.forgotten = chaos.keepers.lost
