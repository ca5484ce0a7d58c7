"""Connections to engines of other hosts, through the relays there: the TLS of each, from the files that an endpoint
names.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from pathlib import Path
from typing import TypedDict

from contract.hosts import EngineTls


class TlsOptions(TypedDict, total=False):
    """The arguments of an aiohttp request, besides its URL, that open its connection to a relay with TLS. Empty: there
    is no such relay on the way."""

    ssl: ssl.SSLContext
    server_hostname: str


class HostContexts:
    """The TLS contexts of a program's connections, one for each set of files, read anew when a file was replaced. Use
    one object in one event loop."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[str, str, str], tuple[tuple[int, ...], ssl.SSLContext]] = {}

    def find_context(self, tls: EngineTls) -> ssl.SSLContext:
        """Return the context for connections to a relay. It checks the relay's certificate and its name, and shows its
        own. Blocks for some milliseconds when a file is new. Raises OSError if a file cannot be read or is no
        certificate."""
        paths = (tls.authority, tls.certificate, tls.key)
        stamps = tuple(Path(path).stat().st_mtime_ns for path in paths)
        known = self._contexts.get(paths)
        if known is None or known[0] != stamps:
            context = ssl.create_default_context(cafile=tls.authority)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(tls.certificate, tls.key)
            known = self._contexts[paths] = (stamps, context)
        return known[1]

    def list_options(self, tls: EngineTls | None) -> TlsOptions:
        """Return what a request of aiohttp needs besides the URL. Raises OSError as `find_context`."""
        return {} if tls is None else {"ssl": self.find_context(tls), "server_hostname": tls.server_name}


async def reach_relay(address: str, port: int) -> socket.socket:
    """Return a TCP connection to a relay at an IP address. While nothing is on its way there, it ends within 20 seconds
    after the other machine is no longer reached; else `is_cut_off` tells. Raises OSError."""
    reached = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        reached.setblocking(False)
        reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reached.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 8)
        reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 4)
        reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        await asyncio.get_running_loop().sock_connect(reached, (address, port))
    except BaseException:
        reached.close()
        raise
    return reached


def is_cut_off(connection: socket.socket) -> bool:
    """Return whether what was sent on a TCP connection was sent again, and the other machine's kernel has answered
    nothing for 20 seconds. One that only does not read answers. As the relay has it, which imports nothing of ours."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)
    return (info[2] > 0 or info[3] > 1) and int.from_bytes(info[56:60], sys.byteorder) > 20_000
