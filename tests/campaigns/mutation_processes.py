"""Forked processes that run tests, so many at a time."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

MEMORY_BYTES = 4 << 30
"""Of a process; one that fills a list for ever ends by it."""
FAILED = 70
"""The status of a process whose body raised something."""
PATIENCE_S = 5.0
"""For what runs when the time is over; what takes longer is run another time."""


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    body: Callable[[Path, int], int]
    """In the process: gets a folder of its own, and where to write what is told. Gives the status to end with."""
    allowed_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    job: Job
    status: int
    """As `os.waitstatus_to_exitcode` gives it."""
    told: str
    seconds: float


@dataclass(frozen=True, slots=True)
class _Child:
    job: Job
    pid: int
    began: float
    told: int

    @property
    def ends(self) -> float:
        return self.began + self.job.allowed_s


def run_jobs(
    jobs: Iterable[Job], workers: int, stop_at: float, scratch: Path, on_end: Callable[[Ended], Iterable[Job]]
) -> int:
    """Run each job in a process of its own until `stop_at` (Unix time). `on_end` gives further jobs. Returns how many
    jobs were left then."""
    waiting, children = deque(jobs), dict[int, _Child]()
    while waiting or children:
        while waiting and len(children) < workers and time.time() < stop_at:
            child = _fork(waiting.popleft(), scratch)
            children[os.pidfd_open(child.pid)] = child
        now = time.time()
        if not children or now > stop_at + PATIENCE_S:
            break
        soonest = min(stop_at + PATIENCE_S + 1, *(child.ends for child in children.values()))
        ended, _, _ = select.select(list(children), [], [], max(soonest - now, 0.01))
        late = [handle for handle, child in children.items() if child.ends <= time.time()]
        for handle in {*ended, *late}:
            waiting.extend(on_end(_end(handle, children.pop(handle), scratch)))
    for handle, child in children.items():
        _end(handle, child, scratch)
    return len(waiting) + len(children)


def _fork(job: Job, scratch: Path) -> _Child:
    reader, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run_child(job, scratch, told)
    os.close(told)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)
    return _Child(job, pid, time.time(), reader)


def _run_child(job: Job, scratch: Path, told: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os._exit(job.body(scratch / str(os.getpid()), told))
    except BaseException:  # a mutant may raise anything, and nothing may return into the driver
        os._exit(FAILED)


def _end(handle: int, child: _Child, scratch: Path) -> Ended:
    """Whatever the process started ends with it."""
    with contextlib.suppress(ProcessLookupError):
        # It was not waited for yet, so the number is its own, even if it has ended by itself.
        os.killpg(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    os.close(handle)
    is_told = bool(select.select([child.told], [], [], 0)[0])
    told = os.read(child.told, 4096).decode(errors="replace") if is_told else ""
    os.close(child.told)
    shutil.rmtree(scratch / str(child.pid), ignore_errors=True)
    return Ended(child.job, os.waitstatus_to_exitcode(status), told, time.time() - child.began)
