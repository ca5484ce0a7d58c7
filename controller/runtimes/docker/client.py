"""The connection to one Docker daemon: docker-py, run in threads of its own."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import docker
import requests
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.errors import APIError, DockerException
from docker.utils import kwargs_from_env, version_lt

from controller.runtimes.base import RuntimeGoneError, RuntimeUnavailableError

OLDEST_API: Final = "1.41"
"""Oldest version of the Docker Engine API that is supported, that of Docker Engine 20.10."""
NEWEST_API: Final = DEFAULT_DOCKER_API_VERSION
"""Newest version of the API that is spoken, the one that docker-py was written for."""
DEFAULT_URL: Final = "unix:///var/run/docker.sock"
"""Address of the daemon if neither the caller nor DOCKER_HOST names one."""

_WORDS: Final[Mapping[int, str]] = {
    errno.ENOENT: "there is no such socket: is Docker installed, and running?",
    errno.ECONNREFUSED: "nothing listens there: is Docker running?",
    errno.EACCES: "this user may not use it (the group `docker` may)",
}

_NOBODY_LISTENS: Final = (errno.ENOENT, errno.ECONNREFUSED)

T = TypeVar("T")
log = logging.getLogger(__name__)


class DaemonRefusedError(RuntimeUnavailableError):
    """The daemon answered a request with an error. `status` is the HTTP status (0: unknown), `message` the daemon's own
    sentence.

    Code that expects a refusal catches it. It is a RuntimeUnavailableError: uncaught, it counts as a daemon that does
    not work.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the Docker daemon refuses: {message} (status {status})")
        self.status = status
        self.message = message


class Daemon:
    """A client of one Docker daemon, which connects at the first call, and again after the connection was lost. The
    caller must close it. `url` None: DOCKER_HOST, else the local socket (`DEFAULT_URL`).

    Every request to the daemon times out after `timeout_s` seconds, and every `call`, including its wait for one of
    `threads` threads, after twice that. So a daemon that hangs delays its own callers only, and never the end of the
    program.
    """

    def __init__(self, url: str | None, *, timeout_s: float, threads: int) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._threads = threads
        self._free_threads = asyncio.Semaphore(threads)
        self._lock = threading.Lock()
        self._client: docker.APIClient | None = None
        self._closed = False

    @property
    def url(self) -> str:
        """Address of the daemon: the given one, else DOCKER_HOST as it is now, else the local socket
        (`DEFAULT_URL`)."""
        return self._url or os.environ.get("DOCKER_HOST") or DEFAULT_URL

    async def call(self, work: Callable[[docker.APIClient], T]) -> T:
        """Run `work` with the client in a thread, and return its result. `work` may send several requests.

        Raises RuntimeUnavailableError if the daemon does not answer in time, and its subclasses RuntimeGoneError if
        nothing listens at its address and DaemonRefusedError if the daemon answers with an error. Other errors of
        `work` are raised as they are. On a timeout or if the caller is cancelled, `work` goes on in its thread.
        """
        try:
            async with asyncio.timeout(2 * self._timeout_s):
                await self._free_threads.acquire()
                return await copy_detached(partial(self.run, work), "docker", on_end=self._free_threads.release)
        except TimeoutError:
            raise RuntimeUnavailableError(f"the Docker daemon at {self.url} does not answer: it hangs") from None

    def run(self, work: Callable[[docker.APIClient], T]) -> T:
        """Run `work` with the client in the calling thread, without the time limit of `call` and outside its threads.
        Blocks. Raises RuntimeUnavailableError if the daemon does not answer, and its subclasses RuntimeGoneError if
        nothing listens at its address and DaemonRefusedError if the daemon answers with an error. Other errors of
        `work` are raised as they are."""
        try:
            return work(self._get_client())
        except APIError as error:
            raise refused_error_of(error) from error
        except (DockerException, requests.RequestException, OSError) as error:
            self._disconnect()
            raise self._unavailable(error) from error

    def connect(self) -> docker.APIClient:
        """Return a new client, which the caller must close. Blocks. Raises the errors of docker-py and requests, and
        RuntimeUnavailableError if the daemon is too old or is no Docker daemon."""
        settings: dict[str, Any] = {"base_url": self._url} if self._url else dict(kwargs_from_env())
        settings.update(timeout=self._timeout_s, max_pool_size=self._threads)
        client = docker.APIClient(**settings, version=NEWEST_API)
        try:
            version = negotiate_version(client.version(api_version=False))
        except BaseException:
            client.close()
            raise
        if version == NEWEST_API:
            return client
        client.close()
        return docker.APIClient(**settings, version=version)

    def close(self) -> None:
        """Release the connections; calls under way may fail. Later calls raise RuntimeUnavailableError, except
        `connect`. May be repeated."""
        self._closed = True
        self._disconnect()

    def _get_client(self) -> docker.APIClient:
        with self._lock:
            if self._closed:
                raise RuntimeUnavailableError("the connection to the Docker daemon was closed")
            if self._client is None:
                self._client = self.connect()
            return self._client

    def _disconnect(self) -> None:
        # A daemon that comes back may speak another version of the API, so the next call negotiates it again.
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _unavailable(self, error: Exception) -> RuntimeUnavailableError:
        message = f"the Docker daemon at {self.url} does not answer: {plain_reason(error)}"
        is_gone = any(isinstance(each, OSError) and each.errno in _NOBODY_LISTENS for each in _causes_of(error))
        return RuntimeGoneError(message) if is_gone else RuntimeUnavailableError(message)


def refused_error_of(error: APIError) -> DaemonRefusedError:
    """Return docker-py's error about a refused request as a DaemonRefusedError; nothing is raised."""
    return DaemonRefusedError(error.status_code or 0, (error.explanation or str(error)).strip())


def negotiate_version(server: Mapping[str, Any]) -> str:
    """Choose the API version to speak with a daemon: `NEWEST_API`, or the daemon's newest if that is older, or the
    daemon's oldest if it no longer speaks `NEWEST_API`. `server` is its answer to `GET /version`.

    Raises RuntimeUnavailableError if the daemon is too old, or is no Docker daemon.
    """
    newest, oldest = str(server.get("ApiVersion", "")), str(server.get("MinAPIVersion") or OLDEST_API)
    if not newest:
        raise RuntimeUnavailableError("what answers is not a Docker daemon: it names no API version")
    if version_lt(newest, OLDEST_API):
        raise RuntimeUnavailableError(
            f"Docker Engine {server.get('Version', '')} is too old: it speaks API {newest}, and {OLDEST_API} (20.10) "
            "is needed"
        )
    version = NEWEST_API if version_lt(NEWEST_API, newest) else newest
    return oldest if version_lt(version, oldest) else version


def plain_reason(error: BaseException) -> str:
    """Return why a daemon could not be reached, in plain words for a timeout and for the common errors of the operating
    system, also where `error` only wraps them. For any other error, return its own text."""
    for each in _causes_of(error):
        if isinstance(each, OSError) and each.errno is not None and each.errno in _WORDS:
            return _WORDS[each.errno]
        if isinstance(each, requests.Timeout):
            return "it hangs"
    return str(error)


def _causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and all errors behind it, which libraries attach as a cause, a context or an argument."""
    seen_ids: set[int] = set()
    pending_errors: list[BaseException] = [error]
    while pending_errors:
        each = pending_errors.pop()
        if id(each) in seen_ids:
            continue
        seen_ids.add(id(each))
        yield each
        causes = (each.__cause__, each.__context__, *each.args, getattr(each, "reason", None))
        pending_errors += [cause for cause in causes if isinstance(cause, BaseException)]


async def copy_detached(work: Callable[[], T], name: str, *, on_end: Callable[[], None] | None = None) -> T:
    """Run `work` in a new daemon thread, which does not delay the end of the program, and return its result.

    `on_end` is called once, in the event loop, when the thread is done. If this call is cancelled, the thread goes on,
    and `on_end` comes later. Raises what `work` raises, and RuntimeUnavailableError if the system gives no thread;
    `on_end` was called then too. `name` is the thread's.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(deliver: Callable[[], None]) -> None:
        if on_end is not None:
            on_end()
        if not future.done():
            deliver()

    def body() -> None:
        try:
            result = work()
            deliver: Callable[[], None] = partial(future.set_result, result)
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits
            deliver = partial(future.set_exception, error)
        try:
            loop.call_soon_threadsafe(settle, deliver)
        except RuntimeError:
            log.debug("%s ended after the event loop", name)

    try:
        threading.Thread(target=body, name=name, daemon=True).start()
    except RuntimeError as error:  # the system gives no more threads
        if on_end is not None:
            on_end()
        raise RuntimeUnavailableError(f"no thread for a question to the Docker daemon: {error}") from error
    return await future
