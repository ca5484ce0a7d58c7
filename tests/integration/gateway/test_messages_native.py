"""The same conversation on the same model, through an engine's own messages and through ours: what comes to the same,
and why llama-server's own are not used."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pydantic
import pytest
from anthropic.types import ThinkingBlock, ToolUseBlock

from tests.fakes.gateway_harness import GatewayHarness
from tests.support.installed_engines import Kind
from tests.support.messages_gateway import llama_servers, messages_gateway
from tests.support.messages_schema import checked_events, checked_message
from tests.support.worker_process import Worker

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

Fields = dict[str, Any]

HI: list[Fields] = [{"role": "user", "content": "Hi"}]
COLD: Fields = {"messages": HI, "max_tokens": 60, "temperature": 0}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Now.", "input_schema": SCHEMA}
SUM = {"name": "sum", "input_schema": {"type": "object", "properties": {"x": {"enum": [[1, 2]]}}, "required": ["x"]}}
CALLED: Fields = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}}
RESULT: Fields = {"type": "tool_result", "tool_use_id": "t1", "content": "Rain"}


@pytest.fixture(scope="module")
def servers(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    with llama_servers(kind, tmp_path_factory.mktemp("servers")) as made:
        yield made


@pytest.fixture
async def gateway(servers: dict[str, Worker]) -> AsyncIterator[GatewayHarness]:
    async with messages_gateway(servers) as built:
        yield built


async def create(gateway: GatewayHarness, model: str, asked: Fields) -> Fields:
    message: Fields = (await gateway.post("/v1/messages", model=model, **asked)).success
    return message


async def stream(gateway: GatewayHarness, model: str, asked: Fields) -> bytes:
    reply = await gateway.post("/v1/messages", model=model, stream=True, **asked)
    assert reply.status == 200, reply.body
    return reply.content


def visible(message: Fields) -> Fields:
    """A message without what no two have in common, and without the engine's own name for the model."""
    usage = message["usage"]
    counted = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0), usage["output_tokens"]
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    ended = message["stop_reason"], message["stop_sequence"]
    return {"content": blocks, "usage": counted, "ended": ended}


def events_of(stream: bytes) -> list[Fields]:
    return [json.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: ")]


def text_by_kind(stream: bytes) -> dict[str, str]:
    """What its deltas say, kind by kind."""
    deltas = [event["delta"] for event in events_of(stream) if event["type"] == "content_block_delta"]
    kinds = ("thinking", "text", "partial_json")
    return {kind: "".join([delta.get(kind, "") for delta in deltas]) for kind in kinds}


SAME: list[tuple[str, Fields]] = [
    ("plain", COLD),
    ("plain", {**COLD, "max_tokens": 3}),
    ("plain", {**COLD, "system": "Be kind.", "top_k": 5, "top_p": 0.9}),
    (
        "plain",
        {**COLD, "messages": [*HI, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "No."}]},
    ),
    ("plain", {**COLD, "temperature": 1.5, "seed": 7, "max_tokens": 20, "top_k": 1}),
    ("caller", {**COLD, "max_tokens": 9}),
    ("caller", {**COLD, "tools": [WEATHER], "tool_choice": {"type": "any"}}),
    ("caller", {**COLD, "tools": [WEATHER, SUM], "tool_choice": {"type": "auto"}}),
    (
        "caller",
        {
            **COLD,
            "tools": [WEATHER],
            "messages": [*HI, {"role": "assistant", "content": [CALLED]}, {"role": "user", "content": [RESULT]}],
        },
    ),
]


async def test_both_ways_come_to_the_same(gateway: GatewayHarness) -> None:
    for model, asked in SAME:
        native, ours = await create(gateway, f"native-{model}", asked), await create(gateway, model, asked)
        checked_message(native)
        checked_message(ours)
        assert visible(ours) == visible(native), asked
        checked_events(told := await stream(gateway, model, asked))
        assert text_by_kind(told) == text_by_kind(await stream(gateway, f"native-{model}", asked)), asked


@pytest.mark.parametrize("model", ["plain", "caller"])
async def test_both_ways_count_the_same(gateway: GatewayHarness, model: str) -> None:
    conversation = [*HI, {"role": "assistant", "content": [CALLED]}, {"role": "user", "content": [RESULT]}]
    for asked in (
        {"messages": HI},
        {"messages": HI, "system": "Be kind."},
        {"messages": conversation, "tools": [WEATHER]},
    ):
        ours = (await gateway.post("/v1/messages/count_tokens", model=model, **asked)).result
        assert (await gateway.post("/v1/messages/count_tokens", model=f"native-{model}", **asked)).result == ours
        assert ours[1].keys() == {"input_tokens"}


async def test_what_llama_servers_own_lose(gateway: GatewayHarness) -> None:
    """Each of these is a reason for `api_matrix.SERVING_OPTIONS` to translate. Where one fails, llama-server has
    learned."""

    async def last_block(model: str, **more: Any) -> Any:
        return (await create(gateway, model, {**COLD, **more}))["content"][-1]

    named: Fields = {"tools": [WEATHER, SUM], "tool_choice": {"type": "tool", "name": "get_weather"}}
    assert (await last_block("caller", **named))["name"] == "get_weather"
    assert (await last_block("native-caller", **named))["name"] == "sum"
    none: Fields = {"tools": [WEATHER], "tool_choice": {"type": "none"}}
    assert (await last_block("caller", **none))["type"] == "text"
    assert (await last_block("native-caller", **none))["type"] == "tool_use"
    form: Fields = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    assert (await last_block("plain", **form))["text"].startswith("{")
    assert (await last_block("native-plain", **form))["text"].startswith("The quick")
    stop = {**COLD, "stop_sequences": ["fox"]}
    assert visible(await create(gateway, "plain", stop))["ended"] == ("stop_sequence", "fox")
    assert visible(await create(gateway, "native-plain", stop))["ended"] == ("end_turn", "fox")
    news = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "News"}}
    document = [{"role": "user", "content": [{"type": "text", "text": "Hi"}, news]}]
    for model, more in (("plain", len("\nNews")), ("native-plain", 0)):
        counts = [
            (await gateway.post("/v1/messages/count_tokens", model=model, messages=messages)).body["input_tokens"]
            for messages in (HI, document)
        ]
        assert counts[1] == counts[0] + more
    begun: Fields = {"messages": [*HI, {"role": "assistant", "content": "The quick"}]}
    assert (await last_block("plain", **begun))["text"].startswith(" brown")
    assert (await last_block("native-plain", **begun))["text"].startswith("The quick brown")


async def test_llama_servers_own_streams_are_not_as_published(gateway: GatewayHarness) -> None:
    body = {**COLD, "tools": [WEATHER], "tool_choice": {"type": "any"}}
    checked_events(await stream(gateway, "caller", body))
    told = events_of(await stream(gateway, "native-caller", body))
    begun = {event["content_block"]["type"]: event["content_block"] for event in told if "content_block" in event}
    for block, kind, field in (("thinking", ThinkingBlock, "signature"), ("tool_use", ToolUseBlock, "input")):
        with pytest.raises(pydantic.ValidationError, match=rf"{field}\s+Field required"):
            kind.model_validate(begun[block], strict=True)
    rows = [event["type"] for event in told if event["type"] in ("content_block_start", "content_block_stop")]
    assert rows == ["content_block_start"] * 3 + ["content_block_stop"] * 3  # not one after the other
