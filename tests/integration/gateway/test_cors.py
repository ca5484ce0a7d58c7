"""CORS: off unless origins are named, and then for these alone, on every kind of answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support.http_client import Reply
from tests.support.queueing import key
from tests.support.raw_http import chat_body, raw, request, spotless

CHAT = "https://chat.example"
ROUTES = ("/v1/chat/completions", "/v1/messages", "/v1/models", "/v1/admin/plan", "/openapi.json")
ALLOW = "access-control-allow-origin"


async def send(gateway: GatewayHarness, method: str, path: str, origin: str | None, **more: Any) -> Reply:
    """A request of a page of that origin."""
    headers = ({"origin": origin} if origin else {}) | more.pop("headers", {})
    return await gateway.request(method, path, headers=headers, **more)


def preflight(method: str = "POST", *names: str) -> dict[str, str]:
    return {"access-control-request-method": method} | (
        {"access-control-request-headers": ", ".join(names)} if names else {}
    )


@pytest.mark.parametrize("path", ROUTES)
async def test_off_nothing_is_said_and_no_question_is_answered(path: str, gateway: GatewayHarness) -> None:
    for origin in (None, gateway.url):
        reply = await send(gateway, "GET", path, origin)
        assert not [name for name in reply.headers if name.lower().startswith("access-control-")]
    reply = await send(gateway, "OPTIONS", path, CHAT, headers=preflight())
    assert reply.refusal == (403, "forbidden_origin")
    assert ALLOW not in reply.headers


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("with_keys", [False, True])
async def test_a_question_before_the_request_is_answered_without_a_key(path: str, with_keys: bool) -> None:
    async with gateway_harness(cors_origins=(CHAT,)) as gateway:
        await gateway.publish(route("m"), keys=(key("alice"),) if with_keys else ())
        names = ("authorization", "content-type", "x-stainless-lang")
        reply = await send(gateway, "OPTIONS", path, CHAT, headers=preflight("POST", *names))
        assert (reply.status, reply.headers[ALLOW], reply.headers["vary"]) == (204, CHAT, "origin")
        assert reply.headers["access-control-allow-headers"] == ", ".join(names)
        assert "POST" in reply.headers["access-control-allow-methods"]
        assert "access-control-allow-credentials" not in reply.headers
        reply = await send(gateway, "OPTIONS", path, "https://evil.example", headers=preflight())
        assert reply.status == (401 if with_keys else 403)
        assert ALLOW not in reply.headers
        assert (await send(gateway, "OPTIONS", path, CHAT)).status != 204, "that is no question"


async def test_answers_of_every_kind_may_be_read_by_named_origins_alone() -> None:
    async with gateway_harness(cors_origins=(CHAT, "http://localhost:3000")) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]), keys=(key("alice", scopes=("inference", "admin")),))
        bearer = {"authorization": "Bearer secret-alice"}
        kinds: list[tuple[int, str, str, dict[str, Any]]] = [
            (200, "POST", "/v1/chat/completions", {"headers": bearer, "data": chat_body()}),
            (200, "POST", "/v1/chat/completions", {"headers": bearer, "data": chat_body(stream=True)}),
            (400, "POST", "/v1/chat/completions", {"headers": bearer, "data": b"{"}),
            (500, "POST", "/v1/chat/completions", {"headers": bearer, "data": chat_body(fault="error_html")}),
            (401, "POST", "/v1/messages", {"data": chat_body()}),
            (405, "PUT", "/v1/chat/completions", {"headers": bearer}),
            (200, "GET", "/v1/models", {"headers": bearer}),
            (401, "GET", "/v1/models", {}),
            (404, "GET", "/v1/models/x", {"headers": bearer}),
            (404, "GET", "/nowhere", {"headers": bearer}),
            (200, "POST", "/v1/admin/plan", {"headers": bearer, "data": b"{}"}),
            (200, "GET", "/health", {}),
        ]
        for status, method, path, more in kinds:
            for origin in (CHAT, "http://localhost:3000", "https://evil.example", None):
                reply = await send(gateway, method, path, origin, **more)
                assert reply.status == status, (method, path)
                is_named = origin in (CHAT, "http://localhost:3000")
                assert reply.headers.getall(ALLOW, []) == ([origin] if is_named else []), (method, path, origin)
                assert reply.headers.getall("vary") == ["origin"], "a cache must not mix them"
                assert ("x-request-id" in reply.headers.get("access-control-expose-headers", "")) is is_named
                assert "access-control-allow-credentials" not in reply.headers


async def test_a_star_is_every_origin() -> None:
    async with gateway_harness(cors_origins=("*",)) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        for method, path, more in (("POST", "/v1/chat/completions", {"data": chat_body()}), ("GET", "/v1/models", {})):
            reply = await send(gateway, method, path, "https://any.example", **more)
            assert (reply.status, reply.headers[ALLOW]) == (200, "*")
            assert "access-control-allow-credentials" not in reply.headers
        reply = await send(gateway, "OPTIONS", "/v1/models", "null", headers=preflight("GET"))
        assert (reply.status, reply.headers[ALLOW]) == (204, "*")


async def test_a_question_cannot_put_words_into_the_answer() -> None:
    async with gateway_harness(cors_origins=(CHAT,)) as gateway, raw(gateway) as client:
        for number, names in enumerate(("x\tset-cookie: a", "\x80", "a" * 3000, "a;b"), 1):
            asking = [
                f"origin: {CHAT}",
                "access-control-request-method: POST",
                f"access-control-request-headers: {names}",
            ]
            client.write(request("OPTIONS", "/v1/models", headers=asking))
            answer = await client.answer(number)
            assert answer.status == 204
            assert answer["access-control-allow-headers"].startswith("authorization, ")
        client.close()
        await spotless(gateway)
