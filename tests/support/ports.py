"""Ports for programs that must be told one: no two tests are given the same, also in different processes."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

FIRST, LAST = 20_000, 32_000
"""Below what Linux gives away by itself (`net.ipv4.ip_local_port_range`), to who binds port 0 and to who connects. A
port of that range that was free a moment ago may be somebody's source port when a test's program comes to bind it."""


def free_port() -> int:
    """The next port of all tests on this machine that nothing listens on. It comes around again thousands later."""
    path = Path(tempfile.gettempdir()) / f"roundhouse-test-ports-{os.getuid()}"
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        before = int(file.read() or FIRST) - FIRST
        ports = (FIRST + (before + further) % (LAST - FIRST) for further in range(1, LAST - FIRST))
        port = next(filter(_is_free, ports))
        file.truncate(0)
        file.write(str(port))
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
