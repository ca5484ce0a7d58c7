"""Restarts of the gateway under load: `service run` with a real controller, gateway and engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from cli.up.supervisor import ProcessRecord, read_record
from tests.support.campaign import RecordProperty, campaign_count, record_figure
from tests.support.cli import PROGRAM
from tests.support.http_client import answers
from tests.support.roundhouse_stack import REPOSITORY, RoundhouseStack
from tests.support.wait import until

pytestmark = pytest.mark.engines

RESTARTS = campaign_count(ci=2, full=20)
KILLS = campaign_count(ci=1, full=5)
LONGEST_S = 180.0
"""A gateway that dies young is started again after twice as long each time."""
OLD_ENDED = "the old process of the gateway has ended"
CLIENTS = 4
TEXT = "one two three four five six seven eight nine ten"


class Site:
    """A service, and clients that ask it all the time, each request on a connection of its own."""

    def __init__(self, stack: RoundhouseStack, service: subprocess.Popen[bytes]) -> None:
        self.stack = stack
        self.service = service
        self.outcomes: Counter[str] = Counter()
        """What became of requests: `whole`, `refused`, or what broke one."""
        self._is_over = False

    @property
    def gateway(self) -> ProcessRecord:
        return read_record(self.stack.state).children["gateway"]

    @property
    def log(self) -> str:
        return (self.stack.root / "service.log").read_text()

    async def ask(self, path: str = "/v1/chat/completions", **fields: object) -> str:
        """Ask over a new connection; what became of it."""
        turn = {"input": "Hello"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "Hello"}]}
        connector = aiohttp.TCPConnector(force_close=True)
        try:
            async with (
                aiohttp.ClientSession(connector=connector) as session,
                session.post(f"{self.stack.url}{path}", json={"model": "m", **turn, **fields}) as answer,
            ):
                text = await answer.text()
        except aiohttp.ClientConnectorError:
            return "refused"
        except (aiohttp.ClientError, OSError) as error:
            return repr(error)
        is_whole = '"completed"' in text if path == "/v1/responses" else " ten" in _said(text)
        return "whole" if answer.status == 200 and is_whole else f"{answer.status} {text[:300]}"

    async def keep_asking(self, path: str = "/v1/chat/completions", **fields: object) -> None:
        while not self._is_over:
            self.outcomes[await self.ask(path, **fields)] += 1

    async def served(self, more: int) -> None:
        """Wait until so many more requests were answered whole."""
        wanted = self.outcomes["whole"] + more
        await until("they are served", lambda: self.outcomes["whole"] >= wanted, LONGEST_S)

    async def kill(self) -> None:
        """Kill the gateway, and return when another one was started."""
        old = self.gateway
        os.kill(old.pid, signal.SIGKILL)
        await until("another one is started", lambda: self.gateway != old, LONGEST_S)

    async def restart(self) -> None:
        """Restart the gateway as `systemctl reload` does, and return when the old process has ended."""
        ended = self.log.count(OLD_ENDED)
        self.service.send_signal(signal.SIGHUP)
        await until("the old one has ended", lambda: self.log.count(OLD_ENDED) > ended, LONGEST_S)

    def stop_asking(self) -> None:
        self._is_over = True


def _said(text: str) -> str:
    """The text of a chat's answer, streamed or not."""
    if not text.startswith("data:"):
        return str(json.loads(text)["choices"][0]["message"]["content"])
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


@pytest.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    stack = RoundhouseStack(folder, "process")
    model = {"backend": "stub", "stub_text": TEXT, "stub_token_delay_ms": 20, "target_inflight": 32}
    stack.declare({"m": model})
    with (folder / "service.log").open("ab") as log:
        command = [str(PROGRAM), "service", "run"]
        service = subprocess.Popen(  # noqa: ASYNC220 - it is polled
            command, cwd=REPOSITORY, env=stack.environment(), stdout=log, stderr=log
        )
    try:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
        await until("the model answers", lambda: answers(f"{stack.url}/v1/chat/completions", "POST", body), LONGEST_S)
        yield Site(stack, service)
    finally:
        await asyncio.to_thread(stack.run_command, "down")
        service.kill()
        service.wait()


async def test_restarts_under_load_refuse_and_break_nothing(site: Site, record_property: RecordProperty) -> None:
    clients = [asyncio.create_task(site.keep_asking(stream=bool(number % 2))) for number in range(CLIENTS)]
    stored = asyncio.create_task(site.keep_asking(path="/v1/responses"))
    for _ in range(RESTARTS):
        # Streams under way end whole, though they take longer than the new process takes to serve.
        under_way = asyncio.create_task(site.ask(stream=True))
        await site.restart()
        assert await under_way == "whole"
    site.stop_asking()
    await asyncio.gather(*clients, stored)
    assert set(site.outcomes) == {"whole"}, site.outcomes
    assert site.log.count("the gateway is restarted") == RESTARTS
    record_figure(record_property, "restarts", RESTARTS)
    record_figure(record_property, "requests, each on a new connection", site.outcomes.total())
    record_figure(record_property, "refused or broken", site.outcomes.total() - site.outcomes["whole"])


async def test_a_gateway_that_is_killed_under_load_refuses_nobody(site: Site, record_property: RecordProperty) -> None:
    clients = [asyncio.create_task(site.keep_asking()) for _ in range(CLIENTS)]
    for _ in range(KILLS):
        await site.served(1)
        await site.kill()
        await site.served(CLIENTS + 1)
    site.stop_asking()
    await asyncio.gather(*clients)
    lost = {words: count for words, count in site.outcomes.items() if words != "whole"}
    assert all("Disconnected" in words or "reset" in words for words in lost), lost
    assert sum(lost.values()) <= KILLS * CLIENTS, "only the requests inside are lost"
    record_figure(record_property, "kills", KILLS)
    record_figure(record_property, "requests that were inside a killed gateway", sum(lost.values()))
    record_figure(record_property, "refused connections", site.outcomes["refused"])
