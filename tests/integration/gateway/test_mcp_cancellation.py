"""Clients of `/mcp` that cancel a call and stay: by the `mcp` package's own client, and by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.forwarding import never
from tests.support.mcp_clients import (
    ADMIN_TOOLS,
    GENERATIONS,
    HEADERS,
    INFERENCE_TOOLS,
    Generation,
    list_names,
    mcp_client,
    message,
)
from tests.support.queueing import key
from tests.support.wait import until

HANDSHAKE = message(
    "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "by-hand", "version": "1"}
)
PLAN = message("tools/call", name="get_plan", arguments={})
SCOPES = ("inference", "admin")


def post(gateway: GatewayHarness, body: dict[str, Any], session: str | None = None, secret: str | None = None) -> Any:
    """One message; an async context manager, as aiohttp's."""
    headers = {**HEADERS, **({} if session is None else {"mcp-session-id": session})}
    return gateway.post("/mcp", body, key=secret, headers=headers)


async def shake_hands(gateway: GatewayHarness, secret: str | None = None) -> str:
    """The id that a new client is given."""
    async with post(gateway, HANDSHAKE, secret=secret) as answer:
        assert answer.status == 200, await answer.text()
        session: str = answer.headers["mcp-session-id"]
        return session


async def call(gateway: GatewayHarness, session: str | None, secret: str | None = None, **fields: Any) -> Any:
    """The answer of a call that is not over before the controller answers."""
    async with post(gateway, {**PLAN, **fields}, session, secret) as answer:
        assert answer.status == 200
        assert "mcp-session-id" not in answer.headers
        return await answer.json()


async def cancel(gateway: GatewayHarness, session: str | None, request: object = 1, secret: str | None = None) -> None:
    """Say that a call is cancelled."""
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request}}
    async with post(gateway, body, session, secret) as answer:
        assert (answer.status, await answer.read()) == (202, b"")


async def until_called(gateway: GatewayHarness, count: int) -> None:
    """Wait until so many calls have asked the controller, which never answers."""
    await until("the controller is asked", lambda: gateway.controller.admin.running == count)


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_client_cancels_its_call_and_stays(generation: Generation) -> None:
    async with gateway_harness() as gateway:
        gateway.controller.admin.answer = never
        async with mcp_client(gateway.url, generation=generation) as client:
            calling = asyncio.create_task(client.call_tool("get_plan", {}))
            await until_called(gateway, 1)
            calling.cancel()
            await until("the call is over", lambda: gateway.controller.admin.cancelled == 1)
            assert await list_names(client) == INFERENCE_TOOLS + ADMIN_TOOLS


async def test_a_cancelled_call_is_answered_as_the_library_does() -> None:
    async with gateway_harness() as gateway:
        gateway.controller.admin.answer = never
        session = await shake_hands(gateway)
        calling = asyncio.create_task(call(gateway, session, id="a"))
        await until_called(gateway, 1)
        await cancel(gateway, session, "a")
        assert await calling == {
            "jsonrpc": "2.0", "id": "a", "error": {"code": -32800, "message": "Request cancelled"},
        }  # fmt: skip
        await until("the controller is asked no more", lambda: gateway.controller.admin.cancelled == 1)


async def test_each_client_cancels_its_own_calls_alone() -> None:
    """Also where they have the same key, and number their requests alike."""
    async with gateway_harness() as gateway:
        await gateway.publish(keys=(key("one", scopes=SCOPES), key("two", scopes=SCOPES)))
        gateway.controller.admin.answer = never
        first, second = [await shake_hands(gateway, "secret-one") for _ in range(2)]
        assert first != second
        calls = [asyncio.create_task(call(gateway, session, "secret-one")) for session in (first, second)]
        await until_called(gateway, 2)
        await cancel(gateway, first, secret="secret-two")
        await cancel(gateway, first, request=2, secret="secret-one")
        await cancel(gateway, first, request="1", secret="secret-one")
        await cancel(gateway, first, request=[1], secret="secret-one")
        await cancel(gateway, "invented", secret="secret-one")
        await cancel(gateway, None, secret="secret-one")
        assert gateway.controller.admin.cancelled == 0
        await cancel(gateway, first, secret="secret-one")
        assert (await calls[0])["error"]["code"] == -32800
        await until("the controller is asked no more", lambda: gateway.controller.admin.cancelled == 1)
        assert not calls[1].done()
        await cancel(gateway, second, secret="secret-one")
        assert (await calls[1])["error"]["code"] == -32800


async def test_an_id_serves_again_after_its_call() -> None:
    async with gateway_harness() as gateway:
        session = await shake_hands(gateway)
        gateway.controller.admin.answer = never
        for _ in range(2):
            calling = asyncio.create_task(call(gateway, session))
            await until_called(gateway, 1)
            await cancel(gateway, session)
            assert (await calling)["error"]["code"] == -32800
            await until_called(gateway, 0)
            await cancel(gateway, session)
