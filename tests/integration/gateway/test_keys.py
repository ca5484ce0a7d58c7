"""Keys that come and go under traffic, and a gateway that has none."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.integration.gateway.test_security_matrix import DOWNLOADED, TOOLS, every_route
from tests.integration.gateway.test_security_matrix import send as send_route
from tests.support.access_asker import BOTH, bearer
from tests.support.queueing import Clock, clock, key
from tests.support.raw_http import RawClient, chat_body, raw, request, spotless
from tests.support.wait import until

__all__ = ["clock"]
ALICE = ["authorization: Bearer secret-alice"]


async def statuses(client: RawClient) -> tuple[int, ...]:
    """What `alice` is answered now, on a connection that stays open: inference, a stream, and the framework."""
    asked = [
        request(headers=ALICE),
        request(body=chat_body(stream=True), headers=ALICE),
        request("GET", "/v1/models/m", headers=ALICE),
        request("POST", "/v1/admin/plan", b"{}", ALICE),
    ]
    before = len(client.answers)
    client.write(b"".join(asked))
    return tuple([(await client.answer(before + number)).status for number in range(1, len(asked) + 1)])


async def test_who_refuses_everybody_for_want_of_keys_warns_with_the_line_that_makes_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warnings() -> list[str]:
        return [each.getMessage() for each in caplog.records if "no keys are declared" in each.getMessage()]

    async with gateway_harness(host="0.0.0.0") as gateway:
        [warning] = warnings()
        assert warning == (
            "no keys are declared, and 0.0.0.0 is not loopback: every request is refused; `roundhouse key new NAME >"
            " desired-state/key-NAME.yaml` declares a key"
        )
        assert {each.levelno for each in caplog.records if each.getMessage() == warning} == {logging.WARNING}
        await gateway.publish(route("m"))
        await gateway.publish(keys=(key("bob"),))
        assert len(warnings()) == 1, "told once"
        await gateway.publish(keys=())
        assert len(warnings()) == 2, "the last key is gone"


@pytest.mark.parametrize("settings", [{"host": "127.0.0.1"}, {"host": "0.0.0.0", "open": True}])
async def test_who_serves_everybody_does_not_warn_of_want_of_keys(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_harness(**settings):
        assert "no keys are declared" not in caplog.text


async def test_a_new_table_admits_and_revokes_at_once_also_on_an_open_connection(
    gateway: GatewayHarness, engine: MockEngine
) -> None:
    model = route("m", [engine.url])
    await gateway.publish(model)
    async with raw(gateway) as client:
        assert await statuses(client) == (200, 200, 200, 200), "no keys: a key is not looked at"
        await gateway.publish(model, keys=(key("bob"),))
        assert await statuses(client) == (401, 401, 401, 401)
        await gateway.publish(model, keys=(key("bob"), key("alice")))
        assert await statuses(client) == (200, 200, 200, 403)
        await gateway.publish(model, keys=(key("alice", scopes=BOTH, models=("x",)),))
        assert await statuses(client) == (403, 403, 403, 200)
        await gateway.publish(model, keys=(key("alice", scopes=BOTH, expires_at=1.0),))
        assert await statuses(client) == (401, 401, 401, 401)
        await gateway.publish(model, keys=(key("alice", scopes=("admin",)),))
        assert await statuses(client) == (403, 403, 403, 200)
        await gateway.publish(model, keys=(key("alice", sha256="not a digest"),))
        assert await statuses(client) == (401, 401, 401, 401)
        await gateway.publish(model)
        assert await statuses(client) == (200, 200, 200, 200)
    await spotless(gateway)


async def test_who_is_inside_when_his_key_is_revoked_finishes(gateway: GatewayHarness, engine: MockEngine) -> None:
    model = route("m", [engine.url])
    await gateway.publish(model, keys=(key("alice", concurrency=1),))
    async with raw(gateway) as client:
        client.write(request(body=chat_body(fault="hold"), headers=ALICE))
        await until("it is inside", lambda: engine.running == 1)
        await gateway.publish(model, keys=(key("bob"),))
        engine.release.set()
        answer = await client.answer()
        assert (answer.status, answer["x-client-id"]) == (200, "alice")
        client.write(request(headers=ALICE))
        assert (await client.answer(2)).status == 401
    await spotless(gateway)


async def test_a_key_ends_when_it_expires(clock: Clock, gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("m", [engine.url]), keys=(key("alice", scopes=BOTH, expires_at=clock.time() + 60),))
    async with raw(gateway) as client:
        clock.now += 59
        assert await statuses(client) == (200, 200, 200, 200)
        clock.now += 1
        assert await statuses(client) == (401, 401, 401, 401)
        assert client.answers[-1].error["message"].startswith("The key alice expired at ")


async def test_before_the_first_table_nobody_is_let_in() -> None:
    async with gateway_harness() as another:
        routes = await every_route(another)
    async with gateway_harness(with_table=False) as gateway:
        for asked in routes:
            status, headers, text = await send_route(gateway, asked, bearer("all"))
            if asked.kind == "ungated" and asked.path != "/health/ready":
                assert status == 200
            else:
                assert (status, json.loads(text)["error"]["code"]) == (503, "controller_unavailable"), asked
                assert headers["retry-after"] == "5"
        assert not gateway.controller.admin.requests


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (("host", "evil.example"), "forbidden_host"),
        (("host", ""), "forbidden_host"),
        (("host", "localhost@evil.example"), "forbidden_host"),
        (("origin", "https://evil.example"), "forbidden_origin"),
        (("origin", "null"), "forbidden_origin"),
    ],
)
async def test_without_keys_foreign_hosts_and_pages_are_refused_on_every_route(
    header: tuple[str, str], code: str
) -> None:
    async with gateway_harness(engine_state_routes=True) as gateway, engines(1) as (engine,):
        await gateway.publish(route("org/m", [engine.url], aliases=("a-n",)), DOWNLOADED, tools=TOOLS)
        routes = await every_route(gateway)
        for asked in routes:
            status, _, text = await send_route(gateway, asked, [header])
            if asked.kind == "ungated":
                assert status == 200
            else:
                assert (status, json.loads(text)["error"]["code"]) == (403, code), asked
        assert not engine.client_requests
        assert not gateway.controller.admin.requests
        for asked in routes:
            status, _, _ = await send_route(gateway, asked, [("origin", "http://localhost:3000")])
            is_there = asked.kind != "absent" and asked.absent_code is None and asked.away_code is None
            assert (status == 200) is is_there, asked


NO_HOSTS = {
    "none": (),
    "empty": ("host:",),
    "two": ("host: localhost", "host: localhost"),
    "two, one empty": ("host: localhost", "host:"),
    "with a path": ("host: localhost/health",),
    "with a query": ("host: localhost?x",),
    "with a fragment": ("host: localhost#x",),
    "with a user": ("host: me@localhost",),
    "with a blank": ("host: local host",),
    "a URL": ("host: http://localhost",),
    "no port": ("host: localhost:http",),
    "no address": ("host: [::g]",),
    "half an address": ("host: [::1",),
    "a bare address": ("host: ::1",),
    "no ASCII": ("host: l\xf6calhost",),
    "half an escape": ("host: a%2",),
}


async def test_with_keys_a_request_names_one_host_on_every_route() -> None:
    async with gateway_harness(engine_state_routes=True) as gateway, engines(1) as (engine,):
        await gateway.publish(route("org/m", [engine.url], aliases=("a-n",)), keys=(key("all", scopes=BOTH),))
        routes = await every_route(gateway)
        for name, lines in NO_HOSTS.items():
            fields = "".join(f"{line}\r\n" for line in lines).encode("latin-1")
            async with raw(gateway) as client:
                for number, asked in enumerate(routes, 1):
                    sent = request(asked.method, asked.target, asked.body, ["authorization: Bearer secret-all"])
                    client.write(sent.replace(b"host: localhost\r\n", fields))
                    answer = await client.answer(number)
                    if asked.kind == "ungated":
                        assert answer.status == 200, asked
                    else:
                        assert (answer.status, answer.error["code"]) == (400, "invalid_request"), (name, asked)
                        assert "Host" in answer.error["message"]
        assert not engine.client_requests
        assert not gateway.controller.admin.requests


async def test_http_1_0_knows_no_host_and_a_target_may_name_it(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("m", [engine.url]), keys=(key("alice"),))
    for target, sent, status in (
        ("/v1/models", b"HTTP/1.0\r\n", 200),
        ("/v1/models", b"HTTP/1.0\r\nhost: a\r\nhost: a\r\n", 400),
        ("http://localhost/v1/models", b"HTTP/1.1\r\nhost: other\r\n", 200),
        ("http://localhost/v1/models", b"HTTP/1.1\r\nhost: other\r\nhost: other\r\n", 400),
        ("http://me@localhost/v1/models", b"HTTP/1.1\r\nhost: localhost\r\n", 400),
    ):
        async with raw(gateway) as client:
            client.write(b"GET %b %bauthorization: Bearer secret-alice\r\n\r\n" % (target.encode(), sent))
            assert (await client.answer()).status == status, (target, sent)
    async with raw(gateway) as client:
        sent = request(headers=ALICE).replace(b"HTTP/1.1\r\nhost: localhost", b"HTTP/1.0")
        client.write(sent)
        assert (await client.answer()).status == 200


async def test_on_an_address_that_others_reach_keys_are_required() -> None:
    async with gateway_harness(host="0.0.0.0") as gateway, engines(1) as (engine,):
        model = route("org/m", [engine.url], aliases=("a-n",))
        await gateway.publish(model, keys=(key("all", scopes=BOTH),))
        routes = await every_route(gateway)
        await gateway.publish(model)
        for headers in ({}, bearer("all"), {"host": "localhost"}):
            for asked in routes:
                status, _, text = await send_route(gateway, asked, headers)
                if asked.kind == "ungated":
                    assert status == 200
                else:
                    assert (status, json.loads(text)["error"]["code"]) == (403, "keys_required"), asked
        assert not engine.client_requests
        await gateway.publish(model, keys=(key("all", scopes=BOTH),))
        headers = bearer("all") | {"host": "any.example", "origin": "https://any.example"}
        assert (await gateway.get("/v1/models", headers=headers)).status == 200, "who has a key may come by any name"


async def test_an_open_gateway_serves_by_its_address_without_keys() -> None:
    async with gateway_harness(host="0.0.0.0", open=True) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        reply = await gateway.chat()
        assert (reply.status, reply.headers["x-client-id"][:7]) == (200, "Python/")
        assert (await gateway.get("/v1/models", headers={"host": "evil.example"})).status == 403
