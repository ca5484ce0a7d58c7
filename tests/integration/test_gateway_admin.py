"""The admin routes through the gateway: passed on as they come, at once, and gone with the controller."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from controller.schema.errors import ErrorBody, ErrorEnvelope
from gateway.api import admin
from gateway.settings import GatewaySettings
from tests.fakes.fake_admin import Asked
from tests.fakes.fake_controller import FakeController, route
from tests.fakes.gateway_harness import House, engines, house, serving, until

EVENT = b"id: 1\nevent: state\ndata: {}\n\n"


def ask(here: House, target: str, method: str = "GET", **more: Any) -> Any:
    """A request whose target is sent as it is written."""
    return here.client.request(method, URL(here.url + target, encoded=True), **more)


async def error_of(answer: aiohttp.ClientResponse) -> ErrorBody:
    """The envelope's inner object, which has the answer's id."""
    error = ErrorEnvelope.model_validate(await answer.json()).error
    assert (error.status, error.request_id) == (answer.status, answer.headers["x-request-id"])
    return error


async def said(here: House, path: str = "/v1/admin/models") -> Asked:
    """What the controller sees of a request."""
    async with ask(here, path) as answer:
        assert answer.status == 200
        await answer.read()
    return here.controller.admin.asked[-1]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
async def test_every_method_is_passed_on_with_its_body(method: str) -> None:
    async with house() as here:
        body = b'{"gguf_n_ctx": 8192}'
        async with ask(here, "/v1/admin/models/m/load", method, data=body) as answer:
            assert answer.status == 200
            assert await answer.read() == (b"" if method == "HEAD" else b'{"models": []}')
        seen = here.controller.admin.asked[0]
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
    async with house() as here:
        assert (await said(here, target)).target == target


@pytest.mark.parametrize(
    "target", ["/v1/admin/../../internal/shutdown", "/v1/admin/..%2f..%2finternal/shutdown", "/v1/admin/%2e/models"]
)
async def test_no_path_leads_out_of_the_admin_routes(target: str) -> None:
    async with house() as here:
        host, port = here.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "unknown_route"
        assert not here.controller.admin.asked


async def test_the_controllers_own_routes_are_not_reached() -> None:
    async with house() as here:
        for path in ("/internal/status", "/internal/link", "/v1/admin", "/v1/administer/x"):
            async with ask(here, path) as answer:
                assert (await error_of(answer)).code == "unknown_route"
        assert not here.controller.admin.asked


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
        "x-request-id": "mine",
        "x-forwarded-for": "10.0.0.1",
    }
    async with house() as here:
        async with ask(here, "/v1/admin/plan", "POST", data=b"{}", headers=passed | kept) as answer:
            request_id = answer.headers["x-request-id"]
        seen = here.controller.admin.asked[0].headers
        assert passed.items() <= seen.items()
        assert "secret" not in str(seen)
        assert (seen["x-roundhouse-actor"], seen["x-request-id"]) == ("api 127.0.0.1", request_id)
        assert "x-forwarded-for" not in seen
        assert "content-type" not in (await said(here)).headers, "none was sent"


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

    async with house() as here:
        here.controller.admin.answer = answer_so
        async with ask(here, "/v1/admin/models", allow_redirects=False) as answer:
            assert answer.status == 409
            assert passed.items() <= {name.lower(): value for name, value in answer.headers.items()}.items()
            assert "secret" not in str(answer.headers)
            assert len(answer.headers.getall("x-request-id")) == 1
            assert answer.headers["x-request-id"] != "another"


async def test_an_unchanged_list_has_no_body() -> None:
    async def unchanged(_: web.Request) -> web.Response:
        return web.Response(status=304, headers={"etag": '"abc"'})

    async with house() as here:
        here.controller.admin.answer = unchanged
        async with ask(here, "/v1/admin/models", headers={"if-none-match": '"abc"'}) as answer:
            assert (answer.status, answer.headers["etag"], await answer.read()) == (304, '"abc"', b"")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_long_is_refused_here(chunked: bool) -> None:
    async def parts() -> Any:
        for _ in range(17):
            yield b"x" * 65536

    async with house() as here:
        long = parts() if chunked else b"x" * (1024 * 1024 + 1)
        async with ask(here, "/v1/admin/plan", "POST", data=long) as answer:
            assert (await error_of(answer)).code == "body_too_large"
        assert not here.controller.admin.asked
        async with ask(here, "/v1/admin/plan", "POST", data=b"x" * (1024 * 1024)) as answer:
            assert answer.status == 200
        assert len(here.controller.admin.asked[0].body) == 1024 * 1024


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "BODY_TIMEOUT_S", 0.05)

    async def never() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    async with house() as here, ask(here, "/v1/admin/plan", "POST", data=never()) as answer:
        assert (await error_of(answer)).code == "request_timeout"


async def test_foreign_hosts_and_pages_are_refused() -> None:
    async with house() as here:
        for headers, code in (
            ({"host": "evil.example"}, "forbidden_host"),
            ({"origin": "https://evil.example"}, "forbidden_origin"),
        ):
            async with ask(here, "/v1/admin/models/m/load", "POST", headers=headers) as answer:
                assert (await error_of(answer)).code == code
        assert not here.controller.admin.asked


@pytest.mark.parametrize("content_type", ["text/event-stream; charset=utf-8", "text/plain"])
async def test_each_part_comes_at_once(content_type: str) -> None:
    async with house() as here:
        here.controller.admin.answer = here.controller.admin.stream(content_type)
        async with ask(here, "/v1/admin/events") as answer:
            assert answer.headers["content-type"] == content_type
            assert answer.headers["cache-control"] == "no-store"
            for number in range(3):
                part = b"data: %d\n\n" % number
                here.controller.admin.parts.put_nowait(part)
                assert await answer.content.readexactly(len(part)) == part
            here.controller.admin.parts.put_nowait(None)
            assert await answer.read() == b""


async def test_headers_come_before_the_first_event() -> None:
    async with house() as here:
        here.controller.admin.answer = here.controller.admin.stream("text/event-stream")
        async with ask(here, "/v1/admin/events") as answer:
            assert (answer.status, answer.headers["x-accel-buffering"]) == (200, "no")


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_closes_the_connection_to_the_controller(begun: bool) -> None:
    async with house() as here:
        here.controller.admin.answer = here.controller.admin.stream("text/event-stream")
        call = ask(here, "/v1/admin/events")
        if begun:
            here.controller.admin.parts.put_nowait(EVENT)
            answer = await call
            await answer.content.readexactly(len(EVENT))
            answer.close()
        else:
            here.controller.admin.answer = never
            waiting = asyncio.create_task(call.__aenter__())
            await until(lambda: here.controller.admin.running == 1)
            waiting.cancel()
        await until(lambda: here.controller.admin.cancelled == 1, "the controller sees it")


async def never(_: web.Request) -> web.Response:
    """An answer that does not come."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_controller_that_dies_ends_a_stream_of_events_with_an_event() -> None:
    async with house() as here:
        here.controller.admin.answer = here.controller.admin.stream("text/event-stream")
        async with ask(here, "/v1/admin/events") as answer:
            here.controller.admin.parts.put_nowait(EVENT + b"id: 2\nda")
            await answer.content.readexactly(len(EVENT))
            here.controller.admin.drop_connections()
            last = (await answer.read()).decode()
            assert last.startswith("event: error\ndata: "), "no half event before it"
            assert last.endswith("\n\n")
            error = json.loads(last.removeprefix("event: error\ndata: "))["error"]
            assert (error["code"], error["request_id"]) == ("controller_unavailable", answer.headers["x-request-id"])


@pytest.mark.parametrize("length", [None, "1000"])
async def test_a_controller_that_dies_leaves_any_other_answer_unfinished(length: str | None) -> None:
    async def dies(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/plain"})
        response.content_length = int(length) if length else None
        await response.prepare(request)
        await response.write(b"line 1\n")
        await asyncio.Event().wait()
        return response

    async with house() as here:
        here.controller.admin.answer = dies
        async with ask(here, "/v1/admin/models/m/logs") as answer:
            await answer.content.readexactly(7)
            here.controller.admin.drop_connections()
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()


async def test_a_controller_that_dies_before_it_answers() -> None:
    async with house() as here:
        here.controller.admin.answer = never
        call = asyncio.create_task(ask(here, "/v1/admin/models/m/load", "POST").__aenter__())
        await until(lambda: here.controller.admin.running == 1)
        here.controller.admin.drop_connections()
        async with await call as answer:
            error = await error_of(answer)
            assert (error.code, answer.headers["retry-after"]) == ("controller_unavailable", "5")
            assert "may have taken" in error.message
        assert len(here.controller.admin.asked) == 1, "it is not sent twice"


async def test_without_a_controller_the_admin_routes_are_closed_and_inference_goes_on() -> None:
    async with house() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        await here.controller.stop()
        async with ask(here, "/v1/admin/models") as answer:
            error = await error_of(answer)
            assert (answer.status, error.code, answer.headers["retry-after"]) == (503, "controller_unavailable", "5")
            assert error.next_steps
        async with here.chat() as answer:
            assert answer.status == 200
        await here.controller.start()
        assert (await said(here)).method == "GET"


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_a_gateway_that_never_had_a_controller(kind: str, tmp_path: Any) -> None:
    where = f"unix:{tmp_path / 'c.sock'}" if kind == "unix" else "http://127.0.0.1:9"
    async with serving(GatewaySettings(controller_url=where)) as url, aiohttp.ClientSession() as client:
        async with client.get(url + "/v1/admin/models") as answer:
            assert (await error_of(answer)).code == "controller_unavailable"
        async with client.get(url + "/openapi.json") as answer:
            assert "/v1/chat/completions" in (await answer.json())["paths"]
        if kind == "unix":
            controller = FakeController()
            await controller.start(tmp_path / "c.sock")
            async with client.get(url + "/v1/admin/models") as answer:
                assert answer.status == 200
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
        await until(lambda: bool(controller.reports), "the gateway connects")
        here = House(controller, url, client)
        await here.publish(route("m", [engine.url]))
        followers = [await client.get(url + "/v1/admin/events") for _ in range(150)]
        async with here.chat() as answer:
            assert answer.status == 200
        for follower in followers:
            follower.close()
        await until(lambda: controller.admin.running == 0)
        await controller.stop()


async def test_a_stop_does_not_wait_for_those_who_follow_events() -> None:
    controller = FakeController()
    await controller.start()
    controller.admin.answer = controller.admin.stream("text/event-stream")
    settings = GatewaySettings(controller_url=controller.url, shutdown_grace_s=3600)
    async with aiohttp.ClientSession() as client:
        async with serving(settings) as url:
            answer = await client.get(url + "/v1/admin/events")
        last = (await answer.read()).decode()
    assert json.loads(last.removeprefix("event: error\ndata: "))["error"]["code"] == "gateway_stopping"
    await controller.stop()


async def test_a_stop_ends_a_load_that_is_waited_for_when_the_grace_is_over() -> None:
    controller = FakeController()
    await controller.start()
    controller.admin.answer = never
    async with aiohttp.ClientSession() as client:
        async with serving(GatewaySettings(controller_url=controller.url, shutdown_grace_s=0)) as url:
            call = asyncio.create_task(client.post(url + "/v1/admin/models/m/load"))
            await until(lambda: controller.admin.running == 1)
        async with await call as answer:
            assert (await error_of(answer)).code == "gateway_stopping"
    await controller.stop()
