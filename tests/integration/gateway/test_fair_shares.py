"""What two tenants get of a real engine's four slots while both wait: the same slot-seconds, not as many answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from contract.status import ModelState
from gateway.admission.fair_queue import FairQueue
from gateway.admission.ticket import Ticket
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.gateway_rest import nothing_left
from tests.support.http_client import HttpClient
from tests.support.installed_engines import needed, started
from tests.support.llama_slots import make_endless
from tests.support.queueing import key
from tests.support.wait import until
from tests.support.worker_process import Worker

pytestmark = [pytest.mark.embedded, pytest.mark.interpreted]

SLOTS = 4
TOKEN = "replica-token"
TOKENS = {"alice": 90, "bob": 15}
"""Of each answer: Alice's take several times as long."""
REQUESTS = {"alice": 40, "bob": 160}


@dataclass
class Ledger:
    """Slot-seconds by tenant, from when each request went in and was out, kept beside the gateway's own accounts."""

    service: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    """Of one request."""
    gaps: list[float] = field(default_factory=list)
    """Between the two tenants, whenever a request was out, as long as both had others waiting."""

    def out(self, queue: FairQueue, ticket: Ticket, seconds: float) -> None:
        self.service[ticket.tenant] += seconds  # type: ignore[assignment]
        self.longest_s = max(self.longest_s, seconds)
        if queue.waiting_by_tenant().keys() == TOKENS.keys():
            self.gaps.append(abs(self.service["alice"] - self.service["bob"]))


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Of every gateway that a test makes."""
    made, settle = Ledger(), FairQueue.settle_slot_time

    def left(self: FairQueue, ticket: Ticket, seconds: float) -> None:
        made.out(self, ticket, seconds)
        settle(self, ticket, seconds)

    monkeypatch.setattr(FairQueue, "settle_slot_time", left)
    return made


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Worker]:
    """A llama-server of four slots, which generates for as long as it is asked to."""
    needed("embedded")
    make_endless(tmp_path / "endless.gguf")
    with started("embedded", tmp_path, "m", tmp_path / "endless.gguf", token=TOKEN) as worker:
        yield await asyncio.to_thread(worker.ready)


async def chat(gateway: GatewayHarness, session: aiohttp.ClientSession, who: str) -> int:
    """One request, to the end: its status."""
    reply = await HttpClient(gateway.url, session).chat(max_tokens=TOKENS[who], key=f"secret-{who}")
    return reply.status


def depth(gateway: GatewayHarness) -> int:
    return gateway.services.admission.depths.get("m", 0)


async def test_tenants_that_wait_get_the_same_slot_seconds(engine: Worker, ledger: Ledger) -> None:
    keys = (key("alice"), key("bob"))
    loading = route("m", state=ModelState.LOADING, autoload=True, target_inflight=SLOTS, queue_limit=500)
    connector = aiohttp.TCPConnector(limit=0)
    async with gateway_harness() as gateway, aiohttp.ClientSession(connector=connector) as session:
        await gateway.publish(loading, keys=keys)
        tasks: list[asyncio.Task[int]] = []
        for who, count in REQUESTS.items():  # all of Alice's first: by first come, first served, they were served first
            tasks.extend(asyncio.create_task(chat(gateway, session, who)) for _ in range(count))
            await until(f"{len(tasks)} wait", lambda: depth(gateway) == len(tasks))
        address = f"http://127.0.0.1:{engine.port}"
        await gateway.publish(route("m", [address], token=TOKEN, target_inflight=SLOTS, queue_limit=500), keys=keys)
        assert set(await asyncio.gather(*tasks)) == {200}
        await nothing_left(gateway)
    assert len(ledger.gaps) > SLOTS
    # When a tenant last had its turn it had not had more than the other one, but for what each had inside then, which
    # is charged with what is expected; since then its own that were inside came out. Each time that is a request per
    # slot, and none took longer than the longest. This holds on any machine.
    assert max(ledger.gaps) <= 2 * SLOTS * ledger.longest_s
