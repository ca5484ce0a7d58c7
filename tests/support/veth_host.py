"""A machine beyond this one's own addresses: a network namespace on a wire of its own, whose only neighbour is this
machine. It knows no way to the networks of containers, so that only connections with this machine's address get
answers."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.support.require import require

_ECHO = (
    "import socketserver\n"
    "class H(socketserver.BaseRequestHandler):\n"
    "    def handle(self): self.request.sendall(b'outside')\n"
    "s = socketserver.ThreadingTCPServer(('0.0.0.0', 7007), H)\n"
    "print('listens', flush=True)\n"
    "s.serve_forever()\n"
)
PORT = 7007


@contextmanager
def outside_host() -> Iterator[str]:
    """Yield the address of a machine that answers `outside` at `PORT` to whoever reaches it. Skips where no network
    namespace can be made."""
    require("netns", os.geteuid() == 0, "network namespaces need root")
    require("netns", shutil.which("ip") is not None, "ip (Debian's iproute2) is missing")
    number = secrets.token_hex(3)
    name, link = f"rh-{number}", f"rh{number}"
    third = secrets.randbelow(256)
    ours, theirs = f"198.18.{third}.1", f"198.18.{third}.2"
    with ExitStack() as stack:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
        require("netns", made.returncode == 0, f"the kernel refuses a network namespace: {made.stderr.strip()}")
        stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
        _ip(f"link add {link} type veth peer name eth0 netns {name}")
        _ip(f"address add {ours}/30 dev {link}")
        _ip(f"link set {link} up")
        for command in (f"address add {theirs}/30 dev eth0", "link set eth0 up", "link set lo up"):
            _ip(f"-n {name} {command}")
        server = subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, text=True
        )
        stack.callback(server.wait)
        stack.callback(server.kill)
        assert server.stdout is not None
        assert server.stdout.readline() == "listens\n"
        yield theirs


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)
