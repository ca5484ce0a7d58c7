"""A fake of the `pynvml` module (nvidia-ml-py): its names, its errors, GPUs that a test declares.

Only what `controller.runtimes.nvml` calls, with the library's own parameters:
tests/unit/controller/runtimes/test_nvml.py holds both against the library that is installed. Errors are
pynvml's own classes, handles are opaque, and nothing answers before `nvmlInit`, as in the library.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pynvml

MIB = 2**20


@dataclass
class FakeGpu:
    """One GPU, or one MIG instance, and what it refuses to say: function names to the error that they raise."""

    uuid: str
    bus: int = 0
    domain: int = 0
    name: str = "NVIDIA Fake"
    total_mib: int = 1000
    used_mib: int = 0
    mig: bool | None = None
    """None: this kind of GPU knows no MIG."""
    instances: dict[int, FakeGpu] = field(default_factory=dict)
    """By their number, of which some may be missing."""
    is_instance: bool = False
    busy_percent: int = 0
    computing: dict[int, int | None] = field(default_factory=dict)
    """Process to MiB; None: the driver does not say."""
    drawing: dict[int, int | None] = field(default_factory=dict)
    brand: int = pynvml.NVML_BRAND_GEFORCE
    errors: dict[str, str] = field(default_factory=dict)

    def add(self, number: int, uuid: str, **fields: Any) -> FakeGpu:
        self.mig = True
        self.instances[number] = FakeGpu(uuid, name=f"{self.name} MIG 1g.5gb", is_instance=True, **fields)
        return self.instances[number]


@dataclass
class Memory:
    """Bytes, as in c_nvmlMemory_t."""

    total: int
    free: int
    used: int


@dataclass
class PciInfo:
    domain: int
    bus: int
    device: int


@dataclass
class Utilization:
    """Percent, as in c_nvmlUtilization_t."""

    gpu: int
    memory: int


@dataclass
class ProcessInfo:
    """As in c_nvmlProcessInfo_v3_t, where None stands for NVML_VALUE_NOT_AVAILABLE."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815 - its name there


def error_of(name: str) -> Exception:
    """`LibraryNotFound` is `NVMLError_LibraryNotFound`, with the library's text."""
    error: Exception = getattr(pynvml, f"NVMLError_{name}")()
    return error


class FakeNvml:
    NVMLError = pynvml.NVMLError
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE
    nvmlMemory_v2 = pynvml.nvmlMemory_v2  # noqa: N815 - its name there

    def __init__(self, *, old_driver: bool = False) -> None:
        self.gpus: list[FakeGpu] = []
        self.driver_version = "570.195.03"
        self.cuda_version = 12080
        self.opened = 0
        self._old = old_driver
        self._failure: str | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVMLError_", "NVML_BRAND_")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def add(self, **fields: Any) -> FakeGpu:
        """Another GPU, at the end of NVML's own order."""
        self.gpus.append(FakeGpu(**fields))
        return self.gpus[-1]

    def fail(self, name: str | None) -> None:
        """Every call raises NVMLError_<name> from now on; None: no longer."""
        self._failure = name

    def nvmlInit(self) -> None:  # noqa: N802
        """May be called again; each call needs its nvmlShutdown."""
        self._raise()
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        if not self.opened:
            raise error_of("Uninitialized")
        self.opened -= 1
        self._raise()

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        """As nvidia-smi shows it."""
        self._ask()
        return self.driver_version

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        """12080 is 12.8."""
        if self._old:
            raise error_of("FunctionNotFound")
        self._ask()
        return self.cuda_version

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._ask()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        """By NVML's own order."""
        self._ask(self.gpus[index], "nvmlDeviceGetHandleByIndex")
        return self.gpus[index]

    def nvmlDeviceGetPciInfo(self, handle: FakeGpu) -> PciInfo:  # noqa: N802
        self._ask(handle, "nvmlDeviceGetPciInfo")
        return PciInfo(handle.domain, handle.bus, 0)

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:  # noqa: N802
        self._ask(handle, "nvmlDeviceGetUUID")
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str:  # noqa: N802
        """Its product name, and an instance's profile."""
        self._ask(handle, "nvmlDeviceGetName")
        return handle.name

    def nvmlDeviceGetBrand(self, handle: FakeGpu) -> int:  # noqa: N802
        """One of NVML_BRAND_..., of which later drivers have more."""
        self._ask(handle, "nvmlDeviceGetBrand")
        return handle.brand

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu, version: int | None = None) -> Memory:  # noqa: N802
        """Version 2 counts what the driver reserves (here 10 MiB) neither as used nor as free, version 1 as used."""
        if version is not None and self._old:
            raise error_of("FunctionNotFound")
        self._ask(handle, "nvmlDeviceGetMemoryInfo")
        free = handle.total_mib - handle.used_mib
        used = handle.used_mib - (10 if version is not None else 0)
        return Memory(handle.total_mib * MIB, free * MIB, used * MIB)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> Utilization:  # noqa: N802
        self._ask(handle, "nvmlDeviceGetUtilizationRates")
        if handle.is_instance:
            raise error_of("NotSupported")
        return Utilization(handle.busy_percent, 0)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: FakeGpu) -> list[ProcessInfo]:  # noqa: N802
        """Those with a CUDA context. Drivers before 510 do not have this version of it."""
        if self._old:
            raise error_of("FunctionNotFound")
        self._ask(handle, "nvmlDeviceGetComputeRunningProcesses_v3")
        return _processes(handle.computing)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: FakeGpu) -> list[ProcessInfo]:  # noqa: N802
        self._ask(handle, "nvmlDeviceGetGraphicsRunningProcesses_v3")
        if handle.is_instance:
            raise error_of("NotSupported")
        return _processes(handle.drawing)

    def nvmlDeviceGetMigMode(self, device: FakeGpu) -> list[int]:  # noqa: N802
        self._ask(device, "nvmlDeviceGetMigMode")
        if device.mig is None:
            raise error_of("NotSupported")
        return [int(device.mig), int(device.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: FakeGpu) -> int:  # noqa: N802
        self._ask()
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: FakeGpu, index: int) -> FakeGpu:  # noqa: N802
        self._ask()
        if index not in device.instances:
            raise error_of("NotFound")
        return device.instances[index]

    def _ask(self, gpu: FakeGpu | None = None, function: str = "") -> None:
        if not self.opened:
            raise error_of("Uninitialized")
        self._raise()
        if gpu is not None and function in gpu.errors:
            raise error_of(gpu.errors[function])

    def _raise(self) -> None:
        if self._failure is not None:
            raise error_of(self._failure)


def _processes(held: dict[int, int | None]) -> list[ProcessInfo]:
    return [ProcessInfo(pid, None if mib is None else mib * MIB) for pid, mib in held.items()]
