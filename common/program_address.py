"""Where a program listens for others of Roundhouse, and is asked: the one place that reads `unix:` addresses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common.gateway_token import read_token
from common.internal_tokens import LINK_TOKEN

_SCHEME: Final = "unix:"
_SOCKET_BASE_URL: Final = "http://socket"
"""Stands in requests through a socket, where no host is needed."""


def split_listen_address(listen: str) -> Path | tuple[str, int]:
    """Return the socket's path for `unix:<path>`, or host and port for `host:port` and `[IPv6]:port` (the host without
    its brackets).

    Raises ValueError for an empty path or host, a port that is not a number from 1 to 65535, and an IPv6 address
    without brackets. Nothing is resolved or opened.
    """
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
class ProgramAddress:
    """Where a client connects to a controller, to a gateway that forwards to one, or to retrieval, and which token it
    sends. Opens no connection itself."""

    base_url: str
    """Beginning of every URL, without a slash at its end. For a socket, a placeholder host that is not resolved."""
    socket_path: str | None = None
    """Path of the program's unix socket; None: the program listens on a port."""
    token_file: Path | None = None
    """File with the token; None: requests carry no token, as always through a socket."""
    token_header: str = LINK_TOKEN.header
    """Header that carries the token."""

    @classmethod
    def parse(cls, url: str, token_file: Path | None = None, token_header: str = LINK_TOKEN.header) -> ProgramAddress:
        """Parse `unix:<path>`, `http://host:port` or `https://host:port`. `token_file` is ignored for a socket.

        Raises ValueError for any other form. Host and port are not checked.
        """
        socket_path = _socket_path(url)
        if socket_path:
            return cls(_SOCKET_BASE_URL, socket_path)
        scheme, _, rest = url.partition(":")
        if scheme in ("http", "https") and rest.startswith("//") and rest.strip("/"):
            return cls(url.rstrip("/"), None, token_file, token_header)
        raise ValueError("must be http://host:port or unix:/path/to/the.sock")

    def read_headers(self) -> dict[str, str]:
        """Read the token file, and return the header that carries the token. Blocks for the time of the read.

        Empty if there is no token file, or the file is missing or unusable (see `read_token`); nothing is raised. Call
        for each request: the program may make the token later, or replace it.
        """
        token = read_token(self.token_file) if self.token_file is not None else None
        return {self.token_header: token} if token is not None else {}


def _socket_path(address: str) -> str | None:
    """What follows `unix:`; None: the address does not begin so."""
    return address.removeprefix(_SCHEME) if address.startswith(_SCHEME) else None
