"""Decides which addresses and port the mDNS advert names. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SERVICE_TYPE: Final = "_localllm._tcp.local."
SERVICE_NAME: Final = "LocalLLM"
TXT_RECORDS: Final = (("api", "openai-compat"), ("path", "/v1"), ("health", "/health"))
"""TXT records of the advert, which clients of this service type read."""

_BRACKETED: Final = re.compile(r"\[([^][]+)\](?::(.*))?")
_CONTAINER_INTERFACE: Final = re.compile(r"docker\d+|br-[0-9a-f]{12}|veth.*|virbr\d+|podman\d+|cni.*")


@dataclass(frozen=True, slots=True)
class AdvertisedAddress:
    """The setting `advertise_address`: the address under which other machines find the gateway. Made by `parse`, which
    checks it. `ip` has no brackets. `port` None: the port that the gateway listens on."""

    ip: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> AdvertisedAddress:
        """Parse `192.168.1.20`, `192.168.1.20:80`, `2001:db8::1` or `[2001:db8::1]:80`. Raises ValueError, with a
        reason for the operator, for anything else, a host name too, and for an address that no other machine could
        reach: a loopback, wildcard, multicast or IPv6 link-local one."""
        host, port = text.strip(), None
        if bracketed := _BRACKETED.fullmatch(host):
            host, port_text = bracketed.groups()
            port = None if port_text is None else _parse_port(port_text)
        elif host.count(":") == 1:
            host, _, port_text = host.partition(":")
            port = _parse_port(port_text)
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            raise ValueError(f"must be an IP address, with or without a port, is {text!r}") from None
        if not _is_reachable(host):
            raise ValueError(f"{address} is no address by which another machine reaches this one")
        return cls(str(address), port)


@dataclass(frozen=True, slots=True)
class Advert:
    """What the advert says: one service at the addresses `ips`, which are not empty and in no particular order. It is
    sent on the interfaces of this machine that have the addresses `interface_ips`."""

    ips: tuple[str, ...]
    port: int
    interface_ips: tuple[str, ...]
    """Addresses of this machine whose interfaces the advert is sent on. Not empty."""


def choose_advert(
    bound_ips: Sequence[str],
    local_ips: Sequence[str],
    port: int,
    *,
    advertised: AdvertisedAddress | None,
    is_in_container: bool,
) -> Advert | None:
    """Return what to advertise: the address `advertised` alone if it is set, else all addresses of this machine at
    which others reach the gateway. None: nothing.

    Nothing is advertised where the gateway listens on loopback addresses only; in a container, whose own addresses
    other machines do not reach, unless the setting names one; and while this machine has no address to advertise.

    Args:
        bound_ips: Addresses that the gateway listens on; wildcards (0.0.0.0, ::) stand for all of their family.
        local_ips: All addresses of this machine.
        port: The port that the gateway listens on.
        advertised: The setting `advertise_address`; None: not set.
        is_in_container: Whether this process runs in a container.

    Raises:
        ValueError: one of `bound_ips` or `local_ips` is no IP address.
    """
    reachable_ips = [ip for bound_ip in bound_ips for ip in _expand_wildcard(bound_ip, local_ips) if _is_reachable(ip)]
    interface_ips = tuple(sorted(set(reachable_ips)))
    if not interface_ips or (is_in_container and advertised is None):
        return None
    if advertised is not None:
        return Advert((advertised.ip,), advertised.port or port, interface_ips)
    return Advert(interface_ips, port, interface_ips)


def is_container_interface(name: str) -> bool:
    """Return whether an interface leads to containers or virtual machines of this machine, by its name, as Docker,
    Podman and libvirt choose names. Other machines do not reach addresses there."""
    return _CONTAINER_INTERFACE.fullmatch(name) is not None


def _expand_wildcard(ip: str, local_ips: Sequence[str]) -> Sequence[str]:
    if not ipaddress.ip_address(ip).is_unspecified:
        return (ip,)
    # A socket at :: takes IPv4 as well, unless 0.0.0.0 has a socket of its own; then its addresses count there.
    return [each for each in local_ips if ":" in ip or ":" not in each]


def _is_reachable(ip: str) -> bool:
    """Return whether other machines may reach an address. An IPv6 link-local one means nothing without the name of an
    interface, which differs between machines."""
    address = ipaddress.ip_address(ip)
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        address = address.ipv4_mapped or address
    is_scoped = address.version == 6 and address.is_link_local
    return not (address.is_loopback or address.is_unspecified or address.is_multicast or is_scoped)


def _parse_port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ValueError(f"must have a port from 1 to 65535, is {text!r}")
    return int(text)
