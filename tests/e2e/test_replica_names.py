"""Names of replicas: each is one attempt's, whatever became of the engine and of the controller."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.support.admin import AdminApi
from tests.support.roundhouse_stack import RoundhouseStack, replica_names
from tests.support.runtime_fixtures import RuntimeFixture
from tests.support.wait import until

pytestmark = pytest.mark.engines

STUB: dict[str, Any] = {"backend": "stub", "enabled": True, "stub_load_s": 0.1}


async def test_no_engine_takes_the_name_of_an_earlier_one_and_each_log_is_one_engines(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    stack.declare({"m": STUB})
    await stack.open()
    names = [await _sole_name(stack)]
    async with AdminApi(stack.url) as admin:

        async def unload_and_load() -> None:
            assert (await admin.unload("m")).status == 200
            await admin.state("m", "unloaded")
            assert (await admin.load("m")).status == 200
            names.append(await _sole_name(stack))

        await unload_and_load()
        runtime_fixture.kill(stack, names[-1])
        await stack.model_where("m", lambda model: names[-1] not in replica_names(model), "is replaced")
        names.append(await _sole_name(stack))
        await unload_and_load()
        assert (await admin.unload("m")).status == 200
        await admin.state("m", "unloaded")
        stack.kill("controller", signal.SIGKILL)
        stack.start("controller")

        async def answers() -> bool:
            return (await admin.request("GET", "models")).status == 200

        await until("the controller is back", answers)
        assert (await admin.load("m")).status == 200
        names.append(await _sole_name(stack))
        assert len(set(names)) == len(names), names
        logs = [(await admin.request("GET", "models/m/logs", replica=name, lines=1000)).body for name in names]
        assert [log.count("loading: 10 %") for log in logs] == [1] * len(names), logs


async def _sole_name(stack: RoundhouseStack) -> str:
    [name] = replica_names((await stack.loaded("m"))["m"])
    return name
