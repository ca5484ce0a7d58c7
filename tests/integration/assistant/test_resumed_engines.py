"""Resumable streams of every engine that our workers have, and of llama-server: cut, and read on from any byte."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contract.routing import ModelRoute
from controller.engines import ENGINES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.resumed_streams import (
    check_every_cut,
    cut_stream,
    is_told,
    open_stream,
    read_again,
    stop,
    until_read,
)
from tests.support.wait import until
from tests.support.worker_engines import TOKEN, Fleet, WorkerEngine, each_engine, fleet_in
from tests.support.worker_process import Worker

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_in(tmp_path_factory.mktemp("fleet")) as made:
        yield made


def model_of(engine: WorkerEngine, worker: Worker) -> ModelRoute:
    """The worker as the model `m`, as the controller would make it."""
    declared = ENGINES[engine.name]
    definition = declared.definition.model_validate({"backend": engine.name, "model_path": "demo"})
    made = route("m", [f"http://127.0.0.1:{worker.port}"], token=TOKEN, apis=declared.list_apis(definition))
    return made.model_copy(update={"backend": engine.name, "served_name": "demo"})


@each_engine(lambda engine: engine.chats)
async def test_every_family_is_cut_and_read_on(gateway: GatewayHarness, fleet: Fleet, engine: WorkerEngine) -> None:
    await gateway.publish(model_of(engine, fleet.plain(engine)))
    await check_every_cut(gateway, "m")


# llama-server's figures stand still while it works.
@each_engine(lambda engine: engine.chats and not engine.own_surface)
async def test_the_engine_works_on_without_the_client_until_it_is_stopped(fleet: Fleet, engine: WorkerEngine) -> None:
    worker = fleet.busy(engine)
    async with gateway_harness() as gateway:
        await gateway.publish(model_of(engine, worker))
        before = worker.figure(engine.counts)
        sent = await cut_stream(await open_stream(gateway, **engine.endless))
        await until_read(gateway, 0)
        when_left = worker.figure(engine.counts)
        await until("the engine works on", lambda: worker.figure(engine.counts) > when_left)
        assert worker.figure("requests_processing") == 1
        assert await stop(gateway) == 204
        await until("the engine stops", lambda: worker.figure("requests_processing") == 0)
        assert worker.figure(engine.counts) - before < engine.whole
        read = await read_again(gateway)
        assert read.state == "stopped"
        assert read.body.startswith(sent)
        assert is_told("stream_stopped", read.body)
