"""Resumable streams of every engine that our workers have, and of llama-server: cut, and read on from any byte."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.engines import ENGINES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import gateway_harness
from tests.support.resumed_streams import check_every_cut
from tests.support.worker_engines import TOKEN, Fleet, WorkerEngine, each_engine, fleet_in

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_in(tmp_path_factory.mktemp("fleet")) as made:
        yield made


@each_engine(lambda engine: engine.chats)
async def test_every_family_is_cut_and_read_on(fleet: Fleet, engine: WorkerEngine) -> None:
    worker, declared = fleet.plain(engine), ENGINES[engine.name]
    definition = declared.definition.model_validate({"backend": engine.name, "model_path": "demo"})
    made = route("m", [f"http://127.0.0.1:{worker.port}"], token=TOKEN, apis=declared.list_apis(definition))
    async with gateway_harness() as here:
        await here.publish(made.model_copy(update={"backend": engine.name, "served_name": "demo"}))
        await check_every_cut(here, "m")
