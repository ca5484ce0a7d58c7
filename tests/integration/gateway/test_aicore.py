"""The model with the role `aicore`: a phone's server, asked as its HTTP API documents it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from common.atomic_write import write_atomic
from contract.routing import Endpoint, ModelRoute
from contract.status import ModelState
from gateway.api import readiness
from gateway.control.remote_prober import AicoreProbe, read_status
from gateway.routing.table import LiveRoutes
from tests.fakes.fake_controller import route
from tests.fakes.fake_phone_server import KEY, MODEL, FakePhone, fake_phone
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.wait import DEADLINE_S

CHAT = "/v1/chat/completions"


def nano(phone: FakePhone) -> ModelRoute:
    endpoint = Endpoint.model_validate(
        {"replica": "nano", "base_url": phone.url, "api_prefix": "", "token": KEY, "remote": True}
    )
    made = route("nano", served_name=MODEL, apis=(CHAT,), role="aicore", extra_fields=())
    return made.model_copy(update={"endpoints": (endpoint,)})


@asynccontextmanager
async def site(tmp_path: Path) -> AsyncIterator[tuple[GatewayHarness, FakePhone]]:
    async with fake_phone() as phone, gateway_harness(state=tmp_path, retrieval=False) as gateway:
        await gateway.publish(nano(phone), route("other"))
        yield gateway, phone


@pytest.mark.parametrize(
    ("code", "word"), [(3, "available"), (2, "downloadable"), (1, "downloading"), (0, "unavailable")]
)
async def test_the_status_is_the_devices(code: int, word: str, tmp_path: Path) -> None:
    async with site(tmp_path) as (gateway, phone):
        phone.code = code
        reply = await gateway.get("/v1/aicore/status")
        assert reply.result == (
            200,
            {
                "model_id": "nano",
                "status_code": code,
                "status": word,
                "available": code == 3,
                "soc_model": "Tensor G5",
                "device": "frankel",
                "manufacturer": "Google",
            },
        )
        assert (await gateway.get("/v1/aicore/status?probe=all")).body["probes"][0]["preference"] == "FAST"
        assert phone.requests[-1][0].endswith("?probe=all")
        reply = await gateway.get("/v1/aicore/status?probe=some")
        assert (reply.status, reply.error["param"]) == (400, "probe")


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [(2, 503, "AICORE_DOWNLOADABLE"), (1, 425, "AICORE_DOWNLOADING"), (0, 503, "AICORE_UNAVAILABLE")],
)
async def test_its_errors_are_carried_through(code: int, status: int, error: str, tmp_path: Path) -> None:
    async with site(tmp_path) as (gateway, phone):
        phone.code = code
        for stream in (False, True):
            reply = await gateway.chat("nano", stream=stream)
            assert (reply.status, reply.code, reply.error["type"]) == (status, error, "aicore_unavailable")
            assert reply.error["aicore_status"] in ("downloadable", "downloading", "unavailable")
            assert reply.error["actionable"]
            assert reply.error["next_steps"] == ["Wait for status: Available", "Retry"], "the phone's own"
            assert ("retry-after" in reply.headers) == (status == 425)
        assert (await gateway.request("POST", "/v1/aicore/benchmark")).code == error
        warm = await gateway.request("POST", "/health/warm?model=nano")
        assert (warm.status, warm.body["status"]) == (503, "aicore_not_ready")
        assert warm.body["aicore_status"] == reply.error["aicore_status"]
        phone.code, phone.is_backgrounded = 3, True
        assert (await gateway.chat("nano")).refusal == (403, "AICORE_BACKGROUND_BLOCKED")


async def test_it_is_warmed_up_and_measured(tmp_path: Path) -> None:
    async with site(tmp_path) as (gateway, phone):
        assert (await gateway.get("/v1/aicore/benchmark")).refusal == (404, "benchmark_not_found")
        assert (await gateway.request("POST", "/health/warm?model=nano")).status == 200
        result = await gateway.post("/v1/aicore/benchmark", {"prompts": ["Say hi."], "warmup": 0})
        assert (result.status, result.body["model_id"]) == (200, "nano")
        assert result.body["total_tokens"] == 6, "words, as it counts no tokens"
        assert (await gateway.get("/v1/aicore/benchmark")).result == (200, result.body)
        assert (await gateway.get("/v1/models/nano/benchmark")).result == (200, result.body)
        assert (await gateway.chat("nano")).body["choices"][0]["message"]["content"] == "Hi! How can I help?"
        assert phone.requests[-1][1]["model"] == MODEL


async def test_the_event_loop_goes_on_while_a_result_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, went_on = asyncio.get_running_loop(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> None:
        loop.call_soon_threadsafe(went_on.set)
        assert went_on.wait(DEADLINE_S)
        write_atomic(*arguments, **options)

    monkeypatch.setattr(readiness, "write_atomic", slow)
    async with site(tmp_path) as (gateway, _):
        result = await gateway.post("/v1/aicore/benchmark", {"prompts": ["Say hi."], "warmup": 0})
        assert result.status == 200
        assert (await gateway.get("/v1/aicore/benchmark")).result == (200, result.body)
    assert went_on.is_set()


async def test_health_has_a_block_of_it(tmp_path: Path) -> None:
    async with site(tmp_path) as (gateway, phone):
        probe = gateway.app.health.aicore
        probe.latest = await probe.ask(nano(phone))
        health = (await gateway.get("/health")).body
        expected = {"status_code": 3, "status": "available", "model_id": "nano", "is_default": True}
        assert health["aicore"] == expected
        phone.is_broken = True
        probe.latest = await probe.ask(nano(phone))
        health = (await gateway.get("/health")).body
        assert (health["aicore"]["status_code"], health["aicore"]["status"]) == (None, "unknown")
        assert health["aicore"]["error"] == "The service is not installed", "the phone's own words"
        reply = await gateway.get("/v1/aicore/status")
        assert reply.refusal == (503, "AICORE_UNKNOWN")
        assert "The service is not installed" in reply.error["message"]


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, {"status_code": None, "error": "AICore is not installed (ErrorCode 8)"}, "AICore is not installed (Er"),
        (503, {"error": {"message": "Bound to http://10.1.2.3:99/x"}}, "Bound to "),
        (500, {"error": {"message": ""}}, "The server answered with status 500"),
        (500, ["x"], "The server answered with status 500"),
        (200, {"status_code": 7, "error": 4}, "The server answered with status 200"),
    ],
)
def test_the_words_of_the_phone_are_kept(status: int, body: Any, error: str) -> None:
    told = read_status("nano", status, json.dumps(body).encode())
    assert told.code is None
    assert (told.error or "").startswith(error)
    assert "10.1.2.3" not in (told.error or "")


async def test_without_such_a_model_there_is_no_aicore(tmp_path: Path) -> None:
    async with gateway_harness(state=tmp_path, retrieval=False) as gateway:
        await gateway.publish(route("m", backend="litert_lm", state=ModelState.FAILED, last_error="no delegate"))
        for method, path in (("GET", "status"), ("GET", "benchmark"), ("POST", "benchmark")):
            assert (await gateway.request(method, f"/v1/aicore/{path}")).refusal == (503, "AICORE_UNAVAILABLE")
        assert (await gateway.get("/health")).body["aicore"] is None
        reply = await gateway.chat("m")
        assert reply.refusal == (503, "LITERT_INIT_FAILED")
        assert "no delegate" in reply.error["message"]


async def test_the_phone_that_is_away_is_unknown(tmp_path: Path) -> None:
    async with gateway_harness(state=tmp_path, retrieval=False) as gateway:
        away = FakePhone(url="http://127.0.0.1:9/v1")
        await gateway.publish(nano(away))
        assert (await gateway.get("/v1/aicore/status")).refusal == (503, "AICORE_UNKNOWN")


async def test_an_answer_in_pieces_is_whole_and_one_without_an_end_is_none() -> None:
    answers = [[b'{"status_', b'code": 3}'], [b'{"a": "', *[b"x" * 65536] * 100], [b"[" * 5000]]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        with contextlib.suppress(OSError):
            for part in answers.pop(0):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    model = nano(FakePhone(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    async with server, AicoreProbe(LiveRoutes()) as probe:
        told = [await probe.ask(model) for _ in range(3)]
    assert [each.code for each in told] == [3, None, None]
    assert told[1].error == "The server's answer cannot be read: it is larger than 262144 bytes."
