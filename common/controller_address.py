"""Where a controller listens, and where it is asked: the one place that reads `unix:` addresses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common.gateway_token import GATEWAY_HEADER, read_token

_SCHEME: Final = "unix:"
_SOCKET_BASE_URL: Final = "http://controller"
"""Stands in requests through a socket, where no host is needed."""


def split_listen_address(listen: str) -> Path | tuple[str, int]:
    """Return the socket's path of `unix:<path>`, or host and port of `host:port`, `[IPv6]:port`. Raises ValueError."""
    path = _socket_path(listen)
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


@dataclass(frozen=True, slots=True)
class ControllerAddress:
    """Where clients ask a controller, or a gateway that forwards to one."""

    base_url: str
    """What paths are appended to; no slash at its end."""
    socket_path: str | None = None
    """None: the controller listens on a port."""
    token_file: Path | None = None
    """Holds the token of gateways; None: requests show none, as through a socket."""

    @classmethod
    def parse(cls, url: str, token_file: Path | None = None) -> ControllerAddress:
        """Read `unix:<path>`, or `http://host:port` (or https), where requests show the token in `token_file`. Raises
        ValueError."""
        socket_path = _socket_path(url)
        if socket_path:
            return cls(_SOCKET_BASE_URL, socket_path)
        scheme, _, rest = url.partition(":")
        if scheme in ("http", "https") and rest.startswith("//") and rest.strip("/"):
            return cls(url.rstrip("/"), None, token_file)
        raise ValueError("must be http://host:port or unix:/path/to/controller.sock")

    def read_headers(self) -> dict[str, str]:
        """Read the headers that show the token; empty where there is none. Call for each request: the controller may
        make the token later, or replace it."""
        token = read_token(self.token_file) if self.token_file is not None else None
        return {GATEWAY_HEADER: token} if token is not None else {}


def _socket_path(address: str) -> str | None:
    """What follows `unix:`; None: the address does not begin so."""
    return address.removeprefix(_SCHEME) if address.startswith(_SCHEME) else None
