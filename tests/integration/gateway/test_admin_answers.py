"""Answers of the admin routes through the gateway: each part at once, and an end in words whoever goes away."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.settings import GatewaySettings
from tests.fakes.fake_controller import FakeController, route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, serving, until
from tests.support.forwarding import error_of, never, received
from tests.support.http_client import read_reply

EVENT = b"id: 1\nevent: state\ndata: {}\n\n"


@pytest.mark.parametrize("content_type", ["text/event-stream; charset=utf-8", "text/plain"])
async def test_each_part_comes_at_once(content_type: str) -> None:
    async with gateway_harness() as gateway:
        gateway.controller.admin.answer = gateway.controller.admin.stream(content_type)
        async with gateway.get("/v1/admin/events") as answer:
            assert answer.headers["content-type"] == content_type
            assert answer.headers["cache-control"] == "no-store"
            for number in range(3):
                part = b"data: %d\n\n" % number
                gateway.controller.admin.parts.put_nowait(part)
                assert await answer.content.readexactly(len(part)) == part
            gateway.controller.admin.parts.put_nowait(None)
            assert await answer.read() == b""


async def test_headers_come_before_the_first_event() -> None:
    async with gateway_harness() as gateway:
        gateway.controller.admin.answer = gateway.controller.admin.stream("text/event-stream")
        async with gateway.get("/v1/admin/events") as answer:
            assert (answer.status, answer.headers["x-accel-buffering"]) == (200, "no")


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_closes_the_connection_to_the_controller(begun: bool) -> None:
    async with gateway_harness() as gateway:
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
            await until(lambda: gateway.controller.admin.running == 1)
            waiting.cancel()
        await until(lambda: gateway.controller.admin.cancelled == 1, "the controller sees it")


async def test_a_controller_that_dies_ends_a_stream_of_events_with_an_event() -> None:
    async with gateway_harness() as gateway:
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
async def test_a_controller_that_dies_leaves_any_other_answer_unfinished(length: str | None) -> None:
    async def dies(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/plain"})
        response.content_length = int(length) if length else None
        await response.prepare(request)
        await response.write(b"line 1\n")
        await asyncio.Event().wait()
        return response

    async with gateway_harness() as gateway:
        gateway.controller.admin.answer = dies
        async with gateway.get("/v1/admin/models/m/logs") as answer:
            await answer.content.readexactly(7)
            gateway.controller.admin.drop_connections()
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()


async def test_a_controller_that_dies_before_it_answers() -> None:
    async with gateway_harness() as gateway:
        gateway.controller.admin.answer = never
        call = asyncio.create_task(gateway.request("POST", "/v1/admin/models/m/load").__aenter__())
        await until(lambda: gateway.controller.admin.running == 1)
        gateway.controller.admin.drop_connections()
        async with await call as answer:
            error = error_of(await read_reply(answer))
            assert (error.code, answer.headers["retry-after"]) == ("controller_unavailable", "5")
            assert "may have taken" in error.message
        assert len(gateway.controller.admin.requests) == 1, "it is not sent twice"


async def test_without_a_controller_the_admin_routes_are_closed_and_inference_goes_on() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
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
        async with client.get(url + "/v1/admin/models") as answer:
            assert error_of(await read_reply(answer)).code == "controller_unavailable"
        async with client.get(url + "/openapi.json") as answer:
            assert error_of(await read_reply(answer)).code == "controller_unavailable", (
                "whether there are keys is not known"
            )
        if kind == "unix":
            controller = FakeController()
            await controller.start(tmp_path / "c.sock")
            await controller.acknowledged(await controller.publish())
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
        gateway = GatewayHarness(controller, url, client)
        await gateway.publish(route("m", [engine.url]))
        followers = [await client.get(url + "/v1/admin/events") for _ in range(150)]
        assert (await gateway.chat()).status == 200
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
            await controller.acknowledged(await controller.publish())
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
            await controller.acknowledged(await controller.publish())
            call = asyncio.create_task(client.post(url + "/v1/admin/models/m/load"))
            await until(lambda: controller.admin.running == 1)
        async with await call as answer:
            assert error_of(await read_reply(answer)).code == "gateway_stopping"
    await controller.stop()
