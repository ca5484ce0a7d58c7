"""The link to the controller: acknowledgements that drains can trust, reconnection, serving on alone."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from pathlib import Path

import aiohttp
import pytest

from common.processes import read_host
from contract.routing import RoutingTable, Stamp
from contract.status import ModelState
from gateway.control import inflight, link
from gateway.settings import GatewaySettings
from tests.fakes.fake_controller import FakeController, route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, serving
from tests.fakes.mock_engine import MockEngine
from tests.support.campaign import campaign_count
from tests.support.queueing import key
from tests.support.wait import until


async def controller_word(gateway: GatewayHarness) -> str:
    reply = await gateway.get("/health")
    word: str = reply.body["controller"]
    return word


async def until_word(gateway: GatewayHarness, word: str) -> None:
    async with asyncio.timeout(60):
        while await controller_word(gateway) != word:  # noqa: ASYNC110 - /health has no event
            await asyncio.sleep(0.02)


async def test_the_first_report_names_no_table_and_every_table_is_acknowledged(gateway: GatewayHarness) -> None:
    assert gateway.controller.reports[0].stamp is None
    assert gateway.controller.reports[0].gateway_id.startswith("gw-")
    assert gateway.controller.reports[0].addresses, "where it listens"
    for _ in range(5):
        stamp = await gateway.controller.publish(route("m"))
        await gateway.controller.acknowledged(stamp)
    assert len({report.gateway_id for report in gateway.controller.reports}) == 1


async def test_a_drained_replica_is_reported_until_its_last_request_is_done(gateway: GatewayHarness) -> None:
    async with engines(2) as (old, new):
        old_route = route("m", [old.url])
        await gateway.publish(old_route)
        async with gateway.chat(stream=True, fault="pause_until_release") as answer:
            await answer.content.readany()
            renamed = route("m", [new.url]).endpoints[0].model_copy(update={"replica": "m-new"})
            stamp = await gateway.controller.publish(old_route.model_copy(update={"endpoints": (renamed,)}))
            report = await gateway.controller.acknowledged(stamp)
            assert report.inflight == {"m-0": 1}, "no longer routed to, still counted"
            assert (await gateway.chat()).status == 200
            old.release.set()
            await answer.read()
        report = await gateway.controller.report_where(lambda report: not report.inflight)
        assert report.stamp == stamp
        assert (len(old.requests), len(new.requests)) == (1, 1)


async def test_requests_in_replicas_that_leave_are_named_the_oldest_first(gateway: GatewayHarness) -> None:
    async with engines(2) as (old, new):
        old_route = route("m", [old.url])
        await gateway.publish(old_route)
        answers = [asyncio.ensure_future(gateway.chat(fault="hold")) for _ in range(25)]
        report = await gateway.controller.report_where(lambda report: report.inflight == {"m-0": 25})
        assert report.leaving == {}, "it is routed to"
        started = report.last_used["m"]
        endpoint = route("m", [new.url]).endpoints[0].model_copy(update={"replica": "m-new"})
        stamp = await gateway.controller.publish(old_route.model_copy(update={"endpoints": (endpoint,)}))
        report = await gateway.controller.acknowledged(stamp)
        assert report.leaving.keys() == {"m-0"}
        named = report.leaving["m-0"]
        ids = [request.headers["x-request-id"] for request in old.requests]
        assert list(named) == ids[:20]
        assert max(named.values()) <= started
        stamp = await gateway.controller.publish(route("m", state=ModelState.UNLOADING))
        assert (await gateway.controller.acknowledged(stamp)).leaving == report.leaving
        old.release.set()
        assert {reply.headers["x-request-id"] for reply in await asyncio.gather(*answers)} == {*ids}
        assert (await gateway.controller.report_where(lambda report: not report.inflight)).leaving == {}


async def test_after_an_acknowledgement_no_request_goes_by_an_older_table(gateway: GatewayHarness) -> None:
    async with engines(2) as (old, new):
        await gateway.publish(route("m", [old.url]))
        stop = False

        async def client() -> None:
            while not stop:
                assert (await gateway.chat()).status == 200

        clients = [asyncio.create_task(client()) for _ in range(8)]
        for turn in range(campaign_count(3, 100)):
            before, after = (old, new) if turn % 2 == 0 else (new, old)
            endpoint = route("m", [after.url]).endpoints[0].model_copy(update={"replica": f"m-turn{turn}"})
            stamp = await gateway.controller.publish(route("m").model_copy(update={"endpoints": (endpoint,)}))
            await gateway.controller.report_where(
                lambda report, stamp=stamp, turn=turn: (  # type: ignore[misc]
                    report.stamp == stamp and not report.inflight.keys() - {f"m-turn{turn}"}
                )
            )
            drained = len(before.requests)
            seen = len(after.requests)
            await until("requests come", lambda after=after, seen=seen: len(after.requests) > seen + 20)  # type: ignore[misc]
            assert len(before.requests) == drained
        stop = True
        await asyncio.gather(*clients)


async def test_changes_share_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "COALESCE_S", 3600.0)
    monkeypatch.setattr(inflight, "EVERY_S", 3600.0)
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        start = len(gateway.controller.reports)
        for _ in range(100):
            assert (await gateway.chat()).status == 200
        assert len(gateway.controller.reports) == start
        await gateway.publish(route("m", [engine.url]))
        assert set(gateway.controller.reports[-1].last_used) == {"m"}


async def test_the_last_use_of_each_key_is_reported_as_long_as_it_is_declared(gateway: GatewayHarness) -> None:
    async with engines(1) as (engine,):
        keys = (key("alice"), key("bob"), key("carol"))
        await gateway.publish(route("m", [engine.url]), keys=keys)
        before = time.time()
        assert (await gateway.chat(key="secret-alice")).status == 200
        assert (await gateway.get("/v1/models", key="secret-bob")).status == 200
        assert (await gateway.get("/v1/models", key="secret-nobody")).status == 401
        report = await gateway.controller.report_where(lambda report: set(report.keys_used or ()) == {"alice", "bob"})
        assert report.keys_used is not None
        assert all(before <= at <= time.time() for at in report.keys_used.values())
        await gateway.publish(route("m", [engine.url]), keys=keys[1:])
        await gateway.controller.report_where(lambda report: set(report.keys_used or ()) == {"bob"})


async def test_reports_go_even_when_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "EVERY_S", 0.05)
    async with gateway_harness() as gateway:
        await until("reports without a change", lambda: len(gateway.controller.reports) > 5)


async def test_acknowledgements_and_demand_do_not_wait_for_the_next_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "COALESCE_S", 3600.0)
    monkeypatch.setattr(inflight, "EVERY_S", 3600.0)
    async with gateway_harness(autoload_timeout_s=60) as gateway:
        for _ in range(3):
            await gateway.publish(route("m", state=ModelState.UNLOADED, autoload=True))
        call = asyncio.ensure_future(gateway.chat())
        await gateway.controller.report_where(lambda report: set(report.demand) == {"m"})
        call.cancel()


async def test_requests_go_on_with_the_controller_dead_and_it_is_found_again() -> None:
    async with gateway_harness(with_table=False) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        assert await controller_word(gateway) == "connected"
        await gateway.controller.stop()
        await until_word(gateway, "lost")
        assert (await gateway.chat()).status == 200
        assert "roundhouse_gateway_link_up 0.0" in await gateway.metrics()
        gateway.controller.reports.clear()
        await gateway.controller.start()
        await until("the gateway comes back", lambda: bool(gateway.controller.reports))
        assert gateway.controller.reports[0].stamp == Stamp(epoch=1, seq=1), "it says at once what it works by"
        await until_word(gateway, "connected")


async def test_a_gateway_that_starts_first_waits_for_its_controller(tmp_path: Path) -> None:
    controller = FakeController()
    settings = GatewaySettings(controller_url=f"unix:{tmp_path / 'c.sock'}")
    async with serving(settings) as url, aiohttp.ClientSession() as client, engines(1) as (engine,):
        gateway = GatewayHarness(controller, url, client)
        assert await controller_word(gateway) == "never"
        assert (await gateway.chat()).code == "controller_unavailable"
        await controller.start(tmp_path / "c.sock")
        await until("the gateway connects", lambda: bool(controller.reports))
        await gateway.publish(route("m", [engine.url]))
        assert (await gateway.chat()).status == 200
        await controller.stop()


async def test_an_older_table_is_ignored(caplog: pytest.LogCaptureFixture, gateway: GatewayHarness) -> None:
    await gateway.publish(route("a"))
    current = await gateway.controller.publish(route("a"), route("b"))
    older = RoutingTable(instance="test", stamp=Stamp(epoch=0, seq=99), models=(route("c"),))
    await gateway.controller.send(older.model_dump_json())
    await gateway.controller.acknowledged(current)
    assert [model["id"] for model in (await gateway.get("/v1/models")).body["data"]] == ["a", "b"]


async def test_a_newer_controller_of_the_same_house_is_followed(gateway: GatewayHarness) -> None:
    await gateway.publish(route("a"))
    gateway.controller.epoch, gateway.controller.seq = 2, 0
    await gateway.publish(route("b"))
    assert [model["id"] for model in (await gateway.get("/v1/models")).body["data"]] == ["b"]


async def test_another_instance_is_believed_after_a_reconnection_and_not_before(
    caplog: pytest.LogCaptureFixture, gateway: GatewayHarness
) -> None:
    await gateway.publish(route("a"))
    gateway.controller.instance, gateway.controller.seq = "other", 0
    foreign = gateway.controller.table(route("b"))
    await gateway.controller.send(foreign.model_dump_json())
    await until("it is told", lambda: "of another instance" in caplog.text)
    assert (await gateway.get("/v1/models/a")).status == 200
    await gateway.controller.stop()
    gateway.controller.reports.clear()
    await gateway.controller.start()
    await gateway.controller.acknowledged(foreign.stamp)
    assert (await gateway.get("/v1/models/b")).status == 200


async def test_a_table_of_a_newer_schema_is_refused_and_the_last_one_stays(
    caplog: pytest.LogCaptureFixture, gateway: GatewayHarness, engine: MockEngine
) -> None:
    newer = json.loads(gateway.controller.table().model_dump_json()) | {"schema_version": 99}
    await gateway.controller.send(json.dumps(newer))
    await gateway.controller.send("not JSON")
    await gateway.controller.send('{"kind": "something new"}')
    await until("it is told", lambda: "schema version 99" in caplog.text and "unreadable" in caplog.text)
    assert (await gateway.chat()).status == 200
    await gateway.publish(route("m", [engine.url]))


async def test_tokens_are_in_no_log_and_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="gateway")
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], token="very-secret-token"))
        await engine.stop()
        text = (await gateway.chat()).text
        for path in ("/health", "/metrics", "/v1/models"):
            text += (await gateway.get(path)).text
        assert "very-secret-token" not in text + caplog.text


async def test_a_refused_gateway_serves_nothing_says_why_and_is_taken_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link, "REFUSED_RETRY_S", 0.02)
    reason = "gateway gw-b at http://10.0.0.1:1 is refused, because gateway gw-a at http://10.0.0.2:1 is connected"
    hidden = "ateway gw-b at [address] is refused, because gateway gw-a at [address] is connected"
    async with gateway_harness(retrieval=False) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        async with gateway.chat(stream=True, fault="pause_until_release") as running:
            await running.content.readany()
            with caplog.at_level(logging.WARNING):
                await gateway.controller.refuse(reason)
                await until_word(gateway, "refused")
                asked = gateway.controller.connections
                await until("it asks again and again", lambda: gateway.controller.connections >= asked + 3)
            assert [record.message for record in caplog.records if reason in record.message] == [
                f"{reason}; asking again every 0.02 s"
            ]
            reply = await gateway.chat()
            assert reply.refusal == (503, "controller_unavailable"), "also by the table it had"
            assert reply.error["message"] == f"G{hidden}."
            assert (await gateway.get("/health")).body["degraded"] == [{"part": "controller", "reason": f"g{hidden}"}]
            assert "roundhouse_gateway_link_up 0.0" in await gateway.metrics()
            engine.release.set()
            assert b"[DONE]" in await running.read(), "what runs goes on"
        await gateway.controller.refuse(None)
        await until_word(gateway, "connected")
        assert (await gateway.chat()).status == 200


async def test_health_names_the_gateways_that_are_refused_for_this_one() -> None:
    async with gateway_harness(retrieval=False) as gateway:
        table = gateway.controller.table().model_copy(
            update={"refused_gateways": ("gw-b at http://10.0.0.1:1 is refused",)}
        )
        await gateway.controller.send(table.model_dump_json())
        await gateway.controller.acknowledged(table.stamp)
        health = (await gateway.get("/health")).body
        assert (health["status"], health["controller"]) == ("degraded", "connected")
        assert health["degraded"] == [{"part": "gateway", "reason": "gw-b at [address] is refused"}]


async def test_a_gateway_is_the_same_after_a_restart_and_says_when_it_drains(tmp_path: Path) -> None:
    processes = []
    for _ in range(2):
        async with gateway_harness(state=tmp_path) as gateway:
            report = gateway.controller.reports[-1]
            assert report.process is not None
            assert report.gateway_id == report.process.name
            assert not report.draining
            processes.append(report.process)
            gateway.app.begin_stop()
            await gateway.controller.report_where(lambda report: report.draining)
    first, second = processes
    assert (second.id, second.epoch) == (first.id, first.epoch + 1)
    assert (second.pid, second.host) == (os.getpid(), read_host())
