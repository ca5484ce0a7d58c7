"""`/mcp` as a route: what is refused, clients that leave, a stop, and what is left of many clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from mcp import MCPError

from gateway.api.mcp import MAX_BODY_BYTES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.engine_calls import on
from tests.support.forwarding import error_of, never
from tests.support.http_client import PendingReply
from tests.support.leftovers import leftovers_of
from tests.support.mcp_clients import (
    ADMIN_TOOLS,
    GENERATIONS,
    HEADERS,
    INFERENCE_TOOLS,
    Generation,
    answer_rows,
    call,
    call_failing,
    list_names,
    mcp_client,
    message,
)
from tests.support.queueing import key
from tests.support.wait import until

LIST = json.dumps(message("tools/list")).encode()
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
MODERN = {"mcp-protocol-version": "2026-07-28"}
PACKAGES = ("fastapi", "gateway", "mcp_types", "starlette")
"""What a message and its answer are made of. Of the library, a few small objects without a message stay."""
CLIENTS = 30
MANY_LOOKS = 20


def post(gateway: GatewayHarness, body: bytes, **headers: str) -> PendingReply:
    """One message by hand."""
    return gateway.post("/mcp", body, headers=HEADERS | headers)


def calls_of(gateway: GatewayHarness) -> Any:
    """The calls of the gateway's MCP clients."""
    return gateway.app.mcp_calls


def say_loading(gateway: GatewayHarness) -> None:
    """Let the controller answer that the model is being loaded, and after many looks that it is loaded."""
    answer_rows(gateway, *["loading"] * (MANY_LOOKS - 1), "loaded")


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"", {}, 400, -32700),
        (b"{", {}, 400, -32700),
        (b"{", MODERN, 400, -32700),
        (b"[" * 100_000, {}, 400, -32700),
        (b"[" * 100_000, MODERN, 400, -32700),
        (b"\xff\xfe", {}, 400, -32700),
        (b"[]", {}, 400, -32602),
        (b"[]", MODERN, 400, -32600),
        (b"{}", {}, 400, -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "files/list"}', {}, 200, -32601),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}', {}, 200, -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 7}}', {}, 200, -32602),
        (LIST, MODERN, 400, -32602),
        (LIST, {"mcp-protocol-version": "1999-01-01"}, 400, -32602),
        (LIST, {"accept": "text/html"}, 406, -32600),
    ],
)
async def test_what_is_no_message_is_refused(body: bytes, headers: dict[str, str], status: int, code: int) -> None:
    async with gateway_harness() as gateway:
        reply = await post(gateway, body, **headers)
        assert (reply.status, reply.error["code"]) == (status, code)
        assert len((await post(gateway, LIST)).body["result"]["tools"]) == len(INFERENCE_TOOLS + ADMIN_TOOLS)


async def test_other_methods_are_refused_and_notifications_taken() -> None:
    async with gateway_harness() as gateway:
        for method in ("GET", "DELETE", "PUT"):
            reply = await gateway.request(method, "/mcp", headers=HEADERS)
            assert (reply.status, error_of(reply).code) == (405, "method_not_allowed")
            assert reply.headers["allow"] == "POST"
        async with post(gateway, b'{"jsonrpc": "2.0", "method": "notifications/initialized"}') as answer:
            assert (answer.status, await answer.read()) == (202, b"")
        async with post(gateway, LIST, **{"content-type": "text/plain"}) as answer:
            assert answer.status == 400


async def test_a_body_beyond_the_limit_is_refused() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 1024 + 1):
            yield b" " * 1024

    async with gateway_harness() as gateway:
        assert (await post(gateway, LIST + b" " * (MAX_BODY_BYTES - len(LIST)))).status == 200
        reply = await post(gateway, LIST + b" " * (MAX_BODY_BYTES - len(LIST) + 1))
        assert (reply.status, error_of(reply).code) == (413, "body_too_large")
        reply = await gateway.request("POST", "/mcp", headers=HEADERS, data=parts())
        assert (reply.status, error_of(reply).code) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, "forbidden_host"),
        ({"origin": "https://evil.example"}, "forbidden_origin"),
        ({"origin": "null"}, "forbidden_origin"),
    ],
)
async def test_pages_of_others_are_refused(headers: dict[str, str], code: str) -> None:
    async with gateway_harness() as gateway:
        reply = await post(gateway, LIST, **headers)
        assert (reply.status, error_of(reply).code) == (403, code)


async def test_calls_count_for_the_limits_of_their_key() -> None:
    async with gateway_harness() as gateway:
        await gateway.publish(route("m"), keys=(key("k", requests_per_minute=2),))
        own = {"authorization": "Bearer secret-k"}
        for left in (1, 0):
            reply = await post(gateway, LIST, **own)
            assert (reply.status, reply.headers["x-ratelimit-remaining-requests"]) == (200, str(left))
        reply = await post(gateway, LIST, **own)
        assert (reply.status, error_of(reply).code) == (429, "rate_limit_exceeded")


async def test_admin_tools_are_for_connections_to_the_admin_address() -> None:
    async with gateway_harness(admin_host="127.0.0.2") as gateway:
        await gateway.publish(route("m"), keys=(key("both", scopes=("inference", "admin")),))
        async with mcp_client(gateway.url, "secret-both") as client:
            assert await list_names(client) == INFERENCE_TOOLS
            assert (await call_failing(client, "get_plan"))["code"] == "admin_not_here"


@asynccontextmanager
async def calling(gateway: GatewayHarness, generation: Generation, tool: str, **arguments: Any) -> AsyncIterator[Any]:
    """A call under way, by hand: leaving closes its connection."""
    more: dict[str, Any] = {"_meta": META} if generation != "legacy" else {}
    own = MODERN | {"mcp-method": "tools/call", "mcp-name": tool} if generation != "legacy" else {}
    body = message("tools/call", name=tool, arguments=arguments, **more)
    async with aiohttp.ClientSession() as session:
        asked = asyncio.create_task(session.post(f"{gateway.url}/mcp", json=body, headers=HEADERS | own))
        await until("the call is under way", lambda: calls_of(gateway).count_running == 1)
        yield asked
        asked.cancel()


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_client_that_leaves_ends_its_call(generation: Generation) -> None:
    async with gateway_harness() as gateway:
        gateway.controller.admin.answer = never
        async with calling(gateway, generation, "get_plan"):
            await until("the controller is asked", lambda: gateway.controller.admin.running == 1)
        await until("the call is over", lambda: calls_of(gateway).count_running == 0)
        await until("the controller is not asked any more", lambda: gateway.controller.admin.cancelled == 1)
        say_loading(gateway)
        async with calling(gateway, generation, "load_model", model="m", wait_s=60):
            pass
        await until("the wait is over", lambda: calls_of(gateway).count_running == 0)


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_stop_ends_waits_with_the_state_as_it_is(generation: Generation) -> None:
    async with gateway_harness(shutdown_grace_s=3600) as gateway:
        say_loading(gateway)
        async with calling(gateway, generation, "load_model", model="m", wait_s=60) as asked:
            assert gateway.server is not None
            gateway.server.should_exit = True
            async with await asked as answer:
                said = json.loads((await answer.text()).rpartition("data: ")[2])
        assert said["result"]["structuredContent"]["runtime_state"] == "loading"


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_what_outlives_the_grace_is_ended_in_words(generation: Generation) -> None:
    async with gateway_harness(shutdown_grace_s=0) as gateway:
        gateway.controller.admin.answer = never
        async with calling(gateway, generation, "get_plan") as asked:
            assert gateway.server is not None
            gateway.server.should_exit = True
            async with await asked as answer:
                result = (await answer.json())["result"]
        assert (result["isError"], result["structuredContent"]["error"]["code"]) == (True, "gateway_stopping")


async def test_many_clients_at_once_leave_no_task() -> None:
    async def use(gateway: GatewayHarness, number: int) -> None:
        async with mcp_client(gateway.url, generation=GENERATIONS[number % 2]) as client:
            assert await list_names(client) == INFERENCE_TOOLS + ADMIN_TOOLS
            assert (await call(client, "list_models"))["models"][0]["name"] == "m"
            await call(client, "get_plan")
            with pytest.raises(MCPError):
                await client.call_tool("reboot", {})

    async with gateway_harness() as gateway:
        await gateway.publish(route("m"))
        await use(gateway, 0)
        await until("the first client is gone", lambda: _connections(gateway) == 0)
        before = len(asyncio.all_tasks())
        await asyncio.gather(*(use(gateway, number) for number in range(CLIENTS)))
        await until("no task is left", lambda: len(asyncio.all_tasks()) <= before)
        assert calls_of(gateway).count_running == 0


def _connections(gateway: GatewayHarness) -> int:
    assert gateway.server is not None
    return len(gateway.server.server_state.connections)


def test_an_answered_call_leaves_nothing_in_cycles() -> None:
    bodies = (LIST, json.dumps(message("tools/call", name="list_models", arguments={})).encode(), b"{", b"{}")

    async def call_each(gateway: GatewayHarness) -> None:
        for body in bodies:
            await post(gateway, body)

    async def scenario() -> None:
        async with gateway_harness() as gateway:
            await gateway.publish(route("m"))
            await call_each(gateway)
            with leftovers_of(*PACKAGES) as left:
                await call_each(gateway)
            assert not left

    on("uvloop", scenario)
