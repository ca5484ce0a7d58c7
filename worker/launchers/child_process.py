"""What launchers share: their arguments, and the process that they start and end with."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from worker.errors import LoadError, PortTakenError

T = TypeVar("T")


class RaisingParser(argparse.ArgumentParser):
    """A parser without `--help` and abbreviations that raises ValueError for a wrong command line; argparse's own
    prints its usage and ends the process, also with `exit_on_error=False`, where an argument is missing."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise ValueError with `message`, argparse's description of what is wrong with the command line."""
        raise ValueError(message)


_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BLOCKED = (*_STOP_SIGNALS, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child of `supervise` ended: asked to or not, after it was ready or not, by which signal or exit code."""

    asked_for: bool
    """Whether a signal to this process asked for the end."""
    was_ready: bool
    """Whether the child had reported that it was ready."""
    signal: signal.Signals | None
    """The signal that killed it; None if it exited."""
    first_error: str | None
    """The first error in its log; None if there was none."""
    code: int | None = None
    """Its exit code; None if a signal killed it. The code is 1 unless the child raised SystemExit."""

    def explain(self, name: str, doing: str, cause: str) -> str:
        """Return one plain line about an end that nobody asked for. `name`: of the child. `doing`: what it did then,
        such as `serving`. `cause`: appended as it is (`: REASON`, or empty), except where SIGKILL ended the child."""
        if self.signal == signal.SIGKILL:
            return f"{name} was killed while {doing}: probably out of memory"
        crashed = "ended" if self.signal is None else f"crashed ({self.signal.name})"
        return f"{name} {crashed} while {doing}{cause}"


def run_launcher(prepare: Callable[[], T], host: Callable[[T], tuple[int, str | None]]) -> int:
    """Run a launcher, and return the worker's exit code. `prepare` checks what is known before the start, and may raise
    LoadError (code 1), ValueError for a wrong command line (2) and PortTakenError (3). `host` gets what it returns,
    hosts the server until its end, and returns the code and the last line for stderr; None: nothing needs saying."""
    line: str | None
    try:
        prepared = prepare()
    except LoadError as error:
        code, line = 1, str(error)
    except PortTakenError as error:
        code, line = 3, str(error)
    except ValueError as error:
        code, line = 2, str(error)
    else:
        code, line = host(prepared)
    if line:
        sys.stderr.write(f"{line}\n")
    return code


def supervise(
    child: Callable[[int], None],
    error_in: Callable[[str], str | None],
    stop_signal: Callable[[], signal.Signals] = lambda: signal.SIGTERM,
    *,
    is_relayed: Callable[[str], bool] = lambda _: True,
) -> Ending:
    """Run `child` in a forked process, relay its stderr to this process's, block until it ends, and return how. SIGTERM
    or SIGINT to this process sends the child the signal that `stop_signal` returns; a child that ignores it is waited
    for. Call once, in the main thread, with no other threads: it sets signal handlers, which stay. Raises OSError if no
    process can be started.

    `child` gets a file descriptor and writes a byte to it once it is ready. It ends by SystemExit, whose code becomes
    its exit code; after a return, or another exception, whose traceback it writes to the log, the exit code is 1. In
    the child, SIGTERM and SIGINT have their default action, so that code that blocks the interpreter cannot delay its
    death. If this process is killed, the kernel kills the child. Children that the child leaves behind are killed: they
    may hold memory, and they keep its log open. `error_in` gets each line of the log, and returns the error that the
    line reports, or None. Lines of which `is_relayed` is False are not relayed.
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
    # Python calls a handler between two steps of its own. A signal that comes just before a system call that blocks
    # would wait for the end of that, so nothing here blocks but a poll that each signal ends.
    wake_read, wake_write = os.pipe()
    for descriptor in (wake_read, wake_write):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
    os.close(log_write)
    os.close(ready_write)
    first_error = _relay_log(_read_lines(log_read, wake_read), error_in, is_relayed)
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        _wait_for_any(wake_read)
        os.read(wake_read, _READ_BYTES)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, status = os.waitpid(pid, 0)
    was_ready = bool(os.read(ready_read, 1))
    killed_by = signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    return Ending(is_requested, was_ready, killed_by, first_error, code)


def die_with_parent(number: signal.Signals) -> None:
    """Make the kernel send the signal `number` to this process when its parent ends (PR_SET_PDEATHSIG). Children do not
    inherit this. If the parent ended before the call, no signal comes."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value)


def kill_descendants(pid: int, spare: int | None = None) -> None:
    """Send SIGKILL to all descendants of a process, except `spare` (None: nobody) and its descendants. Does not wait
    for their end. Processes that are gone already are no error.

    Python's resource trackers are left alone: they end by themselves once their users are gone, and first remove the
    shared memory that those have left.
    """
    for children_file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the process ended meanwhile
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
        if os.getppid() == parent:  # else the parent died before prctl
            child(ready)
    except SystemExit as exiting:
        code = exiting.code if isinstance(exiting.code, int) else 1
    except BaseException:  # noqa: BLE001 - this stack must not unwind into the parent's
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait_for_any(*descriptors: int) -> set[int]:
    """Return those of the descriptors that can be read, or are at their end. Blocks until there are any."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll()}


def _read_lines(log: int, wake: int) -> Iterator[bytes]:
    """Yield the lines of a log as they come, the last one perhaps without its end, and close it. What comes from `wake`
    is dropped."""
    rest = b""
    while True:
        readable = _wait_for_any(log, wake)
        if wake in readable:
            os.read(wake, _READ_BYTES)
        if log not in readable:
            continue
        data = os.read(log, _READ_BYTES)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line + b"\n"
    os.close(log)
    if rest:
        yield rest


def _relay_log(
    lines: Iterable[bytes], find_error: Callable[[str], str | None], is_relayed: Callable[[str], bool]
) -> str | None:
    first_error = None
    for line in lines:
        # A process may die in the middle of a line; the next line must not join it.
        full_line = line if line.endswith(b"\n") else line + b"\n"
        text = line.decode(errors="replace")
        if is_relayed(text):
            with contextlib.suppress(OSError):  # the engine must outlive the reader of its log
                sys.stderr.buffer.write(full_line)
                sys.stderr.flush()
        if first_error is None:
            first_error = find_error(text)
    return first_error
