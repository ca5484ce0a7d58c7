"""Checks of the host: Docker, NVIDIA's driver and container toolkit, disks, clock and main memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from controller.cli.doctor.facts import HostFacts
from controller.cli.doctor.finding import Check, Finding, fault, warning

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
                "remove `gpus` and `gpu_count` from the definition, or run it on a host with a GPU",
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


def check_memory(facts: HostFacts) -> Iterator[Finding]:
    """Yield faults: models that declare more main memory than engines may use, alone or together with the other enabled
    ones, and a limit above the host's memory; and a warning where less than 512 MiB are available now."""
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
            "lower `memory_mib` or `replicas`, or take a smaller model",
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


HOST_CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "docker": check_docker,
        "driver": check_driver,
        "toolkit": check_toolkit,
        "disk": check_disks,
        "clock": check_clock,
        "memory": check_memory,
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
