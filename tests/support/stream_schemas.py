"""Every event that a model's streams have, in every family, judged by the family's own published types."""

from __future__ import annotations

import json
from typing import Any

import pydantic
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from tests.fakes.gateway_harness import GatewayHarness
from tests.support.messages_schema import checked_events
from tests.support.response_state import socket
from tests.support.responses import Fields, check_response, folded

_OPEN_RESPONSES = {"OpenResponses-Version": "2026-04-24"}


async def judge_streams(gateway: GatewayHarness, model: str, *tools: Fields) -> list[str]:
    """Ask the model for a stream in each family, with these tools of chat completions. The types of the items that its
    response has."""
    hi = [{"role": "user", "content": "Hi"}]
    more: Fields = {"temperature": 0, "max_tokens": 200}
    functions = [tool["function"] for tool in tools]
    chat: Fields = {"messages": hi, "stream_options": {"include_usage": True}, **more}
    chat |= {"tools": tools} if tools else {}
    _judge_chunks(ChatCompletionChunk, await streamed(gateway, "/v1/chat/completions", model, **chat))
    _judge_chunks(Completion, await streamed(gateway, "/v1/completions", model, prompt="Hi", **more))

    its_tools = [{"name": each["name"], "input_schema": each["parameters"]} for each in functions]
    message: Fields = {"messages": hi, **more, **({"tools": its_tools} if tools else {})}
    assert checked_events(await streamed(gateway, "/v1/messages", model, **message))[-1]["type"] == "message_stop"

    declared = [{"type": "function", **each} for each in functions]
    body: Fields = {"input": "Hi", "temperature": 0, "max_output_tokens": 200}
    body |= {"tools": declared} if tools else {}
    response = folded(await streamed(gateway, "/v1/responses", model, **body))
    opened = folded(await streamed(gateway, "/v1/responses", model, _OPEN_RESPONSES, **body), is_open=True)
    async with socket(gateway) as client:
        await client.send(**{**body, "model": model})
        last = (await client.turn())[-1]["response"]
    check_response(last)
    kinds: list[str] = [item["type"] for item in response["output"]]
    assert kinds == [item["type"] for item in opened["output"]] == [item["type"] for item in last["output"]]
    return kinds


async def streamed(
    gateway: GatewayHarness, path: str, model: str, headers: dict[str, str] | None = None, **fields: Any
) -> bytes:
    body = {"model": model, "stream": True, **fields}
    async with gateway.post(path, body, headers=headers) as answer:
        content: bytes = await answer.read()
        assert answer.status == 200, content
        return content


def _judge_chunks(chunk_type: type[pydantic.BaseModel], stream: bytes) -> None:
    *events, done, end = stream.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    assert events
    for event in events:
        if event.startswith(b":"):
            continue
        fields = json.loads(event.removeprefix(b"data: "))
        assert fields["model"]
        if chunk_type is Completion:  # one type for streams and whole answers, which always end
            for choice in fields["choices"]:
                choice["finish_reason"] = choice["finish_reason"] or "stop"
        chunk_type.model_validate(fields, strict=True)
