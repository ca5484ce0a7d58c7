"""What coding agents and SDKs send beside the fields of the API: a server elsewhere does not get it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine

# As Codex 0.169 sends it, and what other clients add.
IDENTITY: dict[str, Any] = {
    "client_metadata": {
        "x-codex-installation-id": "6d702d3f",
        "x-codex-turn-metadata": '{"workspaces":{"/home/me":{}}}',
    },
    "session_id": "5480477f",
}
HI: Any = [{"role": "user", "content": "Hi"}]
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank")


@pytest.fixture
async def here() -> AsyncIterator[tuple[GatewayHarness, MockEngine]]:
    async with engines(1) as [engine], gateway_harness() as built:
        more: dict[str, Any] = {"token": "sk-1", "apis": PATHS, "takes_dimensions": True}
        native = {**more, "apis": ("/v1/messages",)}
        await built.publish(
            route("far", [engine.url], extra_fields=(), **more),
            route("listing", [engine.url], extra_fields=("top_k",), **more),
            route("near", [engine.url], **more),
            route("claude", [engine.url], extra_fields=(), **native),
        )
        yield built, engine


async def post_all(here: GatewayHarness, model: str) -> None:
    """One request to each API, whose answers do not matter."""
    async with openai.AsyncOpenAI(base_url=f"{here.url}/v1", api_key="none", max_retries=0) as client:
        extra: Any = {"extra_body": {**IDENTITY, "top_k": 3}}
        await client.chat.completions.create(model=model, messages=HI, prompt_cache_key="k", **extra)
        await client.completions.create(model=model, prompt="Hi", seed=3, **extra)
        await client.responses.create(model=model, input="Hi", prompt_cache_key="k", **extra)
        await client.embeddings.create(model=model, input="Hi", dimensions=4, **extra)
    async with anthropic.AsyncAnthropic(base_url=here.url, api_key="none", max_retries=0) as claude:
        await claude.messages.create(model=model, max_tokens=5, messages=HI, extra_body={**IDENTITY, "top_k": 3})
    await here.post("/v1/rerank", model=model, query="a", documents=["b"], **IDENTITY, top_k=3)


@pytest.mark.parametrize(("model", "passed"), [("far", set()), ("listing", {"top_k"})])
async def test_a_remote_gets_no_field_that_the_api_does_not_know(
    here: tuple[GatewayHarness, MockEngine], model: str, passed: set[str]
) -> None:
    gateway, engine = here
    await post_all(gateway, model)
    assert len(engine.requests) == 6
    for request in engine.requests:
        assert b"6d702d3f" not in request.raw + repr(request.headers).encode()
        assert {"client_metadata", "session_id", "top_k"} & request.body.keys() == passed, request.path
    assert [each.body.get("prompt_cache_key") for each in engine.requests].count("k") == 2
    assert engine.requests[1].body["seed"] == 3
    assert engine.requests[3].body["dimensions"] == 4


async def test_messages_that_pass_through_keep_what_their_api_knows(here: tuple[GatewayHarness, MockEngine]) -> None:
    gateway, engine = here
    metadata = {"user_id": "u"}
    fields: dict[str, Any] = {"max_tokens": 5, "messages": HI, "metadata": metadata, "top_k": 3, **IDENTITY}
    await gateway.post("/v1/messages", model="claude", **fields)
    assert engine.requests[0].body == {
        "model": "claude", "max_tokens": 5, "messages": HI, "metadata": metadata, "top_k": 3
    }  # fmt: skip


async def test_an_engine_of_ours_gets_every_field(here: tuple[GatewayHarness, MockEngine]) -> None:
    gateway, engine = here
    await post_all(gateway, "near")
    for request in engine.requests:
        assert {"client_metadata", "session_id", "top_k"} <= request.body.keys(), request.path


async def test_a_form_that_a_remote_would_not_get_is_refused(here: tuple[GatewayHarness, MockEngine]) -> None:
    gateway, engine = here
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        for create in (
            lambda: client.chat.completions.create(model="far", messages=HI, extra_body={"guided_json": {}}),
            lambda: client.chat.completions.create(model="far", messages=HI, extra_body={"grammar": "root ::= x"}),
            lambda: client.responses.create(model="far", input="Hi", extra_body={"grammar": "root ::= x"}),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await create()
            assert caught.value.code == "structured_output_unsupported"
    assert not engine.requests
