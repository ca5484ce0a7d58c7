"""Prompts and resources of MCP servers: of a real one of the package `mcp`, and of fakes that do what no real one
does."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from aiohttp import web

from assistant.tools.mcp_client import server_connection, servers
from contract.tools import McpServerRoute, ToolRoute
from tests.fakes.fake_mcp_server import Answer, FakeMcpServer, answering, never, refusing, stream_of
from tests.fakes.gateway_harness import GatewayHarness
from tests.support.mcp_server_program import PIXEL
from tests.support.mcp_servers import mcp_process
from tests.support.queueing import key
from tests.support.tool_calls import connect, connected, down, get_prompt, list_servers, read_resource
from tests.support.wait import until

PROMPT = {"name": "ask", "arguments": [{"name": "city", "required": True}, {"name": "unit"}]}
RESOURCE = {"uri": "file:///a", "name": "a"}


def says(*texts: str) -> Answer:
    return answering({"messages": [{"role": "user", "content": {"type": "text", "text": each}} for each in texts]})


def holds(*contents: dict[str, Any]) -> Answer:
    return answering({"contents": list(contents)})


async def offering(gateway: GatewayHarness, server: FakeMcpServer, **fields: Any) -> None:
    """Have the server connected, with a prompt and a resource."""
    server.prompts, server.resources = [PROMPT], [RESOURCE]
    await connect(gateway, server.route(**fields))


async def read(gateway: GatewayHarness, kind: str) -> tuple[int, Any]:
    if kind == "prompts/get":
        return await get_prompt(gateway, "fake", "ask", city="Bonn")
    return await read_resource(gateway, "fake", "file:///a")


def refusal(answer: tuple[int, Any]) -> tuple[int, str, str | None]:
    status, told = answer
    return status, told["error"]["code"], told["error"]["param"]


BOTH = pytest.mark.parametrize("kind", ["prompts/get", "resources/read"])


async def test_prompts_and_resources_of_a_real_mcp_server(gateway: GatewayHarness) -> None:
    async with mcp_process() as server:
        await connect(gateway, server.route())
        text = {"type": "text", "text": "Greet Ann in fr."}
        asked = await get_prompt(gateway, "demo", "greet", name="Ann", language="fr")
        assert asked == (200, {"messages": [{"role": "user", "content": text}]})
        pixel = base64.b64encode(PIXEL).decode()
        resource = {"uri": "notes://today", "mimeType": "text/plain", "text": "Fetch coal."}
        assert await get_prompt(gateway, "demo", "talk", subject="steam") == (
            200,
            {
                "messages": [
                    {"role": "user", "content": {"type": "text", "text": "Let us talk about steam."}},
                    {"role": "assistant", "content": {"type": "text", "text": "With pleasure."}},
                    {"role": "user", "content": {"type": "resource", "resource": resource}},
                    {"role": "user", "content": {"type": "image", "data": pixel, "mimeType": "image/png"}},
                ]
            },
        )
        assert await read_resource(gateway, "demo", "notes://today") == (200, {"contents": [resource]})
        made = {"uri": "notes://friday", "mimeType": "text/plain", "text": "friday"}
        assert await read_resource(gateway, "demo", "notes://friday") == (200, {"contents": [made]})
        dot = {"uri": "pictures://dot", "mimeType": "image/png", "blob": pixel}
        assert await read_resource(gateway, "demo", "pictures://dot") == (200, {"contents": [dot]})
        assert refusal(await get_prompt(gateway, "demo", "broken")) == (502, "tool_failed", None)
        assert refusal(await get_prompt(gateway, "demo", "nothing")) == (404, "prompt_not_found", None)
        assert refusal(await read_resource(gateway, "demo", "nothing://")) == (404, "resource_not_found", "uri")


async def test_arguments_are_checked_before_the_server_is_asked(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    server.answers["prompts/get"] = says("Rain?")
    await offering(gateway, server)
    invalid = (400, "tool_arguments_invalid")
    assert refusal(await get_prompt(gateway, "fake", "ask")) == (*invalid, "arguments.city")
    assert refusal(await get_prompt(gateway, "fake", "ask", city=1)) == (*invalid, "arguments.city")
    assert refusal(await get_prompt(gateway, "fake", "ask", city="x", town="x")) == (*invalid, "arguments.town")
    assert "prompts/get" not in server.methods
    assert refusal(await get_prompt(gateway, "fake", "ask", city="\ud800")) == (*invalid, "params")
    assert (await get_prompt(gateway, "fake", "ask", city="Bonn", unit="K"))[0] == 200
    server.answers["prompts/get"] = refusing(-32602, "no such city")
    status, told = await get_prompt(gateway, "fake", "ask", city="Atlantis")
    assert (status, told["error"]["code"], told["error"]["message"]) == (*invalid, "no such city")


async def test_a_body_of_another_form_is_refused(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    await offering(gateway, server)
    for uri in (None, 1, "", "x" * 2049):
        assert refusal(await read_resource(gateway, "fake", uri)) == (400, "invalid_request", "uri")
    reply = await gateway.post("/tools/servers/fake/prompts/ask", {"arguments": []})
    assert refusal(reply.result) == (400, "invalid_request", "arguments")
    assert not {"prompts/get", "resources/read"} & set(server.methods)


async def test_a_key_uses_what_its_tools_name(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    allowed = {
        "all": ("*",),
        "server": ("fake__*",),
        "prompts": ("fake__prompts/get",),
        "tool": ("fake__echo",),
        "none": (),
    }
    keys = (*(key(name, tools=tools) for name, tools in allowed.items()), key("chief", scopes=("inference", "admin")))
    server.prompts, server.resources = [PROMPT], [RESOURCE]
    server.answers = {"prompts/get": says("Rain?"), "resources/read": holds({"uri": "file:///a", "text": "coal"})}
    await gateway.publish(mcp_servers=(server.route(),), keys=keys)

    async def listed(name: str) -> tuple[int, int, int] | None:
        told = (await list_servers(gateway, f"secret-{name}")).get("fake")
        return None if told is None else (len(told["tools"]), len(told["prompts"]), len(told["resources"]))

    await until("it is connected", lambda: listed("prompts"))
    may = {}
    for name in (*allowed, "chief"):
        prompt, _ = await get_prompt(gateway, "fake", "ask", f"secret-{name}", city="Bonn")
        resource, _ = await read_resource(gateway, "fake", "file:///a", f"secret-{name}")
        may[name] = (await listed(name), prompt, resource)
    assert may == {
        "all": ((1, 1, 1), 200, 200),
        "server": ((1, 1, 1), 200, 200),
        "prompts": ((0, 1, 0), 200, 403),
        "tool": ((1, 0, 0), 403, 403),
        "none": (None, 403, 403),
        "chief": ((0, 0, 0), 403, 403),
    }
    told = refusal(await read_resource(gateway, "fake", "file:///a", "secret-tool"))
    assert told == (403, "tool_not_allowed", "tool")
    told = refusal(await read_resource(gateway, "unknown", "file:///a", "secret-tool"))
    assert told == (403, "tool_not_allowed", "tool"), "what is declared is not told"


async def test_a_server_offers_what_its_declaration_names(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    server.answers = {"prompts/get": says("Rain?"), "resources/read": holds({"uri": "file:///a", "text": "coal"})}
    await offering(gateway, server, tools=("echo", "resources/read"))
    told = (await list_servers(gateway))["fake"]
    assert (told["prompts"], [each["uri"] for each in told["resources"]]) == ([], ["file:///a"])
    assert refusal(await get_prompt(gateway, "fake", "ask", city="Bonn")) == (404, "prompt_not_found", None)
    assert (await read_resource(gateway, "fake", "file:///a"))[0] == 200
    await connect(gateway, server.route(tools=("echo", "prompts/get")))
    assert (await get_prompt(gateway, "fake", "ask", city="Bonn"))[0] == 200
    assert refusal(await read_resource(gateway, "fake", "file:///a")) == (404, "resource_not_found", "uri")


async def test_what_cannot_be_asked_for_is_left_out(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    server.prompts = [{"name": each} for each in ("a b/c?d=é%2F", "", "a\nb", "x" * 129, "x" * 128)]
    server.resources = [{"uri": each, "name": "n" * 200} for each in ("a:" + "x" * 2047, "a:\u202eb", "a: b")]
    server.answers["prompts/get"] = says("Rain?")
    told = await connect(gateway, server.route())
    assert [each["name"] for each in told["prompts"]] == ["a b/c?d=é%2F", "x" * 128]
    assert [(each["uri"], each["name"]) for each in told["resources"]] == [("a: b", "n" * 128)]
    assert "A prompt is left out: its name 'a\\nb' cannot be used." in told["reason"]
    assert "A resource is left out: its name 'a:\\u202eb' cannot be used." in told["reason"]
    assert (await get_prompt(gateway, "fake", "x" * 128))[0] == 200
    assert (await get_prompt(gateway, "fake", "a%20b/c%3Fd=%C3%A9%252F"))[0] == 200


async def test_what_is_not_declared(gateway: GatewayHarness) -> None:
    assert refusal(await read_resource(gateway, "fake", "file:///a")) == (403, "tools_disabled", None)
    await gateway.publish(tools=(ToolRoute(name="calculate"),))
    assert refusal(await get_prompt(gateway, "fake", "ask")) == (404, "mcp_server_not_found", None)
    assert refusal(await read_resource(gateway, "fake", "file:///a")) == (404, "mcp_server_not_found", None)


@BOTH
async def test_a_server_that_is_down(
    kind: str, monkeypatch: pytest.MonkeyPatch, server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    monkeypatch.setattr(servers, "CALL_WAIT_S", 0.5)
    server.answers = {"prompts/get": says("Rain?"), "resources/read": holds({"uri": "file:///a", "text": "coal"})}
    await gateway.publish(mcp_servers=(McpServerRoute(name="fake", url=None, reason="it is not loaded"),))
    assert refusal(await read(gateway, kind)) == (502, "tool_failed", None)
    await offering(gateway, server)
    await server.stop()
    assert refusal(await read(gateway, kind)) == (502, "tool_failed", None)
    await down(gateway)
    await server.start()
    await connected(gateway)
    assert (await read(gateway, kind))[0] == 200


@BOTH
async def test_a_server_that_was_started_anew_is_connected_again(
    kind: str, server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    answers = {"prompts/get": says("Rain?"), "resources/read": holds({"uri": "u", "text": "coal"})}

    async def in_session(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if request.headers.get("mcp-session-id") != str(server.session):
            return web.json_response({"error": "no such session"}, status=404)
        return await answers[kind](request, message)

    server.answers[kind] = in_session
    await offering(gateway, server)
    server.forget_session()
    assert (await read(gateway, kind))[0] == 200
    assert server.methods.count("initialize") == 2


@BOTH
async def test_an_answer_of_100_mb_is_refused(kind: str, server: FakeMcpServer, gateway: GatewayHarness) -> None:
    first = b'{"jsonrpc": "2.0", "result": {"contents": "'
    server.answers[kind] = stream_of(b"x" * 1024 * 1024, 100, "application/json", first)
    await offering(gateway, server)
    status, told = await read(gateway, kind)
    assert (status, told["error"]["code"]) == (502, "tool_failed")
    assert "the answer is larger than 1048576 bytes: ask for less, or declare" in told["error"]["message"]
    assert (await connected(gateway))["state"] == "connected", "the connection stays"


@BOTH
async def test_a_server_that_never_answers_is_timed_out(
    kind: str, monkeypatch: pytest.MonkeyPatch, server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    monkeypatch.setattr(server_connection, "CONNECT_S", 5.0)
    server.answers[kind] = never
    await offering(gateway, server, timeout_s=1.0)
    answers = await asyncio.gather(*(read(gateway, kind) for _ in range(40)))
    assert [refusal(each) for each in answers] == [(504, "tool_timeout", None)] * 40
    await until("it is told", lambda: "notifications/cancelled" in server.methods)
    await until("the requests are given up", lambda: not server.open_calls)


@BOTH
async def test_a_client_that_leaves_ends_its_request(kind: str, server: FakeMcpServer, gateway: GatewayHarness) -> None:
    server.answers[kind] = never
    await offering(gateway, server, timeout_s=600.0, replica="rh-test-mcp-fake-0")
    waiting = asyncio.create_task(read(gateway, kind))
    report = await gateway.controller.report_where(lambda report: bool(report.inflight))
    assert report.inflight == {"rh-test-mcp-fake-0": 1}, "a drain of the replica waits for it"
    waiting.cancel()
    await gateway.idle()
    await until("it is told", lambda: "notifications/cancelled" in server.methods)
    report = await gateway.controller.report_where(lambda report: bool(report.tool_calls))
    assert [(call.tool, call.outcome) for call in report.tool_calls] == [(f"fake__{kind}", "cancelled")]


@BOTH
async def test_a_stop_ends_requests(kind: str, server: FakeMcpServer, gateway: GatewayHarness) -> None:
    server.answers[kind] = never
    await offering(gateway, server, timeout_s=600.0)
    waiting = asyncio.create_task(read(gateway, kind))
    await until("the server is asked", lambda: kind in server.methods)
    gateway.assistant.posted_calls.end_all()
    assert refusal(await waiting) == (503, "gateway_stopping", None)


@BOTH
@pytest.mark.parametrize(
    "answer",
    [
        answering({"messages": 1, "contents": 1}),
        answering({"messages": [{"role": "system", "content": {"type": "text", "text": "x"}}], "contents": [{}]}),
        refusing(-32603, "out of coal"),
        stream_of(b"", 0, "application/json", b'{"jsonrpc": "2.0", "id": 1, "res'),
    ],
)
async def test_an_answer_that_is_none(
    kind: str, answer: Answer, server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    server.answers[kind] = answer
    await offering(gateway, server)
    assert refusal(await read(gateway, kind)) == (502, "tool_failed", None)


@pytest.mark.parametrize("code", [-32602, -32002, -32601])
async def test_a_resource_that_the_server_does_not_have(
    code: int, server: FakeMcpServer, gateway: GatewayHarness
) -> None:
    server.answers["resources/read"] = refusing(code, "no shed")
    await offering(gateway, server)
    status, told = await read_resource(gateway, "fake", "file:///shed")
    assert (status, told["error"]["code"], told["error"]["message"]) == (404, "resource_not_found", "no shed")


async def test_texts_are_cut_together_and_binary_data_is_whole(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    server.answers["prompts/get"] = says("a" * 1000, "b" * 1000, "c")
    blob = base64.b64encode(bytes(100_000)).decode()
    server.answers["resources/read"] = holds(
        {"uri": "file:///a", "text": "a" * 1025},
        {"uri": "file:///b", "text": "b"},
        {"uri": "file:///c", "blob": blob, "mimeType": "x/y", "_meta": {"secret": 1}},
    )
    await offering(gateway, server, max_output_kib=1)
    cut = "\n[The output is cut here: it is longer than 1024 bytes.]"
    _, prompt = await get_prompt(gateway, "fake", "ask", city="Bonn")
    texts = [message["content"]["text"] for message in prompt["messages"]]
    assert texts == ["a" * 1000, "b" * 24 + cut, ""]
    assert await read_resource(gateway, "fake", "file:///a") == (
        200,
        {
            "contents": [
                {"uri": "file:///a", "text": "a" * 1024 + cut},
                {"uri": "file:///b", "text": ""},
                {"uri": "file:///c", "mimeType": "x/y", "blob": blob},
            ]
        },
    )


async def test_links_and_sounds_of_a_prompt(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    sound = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    link: dict[str, Any] = {"type": "resource_link", "uri": "file:///a", "name": "a", "title": "A"}
    link["mimeType"] = "text/plain"
    link |= {"description": "All of it", "size": 5, "annotations": {"priority": 1}}
    blob = {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAA"}, "annotations": {"priority": 1}}
    messages = [{"role": "assistant", "content": each} for each in (sound, link, blob)]
    server.answers["prompts/get"] = answering({"messages": messages})
    await offering(gateway, server)
    _, told = await get_prompt(gateway, "fake", "ask", city="Bonn")
    del link["annotations"], blob["annotations"]
    assert told == {"messages": messages}


async def test_each_is_recorded_and_counted_as_a_call(server: FakeMcpServer, gateway: GatewayHarness) -> None:
    server.answers = {"prompts/get": says("hé"), "resources/read": holds({"uri": "file:///a", "blob": "AAAA"})}
    server.prompts, server.resources = [PROMPT], [RESOURCE]
    alice = key("alice", tools=("*",), scopes=("inference", "admin"))
    await gateway.publish(mcp_servers=(server.route(),), keys=(alice,))

    async def is_connected() -> bool:
        told: dict[str, Any] = (await list_servers(gateway, "secret-alice")).get("fake", {})
        return told.get("state") == "connected"

    await until("it is connected", is_connected)
    await get_prompt(gateway, "fake", "ask", "secret-alice", city="password=hunter22")
    await get_prompt(gateway, "fake", "nothing", "secret-alice")
    await read_resource(gateway, "fake", "file:///a", "secret-alice")
    await read_resource(gateway, "other", "file:///a", "secret-alice")
    report = await gateway.controller.report_where(lambda report: len(report.tool_calls) == 4)
    told = [
        (call.tool, call.server, call.caller, call.arguments, call.outcome, call.output_bytes)
        for call in report.tool_calls
    ]
    masked = '{"name": "ask", "arguments": {"city": "***"}}'
    nothing = '{"name": "nothing", "arguments": {}}'
    uri = '{"uri": "file:///a"}'
    assert told == [
        ("fake__prompts/get", "fake", "alice", masked, "ok", 3),
        ("fake__prompts/get", "fake", "alice", nothing, "prompt_not_found", 0),
        ("fake__resources/read", "fake", "alice", uri, "ok", 4),
        ("other__resources/read", None, "alice", uri, "mcp_server_not_found", 0),
    ]
    counts = {line for line in (await gateway.metrics()).splitlines() if line.startswith("roundhouse_gateway_tool_")}
    name = "roundhouse_gateway_tool_calls_total"
    assert counts == {
        f'{name}{{outcome="ok",tool="fake__prompts/get"}} 1.0',
        f'{name}{{outcome="refused",tool="fake__prompts/get"}} 1.0',
        f'{name}{{outcome="ok",tool="fake__resources/read"}} 1.0',
        f'{name}{{outcome="refused",tool="unknown"}} 1.0',
    }
