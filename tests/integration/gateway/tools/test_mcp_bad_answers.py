"""MCP servers whose answers are too large, broken, late, or refusals."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import tracemalloc
from typing import Any

import psutil
import pytest
from aiohttp import web

from gateway.tools.mcp_client.server_connection import RECEIVE_BUFFER_BYTES
from tests.fakes.fake_mcp_server import fake_mcp_server, never, reply, stream_of, text_result, tool
from tests.fakes.gateway_harness import gateway_harness
from tests.support.tool_calls import (
    call_code,
    call_text,
    call_tool,
    connected,
    down,
    failure,
)
from tests.support.wait import until

TEXT = "application/json"
EVENTS = "text/event-stream"


async def test_an_answer_of_100_mb_is_refused_and_never_held() -> None:
    async with fake_mcp_server() as server, gateway_harness() as gateway:
        server.tools = [tool("json"), tool("events"), tool("event")]
        part = b"x" * 1024 * 1024
        server.answers["json"] = stream_of(part, 100, TEXT, b'{"jsonrpc": "2.0", "result": {"content": "')
        server.answers["events"] = stream_of(b": ping\n" + part + b"\n", 100, EVENTS)
        server.answers["event"] = stream_of(part, 100, EVENTS, b"data: ")
        await gateway.publish(mcp_servers=(server.route(),))
        await connected(gateway)
        tracemalloc.start()
        try:
            for name in ("json", "events", "event"):
                assert "larger than 1048576 bytes" in await failure(gateway, f"fake__{name}")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 20 * 1024 * 1024
        assert (await connected(gateway))["state"] == "connected", "the connection stays"


async def test_a_compressed_answer_is_refused() -> None:
    async def bomb(_: web.Request, message: dict[str, Any]) -> web.Response:
        data = gzip.compress(bytes(50 * 1024 * 1024))
        return web.Response(body=data, headers={"content-type": TEXT, "content-encoding": "gzip"})

    async with fake_mcp_server() as server, gateway_harness() as gateway:
        server.answers["echo"] = bomb
        await gateway.publish(mcp_servers=(server.route(),))
        await connected(gateway)
        assert "compressed" in await failure(gateway, "fake__echo")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (stream_of(b"", 0, TEXT, b'{"jsonrpc": "2.0", "id": 1, "res'), "the answer broke off"),
        (stream_of(b"", 0, EVENTS, b'data: {"jsonrpc'), "broke off"),
        (stream_of(b"", 0, "text/html", b"<p>"), "Unexpected content type"),
    ],
)
async def test_a_server_that_closes_in_the_middle_costs_that_call_alone(answer: Any, reason: str) -> None:
    gate = asyncio.Event()

    async def waits(_: web.Request, message: dict[str, Any]) -> web.Response:
        await gate.wait()
        return web.json_response(reply(message, text_result("late")))

    async with fake_mcp_server() as server, gateway_harness() as gateway:
        server.tools = [tool("broken"), tool("waits")]
        server.answers = {"broken": answer, "waits": waits}
        await gateway.publish(mcp_servers=(server.route(),))
        await connected(gateway)
        other = asyncio.create_task(call_text(gateway, "fake__waits"))
        await until("the other call is there", lambda: server.methods.count("tools/call") == 1)
        status, told = await call_tool(gateway, "fake__broken")
        assert reason in str(told["error"]), told
        assert status == (200 if reason.startswith("Unexpected") else 502)
        gate.set()
        assert await other == "late"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"no json",
        b'{"jsonrpc": "2.0", "id": 99, "result": {}}',
        b'{"jsonrpc": "2.0", "result": {}}',
        b'{"jsonrpc": "2.0", "id": %d, "result": {"content": 1}}',
        b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "odd"}]}}',
        b"[" * 100_000,
    ],
)
async def test_an_answer_that_cannot_be_read(body: bytes) -> None:
    async def answer(_: web.Request, message: dict[str, Any]) -> web.Response:
        return web.Response(body=body.replace(b"%d", str(message["id"]).encode()), content_type=TEXT)

    async with fake_mcp_server() as server, gateway_harness() as gateway:
        server.answers["echo"] = answer
        await gateway.publish(mcp_servers=(server.route(timeout_s=2.0),))
        await connected(gateway)
        status, code = await call_code(gateway, "fake__echo")
        assert (status, code) in {(502, "tool_failed"), (504, "tool_timeout")}
        assert (await connected(gateway))["tools"] == ["fake__echo"]


async def test_a_server_that_never_answers_is_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.tools.mcp_client import server_connection

    monkeypatch.setattr(server_connection, "CONNECT_S", 5.0)
    async with fake_mcp_server() as server, gateway_harness() as gateway:
        server.answers["echo"] = never
        await gateway.publish(mcp_servers=(server.route(timeout_s=1.0),))
        await connected(gateway)
        assert (
            await asyncio.gather(*(call_code(gateway, "fake__echo") for _ in range(40))) == [(504, "tool_timeout")] * 40
        )
        await until("it is told", lambda: "notifications/cancelled" in server.methods)
        await until("the requests are given up", lambda: not server.open_calls)
        del server.answers["echo"]
        assert await call_text(gateway, "fake__echo") == "{}"


@pytest.mark.parametrize("method", ["server/discover", "initialize", "tools/list"])
async def test_a_server_that_hangs_at_the_beginning_holds_up_nobody(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.tools.mcp_client import server_connection, servers

    monkeypatch.setattr(server_connection, "CONNECT_S", 0.5)
    monkeypatch.setattr(servers, "CALL_WAIT_S", 0.2)
    async with fake_mcp_server() as server, fake_mcp_server() as other, gateway_harness() as gateway:
        server.answers[method] = never
        await gateway.publish(mcp_servers=(server.route(), other.route("other")))
        await connected(gateway, "other")
        assert await call_text(gateway, "other__echo") == "{}"
        assert await call_code(gateway, "fake__echo") == (502, "tool_failed")
        assert await down(gateway) == "it does not answer within 0.5 s"
        del server.answers[method]
        await connected(gateway)


async def test_a_server_that_refuses_is_down_with_its_reason() -> None:
    async def forbidden(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.Response(status=401)

    async with fake_mcp_server() as server, gateway_harness() as gateway:
        server.answers = {"server/discover": forbidden, "initialize": forbidden}
        await gateway.publish(mcp_servers=(server.route(token="a-secret-token"),))
        assert await down(gateway) == "Server returned an error response"


@pytest.mark.parametrize("status", [401, 500, 503])
async def test_a_call_that_a_server_refuses_by_http_is_no_result_of_the_tool(status: int) -> None:
    async def refuse(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.json_response({"error": "not now"}, status=status)

    async with fake_mcp_server() as server, gateway_harness() as gateway:
        server.answers["echo"] = refuse
        await gateway.publish(mcp_servers=(server.route(),))
        await connected(gateway)
        assert await failure(gateway, "fake__echo") == "The MCP server fake failed: Server returned an error response."
        assert (await connected(gateway))["tools"] == ["fake__echo"]


async def test_little_of_a_flood_waits_in_the_system() -> None:
    """What waits there is read in one go, in which nobody else's stream goes on."""
    async with fake_mcp_server() as server, gateway_harness() as gateway:
        await gateway.publish(mcp_servers=(server.route(),))
        await connected(gateway)
        await call_text(gateway, "fake__echo", text="x")
        # Linux doubles it; one that is not set grows. A connection that is being made has the system's own yet.
        bound = {2 * RECEIVE_BUFFER_BYTES}
        await until("all buffers are bound", lambda: set(receive_buffers_of_connections_to(server.port)) == bound)


def receive_buffers_of_connections_to(port: int) -> list[int]:
    """Bytes, of the connections that this process has made to a port of this machine."""
    sizes = []
    for connection in psutil.Process().net_connections("tcp"):
        if connection.raddr and connection.raddr.port == port:
            with socket.socket(fileno=os.dup(connection.fd)) as duplicate:
                sizes.append(duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
    return sizes
