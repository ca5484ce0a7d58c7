"""Which addresses may be connected to on behalf of somebody who names a host. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})
"""Third quarter of an IPv6 address that carries an IPv4 address in the fourth (RFC 5214)."""
_SPECIAL: Final = (
    # Special-purpose registries of IANA, where Python's `ipaddress` does not know them, or not in each version.
    ipaddress.IPv4Network("192.88.99.0/24"),
    ipaddress.IPv6Network("64:ff9b:1::/48"),
    ipaddress.IPv6Network("100:0:0:1::/64"),
    ipaddress.IPv6Network("3fff::/20"),
    ipaddress.IPv6Network("5f00::/16"),
)
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Hosts that the operator named: downloads may connect to them wherever their addresses are, and without
    encryption."""

    hosts: frozenset[tuple[str, int | None]] = frozenset()
    """Host in lower case, and its port; None: every port."""

    def has(self, host: str, port: int) -> bool:
        """Return whether the operator named this host, either with this port or without a port. Case and a dot at the
        end do not count."""
        name = host.lower().rstrip(".")
        return (name, port) in self.hosts or (name, None) in self.hosts


def parse_allowed_hosts(text: str) -> AllowedHosts:
    """Parse hosts that are separated by commas, each with or without `:port`; an IPv6 address must be in brackets.
    Empty text gives no hosts.

    Raises:
        ValueError: an entry is neither a host nor a host and a port.
    """
    hosts = set()
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = entry.rpartition(":")
        if not colon or entry.endswith("]"):
            host, port = entry, ""
        if (
            not host
            or "/" in host
            or _has_bare_colon(host)
            or (colon and host == entry[:-1])
            or (port and not _is_port(port))
        ):
            raise ValueError(f"{entry!r:.100} is neither a host nor HOST:PORT")
        hosts.add((host.strip("[]").lower().rstrip("."), int(port) if port else None))
    return AllowedHosts(frozenset(hosts))


def find_refusal(address: Address) -> str | None:
    """Return why the address must not be connected to; None: it is on the public internet, and may be.

    An IPv6 address that carries an IPv4 address (mapped, compatible, NAT64, 6to4, Teredo, ISATAP) is also refused if
    the IPv4 address is.
    """
    for each in _judged_addresses(address):
        if (word := _name_range(each)) is not None:
            return f"{address} is {word}" if each == address else f"{address} stands for {each}, which is {word}"
    return None


def default_port(scheme: str) -> int:
    """Return the port of `http` or `https`; 0 for any other scheme."""
    return _PORTS.get(scheme, 0)


def find_refused(addresses: Iterable[Address]) -> str | None:
    """Return why a host with these addresses must not be connected to: the reason of the first that `find_refusal`
    refuses. None: all may be connected to."""
    return next((reason for address in addresses if (reason := find_refusal(address)) is not None), None)


def _judged_addresses(address: Address) -> list[Address]:
    """The addresses that a packet to `address` may end at."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    low = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped is not None or address in _NAT64:
        return [low]
    judged: list[Address] = [address]
    if address.sixtofour is not None:
        judged.append(address.sixtofour)
    if address.teredo is not None:
        judged.extend(address.teredo)
    if int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
        judged.append(low)
    return judged


def _name_range(address: Address) -> str | None:
    named = (
        ("unspecified", address.is_unspecified),
        ("loopback", address.is_loopback),
        ("link-local", address.is_link_local),
        ("multicast", address.is_multicast),
        ("private", address.is_private or (isinstance(address, ipaddress.IPv6Address) and address.is_site_local)),
        ("reserved", address.is_reserved),
        ("not on the public internet", not address.is_global or any(address in each for each in _SPECIAL)),
    )
    return next((word for word, applies in named if applies), None)


def _has_bare_colon(host: str) -> bool:
    """Whether an IPv6 address stands without its brackets, so that its end may be meant as a port or not."""
    return ":" in host and not (host.startswith("[") and host.endswith("]"))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536
