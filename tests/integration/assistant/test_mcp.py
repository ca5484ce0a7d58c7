"""Roundhouse as an MCP server, before a fake controller: the `mcp` package's own client, and messages by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from mcp import MCPError

from assistant.mcp_server.tools import MOST_BYTES
from contract.status import ModelState
from gateway.api.forwarding import SHORT_BODY_BYTES
from tests.fakes.fake_controller import route
from tests.fakes.fake_retrieval import fake_retrieval, hit
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.admin import never
from tests.support.engine_calls import on
from tests.support.http_client import PendingReply
from tests.support.mcp_clients import (
    ADMIN_TOOLS,
    GENERATIONS,
    HEADERS,
    INFERENCE_TOOLS,
    ROW,
    Generation,
    answer_rows,
    call,
    call_failing,
    list_names,
    mcp_client,
    message,
    text_of,
)
from tests.support.memory import leftovers_of
from tests.support.queueing import key
from tests.support.wait import until

STATE = {name: value for name, value in ROW.items() if name not in ("load_recommendations", "definition")}
HANDSHAKE = message(
    "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "by-hand", "version": "1"}
)
PLAN = message("tools/call", name="get_plan", arguments={})
SCOPES = ("inference", "admin")
LIST = json.dumps(message("tools/list")).encode()
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
MODERN = {"mcp-protocol-version": "2026-07-28"}
PACKAGES = ("fastapi", "gateway", "mcp_types", "starlette")
"""What a message and its answer are made of. Of the library, a few small objects without a message stay."""
CLIENTS = 30
MANY_LOOKS = 20


def send(
    gateway: GatewayHarness, body: object, session: str | None = None, secret: str | None = None, **headers: str
) -> PendingReply:
    own = HEADERS if session is None else HEADERS | {"mcp-session-id": session}
    return gateway.post("/mcp", body, key=secret, headers=own | headers)


async def shake_hands(gateway: GatewayHarness, secret: str | None = None) -> str:
    """The id that a new client is given."""
    reply = await send(gateway, HANDSHAKE, secret=secret)
    assert reply.status == 200, reply.text
    return reply.headers["mcp-session-id"]


async def call_plan(gateway: GatewayHarness, session: str | None, secret: str | None = None, **fields: Any) -> Any:
    """The answer of a call that is not over before the controller answers."""
    reply = await send(gateway, {**PLAN, **fields}, session, secret)
    assert "mcp-session-id" not in reply.headers
    return reply.success


async def cancel(gateway: GatewayHarness, session: str | None, request: object = 1, secret: str | None = None) -> None:
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request}}
    reply = await send(gateway, body, session, secret)
    assert (reply.status, reply.content) == (202, b"")


def say_loading(gateway: GatewayHarness) -> None:
    """Let the controller answer that the model is being loaded, and after many looks that it is loaded."""
    answer_rows(gateway, *["loading"] * (MANY_LOOKS - 1), "loaded")


def targets(gateway: GatewayHarness) -> list[tuple[str, str]]:
    """What the controller was asked so far, without `/v1/admin/`."""
    return [(each.method, each.target.removeprefix("/v1/admin/")) for each in gateway.controller.admin.requests]


async def until_called(gateway: GatewayHarness, count: int) -> None:
    """Wait until so many calls have asked the controller, which never answers."""
    await until("the controller is asked", lambda: gateway.controller.admin.running == count)


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_client_lists_tools_and_models(gateway: GatewayHarness, generation: Generation) -> None:
    await gateway.publish(route("a", aliases=("short",)), route("b", state=ModelState.LOADING, progress=0.5))
    async with mcp_client(gateway.url, generation=generation) as client:
        assert await list_names(client) == INFERENCE_TOOLS + ADMIN_TOOLS
        result = await client.call_tool("list_models", {})
        described = {
            "name": "a", "state": "loaded", "aliases": ["short"], "backend": "stub", "apis": [],
            "modalities": ["text"], "context_length": None, "autoload": False,
        }  # fmt: skip
        loading = described | {"name": "b", "state": "loading", "aliases": [], "load_progress": 0.5}
        assert result.structured_content == {"models": [described, loading]}
        assert json.loads(text_of(result)) == result.structured_content
        with pytest.raises(MCPError, match="There is no tool 'reboot'"):
            await client.call_tool("reboot", {})


@pytest.mark.parametrize(
    ("secret", "tools"),
    [("both", INFERENCE_TOOLS + ADMIN_TOOLS), ("inference", INFERENCE_TOOLS), ("admin", ADMIN_TOOLS)],
)
async def test_a_key_sees_and_calls_what_its_scopes_open(secret: str, tools: list[str]) -> None:
    keys = (key("both", scopes=("inference", "admin")), key("inference"), key("admin", scopes=("admin",)))
    arguments: dict[str, dict[str, Any]] = {
        "search_documents": {"query": "fox"},
        "pull_model": {"reference": "a/b"},
        **{name: {"model": "m"} for name in ("get_model", "load_model", "unload_model", "get_logs")},
    }
    async with gateway_harness() as gateway:
        await gateway.publish(route("m"), keys=keys)
        async with mcp_client(gateway.url, f"secret-{secret}") as client:
            assert await list_names(client) == tools
            for name in INFERENCE_TOOLS + ADMIN_TOOLS:
                result = await client.call_tool(name, arguments.get(name, {}))
                refused = result.is_error and result.structured_content["error"]["code"] == "scope_required"
                assert refused is (name not in tools), name
        assert bool(gateway.controller.admin.requests) is (secret != "inference"), "what is refused stays here"


@pytest.mark.parametrize("secret", [None, "secret-nobody"])
async def test_without_a_key_of_the_gateway_the_packages_client_is_told_nothing(
    secret: str | None, gateway: GatewayHarness
) -> None:
    await gateway.publish(route("m"), keys=(key("both", scopes=SCOPES),))
    with pytest.raises(ExceptionGroup):
        async with mcp_client(gateway.url, secret) as client:
            await client.list_tools()
    assert not gateway.controller.admin.requests


async def test_where_nobody_may_administer_only_tools_of_inference_are_told() -> None:
    async with gateway_harness(open_admin=False) as gateway, mcp_client(gateway.url) as client:
        assert await list_names(client) == INFERENCE_TOOLS
        assert (await call_failing(client, "get_plan"))["code"] == "admin_closed"


async def test_models_that_a_key_may_not_use_are_not_told(gateway: GatewayHarness) -> None:
    await gateway.publish(route("a"), route("b"), keys=(key("k", models=("b",)),))
    async with mcp_client(gateway.url, "secret-k") as client:
        assert [each["name"] for each in (await call(client, "list_models"))["models"]] == ["b"]


async def test_tools_say_what_they_change() -> None:
    async with gateway_harness() as gateway, mcp_client(gateway.url) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    hints = {name: tool.annotations and tool.annotations.model_dump(exclude={"title"}) for name, tool in tools.items()}
    reads = {"read_only_hint": True, "destructive_hint": False, "idempotent_hint": True, "open_world_hint": False}
    changes = reads | {"read_only_hint": False}
    assert hints == dict.fromkeys(INFERENCE_TOOLS + ADMIN_TOOLS, reads) | {
        "load_model": changes,
        "unload_model": changes | {"destructive_hint": True},
        "pull_model": changes | {"open_world_hint": True},
    }
    assert tools["get_logs"].input_schema["properties"]["lines"]["maximum"] == 1000
    assert tools["get_logs"].input_schema["required"] == ["model"]
    assert tools["get_plan"].input_schema == {"additionalProperties": False, "properties": {}, "type": "object"}


async def test_each_admin_tool_asks_one_route_of_the_controller() -> None:
    async with gateway_harness() as gateway, mcp_client(gateway.url) as client:
        answer_rows(gateway, "loading")
        assert await call(client, "get_model", model="org/m:Q4") == {
            name: value for name, value in ROW.items() if name != "load_recommendations"
        }
        assert await call(client, "load_model", model="m", values={"gguf_n_ctx": 8}, replicas=2, restart=True) == STATE
        assert await call(client, "unload_model", model="m", hold=False) == STATE
        await call(client, "get_memory")
        await call(client, "get_plan")
        await call(client, "pull_model", reference="org/m:Q4")
        assert targets(gateway) == [
            ("GET", "models/org/m%3AQ4"),
            ("POST", "models/m/load?wait=false&restart=true"),
            ("POST", "models/m/unload?wait=false"),
            ("GET", "gpu-memory"),
            ("GET", "plan"),
            ("POST", "downloads"),
        ]
        requests = gateway.controller.admin.requests
        assert [json.loads(each.body) for each in requests if each.method == "POST"] == [
            {"gguf_n_ctx": 8, "replicas": 2},
            {"hold": False},
            {"reference": "org/m:Q4"},
        ]
        assert {each.headers["x-roundhouse-actor"] for each in requests} == {"api 127.0.0.1 by mcp"}


async def test_a_load_is_waited_for_and_its_progress_told() -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async with gateway_harness() as gateway, mcp_client(gateway.url) as client:
        answer_rows(gateway, "loading", "loading", "loaded")
        result = await client.call_tool("load_model", {"model": "m", "wait_s": 60}, progress_callback=note)
        assert result.structured_content == STATE | {"runtime_state": "loaded"}
        assert [(total, message) for _, total, message in told] == [(60, "m is loading, 25%")] * 2
        assert told[0][0] < told[1][0], "progress grows"
        assert targets(gateway)[1:] == [("GET", "models/m")] * 2

        answer_rows(gateway, "loading", "failed", last_error="no such file")
        error = await call_failing(client, "load_model", model="m", wait_s=60)
        assert (error["code"], error["message"]) == ("model_failed", "The model 'm' could not be loaded: no such file")
        answer_rows(gateway, "unloading", "unloading", "unloaded")
        assert (await call(client, "unload_model", model="m", wait_s=60))["runtime_state"] == "unloaded"
        answer_rows(gateway, "loading")
        assert (await call(client, "load_model", model="m", wait_s=0.1))["runtime_state"] == "loading"


@pytest.mark.parametrize(
    ("tool", "arguments", "param"),
    [
        ("get_model", {}, "model"),
        ("get_model", {"model": 1}, "model"),
        ("get_model", {"model": ""}, "model"),
        ("get_model", {"model": "m", "more": 1}, "more"),
        ("load_model", {"model": "m", "wait_s": 60.5}, "wait_s"),
        ("load_model", {"model": "m", "replicas": 0}, "replicas"),
        ("list_events", {"kinds": ["state", "gossip"]}, "kinds.1"),
        ("get_logs", {"model": "m", "lines": 1001}, "lines"),
        ("search_documents", {"query": "x", "top_k": 0}, "top_k"),
    ],
)
async def test_wrong_arguments_are_named(tool: str, arguments: dict[str, Any], param: str) -> None:
    async with gateway_harness() as gateway, mcp_client(gateway.url) as client:
        error = await call_failing(client, tool, **arguments)
        assert (error["code"], error["param"]) == ("invalid_request", param)
        assert not gateway.controller.admin.requests


async def test_errors_of_the_controller_keep_their_code() -> None:
    async def answer(_: web.Request) -> web.Response:
        body = {"error": {"code": "state_conflict", "message": "It is unloading.", "param": "model"}}
        return web.json_response(body, status=409)

    async def not_a_page(_: web.Request) -> web.Response:
        return web.json_response([])

    async with gateway_harness() as gateway, mcp_client(gateway.url) as client:
        gateway.controller.admin.answer = answer
        for tool in ("load_model", "get_logs"):
            error = await call_failing(client, tool, model="m")
            assert (error["code"], error["message"], error["param"]) == ("state_conflict", "It is unloading.", "model")
            assert error["request_id"].startswith("req-")
        gateway.controller.admin.answer = not_a_page
        error = await call_failing(client, "list_events")
        assert (error["code"], error["message"]) == ("internal_error", "The gateway failed on this call.")
        await gateway.controller.stop()
        assert (await call_failing(client, "get_plan"))["code"] == "controller_unavailable"


async def test_events_are_asked_for_by_model_kind_and_page_and_cut_where_they_are_many() -> None:
    count, first = 3, 400

    async def answer(_: web.Request) -> web.Response:
        entries = [{"id": 1000 - n, "kind": "state", "message": "x" * (400 if n else first)} for n in range(count)]
        return web.json_response({"entries": entries, "next_before": 7})

    async with gateway_harness() as gateway, mcp_client(gateway.url) as client:
        gateway.controller.admin.answer = answer
        page = await call(client, "list_events", model="a b", kinds=["state", "file"], limit=3, before=9)
        assert targets(gateway) == [("GET", "history?limit=3&kind=state&kind=file&model=a+b&before=9")]
        assert ([each["id"] for each in page["events"]], page["next_before"]) == ([1000, 999, 998], 7)
        count = 200
        page = await call(client, "list_events", limit=200)
        shown = len(page["events"])
        assert 50 < shown < 100
        assert page["cut"] == [f"`events`: {shown} of 200 entries, because not all fitted."]
        assert page["next_before"] == page["events"][-1]["id"], "the next page begins with what did not fit"
        assert len(json.dumps(page)) <= MOST_BYTES
        first = 2 * MOST_BYTES
        page = await call(client, "list_events", limit=200)
        assert (page["events"], page["next_before"]) == ([], 1000), "and goes past one that fits no page"


async def test_logs_are_text_and_cut_at_their_beginning() -> None:
    lines = 3

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="".join(f"line {n:06}: äöü\n" for n in range(lines)))

    async with gateway_harness() as gateway, mcp_client(gateway.url) as client:
        gateway.controller.admin.answer = answer
        result = await client.call_tool("get_logs", {"model": "m", "replica": "m/0", "lines": 3})
        assert text_of(result) == "line 000000: äöü\nline 000001: äöü\nline 000002: äöü\n"
        assert result.structured_content == {"model": "m", "log": text_of(result)}
        assert targets(gateway) == [("GET", "models/m/logs?lines=3&replica=m%2F0")]
        lines = 200_000
        result = await client.call_tool("get_logs", {"model": "m"})
        first, *shown = text_of(result).splitlines()
        assert shown == [f"line {n:06}: äöü" for n in range(lines - len(shown), lines)]
        left_out = 20 * (lines - len(shown))
        assert first == f"[{left_out} earlier bytes are left out: ask for fewer `lines`, or one `replica`]"
        assert MOST_BYTES - 20 <= 20 * len(shown) <= MOST_BYTES


async def test_documents_of_the_callers_tenant_are_searched() -> None:
    async with fake_retrieval() as retrieval, gateway_harness(retrieval_url=retrieval.url) as gateway:
        await gateway.publish(route("m"), keys=(key("k", tenant="team"),))
        retrieval.hits = [hit(1, "A fox.")]
        async with mcp_client(gateway.url, "secret-k", headers={"x-client-id": "other"}) as client:
            found = await call(client, "search_documents", query="fox", top_k=3, filter={"lang": "en"})
            assert [each["text"] for each in found["data"]] == ["A fox."]
            [(tenant, body)] = retrieval.searches
            assert tenant == "team"
            assert (body["query"], body["top_k"], body["filter"]) == ("fox", 3, {"lang": "en"})
    async with gateway_harness(retrieval=False) as gateway, mcp_client(gateway.url) as client:
        assert (await call_failing(client, "search_documents", query="fox"))["code"] == "retrieval_disabled"


async def test_mcp_can_be_turned_off() -> None:
    async with gateway_harness(mcp=False) as gateway:
        assert (await gateway.post("/mcp", jsonrpc="2.0")).refusal == (404, "unknown_route")


async def test_a_client_is_told_who_serves() -> None:
    async with gateway_harness() as gateway, mcp_client(gateway.url, generation="legacy") as client:
        told: Any = client
        assert (told.server_info.name, told.server_info.title) == ("roundhouse", "Roundhouse")
        assert "Roundhouse" in told.instructions
        assert (told.server_capabilities.tools is None, told.server_capabilities.resources) == (False, None)


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_client_cancels_its_call_and_stays(gateway: GatewayHarness, generation: Generation) -> None:
    gateway.controller.admin.answer = never
    async with mcp_client(gateway.url, generation=generation) as client:
        calling = asyncio.create_task(client.call_tool("get_plan", {}))
        await until_called(gateway, 1)
        calling.cancel()
        await until("the call is over", lambda: gateway.controller.admin.cancelled == 1)
        assert await list_names(client) == INFERENCE_TOOLS + ADMIN_TOOLS


async def test_a_cancelled_call_is_answered_as_the_library_does(gateway: GatewayHarness) -> None:
    gateway.controller.admin.answer = never
    session = await shake_hands(gateway)
    calling = asyncio.create_task(call_plan(gateway, session, id="a"))
    await until_called(gateway, 1)
    await cancel(gateway, session, "a")
    assert await calling == {
        "jsonrpc": "2.0", "id": "a", "error": {"code": -32800, "message": "Request cancelled"},
    }  # fmt: skip
    await until("the controller is asked no more", lambda: gateway.controller.admin.cancelled == 1)


async def test_each_client_cancels_its_own_calls_alone(gateway: GatewayHarness) -> None:
    """Also where they have the same key, and number their requests alike."""
    await gateway.publish(keys=(key("one", scopes=SCOPES), key("two", scopes=SCOPES)))
    gateway.controller.admin.answer = never
    first, second = [await shake_hands(gateway, "secret-one") for _ in range(2)]
    assert first != second
    calls = [asyncio.create_task(call_plan(gateway, session, "secret-one")) for session in (first, second)]
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


async def test_an_id_serves_again_after_its_call(gateway: GatewayHarness) -> None:
    session = await shake_hands(gateway)
    gateway.controller.admin.answer = never
    for _ in range(2):
        calling = asyncio.create_task(call_plan(gateway, session))
        await until_called(gateway, 1)
        await cancel(gateway, session)
        assert (await calling)["error"]["code"] == -32800
        await until_called(gateway, 0)
        await cancel(gateway, session)


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
        reply = await send(gateway, body, **headers)
        assert (reply.status, reply.error["code"]) == (status, code)
        assert len((await send(gateway, LIST)).body["result"]["tools"]) == len(INFERENCE_TOOLS + ADMIN_TOOLS)


async def test_other_methods_are_refused_and_notifications_taken(gateway: GatewayHarness) -> None:
    for method in ("GET", "DELETE", "PUT"):
        reply = await gateway.request(method, "/mcp", headers=HEADERS)
        assert (*reply.refusal, reply.headers["allow"]) == (405, "method_not_allowed", "POST")
    reply = await send(gateway, b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
    assert (reply.status, reply.content) == (202, b"")
    assert (await send(gateway, LIST, **{"content-type": "text/plain"})).status == 400


async def test_a_body_beyond_the_limit_is_refused() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(SHORT_BODY_BYTES // 1024 + 1):
            yield b" " * 1024

    async with gateway_harness() as gateway:
        assert (await send(gateway, LIST + b" " * (SHORT_BODY_BYTES - len(LIST)))).status == 200
        announced = await send(gateway, LIST + b" " * (SHORT_BODY_BYTES - len(LIST) + 1))
        chunked = await gateway.request("POST", "/mcp", headers=HEADERS, data=parts())
        assert announced.refusal == chunked.refusal == (413, "body_too_large")


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
        request = asyncio.create_task(session.post(f"{gateway.url}/mcp", json=body, headers=HEADERS | own))
        await until("the call is under way", lambda: gateway.assistant.mcp_calls.count_running == 1)
        yield request
        request.cancel()


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_client_that_leaves_ends_its_call(gateway: GatewayHarness, generation: Generation) -> None:
    gateway.controller.admin.answer = never
    async with calling(gateway, generation, "get_plan"):
        await until("the controller is asked", lambda: gateway.controller.admin.running == 1)
    await until("the call is over", lambda: gateway.assistant.mcp_calls.count_running == 0)
    await until("the controller is not asked any more", lambda: gateway.controller.admin.cancelled == 1)
    say_loading(gateway)
    async with calling(gateway, generation, "load_model", model="m", wait_s=60):
        pass
    await until("the wait is over", lambda: gateway.assistant.mcp_calls.count_running == 0)


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_stop_ends_waits_with_the_state_as_it_is(generation: Generation) -> None:
    async with gateway_harness(shutdown_grace_s=3600) as gateway:
        say_loading(gateway)
        async with calling(gateway, generation, "load_model", model="m", wait_s=60) as request:
            gateway.stop()
            async with await request as response:
                told = json.loads((await response.text()).rpartition("data: ")[2])
        assert told["result"]["structuredContent"]["runtime_state"] == "loading"


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_what_outlives_the_grace_is_ended_in_words(generation: Generation) -> None:
    async with gateway_harness(shutdown_grace_s=0) as gateway:
        gateway.controller.admin.answer = never
        async with calling(gateway, generation, "get_plan") as request:
            gateway.stop()
            async with await request as response:
                result = (await response.json())["result"]
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
        await until("the first client is gone", lambda: not gateway.connections)
        before = len(asyncio.all_tasks())
        await asyncio.gather(*(use(gateway, number) for number in range(CLIENTS)))
        await until("no task is left", lambda: len(asyncio.all_tasks()) <= before)
        assert gateway.assistant.mcp_calls.count_running == 0


def test_an_answered_call_leaves_nothing_in_cycles() -> None:
    bodies = (LIST, json.dumps(message("tools/call", name="list_models", arguments={})).encode(), b"{", b"{}")

    async def call_each(gateway: GatewayHarness) -> None:
        for body in bodies:
            await send(gateway, body)

    async def scenario() -> None:
        async with gateway_harness() as gateway:
            await gateway.publish(route("m"))
            await call_each(gateway)
            with leftovers_of(*PACKAGES) as left:
                await call_each(gateway)
            assert not left

    on("uvloop", scenario)
