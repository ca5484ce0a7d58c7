"""The gateway in front of a real engine: llama-server, embedded through xllamacpp, with the demo model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from gateway.protocols.common.dialect import TokenEventCounter
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness, until
from tests.support.installed_engines import needed, started
from tests.support.worker_process import Worker
from worker.clockwork import SENTENCE, make_model

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

TOKEN = "replica-token"
CONTEXT = 131072
"""Tokens that take the engine minutes: a slot that is free within the deadline was freed by a cancellation."""
HI: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Worker]:
    needed("embedded")
    make_model(tmp_path / "demo.gguf", context=CONTEXT)
    flags = ("--ctx-size", str(CONTEXT), "--parallel", "1")
    with started("embedded", tmp_path, "demo", tmp_path / "demo.gguf", *flags, token=TOKEN) as engine:
        yield engine.ready()


@pytest.fixture
async def gateway(engine: Worker, tmp_path: Path) -> AsyncIterator[GatewayHarness]:
    """A gateway that knows the engine as `demo`, alias `default`, and one for embeddings as `vectors`."""
    pooled = ("--embeddings", "--pooling", "mean")
    with started("embedded", tmp_path, "vectors", tmp_path / "demo.gguf", *pooled, token=TOKEN) as vectors:
        vectors.ready()
        async with gateway_harness() as gateway:
            await gateway.publish(
                *(
                    route(name, [f"http://127.0.0.1:{each.port}"], token=TOKEN, aliases=aliases)
                    for name, each, aliases in (("demo", engine, ("default",)), ("vectors", vectors, ()))
                )
            )
            yield gateway


def sdk(gateway: GatewayHarness) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="client-key", max_retries=0)


async def test_the_exact_text_of_a_real_engine(gateway: GatewayHarness) -> None:
    async with sdk(gateway) as client:
        tokens = 0
        for model in ("demo", "default"):
            response = await client.chat.completions.create(model=model, messages=HI, temperature=0)
            assert (response.model, response.choices[0].message.content) == ("inner-demo", SENTENCE)
            assert response.usage is not None
            tokens += response.usage.completion_tokens
        stream = await client.chat.completions.create(model="default", messages=HI, temperature=0, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SENTENCE
        completion = await client.completions.create(model="demo", prompt="Hi", temperature=0)
        assert completion.choices[0].text.endswith("And then it sleeps!")
        assert completion.usage is not None
        tokens += completion.usage.completion_tokens
        assert len((await client.embeddings.create(model="vectors", input=["a", "b"])).data) == 2
    metrics = await gateway.metrics()
    streamed = 16
    assert f'roundhouse_gateway_tokens_total{{direction="out",model="demo"}} {tokens + streamed:.1f}' in metrics
    assert 'roundhouse_gateway_tokens_total{direction="in",model="vectors"}' in metrics


async def test_a_real_engines_errors_pass(gateway: GatewayHarness) -> None:
    async with sdk(gateway) as client:
        with pytest.raises(openai.BadRequestError, match="array"):
            await client.chat.completions.create(model="demo", messages=7)  # type: ignore[call-overload]
        with pytest.raises(openai.InternalServerError, match="embeddings") as caught:
            await client.embeddings.create(model="demo", input="a")
        assert caught.value.status_code == 501


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_stops_the_real_engine(
    gateway: GatewayHarness, engine: Worker, stream: bool
) -> None:
    endless = {"model": "demo", "messages": HI, "max_tokens": CONTEXT, "ignore_eos": True, "stream": stream}
    async with aiohttp.ClientSession() as leaving:
        call = asyncio.create_task(leaving.post(gateway.url + "/v1/chat/completions", json=endless).__aenter__())
        await until(lambda: "processing task" in engine.log, "the engine works on it")
        call.cancel()
    # Read off the log: llama.cpp looks after a blocking client only when nothing has asked it anything for a second.
    await until(lambda: "cancel task" in engine.log, "the engine cancels it")
    await gateway.idle()
    assert engine.figure("tokens_predicted_total") < CONTEXT


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_each_token_of_a_real_stream_is_counted_without_the_engines_own_count(engine: Worker, path: str) -> None:
    prompt: dict[str, Any] = {"prompt": "Hi"} if path == "/v1/completions" else {"messages": HI}
    fields = {"model": "demo", "max_tokens": 60, "ignore_eos": True, "stream": True, **prompt}
    fields["stream_options"] = {"include_usage": True}
    counter = TokenEventCounter()
    url, headers = f"http://127.0.0.1:{engine.port}{path}", {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession() as client, client.post(url, json=fields, headers=headers) as response:
        text = await response.read()
    assert b'"completion_tokens":60' in text
    head = text[: text.rindex(b"data: ", 0, text.index(b'"usage"'))]
    for start in range(0, len(head), 700):
        counter.take_data(head[start : start + 700])
    assert counter.count_tokens() in (59, 60), "the last token may have no text"


async def test_a_real_stream_that_is_left_counts_what_came_and_the_engines_metrics_are_read(
    gateway: GatewayHarness, engine: Worker
) -> None:
    async with gateway.chat("demo", stream=True, max_tokens=CONTEXT, ignore_eos=True) as response:
        read = b""
        while read.count(b"\n\n") < 40:
            read += await response.content.readany()
        response.close()
    await until(lambda: "cancel task" in engine.log, "the engine cancels it")
    await gateway.idle()
    found = re.search(
        r'^roundhouse_gateway_unreported_tokens_total\{model="demo"\} (\S+)$', await gateway.metrics(), re.MULTILINE
    )
    assert found is not None
    text = (await gateway.get("/metrics/engines")).text
    told = re.search(r'^llamacpp:tokens_predicted_total\{model="demo",replica="demo-0"\} (\S+)$', text, re.MULTILINE)
    assert told is not None, text
    counted = float(found[1])
    assert counted >= 38
    # The engine counts when it lets go of the slot, which may be a moment after it has said that it will.
    await until(lambda: counted <= engine.figure("tokens_predicted_total") + 1, "the engine has made as many")
    assert 'roundhouse_engine_up{model="vectors",replica="vectors-0"} 1' in text
