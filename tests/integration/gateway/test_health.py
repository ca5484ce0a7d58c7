"""What `/health` says while things burn, and who asks for liveness and readiness."""

from __future__ import annotations

from typing import Any

from controller.schema.routing import Endpoint, StartAttempt
from controller.schema.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.fake_retrieval import fake_retrieval
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support.wait import until


async def ask(here: GatewayHarness, path: str = "/health") -> tuple[int, Any]:
    """Status and JSON of an answer."""
    async with here.client.get(here.url + path) as answer:
        return answer.status, await answer.json()


async def test_it_tells_how_each_engine_came_up_without_the_servers_paths() -> None:
    attempts = (
        StartAttempt(result="failed: /srv/models/m.gguf is no model", duration_ms=12),
        StartAttempt(result="ok", duration_ms=3168),
    )
    local = Endpoint(replica="m-a", index=1, base_url="http://127.0.0.1:9", attempts=attempts)
    remote = Endpoint(replica="m-b", base_url="http://127.0.0.1:9", remote=True)
    async with gateway_harness(with_table=False, retrieval=False) as here:
        await here.publish(route("m", context_length=4096).model_copy(update={"endpoints": (local, remote)}))
        _, health = await ask(here)
    assert health["engines_loaded"] == 1
    [engine] = health["engines"]
    assert (engine["key"], engine["replica"]) == ("m_4096_stub_1", "m-a")
    assert engine["attempts"] == [
        {"backend": "stub", "result": "failed: [path] is no model", "duration_ms": 12},
        {"backend": "stub", "result": "ok", "duration_ms": 3168},
    ]


async def test_it_names_what_does_not_work() -> None:
    async with gateway_harness(retrieval=False) as here, engines(1) as (engine,):
        failed = route("bad", [], state=ModelState.FAILED, last_error="no /srv/x.gguf at 10.0.0.1\nmore")
        await here.publish(route("m", [engine.url]), failed)
        status, health = await ask(here)
        assert (status, health["status"]) == (200, "degraded")
        assert health["degraded"] == [{"part": "model bad", "reason": "no [path] at [address]"}]
        await here.publish(route("m", ["http://127.0.0.1:9"]))
        for _ in range(3):
            async with here.chat():
                pass
        _, health = await ask(here)
        [part] = health["degraded"]
        assert part["part"].startswith("replica m-")


async def test_a_lost_controller_is_named_and_requests_can_be_routed_still() -> None:
    async with gateway_harness(with_table=False, retrieval=False) as here:
        status, health = await ask(here)
        assert (status, [part["part"] for part in health["degraded"]]) == (200, ["controller"])
        assert (await ask(here, "/health/live"))[0] == 200
        status, answer = await ask(here, "/health/ready")
        assert (status, answer["error"]["code"]) == (503, "controller_unavailable")
        await here.publish(route("m", []))
        assert await ask(here, "/health/ready") == (200, {"status": "ok"})
        server: Any = here.server
        server._gateway.begin_stop()
        status, answer = await ask(here, "/health/ready")
        assert (status, answer["error"]["code"]) == (503, "gateway_stopping")
        assert (await ask(here, "/health/live"))[0] == 200


async def test_retrieval_that_does_not_answer_is_named() -> None:
    async with fake_retrieval() as retrieval, gateway_harness(retrieval_url=retrieval.url) as here:
        await here.publish(route("m", []))

        async def find_retrieval() -> str:
            word: str = (await ask(here))[1]["retrieval"]
            return word

        while await find_retrieval() == "unknown":
            pass
        assert await find_retrieval() == "down", "the fake has no /health"
        _, health = await ask(here)
        assert [part["part"] for part in health["degraded"]] == ["retrieval"]


async def test_what_retrieval_says_of_its_clock_is_passed_on() -> None:
    async with fake_retrieval() as retrieval:
        retrieval.health = "The wall clock is 1 h 0 min behind."
        async with gateway_harness(retrieval_url=retrieval.url) as here:
            await here.publish(route("m", []))

            async def find_parts() -> list[dict[str, str]]:
                parts: list[dict[str, str]] = (await ask(here))[1]["degraded"]
                return parts

            parts = await until("retrieval is asked", find_parts)
            assert parts == [{"part": "retrieval's clock", "reason": retrieval.health}]
            assert (await ask(here))[1]["retrieval"] == "up"
