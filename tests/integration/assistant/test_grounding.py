"""Passages in prompts, by `rag` of chats and messages and by `file_search` of responses: what is searched, what the
engine gets, and what the answer cites."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import CitationsSearchResultLocation, TextBlock
from openai.types.responses import ResponseFileSearchToolCall, ResponseOutputMessage, ResponseOutputText
from openai.types.responses.response_output_text import AnnotationFileCitation

from tests.fakes.fake_controller import route
from tests.fakes.fake_retrieval import FakeRetrieval, fake_retrieval, file_hit, hit
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support.http_client import PendingReply
from tests.support.response_state import refusal
from tests.support.wait import until

CHAT = "/v1/chat/completions"
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Where is the coal?"},
]
ANSWER = "In the shed [1] and [3], not [9]."


@asynccontextmanager
async def grounded() -> AsyncIterator[tuple[GatewayHarness, Any, FakeRetrieval]]:
    """A gateway with one engine that answers `ANSWER`, and a retrieval with three hits."""
    async with fake_retrieval() as retrieval:
        retrieval.hits = [hit(1, "Coal is in the shed."), hit(2, "Tea is in the kitchen."), hit(3, "The shed.", page=7)]
        async with gateway_harness(retrieval_url=retrieval.url) as gateway, engines(1) as (engine,):
            engine.words = ANSWER.split()
            await gateway.publish(route("m", [engine.url], apis=(CHAT,)))
            yield gateway, engine, retrieval


def chat(gateway: GatewayHarness, **fields: Any) -> PendingReply:
    return gateway.post(CHAT, {"model": "m", "messages": MESSAGES, **fields}, headers={"x-client-id": "alice"})


async def test_an_answer_cites_the_passages_that_it_used() -> None:
    async with grounded() as (gateway, engine, retrieval):
        reply = await chat(gateway, rag={"top_k": 3, "filter": {"lang": "en"}})
        assert reply.status == 200
        assert retrieval.searches == [
            ("alice", {"query": "Where is the coal?", "top_k": 3, "filter": {"lang": "en"}, "rerank": False})
        ]
        [sent] = engine.requests
        assert "rag" not in sent.body
        assert sent.body["messages"][:3] == MESSAGES[:3], "what was sent before stays as it was"
        question = sent.body["messages"][3]["content"]
        assert "[1] d1.md\nCoal is in the shed." in question
        assert "[3] d3.md, page 7\nThe shed." in question
        assert question.endswith("Question:\n\nWhere is the coal?")

        message = reply.body["choices"][0]["message"]
        text = message["content"]
        assert [text[each["start_index"] : each["end_index"]] for each in message["annotations"]] == ["[1]", "[3]"]
        assert [each["document_id"] for each in message["annotations"]] == ["d1", "d3"]
        assert message["annotations"][1] | {"start_index": 0, "end_index": 0} == {
            "type": "file_citation",
            "start_index": 0,
            "end_index": 0,
            "number": 3,
            "document_id": "d3",
            "filename": "d3.md",
            "chunk": 0,
            "start": 10,
            "end": 19,
            "page": 7,
            "score": pytest.approx(1 / 3),
        }
        assert [source["number"] for source in reply.body["sources"]] == [1, 2, 3]


async def test_a_stream_ends_with_its_citations() -> None:
    async with grounded() as (gateway, _, __):
        body = {"model": "m", "messages": MESSAGES, "rag": True, "stream": True}
        reply = await gateway.post(CHAT, body)
        assert reply.status == 200
        events = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
        [annotations] = [
            chunk["choices"][0]["delta"]["annotations"]
            for chunk in chunks
            if chunk["choices"] and "annotations" in chunk["choices"][0]["delta"]
        ]
        assert [text[each["start_index"] : each["end_index"]] for each in annotations] == ["[1]", "[3]"]
        assert [source["document_id"] for source in chunks[-1]["sources"]] == ["d1", "d2", "d3"]


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
@pytest.mark.parametrize("notice", ["The query has no words.", None])
async def test_an_answer_says_what_the_search_did_not_do(path: str, notice: str | None) -> None:
    async with grounded() as (gateway, _, retrieval):
        retrieval.hits, retrieval.notice = [], notice
        body = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "😀"}], "rag": True}
        blocking = (await gateway.post(path, body)).body
        assert (blocking["sources"], blocking.get("sources_notice")) == ([], notice)
        text = (await gateway.post(path, body | {"stream": True})).text
        found = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        [said] = [each for event in found if "sources" in (each := event.get("message", event))]
        assert said.get("sources_notice") == notice


async def test_passages_fit_the_tokens_that_are_left_for_them() -> None:
    async with grounded() as (gateway, engine, retrieval):
        retrieval.hits = [hit(1, "x" * 150), hit(2, "y" * 60), hit(3, "z")]
        reply = await chat(gateway, rag={"max_tokens": 50})
        assert (reply.status, [source["number"] for source in reply.body["sources"]]) == (200, [1])
        assert "yyy" not in json.dumps(engine.requests[0].body)


async def test_halves_of_surrogate_pairs_are_no_text_to_search_for() -> None:
    async with grounded() as (gateway, _, retrieval):
        messages = [{"role": "user", "content": "hi \ud800"}]
        reply = await gateway.post(CHAT, {"model": "m", "messages": messages, "rag": {"filter": {"a": "\udfff"}}})
        assert reply.status == 200, reply.text
        [(_, search)] = retrieval.searches
        assert search["query"] == "hi ?"


async def test_without_hits_or_with_false_the_question_stays_as_it_was() -> None:
    async with grounded() as (gateway, engine, retrieval):
        retrieval.hits = []
        for rag in (True, False, None):
            reply = await chat(gateway, rag=rag)
            assert reply.status == 200
            assert engine.requests[-1].body["messages"] == MESSAGES
            assert "rag" not in engine.requests[-1].body
            assert reply.body.get("sources", []) == []
        assert len(retrieval.searches) == 1


@pytest.mark.parametrize(
    ("rag", "param"),
    [
        ("yes", "rag"),
        ({"top_k": 0}, "rag.top_k"),
        ({"colour": 1}, "rag.colour"),
        ({"max_tokens": 10}, "rag.max_tokens"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_asked(rag: Any, param: str) -> None:
    async with grounded() as (gateway, engine, retrieval):
        reply = await chat(gateway, rag=rag)
        assert (reply.status, reply.code, reply.error["param"]) == (400, "invalid_request", param)
        reply = await chat(gateway, rag=True, messages=[{"role": "system", "content": "x"}])
        assert (reply.status, reply.error["param"]) == (400, "messages")
        assert (engine.requests, retrieval.searches) == ([], [])


async def test_retrievals_own_error_is_the_answer() -> None:
    async with grounded() as (gateway, engine, retrieval):
        retrieval.error = (400, {"code": "invalid_request", "message": "`filter`: is wrong.", "param": "filter"})
        reply = await chat(gateway, rag=True)
        assert (reply.status, reply.error["param"]) == (400, "rag.filter")
        retrieval.error = (503, {"code": "embedding_unavailable", "message": "It is away.", "param": None})
        assert (await chat(gateway, rag=True)).refusal == (503, "embedding_unavailable")
        assert engine.requests == []
    async with gateway_harness(retrieval=False) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        assert (await chat(gateway, rag=True)).refusal == (403, "retrieval_disabled")


async def test_messages_cite_passages_as_anthropics_client_expects_it() -> None:
    async with grounded() as (gateway, engine, retrieval):
        client = anthropic.AsyncAnthropic(api_key="none", base_url=gateway.url, max_retries=0)
        result = {"type": "tool_result", "tool_use_id": "t", "content": "Rain"}
        messages: list[Any] = [
            {"role": "user", "content": [{"type": "text", "text": "Where is the coal?"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "see", "input": {}}]},
            {"role": "user", "content": [result]},
        ]
        asked: dict[str, Any] = {"model": "m", "max_tokens": len(ANSWER.split()), "messages": messages}
        asked |= {"extra_body": {"rag": {"top_k": 3}}, "extra_headers": {"x-client-id": "alice"}}
        async with client:
            blocking = await client.messages.create(**asked)
            async with client.messages.stream(**asked) as stream:
                streamed = await stream.get_final_message()
        for message in (blocking, streamed):
            [block] = message.content
            assert isinstance(block, TextBlock)
            cited = [each for each in block.citations or () if isinstance(each, CitationsSearchResultLocation)]
            assert [(each.source, each.title, each.search_result_index) for each in cited] == [
                ("d1", "d1.md", 0),
                ("d3", "d3.md", 2),
            ]
            assert [each.cited_text for each in cited] == ["Coal is in the shed.", "The shed."]
            extra = [each.model_extra or {} for each in cited]
            assert [block.text[each["start_index"] : each["end_index"]] for each in extra] == ["[1]", "[3]"]
            assert [each["number"] for each in (message.model_extra or {})["sources"]] == [1, 2, 3]
        assert retrieval.searches[0] == ("alice", {"query": "Where is the coal?", "top_k": 3, "rerank": False})
        for sent in engine.requests:
            assert "rag" not in sent.body
            [question, _, tool_result] = sent.body["messages"]
            assert "[1] d1.md\nCoal is in the shed." in json.dumps(question["content"]).replace("\\n", "\n")
            assert tool_result["content"] == "Rain"


async def test_a_message_without_rag_has_no_citations() -> None:
    async with grounded() as (gateway, engine, retrieval):
        body: dict[str, Any] = {"model": "m", "max_tokens": 50, "messages": MESSAGES[1:]}
        for rag in ({}, {"rag": False}):
            message = (await gateway.post("/v1/messages", body | rag)).body
            assert "sources" not in message
            assert "citations" not in message["content"][0]
            assert "rag" not in engine.requests[-1].body
        reply = await gateway.post("/v1/messages", body | {"rag": "yes"})
        assert (reply.status, reply.error["param"]) == (400, "rag")
        assert retrieval.searches == []


async def test_passages_take_a_quarter_of_a_models_context_at_most() -> None:
    async with grounded() as (gateway, engine, retrieval):
        await gateway.publish(route("m", [engine.url], apis=(CHAT,), context_length=400))
        retrieval.hits = [hit(1, "x" * 300), hit(2, "y" * 200)]
        reply = await chat(gateway, rag=True)
        assert (reply.status, [source["number"] for source in reply.body["sources"]]) == (200, [1])
        reply = await chat(gateway, rag={"max_tokens": 130})
        assert (reply.status, [source["number"] for source in reply.body["sources"]]) == (200, [1, 2])


QUESTION = "Where is the coal?"
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

        assert (await client.responses.retrieve(response.id)).output == response.output
        [item] = [each async for each in client.responses.input_items.list(response.id)]
        assert QUESTION in item.to_json(), "the passages are no part of what was asked"
        assert "shed" not in item.to_json()


@pytest.mark.parametrize("notice", ["The query has no words.", None])
async def test_a_response_says_once_what_its_searches_did_not_do(notice: str | None) -> None:
    async with searching() as (gateway, _, retrieval):
        retrieval.notice = notice
        response = (await gateway.post("/v1/responses", request_fields())).body
        assert response["output"][0].get("notice") == notice


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
        assert engine.requests[-1].body["messages"][0]["content"].endswith(f"Question:\n\n{QUESTION}")
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
        assert response.to_dict()["tool_choice"] == choice


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
            pending = client.responses.create(**request_fields(tools=tools))
            assert await refusal(pending) == (400, "invalid_request", param)
        pending = client.responses.create(**request_fields(tools=[{**TOOL, "vector_store_ids": ["vs_a", "vs_c"]}]))
        assert (await refusal(pending))[:2] == (404, "vector_store_not_found")
        assert engine.requests == []
        response = await client.responses.create(**request_fields(input=[{"role": "system", "content": "Hi"}]))
        assert [each.type for each in response.output] == ["message"], "no question, no search"
    async with gateway_harness(retrieval=False) as gateway, engines(1) as (engine,), sdk(gateway) as client:
        await gateway.publish(route("m", [engine.url], apis=(CHAT,)))
        assert (await refusal(client.responses.create(**request_fields())))[:2] == (403, "retrieval_disabled")


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
        request = asyncio.ensure_future(gateway.post("/v1/responses", request_fields()))
        await until("it searches", lambda: len(retrieval.file_searches) == 2)
        request.cancel()
        exchanges = gateway.services.exchanges
        await until("it is over", lambda: not exchanges)
        retrieval.gate.set()
        assert engine.requests == []
