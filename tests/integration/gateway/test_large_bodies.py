"""Large bodies on their way: as they came, of every family, and no more of them at a time than there is room for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from controller.schema.admin import Capabilities
from gateway.server.connection import TURN_BYTES, ClientConnection
from tests.fakes.fake_controller import route
from tests.fakes.fake_scripted_engine import script, scripted
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, until
from tests.support.gateway_rest import nothing_left
from tests.support.raw_http import raw

CHAT = "/v1/chat/completions"
IMAGE = "iVBORw0KGgo+/" * 120_000
CODE = 'def f(x):\n\treturn "a\\n%s" % x  # \\ 敏捷\n' * 15_000
EYES = Capabilities(modalities=("text", "image"))


def image_url(data: str = IMAGE) -> str:
    """A data URL."""
    return f"data:image/png;base64,{data}"


def chat_messages() -> list[dict[str, Any]]:
    """A picture, and a long text."""
    picture = {"type": "image_url", "image_url": {"url": image_url()}}
    return [{"role": "user", "content": [{"type": "text", "text": CODE}, picture]}]


@pytest.mark.parametrize("kind", ["as it is", "renamed", "gathered", "chunked"])
async def test_an_engine_gets_what_the_client_sent(kind: str) -> None:
    fields = {"model": "m", "messages": chat_messages(), "max_tokens": 4}
    body = json.dumps(fields, ensure_ascii=kind != "renamed").encode()
    async with gateway_harness() as gateway, engines(1) as (engine,):
        made = route("m", [engine.url], capabilities=EYES, served_name="inner" if kind == "renamed" else None)
        await gateway.publish(made.model_copy(update={"notices_leaving": kind != "gathered"}))
        if kind == "chunked":

            async def parts() -> Any:
                for start in range(0, len(body), 70_000):
                    yield body[start : start + 70_000]

            async with gateway.request("POST", CHAT, data=parts()) as answer:
                assert answer.status == 200, await answer.text()
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


async def test_a_translation_moves_what_it_does_not_read() -> None:
    call = {"type": "tool_use", "id": "t", "name": "write", "input": {"path": "f.py", "text": CODE}}
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
    messages = [
        {"role": "user", "content": "Write it."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": CODE}]},
        {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": CODE}]},
    ]
    fields = {"model": "m", "system": CODE, "messages": messages, "max_tokens": 4}
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], capabilities=EYES, apis=(CHAT,)))
        reply = await gateway.post("/v1/messages", json.dumps(fields).encode())
        assert reply.status == 200, reply.body
        sent = engine.requests[0].body["messages"]
        assert sent[0]["content"] == CODE
        assert json.loads(sent[2]["tool_calls"][0]["function"]["arguments"]) == call["input"]
        assert sent[3]["content"] == CODE
        assert sent[4]["content"] == [
            {"type": "image_url", "image_url": {"url": image_url()}},
            {"type": "text", "text": CODE},
        ]


async def test_a_response_is_stored_and_told_whole() -> None:
    content = [{"type": "input_image", "image_url": image_url()}, {"type": "input_text", "text": CODE}]
    fields = {"model": "m", "instructions": CODE, "input": [{"role": "user", "content": content}], "store": True}
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], capabilities=EYES, apis=(CHAT,)))
        reply = await gateway.post("/v1/responses", json.dumps(fields).encode())
        assert reply.status == 200, reply.body
        assert reply.body["instructions"] == CODE
        sent = engine.requests[0].body["messages"]
        assert sent[0]["content"] == CODE
        assert sent[1]["content"][0] == {"type": "image_url", "image_url": {"url": image_url()}}
        assert sent[1]["content"][1] == {"type": "text", "text": CODE}
        [item] = (await gateway.get(f"/v1/responses/{reply.body['id']}/input_items")).body["data"]
        assert [part.get("image_url") or part["text"] for part in item["content"]] == [image_url(), CODE]


async def test_another_replica_gets_the_whole_body_too() -> None:
    body = json.dumps({"model": "m", "messages": chat_messages()}).encode()
    async with gateway_harness() as gateway, engines(2) as (broken, engine):
        broken.breaks_all = True
        await gateway.publish(route("m", [broken.url, engine.url], capabilities=EYES))
        for _ in range(2):
            assert (await gateway.post(CHAT, body)).status == 200
        assert [request.raw for request in engine.requests] == [body, body]


async def test_an_engine_may_answer_before_it_has_read_the_body() -> None:
    refusal = b'HTTP/1.1 413 No\r\ncontent-type: application/json\r\ncontent-length: 23\r\n\r\n{"error":{"code":413}}\n'
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": CODE * 20}]}).encode()
    async with (
        scripted(script(refusal, early=True), script(refusal, early=True)) as engine,
        gateway_harness() as gateway,
    ):
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
        budget = _budget(gateway)
        first = asyncio.ensure_future(gateway.post(CHAT, body))
        await until(lambda: engine.running == 1, "the first is at the engine")
        assert budget.used_bytes == len(body)
        others = [asyncio.ensure_future(gateway.post(CHAT, body)) for _ in range(2)]
        leaving = asyncio.create_task(impatient.post(gateway.url + CHAT, data=body))
        await until(lambda: len(budget._waiting) == 3, "the others wait")
        leaving.cancel()
        assert (await gateway.chat()).status == 200, "it needs no room"
        assert engine.running == 1
        engine.release.set()
        assert [reply.status for reply in await asyncio.gather(first, *others)] == [200] * 3
        await until(lambda: budget.used_bytes == 0, "all of it is free again")
        assert not budget._waiting
        await nothing_left(gateway)


@pytest.mark.parametrize("end", ["too large", "no JSON", "unknown model", "client gone"])
async def test_room_is_given_back_however_a_request_ends(end: str) -> None:
    body = json.dumps({"model": "m" if end != "unknown model" else "x", "messages": chat_messages()}).encode()
    async with gateway_harness(max_body_mib=1 if end == "too large" else 64) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], capabilities=EYES))
        budget = _budget(gateway)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        async with raw(gateway) as client:
            client.write(head)
            if end == "client gone":
                client.write(b"80000\r\n" + body[:0x80000])
                await until(lambda: budget.used_bytes > 0, "it has room")
            else:
                sent = body[:-1] if end == "no JSON" else body
                client.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(sent), sent))
                answer = await client.answer()
                assert answer.status == {"too large": 413, "no JSON": 400, "unknown model": 404}[end]
        await until(lambda: budget.used_bytes == 0, "the room is free")


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


def _budget(gateway: GatewayHarness) -> Any:
    server: Any = gateway.server
    return server._gateway.inference.body_budget
