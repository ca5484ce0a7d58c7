"""`rag` of chat completions and messages: what is searched, what the engine gets, and what the answer cites."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from anthropic.types import CitationsSearchResultLocation, TextBlock

from tests.fakes.fake_controller import route
from tests.fakes.fake_retrieval import FakeRetrieval, fake_retrieval, hit
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support.http_client import PendingReply

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
        retrieval.hits = [
            hit(1, "Coal is in the shed."),
            hit(2, "Tea is in the kitchen."),
            hit(3, "The shed.", page=7),
        ]
        async with gateway_harness(retrieval_url=retrieval.url) as gateway, engines(1) as (engine,):
            engine.words = ANSWER.split()
            await gateway.publish(route("m", [engine.url], apis=(CHAT,)))
            yield gateway, engine, retrieval


def chat(gateway: GatewayHarness, **fields: Any) -> PendingReply:
    """Alice's question."""
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
        async with gateway.post(CHAT, body) as answer:
            assert answer.status == 200
            events = [line[6:] for line in (await answer.text()).splitlines() if line.startswith("data: ")]
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


async def test_passages_fit_the_tokens_that_are_left_for_them() -> None:
    async with grounded() as (gateway, engine, retrieval):
        retrieval.hits = [hit(1, "x" * 150), hit(2, "y" * 60), hit(3, "z")]
        reply = await chat(gateway, rag={"max_tokens": 50})
        assert (reply.status, [source["number"] for source in reply.body["sources"]]) == (200, [1])
        assert "yyy" not in json.dumps(engine.requests[0].body)


async def test_halves_of_surrogate_pairs_are_no_text_to_search_for() -> None:
    async with grounded() as (gateway, _, retrieval):
        messages = [{"role": "user", "content": "hi \ud800"}]
        body = json.dumps({"model": "m", "messages": messages, "rag": {"filter": {"a": "\udfff"}}})
        headers = {"content-type": "application/json"}
        async with gateway.request("POST", CHAT, headers=headers, data=body) as answer:
            assert answer.status == 200, await answer.text()
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
