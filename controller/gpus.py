"""GPUs as a reading of the driver saw them. Immutable values only. Memory is in MiB."""

from __future__ import annotations

from dataclasses import dataclass


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
    """A process that uses memory of a GPU, an engine or not. `mib` and `name` None: not known. `replica` None: no
    replica of this installation, as far as is known."""

    pid: int
    """Process id in the host's pid namespace, not in a container's."""
    mib: int | None
    """MiB of the GPU that the process uses. None means that the driver does not report it."""
    name: str | None = None
    replica: str | None = None
    """Name of the replica to which the process belongs or belonged. None means that it is no engine of this
    installation, as far as is known."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that can be read, or one MIG instance of a GPU. Sizes are in MiB. `index` counts GPUs in PCI order, from
    0. `processes` None: not known."""

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

    @property
    def label(self) -> str:
        """Name for people: the GPU's index; for a MIG instance, index and instance number, as `0:1`."""
        return str(self.index) if self.mig is None else f"{self.index}:{self.mig}"


@dataclass(frozen=True, slots=True)
class UnreadGpu:
    """A GPU or MIG instance that the driver lists and cannot read, so that it is missing from `ObservedState.gpus`.
    `uuid` and `pci_address` None: not known."""

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

    @property
    def label(self) -> str:
        """Name for people: the GPU's index; for a MIG instance, index and instance number, as `1:0`."""
        return str(self.index) if self.mig is None else f"{self.index}:{self.mig}"

    @property
    def description(self) -> str:
        """A sentence that names the GPU and says why it is left out."""
        names = [self.uuid, f"PCI {self.pci_address}" if self.pci_address is not None else None]
        known_names = ", ".join(name for name in names if name is not None)
        return f"GPU {self.label}{f' ({known_names})' if known_names else ''} is left out: {self.reason}"
