"""What clients see of the models: OpenAI's list, Anthropic's, llama-server's router's, and how Open WebUI connects."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from contract.admin import Capabilities
from contract.routing import ModelRoute
from contract.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import WORDS
from tests.support.queueing import key

SEES = Capabilities(
    modalities=("text", "image"),
    multi_turn=False,
    thinking_modes=("default", "disabled"),
    tools=False,
    forced_tools=False,
)
CHATS = ("/v1/chat/completions", "/props")
ROUTER_STATES = {"loading": "loading", "loaded": "loaded", "unloading": "loaded", "sleeping": "sleeping"}
"""llama-server's word for each state of ours; each other state is its `unloaded`."""


def seeing(**fields: Any) -> ModelRoute:
    """A model of which everything is told."""
    made = route("org/m:8b", ["http://127.0.0.1:9"], aliases=("m", "gpt-4o"), apis=CHATS, capabilities=SEES)
    return made.model_copy(
        update={"backend": "llama_server", "context_length": 8192, "created": 1_700_000_000, **fields}
    )


async def test_everything_that_is_told_of_a_model(gateway: GatewayHarness) -> None:
    await gateway.publish(seeing(), route("b", state=ModelState.UNLOADED, apis=()))
    listed = (await gateway.get("/v1/models")).success
    one, other = listed["data"]
    served = one.pop("apis")
    assert one == {
        "id": "org/m:8b",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "roundhouse",
        "type": "model",
        "display_name": "org/m:8b",
        "created_at": "2023-11-14T22:13:20Z",
        "max_input_tokens": 8192,
        "state": "loaded",
        "reason": None,
        "autoload": False,
        "aliases": ["m", "gpt-4o"],
        "backend": "llama_server",
        "capabilities": {
            "modalities": ["text", "image"],
            "media_urls": False,
            "multi_turn": False,
            "thinking_modes": ["default", "disabled"],
            "tools": False,
            "forced_tools": False,
            "structured_output": True,
            "logprobs": True,
        },
        "continues_answers": True,
        "modalities": ["text", "image"],
        "context_length": 8192,
        "status": {"value": "loaded", "args": [], "failed": False, "exit_code": None, "progress": None},
        "architecture": {"input_modalities": ["text", "image"], "output_modalities": ["text"]},
        "tags": [],
        "can_remove": False,
    }
    assert {"/v1/chat/completions", "/props", "/v1/responses", "/v1/messages"} <= set(served), "translated ones too"
    assert "/v1/embeddings" not in served
    assert (other["state"], other["context_length"], other["apis"]) == ("unloaded", None, [])
    assert {name: value for name, value in listed.items() if name != "data"} == {
        "object": "list", "has_more": False, "first_id": "org/m:8b", "last_id": "b", "default_model": None
    }  # fmt: skip
    for name in ("org/m:8b", "m", "gpt-4o"):
        assert (await gateway.get(f"/v1/models/{name}")).success == one | {"apis": served}, "under its own name"
    await gateway.publish()
    assert (await gateway.get("/v1/models")).success == {
        "object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None, "default_model": None
    }  # fmt: skip


async def test_the_default_model_is_told_by_its_name_to_those_who_may_use_it() -> None:
    async with gateway_harness(default_model="gpt-4o") as gateway:
        await gateway.publish(seeing(), route("b"))
        assert (await gateway.get("/v1/models")).success["default_model"] == "org/m:8b"
        await gateway.publish(seeing(), route("b"), keys=(key("all"), key("some", models=("b",))))
        told = [
            (await gateway.get("/v1/models", headers={"Authorization": f"Bearer secret-{name}"})).success[
                "default_model"
            ]
            for name in ("all", "some")
        ]
        assert told == ["org/m:8b", None]


async def test_why_a_model_is_not_loaded_is_told_without_paths_and_addresses() -> None:
    told = "it ended: cannot open /srv/models/m.gguf at 10.1.2.3:8000"
    async with gateway_harness() as gateway:
        failed, waiting = route("a", state=ModelState.FAILED), route("b", state=ModelState.UNLOADED, autoload=True)
        await gateway.publish(
            failed.model_copy(update={"last_error": told, "reason": "it failed"}),
            waiting.model_copy(update={"reason": "no room for /srv/x", "backend": "vllm"}),
            route("c").model_copy(update={"last_error": told, "reason": "before", "backend": "openai_remote"}),
        )
        listed = (await gateway.get("/v1/models")).success["data"]
        assert [(each["reason"], each["autoload"], each["continues_answers"]) for each in listed] == [
            ("it ended: cannot open [path] at [address]", False, False),
            ("no room for [path]", True, True),
            (None, False, False),
        ]
        for each in listed:
            assert (await gateway.get(f"/v1/models/{each['id']}/status")).success["reason"] == each["reason"]
            assert (await gateway.get(f"/v1/models/{each['id']}")).success["reason"] == each["reason"]


async def test_the_list_of_llama_servers_router(gateway: GatewayHarness) -> None:
    await gateway.publish(seeing(), *(route(f"m-{state}", state=state) for state in ModelState))
    own = {model["id"]: model for model in (await gateway.get("/v1/models")).success["data"]}
    listed = (await gateway.get("/models")).success
    assert listed["object"] == "list"
    for model in listed["data"]:
        assert model == own[model["id"]]
        failed = model["state"] == "failed"
        assert model["status"] == {
            "value": ROUTER_STATES.get(model["state"], "unloaded"),
            "args": [],
            "failed": failed,
            "exit_code": 1 if failed else None,
            "progress": None,
        }
        assert model["architecture"] == {"input_modalities": model["modalities"], "output_modalities": ["text"]}


async def probe(gateway: GatewayHarness, base: str, bearer: str | None) -> tuple[int, list[str]]:
    """Open WebUI's probe of a connection, with an empty bearer where no key is given: status, and each model's id. It
    takes of each in `data` that has an `id` that, and its `name`, where there is one."""
    headers = {"Content-Type": "application/json"} | ({} if bearer is None else {"Authorization": f"Bearer {bearer}"})
    reply = await gateway.get(f"{base}/models", headers=headers)
    if reply.status != 200:
        assert reply.error["message"]
        return reply.status, []
    assert "error" not in reply.body
    assert all(model.get("name", model["id"]) == model["id"] for model in reply.body["data"])
    return reply.status, [model["id"] for model in reply.body["data"]]


@pytest.mark.parametrize("base", ["/v1", ""])
async def test_open_webuis_connection_probe(gateway: GatewayHarness, base: str) -> None:
    for keys in ((), (key("ui"), key("far", models=("other",)))):
        await gateway.publish(seeing(), keys=keys)
        good = (200, ["org/m:8b"])
        assert await probe(gateway, base, "secret-ui") == good, keys
        assert await probe(gateway, base, "secret-far") == ((200, []) if keys else good), keys
        for wrong in ("secret-wrong", "", None):
            assert await probe(gateway, base, wrong) == ((401, []) if keys else good), (keys, wrong)


@pytest.mark.parametrize("base", ["/v1", ""])
async def test_what_open_webui_and_openais_client_ask_of_either_address(base: str) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        async with gateway.post(f"{base}/chat/completions", body) as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
        async with openai.AsyncOpenAI(base_url=gateway.url + base, api_key="none", max_retries=0) as client:
            assert (await client.models.retrieve("m")).id == "m"
            assert (await client.completions.create(model="m", prompt="Hi")).choices[0].text == " ".join(WORDS)
            vectors = await client.embeddings.create(model="m", input="Hi", encoding_format="float")
            assert vectors.data[0].embedding == [0.25, -0.5, 1.0]
            made = await client.responses.create(model="m", input="Hi")
            assert (await client.responses.retrieve(made.id)).output_text == made.output_text
            await client.responses.delete(made.id)
        assert {request.path.removeprefix("/v1") for request in engine.requests} == {
            "/chat/completions", "/completions", "/embeddings"
        }  # fmt: skip
        assert (await gateway.get(f"{base}/health")).body["service"] == "roundhouse"
        assert (await gateway.post(f"{base}/reranking", {"model": "m"})).error["param"] == "documents", "as /v1/rerank"


async def test_both_sdks_list_and_retrieve(gateway: GatewayHarness) -> None:
    await gateway.publish(seeing(), route("b"))
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == ["org/m:8b", "b"]
        found = await client.models.retrieve("gpt-4o")
        assert (found.id, found.created, found.owned_by) == ("org/m:8b", 1_700_000_000, "roundhouse")
        assert found.model_extra is not None
        assert found.model_extra["context_length"] == 8192
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.models.retrieve("nobody")
        assert unknown.value.code == "unknown_model"
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as other:
        assert [model.display_name async for model in other.models.list()] == ["org/m:8b", "b"]
        info = await other.models.retrieve("m")
        assert (info.id, info.created_at.timestamp(), info.max_input_tokens) == ("org/m:8b", 1_700_000_000, 8192)
        with pytest.raises(anthropic.NotFoundError):
            await other.models.retrieve("nobody")


async def test_openais_client_streams_and_raises_its_own_errors() -> None:
    async with (
        gateway_harness(heartbeat_s=0.03, hold_headers_s=0.03) as gateway,
        engines(1) as (engine,),
        openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        await gateway.publish(route("m", [engine.url]), route("off", state=ModelState.UNLOADED))
        chats: Any = client.chat.completions
        completion = await chats.create(model="m", messages=[])
        assert completion.choices[0].message.content == " ".join(WORDS)
        assert completion.usage.completion_tokens == len(WORDS)
        for options in ({}, {"stream_options": {"include_usage": True}}):
            stream = await chats.create(model="m", messages=[], stream=True, extra_body={"fault": "hold"}, **options)
            engine.release.set()
            chunks = [chunk async for chunk in stream]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices).split() == WORDS
            assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [len(WORDS)] * len(options)
        with pytest.raises(openai.NotFoundError) as unknown:
            await chats.create(model="nobody", messages=[])
        assert unknown.value.code == "unknown_model"
        assert unknown.value.request_id == unknown.value.response.headers["x-request-id"]
        with pytest.raises(openai.InternalServerError) as off:
            await chats.create(model="off", messages=[])
        assert off.value.code == "model_not_loaded"
        broken = await chats.create(model="m", messages=[], stream=True, extra_body={"fault": "die_mid_stream"})
        with pytest.raises(openai.APIError) as died:
            [chunk async for chunk in broken]
        assert died.value.code == "engine_disconnected"
        assert len(engine.requests) == 4, "what is refused reaches no engine"
