"""Reads what `roundhouse doctor` needs to know of NVIDIA's GPUs, driver and container toolkit."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from controller.cli.doctor.facts import GpuFacts
from controller.runtimes.nvml import NvmlReader

TIMEOUT_S: Final = 10.0
"""Seconds that the driver, and each program that is asked, may take. With a lost GPU the driver may hang for ever."""
PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
REPLACED: Final[Mapping[str, str]] = {"nvidia-docker-plugin": "nvidia-docker", "nvidia-docker": "nvidia-docker2"}
"""Program on PATH to the package that brought it. The NVIDIA Container Toolkit has replaced these packages."""

_NVIDIA: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"
_VERSION_PROGRAMS: Final = (("nvidia-ctk", "--version"), ("nvidia-container-cli", "--version"))
_VERSION: Final = re.compile(r"version:?\s+v?(\d+\.\d+\.\d+\S*)", re.IGNORECASE)


def read_gpus(*, pci_devices: Path = PCI_DEVICES) -> GpuFacts:
    """Read the PCI bus, ask the driver, and ask the toolkit for its version. Blocks, up to a few times 10 s
    (`TIMEOUT_S`); raises nothing. A driver that does not answer leaves a thread behind."""
    reader = NvmlReader()
    gpu_count: list[int] = []
    thread = threading.Thread(target=lambda: gpu_count.append(len(reader.read_gpus() or ())), daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    if not gpu_count:
        problem: str | None = f"the NVIDIA driver has not answered within {TIMEOUT_S:g} s"
    else:
        problem = reader.reason
        reader.close()
    return GpuFacts(
        on_bus=count_on_bus(pci_devices),
        readable=gpu_count[0] if gpu_count else 0,
        problem=problem,
        unread=tuple(gpu.description for gpu in reader.unread_gpus),
        driver_version=reader.driver.version if reader.driver is not None else None,
        toolkit_version=read_toolkit_version(),
        replaced_packages=tuple(sorted(package for program, package in REPLACED.items() if shutil.which(program))),
    )


def count_on_bus(pci_devices: Path) -> int:
    """Return how many display controllers of NVIDIA's the kernel lists in `pci_devices`, the folder of PCI devices in
    sysfs; 0 where it lists none or does not exist."""
    return sum(
        _read_word(device / "vendor") == _NVIDIA and _read_word(device / "class").startswith(_DISPLAY_CLASS)
        for device in (pci_devices.iterdir() if pci_devices.is_dir() else ())
    )


def read_toolkit_version() -> str | None:
    """Return the version that the toolkit's program on PATH prints. None: there is no such program, or it prints none.
    Blocks, up to 10 s (`TIMEOUT_S`) for each of two programs."""
    for command in _VERSION_PROGRAMS:
        if match := _VERSION.search(_run(command)):
            return match[1]
    return None


def _read_word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _run(command: Sequence[str]) -> str:
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
