"""The gateway's routes over a real socket: what passes, what is refused, and in which words."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from controller.schema.errors import ERROR_CODES, ErrorBody, ErrorEnvelope
from controller.schema.status import ModelState
from retrieval.schema.routes import ROUTES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, gateway_harness
from tests.fakes.mock_engine import WORDS
from tests.support.http_client import Reply

TEXT = " ".join(WORDS)


def error_of(reply: Reply) -> ErrorBody:
    """The envelope's inner object; asserts that it is the table's, and complete."""
    error = ErrorEnvelope.model_validate(reply.body).error
    entry = ERROR_CODES[error.code]
    assert (reply.status, error.status, error.type) == (entry.status, entry.status, entry.type)
    assert error.request_id == reply.headers["x-request-id"]
    return error


async def test_blocking_answers_come_through_unchanged() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        body = (await gateway.chat(temperature=0.5, unknown_field={"model": "x"})).success
        assert body["choices"][0]["message"]["content"] == TEXT
        sent = engine.requests[0].body
        assert sent["temperature"] == 0.5
        assert sent["unknown_field"] == {"model": "x"}


async def test_completions_and_embeddings() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        assert (await gateway.post("/v1/completions", model="m", prompt="Hi")).body["choices"][0]["text"] == TEXT
        async with gateway.post("/v1/embeddings", model="m", input="Hi") as answer:
            assert (await answer.json())["data"][0]["embedding"] == [0.25, -0.5, 1.0]
        assert [request.path for request in engine.requests] == ["/v1/completions", "/v1/embeddings"]


async def test_credentials_stay_here_and_the_replicas_own_token_is_sent() -> None:
    mine = {"authorization": "Bearer client-secret", "x-api-key": "client-secret", "cookie": "client-secret=1"}
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with gateway_harness() as gateway, engines(2) as (guarded, plain):
        await gateway.publish(route("guarded", [guarded.url], token="replica-token"), route("plain", [plain.url]))
        for model in ("guarded", "plain"):
            request = gateway.client.post(
                f"{gateway.url}/v1/chat/completions", json={"model": model, "messages": []}, headers=mine | trace
            )
            async with request as answer:
                assert answer.status == 200
                request_id = answer.headers["x-request-id"]
        assert guarded.requests[0].headers["authorization"] == "Bearer replica-token"
        assert "authorization" not in plain.requests[0].headers
        for engine in (guarded, plain):
            seen = engine.requests[0].headers
            assert "client-secret" not in str(seen)
            assert (seen["content-type"], seen["accept-encoding"]) == ("application/json", "identity")
            assert seen["traceparent"] == trace["traceparent"]
        assert plain.requests[0].headers["x-request-id"] == request_id


async def test_headers_of_the_engine_stay_there() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        for stream in (False, True):
            async with gateway.chat(stream=stream) as answer:
                await answer.read()
                for name in ("set-cookie", "access-control-allow-origin", "server"):
                    assert name not in answer.headers


async def test_every_answer_has_an_id_of_its_own() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        seen = set()
        for path in ("/health", "/metrics", "/v1/models", "/v1/models/m", "/openapi.json", "/nowhere"):
            seen.add((await gateway.get(path)).headers["x-request-id"])
        seen.add((await gateway.chat()).headers["x-request-id"])
        async with gateway.chat(stream=True) as answer:
            seen.add(answer.headers["x-request-id"])
        assert len(seen) == 8


async def test_an_alias_reaches_the_engine_by_the_name_it_knows() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("org/model:8b", [engine.url], aliases=("small", "default"), served_name="inner"))
        for name in ("small", "org/model:8b"):
            assert (await gateway.chat(name)).status == 200
        assert [request.body["model"] for request in engine.requests] == ["inner", "inner"]


async def test_a_remote_whose_base_url_holds_the_prefix() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        table = route("m", [engine.url + "/openai/v1"])
        endpoint = table.endpoints[0].model_copy(update={"api_prefix": ""})
        await gateway.publish(table.model_copy(update={"endpoints": (endpoint,)}))
        assert (await gateway.chat()).status == 200
        assert engine.requests[0].path == "/openai/v1/chat/completions"


async def test_models_are_listed_loaded_or_not() -> None:
    async with gateway_harness() as gateway:
        await gateway.publish(
            route("org/a:8b", aliases=("a",), state=ModelState.LOADED, apis=("/v1/chat/completions",)),
            route("b", state=ModelState.FAILED),
        )
        listed = (await gateway.get("/v1/models")).body
        assert listed["object"] == "list"
        assert [(one["id"], one["state"], one["aliases"]) for one in listed["data"]] == [
            ("org/a:8b", "loaded", ["a"]),
            ("b", "failed", []),
        ]
        assert {"object": "model", "created": 1700000000, "owned_by": "roundhouse"}.items() <= listed["data"][0].items()
        for name in ("org/a:8b", "a"):
            assert (await gateway.get(f"/v1/models/{name}")).body == listed["data"][0]
        assert error_of(await gateway.get("/v1/models/c")).code == "unknown_model"


async def test_before_the_first_table_there_are_no_models_and_the_process_is_healthy() -> None:
    async with gateway_harness(with_table=False) as gateway:
        reply = await gateway.chat()
        assert error_of(reply).code == "controller_unavailable"
        assert reply.headers["retry-after"] == "5"
        assert error_of(await gateway.get("/v1/models")).code == "controller_unavailable"
        assert (await gateway.get("/health")).success["engines"] == []


async def test_health_says_what_is_loaded() -> None:
    async with gateway_harness(retrieval=False) as gateway, engines(2) as both:
        await gateway.publish(route("m", [engine.url for engine in both]))
        health = (await gateway.get("/health")).body
        assert health.pop("version")
        assert health.pop("engines") == [
            {
                "key": "m_model_stub_0",
                "backend": "stub",
                "model": "m",
                "replica": f"m-{number}",
                "inflight": 0,
                "attempts": [],
            }
            for number in range(2)
        ]
        assert health == {
            "status": "ok",
            "service": "roundhouse",
            "controller": "connected",
            "retrieval": "off",
            "queue_depth": 0,
            "engines_loaded": 2,
            "degraded": [],
            "aicore": None,
        }


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (ModelState.UNLOADED, "model_not_loaded"),
        (ModelState.LOADING, "model_loading"),
        (ModelState.UNLOADING, "model_unloading"),
        (ModelState.FAILED, "model_failed"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_is_not_loaded_is_refused_with_its_reason(
    state: ModelState, code: str, stream: bool
) -> None:
    async with gateway_harness() as gateway:
        await gateway.publish(route("m", state=state, last_error="no such file"))
        reply = await gateway.chat(stream=stream)
        error = error_of(reply)
        assert (error.code, error.param) == (code, "model")
        assert "no such file" in error.message
        assert ("x-should-retry" in reply.headers) is (code in ("model_not_loaded", "model_failed"))


UNKNOWN_ROUTES = (
    ("GET", "/v1/nothing"),
    ("POST", "/v1/nothing"),
    ("POST", "/v1/responses/nothing"),
    ("PUT", "/v1/responses/nothing"),
    ("GET", "/v1/responses/nothing/more"),
    ("POST", "/router/nothing"),
    ("DELETE", "/nothing"),
)


async def test_refusals_that_never_reach_an_engine() -> None:
    async with gateway_harness(max_body_mib=1) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], apis=("/v1/embeddings",)))
        assert error_of(await gateway.chat("nobody")).code == "unknown_model"
        error = error_of(await gateway.chat("m"))
        assert error.code == "not_supported"
        assert "/v1/embeddings" in error.message
        error = error_of(await gateway.request("POST", "/v1/embeddings", data=b'{"model": "m",}'))
        assert error.code == "invalid_json"
        assert "line 1 column 15" in error.message
        reply = await gateway.get("/v1/embeddings")
        assert error_of(reply).code == "method_not_allowed"
        assert reply.headers["allow"] == "POST"
        # Some fit the path of a stored response, which says nothing of other methods.
        for method, path in UNKNOWN_ROUTES:
            assert error_of(await gateway.request(method, path)).code == "unknown_route", path
        assert engine.requests == []


async def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    async with gateway_harness(max_body_mib=1) as gateway:
        await gateway.publish(route("m"))
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1048577\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413 ")
        writer.close()


async def test_a_body_of_unannounced_length_is_counted() -> None:
    async def parts() -> Any:
        for _ in range(17):
            yield b" " * 65536

    async with gateway_harness(max_body_mib=1) as gateway:
        await gateway.publish(route("m"))
        assert error_of(await gateway.request("POST", "/v1/chat/completions", data=parts())).code == "body_too_large"


async def test_a_large_body_and_a_large_answer_pass() -> None:
    async with gateway_harness(answer_buffer_mib=1) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        async with gateway.chat(image="x" * 3_000_000, fault="huge", bytes=5_000_000) as answer:
            assert answer.status == 200
            assert len(await answer.read()) == 5_000_000
        assert len(engine.requests[0].body["image"]) == 3_000_000


async def test_what_is_no_http_is_answered_with_the_envelope() -> None:
    async with gateway_harness() as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"what is this\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_request"
        writer.close()


async def test_foreign_hosts_and_origins_are_refused_everywhere_but_on_health_and_metrics() -> None:
    async with gateway_harness() as gateway:
        await gateway.publish(route("m"))
        for headers, code in (
            ({"host": "evil.example"}, "forbidden_host"),
            ({"origin": "https://evil.example"}, "forbidden_origin"),
        ):
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/openapi.json")):
                assert error_of(await gateway.request(method, path, headers=headers)).code == code
            for path in ("/health", "/metrics"):
                assert (await gateway.get(path, headers=headers)).status == 200


async def test_the_openapi_document_describes_the_routes() -> None:
    async with gateway_harness() as gateway, gateway.get("/openapi.json") as answer:
        document = await answer.json()
    assert set(document["paths"]) == {
        "/v1/chat/completions",
        "/v1/chat/completions/input_tokens",
        "/v1/completions",
        "/v1/responses",
        "/v1/responses/compact",
        "/v1/responses/input_tokens",
        "/v1/responses/{response_id}",
        "/v1/responses/{response_id}/cancel",
        "/v1/responses/{response_id}/input_items",
        "/v1/chat/completions/{completion_id}",
        "/v1/chat/completions/{completion_id}/messages",
        "/v1/stream",
        *(spec.path.replace(":path", "") for spec in ROUTES),
        "/v1/stream/{conv_id}",
        "/v1/streams/lookup",
        "/v1/conversations",
        "/v1/conversations/{conversation_id}",
        "/v1/conversations/{conversation_id}/items",
        "/v1/conversations/{conversation_id}/items/{item_id}",
        "/v1/clock/confirm",
        "/v1/limits",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/v1/rerank",
        "/rerank",
        "/v2/rerank",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/infill",
        "/completion",
        "/embedding",
        "/props",
        "/lora-adapters",
        "/slots",
        "/slots/{id}",
        "/v1/models",
        "/v1/models/{name}",
        "/v1/models/{name}/status",
        "/v1/models/{name}/benchmark",
        "/models",
        "/models/load",
        "/models/unload",
        "/models/sse",
        "/tools",
        "/tools/servers",
        "/tools/servers/{server}/prompts/{name}",
        "/tools/servers/{server}/resources/read",
        "/mcp",
        "/router/props",
        "/health",
        "/health/live",
        "/health/ready",
        "/health/warm",
        "/v1/aicore/status",
        "/v1/aicore/benchmark",
        "/metrics",
        "/metrics/engines",
    }
    post = document["paths"]["/v1/chat/completions"]["post"]
    schemas = document["components"]["schemas"]
    request = schemas[post["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]]
    assert {"model", "messages", "stream", "tools", "response_format"} <= set(request["properties"])
    assert set(request["required"]) == {"model", "messages"}
    assert "ErrorEnvelope" in post["responses"]["4XX"]["content"]["application/json"]["schema"]["$ref"]
    assert schemas["ErrorBody"]["properties"]["next_steps"]


CONTROLLERS = {
    "openapi": "3.1.0",
    "info": {"title": "c", "version": "1"},
    "paths": {"/v1/admin/models": {"get": {"responses": {"200": {"description": "All."}}}}, "/internal/x": {}},
}


async def test_the_controllers_part_of_the_document_is_kept_while_it_is_away() -> None:
    async def paths() -> set[str]:
        return set((await gateway.get("/openapi.json")).success["paths"])

    async with gateway_harness() as gateway:
        own = await paths()
        gateway.controller.admin.document = CONTROLLERS
        whole = await paths()
        assert whole == own | {"/v1/admin/models"}
        gateway.controller.admin.document = {"paths": "broken"}
        assert await paths() == whole
        gateway.controller.admin.document = CONTROLLERS | {"paths": {"/v1/admin/plan": {}}}
        assert await paths() == own | {"/v1/admin/plan"}, "another version came"
        await gateway.controller.stop()
        assert await paths() == own | {"/v1/admin/plan"}
