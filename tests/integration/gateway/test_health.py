"""What `/health` says while things burn, who asks for liveness and readiness, the image's health check, and the page
of all engines' metrics."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from contract.routing import Endpoint, ModelRoute, RoutingTable, Stamp, StartAttempt
from contract.status import ModelState
from gateway import health_check
from gateway.metrics.engine_scraper import MAX_BYTES, EngineScraper
from gateway.routing.table import LiveRoutes
from gateway.settings import GatewaySettings
from tests.fakes.fake_controller import route
from tests.fakes.fake_retrieval import fake_retrieval
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.access_asker import KEYS, bearer
from tests.support.gateway_process import running
from tests.support.networks import make_certificate
from tests.support.ports import free_port
from tests.support.queueing import key
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
            await gateway.chat()
        health = (await gateway.get("/health")).body
        [part] = health["degraded"]
        assert part["part"].startswith("replica m-")


HIDDEN_MODELS = "Failed: 2; replicas whose connections fail: 1. With a key, its own models are named."


async def test_a_key_sees_its_own_models() -> None:
    """Only who may administer sees all where keys are declared; who shows no key is told no names."""
    keys = (*KEYS, key("limited", models=("m",)), key("by-alias", models=("ali*",)))
    everything = {"model bad", "model also", "replica n-0"}
    async with gateway_harness(retrieval=False) as gateway, engines(1) as (engine,):
        bad, also = (route(name, [], state=ModelState.FAILED, last_error="no") for name in ("bad", "also"))
        bad = bad.model_copy(update={"aliases": ("alias",)})
        n = route("n", ["http://127.0.0.1:9"])
        models = (route("m", [engine.url]), n, bad, also)
        await gateway.publish(*models)
        for _ in range(3):
            await gateway.chat(model="n")
        health = (await gateway.get("/health")).body
        assert {part["part"] for part in health["degraded"]} == everything, "no keys are declared"
        await gateway.publish(*models, keys=keys)
        seen = {
            who: (await gateway.get("/health", headers=bearer(who))).body
            for who in ("limited", "by-alias", "inference", "admin", "all", "expired", "nobody", "")
        }
        parts = {who: {part["part"] for part in health["degraded"]} for who, health in seen.items()}
        shown = {who: [engine["model"] for engine in health["engines"]] for who, health in seen.items()}
        hidden = {
            "part": "models",
            "reason": HIDDEN_MODELS,
        }
        assert parts == {
            "limited": set(),
            "by-alias": {"model bad"},
            **dict.fromkeys(("inference", "admin", "all"), everything),
            **{who: {"models"} for who in ("expired", "nobody", "")},
        }
        assert shown == {
            "limited": ["m"],
            **{who: ["m", "n"] for who in ("inference", "admin", "all")},
            **{who: [] for who in ("by-alias", "expired", "nobody", "")},
        }
        assert (seen["limited"]["status"], seen[""]["status"], seen[""]["degraded"]) == ("ok", "degraded", [hidden])
        assert (await gateway.get("/router/props", headers=bearer("limited"))).body["max_instances"] == 1
        # With a key of the metrics, nobody else is let in.
    async with gateway_harness(retrieval=False, metrics_key="the-key-of-the-metrics") as gateway:
        await gateway.publish(bad, keys=keys)
        health = (await gateway.get("/health", headers=METRICS_KEY)).body
        assert [part["part"] for part in health["degraded"]] == ["model bad"]


async def test_a_lost_controller_is_named_and_requests_can_be_routed_still() -> None:
    async with gateway_harness(with_table=False, retrieval=False) as gateway:
        health = await gateway.get("/health")
        assert (health.status, [part["part"] for part in health.body["degraded"]]) == (200, ["controller"])
        assert (await gateway.get("/health/live")).status == 200
        assert (await gateway.get("/health/ready")).refusal == (503, "controller_unavailable")
        await gateway.publish(route("m", []))
        assert (await gateway.get("/health/ready")).result == (200, {"status": "ok"})
        gateway.app.begin_stop()
        assert (await gateway.get("/health/ready")).refusal == (503, "gateway_stopping")
        assert (await gateway.get("/health/live")).status == 200


async def test_retrieval_that_does_not_answer_is_named() -> None:
    async with fake_retrieval() as retrieval, gateway_harness(retrieval_url=retrieval.url) as gateway:
        await gateway.publish(route("m", []))
        while (health := (await gateway.get("/health")).body)["retrieval"] == "unknown":
            pass
        assert health["retrieval"] == "down", "the fake has no /health"
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
    for method in ("GET", "HEAD"):
        for path in GUARDED:
            reply = await gateway.request(method, path, headers=headers)
            found.add(reply.status)
            assert ("www-authenticate" in reply.headers) is (reply.status == 401)
        reply = await gateway.request(method, "/health/live", headers=headers)
        assert reply.status == 200, "supervisors and container checks have no key"
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

            async def find_parts() -> Any:
                return (await gateway.get("/health")).body["degraded"]

            found = await until("retrieval is asked", find_parts)
            assert found == [{"part": "retrieval's clock", "reason": retrieval.health}]
            assert (await gateway.get("/health")).body["retrieval"] == "up"


DOCKERFILE = Path(__file__).parents[3] / "images" / "gateway" / "Dockerfile"


def health_check_command() -> list[str]:
    """As an argv of this environment. Without `-I`, which would take the sources of another checkout."""
    found = re.search(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", DOCKERFILE.read_text(), re.MULTILINE)
    assert found is not None
    python, *arguments = json.loads(found.group(1))
    assert python == "/opt/roundhouse/bin/python"
    return [sys.executable, *(arguments[1:] if arguments[0] == "-I" else arguments)]


async def check(settings: Mapping[str, str]) -> tuple[int, str]:
    """Exit code of the health check in a container with these settings, and what it says."""
    process = await asyncio.create_subprocess_exec(
        *health_check_command(),
        # What would lead it astray if it looked there: a proxy that nobody is.
        env={**settings, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=DOCKERFILE.parents[2],
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.parametrize(
    ("host", "is_tls"), [("127.0.0.1", False), ("127.0.0.1", True), ("0.0.0.0", True), ("127.0.0.2,127.0.0.3", False)]
)
async def test_a_gateway_that_serves_is_healthy(host: str, is_tls: bool, tmp_path: Path) -> None:
    settings = {"ROUNDHOUSE_HOST": host, "ROUNDHOUSE_PORT": str(free_port())}
    if is_tls:
        certificate, private_key = make_certificate(tmp_path)
        settings |= {"ROUNDHOUSE_TLS_CERT": str(certificate), "ROUNDHOUSE_TLS_KEY": str(private_key)}
    async with running(**settings) as (process, _):

        async def is_healthy() -> bool:
            return (await check(settings))[0] == 0

        await until("it is healthy", is_healthy)
        process.kill()
        await process.wait()
        code, said = await check(settings)
    assert (code, said.count("\n")) == (1, 1), said
    assert "Connection refused" in said


async def test_a_server_that_says_anything_else_is_not_healthy() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop())
        writer.close()

    answers = [b"what?\r\n\r\n", b"HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n"]
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = str(server.sockets[0].getsockname()[1])
        code, said = await check({"ROUNDHOUSE_PORT": port})
        assert (code, said) == (1, "/health/live answers 503\n")
        code, said = await check({"ROUNDHOUSE_PORT": port})
        assert (code, said.count("\n")) == (1, 1), said


@pytest.mark.parametrize("port", ["many", "0"])
async def test_settings_that_say_nothing_are_told(port: str) -> None:
    code, said = await check({"ROUNDHOUSE_PORT": port})
    assert (code, said.count("\n")) == (1, 1), said


async def test_who_accepts_and_never_answers_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_check, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = health_check.HealthTarget("127.0.0.1", silent.getsockname()[1], is_tls=False)
        problem = await asyncio.to_thread(health_check.find_problem, target)
    assert problem is not None
    assert "timed out" in problem


SAMPLE = b"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 2\n"


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def read_page(gateway: GatewayHarness) -> str:
    reply = await gateway.get("/metrics/engines")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return reply.text


def live_of(*models: ModelRoute) -> LiveRoutes:
    live = LiveRoutes()
    live.apply_table(RoutingTable(stamp=Stamp(epoch=1, seq=1), instance="i", models=list(models)))
    return live


def set_page(engine: MockEngine, whole: bytes) -> None:
    engine.answers["/metrics"] = whole


async def test_each_replica_is_asked_with_its_own_token_and_labelled(gateway: GatewayHarness) -> None:
    async with engines(2) as (first, second):
        for engine in (first, second):
            set_page(engine, answer(SAMPLE))
        await gateway.publish(route("m", [first.url], token="t0k3n"), route("org/n", [second.url]))
        page = await read_page(gateway)
        assert 'llamacpp:requests_processing{model="m",replica="m-0"} 2' in page
        assert 'llamacpp:requests_processing{model="org/n",replica="org/n-0"} 2' in page
        assert [each.path for each in first.requests] == ["/metrics"]
        assert first.requests[0].headers["authorization"] == "Bearer t0k3n"
        assert "authorization" not in second.requests[0].headers


@pytest.mark.parametrize(
    "bad",
    [
        answer(b"no", b"500 X"),
        answer(b"x" * (MAX_BYTES + 1)),
        b"this is not HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nllamacpp:half 1",
        b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["error", "too long", "garbage", "hangs in the middle", "redirect"],
)
async def test_an_engine_that_fails_costs_its_own_part(bad: bytes) -> None:
    async with engines(2) as (well, ill):
        set_page(well, answer(SAMPLE))
        set_page(ill, bad)
        async with EngineScraper(
            live_of(route("m", [well.url]), route("n", [ill.url])), time.monotonic, 2.0
        ) as scraper:
            page = await scraper.read_engines()
    assert 'llamacpp:requests_processing{model="m",replica="m-0"} 2' in page
    assert 'roundhouse_engine_up{model="m",replica="m-0"} 1' in page
    assert 'roundhouse_engine_up{model="n",replica="n-0"} 0' in page
    assert page.count('replica="n-0"') == 2


async def test_an_engine_that_is_gone_and_a_remote_cost_nothing(gateway: GatewayHarness, engine: MockEngine) -> None:
    set_page(engine, answer(SAMPLE))
    remote = route("far", [engine.url])
    endpoints = tuple(each.model_copy(update={"remote": True}) for each in remote.endpoints)
    await gateway.publish(route("m", ["http://127.0.0.1:1"]), remote.model_copy(update={"endpoints": endpoints}))
    page = await read_page(gateway)
    assert 'roundhouse_engine_up{model="m",replica="m-0"} 0' in page
    assert "far" not in page
    assert not engine.requests


async def test_who_asks_at_once_shares_one_reading(gateway: GatewayHarness, engine: MockEngine) -> None:
    set_page(engine, answer(SAMPLE))
    await gateway.publish(route("m", [engine.url]))
    pages = await asyncio.gather(*(read_page(gateway) for _ in range(20)))
    assert len(engine.requests) < 20
    assert all("llamacpp:requests_processing" in page for page in pages)


async def test_a_page_is_read_anew_when_it_is_old() -> None:
    times = [100.0]
    async with engines(1) as (engine,):
        set_page(engine, answer(SAMPLE))
        async with EngineScraper(live_of(route("m", [engine.url])), lambda: times[-1]) as scraper:
            for now in (100.0, 100.5, 104.9, 106.0, 110.9):
                times.append(now)
                assert "llamacpp:requests_processing" in await scraper.read_engines()
        assert len(engine.requests) == 2


async def test_before_the_first_table_there_is_an_empty_page() -> None:
    async with gateway_harness(with_table=False) as gateway:
        assert await read_page(gateway) == ""
