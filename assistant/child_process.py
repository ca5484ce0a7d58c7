"""A process that is given its input at once, and whose output is read to the end, started beside the event loop and at
a low priority."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Final

NICENESS: Final = 10
"""Added to the gateway's own, which comes first: its streams go on meanwhile."""
_PASSED_VARIABLES: Final = ("PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH")


def pick_python_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environ` that Python needs to start, and none that holds a token or an address."""
    return {name: environ[name] for name in _PASSED_VARIABLES if name in environ}


class ChildProcess:
    """Runs a program as the leader of a process group, which a thread of its own starts and waits for.

    asyncio's processes will not do: uvloop forks in the event loop, which copies the page tables of the whole gateway
    and holds up all streams for tens of milliseconds. `subprocess` starts the program by vfork, which copies nothing.
    The thread is a daemon: a process that hangs in the system does not keep the gateway from ending.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], data: bytes) -> None:
        """Start `command`, with `environment` as its whole environment and `data` as its standard input. Call this and
        all methods in one event loop. A failed start raises in `read_output`, not here."""
        self._command = command
        self._environment = environment
        self._data = data
        self._loop = asyncio.get_running_loop()
        self._output: asyncio.Future[bytes] = self._loop.create_future()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._early_signal: signal.Signals | None = None
        """Sent as soon as the process is there."""
        threading.Thread(target=self._run, name="child process", daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, or could not be started."""
        return self._output.done()

    async def wait_ended(self) -> None:
        """Wait until `has_ended`. Cancelling ends the wait alone."""
        await asyncio.wait([self._output])

    async def read_output(self) -> bytes:
        """Return the standard output when the process has ended. Cancelling ends the wait alone.

        Raises:
            OSError: the program could not be started.
        """
        return await asyncio.shield(self._output)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and to what it has started, or have it sent when the process has been started.
        Does nothing once the process has ended."""
        with self._lock:
            process = self._process
            if process is None:
                self._early_signal = number
        if process is not None:
            _send_to_group(process, number)

    def _run(self) -> None:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                # Ctrl-C reaches the gateway only, which ends the process. No session of its own: Linux may share out
                # processors by session first (autogroups), and then a priority counts within the session alone.
                process_group=0,
            )
        except OSError as error:
            self._tell(error)
            return
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PGRP, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
        with self._lock:
            self._process = process
            early_signal = self._early_signal
        if early_signal is not None:
            _send_to_group(process, early_signal)
        output, _ = process.communicate(self._data)
        self._tell(output)

    def _tell(self, result: bytes | OSError) -> None:
        with contextlib.suppress(RuntimeError):  # the gateway has ended meanwhile
            self._loop.call_soon_threadsafe(self._finish, result)

    def _finish(self, result: bytes | OSError) -> None:
        if isinstance(result, OSError):
            self._output.set_exception(result)
        else:
            self._output.set_result(result)


def _send_to_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
