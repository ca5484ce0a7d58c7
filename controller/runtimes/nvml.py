"""The host's GPUs, read through NVIDIA's management library.

`python -m controller.runtimes.nvml [--interval S]` prints one JSON line per reading: the probe container runs it where
the library does not load in the controller.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pynvml

from controller.state import Gpu

log = logging.getLogger(__name__)


class NvmlReader:
    """Reads GPUs; remembers whether it ever could, since only then a failure means "unknown". Thread-safe.

    `library` is pynvml (nvidia-ml-py), or what offers the same functions and errors.
    """

    def __init__(self, library: Any = pynvml) -> None:
        self._nvml = library
        self._lock = threading.Lock()
        self._open = False
        self._worked = False
        self.error: str | None = None
        """Why the last reading failed; None: it did not."""
        self.absence: str | None = None
        """Why the last reading found no GPU; None: it found one, or failed."""

    def read(self) -> tuple[Gpu, ...] | None:
        """The GPUs in PCI order, whose `index` is CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID.

        Empty: there is no driver, or no GPU. None: there are GPUs, and they cannot be read now.
        """
        with self._lock:
            try:
                gpus = self._read()
                self.absence = None if gpus else self._nothing_to_plan()
            except self._nvml.NVMLError as error:
                return self._failed(error)
            self._worked, self.error = True, None
            return gpus

    @property
    def reason(self) -> str | None:
        """Why the last reading has no figures, as a sentence; None: it has, or there was none."""
        return self.absence if self.error is None else f"the GPUs cannot be read now: {self.error}"

    def close(self) -> None:
        """Release the library."""
        with self._lock:
            self._shut()

    def _read(self) -> tuple[Gpu, ...]:
        if not self._open:
            self._nvml.nvmlInit()
            self._open = True
        handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        handles.sort(key=self._address)
        # A GPU in MIG mode keeps its index but is left out: it is used through its instances, which are not planned.
        return tuple(self._gpu(index, each) for index, each in enumerate(handles) if not self._in_mig_mode(each))

    def _failed(self, error: Exception) -> tuple[Gpu, ...] | None:
        self._shut()
        nvml = self._nvml
        absent = (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded, nvml.NVMLError_NotFound)
        if isinstance(error, absent) and not self._worked:
            self.error, self.absence = None, self._absence(error)
            return ()
        if self.error is None:
            log.warning("the GPUs cannot be read: %s", error)
        self.error, self.absence = str(error), None
        return None

    def _absence(self, error: Exception) -> str:
        if isinstance(error, self._nvml.NVMLError_LibraryNotFound):
            return "no NVIDIA driver: libnvidia-ml.so.1 was not found"
        if isinstance(error, self._nvml.NVMLError_DriverNotLoaded):
            return "the NVIDIA driver is not loaded"
        return f"no NVIDIA GPU was found: {error}"

    def _nothing_to_plan(self) -> str:
        any_gpu = self._nvml.nvmlDeviceGetCount() > 0
        return "all GPUs are in MIG mode, and are left out" if any_gpu else "the NVIDIA driver knows no GPU"

    def _shut(self) -> None:
        if self._open:
            self._open = False
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _address(self, handle: Any) -> tuple[int, int, int]:
        pci = self._nvml.nvmlDeviceGetPciInfo(handle)
        return pci.domain, pci.bus, pci.device

    def _gpu(self, index: int, handle: Any) -> Gpu:
        memory = self._memory(handle)
        return Gpu(
            uuid=self._nvml.nvmlDeviceGetUUID(handle),
            index=index,
            name=self._nvml.nvmlDeviceGetName(handle),
            total_mib=memory.total // 2**20,
            # What is not free is used: drivers disagree about where the part that they reserve is counted.
            used_mib=(memory.total - memory.free) // 2**20,
        )

    def _memory(self, handle: Any) -> Any:
        try:
            return self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
        except self._nvml.NVMLError_FunctionNotFound:  # drivers before 510
            return self._nvml.nvmlDeviceGetMemoryInfo(handle)

    def _in_mig_mode(self, handle: Any) -> bool:
        try:
            current, _ = self._nvml.nvmlDeviceGetMigMode(handle)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return False
        return bool(current == self._nvml.NVML_DEVICE_MIG_ENABLE)


@dataclass(frozen=True, slots=True)
class Reading:
    """One line of the probe. `gpus` None: unknown; empty: there are none. `error` says why."""

    gpus: tuple[Gpu, ...] | None
    error: str | None = None

    def to_line(self) -> str:
        """As the probe prints it, without the line's end."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> Reading:
        """Raises ValueError when it is no reading."""
        try:
            content = json.loads(line)
            gpus = content["gpus"]
            return cls(None if gpus is None else tuple(Gpu(**each) for each in gpus), content["error"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a reading of GPUs: {line!r}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Print readings until whoever reads them is gone."""
    parser = argparse.ArgumentParser(prog="python -m controller.runtimes.nvml", description="Read the host's GPUs.")
    parser.add_argument("--interval", type=float, metavar="S", help="seconds between readings; default: read once")
    interval = parser.parse_args(argv).interval
    # As a container's first process, it would not hear SIGTERM otherwise.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
    reader = NvmlReader()
    while True:
        reading = Reading(reader.read(), reader.error or reader.absence)
        try:
            sys.stdout.write(reading.to_line() + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more as it ends
            return 0
        if interval is None:
            return 0
        time.sleep(interval)


if __name__ == "__main__":
    sys.exit(main())
