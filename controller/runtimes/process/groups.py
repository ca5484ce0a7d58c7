"""The processes that belong to a replica: found, watched and ended. Linux only: it uses /proc and pidfds.

An engine leads a session of its own, so its children can be found by the session id. That alone is not enough: ids are
reused, children may start sessions of their own, and some overwrite their environment (those of vLLM, with
setproctitle). So a process belongs to a replica if it is

- the leader, by pid and start time; or
- in the leader's session while the leader still has its pid; after that, only if its working folder or its output is
  the replica's too; or
- in any session, with the replica's start id in its environment.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
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
    """Read /proc/PID/stat; None if there is no such process, or it is hidden (`hidepid=1`) and so another user's. A
    zombie still has one."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
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


POLL_S: Final = 0.05
"""Seconds between two checks of a process where the kernel or a seccomp filter allows no pidfds."""
NO_PIDFDS: Final = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES})
"""Errors of `pidfd_open` that mean that this system allows no pidfds."""


class ExitWatch:
    """Calls `on_exit` in the event loop, once for each added process that has ended. A process that ended before it was
    added is reported at the loop's next turn. Create the watch in the event loop, use it there only, and close it. It
    does not reap children."""

    def __init__(self, on_exit: Callable[[Process], None]) -> None:
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._fds: dict[Process, int] = {}
        self._timers: dict[Process, asyncio.Handle] = {}

    def add_process(self, process: Process) -> None:
        """Watch a process, which need not be a child. Does nothing if it is watched already. Raises OSError if a pidfd
        cannot be opened for another reason than that this system allows none, as with too many open files."""
        if process in self._fds or process in self._timers:
            return
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self._report_soon(process)
            return
        except OSError as error:
            if error.errno not in NO_PIDFDS:
                raise
            self._poll(process)
            return
        if not is_alive(process):  # it has ended, and the pid may be another process's by now
            os.close(fd)
            self._report_soon(process)
            return
        self._fds[process] = fd
        self._loop.add_reader(fd, self._report_exit, process)

    def discard_process(self, process: Process) -> None:
        """Stop watching a process. Does nothing if it is not watched."""
        if (fd := self._fds.pop(process, None)) is not None:
            self._loop.remove_reader(fd)
            os.close(fd)
        if (timer := self._timers.pop(process, None)) is not None:
            timer.cancel()

    def close(self) -> None:
        """Stop watching all processes; `on_exit` is not called for them. The watch can be used again."""
        for process in (*self._fds, *self._timers):
            self.discard_process(process)

    def _report_soon(self, process: Process) -> None:
        self._timers[process] = self._loop.call_soon(self._report_exit, process)

    def _poll(self, process: Process) -> None:
        self._timers[process] = self._loop.call_later(
            POLL_S, self._poll if is_alive(process) else self._report_exit, process
        )

    def _report_exit(self, process: Process) -> None:
        self.discard_process(process)
        self._on_exit(process)


async def wait_any(processes: Iterable[Process], timeout_s: float) -> None:
    """Wait until one of the processes has ended, and for `timeout_s` seconds at most; without processes, for that long.
    Returns nothing, so the caller must look what has ended. Raises OSError if a pidfd cannot be opened although this
    system allows pidfds, as with too many open files."""
    end_event = asyncio.Event()
    watch = ExitWatch(lambda _: end_event.set())
    try:
        for process in processes:
            watch.add_process(process)
        async with asyncio.timeout(timeout_s):
            await end_event.wait()
    except TimeoutError:
        return
    finally:
        watch.close()


START_ENV: Final = "ROUNDHOUSE_START"
"""Environment variable of an engine that holds its start id."""
ENVIRONMENT_READS: Final = 10
"""Tries to read an environment that is empty."""
ENVIRONMENT_PAUSE_S: Final = 0.001
"""Seconds between these tries. While a process starts a program (execve), its environment reads as empty for less than
a millisecond."""
RESCAN_S: Final = 1.0
"""Seconds after SIGKILL until the processes are searched again, if no end was noticed before."""


@dataclass(frozen=True, slots=True)
class ReplicaMark:
    """What identifies the processes of a replica, as its record has it. A process belongs to the replica if it is the
    leader; if it is in the leader's session (once the leader is gone, only with the replica's working folder or log);
    or if its environment has the start id."""

    start_id: str
    """Value of `START_ENV` in the engine's environment."""
    work_dir: Path
    """The engine's working folder."""
    log: Path
    """The file to which the engine's output goes."""
    leader: Process | None
    """The engine's own process, which leads the session. None: not known, since the start was interrupted."""


def group_members(mark: ReplicaMark, known_processes: Collection[Process] = ()) -> list[Process]:
    """Return all running processes of a replica, in no particular order, including those of `known_processes` that
    still run. Empty: all have ended. Blocks, since it reads all of /proc. This process itself is never included. A
    process that is ending no longer shows its files or environment, but may still hold memory, so it counts if it is in
    the session. Should the session id be another's by now, no harm is done, since the process is ending anyway."""
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
    """Return the engine's process of an interrupted start: the replica's process that leads a session; None if there is
    none. Blocks: reads all of /proc."""
    for process in group_members(mark):
        stat = read_stat(process.pid)
        if stat is not None and stat.process == process and stat.session == process.pid:
            return process
    return None


def has_variable(pid: int, name: str, value: str) -> bool:
    """Return whether the environment with which a process was started has this variable with this value. False also if
    the environment cannot be read, as of an ended process or another user's."""
    try:
        environment = _read_environment(PROC / str(pid))
    except OSError:  # it has ended, or belongs to another user
        return False
    return f"{name}={value}".encode() in environment.split(b"\0")


def _read_environment(folder: Path) -> bytes:
    for _ in range(ENVIRONMENT_READS):
        if environment := (folder / "environ").read_bytes():
            return environment
        (folder / "exe").readlink()  # raises for the kernel's own threads
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
    """Send a signal to exactly this process. Does nothing if it is gone, even if its pid was reused. Raises
    PermissionError if the process belongs to another user, and OSError if a pidfd cannot be opened although this system
    allows pidfds, as with too many open files."""
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
    """End every process of a replica: SIGTERM first, SIGKILL after `grace_s` seconds.

    Returns when all are gone, however long that takes, since a process that is stuck in a driver still holds its
    memory. Calls `reap` whenever a process may have ended, and at the end, so that the caller can collect its child.
    While the engine itself lives, processes that it starts after its SIGTERM get no signal. Raises PermissionError if a
    process belongs to another user, and OSError as `send_signal` and `wait_any` do. Where this call is cancelled, the
    processes that still run are left as they are.
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
        # While the engine lives, do not signal processes that it starts during its shutdown, as for cleaning up.
        if not signalled_processes or mark.leader not in live_processes:
            for process in set(live_processes) - signalled_processes:
                send_signal(process, signum)
            signalled_processes.update(live_processes)
        wait_s = deadline - loop.time() if signum is signal.SIGTERM else RESCAN_S
        await wait_any(live_processes, max(0.0, wait_s))
        reap()
    reap()
