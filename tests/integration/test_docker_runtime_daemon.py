"""What the daemon refuses, how it comes back, and how it wakes the controller."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from controller.engines.llama_server import LlamaServerDefinition
from controller.runtimes.base import RuntimeUnavailableError, StartError
from controller.runtimes.docker_client import Daemon
from controller.runtimes.docker_network import ensure_network, remove_network
from tests.support.docker_engine import RUN, Yard, exited, only, open_yard, said, shell, stub
from tests.support.docker_images import ensure_base
from tests.support.wait import until

pytestmark = pytest.mark.docker


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    yard = open_yard(tmp_path)
    yield yard
    await yard.close()


async def test_a_daemon_that_comes_back_is_found_again(tmp_path: Path) -> None:
    yard = open_yard(tmp_path)
    link = tmp_path / "docker.sock"
    runtime = yard.runtime(docker_url=f"unix://{link}")
    try:
        with pytest.raises(RuntimeUnavailableError):
            await runtime.list()
        link.symlink_to("/var/run/docker.sock")
        assert await runtime.list() == []
    finally:
        await yard.close()


async def test_events_wake_whoever_waits_and_end_with_the_runtime(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell("sleep 0.5"))
    woken = asyncio.Event()
    names: list[str] = []

    async def watch() -> None:
        async for _ in runtime.events():
            names[:] = [f"{seen.phase}" for seen in await runtime.list()]
            woken.set()

    task = asyncio.create_task(watch())
    await woken.wait()
    await runtime.start(request)
    await until("the end was told", lambda: names == ["exited"])
    await runtime.remove(request.name)
    await until("the removal was told", lambda: names == [])
    assert [each.name for each in threading.enumerate()].count("docker-events") == 1
    await runtime.close()
    await asyncio.wait_for(task, 30)
    assert "docker-events" not in [each.name for each in threading.enumerate()]


async def test_events_of_a_daemon_that_is_missing_begin_when_it_comes(tmp_path: Path) -> None:
    yard = open_yard(tmp_path)
    link = tmp_path / "docker.sock"
    runtime = yard.runtime(docker_url=f"unix://{link}")
    events = runtime.events()
    try:
        await anext(events)  # the first failure is a wakeup as well
        link.symlink_to("/var/run/docker.sock")
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(RuntimeUnavailableError):
                    await runtime.list()
                    break
                await anext(events)
            start = asyncio.create_task(runtime.start(yard.request(shell(RUN))))
            await anext(events)
            await start
    finally:
        await yard.close()
    assert "docker-events" not in [each.name for each in threading.enumerate()]


async def test_preflight_says_what_is_missing(yard: Yard) -> None:
    runtime = yard.runtime(images={"worker": ensure_base()})
    good = shell(RUN)
    assert (await runtime.preflight("m", good, good.image)).ok
    gone = await runtime.preflight("m", good, "roundhouse-test/none:1")
    assert (gone.ok, gone.missing_image) == (False, "roundhouse-test/none:1")
    assert gone.error == "image roundhouse-test/none:1 is missing"

    no_file = await runtime.preflight("m", shell(RUN, model_path="n.gguf"), good.image)
    assert (no_file.ok, no_file.missing_image) == (False, None)
    assert "model_path: n.gguf is missing" in (no_file.error or "")
    yard.file("bad.gguf", b"nonsense")
    no_gguf = await runtime.preflight("m", shell(RUN, model_path="bad.gguf"), good.image)
    assert "not a GGUF file" in (no_gguf.error or "")

    nameless = await runtime.preflight("m", LlamaServerDefinition(model_path="m.gguf"), None)
    assert nameless.error == "no container image is known for m: set its `image`"
    odd = await runtime.preflight("m", good, "Not An Image")
    assert "is not a valid image reference" in (odd.error or "")
    assert (await runtime.preflight("s", stub(image=None), None)).ok, "the image of its kind"
    assert yard.mine() == []


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("127.0.0.1:1/nobody/none:1", "its registry cannot be reached"),
        ("Not An Image", "is not a valid image reference"),
    ],
)
async def test_a_pull_that_fails_says_why(yard: Yard, image: str, words: str) -> None:
    runtime = yard.runtime()
    with pytest.raises(StartError, match=words) as caught:
        await runtime.pull(image)
    assert str(caught.value).startswith(f"image {image} ")


async def test_a_start_without_its_image_says_so_and_leaves_nothing(yard: Yard) -> None:
    runtime = yard.runtime()
    request = replace(yard.request(shell(RUN)), image="roundhouse-test/none:1")
    with pytest.raises(StartError, match="image roundhouse-test/none:1 is missing") as caught:
        await runtime.start(request)
    assert not caught.value.permanent
    assert yard.mine() == []


async def test_an_image_without_the_program_ends_and_names_it(yard: Yard) -> None:
    runtime = yard.runtime()
    await runtime.start(replace(yard.request(shell(RUN)), image=ensure_base()))
    seen = await exited(runtime)
    assert seen.exit is not None
    assert seen.exit.code == 127
    assert "exec /app/llama-server failed: No such file or directory" in seen.exit.log_tail


async def test_gpus_where_docker_has_none_are_a_permanent_error(yard: Yard) -> None:
    if await yard.runtime().gpus():
        pytest.skip("this host has GPUs")
    runtime = yard.runtime()
    request = yard.request(shell(RUN), claims={"GPU-0123": 1000})
    with pytest.raises(StartError, match="this host's Docker has no NVIDIA runtime") as caught:
        await runtime.start(request)
    assert caught.value.permanent
    assert yard.mine() == []


async def test_a_models_folder_that_is_gone_says_so(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell(RUN))
    await runtime.surroundings()
    yard.models.rename(yard.models.with_name("elsewhere"))
    with pytest.raises(StartError, match=f"the models folder {yard.models} does not exist"):
        await runtime.start(request)
    assert yard.mine() == []


async def test_an_internal_network_is_refused_where_ports_must_be_published(yard: Yard) -> None:
    yard.client.networks.create(yard.network, internal=True)
    runtime = yard.runtime()
    with pytest.raises(StartError, match="is internal, and on such a network Docker publishes no ports"):
        await runtime.start(yard.request(shell(RUN)))
    await runtime.close()
    assert yard.client.networks.list(names=[yard.network]), "somebody else's network stays"


async def test_two_controllers_that_make_the_network_at_once_end_up_with_one(yard: Yard) -> None:
    def ensure(client: docker.APIClient) -> None:
        ensure_network(client, yard.network, yard.instance, published=True)

    daemons = [Daemon(None, timeout_s=30, threads=1) for _ in range(4)]
    for _ in range(5):
        await asyncio.gather(*(daemon.call(ensure) for daemon in daemons))
        assert len(yard.client.networks.list(names=[yard.network])) == 1
        await daemons[0].call(lambda client: remove_network(client, yard.network, yard.instance))
        assert yard.client.networks.list(names=[yard.network]) == []
    for daemon in daemons:
        daemon.close()


async def test_a_removal_that_is_under_way_already_is_no_error(yard: Yard) -> None:
    runtime = yard.runtime()
    for attempt in range(1, 6):
        request = yard.request(shell("echo x"), attempt=attempt)
        await runtime.start(request)
        await exited(runtime)
        await asyncio.gather(*(runtime.remove(request.name) for _ in range(4)))
        assert await runtime.list() == []


async def test_many_are_started_and_stopped_at_once(yard: Yard) -> None:
    runtime = yard.runtime()
    requests = [yard.request(shell(f"echo up; {RUN}"), attempt=attempt) for attempt in range(1, 7)]
    await asyncio.gather(*(runtime.start(request) for request in requests))
    assert {seen.name for seen in await runtime.list()} == {request.name for request in requests}
    assert len({seen.base_url for seen in await runtime.list()}) == 6
    await asyncio.gather(*(runtime.stop(request.name, 30) for request in requests))
    assert await runtime.list() == []


async def test_a_paused_engine_still_runs_and_can_be_stopped(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell(f"echo up; {RUN}"))
    await runtime.start(request)
    await said(runtime, request.name, "up")
    yard.client.containers.get(request.name).pause()
    assert (await only(runtime)).phase == "running"
    await runtime.stop(request.name, 0.2)
    assert await runtime.list() == []
