"""The facts about a host and an installation that `roundhouse doctor` judges. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DockerFacts:
    """The Docker Engine, as it answered. Where it was not asked (`runtime` is `process`) or does not answer, `problem`
    says so, and what only it knows has its default."""

    url: str
    """Address of the daemon."""
    runtime: Literal["process", "docker", "auto"] = "auto"
    """Where the settings say that engines run."""
    problem: str | None = None
    """Why the daemon is of no use, such as that it does not answer or is too old. None: it answers."""
    is_absent: bool = False
    """Whether nobody listens at the address, as where no Docker is installed."""
    version: str | None = None
    """Version of the Engine. None: it does not answer."""
    has_gpu_support: bool = False
    """Whether the Engine has a runtime `nvidia` or discovered CDI devices of NVIDIA's."""
    daemon_ahead_s: float | None = None
    """Seconds by which the daemon's clock is later than this machine's. None: unknown."""
    missing_images: tuple[tuple[str, str], ...] = ()
    """Images that declared models need and the Engine does not have, each with how to get it."""
    unknown_images: str | None = None
    """Why it is not known which images are there. None: it is known, or Docker does not answer."""

    @property
    def is_used(self) -> bool:
        """Whether engines run in containers: by the setting, or with `auto` because the daemon answers."""
        return self.runtime == "docker" or (self.runtime == "auto" and self.problem is None)


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """NVIDIA's GPUs, driver and container toolkit on this host: what the PCI bus has, and what the driver reports."""

    on_bus: int = 0
    """Number of NVIDIA's display controllers on the PCI bus."""
    readable: int = 0
    """Number of GPUs, or MIG instances, that the driver reports."""
    problem: str | None = None
    """Why the driver reports no GPU. None: it reports at least one, or was not asked."""
    unread: tuple[str, ...] = ()
    """Sentences about GPUs that the driver cannot read."""
    driver_version: str | None = None
    """Such as `570.195.03`. None: there is no driver, or it does not say."""
    toolkit_version: str | None = None
    """Version of the NVIDIA Container Toolkit, such as `1.17.8`. None: it is not on this host's PATH."""
    replaced_packages: tuple[str, ...] = ()
    """Packages or programs on this host that the NVIDIA Container Toolkit has replaced, such as `nvidia-docker2`."""


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Room on the file system of one folder that Roundhouse writes to: MiB that this user may fill, and inodes."""

    purpose: str
    """Whose folder it is, such as `state folder`."""
    path: str
    free_mib: int
    free_inodes: int | None
    """None: the file system does not count them."""


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """One folder of the installation, and how this user may use it. `path` is absolute; the folder may be missing."""

    purpose: str
    path: str
    variable: str
    """Environment variable that names the folder."""
    is_written: bool
    """Whether Roundhouse writes to the folder. Roundhouse makes such a folder where it is missing."""
    kind: Literal["folder", "missing", "other", "unreachable"] = "folder"
    """`unreachable`: this user may not look into a folder above it."""
    is_readable: bool = True
    """Whether this user may list and enter the folder."""
    is_writable: bool = True
    """Whether this user may make files in the folder, or the folder itself where it is missing."""
    foreign_file: str | None = None
    """A file in it that Roundhouse writes and this user may not write. None: there is none, or it was not looked at."""
    mode: int = 0o700
    """Permission bits."""


@dataclass(frozen=True, slots=True)
class PortFacts:
    """The addresses and the port that the gateway is to listen on, and whether it can. Port 0 (any free one) is never a
    problem."""

    hosts: tuple[str, ...]
    port: int
    problem: str | None = None
    """Why the gateway cannot listen there. None: it can, or a Roundhouse listens there already."""
    is_exposed: bool = False
    """Whether one of the addresses is not a loopback address."""
    is_open: bool = False
    """Whether a setting allows requests without keys on such an address."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One declared model: whether its files let it start, and what its definition says of GPUs and main memory."""

    name: str
    problem: str | None = None
    """Why its files keep it from starting. None: nothing does."""
    program_problem: str | None = None
    """What its engine lacks on this host to run as a process: a program or a Python package. None: nothing, or engines
    run in containers."""
    is_enabled: bool = True
    """Whether it is loaded without being asked for."""
    names_gpus: bool = False
    """Whether its definition says that it runs on GPUs."""
    memory_mib: int | None = None
    """Declared main memory of all its replicas together. None: not declared."""


@dataclass(frozen=True, slots=True)
class DesiredFacts:
    """What the desired-state files declare, and their problems. Without models, keys and problems where the folder
    cannot be read."""

    folder: str
    problems: tuple[str, ...] = ()
    """Problems with file, line and field."""
    models: tuple[ModelFacts, ...] = ()
    key_count: int = 0
    """Number of declared API keys."""


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """The host's clock: whether a time service sets it, and how far it is behind the files of the state folder."""

    is_synchronised: bool | None = None
    """Whether the kernel's clock is disciplined by a time service. None: the kernel does not say."""
    newest_file: str | None = None
    """File of the state folder with the latest time. None: there is none."""
    newest_file_ahead_s: float = 0.0
    """Seconds by which the time of `newest_file` is later than the clock."""


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Main memory of the host in MiB: all, what is available now, and what engines may use."""

    total_mib: int
    available_mib: int
    engines_mib: int | None = None
    """What the settings allow all engines together. None: all of it."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """All facts about a host and an installation, read at about one time by `fact_reader.read_facts`."""

    docker: DockerFacts
    gpus: GpuFacts
    disks: tuple[DiskFacts, ...]
    folders: tuple[FolderFacts, ...]
    ports: PortFacts
    desired: DesiredFacts
    clock: ClockFacts
    memory: MemoryFacts
    setting_problems: tuple[tuple[str, str], ...] = ()
    """`ROUNDHOUSE_` variables that this version does not read, each with an explanation."""
