"""A controller whose files are deleted while it runs, or before the next one starts: gateways go on by what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from controller.schema.status import ModelState
from tests.support.admin import AdminApi
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.runtime_fixtures import ProcessRuntimeFixture
from tests.support.wait import until

pytestmark = pytest.mark.slow


@pytest.fixture
async def stub(folder: Path) -> AsyncIterator[RoundhouseStack]:
    """A controller and a gateway with a stub engine, loaded."""
    stack = RoundhouseStack(folder, "process")
    stack.declare({"a": {"backend": "stub"}})
    await stack.open()
    try:
        await stack.loaded("a")
        yield stack
    finally:
        await stack.close()
    assert ProcessRuntimeFixture().left(stack) == []


async def chat_code(stack: RoundhouseStack) -> str:
    """The code that a request to the model is refused with; empty: it is answered."""
    try:
        async with AdminApi(stack.url) as api:
            reply = await api.chat("a")
    except aiohttp.ClientError:
        return "not connected"
    return "" if reply.status == 200 else reply.code


async def is_answered(stack: RoundhouseStack) -> bool:
    return await chat_code(stack) == ""


async def is_unloaded(stack: RoundhouseStack) -> bool:
    return await chat_code(stack) == "model_not_loaded"


async def test_a_deleted_socket_is_made_anew_and_a_gateway_that_starts_then_connects(stub: RoundhouseStack) -> None:
    socket = stub.state / "controller.sock"
    for _ in range(2):
        socket.unlink()
        stub.kill("gateway")
        stub.start("gateway")
        await until("requests are answered", lambda: is_answered(stub))
        assert socket.stat().st_mode & 0o777 == 0o600
    assert (await stub.status()).models[0].state is ModelState.LOADED
    assert stub.log("controller").count("was deleted or replaced; it is made anew") == 2


async def test_a_gateway_believes_a_controller_that_found_no_epoch(stub: RoundhouseStack) -> None:
    for is_deleted in (False, True):
        if is_deleted:
            (stub.state / "epoch.json").unlink()
        stub.kill("controller")
        stub.start("controller")
        await stub.loaded("a")
        await stub.post("/v1/admin/models/a/unload", {})
        await until("the gateway knows", lambda: is_unloaded(stub))
        await stub.post("/v1/admin/models/a/load", {})
        await until("the gateway knows", lambda: is_answered(stub))
