"""Thoughts of `/v1/responses` as clients show them that are not ours, unmodified: `openai`, LangChain, pydantic-ai, and
the AI SDK's parsers (in web/src, over the same golden events). The engine is a fake that thinks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.messages.ai import add_ai_message_chunks
from langchain_openai import ChatOpenAI
from pydantic_ai import Agent, ThinkingPart
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.fakes.fake_controller import route
from tests.fakes.fake_scripted_engine import ScriptedEngine, script, scripted
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.responses import Fields, check_response, folded

PIECES = ("Let me", ' see "7"\n', "·日本")
THOUGHT = "".join(PIECES)
OPEN = {"OpenResponses-Version": "2026-04-24"}
AI_SDK = {"User-Agent": "ai/6.0.1 ai-sdk/open-responses/2.0.36 runtime/node.js/24"}
SUMMARY = ("reasoning_summary_part.added", "reasoning_summary_text.delta", "reasoning_summary_text.done",
           "reasoning_summary_part.done")  # fmt: skip


def _stream(pieces: tuple[str, ...]) -> bytes:
    deltas: list[tuple[Fields, str | None]] = [({"reasoning_content": piece}, None) for piece in pieces]
    deltas += [({"content": "Hi"}, None), ({}, "stop")]
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas]
    body = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _whole(pieces: tuple[str, ...]) -> bytes:
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "".join(pieces)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    body = json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


@asynccontextmanager
async def thinking(*answers: bytes) -> AsyncIterator[tuple[GatewayHarness, ScriptedEngine]]:
    async with scripted(*map(script, answers)) as engine, gateway_harness() as gateway:
        await gateway.publish(route("m", [engine.url], apis=("/v1/chat/completions",)))
        yield gateway, engine


def prompted(engine: ScriptedEngine) -> list[Fields]:
    """The messages of the last request that the engine got."""
    messages: list[Fields] = json.loads(engine.requests[-1].partition(b"\r\n\r\n")[2])["messages"]
    return messages


@pytest.mark.parametrize("pieces", [PIECES, ("Hm.",), ("a\u2028b", "response.reasoning.delta")])
async def test_openai_gets_the_text_and_its_summary(pieces: tuple[str, ...]) -> None:
    async with (
        thinking(_whole(pieces), _stream(pieces)) as (gateway, _),
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        whole = await client.responses.create(model="m", input="Hi")
        deltas: dict[str, str] = {}
        async with client.responses.stream(model="m", input="Hi") as stream:
            async for event in stream:
                if event.type in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta"):
                    deltas[event.type] = deltas.get(event.type, "") + event.delta
            streamed = await stream.get_final_response()
    thought = "".join(pieces)
    assert set(deltas.values()) == {thought}
    assert len(deltas) == 2
    for response in (whole, streamed):
        item = response.output[0]
        assert item.type == "reasoning"
        assert [part.text for part in item.summary] == [part.text for part in item.content or ()] == [thought]


@pytest.mark.parametrize(
    ("headers", "name"), [({}, "reasoning_text"), (OPEN, "reasoning"), (AI_SDK, "reasoning")], ids=["", "header", "sdk"]
)
async def test_the_names_of_events_are_those_that_the_client_expects(headers: dict[str, str], name: str) -> None:
    async with thinking(_stream(PIECES)) as (gateway, _):
        reply = await gateway.post("/v1/responses", {"model": "m", "input": "Hi", "stream": True}, headers=headers)
        response = folded(reply.content, is_open=bool(headers))
        check_response(response, is_open=bool(headers))
        kinds = {line.removeprefix("event: response.") for line in reply.content.decode().splitlines()}
        assert {kind for kind in kinds if "reasoning" in kind.split(".")[0]} == {
            *SUMMARY, f"{name}.delta", f"{name}.done"
        }  # fmt: skip


async def test_langchain_shows_thoughts_once_and_gives_them_back() -> None:
    async with thinking(_whole(PIECES), _stream(PIECES), _whole(PIECES)) as (gateway, engine):
        model = ChatOpenAI(base_url=f"{gateway.url}/v1", api_key="none", model="m", use_responses_api=True)
        whole = await model.ainvoke("Hi")
        chunks = [chunk async for chunk in model.astream("Hi")]
        streamed = add_ai_message_chunks(*[chunk for chunk in chunks if isinstance(chunk, AIMessageChunk)])
        for message in (whole, streamed):
            assert isinstance(message, AIMessage)
            shown = [str(block["reasoning"]) for block in message.content_blocks if block["type"] == "reasoning"]
            assert shown == [THOUGHT]
        shown_pieces = [block for chunk in chunks for block in chunk.content_blocks if block.get("reasoning")]
        assert len(shown_pieces) == len(PIECES)
        await model.ainvoke([HumanMessage("Hi"), AIMessage(streamed.content), HumanMessage("Go on")])
        assert prompted(engine)[1]["reasoning_content"] == THOUGHT


async def test_pydantic_ai_shows_thoughts_once_and_gives_them_back() -> None:
    async with thinking(_whole(PIECES), _stream(PIECES), _whole(PIECES)) as (gateway, engine):
        provider = OpenAIProvider(base_url=f"{gateway.url}/v1", api_key="none")
        agent: Any = Agent(OpenAIResponsesModel("m", provider=provider))
        whole = await agent.run("Hi")
        async with agent.run_stream("Hi") as streamed:
            assert await streamed.get_output() == "Hi"
        for run in (whole, streamed):
            parts = [part for part in run.all_messages()[-1].parts if isinstance(part, ThinkingPart)]
            assert [part.content for part in parts] == [THOUGHT]
            assert "".join((parts[0].provider_details or {}).get("raw_content", ())) == THOUGHT
        await agent.run("Go on", message_history=streamed.all_messages())
        assert prompted(engine)[1]["reasoning_content"] == THOUGHT
