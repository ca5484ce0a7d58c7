"""One tenant's sessions are nothing to another: neither an answer nor its time tells that they exist."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support.campaign import RecordProperty, campaign_count, record_figure
from tests.support.queueing import key

ALICE, BOB = key("alice"), key("bob")
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ("/v1/completions", {"prompt": "Hi"}),
    ("/v1/responses", {"input": "Hi"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}),
]
MOST_SIGMAS = 4.5
"""One in 150,000 runs in which nothing is to be told apart has more."""


async def decision_of(gateway: GatewayHarness, who: str, path: str, fields: dict[str, Any], name: str) -> str | None:
    """What `X-Session` says to a tenant that names this session."""
    body, headers = {"model": "m", **fields}, {"x-conversation-id": name}
    reply = await gateway.post(path, body, key=f"secret-{who}", headers=headers)
    assert reply.status == 200, reply.text
    return reply.headers.get("x-session")


@pytest.mark.parametrize(("path", "fields"), FAMILIES)
async def test_a_foreign_session_is_none(path: str, fields: dict[str, Any]) -> None:
    async with engines(2) as served, gateway_harness() as gateway:
        urls = [engine.url for engine in served]
        model = route("m", urls, session_cache=4, session_binding="name")
        await gateway.publish(model, keys=(ALICE, BOB))
        assert [await decision_of(gateway, "bob", path, fields, "s") for _ in range(2)] == ["new", "reused"]
        assert await decision_of(gateway, "alice", path, fields, "s") == "new"
        assert await decision_of(gateway, "bob", path, fields, "s") == "reused", "alice's took nothing from it"
        names = {each.body["session_id"] for engine in served for each in engine.requests}
        assert len(names) == 2
        assert "s" not in names


async def test_the_time_of_an_answer_tells_nothing_of_foreign_sessions(record_property: RecordProperty) -> None:
    """Asks by turns with a name that is another tenant's and with one that is nobody's, and compares each pair: of n
    pairs without a difference, the first is the slower in n/2, give or take sqrt(n)/2."""
    pairs = campaign_count(150, 1_000)
    (path, fields), times = FAMILIES[0], [[0.0, 0.0] for _ in range(pairs)]
    async with engines(1) as (engine,), gateway_harness() as gateway:
        await gateway.publish(
            route("m", [engine.url], session_cache=4 * pairs, session_binding="name"), keys=(ALICE, BOB)
        )
        for number in range(pairs):
            await decision_of(gateway, "bob", path, fields, f"foreign {number}")
        for number in range(pairs):
            names = f"foreign {number}", f"nowhere {number}"
            for place in (0, 1) if number % 2 else (1, 0):
                begun_at = perf_counter()
                assert await decision_of(gateway, "alice", path, fields, names[place]) == "new"
                times[number][place] = perf_counter() - begun_at
    slower = sum(foreign > nowhere for foreign, nowhere in times)
    sigmas = (slower - pairs / 2) / (math.sqrt(pairs) / 2)
    record_figure(record_property, "sigmas by which foreign sessions differ from none", round(sigmas, 2))
    assert abs(sigmas) < MOST_SIGMAS, (slower, pairs)
