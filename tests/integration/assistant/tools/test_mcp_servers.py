"""MCP servers by URL: a real one of the package `mcp`, and fakes that do what no real one does: answers too large,
broken, late, or refusals."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import socket
import time
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from aiohttp import web

from assistant.tools.mcp_client.server_connection import RECEIVE_BUFFER_BYTES, ServerConnection
from contract.tools import McpServerRoute, ToolRoute
from tests.fakes.fake_mcp_server import (
    FakeMcpServer,
    answering,
    fake_mcp_server,
    never,
    refusing,
    reply,
    responding,
    stream_of,
    text_result,
    tool,
)
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.mcp_servers import mcp_process
from tests.support.ports import free_port
from tests.support.queueing import key
from tests.support.tool_calls import (
    call_code,
    call_error,
    call_text,
    call_tool,
    connect,
    connected,
    down,
    failure,
    list_names,
    list_servers,
    list_tools,
)
from tests.support.wait import until

TEXT = "application/json"
EVENTS = "text/event-stream"


async def count_up(gateway: GatewayHarness) -> dict[str, float]:
    found = re.findall(r'^roundhouse_gateway_mcp_server_up{server="(.*)"} (.*)$', await gateway.metrics(), re.MULTILINE)
    return {name: float(value) for name, value in found}


async def until_listed(gateway: GatewayHarness, name: str) -> None:
    async def look() -> bool:
        return name in await list_names(gateway)

    await until(f"{name} is listed", look)


async def test_tools_of_a_real_mcp_server_are_called(gateway: GatewayHarness) -> None:
    async with mcp_process() as server:
        await gateway.publish(tools=(ToolRoute(name="calculate"),), mcp_servers=(server.route(timeout_s=20.0),))
        told = await connected(gateway, "demo")
        names = ["add", "crash", "fail", "grow", "picture", "repeat", "wait"]
        assert await list_names(gateway) == ["calculate", *(f"demo__{name}" for name in names)]
        added = next(each for each in await list_tools(gateway) if each["tool"] == "demo__add")
        assert (added["type"], added["display_name"], added["permissions"]) == ("mcp", "Sum", {"write": False})
        assert added["definition"]["function"]["description"] == "Add two numbers."
        assert added["definition"]["function"]["parameters"]["required"] == ["a", "b"]
        assert [(each["uri"], each["is_template"]) for each in told["resources"]] == [
            ("notes://today", False),
            ("pictures://dot", False),
            ("bundles://all", False),
            ("notes://{day}", True),
        ]
        assert [each["name"] for each in told["prompts"]] == ["broken", "talk", "greet"]
        prompt = told["prompts"][-1]
        assert (prompt["name"], prompt["description"]) == ("greet", "Greet somebody.")
        assert prompt["arguments"] == [
            {"name": "name", "description": "", "required": True},
            {"name": "language", "description": "", "required": False},
        ]

        assert await call_text(gateway, "demo__add", a=1, b=2) == "3"
        assert await call_code(gateway, "demo__add", a="x", b=2) == (400, "tool_arguments_invalid")
        assert "Error executing tool fail" in await call_error(gateway, "demo__fail")
        assert await call_text(gateway, "demo__picture") == "[image, image/png, 100 bytes]"
        assert await call_code(gateway, "demo__nothing") == (404, "tool_not_found")
        assert (await call_text(gateway, "demo__repeat", text="x", times=70_000)).endswith(
            "x\n[The output is cut here: it is longer than 65536 bytes.]"
        )
        assert await failure(gateway, "demo__repeat", text="x" * 1000, times=3000) == (
            "The MCP server demo failed: the answer is larger than 1048576 bytes: ask for less, or declare the server "
            "with a `max_output_kib` above 170 (it is 64)."
        )
        assert await call_text(gateway, "demo__add", a=3, b=4) == "7"


@pytest.mark.parametrize(
    ("max_output_kib", "times", "words"),
    [
        (170, 1100, "1048576 bytes: ask for less, or declare the server with a `max_output_kib` above 170 (it is 170)"),
        (171, 1100, "1050624 bytes: ask for less, or declare the server with a `max_output_kib` above 171 (it is 171)"),
        (4096, 26_000, "25165824 bytes: ask for less; its `max_output_kib` of 4096 is the most"),
        (400, 1100, None),
    ],
)
async def test_of_an_answer_that_is_too_large_it_is_said_what_helps(
    max_output_kib: int, times: int, words: str | None, gateway: GatewayHarness
) -> None:
    async with mcp_process() as server:
        await connect(gateway, server.route(timeout_s=600.0, max_output_kib=max_output_kib))
        repeated = {"text": "x" * 1000, "times": times}
        if words is None:
            assert (await call_text(gateway, "demo__repeat", **repeated)).startswith("x" * 400 * 1024)
        else:
            told = await failure(gateway, "demo__repeat", **repeated)
            assert told == f"The MCP server demo failed: the answer is larger than {words}."


async def test_a_real_server_tells_of_its_new_tools(gateway: GatewayHarness) -> None:
    async with mcp_process() as server:
        await connect(gateway, server.route())
        assert await call_text(gateway, "demo__grow") == "grown"

        await until_listed(gateway, "demo__grown")
        assert await call_text(gateway, "demo__grown") == "here"


async def test_a_real_server_that_is_killed_costs_its_own_calls_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "assistant.tools.mcp_client")
    async with mcp_process() as server, fake_mcp_server() as other, gateway_harness() as gateway:
        await gateway.publish(
            tools=(ToolRoute(name="calculate"),), mcp_servers=(server.route(timeout_s=60.0), other.route())
        )
        await connected(gateway, "demo")
        await connected(gateway)
        waiting = asyncio.create_task(failure(gateway, "demo__wait", seconds=50.0))
        runner: Any = gateway.assistant.tools
        places = runner._servers._connections["demo"]._places
        await until("the call has reached the server", lambda: places._value < 32)
        await server.kill()
        assert (await waiting).startswith("The MCP server demo failed: ")
        assert await call_text(gateway, "fake__echo") == "{}"
        assert await call_text(gateway, "calculate", expression="1") == "1"
        assert "is not reachable now" in await failure(gateway, "demo__add", a=1, b=2)

        async def accepts_none() -> bool:  # what the connection ended with is told for a moment before it
            return await down(gateway, "demo") == "it accepts no connection"

        await until("it is tried again", accepts_none)
        assert await count_up(gateway) == {"demo": 0.0, "fake": 1.0}
        assert await list_names(gateway) == ["calculate", "fake__echo"]
        await server.start()
        assert await call_text(gateway, "demo__add", a=1, b=2) == "3", "a call has it connected at once"
        assert await count_up(gateway) == {"demo": 1.0, "fake": 1.0}
    told = [each.getMessage() for each in caplog.records if each.name.startswith("assistant.tools.mcp_client")]
    assert told[0].startswith("the MCP server demo is down: ")
    assert told[1:] == ["the MCP server demo is connected again"]


async def test_a_server_of_the_older_protocol(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    server.tools = [tool("echo"), tool("other")]
    await connect(gateway, server.route(headers={"X-Secret": "abc"}, token="the-token", tools=("e*",)))
    assert await list_names(gateway) == ["fake__echo"]
    assert await call_text(gateway, "fake__echo", a=1) == "{'a': 1}"
    assert await call_code(gateway, "fake__other") == (404, "tool_not_found")
    assert {each["x-secret"] for each in server.headers} == {"abc"}
    assert {each["authorization"] for each in server.headers} == {"Bearer the-token"}
    assert {each["accept-encoding"] for each in server.headers} == {"identity"}
    server.tools.append(tool("extra"))
    await until("it listens", lambda: bool(server._streams))
    await server.tell_of_change()

    await until_listed(gateway, "fake__extra")


async def test_a_server_that_was_started_anew_is_connected_again_for_the_call(
    server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    await connect(gateway, server.route())
    for _ in range(3):
        server.forget_session()
        assert await call_text(gateway, "fake__echo", a=1) == "{'a': 1}"
    assert server.methods.count("initialize") == 4


async def test_a_call_whose_session_has_not_ended_after_all_is_made_again(
    server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    """A proxy before the server answers 404 for one call, and the server knows the session."""
    await connect(gateway, server.route())
    calls = 0

    async def once_not_found(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        answer = responding(404) if calls == 1 else answering(text_result("found"))
        return await answer(request, message)

    server.answers["echo"] = once_not_found
    assert await call_text(gateway, "fake__echo") == "found"
    assert await call_text(gateway, "fake__echo") == "found"
    assert (await list_servers(gateway))["fake"]["state"] == "connected"
    assert server.methods.count("initialize") == 1


async def test_arguments_that_are_not_to_be_sent_cost_their_own_call_alone(
    server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    server.tools = [tool("echo"), tool("slow")]
    release = asyncio.Event()

    async def slow(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        await release.wait()
        return web.json_response(reply(message, text_result("done")))

    server.answers["slow"] = slow
    await connect(gateway, server.route())
    running = asyncio.create_task(call_text(gateway, "fake__slow"))
    await until("the call has reached the server", lambda: server.methods.count("tools/call") == 1)
    assert await call_code(gateway, "fake__echo", x="\ud800") == (400, "tool_arguments_invalid")
    release.set()
    assert await running == "done"


async def test_keys_call_the_tools_that_they_name(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    keys = (key("one", tools=("fake__echo",)), key("none"), key("chief", scopes=("inference", "admin")))
    server.tools = [tool("echo"), tool("other")]
    dead = McpServerRoute(name="dead", url=None, reason="it is not loaded")
    await gateway.publish(mcp_servers=(server.route(), dead), keys=keys)

    async def names() -> list[str]:
        return await list_names(gateway, "secret-one")

    await until("it is connected", names)
    assert await names() == ["fake__echo"]
    assert await list_names(gateway, "secret-none") == []
    assert await call_code(gateway, "fake__other", "secret-one") == (403, "tool_not_allowed")
    [told] = (await list_servers(gateway, "secret-one")).values()
    assert (told["tools"], told["reason"]) == (["fake__echo"], None)
    assert await list_servers(gateway, "secret-none") == {}
    told = (await list_servers(gateway, "secret-chief"))["dead"]
    assert (told["state"], told["reason"]) == ("down", "it is not loaded")


async def test_what_a_server_lists_is_checked(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    server.tools = [
        tool("good"),
        tool("good", description="the same again"),
        tool("with blank"),
        tool("x" * 200),
        tool("bad", inputSchema={"type": "object", "properties": {"a": {"type": "nonsense"}}}),
        tool("large", inputSchema={"type": "object", "description": "x" * 100_000}),
        tool("slow", inputSchema={"type": "object", "properties": {"a": {"pattern": "^(x+)+$"}}}),
        tool("endless", inputSchema={"type": "object", "$ref": "#"}),
        tool("task", execution={"taskSupport": "required"}),
        tool("either", execution={"taskSupport": "optional"}),
    ]
    told = await connect(gateway, server.route())
    assert told["tools"] == ["fake__either", "fake__endless", "fake__good", "fake__slow", "fake__with_blank"]
    assert "The tool task is left out: it runs only as a task, which is not supported." in told["reason"]
    assert "The tool bad is left out: its schema is not valid" in told["reason"]
    assert "The tool large is left out: its schema is larger than 65536 bytes." in told["reason"]
    assert f"its name '{'x' * 99} cannot be used" in told["reason"]
    good = next(each for each in await list_tools(gateway) if each["tool"] == "fake__good")
    assert good["definition"]["function"]["description"] == "Tool good."
    assert await call_text(gateway, "fake__slow", a="x" * 50 + "!") == "{'a': '" + "x" * 50 + "!'}"
    assert await call_code(gateway, "fake__endless") == (502, "tool_failed")


async def test_names_of_tools_are_those_that_models_take(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    """They are offered as `[a-zA-Z0-9_-]{1,64}`, and the server is asked by its own."""
    own = ["get.forecast", "get_forecast", "files/read", "日本", "天気", "x" * 100, "Wetter für heute", "plain"]
    own += ["a/b", "a.b", "list*"]
    server.tools = [tool(name) for name in own]
    server.answers = {name: answering(text_result(f"this is {name}")) for name in own}
    keys = (key("old", tools=("fake__files/read", "fake__get.forecast")), key("all", tools=("*",)))
    await gateway.publish(mcp_servers=(server.route(),), keys=keys)
    names = await until("it is connected", lambda: list_names(gateway, "secret-all"))
    assert len(set(names)) == len(own)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    assert {"fake__get_forecast", "fake__files_read", "fake__Wetter_f_r_heute", "fake__plain"} <= set(names)
    said = {name: (await call_tool(gateway, name, "secret-all"))[1]["plain_text_response"] for name in names}
    assert sorted(said.values()) == sorted(f"this is {name}" for name in own)
    assert said["fake__get_forecast"] == "this is get_forecast", "a name that needs no change has none"
    assert not {"fake__a_b"} & set(names), "the order of the list decides nothing"
    old = await list_names(gateway, "secret-old")
    assert {said[name] for name in old} == {"this is files/read", "this is get.forecast"}, "as the server names them"
    for name in names:
        status, _ = await call_tool(gateway, name, "secret-old")
        assert status == (200 if name in old else 403), name


@pytest.mark.parametrize("is_events", [False, True])
@pytest.mark.parametrize("levels", [150, 400, 3_000])
async def test_a_schema_that_is_nested_too_deep_takes_its_tool_alone(
    levels: int, is_events: bool, server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    """The library that reads the answer takes 200 levels, and fails all of it for one more."""
    deep = '{"type": "object", "properties": {"}": ' + '{"items": ' * levels + "{}" + "}" * levels + "}}"
    odd = tool("after", title='"{[\\')
    tools = [tool("before"), tool("deep", inputSchema="DEEP"), tool("shown", outputSchema="DEEP"), odd]

    async def answer(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        body = json.dumps(reply(message, {"tools": tools})).replace('"DEEP"', deep)
        if is_events:
            stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await stream.prepare(request)
            for at in range(0, len(body), 1000):
                await stream.write((b"" if at else b"event: message\ndata: ") + body[at : at + 1000].encode())
            await stream.write(b"\n\n")
            await asyncio.get_running_loop().create_future()  # the stream stays open
        return web.Response(text=body, content_type="application/json")

    server.answers["tools/list"] = answer
    told = await connect(gateway, server.route())
    assert told["tools"] == ["fake__after", "fake__before", "fake__shown"]
    assert told["reason"].startswith("The tool deep is left out: its schema is nested deeper than 100")
    assert await call_text(gateway, "fake__after", a=1) == "{'a': 1}"


UNREADABLE: dict[str, dict[str, Any]] = {
    "typeless": {"inputSchema": {"properties": {}}},
    "empty": {"inputSchema": {}},
    "null": {"inputSchema": None},
    "numbers": {"inputSchema": {"type": "object", "properties": 1}},
    "choice": {"inputSchema": {"anyOf": [{"type": "object"}]}},
    "list": {"inputSchema": {"type": ["object", "null"]}},
    "output": {"outputSchema": {"properties": {}}},
    "icons": {"icons": "x"},
}


async def test_an_entry_that_cannot_be_read_costs_itself_alone(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    """Usual mistakes of servers, of which one took all tools of a server."""
    nameless: list[Any] = [{**tool("x"), "name": 5}, "no object"]
    server.tools = [
        tool("first"),
        *(tool(name, **fields) for name, fields in UNREADABLE.items()),
        *nameless,
        tool("last"),
    ]
    server.prompts = [{"name": "good"}, {"name": "bad", "arguments": "x"}]
    server.resources = [{"uri": "file:///a", "name": "a"}, {"uri": "file:///b"}]
    told = await connect(gateway, server.route())
    assert told["tools"] == ["fake__first", "fake__last"]
    for name in UNREADABLE:
        assert f"The tool '{name}' is left out: " in told["reason"]
    assert "The tool '5' is left out: name: Input should be a valid string." in told["reason"]
    assert "The prompt 'bad' is left out: arguments: " in told["reason"]
    assert "The resource 'None' is left out: name: Field required." in told["reason"]
    assert await call_text(gateway, "fake__last", a=1) == "{'a': 1}"


async def test_a_list_that_cannot_be_read_is_said(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    server.answers["tools/list"] = answering({"tools": "none"})
    await gateway.publish(mcp_servers=(server.route(),))
    assert (await down(gateway)).startswith("its answer cannot be read: tools: ")


async def test_results_are_texts(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    parts = [
        {"type": "text", "text": "Coal"},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "in the shed"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAA", "mimeType": "x/y"}},
        {"type": "resource_link", "uri": "file:///c", "name": "c"},
        {"type": "resource_link", "uri": "file:///d", "name": "d", "mimeType": "text/csv", "size": 12}
        | {"description": "Prices"},
    ]
    server.answers = {
        "mixed": answering({"content": parts}),
        "structured": answering({"content": [], "structuredContent": {"a": 1}}),
        "failed": answering({**text_result("no coal"), "isError": True}),
        "refused": refusing(-32602, "Unknown tool"),
    }
    server.tools = [tool(name) for name in server.answers]
    await connect(gateway, server.route())
    assert (await call_text(gateway, "fake__mixed")).splitlines() == [
        *("Coal", "[image, image/png, 3 bytes]", "[audio, audio/wav, 3 bytes]", "in the shed"),
        *("[resource file:///b, x/y]", "[resource c: file:///c]"),
        "[resource d: file:///d, text/csv, 12 bytes, Prices]",
    ]
    assert await call_text(gateway, "fake__structured") == '{"a": 1}'
    assert await call_error(gateway, "fake__failed") == "no coal"
    assert await call_error(gateway, "fake__refused") == "Unknown tool"


async def test_a_server_that_floods_is_asked_once_a_second_at_most(
    server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    await connect(gateway, server.route())
    await until("it listens", lambda: bool(server._streams))
    before = server.methods.count("tools/list")
    for _ in range(2000):
        await server.tell_of_change()
    await until("it is asked", lambda: server.methods.count("tools/list") > before)
    assert server.methods.count("tools/list") <= before + 5
    assert await call_text(gateway, "fake__echo") == "{}"


@pytest.mark.parametrize("status", [200, 307, 404])
async def test_the_end_of_a_session_takes_no_longer_than_it_may(
    status: int, server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    """Also where the server's answer to it never ends."""

    async def endless(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"content-type": TEXT, "location": "/mcp"})
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    server.end_session = endless
    await connect(gateway, server.route())
    await gateway.publish(tools=(ToolRoute(name="calculate"),))
    await until("the session is ended", lambda: server.open_ends == 0 and server.ends)
    assert await call_text(gateway, "calculate", expression="1") == "1"


async def test_tables_bring_and_take_servers(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    async with fake_mcp_server() as other:
        await connect(gateway, server.route())
        await gateway.publish(mcp_servers=(server.route(), other.route("other")))
        await connected(gateway, "other")
        assert server.methods.count("initialize") == 1, "one that stays keeps its connection"
        await gateway.publish(mcp_servers=(other.route("other"),))
        assert await list_names(gateway) == ["other__echo"]
        assert await call_code(gateway, "fake__echo") == (404, "tool_not_found")
        await gateway.publish(mcp_servers=(McpServerRoute(name="other", url=f"http://127.0.0.1:{free_port()}/mcp"),))
        assert await down(gateway, "other") == "it accepts no connection"
        await gateway.publish()
        assert await list_servers(gateway) == {}
        assert await call_code(gateway, "other__echo") == (403, "tools_disabled")


async def test_redirects_to_elsewhere_are_not_followed(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    async with fake_mcp_server() as other:
        redirect = responding(307, location=f"http://127.0.0.1:{other.port}/mcp")
        server.answers = {"server/discover": redirect, "initialize": redirect}
        await gateway.publish(mcp_servers=(server.route(token="a-secret-token"),))
        assert "not followed" in await down(gateway)
        assert other.methods == []


async def test_a_connection_is_not_used_when_its_server_may_be_closing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Usual servers close one that was idle for 5 s; a call that comes at that moment would fail."""
    ports = []

    async def note_port(request: web.Request, message: dict[str, Any]) -> web.Response:
        ports.append(request.get_extra_info("peername")[1])
        return web.json_response(reply(message, text_result("x")))

    async with fake_mcp_server() as server, gateway_harness() as gateway:
        server.answers["echo"] = note_port
        await connect(gateway, server.route())
        for idle_s in (0.0, 4.0):
            shifted = time.monotonic
            monkeypatch.setattr(time, "monotonic", lambda shifted=shifted, idle_s=idle_s: shifted() + idle_s)
            await call_text(gateway, "fake__echo", text="x")
    assert ports[0] != ports[1]


async def test_an_answer_of_100_mb_is_refused_and_never_held(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    server.tools = [tool("json"), tool("events"), tool("event")]
    part = b"x" * 1024 * 1024
    server.answers["json"] = stream_of(part, 100, TEXT, b'{"jsonrpc": "2.0", "result": {"content": "')
    server.answers["events"] = stream_of(b": ping\n" + part + b"\n", 100, EVENTS)
    server.answers["event"] = stream_of(part, 100, EVENTS, b"data: ")
    await connect(gateway, server.route())
    tracemalloc.start()
    try:
        for name in ("json", "events", "event"):
            assert "larger than 1048576 bytes" in await failure(gateway, f"fake__{name}")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * 1024 * 1024
    assert (await connected(gateway))["state"] == "connected", "the connection stays"


async def test_a_compressed_answer_is_refused(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    bomb = gzip.compress(bytes(50 * 1024 * 1024))
    server.answers["echo"] = responding(body=bomb, content_type=TEXT, content_encoding="gzip")
    await connect(gateway, server.route())
    assert "compressed" in await failure(gateway, "fake__echo")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (stream_of(b"", 0, TEXT, b'{"jsonrpc": "2.0", "id": 1, "res'), "the answer broke off"),
        (stream_of(b"", 0, EVENTS, b'data: {"jsonrpc'), "broke off"),
        (stream_of(b"", 0, "text/html", b"<p>"), "Unexpected content type"),
    ],
)
async def test_a_server_that_closes_in_the_middle_costs_that_call_alone(
    answer: Any, reason: str, server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    gate = asyncio.Event()

    async def waits(_: web.Request, message: dict[str, Any]) -> web.Response:
        await gate.wait()
        return web.json_response(reply(message, text_result("late")))

    server.tools = [tool("broken"), tool("waits")]
    server.answers = {"broken": answer, "waits": waits}
    await connect(gateway, server.route())
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
        *(b"", b"null", b"[]", b"no json", b"[" * 100_000),
        b'{"jsonrpc": "2.0", "id": 99, "result": {}}',
        b'{"jsonrpc": "2.0", "result": {}}',
        b'{"jsonrpc": "2.0", "id": %d, "result": {"content": 1}}',
        b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "odd"}]}}',
    ],
)
async def test_an_answer_that_cannot_be_read(body: bytes, server: FakeMcpServer, gateway: GatewayHarness) -> None:
    server.answers["echo"] = responding(body=body, content_type=TEXT)
    await connect(gateway, server.route(timeout_s=2.0))
    assert await call_code(gateway, "fake__echo") in {(502, "tool_failed"), (504, "tool_timeout")}
    assert (await connected(gateway))["tools"] == ["fake__echo"]


async def test_a_server_that_never_answers_is_timed_out(
    monkeypatch: pytest.MonkeyPatch, server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    from assistant.tools.mcp_client import server_connection

    monkeypatch.setattr(server_connection, "CONNECT_S", 5.0)
    server.answers["echo"] = never
    await connect(gateway, server.route(timeout_s=1.0))
    assert await asyncio.gather(*(call_code(gateway, "fake__echo") for _ in range(40))) == [(504, "tool_timeout")] * 40
    await until("it is told", lambda: "notifications/cancelled" in server.methods)
    await until("the requests are given up", lambda: not server.open_calls)
    del server.answers["echo"]
    assert await call_text(gateway, "fake__echo") == "{}"


@pytest.mark.parametrize("method", ["server/discover", "initialize", "tools/list"])
async def test_a_server_that_hangs_at_the_beginning_holds_up_nobody(
    method: str, monkeypatch: pytest.MonkeyPatch, server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    from assistant.tools.mcp_client import server_connection, servers

    monkeypatch.setattr(server_connection, "CONNECT_S", 0.5)
    monkeypatch.setattr(servers, "CALL_WAIT_S", 0.2)
    async with fake_mcp_server() as other:
        server.answers[method] = never
        await gateway.publish(mcp_servers=(server.route(), other.route("other")))
        await connected(gateway, "other")
        assert await call_text(gateway, "other__echo") == "{}"
        assert await call_code(gateway, "fake__echo") == (502, "tool_failed")
        assert await down(gateway) == "it does not answer within 0.5 s"
        del server.answers[method]
        await connected(gateway)


async def test_a_server_that_refuses_is_down_with_its_reason(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    server.answers = {"server/discover": responding(401), "initialize": responding(401)}
    await gateway.publish(mcp_servers=(server.route(token="a-secret-token"),))
    assert await down(gateway) == "Server returned an error response"


@pytest.mark.parametrize("status", [401, 500, 503])
async def test_a_call_that_a_server_refuses_by_http_is_no_result_of_the_tool(
    status: int, server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    server.answers["echo"] = responding(status, b'{"error": "not now"}', content_type=TEXT)
    await connect(gateway, server.route())
    assert await failure(gateway, "fake__echo") == "The MCP server fake failed: Server returned an error response."
    assert (await connected(gateway))["tools"] == ["fake__echo"]


async def test_little_of_a_flood_waits_in_the_system(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    """What waits there is read in one go, in which nobody else's stream goes on."""
    await connect(gateway, server.route())
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


async def test_an_error_that_nobody_foresaw_does_not_end_the_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assistant.tools.mcp_client.server_connection.FEWEST_REFRESH_S", 0.0)
    connection, tries = ServerConnection.__new__(ServerConnection), [OSError("reset"), asyncio.CancelledError()]
    connection._wake = asyncio.Event()

    def listen(**_: bool) -> Any:
        raise tries.pop(0)

    with pytest.raises(asyncio.CancelledError):
        await connection._listen(cast("Any", SimpleNamespace(listen=listen)))
    assert (tries, connection._wake.is_set()) == ([], True), "what was missed is looked up"
