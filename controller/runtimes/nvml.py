"""Reads the host's GPUs through NVIDIA's management library (NVML).

`python -m controller.runtimes.nvml [--interval S]` prints each reading as one JSON line. Where the library does not
load in the controller, a probe container runs this command.
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import pynvml

from controller.hosts import Gpu, GpuDriver, GpuProcess, UnreadGpu

LINE_BYTES: Final = 8192
"""Characters up to which a reading is printed with its processes. Docker's log splits lines longer than 16 KiB."""
LIMIT_S: Final = 20.0
"""Seconds up to which a reading waits for the driver. The first reading of many GPUs takes some."""

_OWN_PIDS: Final = Path("/proc/self/ns/pid")
_HOST_PIDS_INODE: Final = 0xEFFFFFFC
"""Inode of the host's PID namespace, in which the driver numbers processes (PROC_PID_INIT_INO of
include/linux/proc_ns.h)."""
_WORDS: Final = {
    "LibRmVersionMismatch": "the NVIDIA driver's library and its kernel module are of different versions, as after an "
    "update: reboot, or reload the module",
    "GpuIsLost": "it has fallen off the bus: reboot the host, and see `dmesg` for its Xid",
    "ResetRequired": "it must be reset, or the host rebooted",
    "NoPermission": "the driver does not let this user ask",
}
"""Name of an NVML error to its meaning for the host's administrator."""
_BRANDS: Final = {
    pynvml.NVML_BRAND_UNKNOWN: "unknown",
    pynvml.NVML_BRAND_QUADRO: "quadro",
    pynvml.NVML_BRAND_TESLA: "tesla",
    pynvml.NVML_BRAND_NVS: "nvs",
    pynvml.NVML_BRAND_GRID: "grid",
    pynvml.NVML_BRAND_GEFORCE: "geforce",
    pynvml.NVML_BRAND_TITAN: "titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "vapps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "vpc",
    pynvml.NVML_BRAND_NVIDIA_VCS: "vcs",
    pynvml.NVML_BRAND_NVIDIA_VWS: "vws",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "cloudgaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "quadrortx",
    pynvml.NVML_BRAND_NVIDIA_RTX: "nvidiartx",
    pynvml.NVML_BRAND_NVIDIA: "nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "geforcertx",
    pynvml.NVML_BRAND_TITAN_RTX: "titanrtx",
}
"""NVML's brand of a GPU to the name that NVIDIA's container toolkit and the requirements of CUDA images use."""
_DRIVER_ERRORS: Final = ("Uninitialized", "DriverNotLoaded", "LibraryNotFound", "LibRmVersionMismatch")
"""NVML errors that concern the whole driver, even if a single GPU was queried."""

log = logging.getLogger(__name__)

_PciAddress = tuple[int, int, int]
"""PCI domain, bus and device."""


@dataclass(frozen=True, slots=True)
class _GpuNames:
    """Address and uuid of a GPU, remembered for when it no longer answers. None: not known."""

    pci: _PciAddress | None = None
    uuid: str | None = None

    @property
    def pci_address(self) -> str | None:
        return None if self.pci is None else "{:04x}:{:02x}:{:02x}.0".format(*self.pci)


@dataclass(frozen=True, slots=True)
class _GpuFailure:
    """A GPU that a reading leaves out, with NVML's error."""

    gpu: UnreadGpu
    error: Exception


class _Answer(NamedTuple):
    """What the driver answered in one reading."""

    gpus: tuple[Gpu, ...]
    failures: list[_GpuFailure]
    driver: GpuDriver
    absence: str | None
    """Why there is no GPU; None: there is one."""


def _sort_by_pci(names: Mapping[int, _GpuNames]) -> list[int]:
    """Return NVML's numbers of the GPUs in PCI order. A GPU whose address is not known keeps NVML's position."""
    addresses = {number: each.pci for number, each in names.items() if each.pci is not None}
    numbers = sorted(addresses, key=addresses.__getitem__)
    for number in sorted(names.keys() - addresses.keys()):
        numbers.insert(number, number)
    return numbers


def sees_host_pids() -> bool:
    """Return whether this process is in the host's PID namespace, so that process ids of the driver are valid here.
    False if that cannot be read."""
    try:
        return _OWN_PIDS.stat().st_ino == _HOST_PIDS_INODE
    except OSError:
        return False


class NvmlReader:
    """Reads the host's GPUs through NVML, which stays open between readings that succeed. `read_gpus` blocks, at most
    for `limit_s`; any thread may call it, and a lock lets one reading run at a time while the others wait. A driver
    that hangs holds one daemon thread, and no reading is tried before it answers. The attributes and `reason` tell of
    the last reading, whichever thread made it. The reader remembers whether a reading ever succeeded: from then on, a
    missing driver means that the GPUs are unknown, not that there are none. Call `close` at the end."""

    def __init__(
        self,
        library: Any = pynvml,
        *,
        host_pids: bool | None = None,
        read_host_memory: Callable[[], Any] = psutil.virtual_memory,
        limit_s: float = LIMIT_S,
    ) -> None:
        """Create a reader; it loads the library at the first reading.

        Args:
            library: pynvml (nvidia-ml-py), or an object with the same functions and errors.
            host_pids: Whether process ids of the driver are valid in this process; None: find out.
            read_host_memory: Returns `total` and `available` of main memory in bytes.
            limit_s: Seconds up to which a reading waits for the driver.
        """
        self._nvml = library
        self._read_host_memory = read_host_memory
        self._host_pids = sees_host_pids() if host_pids is None else host_pids
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._answer: Future[_Answer] | None = None
        """What the last reading waited for. Not done: the driver hangs. None: there was no reading."""
        self._is_open = False
        self._has_worked = False
        self._names: dict[int, _GpuNames] = {}
        """The GPUs' names, by NVML's own number."""
        self.unread_gpus: tuple[UnreadGpu, ...] = ()
        """The GPUs that the last reading left out because they cannot be read. If none could be read, all of them."""
        self.error: str | None = None
        """Why the last reading failed; None: it succeeded."""
        self.absence: str | None = None
        """Why the last reading found no GPU; None: it found one, or failed."""
        self.driver: GpuDriver | None = None
        """The driver that the last reading found; None: it found none, or failed."""

    def read_gpus(self) -> tuple[Gpu, ...] | None:
        """Return the GPUs in PCI order. Their `index` is CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID.

        A GPU in MIG mode is represented by its instances. One that cannot be read is left out, and is among
        `unread_gpus`; the indices of the others stay as they are. Empty: there is no driver, or no GPU, and never was.
        None: unknown, since the driver fails, or since no GPU can be read now. Raises no error of NVML: `reason` says
        why the result is empty or None. Processes are named by pid, not by replica.
        """
        with self._lock:
            try:
                gpus, failures, driver, absence = self._ask()
            except TimeoutError:
                self._note_unread(())
                self._note_error(
                    f"the driver has not answered within {self._limit_s:g} s, and is asked again once it has: "
                    "see `dmesg`, and reboot the host if it stays so"
                )
                return None
            except self._nvml.NVMLError as error:
                self._note_unread(())
                return self._record_failure(error)
            self._note_unread(tuple(each.gpu for each in failures))
            if failures and not gpus:
                return self._record_failure(failures[0].error)
            self._has_worked, self.error, self.absence, self.driver = True, None, absence, driver
            return gpus

    @property
    def reason(self) -> str | None:
        """Why the last reading found no GPU or failed, as a sentence; None: it found GPUs, or there was no reading."""
        return self.absence if self.error is None else f"the GPUs cannot be read now: {self.error}"

    def close(self) -> None:
        """Release the library, after a reading under way, or not if the driver hangs. May be repeated; a later reading
        loads the library again."""
        with self._lock:
            if self._answer is None or self._answer.done():
                self._shut()

    def _ask(self) -> _Answer:
        """Return what the driver answers. Raises NVMLError if it fails, and TimeoutError if it does not answer."""
        if self._answer is not None and not self._answer.done():
            raise TimeoutError
        self._answer = answer = Future[_Answer]()
        # Of a pool's threads, each is waited for at the end of the process.
        threading.Thread(target=self._give_answer, args=(answer,), name="nvml", daemon=True).start()
        return answer.result(self._limit_s)

    def _give_answer(self, answer: Future[_Answer]) -> None:
        try:
            try:
                gpus, failures = self._read()
                driver = self._read_driver()
                absence = None if gpus or failures else self._explain_no_gpus()
            except self._nvml.NVMLError:
                self._shut()
                raise
            if failures:
                # Close the library: a GPU that is held open cannot be reset, and only a new session sees a reset one.
                self._shut()
            answer.set_result(_Answer(gpus, failures, driver, absence))
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            answer.set_exception(error)

    def _read(self) -> tuple[tuple[Gpu, ...], list[_GpuFailure]]:
        """Return the GPUs that can be read, and those that cannot. Raises NVMLError if the driver does not answer."""
        if not self._is_open:
            self._nvml.nvmlInit()
            self._is_open = True
        count = self._nvml.nvmlDeviceGetCount()
        if count != len(self._names):
            # NVML renumbers GPUs when their number changes.
            self._names = dict.fromkeys(range(count), _GpuNames())
        handles, errors = self._open_gpus()
        gpus: list[Gpu] = []
        failures: list[_GpuFailure] = []
        for index, number in enumerate(_sort_by_pci(self._names)):
            try:
                if number in errors:
                    raise errors[number]
                read_gpus, gpu_failures = self._read_whole_or_instances(index, handles[number], self._names[number])
                gpus += read_gpus
                failures += gpu_failures
            except self._nvml.NVMLError as error:
                failures.append(self._leave_out(index, self._names[number], error))
        return tuple(gpus), failures

    def _open_gpus(self) -> tuple[dict[int, Any], dict[int, Exception]]:
        """Open all GPUs and learn their names. Return handles, and errors of those that fail, by NVML's own number."""
        handles: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        for number in self._names:
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(number)
                self._names[number] = _GpuNames(self._pci_address(handle), self._nvml.nvmlDeviceGetUUID(handle))
            except self._nvml.NVMLError as error:
                errors[number] = error
            else:
                handles[number] = handle
        return handles, errors

    def _read_whole_or_instances(
        self, index: int, handle: Any, names: _GpuNames
    ) -> tuple[list[Gpu], list[_GpuFailure]]:
        # In MIG mode, engines run only on the GPU's instances.
        if self._in_mig_mode(handle):
            return self._read_instances(index, handle, names.pci)
        return [self._read_gpu(index, handle)], []

    def _leave_out(self, index: int, names: _GpuNames, error: Exception, mig: int | None = None) -> _GpuFailure:
        """Return the record of a GPU that cannot be read. Raises `error` if it concerns the whole driver."""
        if isinstance(error, tuple(getattr(self._nvml, f"NVMLError_{name}") for name in _DRIVER_ERRORS)):
            raise error
        return _GpuFailure(UnreadGpu(index, self._explain_error(error), names.uuid, names.pci_address, mig), error)

    def _note_unread(self, unread_gpus: tuple[UnreadGpu, ...]) -> None:
        known_labels = {each.label for each in self.unread_gpus}
        self.unread_gpus = unread_gpus
        for each in unread_gpus:
            if each.label not in known_labels:
                log.warning("%s", each.description)

    def _record_failure(self, error: Exception) -> tuple[Gpu, ...] | None:
        nvml = self._nvml
        absence_errors = (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded, nvml.NVMLError_NotFound)
        if isinstance(error, absence_errors) and not self._has_worked:
            self.error, self.absence, self.driver = None, self._explain_absence(error), None
            return ()
        self._note_error(self._explain_error(error))
        return None

    def _note_error(self, error: str) -> None:
        if self.error is None:
            log.warning("the GPUs cannot be read: %s", error)
        self.error, self.absence, self.driver = error, None, None

    def _read_driver(self) -> GpuDriver:
        nvml, version, cuda_version, brands = self._nvml, None, None, set[str]()
        with contextlib.suppress(nvml.NVMLError):
            version = str(nvml.nvmlSystemGetDriverVersion())
        with contextlib.suppress(nvml.NVMLError):  # drivers before 410
            cuda_number = nvml.nvmlSystemGetCudaDriverVersion_v2()
            cuda_version = f"{cuda_number // 1000}.{cuda_number % 1000 // 10}"
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                brands.add(_BRANDS[nvml.nvmlDeviceGetBrand(nvml.nvmlDeviceGetHandleByIndex(index))])
        except (nvml.NVMLError, KeyError):
            brands.clear()
        return GpuDriver(version, cuda_version, tuple(sorted(brands)))

    def _explain_error(self, error: Exception) -> str:
        explanations = (
            explanation
            for name, explanation in _WORDS.items()
            if isinstance(error, getattr(self._nvml, f"NVMLError_{name}"))
        )
        explanation = next(explanations, None)
        return str(error) if explanation is None else f"{explanation} (NVML: {error})"

    def _explain_absence(self, error: Exception) -> str:
        if isinstance(error, self._nvml.NVMLError_LibraryNotFound):
            return "no NVIDIA driver: libnvidia-ml.so.1 was not found"
        if isinstance(error, self._nvml.NVMLError_DriverNotLoaded):
            return "the NVIDIA driver is not loaded"
        return f"no NVIDIA GPU was found: {error}"

    def _explain_no_gpus(self) -> str:
        has_gpu = self._nvml.nvmlDeviceGetCount() > 0
        return "all GPUs are in MIG mode, without an instance" if has_gpu else "the NVIDIA driver knows no GPU"

    def _shut(self) -> None:
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _pci_address(self, handle: Any) -> _PciAddress:
        pci = self._nvml.nvmlDeviceGetPciInfo(handle)
        return pci.domain, pci.bus, pci.device

    def _read_gpu(self, index: int, handle: Any) -> Gpu:
        memory = self._read_own_memory(handle)
        total, free = (memory.total, memory.free) if memory is not None else self._read_unified_memory()
        return Gpu(
            uuid=self._nvml.nvmlDeviceGetUUID(handle),
            index=index,
            name=self._nvml.nvmlDeviceGetName(handle),
            total_mib=total // 2**20,
            # Total minus free, because drivers disagree on whether the memory they reserve counts as used.
            used_mib=(total - free) // 2**20,
            utilization_percent=self._read_utilization(handle),
            processes=self._read_processes(handle),
            is_unified=memory is None,
        )

    def _read_instances(self, index: int, parent: Any, pci: _PciAddress | None) -> tuple[list[Gpu], list[_GpuFailure]]:
        instances: list[Gpu] = []
        failures: list[_GpuFailure] = []
        for number in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
            uuid = None
            try:
                handle = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, number)
                uuid = self._nvml.nvmlDeviceGetUUID(handle)
                instance = replace(self._read_gpu(index, handle), mig=number)
                if instance.is_unified:
                    raise self._nvml.NVMLError_NotSupported
                instances.append(instance)
            except self._nvml.NVMLError_NotFound:
                continue
            except self._nvml.NVMLError as error:
                failures.append(self._leave_out(index, _GpuNames(pci, uuid), error, number))
        return instances, failures

    def _read_utilization(self, handle: Any) -> int | None:
        try:
            return int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_InvalidArgument):
            return None

    def _read_processes(self, handle: Any) -> tuple[GpuProcess, ...] | None:
        if not self._host_pids:
            return None
        nvml = self._nvml
        silent_errors = (
            *(nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument, nvml.NVMLError_NoPermission),
            *(nvml.NVMLError_FunctionNotFound, nvml.NVMLError_InsufficientSize),
        )
        try:
            # The versioned name: with an old driver, the plain one raises an error that is not one of NVML's.
            running_processes = list(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
        except silent_errors:
            return None
        with contextlib.suppress(*silent_errors):  # not supported by every GPU, nor by MIG instances
            running_processes += nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(handle)
        mib_by_pid: dict[int, int | None] = {}
        for each in running_processes:  # a process in both lists has all its memory in each
            mib = None if each.usedGpuMemory is None else each.usedGpuMemory // 2**20
            mib_by_pid[each.pid] = max(
                (known_mib for known_mib in (mib, mib_by_pid.get(each.pid)) if known_mib is not None), default=None
            )
        largest_first = sorted(mib_by_pid.items(), key=lambda item: (-(item[1] or 0), item[0]))
        return tuple(GpuProcess(pid, mib, _name_of(pid)) for pid, mib in largest_first)

    def _read_own_memory(self, handle: Any) -> Any:
        """Return NVML's memory info; None if the GPU has no memory of its own."""
        try:
            memory = self._read_memory(handle)
        except self._nvml.NVMLError_NotSupported:
            return None
        return memory if memory.total else None

    def _read_memory(self, handle: Any) -> Any:
        try:
            return self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
        except self._nvml.NVMLError_FunctionNotFound:  # drivers before 510
            return self._nvml.nvmlDeviceGetMemoryInfo(handle)

    def _read_unified_memory(self) -> tuple[int, int]:
        """Return total and available bytes of main memory, which such a GPU shares with processes."""
        memory = self._read_host_memory()
        return memory.total, memory.available

    def _in_mig_mode(self, handle: Any) -> bool:
        try:
            current_mode, _ = self._nvml.nvmlDeviceGetMigMode(handle)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return False
        return bool(current_mode == self._nvml.NVML_DEVICE_MIG_ENABLE)


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of the GPUs, which the probe container prints as one line."""

    gpus: tuple[Gpu, ...] | None
    """Empty: there are none. None: unknown, since they cannot be read now."""
    error: str | None = None
    """Why `gpus` is empty or None, as `NvmlReader` reports it; None: it is neither."""
    driver: GpuDriver | None = None
    """None: there is no driver, it is unknown, or the probe's version does not report it."""
    unread_gpus: tuple[UnreadGpu, ...] = ()
    """The GPUs that the reading left out because they cannot be read."""

    def to_line(self) -> str:
        """Return the reading as one line of JSON, without a newline. If the line would be longer than 8,192 bytes
        (`LINE_BYTES`), the GPUs' processes are left out of it (null: unknown), which may still leave more than that."""
        line = json.dumps(asdict(self), separators=(",", ":"))
        if len(line) <= LINE_BYTES or self.gpus is None:
            return line
        gpus = tuple(replace(gpu, processes=None) for gpu in self.gpus)
        return json.dumps(asdict(replace(self, gpus=gpus)), separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> Reading:
        """Parse a line that `to_line` returned. Unknown fields of another version are ignored. Raises ValueError if the
        line is not a reading."""
        try:
            content = json.loads(line)
            gpus = None if content["gpus"] is None else tuple(_gpu_of(each) for each in content["gpus"])
            unread_gpus = tuple(UnreadGpu(**_fields_of(UnreadGpu, each)) for each in content.get("unread_gpus", ()))
            return cls(gpus, content["error"], _driver_of(content.get("driver")), unread_gpus)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"not a reading of GPUs: {line!r}") from error


def _gpu_of(content: dict[str, Any]) -> Gpu:
    known_fields = _fields_of(Gpu, content)
    if (processes := known_fields.get("processes")) is not None:
        known_fields["processes"] = tuple(GpuProcess(each["pid"], each["mib"], each.get("name")) for each in processes)
    return Gpu(**known_fields)


def _driver_of(content: Any) -> GpuDriver | None:
    if not isinstance(content, dict):
        return None
    return GpuDriver(content.get("version"), content.get("cuda_version"), tuple(content.get("brands", ())))


def _fields_of(kind: type[Gpu] | type[UnreadGpu], content: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: content[each.name] for each in fields(kind) if each.name in content}


def _name_of(pid: int) -> str | None:
    try:
        return psutil.Process(pid).name()
    except (psutil.Error, OSError):
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Print one reading as a line of JSON, or with `--interval` one every S seconds until stdout is closed or SIGTERM
    arrives. Returns the exit code, which is 0 also if no GPU can be read. `argv` None: the program's arguments. Raises
    SystemExit for invalid arguments, and sets a handler for SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m controller.runtimes.nvml", description="Read the host's GPUs.")
    parser.add_argument("--interval", type=float, metavar="S", help="seconds between readings; default: read once")
    interval = parser.parse_args(argv).interval
    # As a container's first process, it would ignore SIGTERM without a handler.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
    reader = NvmlReader()
    while True:
        gpus = reader.read_gpus()
        reading = Reading(gpus, reader.error or reader.absence, reader.driver, reader.unread_gpus)
        try:
            sys.stdout.write(reading.to_line() + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout again at exit
            return 0
        if interval is None:
            return 0
        time.sleep(interval)


if __name__ == "__main__":
    sys.exit(main())
