"""One fault after the other on a whole Roundhouse with real engines under load: nobody gets a wrong answer, and after
each fault everything that is declared runs again, once."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controller.runtimes.process.stat import Process
from controller.schema.status import ModelState, ModelStatus
from tests.support.campaign import RecordProperty, campaign_count, campaign_seed, record_figure
from tests.support.checked_clients import CheckedClients
from tests.support.engine_processes import kill_engine, read_records, signal_engine, what_is_wrong_with_engines
from tests.support.roundhouse_stack import RoundhouseStack, replica_names
from tests.support.runtime_fixtures import ProcessRuntimeFixture
from tests.support.wait import until

pytestmark = pytest.mark.engines

LLAMA = {"model_path": "clockwork.gguf", "llama_server_threads": 1, "llama_server_n_ctx": 4096}
MODELS = Counter({"one": 1, "two": 2})
"""Replicas of each."""
EXPLAINED = {
    "controller_unavailable",  # a gateway that was started again has no table yet
    "engine_disconnected",
    "engine_unreachable",
    "model_failed",  # between an engine's end and its next start
    "model_loading",
    "model_not_loaded",
    "model_unloading",
}
"""Codes that a client may be refused with while one of the faults is mended."""
WHOLE_DEADLINE_S = 180.0
FROZEN_ANSWERS = 15
"""Of others, while an engine or the controller is stopped."""


@dataclass
class Chaos:
    """A Roundhouse under faults. A fault returns the replicas that had to be started again because of it."""

    stack: RoundhouseStack
    clients: CheckedClients
    dice: random.Random
    declared: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {name: LLAMA | {"replicas": count} for name, count in MODELS.items()}
    )
    edits: int = 0
    restarted: int = 0
    """Engines that were started again."""
    engines: dict[str, Process] = field(default_factory=dict)
    """Of each replica the process, when the stack was whole for the last time."""

    async def replicas(self, *names: str) -> list[str]:
        """Of these models, or of all."""
        models = await self.stack.loaded(*(names or MODELS))
        return sorted(replica for model in models.values() for replica in replica_names(model))

    async def one_replica(self) -> str:
        """Any one."""
        return self.dice.choice(await self.replicas())

    async def restart_gateway(self, number: signal.Signals) -> None:
        """End the gateway by a signal and start it again."""
        with self.clients.gateway_away():
            self.stack.kill("gateway", number)
            self.stack.start("gateway")
            await until("the gateway has a table", self._serves)

    async def _serves(self) -> bool:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"{self.stack.url}/v1/models") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

    def restart_controller(self, number: signal.Signals) -> None:
        """End the controller by a signal and start it again."""
        self.stack.kill("controller", number)
        self.stack.start("controller")

    def edit(self, model: str) -> None:
        """Declare another context for a model."""
        self.edits += 1
        self.declared[model] = self.declared[model] | {"llama_server_n_ctx": 2048 + 64 * self.edits}
        self.stack.declare(self.declared)

    # The faults.

    async def engine_killed(self) -> set[str]:
        replica = await self.one_replica()
        await kill_engine(self.stack, replica)
        return {replica}

    async def engine_stopped_for_a_while(self) -> set[str]:
        model, other = self.dice.choice((("one", "two"), ("two", "one")))
        replica = self.dice.choice(await self.replicas(model))
        signal_engine(self.stack, replica, signal.SIGSTOP)
        await self.clients.answer_more(FROZEN_ANSWERS, other)
        signal_engine(self.stack, replica, signal.SIGCONT)
        return set()

    async def controller_killed(self) -> set[str]:
        self.stack.kill("controller")
        await self.clients.answer_more(2)
        self.stack.start("controller")
        return set()

    async def controller_restarted(self) -> set[str]:
        self.restart_controller(signal.SIGTERM)
        return set()

    async def controller_stopped_for_a_while(self) -> set[str]:
        pid = self.stack.pid("controller")
        os.kill(pid, signal.SIGSTOP)
        await self.clients.answer_more(FROZEN_ANSWERS)
        os.kill(pid, signal.SIGCONT)
        return set()

    async def gateway_killed(self) -> set[str]:
        await self.restart_gateway(signal.SIGKILL)
        return set()

    async def gateway_restarted(self) -> set[str]:
        await self.restart_gateway(signal.SIGTERM)
        return set()

    async def gateway_and_controller_killed(self) -> set[str]:
        self.stack.kill("controller")
        self.stack.start("controller")
        await self.restart_gateway(signal.SIGKILL)
        return set()

    async def model_edited(self) -> set[str]:
        model = self.dice.choice(sorted(MODELS))
        old = set(await self.replicas(model))
        self.edit(model)
        await self._replaced(model, old)
        return old

    async def model_edited_and_controller_killed(self) -> set[str]:
        model = self.dice.choice(sorted(MODELS))
        old = set(await self.replicas(model))
        self.edit(model)
        await self.clients.answer_more(self.dice.randint(1, 10))  # so it dies at any moment of the replacement
        self.restart_controller(signal.SIGKILL)
        await self._replaced(model, old)
        return old

    async def _replaced(self, model: str, old: set[str]) -> None:
        await self.stack.model_where(model, lambda seen: not old & replica_names(seen), "its engines are replaced")

    async def file_broken_and_mended(self) -> set[str]:
        (self.stack.desired / "models.yaml").write_text("models:\n  one: {backend: [\n")
        await until("the problem is seen", self._has_problem)
        await self.clients.answer_more(2)
        self.stack.declare(self.declared)
        return set()

    async def _has_problem(self) -> bool:
        return bool((await self.stack.status()).desired_problems)

    async def engine_killed_while_paused(self) -> set[str]:
        model = self.dice.choice(sorted(MODELS))
        replica = self.dice.choice(await self.replicas(model))
        await self.stack.post("/internal/pause", {"paused": True})
        await kill_engine(self.stack, replica)
        await self.stack.model_where(
            model, lambda seen: seen.loaded_replicas == MODELS[model] - 1, "one replica less serves"
        )
        started = self.starts
        await self.clients.answer_more(2, next(name for name in MODELS if name != model))
        assert self.starts == started, "the controller acted while it was paused"
        await self.stack.post("/internal/pause", {"paused": False})
        return {replica}

    async def engine_killed_while_the_controller_was_dead(self) -> set[str]:
        replica = await self.one_replica()
        self.stack.kill("controller")
        await kill_engine(self.stack, replica)
        self.stack.start("controller")
        return {replica}

    # What must hold after each.

    async def strike(self, fault: Fault) -> None:
        """One fault, from a whole stack to a whole stack, and what must hold of the way."""
        name, before, refused = fault.__name__, self.engines, self.clients.refused.copy()
        struck = await fault(self)
        await self.become_whole()
        untouched = {replica: process for replica, process in before.items() if replica not in struck}
        assert untouched.items() <= self.engines.items(), f"{name} restarted an engine that it did not touch"
        assert not struck & self.engines.keys(), f"{name} left an engine that it ended"
        assert self.clients.wrong == [], name
        refusals = self.clients.refused - refused
        assert set(refusals) <= (set() if fault in UNNOTICED else EXPLAINED), f"{name}: {refusals}"
        self.restarted += len(self.engines.keys() - before.keys())

    @property
    def starts(self) -> int:
        """Engines that were started, ever."""
        return sum(self.stack.log("controller").count(f"start {model}/") for model in MODELS)

    async def become_whole(self) -> None:
        """Wait until what is declared runs and serves, and nothing else runs."""
        wrong: list[str] = []

        async def look() -> bool:
            nonlocal wrong
            self.engines, wrong = await self._engines()
            return not wrong

        try:
            await until("the stack is whole", look, WHOLE_DEADLINE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {wrong}\n{self.stack.log('controller')[-4000:]}") from None
        await self.clients.answer_more(2)

    async def _engines(self) -> tuple[dict[str, Process], list[str]]:
        """The engines that run, and what is not as it is declared: by the controller, and by records and processes."""
        try:
            status = await self.stack.status()
        except aiohttp.ClientError as error:
            return {}, [f"the controller does not answer: {error!r}"]
        wrong = [f"a problem in a file: {problem.message}" for problem in status.desired_problems]
        wrong += [
            f"{model.name} is {model.state}: {model.replicas}" for model in status.models if not is_at_rest(model)
        ]
        try:
            records = read_records(self.stack)
        except (OSError, ValueError) as error:
            return {}, [*wrong, f"a record cannot be read now: {error}"]
        wrong += what_is_wrong_with_engines(records, MODELS)
        known = {replica for model in status.models for replica in replica_names(model)}
        if known != set(records):
            wrong.append(f"the controller knows {known}, and records are of {set(records)}")
        return {name: record.leader for name, record in records.items() if record.leader}, wrong


Fault = Callable[[Chaos], Awaitable[set[str]]]
FAULTS: tuple[Fault, ...] = (
    Chaos.engine_killed,
    Chaos.engine_stopped_for_a_while,
    Chaos.engine_killed_while_paused,
    Chaos.engine_killed_while_the_controller_was_dead,
    Chaos.controller_killed,
    Chaos.controller_restarted,
    Chaos.controller_stopped_for_a_while,
    Chaos.gateway_killed,
    Chaos.gateway_restarted,
    Chaos.gateway_and_controller_killed,
    Chaos.model_edited,
    Chaos.model_edited_and_controller_killed,
    Chaos.file_broken_and_mended,
)


UNNOTICED: frozenset[Fault] = frozenset(
    {
        Chaos.engine_stopped_for_a_while,
        Chaos.controller_killed,
        Chaos.controller_restarted,
        Chaos.controller_stopped_for_a_while,
        Chaos.model_edited,
        Chaos.model_edited_and_controller_killed,
        Chaos.file_broken_and_mended,
    }
)
"""Faults that no client may notice: nothing is refused."""


def shuffled_faults(dice: random.Random) -> Iterator[Fault]:
    """Without end, and each once before one comes again."""
    while True:
        yield from dice.sample(FAULTS, len(FAULTS))


def is_at_rest(model: ModelStatus) -> bool:
    """All its replicas are ready and as declared."""
    ready = [replica for replica in model.replicas if replica.phase == "ready" and not replica.outdated]
    is_loaded = model.state is ModelState.LOADED
    return is_loaded and len(ready) == len(model.replicas) == model.wanted_replicas == MODELS[model.name]


@pytest.fixture
async def stack(folder: Path, clockwork: Path) -> AsyncIterator[RoundhouseStack]:
    runtime_fixture = ProcessRuntimeFixture()
    made = RoundhouseStack(folder, runtime_fixture.runtime, runtime_fixture.env())
    shutil.copy(clockwork, made.models / "clockwork.gguf")
    try:
        yield made
    finally:
        await made.close()
    assert runtime_fixture.left(made) == []


async def test_no_fault_makes_an_answer_wrong_and_each_is_mended(
    stack: RoundhouseStack, record_property: RecordProperty
) -> None:
    dice = random.Random(campaign_seed())
    clients = CheckedClients(stack.url, tuple(MODELS))
    chaos = Chaos(stack, clients, dice)
    stack.declare(chaos.declared)
    await stack.open()
    await stack.loaded(*MODELS)
    done: Counter[Fault] = Counter()
    try:
        async with clients.running(campaign_count(3, 8)):
            await chaos.become_whole()
            for fault in itertools.islice(shuffled_faults(dice), campaign_count(3, 65)):
                done[fault] += 1
                await chaos.strike(fault)
    finally:
        record_figures(record_property, done, chaos)
    assert clients.wrong == []


def record_figures(record_property: RecordProperty, done: Counter[Fault], chaos: Chaos) -> None:
    """What the campaign's page tells, also of one that failed."""
    clients = chaos.clients
    for fault, count in sorted(done.items(), key=lambda item: item[0].__name__):
        record_figure(record_property, f"fault: {fault.__name__.replace('_', ' ')}", count)
    record_figure(record_property, "requests", clients.requests)
    record_figure(record_property, "answers, each compared byte by byte", clients.answered.total())
    for code, count in sorted(clients.refused.items()):
        record_figure(record_property, f"refused with {code}", count)
    record_figure(record_property, "cut by a gateway that was ended", clients.cut)
    record_figure(record_property, "not connected, for the gateway was away", clients.not_connected)
    record_figure(record_property, "wrong answers", len(clients.wrong))
    record_figure(record_property, "engines started again", chaos.restarted)
