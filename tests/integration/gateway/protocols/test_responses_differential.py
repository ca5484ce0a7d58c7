"""Why responses are ours: what llama-server's own say of the same conversation, and what they lack. See ADR 10."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openresponses_types.types as open_responses
import pydantic
import pytest

from tests.fakes.gateway_harness import GatewayHarness
from tests.support.installed_engines import Kind
from tests.support.responses import OPEN_EVENTS, Fields, check_response, folded
from tests.support.responses_gateway import engines, responses_gateway
from tests.support.worker_process import Worker

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
WEATHER: Fields = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
NEWS: Fields = {**WEATHER, "name": "get_news"}
CALLED: list[Fields] = [
    {"role": "user", "content": "Hi"},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
    {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"city":"Paris"}'},
    {"type": "function_call_output", "call_id": "c", "output": "sunny"},
]
CONVERSATIONS: dict[str, Fields] = {
    "a text": {"model": "plain", "input": "Hi"},
    "instructions and turns": {
        "model": "plain",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes?"}]},
            {"role": "user", "content": "Go on."},
        ],
    },
    "thoughts and a call": {"model": "agent", "input": "Hi", "tools": [WEATHER]},
    "a call that must be": {"model": "agent", "input": "Hi", "tools": [WEATHER], "tool_choice": "required"},
    "a tool's result": {"model": "agent", "input": CALLED, "tools": [WEATHER]},
}


@pytest.fixture(scope="module")
def made(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    with engines(kind, tmp_path_factory.mktemp("engines")) as workers:
        yield workers


@pytest.fixture
async def gateway(made: dict[str, Worker]) -> AsyncIterator[GatewayHarness]:
    async with responses_gateway(made) as built:
        yield built


def own(made: dict[str, Worker], fields: Fields, *, stream: bool = False) -> str:
    """llama-server's own answer, asked directly."""
    status, body = made[fields["model"]].request(
        "POST", "/v1/responses", {"temperature": 0, **fields, "stream": stream}
    )
    assert status == 200, body
    return body


async def ours(gateway: GatewayHarness, fields: Fields, *, stream: bool = False) -> bytes:
    body = {"temperature": 0, "store": False, **fields, "stream": stream}
    reply = await gateway.post("/v1/responses", **body)
    assert reply.status == 200, reply.text
    return reply.content


def visible(response: Fields) -> Any:
    """What a client sees of it: thoughts, text, calls, usage."""
    output = []
    for item in response["output"]:
        texts = "".join(part["text"] for part in item.get("content", ()))
        output.append((item["type"], texts, item.get("name"), item.get("arguments")))
    return output, {name: response["usage"][name] for name in ("input_tokens", "output_tokens", "total_tokens")}


def own_events(stream: str) -> list[Fields]:
    """Of llama-server's stream, which no `[DONE]` ends."""
    return [json.loads(part.partition("data: ")[2]) for part in stream.split("\n\n") if "data: " in part]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
async def test_a_client_sees_the_same(gateway: GatewayHarness, made: dict[str, Worker], conversation: str) -> None:
    fields = CONVERSATIONS[conversation]
    theirs = visible(json.loads(own(made, fields)))
    assert visible(json.loads(await ours(gateway, fields))) == theirs
    assert visible(folded(await ours(gateway, fields, stream=True))) == theirs
    assert visible(own_events(own(made, fields, stream=True))[-1]["response"]) == theirs


def lacking(model: type[pydantic.BaseModel], told: Fields) -> set[str]:
    try:
        model.model_validate_json(json.dumps(told))
    except pydantic.ValidationError as error:
        missing = [each["loc"] for each in error.errors() if each["type"] == "missing"]
        return {str(place[-1]) for place in missing if place[0] != "part" or place[1] == "OutputTextContent"}
    return set()


ABSENT = {
    "background", "created_at", "error", "frequency_penalty", "incomplete_details", "instructions", "max_output_tokens",
    "max_tool_calls", "metadata", "parallel_tool_calls", "presence_penalty", "previous_response_id",
    "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store", "temperature", "text",
    "tool_choice", "tools", "top_logprobs", "top_p", "truncation",
}  # fmt: skip
"""Of Open Responses' required fields, those that a response of llama-server's never has, or not from the beginning."""
OF_ITEM = {"sequence_number", "output_index"}
OF_PART = {*OF_ITEM, "content_index"}
OF_EVENTS = {
    "response.created": {"sequence_number", "completed_at", "model", "output", "usage", *ABSENT},
    "response.in_progress": {"sequence_number", "completed_at", "model", "output", "usage", *ABSENT},
    "response.output_item.added": OF_ITEM,
    "response.content_part.added": {*OF_PART, "annotations"},
    "response.output_text.delta": OF_PART,
    "response.output_text.done": OF_PART,
    "response.content_part.done": OF_PART,
    "response.function_call_arguments.delta": OF_ITEM,
    "response.output_item.done": OF_ITEM,
    "response.completed": {"sequence_number", "completed_at", "output_tokens_details", *ABSENT - {"created_at"}},
}
NEVER_SENT = {f"response.{end}" for end in ("function_call_arguments.done", "incomplete", "failed", "reasoning.done")}
"""Events that a stream of the conversations below must have, and llama-server knows none of them."""


async def test_what_llama_servers_own_lack(gateway: GatewayHarness, made: dict[str, Worker]) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for fields in CONVERSATIONS.values():
        for event in own_events(own(made, fields, stream=True)):
            if event["type"] != "response.reasoning_text.delta":  # OpenAI's name; Open Responses has another
                found[event["type"]] |= lacking(OPEN_EVENTS[event["type"]], event)
    assert found == OF_EVENTS
    assert found.keys().isdisjoint(NEVER_SENT)
    assert "[DONE]" not in own(made, CONVERSATIONS["a text"], stream=True)
    whole = json.loads(own(made, CONVERSATIONS["a text"]))
    assert lacking(open_responses.ResponseResource, whole) == {"output_tokens_details", *ABSENT} - {"created_at"}


async def test_what_llama_servers_own_get_wrong(gateway: GatewayHarness, made: dict[str, Worker]) -> None:
    cut = {"model": "plain", "input": "Hi", "max_output_tokens": 3}
    assert json.loads(own(made, cut))["status"] == "completed"
    response = json.loads(await ours(gateway, cut))
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})

    form = {"format": {"type": "json_schema", "name": "n", "schema": PARAMETERS}}
    shaped = {"model": "plain", "input": "Hi", "text": form}
    with pytest.raises(json.JSONDecodeError):
        json.loads(json.loads(own(made, shaped))["output"][0]["content"][0]["text"])
    text = json.loads(await ours(gateway, shaped))["output"][0]["content"][0]["text"]
    assert json.loads(text) == {"city": "Paris"}

    called = []
    for name in ("get_weather", "get_news"):
        choice = {"type": "function", "name": name}
        chosen = {"model": "agent", "input": "Hi", "tools": [WEATHER, NEWS], "tool_choice": choice}
        called.append(json.loads(own(made, chosen))["output"][-1]["name"])
        assert json.loads(await ours(gateway, chosen))["output"][-1]["name"] == name
    assert len(set(called)) == 1

    status, body = made["plain"].request("POST", "/v1/responses", {"input": "Hi", "previous_response_id": "resp_0"})
    assert status == 400, body
    custom = {"model": "plain", "input": "Hi", "tools": [{"type": "web_search"}]}
    assert "web_search" not in own(made, custom)
    reply = await gateway.post("/v1/responses", **custom)
    assert (reply.status, reply.error["param"]) == (400, "tools[0].type")
    check_response(response)
