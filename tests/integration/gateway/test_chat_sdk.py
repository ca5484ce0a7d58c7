"""Chat through the openai package, unmodified, sync and async, on real llama-servers and a real worker.

Thinking, tools, structured output, and the fields of newer clients. Every engine says an exactly known text.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from controller.artifacts.heads import Gguf
from controller.artifacts.read import read_artifact
from controller.observe.health import MODELS_PATH, parse_figures
from gateway.protocols.common.capabilities import check_length
from gateway.protocols.common.request import InferenceRequest
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.chat_engines import KINDS, Engine, tool
from tests.support.overflow_clients import check_overflow
from tests.support.stream_schemas import judge_streams
from worker.clockwork import CONTEXT, SENTENCE, SPECIAL, make_model

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

PARTS = (*SPECIAL, SENTENCE, "x", " ", "\n", "\u2581", "é", "您", "\u1fbe\u0308", "\x00", "<think>")
"""Of prompts: what vocabularies and templates treat in ways of their own."""
HI: list[Any] = [{"role": "user", "content": "Hi"}]


class Place(BaseModel):
    city: Literal["Paris"]
    rank: Literal[1]


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with ExitStack() as stack:
        made = KINDS[request.param](tmp_path_factory.mktemp("models"), stack)
        for each in made.workers.values():
            each.ready()
        yield made


@pytest.fixture
async def gateway(engine: Engine) -> AsyncIterator[GatewayHarness]:
    async with gateway_harness() as built:
        await built.publish(engine.model("thinks"), engine.model("plain"))
        yield built


class Sdk:
    """Either client of the package, asked alike."""

    def __init__(self, gateway: GatewayHarness, *, is_sync: bool) -> None:
        kind: Any = openai.OpenAI if is_sync else openai.AsyncOpenAI
        self._client = kind(base_url=gateway.url + "/v1", api_key="client-key", max_retries=0)
        self._completions = self._client.chat.completions
        self._is_sync = is_sync

    async def create(self, model: str = "thinks", messages: Any = HI, **fields: Any) -> Any:
        return await self._call(self._completions.create, model=model, messages=messages, temperature=0, **fields)

    async def chunks(self, model: str = "thinks", messages: Any = HI, **fields: Any) -> list[ChatCompletionChunk]:
        stream = await self.create(model, messages, stream=True, **fields)
        return await asyncio.to_thread(list, stream) if self._is_sync else [chunk async for chunk in stream]

    async def gathered(self, model: str = "thinks", **fields: Any) -> Any:
        """What the package makes of a stream (`client.chat.completions.stream`)."""
        stream = self._completions.stream(model=model, messages=HI, temperature=0, **fields)
        if self._is_sync:
            return await asyncio.to_thread(self._gather, stream)
        async with stream as events:
            return await events.get_final_completion()

    @staticmethod
    def _gather(stream: Any) -> Any:
        with stream as events:
            return events.get_final_completion()

    async def parse(self, model: str, form: type[BaseModel]) -> Any:
        """A structured answer, parsed by the package."""
        return await self._call(self._completions.parse, model=model, messages=HI, temperature=0, response_format=form)

    async def close(self) -> None:
        await self._call(self._client.close)

    async def _call(self, method: Any, **fields: Any) -> Any:
        return await (asyncio.to_thread(method, **fields) if self._is_sync else method(**fields))


@pytest.fixture(params=["sync", "async"])
async def sdk(gateway: GatewayHarness, request: pytest.FixtureRequest) -> AsyncIterator[Sdk]:
    made = Sdk(gateway, is_sync=request.param == "sync")
    yield made
    await made.close()


@asynccontextmanager
async def refused(code: str) -> AsyncIterator[None]:
    with pytest.raises(openai.BadRequestError) as caught:
        yield
    assert caught.value.code == code


def thought_in(part: Any) -> str:
    """What a message, or a part of one, tells of thoughts: the same under both names."""
    told = part.model_extra or {}
    assert told.get("reasoning") == told.get("reasoning_content")
    return told.get("reasoning") or ""


def joined(chunks: list[ChatCompletionChunk]) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Thought, text, and calls of a stream: id, name and arguments."""
    thought = text = ""
    calls: dict[int, list[str]] = {}
    for delta in [chunk.choices[0].delta for chunk in chunks if chunk.choices]:
        thought += thought_in(delta)
        text += delta.content or ""
        for part in delta.tool_calls or []:
            made = calls.setdefault(part.index, ["", "", ""])
            assert part.function is not None
            for place, more in enumerate((part.id, part.function.name, part.function.arguments)):
                made[place] += more or ""
    return thought, text, [(one, two, three) for one, two, three in calls.values()]


def calls_in(answer: Any) -> list[tuple[str, str, str]]:
    calls = answer.choices[0].message.tool_calls or []
    assert all(call.type == "function" for call in calls)
    return [(call.id, call.function.name, call.function.arguments) for call in calls]


def read(calls: list[tuple[str, str, str]]) -> list[tuple[str, Any]]:
    """Name and arguments of each."""
    assert len({call[0] for call in calls} - {""}) == len(calls), "each has an id of its own"
    return [(name, json.loads(arguments)) for _, name, arguments in calls]


THINKING: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"extra_body": {"thinking": "default"}}, True),
    ({"extra_body": {"thinking": "enabled"}}, True),
    ({"extra_body": {"thinking": "disabled"}}, False),
    ({"reasoning_effort": "none"}, False),
    ({"reasoning_effort": "low"}, True),
]


async def test_thinking_on_and_off_and_thoughts_under_both_names(engine: Engine, sdk: Sdk) -> None:
    for fields, thinks in THINKING:
        expected = (engine.thought if thinks else "", engine.spoken, engine.calls)
        answer = await sdk.create(**engine.asks, **fields)
        message = answer.choices[0].message
        assert (thought_in(message), (message.content or "").strip(), read(calls_in(answer))) == expected, fields
        thought, text, calls = joined(await sdk.chunks(**engine.asks, **fields))
        assert (thought, text.strip(), read(calls)) == expected, fields
    # With probabilities no stream is made of it, so the answer is the engine's own blocking one.
    if engine.backend == "llama_server":
        answer = await sdk.create(**engine.asks, logprobs=True)
        assert thought_in(answer.choices[0].message) == engine.thought
    async with refused("thinking_unsupported"):
        await sdk.create("plain", extra_body={"thinking": "disabled"})
    async with refused("invalid_request"):
        await sdk.create(extra_body={"thinking": "hard"})


async def test_a_prompt_that_is_too_long_is_told_as_each_client_knows_it(
    engine: Engine, gateway: GatewayHarness
) -> None:
    await check_overflow(gateway, "plain", 6 * CONTEXT, CONTEXT)


def test_no_prompt_is_refused_that_the_engine_finds_to_fit(engine: Engine, tmp_path: Path) -> None:
    make_model(tmp_path / "m.gguf")
    artifact = read_artifact("m.gguf", [tmp_path / "m.gguf"])
    assert isinstance(artifact, Gguf)
    dice = random.Random(0)
    for _ in range(3):
        parts = [dice.choice(PARTS) * dice.randint(1, 200) for _ in range(dice.randint(1, 9))]
        messages = [{"role": dice.choice(["user", "user", "assistant", "system"]), "content": part} for part in parts]
        fields: dict[str, Any] = {"messages": [*messages, *HI]}
        status, told = engine.workers["plain"].request("POST", "/v1/chat/completions/input_tokens", fields)
        assert status == 200, told
        tokens = json.loads(told)["input_tokens"]
        asked = InferenceRequest(json.dumps(fields).encode(), fields, "m", stream=False, wants_usage=False)
        check_length(asked, route("m", context_length=tokens, longest_token=artifact.longest_token))


def test_every_engine_tells_its_context_length(engine: Engine) -> None:
    for name, each in engine.workers.items():
        assert parse_figures(MODELS_PATH, each.request("GET", MODELS_PATH)[1]).context_length == CONTEXT, name


async def test_thoughts_of_earlier_answers_reach_the_template_by_either_name(engine: Engine, sdk: Sdk) -> None:
    async def prompt_tokens(**thought: str) -> int:
        turns = [*HI, {"role": "assistant", "content": "Hello", **thought}, *HI]
        return int((await sdk.create(engine.remembers, turns, max_tokens=1)).usage.prompt_tokens)

    without = await prompt_tokens()
    assert await prompt_tokens(reasoning="fox dog") == await prompt_tokens(reasoning_content="fox dog") > without


async def test_tools_are_called_and_refused_by_every_engine(engine: Engine, sdk: Sdk) -> None:
    for answer in (await sdk.create(**engine.asks), await sdk.gathered(**engine.asks)):
        assert answer.choices[0].finish_reason == "tool_calls"
        assert read(calls_in(answer)) == engine.calls
    # Some engines end such an answer only where its tokens do.
    many = engine.asks | engine.many
    for calls in (calls_in(await sdk.create(**many)), joined(await sdk.chunks(**many))[2]):
        assert len(read(calls[:2])) == 2, "parallel ones"
    unheard: dict[str, Any] = {"tools": [*engine.tools, tool("other", "Bonn")], "max_tokens": 60}
    assert not calls_in(await sdk.create(**unheard, tool_choice="none"))
    async with refused("invalid_request"):
        await sdk.create(**engine.asks | {"tool_choice": allowed("nothing")})


def allowed(*names: str) -> Any:
    """A choice that leaves these tools."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools}}


async def test_a_tool_that_must_be_called_is(engine: Engine, sdk: Sdk) -> None:
    # Of several, llama-server on its own calls another one than it is told to.
    tools = [tool("alpha", "Bonn"), tool("beta", "Rome")]
    for name, city in (("alpha", "Bonn"), ("beta", "Rome")):
        for choice in ({"type": "function", "function": {"name": name}}, allowed(name)):
            asked: dict[str, Any] = {"tools": tools, "tool_choice": choice, "max_tokens": 200}
            assert read(calls_in(await sdk.create(**asked)))[:1] == [(name, {"city": city})]
            assert read(joined(await sdk.chunks(**asked))[2])[:1] == [(name, {"city": city})]


async def test_functions_of_before_2023_and_custom_tools_are_called(engine: Engine, sdk: Sdk) -> None:
    beta = tool("beta", "Rome")["function"]
    asked: dict[str, Any] = {"functions": [beta, {"name": "other"}], "function_call": {"name": "beta"}}
    answer = (await sdk.create(**asked, max_tokens=200)).choices[0]
    assert (answer.finish_reason, answer.message.tool_calls) == ("function_call", None)
    assert (answer.message.function_call.name, json.loads(answer.message.function_call.arguments)) == (
        *("beta", {"city": "Rome"}),
    )
    deltas = [chunk.choices[0].delta.function_call for chunk in await sdk.chunks(**asked, max_tokens=200)]
    parts = [each for each in deltas if each is not None]
    assert "".join(each.name or "" for each in parts) == "beta"
    assert json.loads("".join(each.arguments or "" for each in parts)) == {"city": "Rome"}
    turns = [
        {"role": "assistant", "content": None, "function_call": answer.message.function_call.model_dump()},
        {"role": "function", "name": "beta", "content": "rain"},
    ]
    assert (await sdk.create("plain", [*HI, *turns], functions=[beta], function_call="none")).choices[
        0
    ].finish_reason == "stop"
    custom = [{"type": "custom", "custom": {"name": "shell"}}]
    choice = {"type": "custom", "custom": {"name": "shell"}}
    message = (await sdk.create(tools=custom, tool_choice=choice, max_tokens=100)).choices[0].message
    assert [(call.type, call.custom.name) for call in message.tool_calls] == [("custom", "shell")]


async def test_structured_output_is_parsed_and_streamed(sdk: Sdk) -> None:
    answer = await sdk.parse("plain", Place)
    assert answer.choices[0].message.parsed == Place(city="Paris", rank=1)
    assert answer.choices[0].finish_reason == "stop"
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"const": "Paris"}}}
    _, text, _ = joined(await sdk.chunks("plain", response_format=form))
    assert json.loads(text) == "Paris"


async def test_the_fields_of_newer_clients(sdk: Sdk) -> None:
    cut = await sdk.create("plain", max_completion_tokens=3)
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("The quick brown", "length")
    chunks = await sdk.chunks("plain", stream_options={"include_usage": True})
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [16]
    assert chunks[-1].choices == []
    assert all(chunk.usage is None for chunk in await sdk.chunks("plain"))
    answer = await sdk.create(
        "plain",
        service_tier="flex",
        prompt_cache_key="k",
        prompt_cache_retention="24h",
        safety_identifier="s",
        user="u",
        metadata={"a": "b"},
        store=True,
        verbosity="low",
        modalities=["text"],
        reasoning_effort="low",
        parallel_tool_calls=True,
        response_format={"type": "text"},
        n=1,
        logit_bias={},
    )
    assert answer.choices[0].message.content == SENTENCE
    counts = set()
    for role in ("developer", "system"):
        counted = await sdk.create("plain", [{"role": role, "content": "be brief"}, *HI], max_tokens=1)
        counts.add(counted.usage.prompt_tokens)
    assert len(counts) == 1, "templates know the one role as the other"


async def test_every_event_of_every_family_is_what_its_types_say(gateway: GatewayHarness, engine: Engine) -> None:
    assert (await judge_streams(gateway, "thinks", *engine.tools))[0] == "reasoning"
    assert await judge_streams(gateway, "plain") == ["message"]
