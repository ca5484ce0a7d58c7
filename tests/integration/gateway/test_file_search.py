"""`file_search` of responses: what is searched, what the engine gets, and what OpenAI's client sees of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseFileSearchToolCall, ResponseOutputMessage, ResponseOutputText
from openai.types.responses.response_output_text import AnnotationFileCitation

from tests.fakes.fake_controller import route
from tests.fakes.fake_retrieval import FakeRetrieval, fake_retrieval, file_hit
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, until

CHAT = "/v1/chat/completions"
QUESTION = "Where is the coal?"
ANSWER = "In the shed [1] and [3], not [9]."
TOOL: dict[str, Any] = {"type": "file_search", "vector_store_ids": ["vs_a", "vs_b"]}
FUNCTION: dict[str, Any] = {"type": "function", "name": "see", "parameters": {"type": "object", "properties": {}}}


@asynccontextmanager
async def searching() -> AsyncIterator[tuple[GatewayHarness, Any, FakeRetrieval]]:
    """A gateway with one engine that answers `ANSWER`, and two vector stores that share a file."""
    async with fake_retrieval() as retrieval:
        shed, tea, page = file_hit(1, "Coal is in the shed."), file_hit(2, "Tea."), file_hit(3, "The shed.", page=7)
        retrieval.stores = {"vs_a": [shed, page], "vs_b": [tea, shed.model_copy(update={"score": 0.2})]}
        async with gateway_harness(retrieval_url=retrieval.url) as gateway, engines(1) as (engine,):
            engine.words = ANSWER.split()
            await gateway.publish(route("m", [engine.url], apis=(CHAT,)))
            yield gateway, engine, retrieval


def sdk(gateway: GatewayHarness) -> openai.AsyncOpenAI:
    """OpenAI's client, as `alice`."""
    headers = {"x-client-id": "alice"}
    return openai.AsyncOpenAI(api_key="none", base_url=gateway.url + "/v1", max_retries=0, default_headers=headers)


def request_fields(**more: Any) -> dict[str, Any]:
    return {"model": "m", "input": QUESTION, "tools": [TOOL], "max_output_tokens": len(ANSWER.split()), **more}


def parts_of(response: Any) -> tuple[ResponseFileSearchToolCall, ResponseOutputText]:
    """The search and the text of a response that has no more."""
    call, message = response.output
    assert isinstance(call, ResponseFileSearchToolCall)
    assert isinstance(message, ResponseOutputMessage)
    [part] = message.content
    assert isinstance(part, ResponseOutputText)
    return call, part


async def test_the_model_gets_the_passages_and_its_answer_cites_them() -> None:
    async with searching() as (gateway, engine, retrieval), sdk(gateway) as client:
        response = await client.responses.create(**request_fields(include=["file_search_call.results"]))
        call, part = parts_of(response)
        assert (call.status, call.queries) == ("completed", [QUESTION])
        assert call.results is not None
        assert [(each.file_id, each.filename, each.score) for each in call.results] == [
            ("file-1", "f1.md", 1.0),
            ("file-2", "f2.md", 0.5),
            ("file-3", "f3.md", pytest.approx(1 / 3)),
        ]
        assert call.results[0].attributes == {"n": 1}
        cited = [each for each in part.annotations if isinstance(each, AnnotationFileCitation)]
        assert [(each.file_id, each.filename) for each in cited] == [("file-1", "f1.md"), ("file-3", "f3.md")]
        extra = [each.model_extra or {} for each in cited]
        assert [part.text[each["start_index"] : each["end_index"]] for each in extra] == ["[1]", "[3]"]
        assert [(each["start"], each["end"], each["page"]) for each in extra] == [(10, 30, None), (10, 19, 7)]
        assert response.tools[0].to_dict()["vector_store_ids"] == ["vs_a", "vs_b"]

        assert sorted(retrieval.file_searches) == [
            ("alice", store, {"query": QUESTION, "max_num_results": 10, "rewrite_query": False})
            for store in ("vs_a", "vs_b")
        ]
        [sent] = engine.requests
        assert not sent.body.get("tools")
        [message] = sent.body["messages"]
        assert "[2] f2.md\nTea." in message["content"]
        assert message["content"].endswith(f"Question:\n\n{QUESTION}")

        stored = await client.responses.retrieve(response.id)
        assert stored.output == response.output
        [item] = [each async for each in client.responses.input_items.list(response.id)]
        assert QUESTION in item.to_json(), "the passages are no part of what was asked"
        assert "shed" not in item.to_json()


async def test_a_stream_tells_of_the_search_and_of_each_citation() -> None:
    async with searching() as (gateway, _, __), sdk(gateway) as client:
        async with client.responses.stream(**request_fields()) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        kinds = [event.type for event in events]
        assert kinds[2:7] == [
            "response.output_item.added",
            "response.file_search_call.in_progress",
            "response.file_search_call.searching",
            "response.file_search_call.completed",
            "response.output_item.done",
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        call, part = parts_of(final)
        assert call.results is None
        added = [event.to_dict() for event in events if event.type == "response.output_text.annotation.added"]
        assert [each["annotation"] for each in added] == [each.to_dict() for each in part.annotations]
        assert [each["annotation_index"] for each in added] == [0, 1]
        assert kinds.index("response.output_text.annotation.added") > kinds.index("response.output_text.delta")


async def test_a_later_turn_searches_for_the_last_question() -> None:
    async with searching() as (gateway, engine, retrieval), sdk(gateway) as client:
        first = await client.responses.create(**request_fields())
        second = await client.responses.create(**request_fields(input="And tea?", previous_response_id=first.id))
        parts_of(second)
        assert [query["query"] for _, _, query in retrieval.file_searches] == [
            QUESTION,
            QUESTION,
            "And tea?",
            "And tea?",
        ]
        old, _, new = engine.requests[-1].body["messages"]
        assert old["content"] == QUESTION, "what was sent before stays as it was"
        assert new["content"].endswith("Question:\n\nAnd tea?")

        result = {"type": "function_call_output", "call_id": "c", "output": "Rain"}
        call = {"type": "function_call", "call_id": "c", "name": "see", "arguments": "{}"}
        loop = [{"role": "user", "content": QUESTION}, *first.to_dict()["output"], call, result]
        await client.responses.create(**request_fields(input=loop, tools=[TOOL, FUNCTION]))
        assert retrieval.file_searches[-1][2]["query"] == QUESTION
        messages = engine.requests[-1].body["messages"]
        assert messages[0]["content"].endswith(f"Question:\n\n{QUESTION}")
        assert [tool["function"]["name"] for tool in engine.requests[-1].body["tools"]] == ["see"]


@pytest.mark.parametrize(
    ("choice", "searches"),
    [
        ("auto", True),
        ("required", True),
        ({"type": "file_search"}, True),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "file_search"}]}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "see"}]}, False),
        ({"type": "function", "name": "see"}, False),
        ("none", False),
    ],
)
async def test_the_tool_choice_decides_whether_files_are_searched(choice: Any, searches: bool) -> None:
    async with searching() as (gateway, engine, retrieval), sdk(gateway) as client:
        response = await client.responses.create(**request_fields(tools=[TOOL, FUNCTION], tool_choice=choice))
        assert bool(retrieval.file_searches) == searches
        assert [each.type for each in response.output] == [*["file_search_call"] * searches, "message"]
        assert ("Question:" in engine.requests[0].body["messages"][0]["content"]) == searches
        assert engine.requests[0].body.get("tool_choice") != "required"
        echoed = response.to_dict()["tool_choice"]
        assert echoed == choice


async def test_what_cannot_be_searched_is_refused_before_the_engine_is_asked() -> None:
    async with searching() as (gateway, engine, _), sdk(gateway) as client:
        wrong: list[tuple[list[dict[str, Any]], str]] = [
            ([{"type": "file_search"}], "tools[0].vector_store_ids"),
            ([FUNCTION, {**TOOL, "vector_store_ids": []}], "tools[1].vector_store_ids"),
            ([{**TOOL, "max_num_results": 99}], "tools[0].max_num_results"),
            ([{**TOOL, "colour": 1}], "tools[0].colour"),
            ([TOOL, TOOL], "tools[1]"),
        ]
        for tools, param in wrong:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(**request_fields(tools=tools))
            assert refused.value.param == param
        with pytest.raises(openai.NotFoundError) as missing:
            await client.responses.create(**request_fields(tools=[{**TOOL, "vector_store_ids": ["vs_a", "vs_c"]}]))
        assert missing.value.code == "vector_store_not_found"
        assert engine.requests == []
        response = await client.responses.create(**request_fields(input=[{"role": "system", "content": "Hi"}]))
        assert [each.type for each in response.output] == ["message"], "no question, no search"
    async with gateway_harness(retrieval=False) as gateway, engines(1) as (engine,), sdk(gateway) as client:
        await gateway.publish(route("m", [engine.url], apis=(CHAT,)))
        with pytest.raises(openai.PermissionDeniedError) as disabled:
            await client.responses.create(**request_fields())
        assert disabled.value.code == "retrieval_disabled"


async def test_a_response_in_the_background_searches_too() -> None:
    async with searching() as (gateway, _, __), sdk(gateway) as client:
        events = [
            event async for event in await client.responses.create(**request_fields(background=True, stream=True))
        ]
        response = await client.responses.retrieve(events[-1].response.id)
        again = [event async for event in await client.responses.retrieve(response.id, stream=True)]
        assert again == events
        _, part = parts_of(response)
        assert [each.to_dict()["number"] for each in part.annotations] == [1, 3]


async def test_a_client_that_leaves_during_the_search_leaves_nothing_behind() -> None:
    async with searching() as (gateway, engine, retrieval):
        retrieval.gate = asyncio.Event()
        request = asyncio.ensure_future(gateway.client.post(gateway.url + "/v1/responses", json=request_fields()))
        await until(lambda: len(retrieval.file_searches) == 2, "it searches")
        request.cancel()
        server: Any = gateway.server
        exchanges = server._gateway.inference._services.exchanges
        await until(lambda: not exchanges, "it is over")
        retrieval.gate.set()
        assert engine.requests == []
