"""Real gateways at one controller: one is taken, a second is refused with the reason, a successor follows."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from contract.routing import GatewayReport
from tests.support.admin import AdminApi
from tests.support.controller_app import running
from tests.support.ports import free_port
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.runtime_fixtures import ProcessRuntimeFixture
from tests.support.wait import until

TOKENS = 2000
"""Tokens of the engine's answer, 20 ms each: longer than any test."""
STREAM = {"model": "a", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": TOKENS}


@pytest.fixture
async def stack(folder: Path) -> AsyncIterator[RoundhouseStack]:
    """A controller, a gateway and a slow stub engine, loaded. The gateway starts first, where no folder is yet: it is
    another start of the same gateway that follows it, all the same."""
    made = RoundhouseStack(folder, "process", {"ROUNDHOUSE_RESPONSES_RETENTION_H": "0", "ROUNDHOUSE_RETRIEVAL": "0"})
    made.declare({"a": {"backend": "stub", "stub_text": "word " * TOKENS, "stub_token_delay_ms": 20}})
    try:
        made.start("gateway")
        await until("the gateway listens", lambda: read_health(made.port))
        made.start("controller")
        await made.gateway_connected()
        await made.loaded("a")
        yield made
    finally:
        await made.close()
    assert ProcessRuntimeFixture().left(made) == []


async def read_health(port: int) -> dict[str, Any]:
    """`/health` of the gateway at a port; empty where nobody answers."""
    try:
        async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}/health") as answer:
            health: dict[str, Any] = await answer.json()
            return health
    except aiohttp.ClientError:
        return {}


async def until_word(port: int, word: str) -> dict[str, Any]:
    """Wait until the gateway's link is in that state, and return its `/health`."""

    async def look() -> dict[str, Any] | None:
        health = await read_health(port)
        return health if health.get("controller") == word else None

    health: dict[str, Any] = await until(f"the link of {port} is {word}", look)
    return health


async def until_inflight(stack: RoundhouseStack, count: int) -> None:
    """Wait until the replica is known to serve that many requests."""

    async def look() -> bool:
        model = await stack.model("a")
        return model is not None and [replica.inflight for replica in model.replicas] == [count]

    await until(f"{count} requests are known", look)


def reasons(health: dict[str, Any], part: str) -> list[str]:
    """What `/health` says of a part that does not work."""
    return [each["reason"] for each in health["degraded"] if each["part"] == part]


async def test_a_second_gateway_is_refused_a_successor_is_taken_and_who_waited_follows(stack: RoundhouseStack) -> None:
    [first] = (await stack.status()).gateways
    ports = {"second": free_port(), "copy": free_port()}
    own = {"ROUNDHOUSE_STATE": str(stack.root / "second"), "ROUNDHOUSE_PORT": str(ports["second"])}
    stack.start("gateway", name="second", **own)
    stack.start("gateway", name="copy", ROUNDHOUSE_PORT=str(ports["copy"]))  # of the first one's folder
    await until_word(ports["copy"], "refused")
    refused = await until_word(ports["second"], "refused")

    status = await stack.status()
    assert status.gateways == [first]
    [sentence] = [each for each in status.refused_gateways if f"at http://127.0.0.1:{ports['second']} is ref" in each]
    assert f"gateway {first} at {stack.url} is connected" in sentence
    assert "stop one of them" in sentence
    for program in ("controller", "second"):
        assert stack.log(program).count(sentence) == 1, program
    hidden = sentence.replace(stack.url, "[address]").replace(f"http://127.0.0.1:{ports['second']}", "[address]")
    assert reasons(refused, "controller") == [hidden]
    assert hidden in reasons(await read_health(stack.port), "gateway")
    async with AdminApi(f"http://127.0.0.1:{ports['second']}") as api:
        reply = await api.chat("a")
        assert (reply.status, reply.code) == (503, "controller_unavailable")
        assert hidden[1:] in reply.body["error"]["message"]

    async with aiohttp.ClientSession() as client:
        old = await client.post(f"{stack.url}/v1/chat/completions", json=STREAM)
        assert old.status == 200, "the first one serves on"
        await old.content.readany()
        stack.send("gateway", signal.SIGTERM)
        await until_word(ports["copy"], "connected")
        assert len((await stack.status()).gateways) == 2
        new = await client.post(f"http://127.0.0.1:{ports['copy']}/v1/chat/completions", json=STREAM)
        await new.content.readany()
        await until_inflight(stack, 2)
        stack.kill("gateway")
        await until_inflight(stack, 1)
        old.close()
        stack.kill("copy")
        new.close()
    await until_word(ports["second"], "connected")
    await until_inflight(stack, 0)
    assert (await stack.status()).refused_gateways == []
    stack.kill("second", signal.SIGTERM)


async def test_the_last_use_of_keys_outlives_the_controller(tmp_path: Path) -> None:
    (tmp_path / "desired").mkdir()
    (tmp_path / "desired" / "keys.yaml").write_text(
        f"keys: {{ci: {{sha256: {'a' * 64}}}, idle: {{sha256: {'b' * 64}}}}}"
    )
    async with running(tmp_path, {}) as first:
        assert first.controller.get_status().keys_used is None
        used_at = time.time()
        first.controller.take_report(GatewayReport(gateway_id="gw-a", stamp=None, keys_used={"ci": used_at}))
        assert first.controller.get_status().keys_used == {"ci": used_at // 60 * 60}
    async with running(tmp_path, {}) as second:
        status = second.controller.get_status()
        assert (status.keys, status.keys_used) == (["ci", "idle"], {"ci": used_at // 60 * 60})
