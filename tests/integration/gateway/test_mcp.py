"""Roundhouse as an MCP server: the `mcp` package's own client against a gateway, whose controller is a fake."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web
from mcp import MCPError

from controller.schema.status import ModelState
from gateway.mcp_server.answers import MOST_BYTES
from tests.fakes.fake_controller import route
from tests.fakes.fake_retrieval import fake_retrieval, hit
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.forwarding import error_of
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
from tests.support.queueing import key

STATE = {name: value for name, value in ROW.items() if name not in ("load_recommendations", "definition")}


def targets(gateway: GatewayHarness) -> list[tuple[str, str]]:
    """What the controller was asked so far, without `/v1/admin/`."""
    return [(each.method, each.target.removeprefix("/v1/admin/")) for each in gateway.controller.admin.requests]


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_client_lists_tools_and_models(generation: Generation) -> None:
    async with gateway_harness() as gateway:
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
        asked = bool(gateway.controller.admin.requests)
        assert asked is (secret != "inference"), "what is refused does not reach the controller"


@pytest.mark.parametrize("secret", [None, "secret-nobody"])
async def test_without_a_key_of_the_gateway_nothing_is_told(secret: str | None) -> None:
    async with gateway_harness() as gateway:
        await gateway.publish(route("m"), keys=(key("both", scopes=("inference", "admin")),))
        with pytest.raises(ExceptionGroup):
            async with mcp_client(gateway.url, secret) as client:
                await client.list_tools()
        headers = HEADERS if secret is None else {**HEADERS, "authorization": f"Bearer {secret}"}
        for asked in ("tools/list", "tools/call", "initialize"):
            reply = await gateway.post("/mcp", message(asked), headers=headers)
            assert (reply.status, error_of(reply).code) == (401, "invalid_api_key")
        assert not gateway.controller.admin.requests


async def test_where_nobody_may_administer_only_tools_of_inference_are_told() -> None:
    async with gateway_harness(open_admin=False) as gateway, mcp_client(gateway.url) as client:
        assert await list_names(client) == INFERENCE_TOOLS
        assert (await call_failing(client, "get_plan"))["code"] == "admin_closed"


async def test_models_that_a_key_may_not_use_are_not_told() -> None:
    async with gateway_harness() as gateway:
        await gateway.publish(route("a"), route("b"), keys=(key("k", models=("b",)),))
        async with mcp_client(gateway.url, "secret-k") as client:
            assert [each["name"] for each in (await call(client, "list_models"))["models"]] == ["b"]


async def test_tools_say_what_they_change() -> None:
    async with gateway_harness() as gateway, mcp_client(gateway.url) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        noted = {name: tool.annotations for name, tool in tools.items()}
        hints = {name: each.model_dump(exclude={"title"}) for name, each in noted.items() if each is not None}
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
        asked = gateway.controller.admin.requests
        assert [json.loads(each.body) for each in asked if each.method == "POST"] == [
            {"gguf_n_ctx": 8, "replicas": 2},
            {"hold": False},
            {"reference": "org/m:Q4"},
        ]
        assert {each.headers["x-roundhouse-actor"] for each in asked} == {"api 127.0.0.1 by mcp"}


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


async def not_a_page(_: web.Request) -> web.Response:
    """An answer that no controller gives."""
    return web.json_response([])


async def test_events_are_asked_for_by_model_kind_and_page_and_cut_where_they_are_many() -> None:
    count = 3

    async def answer(_: web.Request) -> web.Response:
        entries = [{"id": 1000 - n, "kind": "state", "message": "x" * 400} for n in range(count)]
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
    async with gateway_harness(mcp=False) as gateway, gateway.post("/mcp", jsonrpc="2.0") as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "unknown_route")


async def test_a_client_is_told_who_serves() -> None:
    async with gateway_harness() as gateway, mcp_client(gateway.url, generation="legacy") as client:
        assert client.server_info is not None
        assert (client.server_info.name, client.server_info.title) == ("roundhouse", "Roundhouse")
        assert client.instructions is not None
        assert "Roundhouse" in client.instructions
        assert client.server_capabilities.tools is not None
        assert client.server_capabilities.resources is None
