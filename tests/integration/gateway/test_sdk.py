"""The `openai` package, unmodified, against the gateway."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from controller.schema.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, gateway_harness
from tests.fakes.mock_engine import WORDS, MockEngine

TEXT = " ".join(WORDS)


@contextlib.asynccontextmanager
async def sdk(**settings: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, MockEngine]]:
    """A client of a gateway with one loaded model and one that is not."""
    async with gateway_harness(**settings) as gateway, engines(1) as (engine,):
        await gateway.publish(route("org/m:8b", [engine.url], aliases=("m",)), route("off", state=ModelState.UNLOADED))
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client:
            yield client, engine


async def test_list_and_retrieve() -> None:
    async with sdk() as (client, _):
        assert [model.id async for model in client.models.list()] == ["org/m:8b", "off"]
        assert (await client.models.retrieve("m")).id == "org/m:8b"


async def test_chat() -> None:
    async with sdk() as (client, _):
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
        assert answer.choices[0].message.content == TEXT
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(WORDS)


async def test_chat_stream() -> None:
    async with sdk() as (client, _):
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).strip() == TEXT
        assert all(chunk.usage is None for chunk in chunks)


async def test_chat_stream_with_usage() -> None:
    async with sdk() as (client, _):
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        last = [chunk async for chunk in stream][-1]
        assert last.usage is not None
        assert last.usage.completion_tokens == len(WORDS)


async def test_completions_and_embeddings() -> None:
    async with sdk() as (client, _):
        assert (await client.completions.create(model="m", prompt="Hi")).choices[0].text == TEXT
        vectors = await client.embeddings.create(model="m", input="Hi", encoding_format="float")
        assert vectors.data[0].embedding == [0.25, -0.5, 1.0]


async def test_errors_are_the_sdks_own() -> None:
    async with sdk() as (client, engine):
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="nobody", messages=[])
        assert unknown.value.code == "unknown_model"
        assert unknown.value.request_id == unknown.value.response.headers["x-request-id"]
        with pytest.raises(openai.InternalServerError) as off:
            await client.chat.completions.create(model="off", messages=[])
        assert off.value.code == "model_not_loaded"
        stream = await client.chat.completions.create(
            model="m", messages=[], stream=True, extra_body={"fault": "die_mid_stream"}
        )
        with pytest.raises(openai.APIError) as died:
            [chunk async for chunk in stream]
        assert died.value.code == "engine_disconnected"
        assert len(engine.requests) == 1


async def test_heartbeats_do_not_disturb_it() -> None:
    async with sdk(heartbeat_s=0.03, hold_headers_s=0.03) as (client, engine):
        stream = await client.chat.completions.create(model="m", messages=[], stream=True, extra_body={"fault": "hold"})
        engine.release.set()
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text.strip() == TEXT
