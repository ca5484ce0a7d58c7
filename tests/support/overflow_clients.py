"""Clients that send more than a model's context holds, and what each of them makes of the refusal."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pydantic
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI

from tests.fakes.gateway_harness import GatewayHarness

CODE = "context_length_exceeded"
OPENAI_WORDS = re.compile(
    r"This model's maximum context length is (\d+) tokens\. "
    r"However, your messages resulted in (?:at least )?(\d+) tokens"
)
ANTHROPIC_WORDS = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")


async def check_overflow(gateway: GatewayHarness, model: str, length: int, context: int) -> None:
    """Send `length` letters, each of which is a token of the test's model, to one of `context` tokens."""
    text = "x" * length
    await _check_openai(gateway, model, text, context)
    await _check_langchain(gateway, model, text)
    await _check_anthropic(gateway, model, text, context)


async def _check_openai(gateway: GatewayHarness, model: str, text: str, context: int) -> None:
    messages: Any = [{"role": "user", "content": text}]
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        asks: list[Callable[[], Awaitable[Any]]] = [
            lambda: client.chat.completions.create(model=model, messages=messages),
            lambda: client.chat.completions.create(model=model, messages=messages, stream=True),
            lambda: client.completions.create(model=model, prompt=text),
            lambda: client.completions.create(model=model, prompt=text, stream=True),
            lambda: client.responses.create(model=model, input=text),
        ]
        for ask in asks:
            with pytest.raises(openai.BadRequestError) as refused:
                await ask()
            assert (refused.value.code, refused.value.type) == (CODE, "invalid_request_error")
            _check_numbers(OPENAI_WORDS, refused.value.message, context)
        events: list[str] = []
        with pytest.raises(openai.APIError, match="exceeds the context window") as failed:
            await _collect_events(client, model, text, events)
        assert (events, failed.value.code) == (["response.created", "response.in_progress"], CODE)


async def _collect_events(client: openai.AsyncOpenAI, model: str, text: str, events: list[str]) -> None:
    async for event in await client.responses.create(model=model, input=text, stream=True):
        events.append(event.type)  # noqa: PERF401 - what came before the error counts


async def _check_langchain(gateway: GatewayHarness, model: str, text: str) -> None:
    for by_responses in (False, True):
        chat = ChatOpenAI(
            model=model,
            base_url=f"{gateway.url}/v1",
            api_key=pydantic.SecretStr("none"),
            max_retries=0,
            use_responses_api=by_responses,
        )
        with pytest.raises(ContextOverflowError):
            await chat.ainvoke(text)
        with pytest.raises(ContextOverflowError):
            [part async for part in chat.astream(text)]


async def _check_anthropic(gateway: GatewayHarness, model: str, text: str, context: int) -> None:
    messages: Any = [{"role": "user", "content": text}]
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        for streams in (False, True):
            with pytest.raises(anthropic.BadRequestError) as refused:
                await client.messages.create(model=model, messages=messages, max_tokens=5, stream=streams)
            assert isinstance(refused.value.body, dict)
            error = refused.value.body["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", CODE)
            _check_numbers(ANTHROPIC_WORDS, error["message"], context)


def _check_numbers(words: re.Pattern[str], message: str, context: int) -> None:
    match = words.search(message)
    assert match is not None, message
    limit, tokens = sorted(map(int, match.groups()))
    assert (limit, tokens > context) == (context, True)
