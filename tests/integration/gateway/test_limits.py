"""Limits of keys and of clients without keys, the settings' own, and what holds on every route, the framework's too:
scopes, forms of errors, ids of requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from gateway.routing.table import LiveRoutes, Routes
from gateway.tenancy import rate_limits
from tests.fakes.fake_controller import route
from tests.fakes.fake_holding_engine import holding
from tests.fakes.fake_scripted_engine import script, scripted
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.queueing import Clock, clock, key
from tests.support.raw_http import raw, request
from tests.support.response_state import site
from tests.support.wait import until

__all__ = ["clock", "loop_clock"]


MIB = 1024 * 1024


async def limits(**settings: Any) -> Any:
    async with site(**settings) as here:
        reply = await here.gateway.get("/v1/limits")
        assert reply.status == 200
        return reply.body


async def test_the_limits_are_those_of_the_settings() -> None:
    told = await limits(
        max_body_mib=3,
        responses_retention_h=0.5,
        responses_max_mib=7,
        stream_ttl_s=12,
        retrieval_max_file_mib=5,
        max_inputs=9,
    )
    assert told == {
        "object": "limits",
        "max_body_bytes": 3 * MIB,
        "max_document_bytes": 5 * MIB,
        "retention_s": 1800,
        "max_stored_bytes": 7 * MIB,
        "stream_ttl_s": 12,
        "max_inputs": 9,
        "max_choices": 128,
        "max_images": 100,
        "max_tool_calls": 128,
    }


async def test_a_gateway_that_keeps_nothing_says_so() -> None:
    told = await limits(responses_retention_h=0, retrieval=False)
    assert (told["retention_s"], told["max_document_bytes"]) == (0, None)


BOTH = ("inference", "admin")
FRAMEWORK = (
    *(("POST", path) for path in ("/v1/admin/plan", "/nowhere")),
    ("DELETE", "/v1/responses/resp_x"),
    ("PUT", "/v1/chat/completions"),
)
READING = (
    *(("GET", path) for path in ("/v1/models", "/models", "/v1/models/m", "/v1/responses/resp_x", "/openapi.json")),
    *(("GET", "/v1/admin/status"), ("GET", "/nowhere"), ("HEAD", "/nowhere")),
)


@pytest.mark.parametrize(("method", "path"), FRAMEWORK)
async def test_requests_per_minute_hold_on_routes_of_the_framework(
    method: str, path: str, clock: Clock, gateway: GatewayHarness
) -> None:
    await gateway.publish(route("m"), keys=(key("a", scopes=BOTH, requests_per_minute=2, tokens_per_minute=100),))
    for left in ("1", "0"):
        reply = await gateway.request(method, path, key="secret-a")
        assert reply.status != 429
        told = [
            reply.headers[f"x-ratelimit-{name}"]
            for name in ("limit-requests", "remaining-requests", "remaining-tokens")
        ]
        assert told == ["2", left, "100"]
        assert "x-ratelimit-client" not in reply.headers
    reply = await gateway.request(method, path, key="secret-a")
    assert reply.refusal == (429, "rate_limit_exceeded")
    assert reply.error["request_id"] == reply.headers["x-request-id"]
    told = [reply.headers[f"x-ratelimit-{name}"] for name in ("client", "remaining-requests", "reset-requests")]
    assert (told, reply.headers["retry-after"]) == (["a", "0", "1m0s"], "30")
    for open_path in ("/health", "/metrics"):
        assert (await gateway.get(open_path, key="secret-a")).status == 200
    clock.now += 30
    assert (await gateway.request(method, path, key="secret-a")).status != 429


@pytest.mark.interpreted
@pytest.mark.parametrize(("method", "path"), READING)
async def test_reading_costs_no_request_and_has_a_bound_of_its_own(
    method: str, path: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "READS_PER_MINUTE", 4)
    async with gateway_harness() as gateway:
        await gateway.publish(route("m"), keys=(key("a", scopes=BOTH, requests_per_minute=1, tokens_per_minute=100),))
        assert (await gateway.request("POST", "/v1/admin/plan", key="secret-a")).status == 200
        assert (await gateway.request("POST", "/v1/admin/plan", key="secret-a")).status == 429
        for _ in range(4):
            reply = await gateway.request(method, path, key="secret-a")
            assert reply.status != 429
            assert reply.headers["x-ratelimit-limit-requests"] == "1"
            assert reply.headers["x-ratelimit-remaining-requests"] == "0"
        reply = await gateway.request(method, path, key="secret-a")
        assert (reply.status, reply.headers["x-ratelimit-client"], reply.headers["retry-after"]) == (429, "a", "15")
        clock.now += 15
        assert (await gateway.request(method, path, key="secret-a")).status != 429


async def test_the_framework_and_models_share_a_limit_and_a_refusal_uses_nothing_up(
    clock: Clock, gateway: GatewayHarness, engine: MockEngine
) -> None:
    await gateway.publish(route("m", [engine.url]), keys=(key("a", requests_per_minute=2),))
    assert (await gateway.request("POST", "/v1/admin/plan", key="secret-a")).status == 403
    assert (await gateway.request("POST", "/nowhere", key="secret-a")).headers["x-ratelimit-remaining-requests"] == "1"
    reply = await gateway.chat(messages=[], key="secret-a")
    assert (reply.status, reply.headers["x-ratelimit-remaining-requests"]) == (200, "0")
    assert (await gateway.request("POST", "/nowhere", key="secret-a")).status == 429
    assert (await gateway.get("/v1/models", key="secret-a")).status == 200


async def test_events_count_as_one_request_until_they_end(gateway: GatewayHarness) -> None:
    gateway.controller.admin.answer = gateway.controller.admin.stream("text/event-stream")
    await gateway.publish(keys=(key("a", scopes=BOTH, concurrency=1),))
    gateway.controller.admin.parts.put_nowait(b"data: 1\n\n")
    bearer = {"authorization": "Bearer secret-a"}
    for ends in (True, False):
        events = await gateway.client.get(gateway.url + "/v1/admin/events", headers=bearer)
        assert events.status == 200
        reply = await gateway.get("/v1/models", key="secret-a")
        assert (reply.status, reply.headers["x-ratelimit-client"]) == (429, "a")
        if ends:
            gateway.controller.admin.parts.put_nowait(None)
            assert await events.read() == b"data: 1\n\n"
            gateway.controller.admin.parts.put_nowait(b"data: 2\n\n")
        else:
            events.close()

        async def let_in() -> bool:
            return (await gateway.get("/v1/models", key="secret-a")).status == 200

        await until("it is counted no more", let_in)


async def test_the_list_of_models_needs_the_scope_inference_and_the_document_none(gateway: GatewayHarness) -> None:
    await gateway.publish(route("m"), keys=(key("a", scopes=("admin",)), key("b")))
    for path in ("/v1/models", "/v1/models/m", "/v1/models/", "/v1/%6dodels"):
        assert (await gateway.get(path, key="secret-a")).refusal == (403, "scope_required"), path
        assert (await gateway.get(path, key="secret-b")).status in (200, 404), path
    for who in ("a", "b"):
        assert (await gateway.get("/openapi.json", key=f"secret-{who}")).status == 200
    document = (await gateway.get("/openapi.json", key="secret-a")).body
    for path in ("/v1/models", "/v1/models/{name}"):
        declared = document["paths"][path]["get"]
        assert "`scope_required`" in declared["responses"]["403"]["description"]
        assert "`rate_limit_exceeded`" in declared["responses"]["429"]["description"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches"])
async def test_errors_on_paths_of_messages_have_anthropics_form(path: str, gateway: GatewayHarness) -> None:
    keys = (key("a", scopes=("admin",), requests_per_minute=1),)
    await gateway.publish(keys=keys)
    seen = []
    for who in ("nobody", "a", "a"):
        reply = await gateway.request("PUT", path, key=f"secret-{who}")
        seen.append((reply.status, reply.body["type"], reply.error["type"]))
        assert reply.body["request_id"] == reply.headers["x-request-id"]
    wrong = (404, "not_found_error") if path.endswith("batches") else (405, "invalid_request_error")
    assert seen == [
        (401, "error", "authentication_error"),
        (wrong[0], "error", wrong[1]),
        (429, "error", "rate_limit_error"),
    ]
    reply = await gateway.get("/v1/messagesx", key="secret-nobody")
    assert "type" not in json.loads(reply.content), "no path of messages"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/props", "GET, POST"),
        ("DELETE", "/lora-adapters", "GET, POST"),
        ("GET", "/v1/messages", "POST"),
        ("POST", "/v1/models/m", "GET, HEAD"),
        ("PUT", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_all_right_ones(method: str, path: str, allowed: str) -> None:
    async with gateway_harness(engine_state_routes=True) as gateway:
        reply = await gateway.request(method, path, key="secret-a")
        assert (reply.status, reply.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_health_and_metrics_answer_head(path: str, gateway: GatewayHarness) -> None:
    async with raw(gateway) as client:
        client.write(request("HEAD", path) + request("GET", "/nowhere"))
        while b"unknown_route" not in client.received:
            await client.read_bytes()
        first, second = client.received.split(b"\r\n\r\n")[:2]
        assert first.startswith(b"HTTP/1.1 200 ")
        assert int(first.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) > 0
        assert second.startswith(b"HTTP/1.1 404 "), "no body"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /v1/models HTTP/1.1\r\nhost: x", 408),
    ],
)
async def test_what_is_no_request_has_an_id_too(sent: bytes, status: int, loop_clock: LoopClock) -> None:
    async with gateway_harness(client_timeout_s=10) as gateway:
        assert gateway.server is not None
        connections: Any = gateway.server.server_state.connections
        ids = set()
        for _ in range(2):
            async with raw(gateway) as client:
                client.write(sent)
                await until("it is read", lambda: any(each._idle_bytes or each._ignores_input for each in connections))
                await loop_clock.skip(20)
                (answer,) = await client.to_the_end()
                assert (answer.status, answer.error["request_id"]) == (status, answer["x-request-id"])
                assert answer["x-request-id"].startswith("req-")
                ids.add(answer["x-request-id"])
        assert len(ids) == 2


async def test_a_bug_while_a_table_is_applied_does_not_end_the_link(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[LiveRoutes] = []

    def make() -> LiveRoutes:
        made.append(LiveRoutes())
        return made[-1]

    monkeypatch.setattr("gateway.app.LiveRoutes", make)
    async with gateway_harness() as gateway:
        apply = made[0].on_table

        def broken(_: Routes) -> None:
            made[0].on_table = apply
            raise LookupError("a bug")

        made[0].on_table = broken
        before = gateway.controller.connections
        await gateway.controller.publish(route("m"))
        await until("it connects anew", lambda: gateway.controller.connections > before)
        await gateway.publish(route("m"), route("n"))
        assert len((await gateway.get("/v1/models")).body["data"]) == 2
        assert "a bug" in caplog.text


async def test_a_report_that_fails_does_not_end_the_reports(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gateway: GatewayHarness
) -> None:
    before = gateway.controller.connections

    def broken(_: object) -> str:
        monkeypatch.undo()
        raise LookupError("a bug")

    monkeypatch.setattr("gateway.control.link.ControllerLink._report", broken)
    async with asyncio.timeout(60):
        await gateway.publish(route("m"))
    assert gateway.controller.connections > before
    assert "a bug" in caplog.text


HI: Any = [{"role": "user", "content": "Hi"}]


def sdk(gateway: GatewayHarness, client_id: str | None = None) -> openai.AsyncOpenAI:
    """The SDK, which says `AsyncOpenAI/Python 1.2.3` as its User-Agent."""
    headers = {"x-client-id": client_id} if client_id else {}
    return openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="-", max_retries=0, default_headers=headers)


async def test_a_client_beyond_its_limit_is_told_its_name_and_others_go_on(clock: Clock) -> None:
    async with gateway_harness(client_requests_per_minute=2) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], target_inflight=4))
        async with sdk(gateway, "batch") as batch, sdk(gateway) as unnamed, sdk(gateway, "page") as page:
            for client, name in ((batch, "batch"), (unnamed, f"AsyncOpenAI/Python {openai.__version__}")):
                for left in ("1", "0"):
                    answer = await client.chat.completions.with_raw_response.create(model="m", messages=HI)
                    assert answer.headers["x-client-id"] == name
                    assert answer.headers["x-ratelimit-remaining-requests"] == left
                with pytest.raises(openai.RateLimitError) as refused:
                    await client.chat.completions.create(model="m", messages=HI)
                assert refused.value.code == "rate_limit_exceeded"
                headers = refused.value.response.headers
                assert (headers["x-ratelimit-client"], headers["retry-after"]) == (name, "30")
                assert f"The client '{name}' has reached its limit of 2 request(s) per minute." in str(refused.value)
            assert (await page.chat.completions.create(model="m", messages=HI)).choices
            clock.now += 30
            assert (await batch.chat.completions.create(model="m", messages=HI)).choices


async def test_routes_of_the_framework_count_too_and_reading_does_not(clock: Clock) -> None:
    async with gateway_harness(client_requests_per_minute=1) as gateway:
        await gateway.publish(route("m"))
        headers = {"x-client-id": "a"}
        for _ in range(3):
            reply = await gateway.get("/v1/models", headers=headers)
            assert (reply.status, reply.headers["x-ratelimit-remaining-requests"]) == (200, "1")
        assert (await gateway.request("DELETE", "/v1/responses/resp_x", headers=headers)).status == 404
        reply = await gateway.request("DELETE", "/v1/responses/resp_x", headers=headers)
        assert (reply.status, reply.headers["x-ratelimit-client"]) == (429, "a")
        for path in ("/health", "/metrics"):
            assert (await gateway.get(path, headers=headers)).status == 200


async def test_tokens_per_minute_are_limited_as_a_keys() -> None:
    async with gateway_harness(client_tokens_per_minute=1000) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], target_inflight=4))
        async with sdk(gateway, "a") as client:
            first = await client.chat.completions.with_raw_response.create(model="m", messages=HI, max_tokens=10)
            assert int(first.headers["x-ratelimit-remaining-tokens"]) < 1000
            with pytest.raises(openai.RateLimitError, match=r"1000 token\(s\) per minute"):
                await client.chat.completions.create(model="m", messages=HI, max_tokens=5000)


async def test_requests_at_a_time_are_counted_until_they_end() -> None:
    async with gateway_harness(client_concurrency=1) as gateway, holding() as engine:
        await gateway.publish(route("m", [engine.url], target_inflight=4))
        a, b = {"x-client-id": "a"}, {"x-client-id": "b"}
        running = [
            asyncio.ensure_future(gateway.chat(tag=tag, headers=headers))
            for tag, headers in (("first", a), ("other", b))
        ]
        await until("both are inside", lambda: len(engine.inside) == 2)
        reply = await gateway.chat(tag="second", headers=a)
        assert (reply.status, reply.headers["x-ratelimit-client"]) == (429, "a")
        engine.release_all()
        assert [(await task).status for task in running] == [200, 200]
        assert (await gateway.chat(tag="third", headers=a)).status == 200


async def test_limits_of_clients_are_off_by_default_and_do_not_hold_for_keys() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        reply = await gateway.chat(max_tokens=1)
        assert reply.status == 200
        assert not [name for name in reply.headers if "ratelimit" in name.lower()]
    async with gateway_harness(client_requests_per_minute=1) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]), keys=(key("a"),))
        asked = {"model": "m", "messages": HI}
        headers = {"authorization": "Bearer secret-a", "x-client-id": "b"}
        for _ in range(3):
            reply = await gateway.post("/v1/chat/completions", asked, headers=headers)
            assert (reply.status, reply.headers["x-client-id"]) == (200, "a")


SAID = b'{"error":{"code":400,"message":"request (9000 tokens) exceeds the available context size (4096 tokens)"}}'
HEAD = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(SAID)
LIMIT = 5000


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_takes_nothing_of_its_key_s_tokens_in_whatever_form_it_is_told(
    stream: bool, gateway: GatewayHarness
) -> None:
    async with scripted(script(HEAD + SAID)) as engine:
        await gateway.publish(route("m", [engine.url]), keys=(key("a", tokens_per_minute=LIMIT),))
        body: dict[str, Any] = {"model": "m", "input": "x" * 9000, "stream": stream}
        reply = await gateway.post("/v1/responses", body, key="secret-a")
        assert reply.status == (200 if stream else 400)
        assert b"However, your messages resulted in 9000 tokens" in reply.content
        assert int(reply.headers["x-ratelimit-remaining-tokens"]) < LIMIT - 2000, "estimated"
        body["model"] = "nobody"
        reply = await gateway.post("/v1/responses", body, key="secret-a")
        assert (reply.code, reply.headers["x-ratelimit-remaining-tokens"]) == ("unknown_model", str(LIMIT))
