"""Whose container is it: adoption, foreign containers, half-created ones, two instances on one daemon."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller.runtimes.base import StartError
from controller.runtimes.docker_labels import PREFIX, SCHEMA, write_labels
from controller.schema.status import SCHEMA_VERSION
from controller.state import Phase
from tests.support.docker_engine import RUN, Yard, only, open_yard, ready, said, shell, stub

pytestmark = pytest.mark.docker


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    yard = open_yard(tmp_path)
    yield yard
    await yard.close()


async def test_another_controller_finds_what_the_first_one_started(yard: Yard) -> None:
    first = yard.runtime()
    request = yard.request(stub(), "team/model:1")
    await first.start(request)
    await ready(await only(first))
    before = await only(first)
    await first.close()

    second = yard.runtime()
    assert await only(second) == before
    await second.start(request)
    assert await only(second) == before, "adopted, not restarted"
    await second.stop(request.name, 30)
    assert await second.list() == []


async def test_an_end_that_no_controller_saw_is_still_known(yard: Yard) -> None:
    first = yard.runtime()
    request = yard.request(shell("echo gone; exit 3"))
    await first.start(request)
    await first.close()
    yard.client.containers.get(request.name).wait(timeout=60)
    seen = await only(yard.runtime())
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.log_tail) == (3, "gone")


async def test_the_labels_say_it_all_and_nothing_secret(yard: Yard) -> None:
    request = yard.request(shell(RUN), "team/model:1")
    await yard.runtime().start(request)
    labels = yard.inspect(request.name)["Config"]["Labels"]
    assert {key.removeprefix(PREFIX): value for key, value in labels.items() if not key.endswith("created")} == {
        "managed-by": "roundhouse",
        "instance": yard.instance,
        "role": "replica",
        "schema_version": str(SCHEMA_VERSION),
        "model": "team/model:1",
        "replica": "0",
        "spec-hash": request.id.spec_hash,
        "attempt": "1",
        "claims": "{}",
    }
    assert request.token not in str(labels)


async def test_two_instances_on_one_daemon_do_not_see_each_other(yard: Yard, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = open_yard(tmp_path / "other")
    try:
        here, there = yard.runtime(), other.runtime()
        mine, others = yard.request(shell(RUN)), other.request(shell(RUN))
        await here.start(mine)
        await there.start(others)
        assert (await only(here)).name == mine.name
        assert (await only(there)).name == others.name
        await here.stop(others.name, 0)
        await here.remove(others.name)
        assert await here.log_tail(others.name) == ""
        assert (await only(there)).phase is Phase.RUNNING
        await here.stop(mine.name, 0)
        await here.close()
        assert (await only(there)).phase is Phase.RUNNING
    finally:
        await other.close()


async def test_foreign_containers_are_left_alone_whatever_their_name(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell(RUN))
    foreign = yard.foreign(request.name)
    assert await runtime.list() == []
    await runtime.stop(request.name, 0)
    await runtime.remove(request.name)
    with pytest.raises(StartError, match="is taken by a container that is not of this Roundhouse"):
        await runtime.start(request)
    inspected = yard.inspect(request.name)
    assert (inspected["Id"], inspected["State"]["Running"]) == (foreign, True)


async def test_labels_of_a_newer_roundhouse_are_left_alone_and_reported_once(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = yard.runtime()
    request = yard.request(shell(RUN))
    newer = write_labels(yard.instance, request, 0.0) | {SCHEMA: str(SCHEMA_VERSION + 1)}
    garbled = write_labels(yard.instance, request, 0.0) | {f"{PREFIX}claims": "[1"}
    yard.foreign(request.name, newer)
    yard.foreign(f"{request.name}-g", garbled)
    with caplog.at_level(logging.WARNING):
        assert await runtime.list() == []
        assert await runtime.list() == []
    assert len([record for record in caplog.records if "left alone" in record.getMessage()]) == 2
    await runtime.stop(request.name, 0)
    with pytest.raises(StartError, match="not of this Roundhouse"):
        await runtime.start(request)
    assert yard.inspect(request.name)["State"]["Running"]


async def test_a_half_created_container_is_listed_and_can_be_started(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell(f"echo up; {RUN}"))
    await half_created(yard, request.name)
    seen = await only(runtime)
    assert (seen.id, seen.phase, seen.base_url, seen.exit) == (request.id, Phase.CREATED, None, None)
    assert seen.started_at is None
    await runtime.start(request)
    assert (await only(runtime)).phase is Phase.RUNNING
    await said(runtime, request.name, "up")


async def test_a_half_created_container_is_removed_by_remove_and_by_stop(yard: Yard) -> None:
    runtime = yard.runtime()
    for attempt in (1, 2):
        request = yard.request(shell(RUN), attempt=attempt)
        await half_created(yard, request.name, attempt)
        assert (await only(runtime)).phase is Phase.CREATED
        await (runtime.remove(request.name) if attempt == 1 else runtime.stop(request.name, 30))
        assert yard.mine() == []


async def half_created(yard: Yard, name: str, attempt: int = 1) -> None:
    """What a controller leaves that is killed between creating a container and starting it."""
    runtime = yard.runtime()
    request = yard.request(shell(f"echo up; {RUN}"), attempt=attempt)
    await runtime.start(replace(request, name=f"{name}-x"))
    made = yard.client.containers.get(f"{name}-x")
    config = {key: value for key, value in made.attrs["Config"].items() if key != "Hostname"}
    config["HostConfig"] = made.attrs["HostConfig"]
    made.remove(force=True)
    yard.client.api.create_container_from_config(config, name)  # type: ignore[no-untyped-call]
