"""Requests about what one engine keeps, to a model with several replicas: `?replica=`, and the answer's `X-Replica`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from contract.routing import ModelRoute
from contract.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine

PATHS = (("GET", "/slots"), ("GET", "/props"), ("GET", "/lora-adapters"))
CHANGES = (("POST", "/slots/0?action=erase"), ("POST", "/props"), ("POST", "/lora-adapters"))


def _model(made: list[MockEngine], **more: Any) -> ModelRoute:
    """The model `m`, whose replicas are `m-0`, `m-1`, ..., with these numbers."""
    plain = route("m", [engine.url for engine in made], **more)
    numbered = [each.model_copy(update={"index": number}) for number, each in enumerate(plain.endpoints)]
    return plain.model_copy(update={"endpoints": tuple(numbered)})


async def _request(gateway: GatewayHarness, method: str, path: str) -> tuple[int, str | None, Any]:
    reply = await gateway.request(method, f"{path}{'&' if '?' in path else '?'}model=m", data=b"{}")
    return reply.status, reply.headers.get("X-Replica"), json.loads(reply.content)


def _let_answer(made: list[MockEngine]) -> None:
    """Each engine answers with its own number."""
    for number, engine in enumerate(made):
        for _, path in (*PATHS, *CHANGES):
            engine.answers[path] = b'HTTP/1.1 200 X\r\ncontent-length: 7\r\n\r\n{"n":%d}' % number


@pytest.mark.parametrize(("method", "path"), [*PATHS, *CHANGES])
async def test_the_replica_that_is_named_answers(method: str, path: str) -> None:
    named = f"{path}{'&' if '?' in path else '?'}replica="
    async with gateway_harness(engine_state_routes=True) as gateway, engines(3) as made:
        _let_answer(made)
        await gateway.publish(_model(made))
        for number in range(3):
            for word in (str(number), f"m-{number}"):
                assert await _request(gateway, method, named + word) == (200, f"m-{number}", {"n": number})
        status, replica, answer = await _request(gateway, method, f"{named}3")
        assert (status, replica, answer["error"]["param"]) == (400, None, "replica")


async def test_a_change_must_name_one_of_several_and_a_read_says_who_answers() -> None:
    async with gateway_harness(engine_state_routes=True) as gateway, engines(2) as made:
        _let_answer(made)
        await gateway.publish(_model(made))
        for method, path in CHANGES:
            status, replica, answer = await _request(gateway, method, path)
            assert (status, replica, answer["error"]["code"]) == (400, None, "invalid_request")
            assert "`?replica=0`, or by name: m-0, m-1." in answer["error"]["message"]
        for method, path in PATHS:
            status, replica, answer = await _request(gateway, method, path)
            assert (status, replica) == (200, f"m-{answer['n']}")
        await gateway.publish(_model(made[1:]))
        for method, path in (*PATHS, *CHANGES):
            assert await _request(gateway, method, path) == (200, "m-0", {"n": 1}), "there is one alone"


async def test_a_request_that_waited_for_the_load_goes_to_the_replica_that_it_names() -> None:
    async with gateway_harness(engine_state_routes=True) as gateway, engines(2) as made:
        _let_answer(made)
        await gateway.publish(_model([], state=ModelState.UNLOADED, autoload=True))
        both = [
            asyncio.create_task(_request(gateway, "POST", f"/lora-adapters{choice}")) for choice in ("", "?replica=1")
        ]
        await gateway.controller.report_where(lambda report: report.queued == {"m": 2})
        await gateway.publish(_model(made, autoload=True))
        (status, _, response), named = await asyncio.gather(*both)
        assert (status, response["error"]["param"]) == (400, "replica")
        assert named == (200, "m-1", {"n": 1})


async def test_the_named_replica_alone_is_tried_after_the_load() -> None:
    async with gateway_harness(engine_state_routes=True) as gateway, engines(2) as made:
        _let_answer(made)
        await gateway.publish(_model([], state=ModelState.UNLOADED, autoload=True))
        waiting = asyncio.create_task(_request(gateway, "POST", "/lora-adapters?replica=0"))
        await gateway.controller.report_where(lambda report: report.queued == {"m": 1})
        await made[0].stop()
        await gateway.publish(_model(made, autoload=True))
        status, _, answer = await waiting
        assert (status, answer["error"]["code"]) == (502, "engine_unreachable")
        assert made[1].client_requests == []
        await gateway.idle()


async def test_the_named_replica_alone_is_tried() -> None:
    async with gateway_harness(engine_state_routes=True) as gateway, engines(2) as made:
        _let_answer(made)
        await gateway.publish(_model(made))
        await made[0].stop()
        status, _, answer = await _request(gateway, "GET", "/props?replica=0")
        assert (status, answer["error"]["code"]) == (502, "engine_unreachable")
        assert await _request(gateway, "GET", "/props?replica=1") == (200, "m-1", {"n": 1})
        assert await _request(gateway, "GET", "/props") == (200, "m-1", {"n": 1})
