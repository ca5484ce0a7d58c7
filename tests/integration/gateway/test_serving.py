"""The gateway's routes over a real socket: what passes, what is refused, and in which words."""

from __future__ import annotations

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import WORDS, MockEngine
from tests.support.forwarding import error_of


async def test_blocking_answers_come_through_unchanged(gateway: GatewayHarness, engine: MockEngine) -> None:
    more = {"temperature": 0.5, "unknown_field": {"model": "x"}}
    body = (await gateway.chat(**more)).success
    assert body["choices"][0]["message"]["content"] == " ".join(WORDS)
    assert engine.requests[0].body.items() >= more.items()


async def test_credentials_stay_here_and_the_replicas_own_token_is_sent() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"authorization": "Bearer client-secret", "x-api-key": "client-secret", "cookie": "client-secret=1"}
    async with gateway_harness() as gateway, engines(2) as (guarded, plain):
        await gateway.publish(route("guarded", [guarded.url], token="replica-token"), route("plain", [plain.url]))
        for model in ("guarded", "plain"):
            reply = await gateway.chat(model, headers=headers | {"traceparent": trace})
            assert reply.status == 200
        assert guarded.requests[0].headers["authorization"] == "Bearer replica-token"
        assert "authorization" not in plain.requests[0].headers
        for engine in (guarded, plain):
            seen = engine.requests[0].headers
            assert "client-secret" not in str(seen)
            assert (seen["content-type"], seen["accept-encoding"]) == ("application/json", "identity")
            assert seen["traceparent"] == trace
        assert plain.requests[0].headers["x-request-id"] == reply.headers["x-request-id"]


async def test_headers_of_the_engine_stay_there(gateway: GatewayHarness, engine: MockEngine) -> None:
    for stream in (False, True):
        reply = await gateway.chat(stream=stream)
        assert not {"set-cookie", "access-control-allow-origin", "server"} & {name.lower() for name in reply.headers}


async def test_every_answer_has_an_id_of_its_own(gateway: GatewayHarness, engine: MockEngine) -> None:
    seen = set()
    for path in ("/health", "/metrics", "/v1/models", "/v1/models/m", "/openapi.json", "/nowhere"):
        seen.add((await gateway.get(path)).headers["x-request-id"])
    seen.add((await gateway.chat()).headers["x-request-id"])
    seen.add((await gateway.chat(stream=True)).headers["x-request-id"])
    assert len(seen) == 8


async def test_an_alias_reaches_the_engine_by_the_name_it_knows(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("org/model:8b", [engine.url], aliases=("small", "default"), served_name="inner"))
    for name in ("small", "org/model:8b"):
        assert (await gateway.chat(name)).status == 200
    assert [request.body["model"] for request in engine.requests] == ["inner", "inner"]


async def test_a_remote_whose_base_url_holds_the_prefix(gateway: GatewayHarness, engine: MockEngine) -> None:
    table = route("m", [engine.url + "/openai/v1"])
    endpoint = table.endpoints[0].model_copy(update={"api_prefix": ""})
    await gateway.publish(table.model_copy(update={"endpoints": (endpoint,)}))
    assert (await gateway.chat()).status == 200
    assert engine.requests[0].path == "/openai/v1/chat/completions"


async def test_before_the_first_table_there_are_no_models_and_the_process_is_healthy() -> None:
    async with gateway_harness(with_table=False) as gateway:
        reply = await gateway.chat()
        assert error_of(reply).code == "controller_unavailable"
        assert reply.headers["retry-after"] == "5"
        assert error_of(await gateway.get("/v1/models")).code == "controller_unavailable"
        assert (await gateway.get("/health")).success["engines"] == []


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


async def test_a_large_body_and_a_large_answer_pass() -> None:
    async with gateway_harness(answer_buffer_mib=1) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        reply = await gateway.chat(image="x" * 3_000_000, fault="huge", bytes=5_000_000)
        assert (reply.status, len(reply.content)) == (200, 5_000_000)
        assert len(engine.requests[0].body["image"]) == 3_000_000


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
