"""What a replica is as a container: its labels, its image, its network, its events. The rest is the contract's.

tests/integration/controller/runtimes/test_contract_*.py hold what containers have in common with processes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace

import pytest

from contract.desired import Definition
from contract.status import SCHEMA_VERSION
from controller.engines import spec_hash
from controller.hosts import HOST
from controller.planning.backoff import verdict_of_exit
from controller.redaction import redact_nothing
from controller.reports.drift import find_drift
from controller.runtimes.base import StartError
from controller.runtimes.docker.container_spec import PREFIX, SCHEMA, write_labels
from controller.runtimes.docker.runtime import DockerRuntime
from controller.state import DesiredModel, DesiredState, Health, ObservedReplica, ObservedState, Phase, Statement
from tests.support.docker_engine import DockerEngines, base_image, shell_image
from tests.support.runtime_contract import RUN, ended, only, start_shell, wait_for_log
from tests.support.wait import until

pytestmark = [pytest.mark.engines, pytest.mark.docker]


async def test_the_labels_say_it_all_and_nothing_secret(containers: DockerEngines) -> None:
    request = containers.request(containers.shell(RUN), "team/model:1", claims={HOST: 64})
    await containers.runtime().start_replica(request)
    labels = containers.inspect(request.name)["Config"]["Labels"]
    assert {key.removeprefix(PREFIX): value for key, value in labels.items() if not key.endswith("created")} == {
        "managed-by": "roundhouse",
        "instance": containers.instance,
        "role": "replica",
        "schema_version": str(SCHEMA_VERSION),
        "model": "team/model:1",
        "replica": "0",
        "spec-hash": request.id.spec_hash,
        "attempt": "1",
        "claims": '{"host":64}',
    }
    assert request.token not in str(labels)


async def test_newer_labels_are_left_alone_and_reported_once(
    containers: DockerEngines, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = containers.runtime()
    request = containers.request(containers.shell(RUN))
    newer = write_labels(containers.instance, request, 0.0) | {SCHEMA: str(SCHEMA_VERSION + 1)}
    garbled = write_labels(containers.instance, request, 0.0) | {f"{PREFIX}claims": "[1"}
    containers.foreign(request.name, newer)
    containers.foreign(f"{request.name}-g", garbled)
    with caplog.at_level(logging.WARNING):
        assert await runtime.list_replicas() == []
        assert await runtime.list_replicas() == []
    assert len([record for record in caplog.records if "left alone" in record.getMessage()]) == 2
    await runtime.stop_replica(request.name, 0)
    with pytest.raises(StartError, match="not of this Roundhouse"):
        await runtime.start_replica(request)
    assert containers.inspect(request.name)["State"]["Running"]


async def test_a_name_that_a_foreign_container_has_is_refused(containers: DockerEngines) -> None:
    runtime = containers.runtime()
    request = containers.request(containers.shell(RUN))
    containers.foreign(request.name)
    assert await runtime.read_log_tail(request.name) == ""
    with pytest.raises(StartError, match="is taken by a container that is not of this Roundhouse"):
        await runtime.start_replica(request)
    assert containers.foreign_runs(request.name)


async def test_a_container_that_was_only_created_can_be_started(containers: DockerEngines) -> None:
    runtime = containers.runtime()
    request = containers.request(containers.shell(f"echo up; {RUN}"))
    await containers.half_created(request)
    assert (await only(runtime)).phase is Phase.CREATED
    await runtime.start_replica(request)
    assert (await only(runtime)).phase is Phase.RUNNING
    await wait_for_log(runtime, request.name, "up")


async def test_an_engine_beyond_its_memory_is_seen_as_out_of_memory(containers: DockerEngines) -> None:
    runtime = containers.runtime()
    body = "exec python3 -c 'print(\"filling\", flush=True); x = bytearray(512 * 2**20)'"
    await runtime.start_replica(containers.request(containers.shell(body, memory_mib=64)))
    exit_ = await ended(runtime)
    assert (exit_.code, exit_.oom, exit_.log_tail) == (137, True, "filling")
    assert verdict_of_exit("llama_server", exit_, was_ready=False).message.startswith("out of memory")


async def test_the_last_controller_out_removes_its_network(containers_alone: DockerEngines) -> None:
    containers = containers_alone
    runtime, request = await start_shell(containers)
    await runtime.close()
    assert containers.inspect(request.name)["State"]["Running"]
    assert containers.client.networks.list(names=[containers.network])

    after = containers.runtime()
    await after.stop_replica(request.name, 30)
    await after.close()
    assert containers.left() == []
    assert containers.client.networks.list(names=[containers.network]) == []


async def test_a_removal_is_an_event_and_one_thread_listens(containers: DockerEngines) -> None:
    runtime = containers.runtime()
    request = containers.request(containers.shell("exit 0"))
    woken = asyncio.Event()
    phases: list[Phase] = []

    async def watch() -> None:
        async for _ in runtime.watch_events():
            phases[:] = [seen.phase for seen in await runtime.list_replicas()]
            woken.set()

    task = asyncio.create_task(watch())
    await woken.wait()
    await runtime.start_replica(request)
    await until("the end was told", lambda: phases == [Phase.EXITED])
    await runtime.remove_replica(request.name)
    await until("the removal was told", lambda: phases == [])
    assert [each.name for each in threading.enumerate()].count("docker-events") == 1
    await runtime.close()
    async with asyncio.timeout(60):
        await task
    assert "docker-events" not in [each.name for each in threading.enumerate()]


async def test_an_image_that_is_gone_renders_without_an_id(containers: DockerEngines) -> None:
    runtime = containers.runtime()
    definition = containers.shell(RUN)
    await runtime.start_replica(containers.request(definition))
    seen = await only(runtime)
    assert seen.image_id == containers.client.images.get(shell_image()).id
    absent = await runtime.render_replica(seen, definition, "roundhouse/none:at-all")
    assert absent is not None
    assert (absent.argv, absent.image_id) == (seen.argv, None)


async def test_a_paused_engine_still_runs_and_can_be_stopped(containers: DockerEngines) -> None:
    runtime, request = await start_shell(containers, f"echo up; {RUN}")
    await wait_for_log(runtime, request.name, "up")
    await until("it is paused", lambda: containers.try_to_pause(request.name))
    assert (await only(runtime)).phase is Phase.RUNNING
    await runtime.stop_replica(request.name, 0.2)
    assert await runtime.list_replicas() == []


async def test_an_image_s_name_that_moved_is_drift(containers: DockerEngines) -> None:
    tag = f"roundhouse-test-moving:{containers.instance}"
    name, _, version = tag.partition(":")
    containers.client.images.get(shell_image()).tag(name, version)
    try:
        runtime = containers.runtime()
        definition = containers.shell(RUN).model_copy(update={"image": tag})
        request = containers.request(definition)
        await runtime.start_replica(request)
        assert await _drift(runtime, definition) == []
        containers.client.images.get(base_image()).tag(name, version, force=True)
        running = (await only(runtime)).image_id
        assert await _drift(runtime, definition) == [("image", containers.client.images.get(tag).id, running)]
    finally:
        containers.client.images.remove(tag)


async def _drift(runtime: DockerRuntime, definition: Definition) -> list[tuple[str, object, object]]:
    seen = await only(runtime)
    want = DesiredModel(
        "m",
        definition,
        "llama_server",
        spec_hash(definition, definition.image, "m"),
        1,
        Statement("file", 1.0, "enabled in the files"),
        image=definition.image,
    )
    replica = ObservedReplica(seen.id, seen.name, seen.phase, seen.created_at, health=Health.READY)
    replica = replace(replica, argv=seen.argv, image_id=seen.image_id)
    rendered = await runtime.render_replica(seen, definition, definition.image)
    assert rendered is not None
    desired, observed = DesiredState(1, {"m": want}), ObservedState(2.0, (replica,))
    found = find_drift(desired, observed, {seen.name: rendered}, file_since={}, redact=redact_nothing, now=2.0)
    return [(item.kind, item.declared, item.running) for item in found]
