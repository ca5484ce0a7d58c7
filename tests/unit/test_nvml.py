"""GPUs as NVML tells of them. The GPU path runs against a fake of pynvml, the path without a driver is real."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controller.runtimes.nvml import NvmlReader, Reading, main
from controller.state import Gpu
from tests.fakes.fake_nvml import FakeNvml

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("error", ["LibraryNotFound", "DriverNotLoaded", "NotFound"])
def test_without_a_driver_there_are_no_gpus(error: str) -> None:
    fake = FakeNvml()
    fake.fail(error)
    reader = NvmlReader(fake)
    assert reader.read() == ()
    assert reader.error is None


@pytest.mark.parametrize("old_driver", [False, True])
def test_gpus_come_in_pci_order(old_driver: bool) -> None:
    fake = FakeNvml(old_driver=old_driver)
    fake.add(uuid="GPU-c", bus=1, domain=1)
    fake.add(uuid="GPU-b", bus=9, total_mib=80_000, used_mib=500)
    fake.add(uuid="GPU-a", bus=2)
    gpus = NvmlReader(fake).read()
    assert gpus is not None
    assert [(gpu.index, gpu.uuid) for gpu in gpus] == [(0, "GPU-a"), (1, "GPU-b"), (2, "GPU-c")]
    assert gpus[1] == Gpu("GPU-b", 1, "NVIDIA Fake", 80_000, 500)


def test_a_gpu_in_mig_mode_is_left_out_and_keeps_its_index() -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1, mig=True)
    fake.add(uuid="GPU-b", bus=2, mig=False)
    fake.add(uuid="GPU-c", bus=3)
    gpus = NvmlReader(fake).read()
    assert gpus is not None
    assert [(gpu.index, gpu.uuid) for gpu in gpus] == [(1, "GPU-b"), (2, "GPU-c")]


@pytest.mark.parametrize("error", ["LibraryNotFound", "DriverNotLoaded", "Unknown", "LibRmVersionMismatch"])
def test_what_was_seen_and_cannot_be_read_is_unknown(error: str, caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1)
    reader = NvmlReader(fake)
    assert len(reader.read() or ()) == 1
    fake.fail(error)
    assert [reader.read(), reader.read()] == [None, None]
    assert Reading(None, reader.error).error
    assert len(caplog.records) == 1
    fake.fail(None)
    assert len(reader.read() or ()) == 1
    assert reader.error is None
    reader.close()
    assert fake.opened == 0


def test_gpus_that_could_never_be_read_are_unknown_too() -> None:
    fake = FakeNvml()
    fake.fail("LibRmVersionMismatch")
    reader = NvmlReader(fake)
    assert reader.read() is None
    assert reader.error == "RM has detected an NVML/RM version mismatch."


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"])
def test_one_lost_gpu_makes_all_unknown(function: str) -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1)
    fake.add(uuid="GPU-b", bus=2, errors={function: "GpuIsLost"})
    reader = NvmlReader(fake)
    assert reader.read() is None
    assert reader.error == "GPU is lost"


def test_a_reading_is_one_line() -> None:
    reading = Reading((Gpu("GPU-a", 1, "NVIDIA Fake", 80_000, 500),))
    assert Reading.from_line(reading.to_line()) == reading
    unknown = Reading(None, "GPU is lost")
    assert Reading.from_line(unknown.to_line()) == unknown
    for line in ("", "{}", "[]", '{"gpus": [{"uuid": "x"}], "error": null}', "nvml is here"):
        with pytest.raises(ValueError, match="not a reading of GPUs"):
            Reading.from_line(line)


def test_the_probe_prints_one_reading(capsys: pytest.CaptureFixture[str]) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main([]) == 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert set(json.loads(capsys.readouterr().out)) == {"gpus", "error"}


@pytest.mark.parametrize("ending", ["reader gone", "SIGTERM"])
def test_the_probe_prints_on_and_ends_quietly(ending: str) -> None:
    command = [sys.executable, "-m", "controller.runtimes.nvml", "--interval", "0.01"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=pipe, stderr=pipe) as probe:
        assert probe.stdout is not None
        assert probe.stderr is not None
        for _ in range(3):
            assert "gpus" in json.loads(probe.stdout.readline())
        if ending == "SIGTERM":
            probe.terminate()
        else:
            probe.stdout.close()
        assert probe.stderr.read() == b""
        assert probe.wait() == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("LibraryNotFound", "no NVIDIA driver: libnvidia-ml.so.1 was not found"),
        ("DriverNotLoaded", "the NVIDIA driver is not loaded"),
        ("NotFound", "no NVIDIA GPU was found"),
        ("LibRmVersionMismatch", "the GPUs cannot be read now: RM has detected an NVML/RM version mismatch."),
    ],
)
def test_why_there_are_no_figures_is_said(error: str, reason: str) -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1)
    reader = NvmlReader(fake)
    assert reader.reason is None
    fake.fail(error)
    reader.read()
    assert (reader.reason or "").startswith(reason)
    fake.fail(None)
    reader.read()
    assert reader.reason is None
    fake.fail(error)
    reader.read()
    assert (reader.reason or "").startswith("the GPUs cannot be read now: "), "there were GPUs"


def test_why_a_driver_knows_no_gpu_is_said() -> None:
    fake = FakeNvml()
    reader = NvmlReader(fake)
    assert (reader.read(), reader.reason) == ((), "the NVIDIA driver knows no GPU")
    fake.add(uuid="GPU-a", bus=1, mig=True)
    assert (reader.read(), reader.reason) == ((), "all GPUs are in MIG mode, and are left out")
