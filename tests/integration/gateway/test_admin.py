"""Requests for the admin routes through the gateway: passed on as they come, and no others."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.api import admin
from gateway.settings import GatewaySettings
from tests.fakes.gateway_harness import gateway_harness, serving
from tests.support.controller_app import running
from tests.support.forwarding import error_of, received
from tests.support.http_client import read_reply
from tests.support.wait import until


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
async def test_every_method_is_passed_on_with_its_body(method: str) -> None:
    async with gateway_harness() as gateway:
        body = b'{"gguf_n_ctx": 8192}'
        async with gateway.request(method, "/v1/admin/models/m/load", data=body) as answer:
            assert answer.status == 200
            assert await answer.read() == (b"" if method == "HEAD" else b'{"models": []}')
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
async def test_path_and_query_stay_as_they_were_written(target: str) -> None:
    async with gateway_harness() as gateway:
        assert (await received(gateway, target)).target == target


@pytest.mark.parametrize(
    "target", ["/v1/admin/../../internal/shutdown", "/v1/admin/..%2f..%2finternal/shutdown", "/v1/admin/%2e/models"]
)
async def test_no_path_leads_out_of_the_admin_routes(target: str) -> None:
    async with gateway_harness() as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "unknown_route"
        assert not gateway.controller.admin.requests


async def test_the_controllers_own_routes_are_not_reached() -> None:
    async with gateway_harness() as gateway:
        for path in ("/internal/status", "/internal/link", "/v1/admin", "/v1/administer/x"):
            assert error_of(await gateway.get(path)).code == "unknown_route"
        assert not gateway.controller.admin.requests


async def test_of_the_clients_headers_only_these_are_passed_on() -> None:
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
    async with gateway_harness() as gateway:
        async with gateway.request("POST", "/v1/admin/plan", data=b"{}", headers=passed | kept) as answer:
            request_id = answer.headers["x-request-id"]
        seen = gateway.controller.admin.requests[0].headers
        assert passed.items() <= seen.items()
        assert "secret" not in str(seen)
        assert (seen["x-roundhouse-actor"], seen["x-request-id"]) == ("api 127.0.0.1", request_id)
        assert "x-forwarded-for" not in seen
        assert "content-type" not in (await received(gateway)).headers, "none was sent"


async def test_of_the_controllers_headers_only_these_come_back() -> None:
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

    async with gateway_harness() as gateway:
        gateway.controller.admin.answer = answer_so
        async with gateway.get("/v1/admin/models", allow_redirects=False) as answer:
            assert answer.status == 409
            assert passed.items() <= {name.lower(): value for name, value in answer.headers.items()}.items()
            assert "secret" not in str(answer.headers)
            assert len(answer.headers.getall("x-request-id")) == 1
            assert answer.headers["x-request-id"] != "another"


async def test_an_unchanged_list_has_no_body() -> None:
    async def unchanged(_: web.Request) -> web.Response:
        return web.Response(status=304, headers={"etag": '"abc"'})

    async with gateway_harness() as gateway:
        gateway.controller.admin.answer = unchanged
        async with gateway.get("/v1/admin/models", headers={"if-none-match": '"abc"'}) as answer:
            assert (answer.status, answer.headers["etag"], await answer.read()) == (304, '"abc"', b"")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_long_is_refused_here(chunked: bool) -> None:
    async def parts() -> Any:
        for _ in range(17):
            yield b"x" * 65536

    async with gateway_harness() as gateway:
        long = parts() if chunked else b"x" * (1024 * 1024 + 1)
        assert error_of(await gateway.request("POST", "/v1/admin/plan", data=long)).code == "body_too_large"
        assert not gateway.controller.admin.requests
        async with gateway.request("POST", "/v1/admin/plan", data=b"x" * (1024 * 1024)) as answer:
            assert answer.status == 200
        assert len(gateway.controller.admin.requests[0].body) == 1024 * 1024


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "BODY_TIMEOUT_S", 0.05)

    async def never() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    async with gateway_harness() as gateway, gateway.request("POST", "/v1/admin/plan", data=never()) as answer:
        assert error_of(await read_reply(answer)).code == "request_timeout"


async def test_foreign_hosts_and_pages_are_refused() -> None:
    async with gateway_harness() as gateway:
        for headers, code in (
            ({"host": "evil.example"}, "forbidden_host"),
            ({"origin": "https://evil.example"}, "forbidden_origin"),
        ):
            assert error_of(await gateway.request("POST", "/v1/admin/models/m/load", headers=headers)).code == code
        assert not gateway.controller.admin.requests


@pytest.mark.parametrize("body", [b'{"replicas": "\xff"}', b"[" * 100_000, b'{"replicas": ' + b"9" * 5_000 + b"}"])
async def test_a_body_that_the_controller_cannot_read_is_told_in_its_words(tmp_path: Path, body: bytes) -> None:
    async with (
        running(tmp_path, {"m": {"backend": "stub", "enabled": False}}) as controller,
        serving(GatewaySettings(controller_url=controller.url)) as url,
        aiohttp.ClientSession() as client,
    ):

        async def has_table() -> bool:
            async with client.get(f"{url}/v1/models") as answer:
                return answer.status == 200

        await until("the gateway has a table", has_table)
        path, headers = f"{url}/v1/admin/models/m/load", {"content-type": "application/json"}
        async with client.post(path, data=body, headers=headers) as answer:
            error = error_of(await read_reply(answer))
        assert (error.code, error.message) == ("schema_violation", "The body is not JSON that can be read.")
