"""When a probe that runs and reads nothing is made anew. Real probes: tests/integration/controller/runtimes/docker."""

from __future__ import annotations

from typing import cast

import pytest

from controller.hosts import Gpu, UnreadGpu
from controller.runtimes.docker.client import Daemon
from controller.runtimes.docker.gpus import MAX_BACKOFF_S, UNREADABLE_READINGS, GpuProbe, count_unreadable
from controller.runtimes.nvml import Reading
from tests.fakes.fake_probe_daemon import FakeProbeDaemon

GPU = Gpu("GPU-a", 0, "NVIDIA A10", 23_028, 4)
WELL = Reading((GPU,))
# What NVML says in a container that ran when `systemctl daemon-reload` took its devices away, and goes on saying until
# the container is made anew: "Failed to initialize NVML: Unknown Error" (NVIDIA/nvidia-container-toolkit#48, #1227).
TAKEN_AWAY = Reading(None, "Unknown Error")


class Host:
    """One probe, its fake daemon, and a clock that stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        self.daemon = FakeProbeDaemon()
        self.daemon.first_line = WELL.to_line()
        self.probe = GpuProbe(cast("Daemon", self.daemon), "i", "controller:1", clock=lambda: self.now)

    async def read(self, reading: Reading) -> tuple[Gpu, ...] | None:
        """The probe writes one more line, 2 s after the last, and is read twice, as rounds may do."""
        self.now += 2.0
        self.daemon.write(reading.to_line())
        first = await self.probe.read_gpus()
        assert self.daemon.container is None or await self.probe.read_gpus() == first
        return first


def test_readings_are_counted_once_each_and_in_a_row() -> None:
    assert count_unreadable(0, TAKEN_AWAY, is_new=True) == 1
    assert count_unreadable(3, TAKEN_AWAY, is_new=True) == 4
    assert count_unreadable(3, TAKEN_AWAY, is_new=False) == 3
    assert count_unreadable(3, WELL, is_new=True) == 0
    assert count_unreadable(3, Reading((), "no NVIDIA driver"), is_new=True) == 0
    in_part = Reading((GPU,), unread_gpus=(UnreadGpu(1, "Unknown Error", "GPU-b"),))
    assert count_unreadable(3, in_part, is_new=True) == 0, "a new container would not see a lost GPU either"


async def test_a_probe_whose_library_fails_five_times_in_a_row_is_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    assert await host.probe.read_gpus() == (GPU,)
    for _ in range(UNREADABLE_READINGS - 1):
        assert await host.read(TAKEN_AWAY) is None
    assert host.daemon.started == 1
    assert await host.read(WELL) == (GPU,), "a fault that passes changes nothing"
    for _ in range(UNREADABLE_READINGS):
        assert host.daemon.container is not None
        assert await host.read(TAKEN_AWAY) is None
    assert host.daemon.container is None
    assert host.probe.reason == "the GPUs cannot be read now: Unknown Error"
    assert caplog.messages == [
        "the GPUs cannot be read: Unknown Error",
        "the GPUs cannot be read: Unknown Error",
        "rh-i-gpu-probe: nothing could be read 5 times in a row: it is made anew",
    ], "twice, for it could be read in between"
    assert await host.probe.read_gpus() is None, "not at once"
    assert host.daemon.container is None
    host.now += 2.0
    assert await host.probe.read_gpus() == (GPU,)
    assert not host.probe.reason
    assert host.daemon.started == 2


async def test_one_that_is_made_anew_in_vain_waits_longer_each_time() -> None:
    host = Host()
    await host.probe.read_gpus()
    host.daemon.first_line = TAKEN_AWAY.to_line()
    written, waits = 0, []
    for _ in range(8):
        for _ in range(UNREADABLE_READINGS - written):
            await host.read(TAKEN_AWAY)
        assert host.daemon.container is None
        wait_s = 0
        while host.daemon.container is None and wait_s < 100:
            wait_s, host.now = wait_s + 1, host.now + 1.0
            assert await host.probe.read_gpus() is None
        waits.append(wait_s)
        written = 1
    assert waits == [2, 4, 8, 16, 32, MAX_BACKOFF_S, MAX_BACKOFF_S, MAX_BACKOFF_S]
    assert await host.read(WELL) == (GPU,)
    for _ in range(UNREADABLE_READINGS):
        await host.read(TAKEN_AWAY)
    assert host.daemon.container is None
    host.now += 2.0
    await host.probe.read_gpus()
    assert host.daemon.container is not None, "one that worked in between begins anew"


async def test_gpus_that_a_probe_left_out_are_told() -> None:
    host = Host()
    await host.probe.read_gpus()
    assert not host.probe.unread_gpus
    lost = UnreadGpu(1, "it has fallen off the bus", "GPU-b", "0000:0a:00.0")
    for _ in range(UNREADABLE_READINGS + 1):
        assert await host.read(Reading((GPU,), unread_gpus=(lost,))) == (GPU,)
    assert host.probe.unread_gpus == (lost,)
    assert host.daemon.started == 1
    for _ in range(UNREADABLE_READINGS):
        assert await host.read(Reading(None, "Unknown Error", unread_gpus=(lost,))) is None
    assert host.daemon.container is None
    assert host.probe.unread_gpus == (lost,), "the last reading had them"
    host.now += 2.0
    host.daemon.first_line = "no reading"
    assert await host.probe.read_gpus() is None
    assert not host.probe.unread_gpus, "which GPUs cannot be read is not known any more"


async def test_a_docker_engine_that_loses_its_gpu_support_has_no_unread_gpus() -> None:
    host = Host()
    lost = UnreadGpu(1, "it has fallen off the bus", "GPU-b", "0000:0a:00.0")
    host.daemon.first_line = Reading((GPU,), unread_gpus=(lost,)).to_line()
    assert await host.probe.read_gpus() == (GPU,)
    host.daemon.container = None
    host.daemon.start_error = 'could not select device driver "" with capabilities: [[gpu utility]]'
    assert await host.probe.read_gpus() == ()
    assert not host.probe.unread_gpus


async def test_gpus_are_unknown_until_the_probe_has_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.runtimes.docker.gpus.FIRST_READING_S", 0.01)
    host = Host()
    host.daemon.start_error = "No such image: controller:1"
    assert await host.probe.read_gpus() is None
    assert await host.probe.read_gpus() is None, "it waits before it tries again"
    host.now, host.daemon.start_error, host.daemon.first_line = 60.0, None, None
    assert await host.probe.read_gpus() is None, "the first line is late"
    host.daemon.write(Reading((), "no NVIDIA driver").to_line())
    assert await host.probe.read_gpus() == ()
    assert await host.read(TAKEN_AWAY) is None, "it said that there is none, and fails now"
    assert await host.read(WELL) == (GPU,)
