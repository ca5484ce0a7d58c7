"""Requests for the admin routes through the gateway: who may send them, at which addresses, passed on as they come,
and each part of an answer at once.

Without keys they are open only where a setting says so. A connection's own local address counts: neither the peer's,
nor what a header says.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from gateway.api import forwarding
from gateway.settings import GatewaySettings
from tests.fakes.fake_controller import FakeController, route
from tests.fakes.gateway_harness import GatewayHarness, assemble_gateway, engines, gateway_harness, serving
from tests.fakes.mock_engine import MockEngine
from tests.support.admin import error_of, never, received
from tests.support.controller_app import running
from tests.support.gateway_process import ended, start
from tests.support.http_client import HttpClient, read_reply
from tests.support.networks import make_certificate
from tests.support.queueing import key
from tests.support.raw_http import raw, request
from tests.support.require import require
from tests.support.wait import until


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
async def test_every_method_is_passed_on_with_its_body(method: str, gateway: GatewayHarness) -> None:
    body = b'{"gguf_n_ctx": 8192}'
    reply = await gateway.request(method, "/v1/admin/models/m/load", data=body)
    assert (reply.status, reply.content) == (200, b"" if method == "HEAD" else b'{"models": []}')
    seen = gateway.controller.admin.requests[0]
    assert (seen.method, seen.target, seen.body) == (method, "/v1/admin/models/m/load", body)


@pytest.mark.parametrize(
    "target",
    [
        "/v1/admin/models/org%2Fa%3A8b/load?wait=false",
        "/v1/admin/models/org/a:8b/load",
        "/v1/admin/models/%C3%A4%20%2525/logs?follow=true&tail=10&x=a+b%20c&x=",
        "/v1/admin/events",
        "/v1/admin/",
    ],
)
async def test_path_and_query_stay_as_they_were_written(target: str, gateway: GatewayHarness) -> None:
    assert (await received(gateway, target)).target == target


@pytest.mark.parametrize(
    "target",
    [
        *("/v1/admin/../../internal/shutdown", "/v1/admin/..%2f..%2finternal/shutdown", "/v1/admin/%2e/models"),
        *("/internal/status", "/internal/link", "/v1/admin", "/v1/administer/x"),
    ],
)
async def test_no_path_leads_out_of_the_admin_routes(target: str, gateway: GatewayHarness) -> None:
    async with raw(gateway) as client:
        client.write(request("GET", target))
        answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (404, "unknown_route")
    assert not gateway.controller.admin.requests


async def test_of_the_clients_headers_only_these_are_passed_on(gateway: GatewayHarness) -> None:
    passed = {
        "content-type": "application/json; charset=utf-8",
        "accept": "text/event-stream",
        "last-event-id": "17",
        "if-none-match": '"abc"',
    }
    kept = {
        "authorization": "Bearer secret",
        "cookie": "secret=1",
        "x-api-key": "secret",
        "x-roundhouse-actor": "root",
        "x-roundhouse-gateway-token": "secret",
        "x-request-id": "mine",
        "x-forwarded-for": "10.0.0.1",
    }
    reply = await gateway.request("POST", "/v1/admin/plan", data=b"{}", headers=passed | kept)
    request_id = reply.headers["x-request-id"]
    seen = gateway.controller.admin.requests[0].headers
    assert passed.items() <= seen.items()
    assert "secret" not in str(seen)
    assert (seen["x-roundhouse-actor"], seen["x-request-id"]) == ("api 127.0.0.1", request_id)
    assert "x-forwarded-for" not in seen
    assert "content-type" not in (await received(gateway)).headers, "none was sent"


async def test_of_the_controllers_headers_only_these_come_back(gateway: GatewayHarness) -> None:
    passed = {
        "content-type": "application/problem+json",
        "retry-after": "7",
        "x-should-retry": "false",
        "cache-control": "no-cache",
        "location": "/v1/admin/models/m",
        "etag": '"abc"',
        "allow": "GET",
    }

    async def answer_so(_: web.Request) -> web.Response:
        own = {"server": "secret", "set-cookie": "secret=1", "x-request-id": "another"}
        return web.Response(status=409, body=b"{}", headers=passed | own)

    gateway.controller.admin.answer = answer_so
    reply = await gateway.get("/v1/admin/models", allow_redirects=False)
    assert reply.status == 409
    assert passed.items() <= {name.lower(): value for name, value in reply.headers.items()}.items()
    assert "secret" not in str(reply.headers)
    [request_id] = reply.headers.getall("x-request-id")
    assert request_id != "another"


async def test_an_unchanged_list_has_no_body(gateway: GatewayHarness) -> None:
    async def unchanged(_: web.Request) -> web.Response:
        return web.Response(status=304, headers={"etag": '"abc"'})

    gateway.controller.admin.answer = unchanged
    reply = await gateway.get("/v1/admin/models", headers={"if-none-match": '"abc"'})
    assert (reply.status, reply.headers["etag"], reply.content) == (304, '"abc"', b"")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_long_is_refused_here(chunked: bool, gateway: GatewayHarness) -> None:
    async def parts() -> Any:
        for _ in range(17):
            yield b"x" * 65536

    long = parts() if chunked else b"x" * (1024 * 1024 + 1)
    assert error_of(await gateway.request("POST", "/v1/admin/plan", data=long)).code == "body_too_large"
    assert not gateway.controller.admin.requests
    assert (await gateway.request("POST", "/v1/admin/plan", data=b"x" * (1024 * 1024))).status == 200
    assert len(gateway.controller.admin.requests[0].body) == 1024 * 1024


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "SHORT_BODY_TIMEOUT_S", 0.05)

    async def never() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    async with gateway_harness() as gateway, gateway.request("POST", "/v1/admin/plan", data=never()) as answer:
        assert error_of(await read_reply(answer)).code == "request_timeout"


@pytest.mark.parametrize("body", [b'{"replicas": "\xff"}', b"[" * 100_000, b'{"replicas": ' + b"9" * 5_000 + b"}"])
async def test_a_body_that_the_controller_cannot_read_is_told_in_its_words(tmp_path: Path, body: bytes) -> None:
    async with (
        running(tmp_path, {"m": {"backend": "stub", "enabled": False}}) as controller,
        serving(GatewaySettings(controller_url=controller.url)) as url,
        aiohttp.ClientSession() as client,
    ):
        gateway = HttpClient(url, client)

        async def has_table() -> bool:
            return (await gateway.get("/v1/models")).status == 200

        await until("the gateway has a table", has_table)
        error = error_of(await gateway.post("/v1/admin/models/m/load", body))
        assert (error.code, error.message) == ("schema_violation", "The body is not JSON that can be read.")


EVENT = b"id: 1\nevent: state\ndata: {}\n\n"


@pytest.mark.parametrize("content_type", ["text/event-stream; charset=utf-8", "text/plain"])
async def test_each_part_comes_at_once(content_type: str, gateway: GatewayHarness) -> None:
    gateway.controller.admin.answer = gateway.controller.admin.stream(content_type)
    async with gateway.get("/v1/admin/events") as answer:
        told = [answer.headers.get(name) for name in ("content-type", "cache-control", "x-accel-buffering")]
        assert told == [content_type, "no-store", "no" if "event" in content_type else None], "before the first part"
        for number in range(3):
            part = b"data: %d\n\n" % number
            gateway.controller.admin.parts.put_nowait(part)
            assert await answer.content.readexactly(len(part)) == part
        gateway.controller.admin.parts.put_nowait(None)
        assert await answer.read() == b""


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_closes_the_connection_to_the_controller(
    begun: bool, gateway: GatewayHarness
) -> None:
    gateway.controller.admin.answer = gateway.controller.admin.stream("text/event-stream")
    call = gateway.get("/v1/admin/events")
    if begun:
        gateway.controller.admin.parts.put_nowait(EVENT)
        answer = await call.__aenter__()
        await answer.content.readexactly(len(EVENT))
        answer.close()
    else:
        gateway.controller.admin.answer = never
        waiting = asyncio.create_task(call.__aenter__())
        await until("the controller has it", lambda: gateway.controller.admin.running == 1)
        waiting.cancel()
    await until("the controller sees it", lambda: gateway.controller.admin.cancelled == 1)


async def test_a_controller_that_dies_ends_a_stream_of_events_with_an_event(gateway: GatewayHarness) -> None:
    gateway.controller.admin.answer = gateway.controller.admin.stream("text/event-stream")
    async with gateway.get("/v1/admin/events") as answer:
        gateway.controller.admin.parts.put_nowait(EVENT + b"id: 2\nda")
        await answer.content.readexactly(len(EVENT))
        gateway.controller.admin.drop_connections()
        last = (await answer.read()).decode()
        assert last.startswith("event: error\ndata: "), "no half event before it"
        assert last.endswith("\n\n")
        error = json.loads(last.removeprefix("event: error\ndata: "))["error"]
        assert (error["code"], error["request_id"]) == ("controller_unavailable", answer.headers["x-request-id"])


@pytest.mark.parametrize("length", [None, "1000"])
async def test_a_controller_that_dies_leaves_any_other_answer_unfinished(
    length: str | None, gateway: GatewayHarness
) -> None:
    async def dies(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/plain"})
        response.content_length = int(length) if length else None
        await response.prepare(request)
        await response.write(b"line 1\n")
        await asyncio.Event().wait()
        return response

    gateway.controller.admin.answer = dies
    async with gateway.get("/v1/admin/models/m/logs") as answer:
        await answer.content.readexactly(7)
        gateway.controller.admin.drop_connections()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_a_controller_that_dies_before_it_answers(gateway: GatewayHarness) -> None:
    gateway.controller.admin.answer = never
    call = asyncio.ensure_future(gateway.request("POST", "/v1/admin/models/m/load"))
    await until("the controller has it", lambda: gateway.controller.admin.running == 1)
    gateway.controller.admin.drop_connections()
    reply = await call
    error = error_of(reply)
    assert (error.code, reply.headers["retry-after"]) == ("controller_unavailable", "5")
    assert "may have taken" in error.message
    assert len(gateway.controller.admin.requests) == 1, "it is not sent twice"


async def test_without_a_controller_the_admin_routes_are_closed_and_inference_goes_on(
    gateway: GatewayHarness, engine: MockEngine
) -> None:
    await gateway.controller.stop()
    reply = await gateway.get("/v1/admin/models")
    error = error_of(reply)
    assert (reply.status, error.code, reply.headers["retry-after"]) == (503, "controller_unavailable", "5")
    assert error.next_steps
    assert (await gateway.chat()).status == 200
    await gateway.controller.start()
    assert (await received(gateway)).method == "GET"


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_a_gateway_that_never_had_a_controller(kind: str, tmp_path: Any) -> None:
    where = f"unix:{tmp_path / 'c.sock'}" if kind == "unix" else "http://127.0.0.1:9"
    async with serving(GatewaySettings(controller_url=where)) as url, aiohttp.ClientSession() as client:
        for path in ("/v1/admin/models", "/openapi.json"):  # whether there are keys is not known
            assert error_of(await HttpClient(url, client).get(path)).code == "controller_unavailable"
        if kind == "unix":
            controller = FakeController()
            await controller.start(tmp_path / "c.sock")
            await controller.acknowledged(await controller.publish())
            assert (await HttpClient(url, client).get("/v1/admin/models")).status == 200
            await controller.stop()


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_many_follow_at_once_and_inference_goes_on(kind: str, tmp_path: Any) -> None:
    controller = FakeController()
    await controller.start(tmp_path / "c.sock" if kind == "unix" else None)
    controller.admin.answer = controller.admin.stream("text/event-stream")
    async with (
        serving(GatewaySettings(controller_url=controller.url)) as url,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
        engines(1) as (engine,),
    ):
        await until("the gateway connects", lambda: bool(controller.reports))
        gateway = GatewayHarness(controller, url, client)
        await gateway.publish(route("m", [engine.url]))
        followers = [await client.get(url + "/v1/admin/events") for _ in range(150)]
        assert (await gateway.chat()).status == 200
        for follower in followers:
            follower.close()
        await until("the controller has it", lambda: controller.admin.running == 0)
        await controller.stop()


@pytest.mark.parametrize("follows", [True, False])
async def test_a_stop_ends_events_at_once_and_a_load_that_is_waited_for_when_the_grace_is_over(follows: bool) -> None:
    controller = FakeController()
    await controller.start()
    controller.admin.answer = controller.admin.stream("text/event-stream") if follows else never
    settings = GatewaySettings(controller_url=controller.url, shutdown_grace_s=3600 if follows else 0)
    async with aiohttp.ClientSession() as client:
        async with serving(settings) as url:
            await controller.acknowledged(await controller.publish())
            path = "/v1/admin/events" if follows else "/v1/admin/models/m/load"
            call = asyncio.create_task(client.request("GET" if follows else "POST", url + path).__aenter__())
            await until("the controller has it", lambda: controller.admin.running == 1)
            if follows:
                await call
        last = await (await call).text()
    assert json.loads(last.removeprefix("event: error\ndata: "))["error"]["code"] == "gateway_stopping"
    await controller.stop()


MEANT, OTHER = "127.0.0.2", "127.0.0.3"
"""Both are listened on; admin requests are for the first."""
ADMIN_ROUTES = [
    ("POST" if method == "*" else method, path.replace("{rest:path}", "plan").replace("{id}", "0"))
    for method, path, access in assemble_gateway(GatewaySettings()).app.access.list_declarations()
    if access == "admin"
]
REFUSALS = ("admin_closed", "admin_not_here")
KEYS = (key("boss", scopes=("admin",)), key("user", scopes=("inference",)))
BOSS, USER = ({"authorization": f"Bearer secret-{name}"} for name in ("boss", "user"))


async def code_of(
    gateway: GatewayHarness,
    method: str,
    path: str,
    *,
    at: str | None = None,
    headers: dict[str, str] | None = None,
    **connecting: Any,
) -> str:
    """The error code that a request is refused with, or `status N`. `at`: the address that is connected to."""
    parts = urlsplit(gateway.url)
    url = f"{parts.scheme}://{f'[{at}]' if at and ':' in at else at or parts.hostname}:{parts.port}{path}"
    body = {"model": "m", "prompt": "Hi"} if method == "POST" else None
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(**connecting)) as client,
        client.request(method, url, json=body, headers=headers) as answer,
    ):
        text = await answer.text()
        is_refusal = answer.status == 403 and text
        return str(json.loads(text)["error"]["code"]) if is_refusal else f"status {answer.status}"


async def inference_at(gateway: GatewayHarness, at: str | None = None, headers: dict[str, str] | None = None) -> str:
    return await code_of(gateway, "POST", "/v1/completions", at=at, headers=headers)


@asynccontextmanager
async def open_gateway(**settings: Any) -> AsyncIterator[GatewayHarness]:
    """A gateway with the model `m` and every route switched on."""
    async with gateway_harness(engine_state_routes=True, **settings) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        yield gateway


async def admin_codes(gateway: GatewayHarness, **request: Any) -> set[str]:
    """What every admin route refuses such a request with."""
    return {await code_of(gateway, method, path, **request) for method, path in ADMIN_ROUTES}


def test_admin_routes_are_of_the_framework_and_of_inference() -> None:
    some = {("POST", "/v1/admin/plan"), ("GET", "/slots"), ("POST", "/slots/0"), ("POST", "/props")}
    assert some | {("POST", "/lora-adapters")} < {*ADMIN_ROUTES}


@pytest.mark.parametrize(
    ("settings", "is_open"),
    [
        ({}, True),
        ({"open_admin": False}, False),
        ({"host": "0.0.0.0", "open": True}, False),
        ({"host": "127.0.0.1,0.0.0.0", "open": True}, False),
        ({"host": "0.0.0.0", "open": True, "open_admin": True}, True),
    ],
)
async def test_without_keys_admin_routes_are_open_where_the_setting_says_so(
    settings: dict[str, Any], is_open: bool
) -> None:
    async with open_gateway(**settings) as gateway:
        codes = await admin_codes(gateway)
        if is_open:
            assert not codes & set(REFUSALS)
            assert gateway.controller.admin.requests
        else:
            assert codes == {"admin_closed"}
            assert not gateway.controller.admin.requests
        assert await inference_at(gateway) == "status 200"
        assert await code_of(gateway, "GET", "/v1/models") == "status 200"
        assert await code_of(gateway, "GET", "/health") == "status 200"


async def test_who_is_refused_is_told_what_to_do() -> None:
    async with open_gateway(open_admin=False) as gateway:
        reply = await gateway.post("/v1/admin/plan")
        told = reply.error
        steps = " ".join(told["next_steps"])
        assert reply.headers["x-should-retry"] == "false"
    assert "roundhouse key new" in steps
    assert "ROUNDHOUSE_OPEN_ADMIN=1" in steps


@pytest.mark.parametrize("open_admin", [True, False])
async def test_with_keys_their_scopes_rule(open_admin: bool) -> None:
    async with open_gateway(host="0.0.0.0", open=True, open_admin=open_admin) as gateway:
        await gateway.publish(keys=KEYS)
        assert not await admin_codes(gateway, headers=BOSS) & set(REFUSALS)
        assert await admin_codes(gateway, headers=USER) == {"scope_required"}
        assert await admin_codes(gateway) == {"status 401"}


@pytest.mark.parametrize("keys", [(), KEYS], ids=["without keys", "with keys"])
async def test_admin_requests_are_taken_at_the_addresses_meant_for_them_alone(keys: tuple[Any, ...]) -> None:
    headers = BOSS if keys else {}
    async with open_gateway(host=f"{MEANT},{OTHER}", admin_host=(MEANT,)) as gateway:
        await gateway.publish(keys=keys)
        assert not await admin_codes(gateway, at=MEANT, headers=headers) & set(REFUSALS)
        gateway.controller.admin.requests.clear()
        assert await admin_codes(gateway, at=OTHER, headers=headers) == {"admin_not_here"}
        for lie in (MEANT, f"{MEANT}:80", "localhost"):
            forwarded = {"x-forwarded-for": MEANT, "forwarded": f"for={MEANT};host={MEANT}", "x-forwarded-host": MEANT}
            assert await admin_codes(gateway, at=OTHER, headers=headers | {"host": lie} | forwarded) == {
                "admin_not_here"
            }
        assert await admin_codes(gateway, at=OTHER, headers=headers, local_addr=(MEANT, 0)) == {"admin_not_here"}
        for method in ("GET", "DELETE", "PUT", "PATCH"):
            assert await code_of(gateway, method, "/v1/admin/models", at=OTHER, headers=headers) == "admin_not_here"
            assert await code_of(gateway, method, "/v1/%61dmin/models", at=OTHER, headers=headers) == "admin_not_here"
        assert not gateway.controller.admin.requests
        assert not await admin_codes(gateway, at=MEANT, headers=headers, local_addr=(OTHER, 0)) & set(REFUSALS)


async def test_inference_goes_on_where_administration_does_not() -> None:
    async with open_gateway(host=f"{MEANT},{OTHER}", admin_host=(MEANT,)) as gateway:
        for at in (MEANT, OTHER):
            assert await inference_at(gateway, at) == "status 200"
            assert await code_of(gateway, "GET", "/v1/models", at=at) == "status 200"


async def test_the_address_counts_where_the_gateway_listens_on_all_of_them() -> None:
    async with open_gateway(host="0.0.0.0", open=True, open_admin=True, admin_host=(MEANT, "localhost")) as gateway:
        for at in (MEANT, "127.0.0.1"):
            assert not await admin_codes(gateway, at=at) & set(REFUSALS)
        assert await admin_codes(gateway, at=OTHER) == {"admin_not_here"}


async def test_of_both_families_at_one_socket_an_address_is_the_same_by_either_name() -> None:
    """Such a socket knows its IPv4 addresses as `::ffff:127.0.0.2`."""
    require("ipv6", _has_ipv6(), "no IPv6 on this machine")
    settings: dict[str, Any] = {"host": "::", "open": True, "open_admin": True}
    async with open_gateway(**settings, admin_host=(MEANT, "::1")) as gateway:
        for at in (MEANT, "::1"):
            assert not await admin_codes(gateway, at=at) & set(REFUSALS)
        assert await admin_codes(gateway, at=OTHER) == {"admin_not_here"}
    async with open_gateway(**settings, admin_host=(f"::ffff:{MEANT}",)) as gateway:
        assert not await admin_codes(gateway, at=MEANT) & set(REFUSALS)
        for at in (OTHER, "::1"):
            assert await admin_codes(gateway, at=at) == {"admin_not_here"}


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


async def test_the_address_counts_behind_tls(tmp_path: Path) -> None:
    certificate, private_key = make_certificate(tmp_path)
    settings: dict[str, Any] = {"tls_cert": certificate, "tls_key": private_key}
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    async with open_gateway(host=f"{MEANT},{OTHER}", admin_host=(MEANT,), **settings) as gateway:
        assert not await admin_codes(gateway, at=MEANT, ssl=unverified) & set(REFUSALS)
        assert await admin_codes(gateway, at=OTHER, ssl=unverified) == {"admin_not_here"}


@pytest.mark.parametrize(
    ("admin_host", "words"),
    [("127.0.0.1,no-such-host.invalid", "no-such-host.invalid"), ("0.0.0.0", "0.0.0.0"), ("127.0.0.1,::", "::")],
)
async def test_addresses_that_cannot_be_meant_are_told_in_one_line(admin_host: str, words: str) -> None:
    settings = {"ROUNDHOUSE_PORT": "0", "ROUNDHOUSE_RESPONSES_RETENTION_H": "0"}
    code, said = await ended(await start(ROUNDHOUSE_ADMIN_HOST=admin_host, **settings))
    assert (code, said.count("\n")) == (2, 1), said
    assert f"ROUNDHOUSE_ADMIN_HOST: {words}" in said


async def test_a_state_folder_that_cannot_be_used_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "streams").write_text("a file in the place of a folder")
    settings = {"ROUNDHOUSE_PORT": "0", "ROUNDHOUSE_STATE": str(tmp_path)}
    code, said = await ended(await start(**settings))
    assert (code, said.count("\n")) == (2, 1), said
    assert f"{tmp_path}/streams: " in said
