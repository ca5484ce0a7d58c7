"""The probe that reads GPUs for a controller in a container. Its readings are a fake's; all around it is real."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import pytest

from controller.runtimes.docker_client import Daemon
from controller.runtimes.docker_gpus import ABSENT_RECHECK_S, GpuProbe
from controller.state import Gpu
from tests.support.docker_engine import Yard, open_yard
from tests.support.docker_images import ensure_base

pytestmark = pytest.mark.docker

GPU = Gpu("GPU-1", 0, "FakeGPU", 81559, 512)
READING = json.dumps({"gpus": [asdict(GPU)], "error": None})
UNREADABLE = json.dumps({"gpus": None, "error": "GPU is lost"})


class Clock:
    """A clock that the test can put forward from now."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    yard = open_yard(tmp_path)
    yield yard
    await yard.close()


@pytest.fixture
def daemon() -> Daemon:
    return Daemon(None, timeout_s=30, threads=2)


def fake_nvml_probe(daemon: Daemon, yard: Yard, body: str, clock: Clock) -> GpuProbe:
    """A probe whose program is a shell script in place of `controller.runtimes.nvml`, with no GPU requested."""
    return GpuProbe(daemon, yard.instance, ensure_base(), command=("/bin/sh", "-c", body), devices=(), clock=clock)


def name_of(yard: Yard) -> str:
    return f"rh-{yard.instance}-gpu-probe"


async def test_gpus_are_read_and_the_probe_is_contained_and_removed(yard: Yard, daemon: Daemon) -> None:
    probe = fake_nvml_probe(daemon, yard, f"while :; do echo '{READING}'; sleep 0.2; done", Clock())
    assert await probe.read() == (GPU,)
    inspected = yard.inspect(name_of(yard))
    host = inspected["HostConfig"]
    assert (host["CapDrop"], host["ReadonlyRootfs"], host["NetworkMode"], host["PidMode"]) == (
        ["ALL"],
        True,
        "none",
        "host",
    )
    assert host["LogConfig"]["Config"] == {"max-file": "2", "max-size": "1m"}
    assert await probe.read() == (GPU,)
    assert yard.inspect(name_of(yard))["Id"] == inspected["Id"], "one probe, read twice"
    assert await yard.runtime().list() == [], "the probe is no replica"
    await probe.close()
    assert yard.mine() == []


async def test_a_probe_that_ends_after_it_worked_makes_the_gpus_unknown_until_it_is_back(
    yard: Yard, daemon: Daemon
) -> None:
    clock = Clock()
    probe = fake_nvml_probe(daemon, yard, f"while :; do echo '{READING}'; sleep 0.2; done", clock)
    assert await probe.read() == (GPU,)
    yard.client.containers.get(name_of(yard)).kill()
    assert await probe.read() is None
    assert yard.mine() == []
    assert await probe.read() is None, "it waits before it starts another"
    assert yard.mine() == []
    clock.ahead += 60
    assert await probe.read() == (GPU,)


async def test_a_library_that_fails_after_it_worked_makes_the_gpus_unknown(yard: Yard, daemon: Daemon) -> None:
    body = f"echo '{READING}'; read line < /tmp/go; while :; do echo '{UNREADABLE}'; sleep 0.2; done"
    probe = fake_nvml_probe(daemon, yard, f"mkfifo /dev/shm/go; {body.replace('/tmp/go', '/dev/shm/go')}", Clock())
    assert await probe.read() == (GPU,)
    assert yard.inside(name_of(yard), "sh", "-c", "echo > /dev/shm/go; sleep 0.5")[0] == 0
    assert await probe.read() is None


async def test_a_probe_that_falls_silent_makes_the_gpus_unknown(yard: Yard, daemon: Daemon) -> None:
    clock = Clock()
    probe = fake_nvml_probe(daemon, yard, f"echo '{READING}'; exec sleep 600", clock)
    assert await probe.read() == (GPU,)
    clock.ahead += 60
    assert await probe.read() is None
    assert yard.mine() == [], "what hangs is removed"


async def test_a_probe_that_never_worked_means_no_gpus(yard: Yard, daemon: Daemon) -> None:
    probe = fake_nvml_probe(daemon, yard, "echo nonsense; exec sleep 600", Clock())
    assert await probe.read() == ()


async def test_no_gpu_support_means_no_gpus_and_is_looked_at_again_rarely(yard: Yard, daemon: Daemon) -> None:
    if await yard.runtime().gpus():
        pytest.skip("this host has GPUs")
    clock = Clock()
    probe = GpuProbe(daemon, yard.instance, ensure_base(), clock=clock)
    assert await probe.read() == ()
    daemon.close()  # another question to the daemon would fail
    assert await probe.read() == ()
    clock.ahead += ABSENT_RECHECK_S + 1
    with pytest.raises(Exception, match="was closed"):
        await probe.read()
    assert yard.mine() == []


async def test_what_an_earlier_controller_left_is_replaced_and_what_is_foreign_is_not(
    yard: Yard, daemon: Daemon
) -> None:
    body = f"while :; do echo '{READING}'; sleep 0.2; done"
    assert await fake_nvml_probe(daemon, yard, body, Clock()).read() == (GPU,)
    before = yard.inspect(name_of(yard))["Id"]
    probe = fake_nvml_probe(daemon, yard, body, Clock())
    assert await probe.read() == (GPU,)
    assert yard.inspect(name_of(yard))["Id"] != before
    await probe.close()

    foreign = yard.foreign(name_of(yard))
    probe = fake_nvml_probe(daemon, yard, body, Clock())
    assert await probe.read() == ()
    await probe.close()
    assert yard.inspect(name_of(yard))["Id"] == foreign
