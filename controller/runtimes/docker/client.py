"""The Docker daemon: its client, the controller's own container as the daemon sees it, and the networks that engines
join.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import docker
import requests
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.errors import APIError, DockerException, NotFound, StreamParseError
from docker.types import CancellableStream
from docker.utils import kwargs_from_env, version_lt

from controller.artifacts.model_roots import ModelRoots
from controller.runtimes.base import RuntimeGoneError, RuntimeUnavailableError, StartError
from controller.runtimes.docker.container_spec import NETWORK_ROLE, HostContext, is_own, own_labels
from controller.runtimes.docker.start_problems import start_error

log = logging.getLogger(__name__)


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


class DaemonRefusedError(RuntimeUnavailableError):
    """The daemon answered a request with an error. `status` is the HTTP status (0: unknown), `message` the daemon's own
    sentence. Code that expects a refusal catches it. It is a RuntimeUnavailableError: uncaught, it counts as a daemon
    that does not work."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the Docker daemon refuses: {message} (status {status})")
        self.status = status
        self.message = message


class Daemon:
    """A client of one Docker daemon, which connects at the first call, and again after the connection was lost. The
    caller must close it. `url` None: DOCKER_HOST, else the local socket (`DEFAULT_URL`). Every request to the daemon
    times out after `timeout_s` seconds, and every `call`, including its wait for one of `threads` threads, after twice
    that. So a daemon that hangs delays its own callers only, and never the end of the program."""

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
        """Run `work` with the client in a thread, and return its result. `work` may send several requests. Raises
        RuntimeUnavailableError if the daemon does not answer in time, and its subclasses RuntimeGoneError if nothing
        listens at its address and DaemonRefusedError if the daemon answers with an error. Other errors of `work` are
        raised as they are. On a timeout or if the caller is cancelled, `work` goes on in its thread."""
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
    daemon's oldest if it no longer speaks `NEWEST_API`. `server` is its answer to `GET /version`. Raises
    RuntimeUnavailableError if the daemon is too old, or is no Docker daemon."""
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
    """Run `work` in a new daemon thread, which does not delay the end of the program, and return its result. `on_end`
    is called once, in the event loop, when the thread is done. If this call is cancelled, the thread goes on, and
    `on_end` comes later. Raises what `work` raises, and RuntimeUnavailableError if the system gives no thread; `on_end`
    was called then too. `name` is the thread's."""
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
        """Start the thread, and yield after events, one wakeup for one or more of them, until `close` is called. Also
        yield when the connection to the daemon was made, was lost or could not be made, since events may have been
        missed. Such failures raise nothing: the thread connects again, after 15 s (`MAX_BACKOFF_S`) at most. Call it
        once, since a thread cannot be started twice (RuntimeError). Closing the iterator calls `close`."""
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


MOUNTINFO: Final = Path("/proc/self/mountinfo")
DOCKERENV: Final = Path("/.dockerenv")

# The daemon mounts a container's own /etc/hostname, /etc/hosts and /etc/resolv.conf from there.
_ID_IN_MOUNTS: Final = re.compile(r"/containers/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf)\b")
_ID_AS_HOSTNAME: Final = re.compile(r"[0-9a-f]{12}")


class DockerSetupError(RuntimeUnavailableError):
    """The installation is set up in a way that cannot work, and waiting does not help: engines could not be reached, or
    not be given the models. The message says what to do. It is a RuntimeUnavailableError."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """How the daemon sees the controller: in which container it runs, how it reaches engines, and from where engines
    get the models folders. `container_id` None: it runs in no container of this daemon."""

    container_id: str | None
    publishes_ports: bool
    """Whether engines must publish a port on 127.0.0.1 so that the controller can reach them."""
    models: tuple[Mapping[str, Any], ...]
    """`Type` and `Source` of the mount that gives each models folder to engines, in the folders' order."""


def inspect_surroundings(client: docker.APIClient, roots: ModelRoots, network: str) -> Surroundings:
    """Ask the daemon how it sees this process. `roots` are the models folders, `network` is the name of the engines'
    network. Blocks. Raises DockerSetupError if engines could not be reached or not be given the models, and the errors
    of docker-py and requests."""
    own_container = _inspect_self(client)
    if own_container is None:
        _refuse_unknown_container(client)
        mounts = tuple({"Type": "bind", "Source": str(folder)} for folder in roots.resolve().folders)
        return Surroundings(None, publishes_ports=True, models=mounts)
    networks = own_container["NetworkSettings"]["Networks"] or {}
    is_on_host_network = "host" in networks
    if not is_on_host_network and network not in networks:
        raise DockerSetupError(
            f"the controller's container is not on the network {network} (it is on {', '.join(sorted(networks))}), so "
            "it could not reach the engines: add it there, or set ROUNDHOUSE_ENGINES_NETWORK"
        )
    own_mounts = own_container.get("Mounts") or []
    models = tuple(host_mount(own_mounts, PurePosixPath(folder)) for folder in roots.absolute().folders)
    return Surroundings(str(own_container["Id"]), publishes_ports=is_on_host_network, models=models)


def own_container_ids(mountinfo: str, hostname: str) -> list[str]:
    """Return what the id of this process's container may be, most likely first. Empty if nothing hints at a container.
    `mountinfo` is the content of /proc/self/mountinfo. A `hostname` of 12 hexadecimal digits counts as the beginning of
    an id. The daemon must be asked whether it knows the container."""
    container_ids = dict.fromkeys(_ID_IN_MOUNTS.findall(mountinfo))
    if _ID_AS_HOSTNAME.fullmatch(hostname) and not any(each.startswith(hostname) for each in container_ids):
        container_ids[hostname] = None
    return list(container_ids)


def host_mount(mounts: Sequence[Mapping[str, Any]], models: PurePosixPath) -> dict[str, Any]:
    """Return `Type` and `Source` of a mount that shows engines the same folder as `models`, a path in the controller's
    container. `mounts` are the `Mounts` of that container. Raises DockerSetupError if `models` is not on a mount that
    can be shared."""
    enclosing_mounts = [mount for mount in mounts if models.is_relative_to(str(mount["Destination"]))]
    if not enclosing_mounts:
        raise DockerSetupError(
            f"{models} is not a mount of the controller's container, so engines cannot be given it: mount the models "
            f"folder there (in compose: `volumes: [./models:{models}:ro]`)"
        )
    mount = max(enclosing_mounts, key=lambda each: len(PurePosixPath(str(each["Destination"])).parts))
    subpath = models.relative_to(str(mount["Destination"]))
    kind = mount.get("Type")
    if kind == "volume" and subpath == PurePosixPath() and mount.get("Name"):
        return {"Type": "volume", "Source": str(mount["Name"])}
    if kind in {"bind", "volume"} and mount.get("Source"):
        return {"Type": "bind", "Source": str(PurePosixPath(str(mount["Source"])) / subpath)}
    raise DockerSetupError(f"{models} is a mount of type {kind}, which engines cannot share: use a folder or a volume")


def _inspect_self(client: docker.APIClient) -> dict[str, Any] | None:
    mounts = MOUNTINFO.read_text() if MOUNTINFO.exists() else ""
    for container_id in own_container_ids(mounts, socket.gethostname()):
        try:
            container: dict[str, Any] = client.inspect_container(container_id)
        except NotFound:
            continue
        return container
    return None


def _refuse_unknown_container(client: docker.APIClient) -> None:
    # A daemon in the same container or machine as the controller sees the same files, so nothing needs translation.
    root = str(client.info().get("DockerRootDir") or "")
    if DOCKERENV.exists() and not (root and Path(root).is_dir()):
        raise DockerSetupError(
            "the controller runs in a container that the Docker daemon does not know, so it cannot find where its "
            "models are on the host: give it the socket of the daemon that runs it"
        )


def ensure_network(client: docker.APIClient, name: str, instance: str, *, publishes_ports: bool) -> None:
    """Create the network that engines join, unless it exists. Blocks. Call it before each start, one call at a time.

    A network created here lets nothing out: without address translation, answers to an engine's packets find no way
    back. It is not an internal network, since Docker publishes no ports on those. Of several networks of this name, the
    oldest is used, and others that this instance created are removed.

    Raises StartError if the network is missing and compose should have created it (`publishes_ports` is False), if the
    daemon refuses to create it, or if it exists and is internal although ports must be published. Raises the other
    errors of docker-py and requests as they are.
    """
    networks = _find_networks(client, name)
    if not networks:
        if not publishes_ports:
            raise StartError(f"Docker network {name} is missing: `docker compose up` creates it")
        _create_network(client, name, instance, {"com.docker.network.bridge.enable_ip_masquerade": "false"})
        networks = _find_networks(client, name)
    # Two controllers at once may create two networks of one name, although the daemon was told to check, and then the
    # daemon starts nothing on either (seen on 20.10). All controllers keep the oldest.
    for extra_network in networks[1:]:
        if is_own(extra_network.get("Labels"), instance, NETWORK_ROLE):
            with suppress(APIError):  # already removed, or in use by now
                client.remove_network(str(extra_network["Id"]))
    if publishes_ports and networks and networks[0].get("Internal"):
        raise StartError(
            f"Docker network {name} is internal, and on such a network Docker publishes no ports: remove it, or set "
            "ROUNDHOUSE_ENGINES_NETWORK to another name"
        )


def ensure_networks(client: docker.APIClient, host: HostContext, *, has_egress: bool) -> str | None:
    """Create the networks that a container joins, unless they exist, and return the name of the second one, by which it
    reaches the world; None: it has none, without `has_egress`. Blocks. Call it before each start, one call at a time.
    Raises as `ensure_network` does."""
    ensure_network(client, host.network, host.instance, publishes_ports=host.publishes_ports)
    if not has_egress:
        return None
    name = egress_network(host.instance)
    if not _find_networks(client, name):
        # Its members, which are not trusted, cannot reach each other.
        _create_network(client, name, host.instance, {"com.docker.network.bridge.enable_icc": "false"})
    return name


def egress_network(instance: str) -> str:
    """Return the name of the network that containers join, besides that of engines, if they may reach the world. It
    begins with a digit because a container on several networks has the default route of the one whose name sorts first
    (Docker before 28 knows no other order), and the network of engines leads nowhere."""
    return f"0-rh-{instance}-egress"


def remove_networks(client: docker.APIClient, name: str, instance: str) -> None:
    """Remove the network of engines, `name`, and that of `egress_network`, where this instance created them and no
    container is on them. Blocks. Raises nothing if the daemon refuses, and the errors of requests if it does not
    answer."""
    for each in (name, egress_network(instance)):
        remove_network(client, each, instance)


def remove_network(client: docker.APIClient, name: str, instance: str) -> None:
    """Remove a network of engines if this instance created it and no container is on it. Blocks. Otherwise do nothing.
    Raises nothing if the daemon refuses, and the errors of requests if it does not answer."""
    try:
        for network in _find_networks(client, name):
            details: Mapping[str, Any] = client.inspect_network(network["Id"])
            if is_own(details.get("Labels"), instance, NETWORK_ROLE) and not details.get("Containers"):
                client.remove_network(str(network["Id"]))
    except APIError as error:
        log.debug("network %s stays: %s", name, error)


def _find_networks(client: docker.APIClient, name: str) -> list[Mapping[str, Any]]:
    """Return the networks of exactly this name, oldest first. The daemon's own filter also matches parts of names."""
    networks: list[Mapping[str, Any]] = client.networks(names=[name])
    return sorted((each for each in networks if each["Name"] == name), key=lambda each: (each["Created"], each["Id"]))


def _create_network(client: docker.APIClient, name: str, instance: str, options: Mapping[str, str]) -> None:
    labels = own_labels(instance, NETWORK_ROLE)
    try:
        client.create_network(name, driver="bridge", options=dict(options), labels=labels, check_duplicate=True)
    except APIError as error:
        if error.status_code != 409:  # another controller was first
            raise start_error(refused_error_of(error).message, None) from error
