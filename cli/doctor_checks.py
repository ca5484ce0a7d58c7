"""What `roundhouse doctor` finds, of the facts of a host and an installation. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from controller.hosts import Gpu, Host
from controller.planning.placement import advise_smaller, explain_never_fits
from controller.state import DesiredModel, ObservedState, Requirement


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
    gpus: tuple[Gpu, ...] = ()
    """The GPUs, or MIG instances, that the driver reports."""


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
    wanted: DesiredModel | None = None
    """The model as the files alone would have it. None: it is an MCP server."""
    requirement: Requirement | None = None
    """Predicted memory of one replica. None: not known."""
    place: str = ""
    """File and line that declare it."""


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
class RelayFacts:
    """The relay of this machine, through which other machines of an installation reach its engines, and whether it
    answers."""

    address: str | None = None
    """Address and port of this host's relay. None: this machine has none."""
    problem: str | None = None
    """Why the relay cannot be used, a sentence. None: it answers, or there is none."""
    is_insecure: bool = False
    """Whether nothing is encrypted between the machines."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """All facts about a host and an installation, read at about one time by `doctor_facts.read_facts`."""

    docker: DockerFacts
    gpus: GpuFacts
    disks: tuple[DiskFacts, ...]
    folders: tuple[FolderFacts, ...]
    ports: PortFacts
    desired: DesiredFacts
    clock: ClockFacts
    memory: MemoryFacts
    relay: RelayFacts = RelayFacts()
    setting_problems: tuple[tuple[str, str], ...] = ()
    """`ROUNDHOUSE_` variables that this version does not read, each with an explanation."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `message`: what is wrong, with the subject. `remedy`: what to do about it."""

    severity: Literal["fault", "warning"]
    """`fault`: something declared cannot work. `warning`: it works, and may not do so for long, or is not safe."""
    message: str
    remedy: str


Check: TypeAlias = Callable[[HostFacts], Iterator[Finding]]
"""Judges one subject of the facts. Yields nothing where all is well."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found. Empty `findings`: all is well."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def status(self) -> Literal["ok", "warning", "fault"]:
        """The worst severity among the findings, `ok` without any."""
        severities = {finding.severity for finding in self.findings}
        if "fault" in severities:
            return "fault"
        return "warning" if severities else "ok"


def fault(message: str, remedy: str) -> Finding:
    """Return a finding of severity `fault`. `message`: what is wrong, with the subject. `remedy`: what to do about
    that."""
    return Finding("fault", message, remedy)


def warning(message: str, remedy: str) -> Finding:
    """Return a finding of severity `warning`. `message`: what is wrong, with the subject. `remedy`: what to do about
    that."""
    return Finding("warning", message, remedy)


OLDEST_DRIVER: Final = (525,)
"""First driver for CUDA 12 (docs/images.md)."""
TOOLKIT_FIXES: Final = (
    ((1, 16, 2), "CVE-2024-0132"),
    ((1, 17, 4), "CVE-2025-23359"),
    ((1, 17, 8), "CVE-2025-23266"),
)
"""Versions of the NVIDIA Container Toolkit, each with the vulnerability that it fixes: a container could become root on
the host."""
FULL_DISK_MIB: Final = 100
SMALL_DISK_MIB: Final = 2048
FEW_INODES: Final = 1000
FUTURE_S: Final = 60.0
"""Seconds by which two clocks may differ."""
SMALL_MEMORY_MIB: Final = 512


def check_docker(facts: HostFacts) -> Iterator[Finding]:
    """Yield why engines cannot run in containers: a fault where the settings demand Docker; a warning where they say
    `auto` and a Docker that is there cannot be used. Nothing where they say `process`."""
    docker = facts.docker
    if docker.problem is None or docker.runtime == "process":
        return
    if docker.runtime == "docker":
        yield fault(
            docker.problem,
            "start Docker (`systemctl start docker`), let this user use it (`adduser USER docker`), or set "
            "ROUNDHOUSE_RUNTIME=process",
        )
    elif not docker.is_absent:
        yield warning(
            f"{docker.problem}; so engines run as processes",
            "let this user use Docker (`adduser USER docker`) or update Docker; ROUNDHOUSE_RUNTIME=process says that "
            "processes are wanted",
        )


def check_driver(facts: HostFacts) -> Iterator[Finding]:
    """Yield faults: why GPUs that are there, or that declared models name, cannot be used, and a driver that is too old
    for CUDA 12."""
    gpus = facts.gpus
    for sentence in gpus.unread:
        yield fault(sentence, "see `nvidia-smi -q` and `dmesg`; docs/gpu.md lists the causes")
    if gpus.readable == 0 and not gpus.unread:
        reason = gpus.problem or "the NVIDIA driver reports no GPU"
        wanting = sorted(model.name for model in facts.desired.models if model.names_gpus)
        if gpus.on_bus:
            count = f"{gpus.on_bus} NVIDIA GPU{'s are' if gpus.on_bus > 1 else ' is'} in this host"
            yield fault(
                f"{count}, and none can be used: {reason}",
                "install or load NVIDIA's driver until `nvidia-smi` works; docs/gpu.md lists the causes",
            )
        elif wanting:
            yield fault(
                f"{', '.join(wanting)}: runs on GPUs by its definition, and none can be used: {reason}",
                "remove `gpus` from the definition, say `device: cpu`, or run it on a host with a GPU",
            )
    if gpus.driver_version is not None and _numbers(gpus.driver_version) < OLDEST_DRIVER:
        yield fault(
            f"NVIDIA driver {gpus.driver_version} is older than {OLDEST_DRIVER[0]}, the first one for CUDA 12",
            "update the driver: 525 or later for CUDA 12, 580 or later for CUDA 13",
        )


def check_toolkit(facts: HostFacts) -> Iterator[Finding]:
    """Yield what is wrong with the NVIDIA Container Toolkit: packages that it has replaced (a warning), that Docker
    cannot give GPUs to containers, and known vulnerabilities (faults). Nothing where engines do not run in containers,
    or where this host has no GPU."""
    gpus, docker = facts.gpus, facts.docker
    if not docker.is_used or docker.problem is not None or not (gpus.on_bus or gpus.readable):
        return
    if gpus.replaced_packages:
        yield warning(
            f"{', '.join(gpus.replaced_packages)}: the NVIDIA Container Toolkit has replaced that",
            "remove it, and install the package `nvidia-container-toolkit` in its place",
        )
    if not docker.has_gpu_support:
        yield fault(
            "Docker cannot give GPUs to containers: it has neither a runtime `nvidia` nor CDI devices",
            "install the NVIDIA Container Toolkit, `nvidia-ctk runtime configure --runtime=docker`, restart Docker",
        )
    if gpus.toolkit_version is not None:
        present = _numbers(gpus.toolkit_version)
        open_holes = [name for version, name in TOOLKIT_FIXES if present < version]
        if open_holes:
            wanted = ".".join(map(str, TOOLKIT_FIXES[-1][0]))
            yield fault(
                f"NVIDIA Container Toolkit {gpus.toolkit_version} lets a container take over the host: "
                f"{', '.join(open_holes)}",
                f"update the NVIDIA Container Toolkit to {wanted} or later, and restart Docker",
            )


def check_disks(facts: HostFacts) -> Iterator[Finding]:
    """Yield file systems that are full (a fault: less than 100 MiB, or fewer than 1000 inodes are left) or nearly so (a
    warning: less than 2 GiB)."""
    for disk in facts.disks:
        subject = f"{disk.purpose} {disk.path}"
        remedy = "free some space (`du -xh --max-depth=1`), or move the folder to a larger disk"
        if disk.free_mib < FULL_DISK_MIB:
            yield fault(f"{subject}: its disk is full, with {disk.free_mib} MiB left", remedy)
        elif disk.free_mib < SMALL_DISK_MIB:
            yield warning(f"{subject}: its disk has only {disk.free_mib} MiB left", remedy)
        if disk.free_inodes is not None and disk.free_inodes < FEW_INODES:
            yield fault(
                f"{subject}: its file system has {disk.free_inodes} inodes left, so no files can be made",
                "remove small files (`du -x --inodes --max-depth=1`)",
            )


def check_clock(facts: HostFacts) -> Iterator[Finding]:
    """Yield why the host's time cannot be relied on: its clock is behind files that Roundhouse wrote, or differs from
    the Docker Engine's, by more than a minute (faults), or no time service sets it (a warning)."""
    clock = facts.clock
    if clock.newest_file is not None and clock.newest_file_ahead_s > FUTURE_S:
        yield fault(
            f"the clock is behind: {clock.newest_file} was written {clock.newest_file_ahead_s:.0f} s in the future",
            "set the clock (`timedatectl set-ntp true`); limits, retention and certificates go by it",
        )
    daemon_ahead_s = facts.docker.daemon_ahead_s
    if daemon_ahead_s is not None and abs(daemon_ahead_s) > FUTURE_S:
        side = "ahead of" if daemon_ahead_s > 0 else "behind"
        yield fault(
            f"the clock of Docker's machine is {abs(daemon_ahead_s):.0f} s {side} this one",
            "restart Docker's virtual machine, and synchronise both clocks",
        )
    if clock.is_synchronised is False:
        yield warning(
            "no time service keeps the clock right",
            "start chrony or systemd-timesyncd (`timedatectl set-ntp true`)",
        )


def check_relay(facts: HostFacts) -> Iterator[Finding]:
    """Yield that this host's relay does not answer, so that its engines get no requests (a fault), or that nothing is
    encrypted between the hosts (a warning)."""
    if facts.relay.problem is not None:
        yield fault(
            f"{facts.relay.problem}; the engines here get no requests",
            "look whether `roundhouse join` runs here, and into cluster/relay.log in the state folder",
        )
    if facts.relay.is_insecure:
        yield warning(
            "nothing is encrypted between this machine and the others of its installation: who is in their network "
            "reads and changes all requests, and the token with which programs are run on every host",
            "start `roundhouse head` without `--insecure-private-network`, and join every host anew",
        )


def check_memory(facts: HostFacts) -> Iterator[Finding]:
    """Yield faults: models that declare more main memory than engines may use, alone or together with the other enabled
    ones, and a limit above the host's memory; and warnings: models whose predicted memory is more than a GPU or main
    memory has, and where less than 512 MiB are available now."""
    memory = facts.memory
    limit_mib = memory.total_mib if memory.engines_mib is None else min(memory.total_mib, memory.engines_mib)
    if memory.engines_mib is not None and memory.engines_mib > memory.total_mib:
        yield fault(
            f"ROUNDHOUSE_ENGINES_MEMORY_MIB is {memory.engines_mib}, and this host has {memory.total_mib} MiB",
            "set it below the host's memory",
        )
    too_large = {
        model.name: model.memory_mib
        for model in facts.desired.models
        if model.memory_mib is not None and model.memory_mib > limit_mib
    }
    for name, mib in sorted(too_large.items()):
        yield fault(
            f"{name}: declares {mib} MiB of main memory, and engines may use {limit_mib} MiB",
            advise_smaller("lower `memory_mib` or `replicas`"),
        )
    host = build_host(facts.gpus.gpus, bool(facts.gpus.unread), memory.total_mib, memory.engines_mib)
    for model in facts.desired.models:
        if model.name in too_large or model.wanted is None or model.wanted.names_hosts:
            continue
        known = {} if model.requirement is None else {model.name: model.requirement}
        reason = explain_never_fits(model.wanted, replace(host, requirements=known))
        if reason is not None:
            yield warning(
                f"{model.name} ({model.place}): it can never be loaded here: it {reason}",
                "change its definition as it says, or run it on a host with more memory",
            )
    enabled = [
        model.memory_mib or 0 for model in facts.desired.models if model.is_enabled and model.name not in too_large
    ]
    if sum(enabled) > limit_mib:
        yield fault(
            f"the enabled models together declare {sum(enabled)} MiB of main memory, engines may use {limit_mib} MiB",
            "set `autoload: true` or `enabled: false` for some of them, or lower `memory_mib`",
        )
    if memory.available_mib < SMALL_MEMORY_MIB:
        yield warning(
            f"only {memory.available_mib} of {memory.total_mib} MiB of main memory are available",
            "end other programs, or unload models (`roundhouse unload NAME`)",
        )


def build_host(gpus: tuple[Gpu, ...], has_unread_gpus: bool, total_mib: int, engines_mib: int | None) -> ObservedState:
    """Return the observation of a host on which nothing runs. `total_mib`: its main memory; `engines_mib`: what of it
    the settings allow engines, None for all. With GPUs that cannot be read, none is known."""
    host = Host(
        gpus=None if has_unread_gpus else gpus,
        unified_gpus=frozenset(gpu.uuid for gpu in gpus if gpu.is_unified),
        memory_mib=engines_mib or total_mib,
        is_memory_limited=engines_mib is not None and engines_mib < total_mib,
    )
    return ObservedState(0.0, hosts=(host,))


HOST_CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "docker": check_docker,
        "driver": check_driver,
        "toolkit": check_toolkit,
        "disk": check_disks,
        "clock": check_clock,
        "memory": check_memory,
        "relay": check_relay,
    }
)
"""Name to check, in the order in which they are shown."""


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: `570.195.03` is (570, 195, 3); those of `1.18.0-rc.1` are (1, 18, 0)."""
    numbers: list[int] = []
    for part in version.split("-", maxsplit=1)[0].split("~", maxsplit=1)[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


OTHERS_MAY_WRITE: Final = 0o002
OTHERS_MAY_READ: Final = 0o005


def check_settings(facts: HostFacts) -> Iterator[Finding]:
    """Yield a warning for each `ROUNDHOUSE_` variable that has no effect."""
    for variable, explanation in facts.setting_problems:
        yield warning(f"{variable}: {explanation}", "correct its name, or remove it; docs/settings.md lists all")


def check_folders(facts: HostFacts) -> Iterator[Finding]:
    """Yield faults: folders that are missing, that this user may not use as Roundhouse must, or that every user may
    write to; and a warning where other users may read or enter a folder in which Roundhouse keeps secrets. A missing
    state folder is no finding where this user may make it."""
    for folder in facts.folders:
        yield from _check_folder(folder)


def _check_folder(folder: FolderFacts) -> Iterator[Finding]:
    subject = f"{folder.purpose} {folder.path}"
    names_another = f"{folder.variable} names another folder"
    if folder.kind == "other":
        yield fault(f"{subject} is not a folder", f"move it away, or let {folder.variable} name a folder")
    elif folder.kind == "unreachable":
        yield fault(
            f"{subject} cannot be reached: this user may not enter a folder above it",
            f"`namei -l {folder.path}` shows which one; {names_another}",
        )
    elif folder.kind == "missing" and not folder.is_written:
        yield fault(f"{subject} does not exist", f"`mkdir -p {folder.path}`; {names_another}")
    elif folder.kind == "missing":
        if not folder.is_writable:
            yield fault(
                f"{subject} does not exist, and this user may not make it",
                f"make it as root and give it to this user (`chown`); {names_another}",
            )
    else:
        yield from _check_rights(folder, subject)


def _check_rights(folder: FolderFacts, subject: str) -> Iterator[Finding]:
    if not folder.is_readable:
        yield fault(f"{subject}: this user may not list and enter it", f"`chmod u+rx {folder.path}`, or `chown` it")
    if folder.is_written and not folder.is_writable:
        yield fault(
            f"{subject}: this user may not write to it, or its file system is read-only",
            f"`chown -R USER {folder.path}`; {folder.variable} names another folder",
        )
    elif folder.foreign_file is not None:
        yield fault(
            f"{subject}: this user may not write its file {folder.foreign_file}",
            f"`chown -R USER {folder.path}`: another user, such as root, ran Roundhouse here before",
        )
    if folder.mode & OTHERS_MAY_WRITE:
        yield fault(
            f"{subject}: every user of this host may write to it (mode {folder.mode:o})", f"`chmod o-w {folder.path}`"
        )
    elif folder.is_written and folder.mode & OTHERS_MAY_READ:
        yield warning(
            f"{subject}: other users of this host may look into it (mode {folder.mode:o}); it holds secrets",
            f"`chmod 700 {folder.path}`",
        )


def check_ports(facts: HostFacts) -> Iterator[Finding]:
    """Yield faults: why clients could not use the gateway at its addresses. It cannot listen there, or it would refuse
    every request, because the addresses are not loopback, no keys are declared, and no setting opens it."""
    ports = facts.ports
    if ports.problem is not None:
        yield fault(ports.problem, "`ss -ltnp` shows who listens; ROUNDHOUSE_PORT and ROUNDHOUSE_HOST choose another")
    if ports.is_exposed and not ports.is_open and facts.desired.key_count == 0 and not facts.desired.problems:
        yield fault(
            f"ROUNDHOUSE_HOST={','.join(ports.hosts)} is not loopback, and no keys are declared: every request is "
            "refused",
            f"`roundhouse key new NAME > {facts.desired.folder}/key-NAME.yaml`, or ROUNDHOUSE_OPEN=1",
        )


def check_desired(facts: HostFacts) -> Iterator[Finding]:
    """Yield a fault for each problem of the desired-state files."""
    for problem in facts.desired.problems:
        yield fault(problem, "correct the file; until then the last valid state stays in force")


def check_models(facts: HostFacts) -> Iterator[Finding]:
    """Yield a fault for each declared model, enabled or not, whose model files keep it from starting."""
    for model in facts.desired.models:
        if model.problem is not None:
            yield fault(
                f"{model.name}: {model.problem}",
                "put the file there, or correct the definition; ROUNDHOUSE_MODELS names the models folders",
            )


def check_programs(facts: HostFacts) -> Iterator[Finding]:
    """Yield a fault for each model whose engine's program or Python package, and each MCP server whose program, is not
    on this host. Nothing where engines run in containers: then the image has them."""
    for model in () if facts.docker.is_used else facts.desired.models:
        if model.program_problem is not None:
            yield fault(
                f"{model.name}: {model.program_problem}",
                "install it, take another backend, or let engines run in containers (ROUNDHOUSE_RUNTIME=docker)",
            )


def check_images(facts: HostFacts) -> Iterator[Finding]:
    """Yield a warning for each image that declared models need and Docker does not have, and one where it is not known
    which images Docker has. Nothing where engines run as processes."""
    docker = facts.docker
    if not docker.is_used:
        return
    if docker.unknown_images is not None:
        yield warning(f"it is not known which images are there: {docker.unknown_images}", "ask again")
    for image, remedy in docker.missing_images:
        yield warning(f"image {image} is not on this host", remedy)


INSTALL_CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "settings": check_settings,
        "folders": check_folders,
        "ports": check_ports,
        "desired state": check_desired,
        "model files": check_models,
        "programs": check_programs,
        "images": check_images,
    }
)
"""Name to check, in the order in which they are shown."""
