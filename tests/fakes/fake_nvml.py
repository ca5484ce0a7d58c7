"""A fake of the `pynvml` module (nvidia-ml-py): its names, its errors, GPUs that a test declares.

Only what `controller.runtimes.nvml` calls. Errors are pynvml's own classes, handles are opaque, and nothing answers
before `nvmlInit`, as in the library.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pynvml


@dataclass
class FakeGpu:
    """One GPU and what it refuses to say: function names to the error that they raise."""

    uuid: str
    bus: int
    domain: int = 0
    total_mib: int = 1000
    used_mib: int = 0
    mig: bool | None = None
    """None: this kind of GPU knows no MIG."""
    errors: dict[str, str] = field(default_factory=dict)


@dataclass
class Memory:
    """Bytes, as in c_nvmlMemory_t."""

    total: int
    free: int
    used: int


@dataclass
class PciInfo:
    """As in nvmlPciInfo_t."""

    domain: int
    bus: int
    device: int


def error_of(name: str) -> Exception:
    """`LibraryNotFound` is `NVMLError_LibraryNotFound`, with the library's text."""
    error: Exception = getattr(pynvml, f"NVMLError_{name}")()
    return error


class FakeNvml:
    """Stands for the module."""

    NVMLError = pynvml.NVMLError
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE
    nvmlMemory_v2 = pynvml.nvmlMemory_v2  # noqa: N815 - its name there

    def __init__(self, *, old_driver: bool = False) -> None:
        self.gpus: list[FakeGpu] = []
        self.opened = 0
        self._old = old_driver
        self._failure: str | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVMLError_"):
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
        """Undo one nvmlInit."""
        if not self.opened:
            raise error_of("Uninitialized")
        self.opened -= 1
        self._raise()

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """How many there are."""
        self._ask()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        """By NVML's own order."""
        self._ask()
        self._raise_for(self.gpus[index], "nvmlDeviceGetHandleByIndex")
        return self.gpus[index]

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> PciInfo:  # noqa: N802
        """Where it sits."""
        self._ask()
        return PciInfo(gpu.domain, gpu.bus, 0)

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802
        """Its uuid."""
        self._ask()
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:  # noqa: N802
        """Its product name."""
        self._ask()
        return "NVIDIA Fake"

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> Memory:  # noqa: N802
        """Version 2 counts what the driver reserves (here 10 MiB) neither as used nor as free, version 1 as used."""
        self._ask()
        if version is not None and self._old:
            raise error_of("FunctionNotFound")
        self._raise_for(gpu, "nvmlDeviceGetMemoryInfo")
        free = gpu.total_mib - gpu.used_mib
        used = gpu.used_mib - (10 if version is not None else 0)
        return Memory(gpu.total_mib * 2**20, free * 2**20, used * 2**20)

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:  # noqa: N802
        """Current and pending."""
        self._ask()
        if gpu.mig is None:
            raise error_of("NotSupported")
        return [int(gpu.mig), int(gpu.mig)]

    def _ask(self) -> None:
        if not self.opened:
            raise error_of("Uninitialized")
        self._raise()

    def _raise(self) -> None:
        if self._failure is not None:
            raise error_of(self._failure)

    @staticmethod
    def _raise_for(gpu: FakeGpu, function: str) -> None:
        if function in gpu.errors:
            raise error_of(gpu.errors[function])
