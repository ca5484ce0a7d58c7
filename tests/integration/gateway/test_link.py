"""The link to the controller: acknowledgements that drains can trust, reconnection, serving on alone."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path

import aiohttp
import pytest

from common.processes import read_host
from controller.schema.routing import RoutingTable, Stamp
from controller.schema.status import ModelState
from gateway.control import link, report_schedule
from gateway.settings import GatewaySettings
from tests.fakes.fake_controller import FakeController, route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, serving, until
from tests.support.campaign import campaign_count


async def controller_word(here: GatewayHarness) -> str:
    """What /health says of the controller."""
    async with here.client.get(here.url + "/health") as answer:
        word: str = (await answer.json())["controller"]
        return word


async def until_word(here: GatewayHarness, word: str) -> None:
    """Wait until /health says so."""
    async with asyncio.timeout(60):
        while await controller_word(here) != word:  # noqa: ASYNC110 - /health has no event
            await asyncio.sleep(0.02)


async def test_the_first_report_names_no_table_and_every_table_is_acknowledged() -> None:
    async with gateway_harness() as here:
        assert here.controller.reports[0].stamp is None
        assert here.controller.reports[0].gateway_id.startswith("gw-")
        assert here.controller.reports[0].addresses, "where it listens"
        for _ in range(5):
            stamp = await here.controller.publish(route("m"))
            await here.controller.acknowledged(stamp)
        assert len({report.gateway_id for report in here.controller.reports}) == 1


async def test_a_drained_replica_is_reported_until_its_last_request_is_done() -> None:
    async with gateway_harness() as here, engines(2) as (old, new):
        old_route = route("m", [old.url])
        await here.publish(old_route)
        async with here.chat(stream=True, fault="pause_until_release") as answer:
            await answer.content.readany()
            renamed = route("m", [new.url]).endpoints[0].model_copy(update={"replica": "m-new"})
            stamp = await here.controller.publish(old_route.model_copy(update={"endpoints": (renamed,)}))
            report = await here.controller.acknowledged(stamp)
            assert report.inflight == {"m-0": 1}, "no longer routed to, still counted"
            assert (await here.chat()).status == 200
            old.release.set()
            await answer.read()
        report = await here.controller.report_where(lambda report: not report.inflight)
        assert report.stamp == stamp
        assert (len(old.requests), len(new.requests)) == (1, 1)


async def test_requests_in_replicas_that_leave_are_named_the_oldest_first() -> None:
    async with gateway_harness() as here, engines(2) as (old, new):
        old_route = route("m", [old.url])
        await here.publish(old_route)
        answers = [asyncio.create_task(here.chat(fault="hold").__aenter__()) for _ in range(25)]
        report = await here.controller.report_where(lambda report: report.inflight == {"m-0": 25})
        assert report.leaving == {}, "it is routed to"
        started = report.last_used["m"]
        endpoint = route("m", [new.url]).endpoints[0].model_copy(update={"replica": "m-new"})
        stamp = await here.controller.publish(old_route.model_copy(update={"endpoints": (endpoint,)}))
        report = await here.controller.acknowledged(stamp)
        assert report.leaving.keys() == {"m-0"}
        named = report.leaving["m-0"]
        ids = [request.headers["x-request-id"] for request in old.requests]
        assert list(named) == ids[:20]
        assert max(named.values()) <= started
        stamp = await here.controller.publish(route("m", state=ModelState.UNLOADING))
        assert (await here.controller.acknowledged(stamp)).leaving == report.leaving
        old.release.set()
        for task in answers:
            async with await task as answer:
                assert answer.headers["x-request-id"] in ids
        assert (await here.controller.report_where(lambda report: not report.inflight)).leaving == {}


async def test_after_an_acknowledgement_no_request_goes_by_an_older_table() -> None:
    async with gateway_harness() as here, engines(2) as (old, new):
        await here.publish(route("m", [old.url]))
        stop = False

        async def client() -> None:
            while not stop:
                assert (await here.chat()).status == 200

        clients = [asyncio.create_task(client()) for _ in range(8)]
        for turn in range(campaign_count(3, 100)):
            before, after = (old, new) if turn % 2 == 0 else (new, old)
            endpoint = route("m", [after.url]).endpoints[0].model_copy(update={"replica": f"m-turn{turn}"})
            stamp = await here.controller.publish(route("m").model_copy(update={"endpoints": (endpoint,)}))
            await here.controller.report_where(
                lambda report, stamp=stamp, turn=turn: (  # type: ignore[misc]
                    report.stamp == stamp and not report.inflight.keys() - {f"m-turn{turn}"}
                )
            )
            drained = len(before.requests)
            seen = len(after.requests)
            await until(lambda after=after, seen=seen: len(after.requests) > seen + 20)  # type: ignore[misc]
            assert len(before.requests) == drained
        stop = True
        await asyncio.gather(*clients)


async def test_changes_share_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_schedule, "COALESCE_S", 3600.0)
    monkeypatch.setattr(report_schedule, "EVERY_S", 3600.0)
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        start = len(here.controller.reports)
        for _ in range(100):
            assert (await here.chat()).status == 200
        assert len(here.controller.reports) == start
        await here.publish(route("m", [engine.url]))
        assert set(here.controller.reports[-1].last_used) == {"m"}


async def test_reports_go_even_when_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_schedule, "EVERY_S", 0.05)
    async with gateway_harness() as here:
        await until(lambda: len(here.controller.reports) > 5, "reports without a change")


async def test_acknowledgements_and_demand_do_not_wait_for_the_next_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_schedule, "COALESCE_S", 3600.0)
    monkeypatch.setattr(report_schedule, "EVERY_S", 3600.0)
    async with gateway_harness(autoload_timeout_s=60) as here:
        for _ in range(3):
            await here.publish(route("m", state=ModelState.UNLOADED, autoload=True))
        call = asyncio.create_task(here.chat().__aenter__())
        await here.controller.report_where(lambda report: set(report.demand) == {"m"})
        call.cancel()


async def test_requests_go_on_with_the_controller_dead_and_it_is_found_again() -> None:
    async with gateway_harness(with_table=False) as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        assert await controller_word(here) == "connected"
        await here.controller.stop()
        await until_word(here, "lost")
        assert (await here.chat()).status == 200
        assert "roundhouse_gateway_link_up 0.0" in await here.metrics()
        here.controller.reports.clear()
        await here.controller.start()
        await until(lambda: bool(here.controller.reports), "the gateway comes back")
        assert here.controller.reports[0].stamp == Stamp(epoch=1, seq=1), "it says at once what it works by"
        await until_word(here, "connected")


async def test_a_gateway_that_starts_first_waits_for_its_controller(tmp_path: Path) -> None:
    controller = FakeController()
    settings = GatewaySettings(controller_url=f"unix:{tmp_path / 'c.sock'}")
    async with serving(settings) as url, aiohttp.ClientSession() as client, engines(1) as (engine,):
        here = GatewayHarness(controller, url, client)
        assert await controller_word(here) == "never"
        assert (await here.chat()).code == "controller_unavailable"
        await controller.start(tmp_path / "c.sock")
        await until(lambda: bool(controller.reports), "the gateway connects")
        await here.publish(route("m", [engine.url]))
        assert (await here.chat()).status == 200
        await controller.stop()


async def test_an_older_table_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway_harness() as here:
        await here.publish(route("a"))
        current = await here.controller.publish(route("a"), route("b"))
        older = RoutingTable(instance="test", stamp=Stamp(epoch=0, seq=99), models=(route("c"),))
        await here.controller.send(older.model_dump_json())
        await here.controller.acknowledged(current)
        async with here.client.get(here.url + "/v1/models") as answer:
            assert [model["id"] for model in (await answer.json())["data"]] == ["a", "b"]


async def test_a_newer_controller_of_the_same_house_is_followed() -> None:
    async with gateway_harness() as here:
        await here.publish(route("a"))
        here.controller.epoch, here.controller.seq = 2, 0
        await here.publish(route("b"))
        async with here.client.get(here.url + "/v1/models") as answer:
            assert [model["id"] for model in (await answer.json())["data"]] == ["b"]


async def test_another_instance_is_believed_after_a_reconnection_and_not_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with gateway_harness() as here:
        await here.publish(route("a"))
        here.controller.instance, here.controller.seq = "other", 0
        foreign = here.controller.table(route("b"))
        await here.controller.send(foreign.model_dump_json())
        await until(lambda: "of another instance" in caplog.text)
        assert (await here.get("/v1/models/a")).status == 200
        await here.controller.stop()
        here.controller.reports.clear()
        await here.controller.start()
        await here.controller.acknowledged(foreign.stamp)
        assert (await here.get("/v1/models/b")).status == 200


async def test_a_table_of_a_newer_schema_is_refused_and_the_last_one_stays(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        newer = json.loads(here.controller.table().model_dump_json()) | {"schema_version": 99}
        await here.controller.send(json.dumps(newer))
        await here.controller.send("not JSON")
        await here.controller.send('{"kind": "something new"}')
        await until(lambda: "schema version 99" in caplog.text and "unreadable" in caplog.text)
        assert (await here.chat()).status == 200
        await here.publish(route("m", [engine.url]))


async def test_tokens_are_in_no_log_and_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="gateway")
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url], token="very-secret-token"))
        await engine.stop()
        text = (await here.chat()).text
        for path in ("/health", "/metrics", "/v1/models"):
            text += (await here.get(path)).text
        assert "very-secret-token" not in text + caplog.text


async def test_a_refused_gateway_serves_nothing_says_why_and_is_taken_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link, "REFUSED_RETRY_S", 0.02)
    reason = "gateway gw-b at http://10.0.0.1:1 is refused, because gateway gw-a at http://10.0.0.2:1 is connected"
    hidden = "ateway gw-b at [address] is refused, because gateway gw-a at [address] is connected"
    async with gateway_harness(retrieval=False) as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        async with here.chat(stream=True, fault="pause_until_release") as running:
            await running.content.readany()
            with caplog.at_level(logging.WARNING):
                await here.controller.refuse(reason)
                await until_word(here, "refused")
                asked = here.controller.connections
                await until(lambda: here.controller.connections >= asked + 3, "it asks again and again")
            assert [record.message for record in caplog.records if reason in record.message] == [
                f"{reason}; asking again every 0.02 s"
            ]
            async with here.chat() as answer:
                error = (await answer.json())["error"]
                assert (answer.status, error["code"]) == (503, "controller_unavailable"), "also by the table it had"
                assert error["message"] == f"G{hidden}."
            assert (await here.get("/health")).body["degraded"] == [{"part": "controller", "reason": f"g{hidden}"}]
            assert "roundhouse_gateway_link_up 0.0" in await here.metrics()
            engine.release.set()
            assert b"[DONE]" in await running.read(), "what runs goes on"
        await here.controller.refuse(None)
        await until_word(here, "connected")
        assert (await here.chat()).status == 200


async def test_health_names_the_gateways_that_are_refused_for_this_one() -> None:
    async with gateway_harness(retrieval=False) as here:
        table = here.controller.table().model_copy(
            update={"refused_gateways": ("gw-b at http://10.0.0.1:1 is refused",)}
        )
        await here.controller.send(table.model_dump_json())
        await here.controller.acknowledged(table.stamp)
        health = (await here.get("/health")).body
        assert (health["status"], health["controller"]) == ("degraded", "connected")
        assert health["degraded"] == [{"part": "gateway", "reason": "gw-b at [address] is refused"}]


async def test_a_gateway_is_the_same_after_a_restart_and_says_when_it_drains(tmp_path: Path) -> None:
    processes = []
    for _ in range(2):
        async with gateway_harness(state=tmp_path) as here:
            report = here.controller.reports[-1]
            assert report.process is not None
            assert report.gateway_id == report.process.name
            assert not report.draining
            processes.append(report.process)
            here.gateway.begin_stop()
            await here.controller.report_where(lambda report: report.draining)
    first, second = processes
    assert (second.id, second.epoch) == (first.id, first.epoch + 1)
    assert (second.pid, second.host) == (os.getpid(), read_host())
