"""What reaches an engine of a body, in every family: every field, and the bytes as they came where nothing has to
change; but no field that a server elsewhere does not know."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from contract.admin import Capabilities
from gateway.server.connection import TURN_BYTES, ClientConnection
from tests.fakes.fake_controller import route
from tests.fakes.fake_scripted_engine import script, scripted
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.gateway_rest import nothing_left
from tests.support.http_client import Reply
from tests.support.raw_http import raw
from tests.support.wait import until

TAKES_ALL = Capabilities(modalities=("text", "image", "audio"), thinking_modes=("default", "enabled", "disabled"))
PARTS = [
    {"type": "text", "text": 'Look: "ü" \\u00fc \ud83d\ude80'},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}},
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
]
COMMON = (
    '"seed": 7, "temperature": 1e-3, "top_p": 0.10, "n": 2, "stop": ["model", "\\"stream\\": false"], "x_unknown":'
    ' {"model": "inner", "deep": [1.0, 1E2, null, {"stream": true}]}, "big": 12345678901234567890,'
    ' "reasoning_effort": "low", "reasoning": {"effort": "high"}, "thinking": {"type": "enabled", "budget_tokens": 9},'
    ' "metadata": {"\\u0000": "\\ud800"}'
)
CHAT_FIELDS = (
    f'"messages": [{{"role": "user", "content": {json.dumps(PARTS)}}}], "tools": [{{"type": "function", "function":'
    ' {"name": "f", "parameters": {"type": "object"}}}], "tool_choice": {"type": "function", "function": {}},'
    ' "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}, "logprobs": true,'
    ' "top_logprobs": 3, "parallel_tool_calls": false'
)
BODIES = {
    "/v1/chat/completions": CHAT_FIELDS,
    "/v1/completions": '"prompt": ["a", [1, 2]], "logprobs": 2, "suffix": "b", "echo": true',
    "/v1/messages": f'"messages": [{{"role": "user", "content": {json.dumps(PARTS)}}}], "system": "s", "max_tokens": 9',
    "/v1/messages/count_tokens": '"messages": [], "tools": []',
    "/v1/embeddings": '"input": ["a", [1, 2], {"content": []}], "encoding_format": "base64", "dimensions": 3',
    "/tokenize": '"content": "a", "with_pieces": true',
    "/apply-template": '"messages": []',
    "/infill": '"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}]',
}
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/infill")


def raw_body(path: str, model: str, stream: str = "") -> bytes:
    """A body with odd spacing, so that an encoding anew would show."""
    return f'  {{"model" :"{model}",{stream} {BODIES[path]},  {COMMON} }}\n'.encode()


async def sent(made: dict[str, Any], path: str, raw: bytes) -> bytes:
    """What the engine of the model `m`, alias `other`, is sent for such a body. `made`: how the model differs."""
    async with gateway_harness() as gateway, engines(1) as (engine,):
        more = {"notices_leaving": True, "takes_dimensions": True, "capabilities": TAKES_ALL} | made
        await gateway.publish(route("m", [engine.url], aliases=("other",)).model_copy(update=more))
        reply = await gateway.post(path, raw)
        assert reply.status in (200, 502), reply.text
        assert engine.requests[0].path == path
        return engine.requests[0].raw


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", ["", ' "stream" : false,'])
async def test_where_nothing_has_to_change_the_bytes_are_the_clients(path: str, stream: str) -> None:
    raw = raw_body(path, "m", stream)
    assert await sent({}, path, raw) == raw


@pytest.mark.parametrize("path", BODIES)
async def test_an_alias_changes_the_models_name_and_nothing_else(path: str) -> None:
    raw = raw_body(path, "other")
    assert json.loads(await sent({"served_name": "inner"}, path, raw)) == json.loads(raw) | {"model": "inner"}


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("stream", ["", ' "stream" : false,', ' "stream": null,'])
async def test_a_blocking_call_as_a_stream_changes_that_alone(path: str, stream: str) -> None:
    # What asks for probabilities cannot be made of a stream, and goes as it is.
    raw = raw_body(path, "m", stream).replace(b'"logprobs": true', b'"logprobs": null')
    raw = raw.replace(b'"top_logprobs": 3', b'"top_logprobs": null').replace(b'"logprobs": 2', b'"logprobs": null')
    raw = raw.replace(b'"stop"', b'"stop_"')
    got = json.loads(await sent({"notices_leaving": False}, path, raw))
    asked = {"stream_options": {"include_usage": True}} if "completions" in path else {}
    assert got == json.loads(raw) | {"stream": True} | asked


@pytest.mark.parametrize("path", GENERATING)
async def test_a_stream_asks_for_its_usage_at_most(path: str) -> None:
    raw = raw_body(path, "m", ' "stream": true,')
    got = json.loads(await sent({}, path, raw))
    if "completions" in path:
        assert got.pop("stream_options") == {"include_usage": True}
    assert got == json.loads(raw)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_what_cannot_be_made_of_a_stream_goes_as_it_is(path: str) -> None:
    raw = raw_body(path, "m")
    assert await sent({"notices_leaving": False}, path, raw) == raw


CHAT = "/v1/chat/completions"
IMAGE = "iVBORw0KGgo+/" * 120_000
CODE = 'def f(x):\n\treturn "a\\n%s" % x  # \\ 敏捷\n' * 15_000
EYES = Capabilities(modalities=("text", "image"))


def image_url(data: str = IMAGE) -> str:
    return f"data:image/png;base64,{data}"


def chat_messages() -> list[dict[str, Any]]:
    """A picture, and a long text."""
    picture = {"type": "image_url", "image_url": {"url": image_url()}}
    return [{"role": "user", "content": [{"type": "text", "text": CODE}, picture]}]


@pytest.mark.parametrize("kind", ["as it is", "renamed", "gathered", "chunked"])
async def test_an_engine_gets_what_the_client_sent(kind: str, gateway: GatewayHarness, engine: MockEngine) -> None:
    fields = {"model": "m", "messages": chat_messages(), "max_tokens": 4}
    body = json.dumps(fields, ensure_ascii=kind != "renamed").encode()
    made = route("m", [engine.url], capabilities=EYES, served_name="inner" if kind == "renamed" else None)
    await gateway.publish(made.model_copy(update={"notices_leaving": kind != "gathered"}))
    if kind == "chunked":

        async def parts() -> Any:
            for start in range(0, len(body), 70_000):
                yield body[start : start + 70_000]

        reply = await gateway.request("POST", CHAT, data=parts())
        assert reply.status == 200, reply.text
    else:
        assert (await gateway.post(CHAT, body)).status == 200
    [request] = engine.requests
    if kind in ("as it is", "chunked"):
        assert request.raw == body
    extra: dict[str, Any] = {"renamed": {"model": "inner"}}.get(kind, {})
    if kind == "gathered":
        extra = {"stream": True, "stream_options": {"include_usage": True}}
    assert request.body == fields | extra
    await nothing_left(gateway)


async def test_a_translation_moves_what_it_does_not_read(gateway: GatewayHarness, engine: MockEngine) -> None:
    call = {"type": "tool_use", "id": "t", "name": "write", "input": {"path": "f.py", "text": CODE}}
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
    messages = [
        {"role": "user", "content": "Write it."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": CODE}]},
        {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": CODE}]},
    ]
    fields = {"model": "m", "system": CODE, "messages": messages, "max_tokens": 4}
    await gateway.publish(route("m", [engine.url], capabilities=EYES, apis=(CHAT,)))
    reply = await gateway.post("/v1/messages", fields)
    assert reply.status == 200, reply.body
    sent = engine.requests[0].body["messages"]
    assert sent[0]["content"] == CODE
    assert json.loads(sent[2]["tool_calls"][0]["function"]["arguments"]) == call["input"]
    assert sent[3]["content"] == CODE
    assert sent[4]["content"] == [
        {"type": "image_url", "image_url": {"url": image_url()}},
        {"type": "text", "text": CODE},
    ]


async def test_a_response_is_stored_and_told_whole(gateway: GatewayHarness, engine: MockEngine) -> None:
    content = [{"type": "input_image", "image_url": image_url()}, {"type": "input_text", "text": CODE}]
    fields = {"model": "m", "instructions": CODE, "input": [{"role": "user", "content": content}], "store": True}
    await gateway.publish(route("m", [engine.url], capabilities=EYES, apis=(CHAT,)))
    reply = await gateway.post("/v1/responses", fields)
    assert reply.status == 200, reply.body
    assert reply.body["instructions"] == CODE
    sent = engine.requests[0].body["messages"]
    assert sent[0]["content"] == CODE
    assert sent[1]["content"][0] == {"type": "image_url", "image_url": {"url": image_url()}}
    assert sent[1]["content"][1] == {"type": "text", "text": CODE}
    [item] = (await gateway.get(f"/v1/responses/{reply.body['id']}/input_items")).body["data"]
    assert [part.get("image_url") or part["text"] for part in item["content"]] == [image_url(), CODE]


async def test_another_replica_gets_the_whole_body_too(gateway: GatewayHarness) -> None:
    body = json.dumps({"model": "m", "messages": chat_messages()}).encode()
    async with engines(2) as (broken, engine):
        broken.breaks_all = True
        await gateway.publish(route("m", [broken.url, engine.url], capabilities=EYES))
        for _ in range(2):
            assert (await gateway.post(CHAT, body)).status == 200
        assert [request.raw for request in engine.requests] == [body, body]


async def test_an_engine_may_answer_before_it_has_read_the_body(gateway: GatewayHarness) -> None:
    refusal = b'HTTP/1.1 413 No\r\ncontent-type: application/json\r\ncontent-length: 23\r\n\r\n{"error":{"code":413}}\n'
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": CODE * 20}]}).encode()
    async with scripted(script(refusal, early=True), script(refusal, early=True)) as engine:
        await gateway.publish(route("m", [engine.url]))
        for _ in range(2):
            reply = await gateway.post(CHAT, body)
            assert (reply.status, reply.error["status"]) == (413, 413)
        assert engine.connections == 2, "the rest of a body must not come before the next request"
        await nothing_left(gateway)


async def test_a_body_waits_unread_while_there_is_no_room_for_it() -> None:
    body = json.dumps({"model": "m", "messages": chat_messages(), "fault": "hold"}).encode()
    async with (
        gateway_harness(body_memory_mib=3) as gateway,
        engines(1) as (engine,),
        aiohttp.ClientSession() as impatient,
    ):
        await gateway.publish(route("m", [engine.url], capabilities=EYES))
        budget = gateway.app.inference.body_budget
        first = asyncio.ensure_future(gateway.post(CHAT, body))
        await until("the first is at the engine", lambda: engine.running == 1)
        assert budget.used_bytes == len(body)
        others = [asyncio.ensure_future(gateway.post(CHAT, body)) for _ in range(2)]
        leaving = asyncio.create_task(impatient.post(gateway.url + CHAT, data=body))
        await until("the others wait", lambda: len(budget._waiting) == 3)
        leaving.cancel()
        assert (await gateway.chat()).status == 200, "it needs no room"
        assert engine.running == 1
        engine.release.set()
        assert [reply.status for reply in await asyncio.gather(first, *others)] == [200] * 3
        await until("all of it is free again", lambda: budget.used_bytes == 0)
        assert not budget._waiting
        await nothing_left(gateway)


@pytest.mark.parametrize("end", ["too large", "no JSON", "unknown model", "client gone"])
async def test_room_is_given_back_however_a_request_ends(end: str) -> None:
    body = json.dumps({"model": "m" if end != "unknown model" else "x", "messages": chat_messages()}).encode()
    async with gateway_harness(max_body_mib=1 if end == "too large" else 64) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], capabilities=EYES))
        budget = gateway.app.inference.body_budget
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        async with raw(gateway) as client:
            client.write(head)
            if end == "client gone":
                client.write(b"80000\r\n" + body[:0x80000])
                await until("it has room", lambda: budget.used_bytes > 0)
            else:
                sent = body[:-1] if end == "no JSON" else body
                client.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(sent), sent))
                answer = await client.answer()
                assert answer.status == {"too large": 413, "no JSON": 400, "unknown model": 404}[end]
        await until("the room is free", lambda: budget.used_bytes == 0)


async def test_others_have_their_turn_while_a_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    in_turn: list[int] = []
    begin_turn = ClientConnection._begin_turn

    def noted(connection: ClientConnection) -> None:
        in_turn.append(connection._bytes_in_turn)
        begin_turn(connection)

    monkeypatch.setattr(ClientConnection, "_begin_turn", noted)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": IMAGE * 4}]}).encode()
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        assert (await gateway.post(CHAT, body)).status == 200
    assert in_turn
    assert max(in_turn) <= TURN_BYTES + 256 * 1024


# As Codex 0.169 sends it, and what other clients add.
IDENTITY: dict[str, Any] = {
    "client_metadata": {
        "x-codex-installation-id": "6d702d3f",
        "x-codex-turn-metadata": '{"workspaces":{"/home/me":{}}}',
    },
    "session_id": "5480477f",
}
HI: Any = [{"role": "user", "content": "Hi"}]


FOREIGN = {"client_metadata", "session_id", "top_k"}


@pytest.mark.parametrize("passed", [(), ("top_k",), None], ids=["none", "one", "an engine of ours"])
async def test_a_remote_gets_no_field_that_its_api_does_not_know_and_our_engine_gets_each(
    passed: tuple[str, ...] | None, gateway: GatewayHarness, engine: MockEngine
) -> None:
    apis = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank")
    await gateway.publish(route("m", [engine.url], token="sk-1", apis=apis, takes_dimensions=True, extra_fields=passed))
    extra: dict[str, Any] = {**IDENTITY, "top_k": 3}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": HI, "prompt_cache_key": "k"}),
        ("/v1/completions", {"prompt": "Hi", "seed": 3}),
        ("/v1/responses", {"input": "Hi", "prompt_cache_key": "k"}),
        ("/v1/embeddings", {"input": "Hi", "dimensions": 4}),
        ("/v1/messages", {"messages": HI, "max_tokens": 5}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ]
    for path, fields in requests:
        await gateway.post(path, {"model": "m", **fields, **extra})
    assert len(engine.requests) == 6
    for request in engine.requests:
        assert FOREIGN & request.body.keys() == (FOREIGN if passed is None else {*passed}), request.path
        assert (b"6d702d3f" in request.raw + repr(request.headers).encode()) is (passed is None)
    assert [each.body.get("prompt_cache_key") for each in engine.requests].count("k") == 2
    assert (engine.requests[1].body["seed"], engine.requests[3].body["dimensions"]) == (3, 4)


async def test_messages_that_pass_through_keep_what_their_api_knows(
    gateway: GatewayHarness, engine: MockEngine
) -> None:
    await gateway.publish(route("m", [engine.url], token="sk-1", apis=("/v1/messages",), extra_fields=()))
    known: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": HI, "metadata": {"user_id": "u"}, "top_k": 3}
    await gateway.post("/v1/messages", {**known, **IDENTITY})
    assert engine.requests[0].body == known


async def test_only_answers_that_may_take_long_are_gathered() -> None:
    async with gateway_harness(gather_after_s=60) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]).model_copy(update={"notices_leaving": False}))

        async def is_gathered(**fields: Any) -> bool:
            assert (await gateway.chat(**fields)).success["choices"][0]["message"]["content"]
            return engine.requests[-1].body.get("stream") is True

        assert await is_gathered(), "nothing is known of the model's answers yet"
        assert not await is_gathered(), "an answer takes milliseconds: a stream would cost more than it saves"
        assert not await is_gathered(max_tokens=100_000), "as long as the others, as far as anybody can tell"
        assert await is_gathered(ignore_eos=True), "it ends with the context"
        assert await is_gathered(metadata={"notes": "word " * 4000}), "its prompt may take a time of its own"
        assert (await gateway.chat(stream=True)).status == 200
        assert not await is_gathered()


async def test_a_large_body_of_another_route_waits_for_memory_and_may_not_take_all_of_it() -> None:
    """As a request for inference: see the tests of its memory."""
    async with gateway_harness(body_memory_mib=4) as gateway:
        budget = gateway.app.inference.body_budget
        other = budget.reserve(4 * 1024 * 1024, lambda: None)

        async def make(items: list[Any]) -> Reply:
            return await gateway.post("/v1/conversations", items=items)

        many = asyncio.create_task(make([[]] * 150_000))
        message = {"type": "message", "role": "user", "content": "x" * 400_000}
        one = asyncio.create_task(make([message]))
        await until("both wait", lambda: len(budget._waiting) == 2)
        budget.release(other)
        assert (await many).refusal[:2] == (413, "body_too_large")
        assert (await one).success["object"] == "conversation"
        await until("nothing is left", lambda: budget.used_bytes == 0)


async def test_a_large_body_that_waits_for_memory_is_no_slow_client() -> None:
    async with gateway_harness(body_memory_mib=4, client_timeout_s=0.3) as gateway:
        budget = gateway.app.inference.body_budget
        other = budget.reserve(4 * 1024 * 1024, lambda: None)
        message = {"type": "message", "role": "user", "content": "x" * 400_000}

        async def make() -> Reply:
            return await gateway.post("/v1/conversations", items=[message])

        asked = asyncio.create_task(make())
        await until("it waits", lambda: len(budget._waiting) == 1)
        await asyncio.sleep(1.0)
        budget.release(other)
        assert (await asked).success["object"] == "conversation"
