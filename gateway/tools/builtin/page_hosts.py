"""Which URLs `fetch_url` may ask: those of its declared hosts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from common.network.address_rule import AllowedHosts, default_port, parse_allowed_hosts

_USUAL_PORTS = frozenset({80, 443})


class PageHosts:
    """The declared hosts. A host without a port stands for the ports 80 and 443; `*.example.org` for the hosts below
    example.org. Immutable."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """`hosts`: in lower case. Raises ValueError: an entry is no host."""
        declared = tuple(hosts)
        self._parents = tuple(each[1:] for each in declared if each.startswith("*."))
        self.literal: AllowedHosts = parse_allowed_hosts(",".join(each for each in declared if "*" not in each))
        """Hosts that are declared by their whole names: their addresses may be private."""

    def find_refusal(self, scheme: str, host: str, port: int) -> str | None:
        """Return why a URL must not be asked, as a clause without a full stop; None: it may be. Its address is not
        looked at. `host`: in lower case."""
        if not default_port(scheme):
            return f"{scheme}: is not a scheme of pages"
        name = host.rstrip(".")
        if (name, port) in self.literal.hosts:
            return None
        if (name, None) not in self.literal.hosts and not any(name.endswith(parent) for parent in self._parents):
            return "the host is not among those that are allowed"
        return None if port in _USUAL_PORTS else f"port {port} is not among those that are allowed"
