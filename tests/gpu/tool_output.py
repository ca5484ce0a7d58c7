"""What nvidia-smi, nvidia-ctk and the Docker Engine print, read. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

QUERY_FIELDS: Final = (
    *("index", "uuid", "name", "pci.bus_id", "memory.total", "memory.used"),
    *("driver_version", "compute_cap", "mig.mode.current", "persistence_mode", "compute_mode"),
)
"""Of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`."""
_ABSENT: Final = ("N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", "")


@dataclass(slots=True)
class ListedGpu:
    """One line of `nvidia-smi -L`, and the MIG instances below it."""

    index: int
    name: str
    uuid: str
    instances: dict[str, str] = field(default_factory=dict)
    """uuid to profile, such as `1g.10gb`."""

    @property
    def usable_uuids(self) -> tuple[str, ...]:
        """What an engine can be given: the instances, or the GPU where it has none."""
        return tuple(self.instances) or (self.uuid,)


def parse_gpu_list(text: str) -> list[ListedGpu]:
    """`nvidia-smi -L`. Lines that name no GPU are passed over."""
    gpus: list[ListedGpu] = []
    for line in text.splitlines():
        if found := re.match(r"GPU (\d+): (.+) \(UUID: (GPU-[\w-]+)\)", line):
            gpus.append(ListedGpu(int(found[1]), found[2], found[3]))
        elif (found := re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[\w/-]+)\)", line)) and gpus:
            gpus[-1].instances[found[2]] = found[1]
    return gpus


def parse_gpu_query(text: str, fields: Sequence[str] = QUERY_FIELDS) -> list[dict[str, str | None]]:
    """One mapping for each GPU; None: the driver does not say. Lines with another number of columns are passed over,
    such as the sentence of a GPU that cannot be asked."""
    rows = ([cell.strip() for cell in line.split(",")] for line in text.splitlines())
    return [
        {name: None if cell in _ABSENT else cell for name, cell in zip(fields, cells, strict=True)}
        for cells in rows
        if len(cells) == len(fields)
    ]


def parse_versions(text: str) -> dict[str, str | None]:
    """The driver's version and the newest CUDA that it runs, from the head of `nvidia-smi`; None: not told."""
    driver = re.search(r"Driver Version: ([\d.]+)", text)
    cuda = re.search(r"CUDA (?:UMD )?Version: ([\d.]+)", text)
    return {"driver": driver[1] if driver else None, "cuda": cuda[1] if cuda else None}


def parse_topology(text: str) -> dict[str, str]:
    """`nvidia-smi topo -m`: `GPU0-GPU1` to how they are connected (`NV12`, `PIX`, `PHB`, `SYS`)."""
    lines = [line.split() for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()]
    header = next((words for words in lines if words[:1] == ["GPU0"] and "X" not in words), None)
    if header is None:
        return {}
    columns = [word for word in header if re.fullmatch(r"GPU\d+", word)]
    links = {}
    for words in lines:
        if words[:1] and words[0] in columns and words is not header:
            row = zip(columns, words[1:], strict=False)
            links.update({f"{words[0]}-{other}": link for other, link in row if words[0] < other})
    return links


def parse_cdi_list(text: str) -> list[str]:
    """`nvidia-ctk cdi list`: the fully qualified names of the devices."""
    return [line.strip() for line in text.splitlines() if re.fullmatch(r"\s*[\w.]+/[\w.]+=\S+\s*", line)]


def parse_toolkit_version(text: str) -> str | None:
    """`nvidia-ctk --version`; None: it does not say."""
    found = re.search(r"NVIDIA Container Toolkit CLI version (\S+)", text)
    return found[1] if found else None


def parse_module_version(text: str) -> str | None:
    """/proc/driver/nvidia/version: the version of the kernel's module; None: it does not say."""
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.[\d.]+)", text)
    return found[1] if found else None


def docker_facts(info: Mapping[str, Any]) -> dict[str, Any]:
    """What matters of `docker info`, as JSON: its `Runtimes`, its CDI devices (Engine 28.2 and later), cgroups."""
    devices = info.get("DiscoveredDevices") or ()
    options = [str(each) for each in info.get("SecurityOptions") or ()]
    return {
        "version": info.get("ServerVersion"),
        "system": info.get("OperatingSystem"),
        "nvidia_runtime": "nvidia" in (info.get("Runtimes") or {}),
        "default_runtime": info.get("DefaultRuntime"),
        "cdi_folders": list(info.get("CDISpecDirs") or ()),
        "cdi_devices": [each["ID"] for each in devices if each.get("Source") == "cdi"],
        "cgroups": f"{info.get('CgroupVersion')}, {info.get('CgroupDriver')}",
        "rootless": any("name=rootless" in each for each in options),
        "userns": any("name=userns" in each for each in options),
    }


def explain_no_toolkit(facts: Mapping[str, Any]) -> str | None:
    """Why the Docker Engine can give no container an NVIDIA GPU, by `docker_facts`; None: it should be able to."""
    if facts["nvidia_runtime"] or any(name.startswith("nvidia.com/gpu=") for name in facts["cdi_devices"]):
        return None
    return "the Docker Engine knows neither an NVIDIA runtime nor CDI devices of nvidia.com/gpu"
