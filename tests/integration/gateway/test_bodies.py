"""What reaches an engine: every field as it came, and the bytes themselves where nothing has to change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.schema.admin import Capabilities
from controller.schema.routing import ModelRoute
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, gateway_harness

TAKES_ALL = Capabilities(modalities=("text", "image", "audio"), thinking_modes=("default", "enabled", "disabled"))
PARTS = [
    {"type": "text", "text": 'Look: "ü" \\u00fc \ud83d\ude80'},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}},
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
]
COMMON = (
    '"seed": 7, "temperature": 1e-3, "top_p": 0.10, "n": 2, "stop": ["model", "\\"stream\\": false"], "x_unknown":'
    ' {"model": "inner", "deep": [1.0, 1E2, null, {"stream": true}]}, "big": 12345678901234567890,'
    ' "reasoning_effort": "low", "reasoning": {"effort": "high"}, "thinking": {"type": "enabled", "budget_tokens": 9},'
    ' "metadata": {"\\u0000": "\\ud800"}'
)
CHAT = (
    f'"messages": [{{"role": "user", "content": {json.dumps(PARTS)}}}], "tools": [{{"type": "function", "function":'
    ' {"name": "f", "parameters": {"type": "object"}}}], "tool_choice": {"type": "function", "function": {}},'
    ' "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}, "logprobs": true,'
    ' "top_logprobs": 3, "parallel_tool_calls": false'
)
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": '"prompt": ["a", [1, 2]], "logprobs": 2, "suffix": "b", "echo": true',
    "/v1/messages": f'"messages": [{{"role": "user", "content": {json.dumps(PARTS)}}}], "system": "s", "max_tokens": 9',
    "/v1/messages/count_tokens": '"messages": [], "tools": []',
    "/v1/embeddings": '"input": ["a", [1, 2], {"content": []}], "encoding_format": "base64", "dimensions": 3',
    "/tokenize": '"content": "a", "with_pieces": true',
    "/apply-template": '"messages": []',
    "/infill": '"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}]',
}
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/infill")


def raw_body(path: str, model: str, stream: str = "") -> bytes:
    """A body with odd spacing, so that an encoding anew would show."""
    return f'  {{"model" :"{model}",{stream} {BODIES[path]},  {COMMON} }}\n'.encode()


def table(url: str, *, served_name: str = "m", gathers: bool = False) -> ModelRoute:
    """The model `m`, alias `other`."""
    made = route("m", [url], aliases=("other",), served_name=served_name, capabilities=TAKES_ALL)
    return made.model_copy(update={"notices_leaving": not gathers, "takes_dimensions": True})


async def sent(made: dict[str, Any], path: str, raw: bytes) -> bytes:
    """What the engine is sent for such a body."""
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(table(engine.url, **made))
        headers = {"content-type": "application/json"}
        async with gateway.request("POST", path, headers=headers, data=raw) as answer:
            assert answer.status in (200, 502), await answer.text()
            await answer.read()
        assert engine.requests[0].path == path
        return engine.requests[0].raw


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", ["", ' "stream" : false,'])
async def test_where_nothing_has_to_change_the_bytes_are_the_clients(path: str, stream: str) -> None:
    raw = raw_body(path, "m", stream)
    assert await sent({}, path, raw) == raw


@pytest.mark.parametrize("path", BODIES)
async def test_an_alias_changes_the_models_name_and_nothing_else(path: str) -> None:
    raw = raw_body(path, "other")
    assert json.loads(await sent({"served_name": "inner"}, path, raw)) == json.loads(raw) | {"model": "inner"}


@pytest.mark.parametrize("path", GENERATING)
async def test_a_stream_asks_for_its_usage_at_most(path: str) -> None:
    raw = raw_body(path, "m", ' "stream": true,')
    got = json.loads(await sent({}, path, raw))
    if "completions" in path:
        assert got.pop("stream_options") == {"include_usage": True}
    assert got == json.loads(raw)


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("stream", ["", ' "stream" : false,', ' "stream": null,'])
async def test_a_blocking_call_as_a_stream_changes_that_alone(path: str, stream: str) -> None:
    # What asks for probabilities cannot be made of a stream, and goes as it is.
    raw = raw_body(path, "m", stream).replace(b'"logprobs": true', b'"logprobs": null')
    raw = raw.replace(b'"top_logprobs": 3', b'"top_logprobs": null').replace(b'"logprobs": 2', b'"logprobs": null')
    raw = raw.replace(b'"stop"', b'"stop_"')
    got = json.loads(await sent({"gathers": True}, path, raw))
    assert got.pop("stream") is True
    if "completions" in path:
        assert got.pop("stream_options") == {"include_usage": True}
    expected = json.loads(raw)
    expected.pop("stream", None)
    assert got == expected


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_what_cannot_be_made_of_a_stream_goes_as_it_is(path: str) -> None:
    raw = raw_body(path, "m")
    assert await sent({"gathers": True}, path, raw) == raw
