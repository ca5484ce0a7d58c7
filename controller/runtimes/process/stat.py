"""Reads the state of processes from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_PF_EXITING: Final = 0x4
"""include/linux/sched.h"""


@dataclass(frozen=True, slots=True)
class Process:
    """Identifies one process for ever: a pid is reused, the pair of pid and start time is not (within one boot)."""

    pid: int
    start_ticks: int
    """Clock ticks since boot (/proc/PID/stat, field 22)."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The content of /proc/PID/stat for one process, as `read_stat` read it once."""

    process: Process
    parent: int
    """Pid of the parent."""
    session: int
    """Session id: the pid of the process that began the session."""
    has_ended: bool
    """No thread of the process runs. A zombie whose other threads still run has not ended, since they hold memory."""
    is_exiting: bool
    """The process or its main thread is ending, and no longer shows its environment, working folder and open files."""


def boot_id() -> str:
    """Return an id that changes with every boot of the host. Compare start times (`Process`) only within one boot."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_stat(pid: int) -> Stat | None:
    """Read /proc/PID/stat; None if there is no such process. A zombie still has one."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name is in parentheses, and may itself contain parentheses.
    fields = text[text.rindex(b")") + 2 :].split()
    state, parent, session, flags, threads, start_ticks = (fields[number] for number in (0, 1, 3, 6, 17, 19))
    has_ended = state in {b"Z", b"X"} and int(threads) <= 1
    return Stat(Process(pid, int(start_ticks)), int(parent), int(session), has_ended, bool(int(flags) & _PF_EXITING))


def list_stats() -> Iterator[Stat]:
    """Yield the state of every process on the host (of this PID namespace), including ended ones that were not reaped.
    Processes that end meanwhile are left out."""
    with os.scandir(PROC) as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        if (stat := read_stat(pid)) is not None:
            yield stat


def is_alive(process: Process) -> bool:
    """Return whether the process runs. A zombie none of whose threads runs does not, nor does another process that now
    has the pid."""
    stat = read_stat(process.pid)
    return stat is not None and stat.process == process and not stat.has_ended
