"""Notifies of the ends of processes by pidfds in the event loop, without polling."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterable
from typing import Final

from controller.runtimes.process.stat import Process, is_alive

POLL_S: Final = 0.05
"""Seconds between two checks of a process where the kernel or a seccomp filter allows no pidfds."""
NO_PIDFDS: Final = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES})
"""Errors of `pidfd_open` that mean that this system allows no pidfds."""


class ExitWatch:
    """Calls `on_exit` in the event loop, once for each added process that has ended.

    A process that ended before it was added is reported at the loop's next turn. Create the watch in the event loop,
    use it there only, and close it. It does not reap children.
    """

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
