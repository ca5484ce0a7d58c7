"""What /proc says of processes (Linux)."""

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
    """One process for as long as it lives: a pid is given out again, a pid with a start time is not."""

    pid: int
    start_ticks: int
    """Clock ticks since boot (/proc/PID/stat, field 22)."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says of a process."""

    process: Process
    parent: int
    session: int
    has_ended: bool
    """Nothing of it runs. A zombie whose other threads still run has not ended: they hold its memory."""
    is_exiting: bool
    """It, or its main thread, is past the point where it still shows an environment, a folder or open files."""


def boot_id() -> str:
    """Changes with every boot of the host: start times are comparable within one boot only."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_stat(pid: int) -> Stat | None:
    """None: there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name is in parentheses and may hold anything, parentheses too.
    fields = text[text.rindex(b")") + 2 :].split()
    state, parent, session, flags, threads, start_ticks = (fields[number] for number in (0, 1, 3, 6, 17, 19))
    has_ended = state in {b"Z", b"X"} and int(threads) <= 1
    return Stat(Process(pid, int(start_ticks)), int(parent), int(session), has_ended, bool(int(flags) & _PF_EXITING))


def list_stats() -> Iterator[Stat]:
    """Every process that there is."""
    with os.scandir(PROC) as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        if (stat := read_stat(pid)) is not None:
            yield stat


def is_alive(process: Process) -> bool:
    """Whether it runs; a zombie does not."""
    stat = read_stat(process.pid)
    return stat is not None and stat.process == process and not stat.has_ended
