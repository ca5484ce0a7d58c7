"""The `anthropic` package, unmodified, against a gateway in front of real engines that speak chat completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import anthropic
import pydantic
import pytest
from anthropic.types import Message, MessageParam, ToolParam

from contract.admin import Capabilities
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness
from tests.support.installed_engines import Kind
from tests.support.messages_gateway import TOKEN, client_of, llama_servers, messages_gateway, worker_of_ours
from tests.support.messages_schema import checked_events, checked_message
from tests.support.queueing import key
from tests.support.scripted_model_file import SPOKEN, THOUGHT
from tests.support.worker_process import Worker
from worker.clockwork import COMPLETION_TOKENS, SENTENCE

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

HI: list[MessageParam] = [{"role": "user", "content": "Hi"}]
COLD: Any = {"extra_body": {"temperature": 0}}
SCHEMA: dict[str, object] = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
SUM: dict[str, object] = {"type": "object", "properties": {"x": {"enum": [[1, 2]]}}, "required": ["x"]}
WEATHER: ToolParam = {"name": "get_weather", "input_schema": SCHEMA}
TOOLS: list[ToolParam] = [WEATHER, {"name": "sum", "input_schema": SUM}]
YES: Any = {"type": "text", "text": "Yes?"}
NEWS: Any = {"type": "text", "media_type": "text/plain", "data": "News"}
PNG: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


@pytest.fixture(scope="module")
def servers(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    with llama_servers(kind, tmp_path_factory.mktemp("servers")) as made:
        yield made


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker_of_ours(tmp_path_factory.mktemp("worker")) as made:
        yield made


@pytest.fixture
async def gateway(servers: dict[str, Worker], worker: Worker) -> AsyncIterator[GatewayHarness]:
    async with messages_gateway(servers, worker) as built:
        yield built


@pytest.fixture
async def client(gateway: GatewayHarness) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with client_of(gateway) as made:
        yield made


def seen(message: Message) -> dict[str, Any]:
    """A message without what no two have in common."""
    checked_message(message.to_dict())
    fields = message.to_dict()
    usage = message.usage
    cached = usage.cache_read_input_tokens or 0
    blocks = [{**block, "id": ""} if "id" in block else block for block in fields["content"]]  # type: ignore[attr-defined]
    counted = (usage.input_tokens + cached, usage.output_tokens)
    return {**fields, "id": "", "content": blocks, "usage": counted, "stop_details": None}


async def both(client: anthropic.AsyncAnthropic, **body: Any) -> Message:
    """The message of a blocking call, after a look whether a stream comes to the same."""
    body = {"max_tokens": 60, "messages": HI, **COLD, **body}
    blocking: Message = await client.messages.create(**body)
    async with client.messages.stream(**body) as stream:
        streamed = await stream.get_final_message()
    assert seen(streamed) == seen(blocking)
    assert streamed.id != blocking.id
    assert streamed.id.startswith("msg_")
    return blocking


@pytest.mark.parametrize("model", ["plain", "caller", "worker"])
async def test_the_first_event_of_a_stream_tells_the_prompts_tokens(
    client: anthropic.AsyncAnthropic, model: str
) -> None:
    body: Any = {"model": model, "system": "You help.", "messages": [{"role": "user", "content": "a" * 300}]}
    count = await client.messages.count_tokens(**body)
    for _ in range(2):  # the second time, llama-server has the prompt in its cache
        async with client.messages.stream(**body, max_tokens=20) as stream:
            events = [event async for event in stream]
        start, end = events[0], events[-1]
        assert start.type == "message_start"
        assert end.type == "message_stop"
        usages = start.message.usage, end.message.usage
        inputs = [(usage.input_tokens, usage.cache_read_input_tokens or 0) for usage in usages]
        assert inputs[0] == inputs[1]
        assert (sum(inputs[0]), usages[0].output_tokens) == (count.input_tokens, 0)


@pytest.mark.parametrize("model", ["plain", "worker"])
async def test_a_message_is_answered_with_text_and_usage(client: anthropic.AsyncAnthropic, model: str) -> None:
    message = await both(client, model=model)
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": SENTENCE}]
    assert (message.model, message.stop_reason, message.stop_sequence) == (model, "end_turn", None)
    count = await client.messages.count_tokens(model=model, messages=HI)
    assert seen(message)["usage"] == (count.input_tokens, COMPLETION_TOKENS)


async def test_the_package_knows_the_requests_id(client: anthropic.AsyncAnthropic) -> None:
    message = await client.messages.create(model="plain", max_tokens=50, messages=HI)
    assert str(message._request_id).startswith("req-")
    with pytest.raises(anthropic.NotFoundError) as caught:
        await client.messages.create(model="none", max_tokens=50, messages=HI)
    assert str(caught.value.request_id).startswith("req-")


async def test_thoughts_text_and_a_call(client: anthropic.AsyncAnthropic) -> None:
    message = await both(client, model="caller", tools=[WEATHER], tool_choice={"type": "any"})
    thought, text, call = message.content
    assert thought.to_dict() == {"type": "thinking", "thinking": THOUGHT, "signature": ""}
    assert text.to_dict() == {"type": "text", "text": SPOKEN}
    assert call.type == "tool_use"
    assert (call.name, call.input, message.stop_reason) == ("get_weather", {"city": "Paris"}, "tool_use")


@pytest.mark.parametrize(("model", "text"), [("caller", SPOKEN), ("worker", SENTENCE)])
async def test_an_agent_with_tools(client: anthropic.AsyncAnthropic, model: str, text: str) -> None:
    # `caller` calls whenever it may; told not to, it goes on as if to call, which the stop sequence ends.
    messages: list[MessageParam] = [{"role": "user", "content": "How is the weather?"}]
    body: Any = {"model": model, "max_tokens": 60, "tools": TOOLS, **COLD}
    results = []
    for more in (
        {"tool_choice": {"type": "tool", "name": "get_weather"}},
        {"tool_choice": {"type": "tool", "name": "sum"}},
        {"tool_choice": {"type": "none"}, "stop_sequences": ["[TOOL_CALLS]"]},
    ):
        async with client.messages.stream(**body, messages=messages, **more) as stream:
            message = await stream.get_final_message()
        calls = [block for block in message.content if block.type == "tool_use"]
        messages.append({"role": "assistant", "content": message.content})
        if message.stop_reason != "tool_use":
            break
        results += [(call.name, call.input) for call in calls]
        content: Any = [
            {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Rain"}]}
            for call in calls
        ]
        messages.append({"role": "user", "content": [*content, {"type": "text", "text": "Go on."}]})
    assert results == [("get_weather", {"city": "Paris"}), ("sum", {"x": [1, 2]})]
    assert message.stop_reason == ("stop_sequence" if model == "caller" else "end_turn")
    assert message.content[-1].to_dict() == {"type": "text", "text": text}


async def test_the_packages_own_agent(client: anthropic.AsyncAnthropic) -> None:
    asked = []

    @anthropic.beta_async_tool
    async def get_weather(n: int) -> str:
        """The weather."""
        asked.append(n)
        return "Rain"

    runner = client.beta.messages.tool_runner(
        model="caller", max_tokens=100, tools=[get_weather], messages=[{"role": "user", "content": "Hi"}],
        max_iterations=2, **COLD,
    )  # fmt: skip
    messages = [message async for message in runner]
    assert [message.stop_reason for message in messages] == ["tool_use", "tool_use"]
    assert len(asked) == 2


class Place(pydantic.BaseModel):
    city: Literal["Paris"]


@pytest.mark.parametrize("model", ["plain", "worker"])
async def test_structured_output_of_messages_is_parsed(client: anthropic.AsyncAnthropic, model: str) -> None:
    parsed = await client.messages.parse(
        model=model, max_tokens=60, messages=HI, output_format=Place, extra_body={"temperature": 0}
    )
    assert parsed.parsed_output == Place(city="Paris")
    message = await both(client, model=model, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert json.loads(message.content[0].to_dict()["text"]) == {"city": "Paris"}  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["plain", "worker"])
async def test_a_message_says_why_it_stopped(client: anthropic.AsyncAnthropic, model: str) -> None:
    short = await both(client, model=model, max_tokens=3)
    assert (short.stop_reason, short.content[0].to_dict()["text"]) == ("max_tokens", "The quick brown")
    ended = await both(client, model=model, stop_sequences=["never", " fox"])
    assert (ended.stop_reason, ended.stop_sequence) == ("stop_sequence", " fox")
    assert ended.content[0].to_dict()["text"] == "The quick brown"


BEGUN = [
    ("plain", "The quick brown", SENTENCE.removeprefix("The quick brown")),
    # After half a word the model begins the sentence once more, and so as it was begun for it.
    ("plain", "The quick brown fox j", SENTENCE),
    # Our worker does not go on: it answers anew.
    ("worker", "The quick brown", SENTENCE),
]


@pytest.mark.parametrize(("model", "begun", "text"), BEGUN)
async def test_an_answer_that_was_begun(client: anthropic.AsyncAnthropic, model: str, begun: str, text: str) -> None:
    messages: list[MessageParam] = [*HI, {"role": "assistant", "content": begun}]
    message = await both(client, model=model, messages=messages)
    assert message.content[0].to_dict()["text"] == text
    count = await client.messages.count_tokens(model=model, messages=messages)
    assert seen(message)["usage"][0] == count.input_tokens


async def test_a_conversation_and_its_count(client: anthropic.AsyncAnthropic) -> None:
    body: Any = {
        "model": "plain",
        "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            *HI,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "x"}, YES]},
            {"role": "user", "content": [{"type": "document", "source": NEWS}]},
        ],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }  # fmt: skip
    message = await both(client, **body, metadata={"user_id": "u1"}, service_tier="auto")
    assert message.content[0].to_dict()["text"] == SENTENCE
    count = await client.messages.count_tokens(**body)
    # Each message has two marks beside its text, which this vocabulary has as bytes, and the answer's begins with one.
    assert count.input_tokens == len("Be kind.HiYes?News") + 4 * 2 + 1
    assert seen(message)["usage"] == (count.input_tokens, COMPLETION_TOKENS)


async def test_the_packages_client_that_blocks(gateway: GatewayHarness) -> None:
    def use() -> None:
        with anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
            asked: Any = {"model": "plain", "max_tokens": 60, "messages": HI}
            assert client.messages.create(**asked).content[0].to_dict()["text"] == SENTENCE
            with client.messages.stream(**asked) as stream:
                assert "".join(stream.text_stream) == SENTENCE
            assert client.messages.count_tokens(model="plain", messages=HI).input_tokens == 5
            assert client.beta.messages.create(**asked, betas=["context-1m-2025-08-07"]).stop_reason == "end_turn"
            with pytest.raises(anthropic.NotFoundError):
                client.messages.create(**{**asked, "model": "nobody"})

    await asyncio.to_thread(use)


async def test_a_key_is_taken_as_the_package_sends_it(servers: dict[str, Worker], gateway: GatewayHarness) -> None:
    url, chat = f"http://127.0.0.1:{servers['plain'].port}", ("/v1/chat/completions",)
    model = route("m", [url], token=TOKEN, served_name="inner-plain", apis=chat)
    await gateway.publish(model, keys=(key("alice"),))
    by_token = anthropic.AsyncAnthropic(base_url=gateway.url, auth_token="secret-alice", api_key=None, max_retries=0)
    for made in (client_of(gateway, "secret-alice"), by_token):
        async with made as client:
            message = await client.messages.create(model="m", max_tokens=60, messages=HI)
            assert message.content[0].to_dict()["text"] == SENTENCE
    async with client_of(gateway, "wrong") as stranger:
        with pytest.raises(anthropic.AuthenticationError):
            await stranger.messages.create(model="m", max_tokens=60, messages=HI)


REFUSED: list[tuple[dict[str, Any], str, str | None]] = [
    ({"messages": [{"role": "user", "content": [PNG]}]}, "modality_unsupported", "messages[0].content[0]"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "invalid_request", "tools[0].type"),
    ({"extra_body": {"thinking": "enabled"}}, "thinking_unsupported", "thinking"),
    ({"extra_body": {"max_tokens": None}}, "invalid_request", "max_tokens"),
    ({"messages": [{"role": "user", "content": "x" * 9000}]}, "context_length_exceeded", None),
]


async def test_refusals_are_the_packages_own_errors(client: anthropic.AsyncAnthropic) -> None:
    for stream in (False, True):
        for asked, code, param in REFUSED:
            with pytest.raises(anthropic.BadRequestError) as refused:
                await client.messages.create(
                    **{"model": "plain", "max_tokens": 9, "messages": HI, "stream": stream, **asked}
                )
            body: Any = refused.value.body
            assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
            assert (body["error"]["code"], body["error"].get("param")) == (code, param)
            assert body["request_id"] == refused.value.response.headers["x-request-id"]


async def test_an_engines_failure_is_the_packages_own_error(
    servers: dict[str, Worker], gateway: GatewayHarness
) -> None:
    seeing = Capabilities(modalities=("text", "image"))
    url = f"http://127.0.0.1:{servers['plain'].port}"
    chat = ("/v1/chat/completions",)
    await gateway.publish(route("m", [url], token=TOKEN, served_name="inner-plain", apis=chat, capabilities=seeing))
    async with client_of(gateway) as client:
        with pytest.raises(anthropic.InternalServerError, match="image input is not supported") as failed:
            await client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": [PNG]}])
        assert failed.value.body["error"]["type"] == "api_error"  # type: ignore[index]
        with pytest.raises(anthropic.APIStatusError) as lacking:
            await client.messages.count_tokens(model="m", messages=HI)
        assert lacking.value.body["error"]["code"] == "not_supported"  # type: ignore[index]


STREAMS: list[dict[str, Any]] = [
    {"model": "plain"},
    {"model": "plain", "stop_sequences": ["fox"]},
    {"model": "caller", "tools": TOOLS, "tool_choice": {"type": "any"}},
    {"model": "worker", "tools": TOOLS, "tool_choice": {"type": "any"}},
]


async def test_every_event_is_as_published(gateway: GatewayHarness) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a-2025-01-01,b-2026-01-01", "x-api-key": "whoever"}
    for asked in STREAMS:
        body = {"max_tokens": 60, "messages": HI, "temperature": 0, "stream": True, **asked}
        reply = await gateway.post("/v1/messages?beta=true", body, headers=headers)
        assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert checked_events(reply.content)[-1] == {"type": "message_stop"}
