"""Where a chaos campaign plays: how a whole Roundhouse is started, hurt and ended, on one runtime."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from controller.runtimes.process.groups import Process, read_stat
from tests.support.fake_hub import FakeHub
from tests.support.shifted_clock import ShiftedClock
from tests.support.small_disk import SmallDisk
from tests.support.wait import until

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LLAMA = {"backend": "llama_server", "model_path": "clockwork.gguf", "llama_server_threads": 1}


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    model: str
    index: int
    identity: str
    """What a restart changes: pid and start time, or the container's id."""
    started_at: float
    """By the monotonic clock: when its process began, or when its container was created."""
    pid: int
    """Of its first process, as this machine knows it."""
    health_url: str
    """As it is reached from where that process runs."""


class EngineHost(Protocol):
    """Where the engines run: processes or containers."""

    def look(self, wanted: Counter[str]) -> tuple[dict[str, Engine], list[str]]:
        """The engines by name, and what is wrong with them against `wanted`, replicas per model: missing, doubled,
        orphaned or dead ones. By process table and records, or by the Docker Engine: never by the controller."""

    async def is_healthy(self, engine: Engine) -> bool:
        """Whether it says so itself, asked without gateway and controller."""

    async def kill(self, name: str) -> None:
        """SIGKILL to an engine; returns when it has ended."""

    def freeze(self, name: str) -> None:
        """Stop an engine for a while."""

    def thaw(self, name: str) -> None:
        """Let it go on."""


class Stage(Protocol):
    """One Roundhouse over folders of its own. What a fault does, it does to processes and files of this machine."""

    url: str
    """The gateway's public address."""
    desired: Path
    """Folder of the desired-state files."""
    models: Path
    """The models folder."""
    hub: FakeHub | None
    """The hub that downloads come from; None: transfers cannot reach one."""
    files: dict[str, Path]
    """What programs keep, by file name, that may be deleted under them."""
    disk: SmallDisk | None
    """What everything lies on that programs write; None: no small disk could be mounted."""
    host: EngineHost
    clock: ShiftedClock
    """The wall clock of the programs."""
    mcp_server: dict[str, Any]
    """The fields of an MCP server with the tool `echo`, as a desired-state file declares it."""
    left_out: dict[str, str]
    """Kinds of faults that cannot be tried here, and why."""

    async def start(self) -> None:
        """Start everything; returns before it serves."""

    async def end(self) -> None:
        """Stop everything as the documents say. Does nothing where nothing runs."""

    def find_left(self) -> list[str]:
        """What still runs, or is still recorded."""

    def find_pid(self, program: str) -> int | None:
        """Process id of `gateway`, `controller`, `retrieval`, `transfers`, `up` or `dockerd`; None: it does not run
        now."""

    async def run_command(self, *arguments: str) -> None:
        """Run `roundhouse` with these arguments against the controller. Raises AssertionError where it fails."""

    async def restart_dockerd(self) -> None:
        """Start the Docker Engine that was killed, as an init system would. Returns when it answers."""

    async def close(self) -> None:
        """Kill and remove whatever is left."""


def find_process(pid: int) -> Process:
    """The process of that id. Raises AssertionError: there is none."""
    stat = read_stat(pid)
    assert stat is not None, f"process {pid} is gone"
    return stat.process


def age_of(pid: int) -> float:
    """Seconds since that process was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - find_process(pid).start_ticks / TICKS_PER_S


def monotonic_of(boottime_s: float) -> float:
    """A time of the clock that counts from the boot, by the monotonic clock."""
    return boottime_s - time.clock_gettime(time.CLOCK_BOOTTIME) + time.monotonic()


def monotonic_of_unix(unix_s: float) -> float:
    """A Unix time by the monotonic clock."""
    return unix_s - time.time() + time.monotonic()


async def kill_process(pid: int) -> None:
    """SIGKILL; returns when it has ended."""
    process = find_process(pid)
    os.kill(pid, signal.SIGKILL)

    def has_ended() -> bool:
        stat = read_stat(pid)
        return stat is None or stat.has_ended or stat.process != process

    await until(f"process {pid} has ended", has_ended)
