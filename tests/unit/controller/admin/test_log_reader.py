"""Following engines' logs: over engines that come and go under the same name, and a runtime that is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from contract.errors import RoundhouseError
from controller.admin import service
from controller.admin.service import AWAY, LogReader
from controller.redaction import redact_nothing
from controller.runtimes.base import RuntimeUnavailableError, SeenReplica
from controller.state import Exit, Phase, ReplicaId
from tests.fakes.fake_runtime import FakeRuntime
from tests.support.wait import until

FIRST, SECOND = "rh-i-m-0-hash-1", "rh-i-m-1-hash-1"


class Host:
    """A runtime whose engines the test starts and ends, and somebody who reads along."""

    def __init__(self) -> None:
        self._time = 0.0
        self.runtime = FakeRuntime(lambda: self._time)
        self.reader = LogReader(self.runtime, replicas=self._replicas, redact=redact_nothing)
        self.read = ""
        self.tasks: list[asyncio.Task[None]] = []

    def _replicas(self, model: str) -> dict[str, float]:
        seen = self.runtime.replicas.values()
        return {each.name: each.created_at for each in seen if each.id.model == model}

    def start(self, *lines: str, name: str = FIRST) -> None:
        """A new engine, which writes this into a log of its own."""
        self._time += 1
        self.runtime.replicas[name] = SeenReplica(ReplicaId("m", 0, "hash", 1), name, Phase.RUNNING, self._time)
        self.runtime.logs[name] = list(lines)

    def write(self, *lines: str, name: str = FIRST) -> None:
        self.runtime.logs[name] += lines

    async def text(self, **query: object) -> str:
        more = {"lines": 100, "follow": False} | query
        return "".join([part async for part in await self.reader.open_logs("m", None, **more)])  # type: ignore[arg-type]

    async def follow(self, replica: str | None = None, lines: int = 100) -> None:
        parts = await self.reader.open_logs("m", replica, lines=lines, follow=True)
        self.tasks.append(asyncio.create_task(self._follow(parts)))

    async def _follow(self, parts: AsyncIterator[str]) -> None:
        async for part in parts:
            self.read += part

    async def has(self, text: str) -> None:
        await until(f"read {text!r}", lambda: self.read == text or (len(self.read) > len(text) and self.read))
        assert self.read == text


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    monkeypatch.setattr(service, "POLL_S", 0.001)
    host = Host()
    yield host
    for task in host.tasks:
        task.cancel()
    await asyncio.gather(*host.tasks, return_exceptions=True)


@pytest.mark.parametrize("replica", [None, FIRST])
async def test_an_engine_of_a_name_that_was_there_before_is_followed_from_its_first_line(
    host: Host, replica: str | None
) -> None:
    host.start("one", "two", "three")
    await host.follow(replica, lines=1)
    await host.has("three\n")
    host.write("last")
    del host.runtime.replicas[FIRST]
    await host.has("three\nlast\n")
    # As long as what was read of the earlier one, so that only its birth tells that it is another.
    host.start("1", "2", "3", "4", "5")
    await host.has("three\nlast\n1\n2\n3\n4\n5\n")


async def test_an_end_and_a_beginning_between_two_looks_are_seen(host: Host) -> None:
    host.start("one")
    await host.follow()
    await host.has("one\n")
    host.start("1", "2", "3")
    await host.has("one\n1\n2\n3\n")


async def test_of_those_that_ended_the_last_one_that_said_anything_is_told(host: Host) -> None:
    assert await host.text() == ""
    for name, lines in ((FIRST, ["why"]), (SECOND, [])):
        host.start(*lines, name=name)
        del host.runtime.replicas[name]
    assert await host.runtime.list_ended_logs("m") == [SECOND, FIRST]
    assert await host.text() == "why\n"
    host.runtime.logs[SECOND] = ["called off"]
    assert await host.text() == "called off\n"


async def test_an_ended_engine_that_is_still_there_is_not_read_again(host: Host) -> None:
    host.start("one")
    host.runtime.end(FIRST, 1)
    assert host.runtime.replicas[FIRST].exit == Exit(1, log_tail="")
    await host.follow()
    await host.has("one\n")
    host.start("two", name=SECOND)
    await host.has(f"one\n{SECOND} | two\n")


async def test_an_engine_that_comes_while_one_follows_loses_no_line(host: Host) -> None:
    host.start("a1", "a2")
    await host.follow(lines=0)
    host.start("b1", "b2", name=SECOND)
    await host.has(f"{SECOND} | b1\n{SECOND} | b2\n")
    host.write("a3")
    await host.has(f"{SECOND} | b1\n{SECOND} | b2\n{FIRST} | a3\n")


async def test_without_engines_the_last_ones_log_is_given_and_then_the_next_ones(host: Host) -> None:
    host.start("one", "two")
    del host.runtime.replicas[FIRST]
    assert await host.text(lines=1) == "two\n"
    await host.follow()
    await host.has("one\ntwo\n")
    host.start("three")
    await host.has("one\ntwo\nthree\n")


async def test_a_runtime_that_does_not_answer_is_reported_before_anything_is_given(host: Host) -> None:
    host.start("one")
    host.runtime.unavailable = "the daemon is down"
    with pytest.raises(RuntimeUnavailableError):
        await host.text()


async def test_a_runtime_that_goes_away_is_reported_once_and_followed_when_it_is_back(host: Host) -> None:
    host.start("one")
    await host.follow()
    await host.has("one\n")
    for number in ("two", "three"):
        read = host.read
        host.runtime.unavailable = "the daemon is down"
        await host.has(f"{read}{AWAY}")
        host.write(number)
        host.runtime.unavailable = None
        await host.has(f"{read}{AWAY}{number}\n")


async def test_a_replica_that_is_none_of_the_models_is_unknown(host: Host) -> None:
    host.start("one")
    with pytest.raises(RoundhouseError) as refused:
        await host.reader.open_logs("m", SECOND, lines=1, follow=True)
    assert refused.value.entry.code == "unknown_replica"
