"""A real worker as a child process, and the requests that no client library makes: ones that leave early."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import psutil

from tests.support.wait import DEADLINE_S, eventually

__all__ = ["Worker", "alive", "eventually", "leave"]

FIGURE = "llamacpp:"


class Worker:
    """`python -m worker ARGS...`, its output in a file. Leaves no process behind."""

    def __init__(
        self, log: Path, port: int, *args: str, token: str | None = None, env: Mapping[str, str] | None = None
    ):
        self._start(log, port, [sys.executable, "-m", "worker", *args], env or {}, token)

    def _start(self, log: Path, port: int, argv: Sequence[str], env: Mapping[str, str], token: str | None) -> None:
        self.port = port
        self.token = token
        self._log = log
        with log.open("wb") as output:
            self.process = psutil.Popen(
                argv,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        family = self.family()
        if family and "COVERAGE_PROCESS_CONFIG" in os.environ:  # of a process that is killed, coverage learns nothing
            self.process.terminate()
            with suppress(psutil.TimeoutExpired):
                self.process.wait(DEADLINE_S)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def last_line(self) -> str:
        return self.log.rstrip().rpartition("\n")[2]

    def family(self) -> list[psutil.Process]:
        """The process and its children, as far as they live."""
        if not self.process.is_running():
            return []
        return [self.process, *self.process.children(recursive=True)]

    def ready(self) -> Worker:
        """Wait until `/health` answers 200; fail at once, with the log, if the process ends instead."""

        def healthy() -> bool:
            assert self.process.poll() is None, f"the worker ended with {self.process.returncode}:\n{self.log}"
            return self.status_of("/health") == 200

        eventually("the worker is healthy", healthy)
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; the exit code. Fails when a process of the family stays."""
        family = self.family()
        self.process.send_signal(number)
        code: int = self.process.wait(DEADLINE_S)
        eventually("the whole family is gone", lambda: not any(map(alive, family)))
        return code

    def ended(self) -> int:
        """Wait until the process ends by itself: its exit code."""
        code: int = self.process.wait(DEADLINE_S)
        return code

    def openai(self) -> openai.OpenAI:
        """The SDK as anybody uses it, without retries."""
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=self.token or "none", max_retries=0)

    def open(self, method: str, path: str, body: Any = None, token: str | None = None) -> http.client.HTTPConnection:
        """A request that was sent; whoever wants its answer calls `getresponse()`, `close()` leaves."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        token = token or self.token
        headers = {"authorization": f"Bearer {token}"} if token else {}
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, content, {**headers, "content-type": "application/json"})
        return connection

    def request(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, str]:
        """Status and text of an answer."""
        connection = self.open(method, path, body, token)
        try:
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def status_of(self, path: str) -> int | None:
        """The status of a GET, or None while nothing listens."""
        try:
            return self.request("GET", path)[0]
        except OSError:
            return None

    def figure(self, name: str) -> float:
        """One of the engine's own figures."""
        status, text = self.request("GET", "/metrics")
        assert status == 200, text
        values = dict(line.split() for line in text.splitlines() if line.startswith(FIGURE) and "{" not in line)
        return float(values[FIGURE + name])


def alive(process: psutil.Process) -> bool:
    """Whether a process still runs; one that only waits to be reaped does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def leave(connection: http.client.HTTPConnection) -> None:
    """Close a connection whose answer is not read: what a client does that gave up."""
    assert connection.sock is not None
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
