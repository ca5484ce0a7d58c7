"""Which processes belong to a replica, and how they are ended. Linux: /proc and pidfds.

An engine leads a session of its own, so that its children are found by the session's number. That alone is not
enough: numbers are given out again, children may start sessions of their own, and some overwrite their environment
(vLLM's, with setproctitle). So a process counts as the replica's when it is

- the leader, by pid and start time; or
- in the leader's session, while the leader still holds its pid; afterwards, when its working folder or its output
  are the replica's too; or
- anywhere, with the replica's start id in its environment.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.runtimes.process.exit_watch import NO_PIDFDS, wait_any
from controller.runtimes.process.stat import PROC, Process, is_alive, list_stats, read_stat

START_ENV: Final = "ROUNDHOUSE_START"
"""Environment variable of an engine that holds its start id."""
ENVIRONMENT_READS: Final = 10
ENVIRONMENT_PAUSE_S: Final = 0.001
"""While a process starts a program (execve), its environment reads as empty, for less than a millisecond."""
RESCAN_S: Final = 1.0
"""How long after SIGKILL until the processes are counted again, should no end be seen before."""


@dataclass(frozen=True, slots=True)
class ReplicaMark:
    """What a replica's processes are known by."""

    start_id: str
    work_dir: Path
    log: Path
    leader: Process | None
    """None: not known, the start was interrupted."""


def group_members(mark: ReplicaMark, known_processes: Collection[Process] = ()) -> list[Process]:
    """Every process of a replica that runs, `known_processes` of its own included.

    A process that is about to end shows no mark any longer, and may still hold memory; so in the session, which it
    still shows, it counts. Should the session be somebody else's by now, no harm is done: it is ending anyway.
    """
    stats_by_pid = {stat.process.pid: stat for stat in list_stats()}
    session_id = mark.leader.pid if mark.leader else None
    holder = stats_by_pid.get(session_id) if session_id is not None else None
    is_leader_alive = holder is not None and holder.process == mark.leader
    processes = []
    for stat in stats_by_pid.values():
        if stat.has_ended or stat.process.pid == os.getpid():
            continue
        pid = stat.process.pid
        in_session = session_id is not None and stat.session == session_id
        if (
            stat.process in known_processes
            or (in_session and (is_leader_alive or stat.is_exiting or _uses_own_files(pid, mark)))
            or has_variable(pid, START_ENV, mark.start_id)
        ):
            processes.append(stat.process)
    return processes


def find_leader(mark: ReplicaMark) -> Process | None:
    """The engine of an interrupted start: the process with its start id that leads a session."""
    for process in group_members(mark):
        stat = read_stat(process.pid)
        if stat is not None and stat.process == process and stat.session == process.pid:
            return process
    return None


def has_variable(pid: int, name: str, value: str) -> bool:
    """Whether a process was started with this environment variable. False also where that cannot be read."""
    try:
        environment = _read_environment(PROC / str(pid))
    except OSError:  # it ended meanwhile, or it is another user's
        return False
    return f"{name}={value}".encode() in environment.split(b"\0")


def _read_environment(folder: Path) -> bytes:
    for _ in range(ENVIRONMENT_READS):
        if environment := (folder / "environ").read_bytes():
            return environment
        (folder / "exe").readlink()  # the kernel's own threads have none
        time.sleep(ENVIRONMENT_PAUSE_S)
    return b""


def _uses_own_files(pid: int, mark: ReplicaMark) -> bool:
    for link, target in (("cwd", mark.work_dir), ("fd/1", mark.log), ("fd/2", mark.log)):
        try:
            if (PROC / str(pid) / link).readlink() == target:
                return True
        except OSError:
            continue
    return False


def send_signal(process: Process, signum: signal.Signals) -> None:
    """Signal exactly this process: nothing happens when it is gone, even if its pid was given out again.

    Raises PermissionError when it belongs to another user.
    """
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError as error:
        if error.errno not in NO_PIDFDS:
            raise
        if is_alive(process):
            os.kill(process.pid, signum)
        return
    try:
        if is_alive(process):
            signal.pidfd_send_signal(fd, signum)
    except ProcessLookupError:
        return
    finally:
        os.close(fd)


async def end_processes(mark: ReplicaMark, grace_s: float, reap: Callable[[], object]) -> None:
    """End every process of a replica: SIGTERM, after `grace_s` SIGKILL. Returns when all are gone, however long it
    takes: a process that is stuck in a driver still holds its memory.

    `reap` is called whenever one may have ended, to collect our own child.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_s
    signum = signal.SIGTERM
    known_processes: set[Process] = set()
    signalled_processes: set[Process] = set()
    while live_processes := await asyncio.to_thread(group_members, mark, known_processes):
        known_processes.update(live_processes)
        if signum is signal.SIGTERM and loop.time() >= deadline:
            signum = signal.SIGKILL
            signalled_processes.clear()
        # What an engine starts to clean up behind itself is left to it, as long as it lives.
        if not signalled_processes or mark.leader not in live_processes:
            for process in set(live_processes) - signalled_processes:
                send_signal(process, signum)
            signalled_processes.update(live_processes)
        wait_s = deadline - loop.time() if signum is signal.SIGTERM else RESCAN_S
        await wait_any(live_processes, max(0.0, wait_s))
        reap()
    reap()
