"""Listening on one port at several addresses or names, and the setting that lists them."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

_SCHEME: Final = "unix:"

_LOOPBACK_OF_WILDCARD: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not listened on
"""Wildcard address to the address at which a client on this machine reaches a server that listens there."""
_NOT_OF_THIS_MACHINE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_PORT_TRIES: Final = 20
"""Tries to find a port that is free at every address, where the port is 0."""


class ListenError(Exception):
    """An address cannot be listened on, or a name resolves to no address. The text is the reason, without the address
    or the name, which is `host`."""

    def __init__(self, host: str, reason: str, *, is_unresolved: bool = False) -> None:
        super().__init__(reason)
        self.host = host
        """The address, or the name with the address that it resolved to."""
        self.is_unresolved = is_unresolved
        """Whether `host` is a name that resolves to no address."""


class HostAddress(NamedTuple):
    """One address of a host, as `resolve_host` returns it. A name may have several."""

    host: str
    """The address or the name as the setting has it."""
    family: int
    """`socket.AF_INET` or `socket.AF_INET6`."""
    socket_address: tuple[Any, ...]
    """Argument of `socket.bind`, with port 0."""

    @property
    def ip(self) -> str:
        """The address as text. A link-local address ends with its interface: `fe80::1%eth0`."""
        return str(self.socket_address[0])

    @property
    def is_wildcard(self) -> bool:
        """Whether the address is 0.0.0.0 or ::, which stands for all addresses of this machine."""
        return self.ip in _LOOPBACK_OF_WILDCARD


def split_hosts(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of addresses and names, in order, without duplicates and empty parts. Nothing is
    resolved or checked. Raises ValueError if no part is left."""
    hosts = tuple(dict.fromkeys(host.strip() for host in text.split(",") if host.strip()))
    if not hosts:
        raise ValueError("names no address")
    return hosts


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`: an address in 127.0.0.0/8, ::1, or the name `localhost`. Other names
    are not resolved and give False; nothing is raised."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def pick_local_host(hosts: Sequence[str]) -> str:
    """Return the host by which a client on this machine reaches a server that listens at all of `hosts`: the first
    loopback host (`is_loopback`), else 127.0.0.1 or ::1 for the first wildcard (0.0.0.0 or ::), else the first host.
    `hosts` must not be empty."""
    loopback_host = next(filter(is_loopback, hosts), None)
    wildcard = next((host for host in hosts if host in _LOOPBACK_OF_WILDCARD), None)
    return loopback_host or _LOOPBACK_OF_WILDCARD.get(wildcard or "") or hosts[0]


def resolve_host(host: str) -> list[HostAddress]:
    """Resolve an address or a name to all of its addresses; a name may block for as long as DNS takes. Never empty.
    Raises ListenError, with `is_unresolved`, where there is none."""
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ListenError(host, _reason_of(error), is_unresolved=True) from None
    return [HostAddress(host, family, address) for family, _, _, _, address in answers]


def select_addresses(addresses: Iterable[HostAddress]) -> list[HostAddress]:
    """Return the addresses to bind, in order, without duplicates. A wildcard (0.0.0.0 or ::) replaces the other
    addresses of its family."""
    by_place: dict[tuple[Any, ...], HostAddress] = {}
    for each in addresses:
        by_place.setdefault((each.family, each.socket_address), each)
    distinct_addresses = by_place.values()
    wildcard_families = {each.family for each in distinct_addresses if each.is_wildcard}
    return [each for each in distinct_addresses if each.is_wildcard or each.family not in wildcard_families]


def bind_listeners(hosts: Iterable[str], port: int) -> list[socket.socket]:
    """Bind a TCP socket to each address of `hosts` (those that `select_addresses` leaves), all with the same port.

    `port` 0: one that is free at all of them. The sockets are bound and do not listen yet; the caller closes them. On
    an error, none stays open. Blocks while names are resolved.

    If a name has addresses of this machine and others, only those of this machine are bound: `localhost` often has an
    IPv6 address where IPv6 is switched off. The socket for `::` takes IPv4 connections only if no IPv4 address is bound
    here, and the system lets it.

    Raises:
        ListenError: an address is taken or may not be bound, none of a host's addresses is one of this machine, or a
            name resolves to no address.
    """
    addresses = select_addresses(address for host in hosts for address in resolve_host(host))
    for _ in range(_PORT_TRIES if port == 0 else 0):
        try:
            return _bind_all(addresses, 0)
        except _PortTakenError:
            continue  # what was free at the first address is not at another
    return _bind_all(addresses, port)


class _PortTakenError(ListenError):
    pass


def _bind_all(addresses: Sequence[HostAddress], port: int) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    bound_hosts: set[str] = set()
    missing: dict[str, ListenError] = {}
    has_ipv4 = any(each.family == socket.AF_INET for each in addresses)
    try:
        for address in addresses:
            try:
                listener = _bind(address, port, only_ipv6=has_ipv4)
            except OSError as error:
                error_class = _PortTakenError if error.errno == errno.EADDRINUSE else ListenError
                told = error_class(_describe(address), _reason_of(error))
                if error.errno not in _NOT_OF_THIS_MACHINE:
                    raise told from None
                missing.setdefault(address.host, told)
            else:
                listeners.append(listener)
                bound_hosts.add(address.host)
                port = listener.getsockname()[1]
        for host, told in missing.items():
            if host not in bound_hosts:
                raise told
    except ListenError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bind(address: HostAddress, port: int, *, only_ipv6: bool) -> socket.socket:
    listener = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # connections inherit it, whatever the event loop
        if address.family == socket.AF_INET6 and address.is_wildcard and only_ipv6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has sockets of its own
        ip, _, *rest = address.socket_address
        listener.bind((ip, port, *rest))
    except OSError:
        listener.close()
        raise
    return listener


def _describe(address: HostAddress) -> str:
    return address.ip if address.ip == address.host else f"{address.host} ({address.ip})"


def _reason_of(error: OSError | UnicodeError) -> str:
    if not isinstance(error, OSError):
        return "not a name"
    # Failures to resolve have numbers of their own, below zero.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


BACKLOG: Final = 2048
"""Connections of clients that may wait to be accepted."""
LISTENER: Final = "listener"
"""Name, in `LISTEN_FDNAMES`, of a socket at which clients connect."""
READY: Final = "ready"
"""Name, there, of the descriptor at which a process that replaces another one writes a line once it serves."""
_FIRST_PASSED: Final = 3
"""The first descriptor that is passed on (SD_LISTEN_FDS_START)."""


def take_passed_files(environ: MutableMapping[str, str]) -> dict[str, list[int]]:
    """Return the descriptors that whoever started this process passes on, by their names, as sd_listen_fds(3) has it;
    empty: none. The caller closes them; programs that this process starts do not get them, nor the variables, which are
    removed from `environ`.

    The name is empty where the starter names none.
    """
    pid, count, names = (environ.pop(f"LISTEN_{each}", "") for each in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()) or not count.isdigit():
        return {}
    by_name: dict[str, list[int]] = {}
    name_of_place = dict(enumerate(names.split(":")))
    for place in range(int(count)):
        descriptor = _FIRST_PASSED + place
        os.set_inheritable(descriptor, False)
        by_name.setdefault(name_of_place.get(place, ""), []).append(descriptor)
    return by_name


def open_listeners(
    hosts: Sequence[str], port: int, passed: Iterable[int], note: Callable[[str], None]
) -> list[socket.socket]:
    """Return the sockets of `passed`, descriptors of `take_passed_files`, where these are for just these hosts and
    this port (0: any). Else close them, say so by `note`, and bind others (`bind_listeners`, also for errors)."""
    sockets = [socket.socket(fileno=descriptor) for descriptor in passed]
    if not sockets:
        return bind_listeners(hosts, port)
    bound_port = port or sockets[0].getsockname()[1]
    present = {(each.family, (each.getsockname()[0].partition("%")[0], each.getsockname()[1])) for each in sockets}
    addresses = select_addresses(address for host in hosts for address in resolve_host(host))
    wanted = {(each.family, (each.ip.partition("%")[0], bound_port)): each.host for each in addresses}
    if present <= wanted.keys() and {wanted[each] for each in present} == set(wanted.values()):
        return sockets
    for each in sockets:
        each.close()
    places = ", ".join(sorted(f"{host}:{number}" for _, (host, number) in present))
    note(f"the sockets that were passed on listen on {places}, and the settings name other addresses: these are opened")
    return bind_listeners(hosts, port)


def join_address(host: str, port: int) -> str:
    """Return host and port as URLs have them: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_listen_address(listen: str) -> Path | tuple[str, int]:
    """Return the socket's path for `unix:<path>`, or host and port for `host:port` and `[IPv6]:port` (the host without
    its brackets).

    Raises ValueError for an empty path or host, a port that is not a number from 1 to 65535, and an IPv6 address
    without brackets. Nothing is resolved or opened.
    """
    path = find_socket_path(listen)
    if path is not None:
        if not path or "\0" in path:
            raise ValueError("names no path after `unix:`")
        return Path(path)
    host, _, port = listen.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not host or not is_port or is_bracketed != (":" in host):
        raise ValueError(f"must be `unix:<path>` or `host:port`, is `{listen}`")
    return host, int(port)


def find_socket_path(address: str) -> str | None:
    """Return what follows `unix:`, unchecked and perhaps empty; None: the address does not begin with `unix:`."""
    return address.removeprefix(_SCHEME) if address.startswith(_SCHEME) else None
