"""Turns the Docker daemon's events into wakeups: a thread listens, and connects again when the connection breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import docker
import requests
from docker.errors import DockerException, StreamParseError
from docker.types import CancellableStream

from controller.runtimes.base import RuntimeUnavailableError

FIRST_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 15.0
EVENTS: Final = ("create", "start", "die", "oom", "destroy", "pause", "unpause", "rename")
JOIN_S: Final = 5.0
_FAILURES: Final = (
    DockerException,
    StreamParseError,  # the connection ended within an event
    requests.RequestException,
    RuntimeUnavailableError,
    OSError,
    ValueError,
)
"""What listening ends with if the daemon, or the connection to it, fails."""

log = logging.getLogger(__name__)


class EventWatch:
    """Listens to the daemon's events of containers in a thread, which runs from `watch_wakeups` to `close`. Use an
    object for one `watch_wakeups`."""

    def __init__(self, connect: Callable[[], docker.APIClient], labels: list[str]) -> None:
        """Call it in the event loop; it raises RuntimeError elsewhere. `connect` returns a new client, which the watch
        closes, and may block. A container's events count if it has all `labels` (`key=value`)."""
        self._connect = connect
        self._filters = {"type": "container", "label": labels, "event": list(EVENTS)}
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._stream: CancellableStream[dict[str, Any]] | None = None
        self._thread = threading.Thread(target=self._listen, name="docker-events", daemon=True)

    async def watch_wakeups(self) -> AsyncIterator[None]:
        """Start the thread, and yield after events, one wakeup for one or more of them, until `close` is called.

        Also yield when the connection to the daemon was made, was lost or could not be made, since events may have been
        missed. Such failures raise nothing: the thread connects again, after 15 s (`MAX_BACKOFF_S`) at most. Call it
        once, since a thread cannot be started twice (RuntimeError). Closing the iterator calls `close`.
        """
        self._thread.start()
        try:
            while not self._stopped.is_set():
                await self._changed.wait()
                self._changed.clear()
                if not self._stopped.is_set():
                    yield
        finally:
            await self.close()

    async def close(self) -> None:
        """End the thread and the iteration of `watch_wakeups`. Waits for the thread, 5 s (`JOIN_S`) at most; it may end
        later. May be called repeatedly."""
        with self._lock:
            self._stopped.set()
            stream = self._stream
        if stream is not None:
            _shut(stream)
        self._changed.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, JOIN_S)

    def _listen(self) -> None:
        backoff = FIRST_BACKOFF_S
        while not self._stopped.is_set():
            try:
                if self._follow():
                    backoff = FIRST_BACKOFF_S
            except _FAILURES as error:
                log.debug("no events from the Docker daemon: %s", error)
            self._wake()
            self._stopped.wait(backoff)
            backoff = min(MAX_BACKOFF_S, 2 * backoff)

    def _follow(self) -> bool:
        """Listen until the connection ends. Return whether there was one."""
        client = self._connect()
        try:
            stream = client.events(filters=self._filters, decode=True)
            with self._lock:
                if self._stopped.is_set():
                    return False
                self._stream = stream
            self._wake()
            for _ in stream:
                self._wake()
            return True
        finally:
            with self._lock:
                self._stream = None
            client.close()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._changed.set)


def _shut(stream: CancellableStream[dict[str, Any]]) -> None:
    # A stream that ends by itself at this moment has no socket left to close.
    with contextlib.suppress(OSError, AttributeError, DockerException):
        stream.close()
