"""Connections to addresses that somebody else names: to those that the rule allows. `answers` reads what comes back."""

from __future__ import annotations

import ipaddress
import queue
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakSet

import httpcore2
import httpx2

from common.network.address_rule import Address, AllowedHosts, default_port, find_refused


class AddressRefusedError(Exception):
    """A host must not be connected to. The message names the host and the reason."""


class InterruptedConnectionError(Exception):
    """The connections were ended from this side, by `CheckedBackend.interrupt`."""


Resolver = Callable[[str, int], Sequence[str]]
"""Host and port to addresses as text, the preferred ones first. May raise OSError."""
DEFAULT_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How slow a peer may be: a request whose answer brings fewer than `least_bytes` in `window_s` of waiting fails.
    Time in which nobody waits for the peer does not count."""

    window_s: float = 30.0
    """Seconds."""
    least_bytes: int = 30 * 1024


def resolve_addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a host as text, in the order of the system's resolver, each once. Blocks, without a limit
    of time. Raises OSError if the host has none, and UnicodeError if its name cannot be one."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class CheckedBackend(httpcore2.NetworkBackend):
    """Network backend of `httpcore2` that resolves a name, checks all its addresses with `find_refused`, and connects
    to one of them; the name is not resolved again afterwards. The addresses of hosts in `allowed` are not checked.
    `resolver` runs in a thread of its own. A peer that is slower than `pace` is given up, in the middle of an answer's
    head, too: reading raises httpcore2.ReadTimeout. Safe for threads."""

    def __init__(self, allowed: AllowedHosts, resolver: Resolver = resolve_addresses, pace: Pace | None = None) -> None:
        """`pace` None: the default one."""
        self._allowed = allowed
        self._resolver = resolver
        self._pace = Pace() if pace is None else pace
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._is_interrupted = False

    def interrupt(self) -> None:
        """End all connections, and refuse new ones for good. A thread that reads finds the end of its connection at
        once, and one that writes or connects gets an error. Does not wait. May be called from any thread."""
        with self._lock:
            self._is_interrupted = True
            sockets = list(self._sockets)
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        """Connect to the first address of the host that answers. `timeout`: seconds for resolving and connecting
        together; None: 10 s (`DEFAULT_TIMEOUT_S`). `local_address` and `socket_options` are ignored. Blocks.

        Raises:
            AddressRefusedError: an address of a host that is not allowed is refused, or the resolver's answer is no
                IP address.
            InterruptedConnectionError: `interrupt` was called.
            httpcore2.ConnectError: the name does not resolve, or nothing answers.
            httpcore2.ConnectTimeout: it took too long.
        """
        ends_at = time.monotonic() + (DEFAULT_TIMEOUT_S if timeout is None else timeout)
        addresses = self._resolve(host, port, ends_at)
        if not self._allowed.has(host, port) and (reason := find_refused(addresses)) is not None:
            raise AddressRefusedError(f"{host} must not be connected to: {reason}")
        last: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return self._connect(address, port, ends_at)
            except TimeoutError:
                raise httpcore2.ConnectTimeout(f"{host} port {port} does not answer") from None
            except OSError as error:
                last = httpcore2.ConnectError(f"{host} port {port}: {error.strerror or error}")
        raise last

    def _connect(self, address: Address, port: int, ends_at: float) -> httpcore2.NetworkStream:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._note(connection)
            connection.settimeout(max(0.001, ends_at - time.monotonic()))
            connection.connect((str(address), port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            connection.close()
            raise
        return _Stream(connection, self._note, self._pace)

    def _note(self, connection: socket.socket) -> None:
        with self._lock:
            if self._is_interrupted:
                raise InterruptedConnectionError("the connections were ended")
            self._sockets = [each for each in self._sockets if each.fileno() != -1]
            self._sockets.append(connection)

    def _resolve(self, host: str, port: int, ends_at: float) -> list[Address]:
        """Ask the resolver in a thread of its own, for it knows no timeout."""
        answers: queue.SimpleQueue[Sequence[str] | OSError | UnicodeError] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put(self._resolver(host, port))
            except (OSError, UnicodeError) as error:
                answers.put(error)

        threading.Thread(target=ask, name="resolve", daemon=True).start()
        try:
            answer = answers.get(timeout=max(0.001, ends_at - time.monotonic()))
        except queue.Empty:
            raise httpcore2.ConnectTimeout(f"the name {host} is not resolved in time") from None
        if isinstance(answer, Exception):
            reason = answer.strerror if isinstance(answer, OSError) and answer.strerror else answer
            raise httpcore2.ConnectError(f"the name {host} does not resolve: {reason}")
        try:
            # A scoped address (fe80::1%eth0) is link-local whatever its scope.
            return [ipaddress.ip_address(each.partition("%")[0]) for each in answer]
        except ValueError as error:
            raise AddressRefusedError(f"{host} must not be connected to: {error}") from None


class OpenBackends:
    """All backends of one program, whose connections `interrupt` ends at the program's end. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._backends: WeakSet[CheckedBackend] = WeakSet()
        self._is_interrupted = False

    def add(self, backend: CheckedBackend) -> None:
        """Note a backend, so that `interrupt` interrupts it, too. If `interrupt` was called already, the backend is
        interrupted at once. Only a weak reference is kept."""
        with self._lock:
            self._backends.add(backend)
            is_late = self._is_interrupted
        if is_late:
            backend.interrupt()

    def interrupt(self) -> None:
        """End all connections of all backends, and refuse new ones, for good. Does not wait. May be called from any
        thread."""
        with self._lock:
            self._is_interrupted = True
            backends = list(self._backends)
        for each in backends:
            each.interrupt()


class _Stream(httpcore2.NetworkStream):
    """One connection, plain or encrypted."""

    def __init__(self, connection: socket.socket, note: Callable[[socket.socket], None], pace: Pace) -> None:
        self._socket = connection
        self._note = note
        self._pace = pace
        self._waited_s = 0.0
        """Seconds of the present window in which the peer was waited for."""
        self._received = 0
        """Bytes that came in them."""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._socket.settimeout(timeout)
        began_at = time.monotonic()
        try:
            part = self._socket.recv(max_bytes)
        except TimeoutError:
            raise httpcore2.ReadTimeout("no byte came in time") from None
        except OSError as error:
            raise httpcore2.ReadError(error.strerror or str(error)) from None
        if part:
            self._check_pace(len(part), time.monotonic() - began_at)
        return part

    def _check_pace(self, received: int, waited_s: float) -> None:
        self._received += received
        self._waited_s += waited_s
        if self._waited_s < self._pace.window_s:
            return
        if self._received < self._pace.least_bytes:
            raise httpcore2.ReadTimeout(f"only {self._received} bytes came in {self._waited_s:.0f} s")
        self._waited_s, self._received = 0.0, 0

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._waited_s, self._received = 0.0, 0  # another request begins
        self._socket.settimeout(timeout)
        try:
            self._socket.sendall(buffer)
        except TimeoutError:
            raise httpcore2.WriteTimeout("nothing could be sent in time") from None
        except OSError as error:
            raise httpcore2.WriteError(error.strerror or str(error)) from None

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        try:
            self._socket.settimeout(timeout)
            encrypted = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
            self._note(encrypted)
        except TimeoutError:
            self.close()
            raise httpcore2.ConnectTimeout("the encryption was not agreed in time") from None
        except OSError as error:
            self.close()
            raise httpcore2.ConnectError(f"no encrypted connection: {error}") from None
        return _Stream(encrypted, self._note, self._pace)

    def get_extra_info(self, info: str) -> Any:
        if info == "server_addr":
            return self._socket.getpeername()
        if info == "socket":
            return self._socket
        if info == "is_readable":
            return _is_readable(self._socket)
        return None


def _is_readable(connection: socket.socket) -> bool:
    """Whether an idle connection has something to read, which is its end."""
    if connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host in lower case, and port of a URL. Decides who may be asked, and who is sent a token."""

    scheme: str
    host: str
    port: int


def origin_of(url: httpx2.URL) -> Origin:
    """Return the origin of a URL; port 0 for a scheme that has no default."""
    return Origin(url.scheme, url.host.lower(), url.port or default_port(url.scheme))


class CheckedTransport(httpx2.HTTPTransport):
    """Transport of `httpx2` that checks the origin of every request, and the addresses of every host that it connects
    to, by a `CheckedBackend`. No proxy is asked."""

    def __init__(
        self,
        allowed: AllowedHosts,
        find_origin_refusal: Callable[[Origin], str | None],
        *,
        tls: ssl.SSLContext,
        resolver: Resolver,
        open_backends: OpenBackends,
        pace: Pace | None = None,
    ) -> None:
        """`allowed`: hosts whose addresses may be anywhere. `find_origin_refusal` returns why an origin must not be
        asked; None: it may be. `tls`: certificates that are trusted. `open_backends`: what ends the connections.
        `pace`: how slow a peer may be; None: the default."""
        super().__init__(verify=tls, trust_env=False)
        self._find_origin_refusal = find_origin_refusal
        self.backend = CheckedBackend(allowed, resolver, pace)
        open_backends.add(self.backend)
        self._pool = httpcore2.ConnectionPool(ssl_context=tls, network_backend=self.backend, max_connections=64)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request and return the answer, whose body is still to be read. Blocks. Raises AddressRefusedError
        where the origin or an address of its host is refused, InterruptedConnectionError where the backend was
        interrupted, and httpx2.TransportError where the request fails in another way."""
        origin = origin_of(request.url)
        refusal = self._find_origin_refusal(origin)
        if refusal is not None:
            raise AddressRefusedError(f"{origin.host} must not be connected to: {refusal}")
        return super().handle_request(request)
