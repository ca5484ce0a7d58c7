"""Hosts with their GPUs and main memory, as last seen. Immutable values only.

Times are Unix seconds. Memory is in MiB. Unknown is None, and never the same as zero or empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

HOST: Final = "host"
"""Key of main memory in `claims` mappings, beside the GPU uuids: that of the host without a name, and on each host its
own. `memory_key` returns that of a host with a name."""


def memory_key(host: str) -> str:
    """Return the key of a host's main memory in `claims` mappings: `host`, or `host:NAME` of a host with a name."""
    return f"{HOST}:{host}" if host else HOST


def is_memory_key(key: str) -> bool:
    """Return whether a key of a `claims` mapping is of a host's main memory. False: it is a GPU's uuid."""
    return key == HOST or key.startswith(f"{HOST}:")


@dataclass(frozen=True, slots=True)
class GpuDriver:
    """The host's NVIDIA driver. None in a field means that the driver does not report it."""

    version: str | None = None
    """Driver version, such as `570.195.03`."""
    cuda_version: str | None = None
    """Latest CUDA version that the driver supports, such as `12.8`."""
    brands: tuple[str, ...] = ()
    """Distinct brands of the host's GPUs, as NVIDIA's container toolkit names them. Empty means that the brand of at
    least one GPU is unknown."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses memory of a GPU, an engine or not. `mib` (in use) and `name` None: not known. `replica`
    None: no replica of this installation, as far as is known."""

    pid: int
    """Process id in the host's pid namespace, not in a container's."""
    mib: int | None
    name: str | None = None
    replica: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that can be read, or one MIG instance of a GPU. Sizes are in MiB. `processes` None: not known."""

    uuid: str
    """NVML's uuid; that of a MIG instance begins with `MIG-`."""
    index: int
    """Number of the GPU in PCI order, from 0. A MIG instance has the number of its GPU."""
    name: str
    total_mib: int
    used_mib: int = 0
    """MiB in use by all processes, engines or not."""
    utilization_percent: int | None = None
    """Share of NVML's last sample period in which a kernel ran. None means that the driver does not report it, as for
    MIG instances."""
    processes: tuple[GpuProcess, ...] | None = None
    """Processes that use memory of the GPU, largest first. None means unknown, as in another pid namespace."""
    mig: int | None = None
    """Number of the MIG instance within its GPU, as `nvidia-smi -L` counts. None means a whole GPU."""
    is_unified: bool = False
    """Whether the GPU has no memory of its own, so that `total_mib` and `used_mib` are those of main memory (GB10, as
    in DGX Spark)."""
    host: str = ""
    """Name of the host that has the GPU, as in `Host.name`."""

    @property
    def label(self) -> str:
        """Name for people: the GPU's index; for a MIG instance, index and instance number, as `0:1`. On a host with a
        name that comes first, as in `b/0:1`."""
        return f"{self.host}/{self.bare_label}" if self.host else self.bare_label

    @property
    def bare_label(self) -> str:
        """The label without the host's name."""
        return str(self.index) if self.mig is None else f"{self.index}:{self.mig}"

    @property
    def names(self) -> tuple[str, str, str]:
        """What a definition's `gpus` may name it by: uuid, label, and the label without the host's name."""
        return self.uuid, self.label, self.bare_label

    def sum_held_mib(self, replica: str) -> int | None:
        """Return the MiB that the processes of the replica of this name hold of the GPU. None: the driver reports none
        of them, or not what one of them holds."""
        held = [process.mib for process in self.processes or () if process.replica == replica]
        known = [mib for mib in held if mib is not None]
        return sum(known) if held and len(known) == len(held) else None


@dataclass(frozen=True, slots=True)
class UnreadGpu:
    """A GPU or MIG instance that the driver lists and cannot read, so that it is missing from `Host.gpus`."""

    index: int
    """Number of the GPU in PCI order, as in `Gpu.index`. The readable GPUs keep theirs."""
    reason: str
    """Why the GPU cannot be read: a sentence without its subject."""
    uuid: str | None = None
    """NVML's uuid. None means unknown, because the GPU was never read."""
    pci_address: str | None = None
    """PCI address as `lspci` and the kernel log write it, such as `0000:0a:00.0`. None means unknown."""
    mig: int | None = None
    """Number of the MIG instance, as in `Gpu.mig`. None means a whole GPU."""
    host: str = ""
    """Name of the host that has the GPU, as in `Host.name`."""

    @property
    def label(self) -> str:
        """Name for people, as `Gpu.label`."""
        return f"{self.host}/{self.bare_label}" if self.host else self.bare_label

    @property
    def bare_label(self) -> str:
        """The label without the host's name."""
        return str(self.index) if self.mig is None else f"{self.index}:{self.mig}"

    @property
    def description(self) -> str:
        """A sentence that names the GPU and says why it is left out."""
        names = [self.uuid, f"PCI {self.pci_address}" if self.pci_address is not None else None]
        known_names = ", ".join(name for name in names if name is not None)
        return f"GPU {self.label}{f' ({known_names})' if known_names else ''} is left out: {self.reason}"


class HostState(StrEnum):
    """State of a host. `READY` and `DRAINING` hosts answer; nothing is started on a draining one, and what runs there
    moves. A `SILENT` one does not answer, so that what runs there is unknown; after `ROUNDHOUSE_HOST_LOST_S` without a
    word it is `LOST`, and others take over. `REFUSED`: it answers, and may not be used, as it says."""

    READY = "ready"
    SILENT = "silent"
    LOST = "lost"
    DRAINING = "draining"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Host:
    """One host that runs replicas: its state, its GPUs and its main memory, as last seen. Sizes are MiB."""

    name: str = ""
    """Empty: the only host of an installation, the controller's own."""
    state: HostState = HostState.READY
    since: float = 0.0
    """Unix time since which the host is in that state; 0: ever since the controller runs."""
    reached_since: float = 0.0
    """Unix time since which the host has answered without a break; 0: ever since the controller runs."""
    taken_over_at: float | None = None
    """Unix time at which others began to take over what ran there. None: they have not, or it is used again."""
    last_heard: float | None = None
    """Unix time of the last word of the host. None: it is the controller's own, which is not asked over a network."""
    reason: str | None = None
    """Why the host is in that state, a sentence without its subject. None: nothing is to be said."""
    address: str | None = None
    runtime: str = ""
    """Kind of its runtime, `docker` or `process`; empty: not known."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Program to its version on the host, such as `roundhouse`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the host, which the definitions' `hosts` may name as `label=value`."""
    gpus: tuple[Gpu, ...] | None = ()
    """GPUs that can be read; empty means that there are none. None means unknown: they cannot be read now."""
    gpu_error: str | None = None
    """Why `gpus` is None or empty, as a sentence. None: it is not, or nobody said."""
    unread_gpus: tuple[UnreadGpu, ...] = ()
    """GPUs that are missing from `gpus` because they cannot be read. Engines on them keep their claims."""
    unified_gpus: frozenset[str] = frozenset()
    """Uuids of GPUs without memory of their own, readable now or not. Claims on them are claims of main memory."""
    driver: GpuDriver | None = None
    """None: it has none, or it is not known."""
    memory_mib: int | None = None
    """Main memory that all engines there may use together. None means unbounded."""
    is_memory_limited: bool = False
    """Whether a setting keeps `memory_mib` below the machine's main memory."""
    models_free_mib: int | None = None
    """Free space of its models folder. None: not known."""
    relay: str | None = None
    """Address and port of its relay, through which its engines are reached. None: they are reached where they
    listen."""
    is_insecure: bool = False
    """Whether the relay has no TLS: what is asked and answered there can be read and changed on the way."""
    missing_models: frozenset[str] = frozenset()
    """Names of declared models whose files are known not to be there, or may be others than the head has."""
    files_url: str | None = None
    """Address at which other hosts get its model files. None: it gives none, and fetches none."""
    fetch_fractions: Mapping[str, float] = field(default_factory=dict)
    """Name of a model to the part of its files, 0 to 1, that is there, while they are fetched. Absent: not known."""

    @property
    def memory_key(self) -> str:
        """Key of its main memory in `claims` mappings."""
        return memory_key(self.name)

    @property
    def answers(self) -> bool:
        """Whether it is known what runs there."""
        return self.state in (HostState.READY, HostState.DRAINING)

    @property
    def title(self) -> str:
        """Name in the middle of a sentence: `this host`, or `host b`."""
        return f"host {self.name}" if self.name else "this host"

    def is_named_by(self, choice: Iterable[str]) -> bool:
        """Return whether a definition's `hosts` allows this host: an entry is its name or one of its labels. Empty
        allows every host."""
        names = {self.name, *(f"{label}={value}" for label, value in self.labels.items())}
        return not choice or not names.isdisjoint(choice)
