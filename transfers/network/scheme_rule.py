"""Which URLs downloads may ask, by their scheme. Pure."""

from __future__ import annotations

from common.network.address_rule import AllowedHosts, default_port


def find_scheme_refusal(scheme: str, host: str, port: int, allowed: AllowedHosts) -> str | None:
    """Return why a URL must not be asked because of its scheme; None: it may be asked. `https` may be asked at every
    host, `http` only at the hosts and ports in `allowed`, and no other scheme at any."""
    if not default_port(scheme):
        return f"{scheme}: is not a scheme of downloads"
    if scheme == "http" and not allowed.has(host, port):
        return "the connection would not be encrypted (http)"
    return None
