"""A forked child whose end is always seen, explained, and never outlived; nor do its own children outlive it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BLOCKED = (*_STOP_SIGNALS, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child ended."""

    asked_for: bool
    """A signal to this process asked for the end."""
    was_ready: bool
    """The child had said that it was ready."""
    signal: signal.Signals | None
    """What killed it, if a signal did."""
    first_error: str | None
    """The first error line that it wrote."""
    code: int | None = None
    """What it exited with, if no signal killed it: 1, unless it raised SystemExit."""


def supervise(
    child: Callable[[int], None],
    error_in: Callable[[str], str | None],
    stop_signal: Callable[[], signal.Signals] = lambda: signal.SIGTERM,
) -> Ending:
    """Run `child` in a forked process and pass its stderr on, until it ends or SIGTERM or SIGINT asks for that.

    `child` gets a file descriptor and writes a byte to it once it is ready; it ends by returning. Its death by
    `stop_signal` needs nothing of it: it has the signal's default action, so that code which blocks the interpreter
    cannot delay it. Should this process be killed, the kernel kills the child. Children of its own that it leaves
    behind are killed: they may hold memory, and they hold its log open. `error_in` finds the error in a line.
    """
    log_read, log_write = os.pipe()
    ready_read, ready_write = os.pipe()
    is_requested = False
    # Blocked across the fork: a signal in between would be lost, or would run this process's handler in the child.
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.dup2(log_write, sys.stderr.fileno())
        for descriptor in (log_read, log_write, ready_read):
            os.close(descriptor)
        _become_child(child, ready_write, parent)

    def stop(signum: int, frame: object) -> None:
        nonlocal is_requested
        is_requested = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, stop_signal())

    def child_changed(signum: int, frame: object) -> None:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            kill_descendants(os.getpid(), spare=pid)

    for number in _STOP_SIGNALS:
        signal.signal(number, stop)
    signal.signal(signal.SIGCHLD, child_changed)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
    os.close(log_write)
    os.close(ready_write)
    first_error = _relay_log(log_read, error_in)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, status = os.waitpid(pid, 0)
    was_ready = bool(os.read(ready_read, 1))
    killed_by = signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    return Ending(is_requested, was_ready, killed_by, first_error, code)


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this signal should the parent die. It holds for this process, not for children."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value)


def kill_descendants(pid: int, spare: int | None = None) -> None:
    """SIGKILL to all processes below one, save `spare` and what is below that.

    Python's resource trackers end by themselves once their users are gone, and first remove the shared memory that
    those have left.
    """
    for children_file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            for child in map(int, children_file.read_text().split()):
                if child != spare and b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes():
                    kill_descendants(child)
                    os.kill(child, signal.SIGKILL)


def _become_child(child: Callable[[int], None], ready: int, parent: int) -> NoReturn:
    code = 1
    try:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
        if os.getppid() == parent:  # else it died before prctl
            child(ready)
    except SystemExit as exiting:
        code = exiting.code if isinstance(exiting.code, int) else 1
    except BaseException:  # noqa: BLE001 - this stack must not unwind into the parent's
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _relay_log(log: int, find_error: Callable[[str], str | None]) -> str | None:
    first_error = None
    with os.fdopen(log, "rb") as lines:
        for line in lines:
            # A process that dies in the middle of a line must not join the next one to it.
            full_line = line if line.endswith(b"\n") else line + b"\n"
            with contextlib.suppress(OSError):  # an engine outlives the reader of its log
                sys.stderr.buffer.write(full_line)
                sys.stderr.flush()
            if first_error is None:
                first_error = find_error(line.decode(errors="replace"))
    return first_error
