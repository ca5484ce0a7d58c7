"""What the daemon refuses, and how it is found again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace

import docker
import pytest

from controller.engines.llama_server import LlamaServerDefinition
from controller.runtimes.base import RuntimeUnavailableError, StartError
from controller.runtimes.docker.client import Daemon, ensure_network, remove_network
from controller.runtimes.nvml import NvmlReader
from tests.fakes.fake_nvml import FakeNvml
from tests.support.campaign import campaign_count
from tests.support.docker_engine import SOCKET, DockerEngines, base_image, image_with_variable
from tests.support.runtime_contract import RUN, ended

pytestmark = [pytest.mark.engines, pytest.mark.docker]


async def test_events_of_a_daemon_that_is_missing_begin_when_it_comes(containers: DockerEngines) -> None:
    link = containers.root / "docker.sock"
    runtime = containers.runtime(docker_url=f"unix://{link}")
    events = runtime.watch_events()
    await anext(events)  # the first failure is a wakeup as well
    link.symlink_to(SOCKET)
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(RuntimeUnavailableError):
                await runtime.list_replicas()
                break
            await anext(events)
        start = asyncio.create_task(runtime.start_replica(containers.request(containers.shell(RUN))))
        await anext(events)
        await start
    await runtime.close()
    assert "docker-events" not in [each.name for each in threading.enumerate()]


async def test_preflight_says_which_image_is_missing(containers: DockerEngines) -> None:
    runtime = containers.runtime(images={"worker": base_image()})
    good = containers.shell(RUN)
    assert (await runtime.check_preflight("m", good, good.image)).ok
    gone = await runtime.check_preflight("m", good, "roundhouse-test/none:1")
    assert (gone.ok, gone.missing_image) == (False, "roundhouse-test/none:1")
    assert gone.error == "image roundhouse-test/none:1 is missing"

    nameless = await runtime.check_preflight("m", LlamaServerDefinition(model_path="m.gguf"), None)
    assert nameless.error == "no container image is known for m: set its `image`"
    odd = await runtime.check_preflight("m", good, "Not An Image")
    assert "is not a valid image reference" in (odd.error or "")
    assert (await runtime.check_preflight("s", containers.stub(image=None), None)).ok, "the image of its kind"
    assert containers.left() == []


async def test_preflight_gives_no_gpus_to_an_image_that_preloads_a_library(containers: DockerEngines) -> None:
    runtime = containers.runtime()
    image = image_with_variable("LD_PRELOAD", "/proc/self/cwd/its.so")
    plain = containers.shell(RUN)
    assert (await runtime.check_preflight("m", plain, image)).ok, "without GPUs no hook runs"
    wants_gpu = plain.model_copy(update={"gpus": 1})
    assert (await runtime.check_preflight("m", wants_gpu, plain.image)).ok
    refused = await runtime.check_preflight("m", wants_gpu, image)
    assert (refused.ok, refused.missing_image) == (False, None)
    assert (refused.error or "").startswith(f"image {image} sets LD_PRELOAD, which NVIDIA's hooks would follow")
    own = wants_gpu.model_copy(update={"env": {"LD_PRELOAD": ""}})
    assert (await runtime.check_preflight("m", own, image)).ok


async def test_preflight_gives_no_gpus_to_an_image_with_too_new_a_cuda(containers: DockerEngines) -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1)
    runtime = containers.runtime(nvml=NvmlReader(fake))
    image = image_with_variable("NVIDIA_REQUIRE_CUDA", "cuda>=13.0 brand=tesla,driver>=570,driver<571")
    plain = containers.shell(RUN)
    wants_gpu = plain.model_copy(update={"gpus": 1})
    assert (await runtime.check_preflight("m", wants_gpu, image)).ok, "the GPUs were not read yet"
    await runtime.read_gpus()
    assert (await runtime.check_preflight("m", plain, image)).ok, "without GPUs nobody checks it"
    assert (await runtime.check_preflight("m", wants_gpu, plain.image)).ok
    refused = await runtime.check_preflight("m", wants_gpu, image)
    assert (refused.ok, refused.missing_image, refused.error) == (
        False,
        None,
        f"image {image} asks for cuda>=13.0, and this host's NVIDIA driver is 570.195.03, which runs CUDA up to 12.8: "
        "update the driver (CUDA 13 needs 580 or later), or take an image of an earlier CUDA (docs/images.md)",
    )
    own = wants_gpu.model_copy(update={"env": {"NVIDIA_DISABLE_REQUIRE": "1"}})
    assert (await runtime.check_preflight("m", own, image)).ok
    fake.driver_version, fake.cuda_version = "580.65.06", 13000
    await runtime.read_gpus()
    assert (await runtime.check_preflight("m", wants_gpu, image)).ok


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("127.0.0.1:1/nobody/none:1", "its registry cannot be reached"),
        ("Not An Image", "is not a valid image reference"),
    ],
)
async def test_a_pull_that_fails_says_why(containers: DockerEngines, image: str, words: str) -> None:
    runtime = containers.runtime()
    with pytest.raises(StartError, match=words) as caught:
        await runtime.pull_image(image)
    assert str(caught.value).startswith(f"image {image} ")


async def test_a_start_without_its_image_may_be_tried_again(containers: DockerEngines) -> None:
    request, words = containers.unstartable()
    with pytest.raises(StartError, match=words) as caught:
        await containers.runtime().start_replica(request)
    assert not caught.value.permanent


async def test_an_image_without_the_program_ends_and_names_it(containers: DockerEngines) -> None:
    runtime = containers.runtime()
    await runtime.start_replica(replace(containers.request(containers.shell(RUN)), image=base_image()))
    exit_ = await ended(runtime)
    assert exit_.code == 127
    assert "exec /app/llama-server failed: No such file or directory" in exit_.log_tail


async def test_gpus_where_docker_has_none_are_a_permanent_error(containers: DockerEngines) -> None:
    if await containers.runtime().read_gpus():
        pytest.skip("this host has GPUs")
    fake = FakeNvml()
    fake.add(uuid="GPU-0123", bus=1)
    runtime = containers.runtime(nvml=NvmlReader(fake))
    request = containers.request(containers.shell(RUN), claims={"GPU-0123": 1000})
    with pytest.raises(StartError, match="this host's Docker has no NVIDIA runtime") as caught:
        await runtime.start_replica(request)
    assert caught.value.permanent
    assert containers.left() == []


async def test_a_models_folder_that_is_gone_says_so(containers: DockerEngines) -> None:
    runtime = containers.runtime()
    request = containers.request(containers.shell(RUN))
    await runtime.get_surroundings()
    containers.models.rename(containers.models.with_name("elsewhere"))
    with pytest.raises(StartError, match=f"the models folder {containers.models} does not exist"):
        await runtime.start_replica(request)
    assert containers.left() == []


async def test_an_internal_network_is_refused_where_ports_must_be_published(containers_alone: DockerEngines) -> None:
    containers = containers_alone
    containers.client.networks.create(containers.network, internal=True)
    runtime = containers.runtime()
    with pytest.raises(StartError, match="is internal, and on such a network Docker publishes no ports"):
        await runtime.start_replica(containers.request(containers.shell(RUN)))
    await runtime.close()
    assert containers.client.networks.list(names=[containers.network]), "somebody else's network stays"


async def test_two_controllers_that_make_the_network_at_once_end_up_with_one(containers_alone: DockerEngines) -> None:
    containers = containers_alone

    def ensure(client: docker.APIClient) -> None:
        ensure_network(client, containers.network, containers.instance, publishes_ports=True)

    daemons = [Daemon(None, timeout_s=30, threads=1) for _ in range(4)]
    for _ in range(campaign_count(2, 20)):
        await asyncio.gather(*(daemon.call(ensure) for daemon in daemons))
        assert len(containers.client.networks.list(names=[containers.network])) == 1
        await daemons[0].call(lambda client: remove_network(client, containers.network, containers.instance))
        assert containers.client.networks.list(names=[containers.network]) == []
    for daemon in daemons:
        daemon.close()
