"""GPUs as NVML tells of them. The GPU path runs against a fake of pynvml, which has the shape of the library that is
installed; the path without a driver is real."""

from __future__ import annotations

import ast
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from controller.hosts import Gpu, GpuDriver, GpuProcess, UnreadGpu
from controller.runtimes import nvml
from controller.runtimes.nvml import LINE_BYTES, NvmlReader, Reading, main, sees_host_pids
from tests.fakes.fake_nvml import FakeNvml, ProcessInfo, Utilization
from tests.support.wait import eventually

REPOSITORY = Path(__file__).resolve().parents[4]
GONE = 4_000_000_000
"""A number that no process has here."""
MISMATCH = "the NVIDIA driver's library and its kernel module are of different versions, as after an update: reboot, "
ABSENT = ("LibraryNotFound", "DriverNotLoaded", "NotFound")
"""Errors of a host without a driver or a GPU."""
LOST = "it has fallen off the bus: reboot the host, and see `dmesg` for its Xid (NVML: GPU is lost)"


def read(fake: FakeNvml, **options: Any) -> tuple[Gpu, ...]:
    gpus = NvmlReader(fake, **options).read_gpus()
    assert gpus is not None
    return gpus


@pytest.mark.parametrize("old_driver", [False, True])
def test_gpus_come_in_pci_order(old_driver: bool) -> None:
    fake = FakeNvml(old_driver=old_driver)
    fake.add(uuid="GPU-c", bus=1, domain=1)
    fake.add(uuid="GPU-b", bus=9, total_mib=80_000, used_mib=500, busy_percent=30)
    fake.add(uuid="GPU-a", bus=2)
    gpus = read(fake, host_pids=False)
    assert [(gpu.index, gpu.uuid) for gpu in gpus] == [(0, "GPU-a"), (1, "GPU-b"), (2, "GPU-c")]
    assert gpus[1] == Gpu("GPU-b", 1, "NVIDIA Fake", 80_000, 500, utilization_percent=30)


def test_a_gpu_in_mig_mode_is_represented_by_its_instances() -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-b", bus=2, mig=False)
    card = fake.add(uuid="GPU-a", bus=1, total_mib=40_000)
    card.add(0, "MIG-x", total_mib=4_864, used_mib=100, computing={GONE: 90})
    card.add(3, "MIG-y", total_mib=9_856)
    fake.add(uuid="GPU-c", bus=3, mig=True)
    gpus = read(fake, host_pids=True)
    assert [(gpu.label, gpu.uuid, gpu.total_mib) for gpu in gpus] == [
        ("0:0", "MIG-x", 4_864),
        ("0:3", "MIG-y", 9_856),
        ("1", "GPU-b", 1_000),
    ]
    assert (gpus[0].name, gpus[0].used_mib, gpus[0].utilization_percent) == ("NVIDIA Fake MIG 1g.5gb", 100, None)
    assert gpus[0].processes == (GpuProcess(GONE, 90),)


@pytest.mark.parametrize(
    ("host_pids", "old_driver", "is_told"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_processes_are_told_where_the_driver_s_numbers_are_ours(
    host_pids: bool, old_driver: bool, is_told: bool
) -> None:
    fake = FakeNvml(old_driver=old_driver)
    held = {os.getpid(): 300, GONE: 700, GONE + 1: None}
    fake.add(uuid="GPU-a", bus=1, computing=held, drawing={GONE + 1: None, os.getpid(): 320})
    [gpu] = read(fake, host_pids=host_pids)
    ours = GpuProcess(os.getpid(), 320, psutil.Process().name())
    named = (GpuProcess(GONE, 700), ours, GpuProcess(GONE + 1, None))
    assert gpu.processes == (named if is_told else None)


@pytest.mark.parametrize("error", ["NotSupported", "NoPermission", "InvalidArgument", "InsufficientSize"])
def test_what_one_gpu_does_not_tell_is_unknown_and_no_failure(error: str) -> None:
    fake = FakeNvml()
    listing = "nvmlDeviceGetComputeRunningProcesses_v3"
    fake.add(uuid="GPU-a", bus=1, computing={GONE: 1}, errors={listing: error})
    fake.add(uuid="GPU-b", bus=2, computing={GONE: 1}, errors={"nvmlDeviceGetGraphicsRunningProcesses_v3": error})
    reader = NvmlReader(fake, host_pids=True)
    silent, telling = reader.read_gpus() or ()
    assert (reader.error, silent.processes, telling.processes) == (None, None, (GpuProcess(GONE, 1),))


def test_the_name_space_of_the_host_is_known_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sees_host_pids() == (str(Path("/proc/self/ns/pid").readlink()) == "pid:[4026531836]")
    monkeypatch.setattr(nvml, "_OWN_PIDS", tmp_path)
    assert not sees_host_pids()
    monkeypatch.setattr(nvml, "_OWN_PIDS", tmp_path / "missing")
    assert not sees_host_pids()


@pytest.mark.parametrize("error", ["LibraryNotFound", "DriverNotLoaded", "Unknown", "LibRmVersionMismatch"])
def test_what_was_seen_and_cannot_be_read_is_unknown(error: str, caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1)
    reader = NvmlReader(fake)
    assert len(reader.read_gpus() or ()) == 1
    fake.fail(error)
    assert [reader.read_gpus(), reader.read_gpus()] == [None, None]
    assert Reading(None, reader.error).error
    assert len(caplog.records) == 1
    fake.fail(None)
    assert len(reader.read_gpus() or ()) == 1
    assert reader.error is None
    reader.close()
    assert fake.opened == 0


def lost_one(function: str, error: str = "GpuIsLost") -> tuple[FakeNvml, NvmlReader]:
    """Three GPUs of which the second one cannot be read, for `function` raises `error` for it."""
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1)
    fake.add(uuid="GPU-b", bus=0x0A, errors={function: error})
    fake.add(uuid="GPU-c", bus=0x0B)
    return fake, NvmlReader(fake, host_pids=True)


@pytest.mark.parametrize("error", ["GpuIsLost", "Unknown", "NoPermission", "ResetRequired", "Memory"])
@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMigMode", "nvmlDeviceGetName"],
)
def test_one_gpu_that_cannot_be_read_is_left_out_by_name_and_the_others_stay(function: str, error: str) -> None:
    fake, reader = lost_one(function, error)
    assert [(gpu.index, gpu.uuid) for gpu in reader.read_gpus() or ()] == [(0, "GPU-a"), (2, "GPU-c")]
    assert (reader.error, reader.reason) == (None, None)
    [unread] = reader.unread_gpus
    assert (unread.label, unread.uuid, unread.pci_address) == ("1", "GPU-b", "0000:0a:00.0")
    if error == "GpuIsLost":
        assert unread.description == f"GPU 1 (GPU-b, PCI 0000:0a:00.0) is left out: {LOST}"
    fake.gpus[1].errors.clear()
    assert len(reader.read_gpus() or ()) == 3
    assert reader.unread_gpus == ()


def test_a_gpu_whose_handle_is_refused_has_the_name_that_it_had_before() -> None:
    fake, reader = lost_one("nvmlDeviceGetHandleByIndex")
    assert [(gpu.index, gpu.uuid) for gpu in reader.read_gpus() or ()] == [(0, "GPU-a"), (2, "GPU-c")]
    [unread] = reader.unread_gpus
    assert unread.description == f"GPU 1 is left out: {LOST}", "nothing was ever read of it"
    fake.gpus[1].errors.clear()
    reader.read_gpus()
    fake.gpus[1].errors["nvmlDeviceGetHandleByIndex"] = "GpuIsLost"
    reader.read_gpus()
    [unread] = reader.unread_gpus
    assert unread.description == f"GPU 1 (GPU-b, PCI 0000:0a:00.0) is left out: {LOST}"
    fake.gpus.pop(0)
    reader.read_gpus()
    [unread] = reader.unread_gpus
    assert (unread.label, unread.uuid) == ("0", None), "which one of fewer GPUs it is, is not known"


def test_what_is_left_out_is_logged_once_and_the_library_begins_anew_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake, reader = lost_one("nvmlDeviceGetMemoryInfo")
    for _ in range(3):
        reader.read_gpus()
        assert fake.opened == 0, "a GPU that somebody holds open cannot be reset"
    assert [each.getMessage() for each in caplog.records] == [reader.unread_gpus[0].description]
    fake.gpus[1].errors.clear()
    reader.read_gpus()
    assert fake.opened == 1
    fake.gpus[1].errors["nvmlDeviceGetMemoryInfo"] = "GpuIsLost"
    reader.read_gpus()
    assert len(caplog.records) == 2


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"])
def test_where_all_gpus_are_lost_they_are_unknown(function: str) -> None:
    fake, reader = lost_one(function)
    for card in fake.gpus:
        card.errors[function] = "GpuIsLost"
    assert reader.read_gpus() is None
    assert reader.reason == f"the GPUs cannot be read now: {LOST}"
    assert [each.label for each in reader.unread_gpus] == ["0", "1", "2"]


@pytest.mark.parametrize("error", ["DriverNotLoaded", "LibRmVersionMismatch", "Uninitialized"])
def test_what_concerns_the_whole_driver_is_no_matter_of_one_gpu(error: str) -> None:
    _, reader = lost_one("nvmlDeviceGetMemoryInfo", error)
    reader._has_worked = True
    assert reader.read_gpus() is None
    assert reader.unread_gpus == ()


@pytest.mark.parametrize(
    ("error", "reason"),
    [("Unknown", "Unknown Error"), ("NotSupported", None)],
    ids=["unreadable", "without memory of its own"],
)
def test_a_mig_instance_is_left_out_alone(error: str, reason: str | None) -> None:
    fake = FakeNvml()
    card = fake.add(uuid="GPU-a", bus=1)
    card.add(0, "MIG-x")
    card.add(3, "MIG-y", errors={"nvmlDeviceGetMemoryInfo": error})
    reader = NvmlReader(fake)
    assert [gpu.label for gpu in reader.read_gpus() or ()] == ["0:0"]
    [unread] = reader.unread_gpus
    assert (unread.label, unread.uuid) == ("0:3", "MIG-y")
    if reason is not None:
        assert unread.description == f"GPU 0:3 (MIG-y, PCI 0000:01:00.0) is left out: {reason}"


def test_a_driver_that_hangs_leaves_the_gpus_unknown_and_holds_one_thread() -> None:
    fake, answers = FakeNvml(), threading.Event()
    fake.add(uuid="GPU-a")
    reader = NvmlReader(fake, host_pids=False, limit_s=0.05)
    assert reader.read_gpus()
    count, fake.nvmlDeviceGetCount = fake.nvmlDeviceGetCount, lambda: answers.wait(9) and count()  # type: ignore[method-assign]
    before = threading.active_count()
    try:
        assert [reader.read_gpus() for _ in range(3)] == [None] * 3
        assert threading.active_count() == before + 1
        assert "the driver has not answered within 0.05 s" in str(reader.reason)
        assert reader.driver is None
        reader.close()  # does not wait either
    finally:
        answers.set()
    assert eventually("an answer", reader.read_gpus)
    assert reader.reason is None


def test_the_driver_its_cuda_and_the_brands_of_its_gpus_are_told() -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1, brand=pynvml.NVML_BRAND_NVIDIA_RTX)
    fake.add(uuid="GPU-b", bus=2).add(0, "MIG-x")
    fake.add(uuid="GPU-c", bus=3)
    reader = NvmlReader(fake)
    reader.read_gpus()
    assert reader.driver == GpuDriver("570.195.03", "12.8", ("geforce", "nvidiartx"))
    fake.fail("Unknown")
    reader.read_gpus()
    assert reader.driver is None, "what cannot be read now may be another by then"


@pytest.mark.parametrize(("brand", "errors"), [(pynvml.NVML_BRAND_COUNT, {}), (0, {"nvmlDeviceGetBrand": "GpuIsLost"})])
def test_brands_are_known_of_all_gpus_or_of_none(brand: int, errors: dict[str, str]) -> None:
    fake = FakeNvml(old_driver=True)
    fake.add(uuid="GPU-a", bus=1)
    fake.add(uuid="GPU-b", bus=2, brand=brand, errors=errors)
    reader = NvmlReader(fake)
    assert len(reader.read_gpus() or ()) == 2
    assert reader.driver == GpuDriver("570.195.03", None, ())


# What NVML says of a GB10, driver 580.173.02, by a user who asked it without any wrapper (XuehaiPan/nvitop#208):
# "nvmlDeviceGetMemoryInfo -> NVML_ERROR_NOT_SUPPORTED total=0 free=0 used=0", and the same of its version 2.
# Others were told success, with zeros (Syllo/nvtop#411).
@pytest.mark.parametrize("says", [{"errors": {"nvmlDeviceGetMemoryInfo": "NotSupported"}}, {"total_mib": 0}])
@pytest.mark.parametrize("old_driver", [True, False])
def test_a_gpu_without_memory_of_its_own_has_the_host_s(says: dict[str, Any], old_driver: bool) -> None:
    fake = FakeNvml(old_driver=old_driver)
    fake.add(uuid="GPU-a", bus=1, busy_percent=3, computing={GONE: 43}, **says)
    fake.add(uuid="GPU-b", bus=2)
    host = SimpleNamespace(total=127_600_748 * 1024, available=118_566_368 * 1024)
    reader = NvmlReader(fake, host_pids=True, read_host_memory=lambda: host)
    unified, own = reader.read_gpus() or ()
    assert (unified.is_unified, unified.total_mib, unified.used_mib) == (True, 124_610, 8_822)
    assert unified.utilization_percent == 3
    assert (own.is_unified, own.total_mib) == (False, 1_000)
    [real, _] = NvmlReader(fake).read_gpus() or ()
    assert real.total_mib == psutil.virtual_memory().total // 2**20
    assert Reading.from_line(Reading((unified, own)).to_line()).gpus == (unified, own)


def test_a_reading_is_one_line() -> None:
    gpu = Gpu("GPU-a", 1, "NVIDIA Fake", 80_000, 500, 40, (GpuProcess(7, 400, "python3"), GpuProcess(8, None)), 3)
    unread_gpus = (UnreadGpu(1, "GPU is lost", "GPU-b", "0000:0a:00.0", 2), UnreadGpu(2, "Unknown"))
    for reading in (
        Reading((gpu,)),
        Reading((gpu,), driver=GpuDriver("570.195.03", "12.8", ("geforce", "nvidia"))),
        Reading(None, "GPU is lost"),
        Reading((gpu,), unread_gpus=unread_gpus),
    ):
        assert Reading.from_line(reading.to_line()) == reading
    for line in ("", "{}", "[]", '{"gpus": [{"uuid": "x"}], "error": null}', '{"gpus": [7], "error": null}', "nvml"):
        with pytest.raises(ValueError, match="not a reading of GPUs"):
            Reading.from_line(line)


def test_an_older_and_a_newer_probe_are_read() -> None:
    older = '{"gpus":[{"uuid":"GPU-a","index":1,"name":"Fake","total_mib":9,"used_mib":5}],"error":null}'
    assert Reading.from_line(older) == Reading((Gpu("GPU-a", 1, "Fake", 9, 5),), None, None)
    newer_driver = older.replace("null}", 'null,"driver":{"version":"580.65.06","kind":"open"}}')
    assert Reading.from_line(newer_driver).driver == GpuDriver("580.65.06")
    reading = Reading((Gpu("GPU-a", 1, "Fake", 9, 5, processes=(GpuProcess(7, 4, "python3"),)),))
    newer = json.loads(reading.to_line())
    newer |= {"driver": "700.1"}
    newer["gpus"][0] |= {"watts": 300}
    newer["gpus"][0]["processes"][0] |= {"kind": "compute"}
    assert Reading.from_line(json.dumps(newer)) == reading


def test_a_reading_that_docker_would_break_goes_without_its_processes() -> None:
    crowd = tuple(GpuProcess(pid, 1, "python3") for pid in range(1000))
    line = Reading((Gpu("GPU-a", 1, "Fake", 9, 5, processes=crowd),)).to_line()
    assert len(line) < LINE_BYTES
    assert Reading.from_line(line) == Reading((Gpu("GPU-a", 1, "Fake", 9, 5),))


def test_the_probe_prints_one_reading(capsys: pytest.CaptureFixture[str]) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main([]) == 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert set(json.loads(capsys.readouterr().out)) == {"gpus", "error", "driver", "unread_gpus"}


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
        (
            "LibRmVersionMismatch",
            f"the GPUs cannot be read now: {MISMATCH}or reload the module (NVML: RM has detected an NVML/RM version "
            "mismatch.)",
        ),
        ("Unknown", "the GPUs cannot be read now: Unknown Error"),
    ],
)
def test_why_there_are_no_figures_is_said(error: str, reason: str) -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1)
    reader = NvmlReader(fake)
    assert reader.reason is None
    fake.fail(error)
    reader.read_gpus()
    assert (reader.reason or "").startswith(reason)
    fake.fail(None)
    reader.read_gpus()
    assert reader.reason is None
    fake.fail(error)
    reader.read_gpus()
    assert (reader.reason or "").startswith("the GPUs cannot be read now: "), "there were GPUs"


@pytest.mark.parametrize("error", [*ABSENT, "LibRmVersionMismatch", "Unknown"])
def test_without_a_driver_there_are_no_gpus_and_gpus_that_could_never_be_read_are_unknown(error: str) -> None:
    fake = FakeNvml()
    fake.fail(error)
    reader = NvmlReader(fake)
    assert reader.read_gpus() == (() if error in ABSENT else None)
    assert (reader.error is None) is (error in ABSENT)


def test_a_host_without_the_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("pynvml.CDLL", load)  # as on a host without a driver, also where there is one
    reader = NvmlReader()
    assert (reader.read_gpus(), reader.error) == ((), None)
    assert reader.reason == "no NVIDIA driver: libnvidia-ml.so.1 was not found"


def test_why_a_driver_knows_no_gpu_is_said() -> None:
    fake = FakeNvml()
    reader = NvmlReader(fake)
    assert (reader.read_gpus(), reader.reason) == ((), "the NVIDIA driver knows no GPU")
    fake.add(uuid="GPU-a", bus=1, mig=True)
    assert (reader.read_gpus(), reader.reason) == ((), "all GPUs are in MIG mode, without an instance")


FAKED = sorted(name for name in vars(FakeNvml) if name.startswith("nvml") and callable(getattr(FakeNvml, name)))


def _called() -> set[str]:
    """What `controller.runtimes.nvml` takes from the library."""
    tree = ast.parse(Path(nvml.__file__).read_text())
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    errors = {f"NVMLError_{name}" for name in (*nvml._WORDS, *nvml._DRIVER_ERRORS)}
    return {name for name in names if name.lower().startswith("nvml")} | errors


def test_all_that_is_called_is_there_and_is_faked() -> None:
    called = _called()
    assert {"nvmlInit", "nvmlDeviceGetComputeRunningProcesses_v3", "NVMLError_GpuIsLost"} <= called
    fake = FakeNvml()
    for name in called:
        assert hasattr(pynvml, name), f"pynvml has no {name}"
        assert hasattr(fake, name), f"the fake has no {name}"
    assert {name for name in called if name.startswith("nvmlDevice")} <= set(FAKED)


@pytest.mark.parametrize("name", FAKED)
def test_the_fake_takes_what_the_library_takes(name: str) -> None:
    faked = list(inspect.signature(getattr(FakeNvml(), name)).parameters)
    assert faked == list(inspect.signature(getattr(pynvml, name)).parameters)


def test_the_fake_answers_with_the_library_s_fields() -> None:
    def fields(structure: type) -> set[str]:
        return {name for name, _ in vars(structure)["_fields_"]}

    assert set(vars(ProcessInfo(1, 2))) <= fields(pynvml.c_nvmlProcessInfo_v3_t)
    assert set(vars(Utilization(1, 2))) == fields(pynvml.c_nvmlUtilization_t)
    assert {"total", "free", "used"} <= fields(pynvml.c_nvmlMemory_v2_t)
    assert {"domain", "bus", "device"} <= fields(pynvml.nvmlPciInfo_t)


def test_without_a_version_old_drivers_are_no_error_of_nvml_s() -> None:
    """Why the versions are named: with an old driver, the plain names raise what nobody expects."""
    assert not issubclass(pynvml.NVMLLibraryMismatchError, pynvml.NVMLError)
