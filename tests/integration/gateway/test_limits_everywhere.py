"""What holds on every route, the framework's too: limits of keys, scopes, forms of errors, ids of requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.routing.live_routes import LiveRoutes
from gateway.routing.table import Routes
from gateway.tenancy import rate_limits
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, gateway_harness
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.queueing import Clock, clock, key
from tests.support.raw_http import raw, request
from tests.support.wait import until

__all__ = ["clock", "loop_clock"]
BOTH = ("inference", "admin")
FRAMEWORK = (
    ("POST", "/v1/admin/plan"),
    ("DELETE", "/v1/responses/resp_x"),
    ("POST", "/nowhere"),
    ("PUT", "/v1/chat/completions"),
)
READING = (
    ("GET", "/v1/models"),
    ("GET", "/models"),
    ("GET", "/v1/models/m"),
    ("GET", "/v1/responses/resp_x"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/admin/status"),
    ("GET", "/nowhere"),
    ("HEAD", "/nowhere"),
)


@pytest.mark.parametrize(("method", "path"), FRAMEWORK)
async def test_requests_per_minute_hold_on_routes_of_the_framework(method: str, path: str, clock: Clock) -> None:
    async with gateway_harness() as gateway:
        await gateway.publish(route("m"), keys=(key("a", scopes=BOTH, requests_per_minute=2, tokens_per_minute=100),))
        for left in ("1", "0"):
            reply = await gateway.request(method, path, key="secret-a")
            assert reply.status != 429
            assert reply.headers["x-ratelimit-limit-requests"] == "2"
            assert reply.headers["x-ratelimit-remaining-requests"] == left
            assert reply.headers["x-ratelimit-remaining-tokens"] == "100"
            assert "x-ratelimit-client" not in reply.headers
        reply = await gateway.request(method, path, key="secret-a")
        assert reply.refusal == (429, "rate_limit_exceeded")
        assert reply.error["request_id"] == reply.headers["x-request-id"]
        assert (reply.headers["x-ratelimit-client"], reply.headers["retry-after"]) == ("a", "30")
        assert reply.headers["x-ratelimit-remaining-requests"] == "0"
        assert reply.headers["x-ratelimit-reset-requests"] == "1m0s"
        for open_path in ("/health", "/metrics"):
            assert (await gateway.get(open_path, key="secret-a")).status == 200
        assert (await gateway.get("/health")).status == 200
        clock.now += 30
        assert (await gateway.request(method, path, key="secret-a")).status != 429


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


async def test_the_framework_and_models_share_a_limit_and_a_refusal_uses_nothing_up(clock: Clock) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]), keys=(key("a", requests_per_minute=2),))
        assert (await gateway.request("POST", "/v1/admin/plan", key="secret-a")).status == 403
        assert (await gateway.request("POST", "/nowhere", key="secret-a")).headers[
            "x-ratelimit-remaining-requests"
        ] == "1"
        reply = await gateway.chat(messages=[], key="secret-a")
        assert (reply.status, reply.headers["x-ratelimit-remaining-requests"]) == (200, "0")
        assert (await gateway.request("POST", "/nowhere", key="secret-a")).status == 429
        assert (await gateway.get("/v1/models", key="secret-a")).status == 200


async def test_events_count_as_one_request_until_they_end() -> None:
    async with gateway_harness() as gateway:
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


async def test_the_list_of_models_needs_the_scope_inference_and_the_document_none() -> None:
    async with gateway_harness() as gateway:
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
async def test_errors_on_paths_of_messages_have_anthropics_form(path: str) -> None:
    async with gateway_harness() as gateway:
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
        ("POST", "/v1/models/m", "GET"),
        ("POST", "/health", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_all_right_ones(method: str, path: str, allowed: str) -> None:
    async with gateway_harness(engine_state_routes=True) as gateway:
        reply = await gateway.request(method, path, key="secret-a")
        assert (reply.status, reply.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_health_and_metrics_answer_head(path: str) -> None:
    async with gateway_harness() as gateway, raw(gateway) as client:
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
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_harness() as gateway:
        before = gateway.controller.connections

        def broken(_: object) -> str:
            monkeypatch.undo()
            raise LookupError("a bug")

        monkeypatch.setattr("gateway.control.link.ControllerLink._report", broken)
        async with asyncio.timeout(60):
            await gateway.publish(route("m"))
        assert gateway.controller.connections > before
        assert "a bug" in caplog.text
