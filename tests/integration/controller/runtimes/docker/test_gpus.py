"""The probe that reads GPUs for a controller in a container. Its readings are a fake's; all around it is real."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import pytest

from controller.hosts import Gpu, GpuDriver
from controller.runtimes.docker.client import Daemon
from controller.runtimes.docker.gpus import ABSENT_RECHECK_S, GpuProbe
from tests.support.docker_engine import DockerEngines, base_image
from tests.support.wait import until

pytestmark = [pytest.mark.engines, pytest.mark.docker]

GPU = Gpu("GPU-1", 0, "FakeGPU", 81559, 512)
READING = json.dumps({"gpus": [asdict(GPU)], "error": None})
READS = f"while :; do echo '{READING}'; sleep 0.2; done"
UNREADABLE = json.dumps({"gpus": None, "error": "GPU is lost"})


class Clock:
    """A clock that the test can put forward from now."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def daemon() -> Daemon:
    return Daemon(None, timeout_s=30, threads=2)


def fake_nvml_probe(daemon: Daemon, containers: DockerEngines, body: str, clock: Clock) -> GpuProbe:
    """A probe whose program is a shell script in place of `controller.runtimes.nvml`, with no GPU requested."""
    return GpuProbe(daemon, containers.instance, base_image(), command=("/bin/sh", "-c", body), devices=(), clock=clock)


def name_of(containers: DockerEngines) -> str:
    return f"rh-{containers.instance}-gpu-probe"


async def test_gpus_are_read_and_the_probe_is_contained_and_removed(containers: DockerEngines, daemon: Daemon) -> None:
    probe = fake_nvml_probe(daemon, containers, READS, Clock())
    assert await probe.read_gpus() == (GPU,)
    inspected = containers.inspect(name_of(containers))
    host = inspected["HostConfig"]
    expected = (["ALL"], True, "none", "host")
    assert (host["CapDrop"], host["ReadonlyRootfs"], host["NetworkMode"], host["PidMode"]) == expected
    assert host["LogConfig"]["Config"] == {"max-file": "2", "max-size": "1m"}
    assert await probe.read_gpus() == (GPU,)
    assert containers.inspect(name_of(containers))["Id"] == inspected["Id"], "one probe, read twice"
    assert await containers.runtime().list_replicas() == [], "the probe is no replica"
    await probe.close()
    assert containers.left() == []


async def test_gpus_are_unknown_while_a_probe_is_away(containers: DockerEngines, daemon: Daemon) -> None:
    clock = Clock()
    probe = fake_nvml_probe(daemon, containers, READS, clock)
    assert await probe.read_gpus() == (GPU,)
    containers.client.containers.get(name_of(containers)).kill()
    assert await probe.read_gpus() is None
    assert containers.left() == []
    assert await probe.read_gpus() is None, "it waits before it starts another"
    assert containers.left() == []
    clock.ahead += 60
    assert await probe.read_gpus() == (GPU,)


async def test_gpus_are_unknown_when_the_library_fails(containers: DockerEngines, daemon: Daemon) -> None:
    go = "/dev/shm/go"
    body = f"mkfifo {go}; echo '{READING}'; read line < {go}; while :; do echo '{UNREADABLE}'; sleep 0.2; done"
    probe = fake_nvml_probe(daemon, containers, body, Clock())
    assert await probe.read_gpus() == (GPU,)
    assert containers.inside(name_of(containers), "sh", "-c", f"echo > {go}")[0] == 0

    async def unknown() -> bool:
        return await probe.read_gpus() is None

    await until("a reading that failed", unknown)


async def test_the_driver_is_what_the_last_reading_tells(containers: DockerEngines, daemon: Daemon) -> None:
    clock, go = Clock(), "/dev/shm/go"
    reported = {"version": "570.195.03", "cuda_version": "12.8", "brands": ["geforce", "nvidia"]}
    reading = json.dumps(json.loads(READING) | {"driver": reported})
    body = f"mkfifo {go}; echo '{reading}'; read line < {go}; echo '{READING}'; exec sleep 600"
    probe = fake_nvml_probe(daemon, containers, body, clock)
    assert await probe.read_gpus() == (GPU,)
    assert probe.driver == GpuDriver("570.195.03", "12.8", ("geforce", "nvidia"))
    assert containers.inside(name_of(containers), "sh", "-c", f"echo > {go}")[0] == 0

    async def untold() -> bool:
        return await probe.read_gpus() == (GPU,) and probe.driver is None

    await until("a line of an earlier version", untold)


async def test_a_driver_of_gpus_that_cannot_be_read_is_not_known(containers: DockerEngines, daemon: Daemon) -> None:
    clock = Clock()
    reading = json.dumps(json.loads(READING) | {"driver": {"version": "570.195.03"}})
    probe = fake_nvml_probe(daemon, containers, f"echo '{reading}'; exec sleep 600", clock)
    await probe.read_gpus()
    assert probe.driver == GpuDriver("570.195.03")
    clock.ahead += 60
    assert await probe.read_gpus() is None
    assert probe.driver is None


async def test_a_probe_whose_library_fails_for_good_is_made_anew(containers: DockerEngines, daemon: Daemon) -> None:
    """As after `systemctl daemon-reload`, which takes running containers' devices (nvidia-container-toolkit#48)."""
    clock = Clock()
    go = "/dev/shm/go"
    taken_away = f"read line < {go}; while :; do echo '{UNREADABLE}'; sleep 0.1; done"
    probe = fake_nvml_probe(daemon, containers, f"mkfifo {go}; echo '{READING}'; {taken_away}", clock)
    assert await probe.read_gpus() == (GPU,)
    before = containers.inspect(name_of(containers))["Id"]
    assert containers.inside(name_of(containers), "sh", "-c", f"echo > {go}")[0] == 0

    async def removed() -> bool:
        assert await probe.read_gpus() in ((GPU,), None)
        return containers.left() == []

    await until("the probe is removed", removed)
    assert probe.reason == "the GPUs cannot be read now: GPU is lost"
    clock.ahead += 60
    assert await probe.read_gpus() == (GPU,), "a new container has the devices"
    assert containers.inspect(name_of(containers))["Id"] != before


async def test_a_probe_that_falls_silent_makes_the_gpus_unknown(containers: DockerEngines, daemon: Daemon) -> None:
    clock = Clock()
    probe = fake_nvml_probe(daemon, containers, f"echo '{READING}'; exec sleep 600", clock)
    assert await probe.read_gpus() == (GPU,)
    clock.ahead += 60
    assert await probe.read_gpus() is None
    assert containers.left() == [], "what hangs is removed"


async def test_a_probe_that_never_worked_leaves_the_gpus_unknown(containers: DockerEngines, daemon: Daemon) -> None:
    probe = fake_nvml_probe(daemon, containers, "echo nonsense; exec sleep 600", Clock())
    assert await probe.read_gpus() is None


async def test_no_gpu_support_is_looked_at_again_rarely(containers: DockerEngines, daemon: Daemon) -> None:
    if await containers.runtime().read_gpus():
        pytest.skip("this host has GPUs")
    clock = Clock()
    probe = GpuProbe(daemon, containers.instance, base_image(), clock=clock)
    assert await probe.read_gpus() == ()
    assert (probe.reason or "").startswith("this Docker Engine has no NVIDIA support: could not select device driver")
    daemon.close()  # another question to the daemon would fail
    assert await probe.read_gpus() == ()
    clock.ahead += ABSENT_RECHECK_S + 1
    with pytest.raises(Exception, match="was closed"):
        await probe.read_gpus()
    assert containers.left() == []


async def test_an_earlier_probe_is_replaced_and_a_foreign_one_not(containers: DockerEngines, daemon: Daemon) -> None:
    assert await fake_nvml_probe(daemon, containers, READS, Clock()).read_gpus() == (GPU,)
    before = containers.inspect(name_of(containers))["Id"]
    probe = fake_nvml_probe(daemon, containers, READS, Clock())
    assert await probe.read_gpus() == (GPU,)
    assert containers.inspect(name_of(containers))["Id"] != before
    await probe.close()

    containers.foreign(name_of(containers))
    probe = fake_nvml_probe(daemon, containers, READS, Clock())
    assert await probe.read_gpus() is None
    await probe.close()
    assert containers.foreign_runs(name_of(containers))
