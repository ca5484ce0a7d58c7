"""What `/health` says while things burn, and who asks for liveness and readiness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.schema.routing import Endpoint, StartAttempt
from controller.schema.status import ModelState
from gateway.settings import GatewaySettings
from tests.fakes.fake_controller import route
from tests.fakes.fake_retrieval import fake_retrieval
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support.access_asker import KEYS, bearer
from tests.support.wait import until


async def test_it_tells_how_each_engine_came_up_without_the_servers_paths() -> None:
    attempts = (
        StartAttempt(result="failed: /srv/models/m.gguf is no model", duration_ms=12),
        StartAttempt(result="ok", duration_ms=3168),
    )
    local = Endpoint(replica="m-a", index=1, base_url="http://127.0.0.1:9", attempts=attempts)
    remote = Endpoint(replica="m-b", base_url="http://127.0.0.1:9", remote=True)
    async with gateway_harness(with_table=False, retrieval=False) as gateway:
        await gateway.publish(route("m", context_length=4096).model_copy(update={"endpoints": (local, remote)}))
        health = (await gateway.get("/health")).body
    assert health["engines_loaded"] == 1
    [engine] = health["engines"]
    assert (engine["key"], engine["replica"]) == ("m_4096_stub_1", "m-a")
    assert engine["attempts"] == [
        {"backend": "stub", "result": "failed: [path] is no model", "duration_ms": 12},
        {"backend": "stub", "result": "ok", "duration_ms": 3168},
    ]


async def test_it_names_what_does_not_work() -> None:
    async with gateway_harness(retrieval=False) as gateway, engines(1) as (engine,):
        failed = route("bad", [], state=ModelState.FAILED, last_error="no /srv/x.gguf at 10.0.0.1\nmore")
        await gateway.publish(route("m", [engine.url]), failed)
        health = await gateway.get("/health")
        assert (health.status, health.body["status"]) == (200, "degraded")
        assert health.body["degraded"] == [{"part": "model bad", "reason": "no [path] at [address]"}]
        await gateway.publish(route("m", ["http://127.0.0.1:9"]))
        for _ in range(3):
            async with gateway.chat():
                pass
        health = (await gateway.get("/health")).body
        [part] = health["degraded"]
        assert part["part"].startswith("replica m-")


async def test_a_lost_controller_is_named_and_requests_can_be_routed_still() -> None:
    async with gateway_harness(with_table=False, retrieval=False) as gateway:
        health = await gateway.get("/health")
        assert (health.status, [part["part"] for part in health.body["degraded"]]) == (200, ["controller"])
        assert (await gateway.get("/health/live")).status == 200
        assert (await gateway.get("/health/ready")).refusal == (503, "controller_unavailable")
        await gateway.publish(route("m", []))
        assert (await gateway.get("/health/ready")).result == (200, {"status": "ok"})
        server: Any = gateway.server
        server._gateway.begin_stop()
        assert (await gateway.get("/health/ready")).refusal == (503, "gateway_stopping")
        assert (await gateway.get("/health/live")).status == 200


async def test_retrieval_that_does_not_answer_is_named() -> None:
    async with fake_retrieval() as retrieval, gateway_harness(retrieval_url=retrieval.url) as gateway:
        await gateway.publish(route("m", []))

        async def find_retrieval() -> str:
            word: str = (await gateway.get("/health")).body["retrieval"]
            return word

        while await find_retrieval() == "unknown":
            pass
        assert await find_retrieval() == "down", "the fake has no /health"
        health = (await gateway.get("/health")).body
        assert [part["part"] for part in health["degraded"]] == ["retrieval"]


GUARDED = ("/health", "/v1/health", "/health/ready", "/metrics", "/metrics/engines")
METRICS_KEY = {"authorization": "bEARER the-key-of-the-metrics"}
WRONG: tuple[dict[str, str], ...] = (
    {},
    {"authorization": "Bearer the-key-of-the-metric"},
    {"authorization": "the-key-of-the-metrics"},
)


async def statuses(gateway: GatewayHarness, headers: Any) -> set[int]:
    """Of all routes that tell how the gateway is, asked by GET and HEAD."""
    found = set()
    for path in GUARDED:
        for method in ("GET", "HEAD"):
            async with gateway.request(method, path, headers=headers) as answer:
                found.add(answer.status)
                assert ("www-authenticate" in answer.headers) is (answer.status == 401)
    for method in ("GET", "HEAD"):
        async with gateway.request(method, "/health/live", headers=headers) as answer:
            assert answer.status == 200, "supervisors and container checks have no key"
    return found


@pytest.mark.parametrize("is_file", [True, False])
async def test_metrics_and_state_can_have_a_key(is_file: bool, tmp_path: Path) -> None:
    """Without declared keys nobody else is let in, not even who may administer; with them a key of that scope is."""
    (tmp_path / "key").write_text("the-key-of-the-metrics\n")
    settings = {"metrics_key_file": tmp_path / "key"} if is_file else {"metrics_key": "the-key-of-the-metrics"}
    async with gateway_harness(with_table=False, retrieval=False, **settings) as gateway:
        for headers in WRONG:
            assert await statuses(gateway, headers) == {401}, "before the first table"
        await gateway.publish(route("m", []))
        assert await statuses(gateway, METRICS_KEY) == {200}
        for headers in WRONG:
            assert await statuses(gateway, headers) == {401}
        await gateway.publish(route("m", []), keys=KEYS)
        assert await statuses(gateway, METRICS_KEY) == {200}
        found = {
            who: await statuses(gateway, bearer(who)) for who in ("admin", "all", "inference", "expired", "nobody")
        }
        assert found == {"admin": {200}, "all": {200}, "inference": {403}, "expired": {401}, "nobody": {401}}
        assert (await gateway.get("/v1/models", headers=METRICS_KEY)).status == 401, "it opens nothing else"
        if is_file:
            (tmp_path / "key").write_text("another-key-of-the-metrics\n")
            assert await statuses(gateway, METRICS_KEY) == {401}
            (tmp_path / "key").unlink()
            assert await statuses(gateway, {"authorization": "Bearer "}) == {401}


async def test_without_such_a_key_they_are_open() -> None:
    async with gateway_harness(retrieval=False) as gateway:
        await gateway.publish(route("m", []), keys=KEYS)
        for headers in (METRICS_KEY, *WRONG):
            assert await statuses(gateway, headers) == {200}


def test_the_key_is_in_no_text_of_the_settings() -> None:
    assert "the-key" not in repr(GatewaySettings(metrics_key="the-key-of-the-metrics"))


async def test_what_retrieval_says_of_its_clock_is_passed_on() -> None:
    async with fake_retrieval() as retrieval:
        retrieval.health = "The wall clock is 1 h 0 min behind."
        async with gateway_harness(retrieval_url=retrieval.url) as gateway:
            await gateway.publish(route("m", []))

            async def find_parts() -> list[dict[str, str]]:
                parts: list[dict[str, str]] = (await gateway.get("/health")).body["degraded"]
                return parts

            parts = await until("retrieval is asked", find_parts)
            assert parts == [{"part": "retrieval's clock", "reason": retrieval.health}]
            assert (await gateway.get("/health")).body["retrieval"] == "up"
