"""What names a session, what an answer says of it, and what engines are told, by engines without a model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine


async def chat(gateway: GatewayHarness, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, str | None]:
    reply = await gateway.chat(headers=headers, **fields)
    return reply.status, reply.headers.get("x-session")


def session_fields(engine: MockEngine) -> dict[str, Any]:
    """The fields of the last request that are not the request's own."""
    own = ("model", "messages", "stream", "stream_options")
    return {name: value for name, value in engine.requests[-1].body.items() if name not in own}


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({}, {"session_id": "s"}),
        ({}, {"prompt_cache_key": "s"}),
        ({"x-conversation-id": "s"}, {}),
        ({"x-conversation-id": "s"}, {"stream": True}),
        ({"x-conversation-id": "s::m"}, {"session_id": ""}),
        ({"x-conversation-id": "other"}, {"session_id": "s", "stream": True}),
    ],
)
async def test_each_name_is_a_session(headers: dict[str, str], fields: dict[str, Any]) -> None:
    async with engines(1) as (engine,), gateway_harness() as gateway:
        await gateway.publish(route("m", [engine.url], session_cache=4, session_binding="slot", target_inflight=4))
        assert [await chat(gateway, headers, **fields) for _ in range(2)] == [(200, "new"), (200, "reused")]
        assert await chat(gateway, session_id="s") == (200, "reused"), "the same session by another name"
        assert session_fields(engine) == {"id_slot": 3}


async def test_no_name_is_no_session(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("m", [engine.url], session_cache=4, session_binding="slot", target_inflight=4))
    nameless: tuple[dict[str, Any], ...] = ({}, {"session_id": ""}, {"session_id": None}, {"prompt_cache_key": ""})
    for fields in nameless:
        assert [await chat(gateway, **fields) for _ in range(2)] == [(200, None)] * 2, fields
        assert "id_slot" not in session_fields(engine), fields


async def test_a_name_that_is_no_text_is_refused(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("m", [engine.url], session_cache=4))
    assert await chat(gateway, session_id=7) == (400, None)
    assert not engine.requests


async def test_a_model_without_sessions_gets_every_field_as_it_is(gateway: GatewayHarness, engine: MockEngine) -> None:
    assert await chat(gateway, session_id="s", prompt_cache_key="k") == (200, None)
    assert session_fields(engine) == {"session_id": "s", "prompt_cache_key": "k"}


@pytest.mark.parametrize(("binding", "rebuilds"), [("name", False), ("conversation", True), (None, False)])
async def test_engines_are_told_by_their_binding(binding: str | None, rebuilds: bool) -> None:
    async with engines(1) as (engine,), gateway_harness() as gateway:
        await gateway.publish(route("m", [engine.url], session_cache=4, session_binding=binding))
        assert await chat(gateway, session_id="s", temperature=0.5) == (200, "new")
        name = session_fields(engine).get("session_id")
        assert (name is None) == (binding is None)
        assert name != "s"
        for field, value in (("temperature", 0.6), ("top_k", 3)):
            fields: dict[str, Any] = {"temperature": 0.6, field: value}
            assert await chat(gateway, session_id="s", **fields) == (200, "rebuilt" if rebuilds else "reused")
        assert session_fields(engine).get("session_id") == name


async def test_a_slot_that_the_client_names_is_the_clients(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("m", [engine.url], session_cache=4, session_binding="slot", target_inflight=4))
    assert await chat(gateway, session_id="s", id_slot=1) == (200, "new")
    assert session_fields(engine) == {"id_slot": 1}


@pytest.mark.parametrize(("cached", "counted"), [(0, True), (5, False), (None, False)])
async def test_a_reused_turn_of_which_the_engine_had_nothing_is_counted(cached: int | None, counted: bool) -> None:
    async with engines(1) as (engine,), gateway_harness() as gateway:
        await gateway.publish(route("m", [engine.url], session_cache=4))
        details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8, **details}
        body = json.dumps({"choices": [choice], "usage": usage}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        engine.answers["/v1/chat/completions"] = head + body
        assert [await chat(gateway, session_id="s") for _ in range(3)] == [(200, "new"), *[(200, "reused")] * 2]
        metrics = await gateway.metrics()
        assert ('roundhouse_gateway_session_misses_total{model="m"} 2.0' in metrics) == counted
        assert ('roundhouse_gateway_cached_tokens_total{model="m"} 15.0' in metrics) == bool(cached)
