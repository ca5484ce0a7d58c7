"""Responses by clients as they are, from real engines that speak chat completions: the `openai` package, LangChain, and
agents with tools in both APIs. Every response and every event suits the published schemas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.messages.ai import add_ai_message_chunks
from langchain_openai import ChatOpenAI
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseReasoningItem

from tests.fakes.fake_controller import route
from tests.fakes.fake_scripted_engine import script, scripted
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.api_families import CHAT_EVENTS
from tests.support.installed_engines import needed
from tests.support.responses import Fields, check_response, folded
from tests.support.responses_gateway import engines, responses_gateway
from tests.support.scripted_model_file import DONE_SAID, SPOKEN, THOUGHT
from tests.support.worker_process import Worker
from worker.clockwork import COMPLETION_TOKENS, SENTENCE

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
WEATHER: Fields = {"type": "function", "name": "get_weather", "description": "It.", "parameters": PARAMETERS}
OTHER: Fields = {**WEATHER, "name": "get_news"}
FORM = {"type": "json_schema", "name": "n", "schema": PARAMETERS}
KNOWN = {"get_weather": lambda city: f"sunny in {city}"}
COLD: Fields = {"temperature": 0, "store": False}
Make = Callable[..., Awaitable[Any]]


class Weather(pydantic.BaseModel):
    city: Literal["Paris"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    needed("embedded")
    with engines("embedded", tmp_path_factory.mktemp("engines")) as workers:
        yield workers


@pytest.fixture
async def gateway(made: dict[str, Worker]) -> AsyncIterator[GatewayHarness]:
    async with responses_gateway(made) as built:
        yield built


@pytest.fixture
async def make(gateway: GatewayHarness) -> AsyncIterator[Make]:
    """The SDK's methods, unmodified: a response; with `by="stream"` what its helper for streams makes of one, with
    `by="parse"` one that is parsed, with `stream=True` the events."""
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:

        async def make(by: str = "create", **fields: Any) -> Any:
            fields = {**COLD, **fields}
            if by == "stream":
                async with client.responses.stream(**fields) as stream:
                    return await stream.get_final_response()
            response = await getattr(client.responses, by)(**fields)
            return [event async for event in response] if fields.get("stream") else response

        yield make


def seen(response: Fields) -> Fields:
    """It without what no two have in common. How much of a prompt was cached is one of these, and probabilities, which
    engines tell of a stream's text alone."""
    output = [{**item, "id": "", "call_id": ""} for item in response["output"]]
    for item in output:
        if item["type"] == "message":
            item["content"] = [{**part, "logprobs": None} for part in item["content"]]
    usage = {**response["usage"], "input_tokens_details": None}
    return {**response, "id": "", "created_at": 0, "completed_at": 0, "output": output, "usage": usage}


async def streamed(gateway: GatewayHarness, headers: dict[str, str] | None = None, **fields: Any) -> Fields:
    """The response of a stream, off the wire, its events checked."""
    body = {**COLD, **fields, "stream": True}
    reply = await gateway.post("/v1/responses", body, headers=headers)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    return folded(reply.content, is_open=headers is not None)


async def blocking(gateway: GatewayHarness, **fields: Any) -> Fields:
    response: Fields = (await gateway.post("/v1/responses", **{**COLD, **fields})).success
    check_response(response)
    return response


@pytest.mark.parametrize("model", ["plain", "worker"])
async def test_a_response_is_the_same_whole_and_streamed(make: Make, model: str) -> None:
    response: Response = await make(model=model, input="Hi", instructions="Be brief.")
    assert (response.output_text, response.model, response.status) == (SENTENCE, model, "completed")
    assert response.usage is not None
    assert response.usage.output_tokens == COMPLETION_TOKENS
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    events = await make(model=model, input="Hi", instructions="Be brief.", stream=True)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == SENTENCE
    assert seen(events[-1].response.to_dict()) == seen(response.to_dict())
    gathered = await make(by="stream", model=model, input=[{"role": "user", "content": "Hi"}])
    assert gathered.output_text == SENTENCE


async def test_an_answer_that_must_have_a_form(make: Make) -> None:
    for by in ("parse", "stream"):
        response = await make(by=by, model="plain", input="Where?", text_format=Weather)
        assert response.output_parsed == Weather(city="Paris")
        assert response.text.format.name == "Weather"
    plain = await make(model="plain", input="Where?", text={"format": {"type": "json_object"}}, max_output_tokens=30)
    assert plain.output_text.startswith("{")


async def test_thoughts_text_and_a_call(make: Make) -> None:
    body: Fields = {"model": "agent", "input": "Hi", "tools": [WEATHER], "reasoning": {"effort": "low"}}
    for response in (await make(**body), await make(by="stream", **body)):
        thought, message, call = response.output
        assert isinstance(thought, ResponseReasoningItem)
        assert [part.text for part in thought.content or ()] == [THOUGHT]
        assert message.content[0].text == SPOKEN
        assert isinstance(call, ResponseFunctionToolCall)
        assert (call.name, json.loads(call.arguments), call.status) == ("get_weather", {"city": "Paris"}, "completed")
        assert response.reasoning.effort == "low"
    events = await make(**body, stream=True)
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert json.loads("".join(deltas)) == {"city": "Paris"}
    assert "".join(event.delta for event in events if event.type == "response.reasoning_text.delta") == THOUGHT


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ({"type": "function", "name": "get_weather"}, "get_weather"),
        ({"type": "function", "name": "get_news"}, "get_news"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_news"}]},
            "get_news",
        ),
        ({"type": "custom", "name": "shell"}, "shell"),
    ],
)
async def test_the_tool_that_is_chosen_is_called(gateway: GatewayHarness, choice: Fields, called: str) -> None:
    shell = {"type": "custom", "name": "shell", "description": "Runs it."}
    body: Fields = {"model": "agent", "input": "Hi", "tools": [WEATHER, OTHER, shell], "tool_choice": choice}
    body["max_output_tokens"] = 60  # the shell's text has no end of its own
    for response in (await blocking(gateway, **body), await streamed(gateway, **body)):
        assert response["tool_choice"] == choice
        (call,) = [item for item in response["output"] if "call_id" in item]
        assert call["name"] == called
        assert (call["type"], "input" in call) == (
            ("custom_tool_call", True) if called == "shell" else ("function_call", False)
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "plain", "input": "Hi", "max_output_tokens": 3},
        {"model": "agent", "input": "Hi", "max_output_tokens": 2},
        {"model": "plain", "input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"model": "plain", "input": "Hi", "stop": "fox", "seed": 3},
        {"model": "plain", "input": [{"role": "developer", "content": "x"}, {"role": "user", "content": "Hi"},
                                     {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Hi"}]},
        {"model": "plain", "input": "Hi", "text": {"format": FORM}},
        {"model": "agent", "input": "Hi", "tools": [WEATHER], "instructions": "Be brief."},
        {"model": "worker", "input": "Hi", "max_output_tokens": 3},
    ],
)  # fmt: skip
async def test_a_stream_is_the_blocking_answer(gateway: GatewayHarness, fields: Fields) -> None:
    whole = await blocking(gateway, **fields)
    assert seen(await streamed(gateway, **fields)) == seen(whole)
    opened = await streamed(gateway, {"OpenResponses-Version": "2026-04-24"}, **fields)
    assert seen({**opened, "text": None}) == seen({**whole, "text": None})
    if "text" in fields:
        assert json.loads(whole["output"][0]["content"][0]["text"]) == {"city": "Paris"}
    if limit := fields.get("max_output_tokens"):
        assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert whole["usage"]["output_tokens"] == limit
        assert whole["output"][-1]["status"] == "incomplete"
    if "include" in fields:
        for response in (whole, opened):
            told = response["output"][0]["content"][0]["logprobs"]
            assert "".join(token["token"] for token in told) == SENTENCE
            assert {len(token["top_logprobs"]) for token in told} == {2}
    if "stop" in fields:
        assert whole["output"][0]["content"][0]["text"] == "The quick brown "


async def test_what_is_refused_names_its_place(make: Make) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    cases: list[tuple[Fields, str, str]] = [
        ({"input": [{"role": "user", "content": [image]}]}, "modality_unsupported", "input[0].content[0]"),
        ({"tools": [{"type": "web_search"}]}, "invalid_request", "tools[0].type"),
        ({"extra_body": {"thinking": "disabled"}}, "thinking_unsupported", "thinking"),
        ({"input": []}, "invalid_request", "input"),
    ]
    for fields, code, place in cases:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                await make(**{"model": "plain", "input": "Hi", "stream": stream, **fields})
            assert (caught.value.code, caught.value.param) == (code, place)
    with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
        await make(model="plain", input="x" * 9000)
    assert caught.value.code == "context_length_exceeded"


async def test_tokens_of_the_input(gateway: GatewayHarness) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        longer: Fields = {"input": [{"role": "user", "content": "Hi, all of you"}], "tools": [WEATHER]}
        asked: tuple[Fields, ...] = ({"input": "Hi"}, longer)
        for fields in asked:
            counted = await client.responses.input_tokens.count(model="agent", **fields)
            made = await client.responses.create(model="agent", **fields, max_output_tokens=1)
            assert counted.object == "response.input_tokens"
            assert made.usage is not None
            assert counted.input_tokens == made.usage.input_tokens


async def test_an_engine_that_breaks_off_raises_what_broke() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    part = CHAT_EVENTS[0]
    async with (
        scripted(script(head + b"%x\r\n%b\r\n" % (len(part), part), then="close")) as engine,
        gateway_harness() as gateway,
    ):
        await gateway.publish(route("m", [engine.url], apis=("/v1/chat/completions",)))
        said: list[Any] = []

        async def hear() -> None:
            async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
                stream = await client.responses.create(model="m", input="Hi", stream=True)
                async for event in stream:
                    said.append(event)  # noqa: PERF401 - it is to hold what came before the end

        with pytest.raises(openai.APIError) as caught:
            await hear()
        assert [event.delta for event in said if event.type == "response.output_text.delta"] == ["Hi"]
        assert caught.value.code == "engine_disconnected"
        kept = await gateway.client.get(f"{gateway.url}/v1/responses/{said[0].response.id}")
        response = await kept.json()
    check_response(response)
    assert (response["status"], response["error"]["reason"]) == ("failed", "engine_disconnected")
    assert response["output"][0]["content"][0]["text"] == "Hi"


async def test_an_agent_by_responses(make: Make) -> None:
    items: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    for turn in range(5):
        response = await make(by="create" if turn % 2 else "stream", model="agent", input=items, tools=[WEATHER])
        items += [item.to_dict() for item in response.output]
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            break
        for call in calls:
            output = KNOWN[call.name](**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
    assert response.output_text == DONE_SAID
    kinds = [item.get("type", "message") for item in items]
    assert kinds == ["message", "reasoning", "message", "function_call", "function_call_output", "message"]


async def test_an_agent_by_chat(gateway: GatewayHarness) -> None:
    tool = {"type": "function", "function": {name: WEATHER[name] for name in ("name", "description", "parameters")}}
    messages: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        for _ in range(5):
            asked: Fields = {"model": "agent", "messages": messages, "tools": [tool], "temperature": 0}
            async with client.chat.completions.stream(**asked) as stream:
                message = (await stream.get_final_completion()).choices[0].message
            messages.append(message.to_dict())
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                output = KNOWN[call.function.name](**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    assert message.content == DONE_SAID
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]


async def test_openais_client_that_blocks(gateway: GatewayHarness) -> None:
    def use() -> None:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
            asked: Fields = {**COLD, "model": "plain", "input": "Hi"}
            assert client.responses.create(**asked).output_text == SENTENCE
            events = list(client.responses.create(**asked, stream=True))
            assert "".join(each.delta for each in events if each.type == "response.output_text.delta") == SENTENCE
            with client.responses.stream(**asked, text_format=Weather) as stream:
                assert stream.get_final_response().output_parsed == Weather(city="Paris")
            assert client.responses.parse(**asked, text_format=Weather).output_parsed == Weather(city="Paris")
            with pytest.raises(openai.NotFoundError):
                client.responses.create(**{**asked, "model": "nobody"})

    await asyncio.to_thread(use)


@pytest.mark.parametrize("by_responses", [True, False])
async def test_langchain_reads_responses_and_chats(gateway: GatewayHarness, by_responses: bool) -> None:
    def model(name: str) -> ChatOpenAI:
        return ChatOpenAI(
            model=name,
            base_url=f"{gateway.url}/v1",
            api_key=pydantic.SecretStr("none"),
            temperature=0,
            max_retries=0,
            use_responses_api=by_responses,
        )

    response = await model("plain").ainvoke("Hi")
    assert response.text == SENTENCE
    assert response.usage_metadata is not None
    assert response.usage_metadata["output_tokens"] == COMPLETION_TOKENS
    chunks = [chunk async for chunk in model("plain").astream("Hi")]
    assert "".join(chunk.text for chunk in chunks) == SENTENCE
    parsed = await model("plain").with_structured_output(Weather, method="json_schema").ainvoke("Where?")
    assert parsed == Weather(city="Paris")
    with pytest.raises(openai.BadRequestError):
        await model("plain").ainvoke("x" * 9000)

    tool = {"type": "function", "function": {name: WEATHER[name] for name in ("name", "description", "parameters")}}
    agent = model("agent").bind_tools([tool])
    asked: list[Any] = [HumanMessage("How is the weather?")]
    called = await agent.ainvoke(asked)
    assert isinstance(called, AIMessage)
    assert [(call["name"], call["args"]) for call in called.tool_calls] == [("get_weather", {"city": "Paris"})]
    first, *rest = [part async for part in agent.astream(asked)]
    assert isinstance(first, AIMessageChunk)
    summed = add_ai_message_chunks(first, *(part for part in rest if isinstance(part, AIMessageChunk)))
    assert [(call["name"], call["args"]) for call in summed.tool_calls] == [("get_weather", {"city": "Paris"})]
    answers: tuple[AIMessage, ...] = (called, summed)
    for said in answers:
        result = ToolMessage("sunny", tool_call_id=said.tool_calls[0]["id"])
        assert (await agent.ainvoke([*asked, said, result])).text == DONE_SAID
