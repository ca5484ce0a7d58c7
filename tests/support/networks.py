"""Networks of a test's own: namespaces with a wire between them, a neighbour machine, a name server, a certificate.

It knows no way to the networks of containers, so that only connections with this machine's address get answers.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.require import require


@dataclass(frozen=True, slots=True)
class Lan:
    """Two machines on a network of their own, by the names of their namespaces."""

    server: str
    client: str
    server_ip: str = "192.0.2.1"
    client_ip: str = "192.0.2.2"

    @staticmethod
    def enter(namespace: str) -> list[str]:
        """The beginning of a command line that runs in a namespace."""
        return ["ip", "netns", "exec", namespace]


@contextmanager
def private_lan() -> Iterator[Lan]:
    """Make both namespaces, and remove them with everything in them. Skips where they cannot be made."""
    number = secrets.token_hex(3)
    lan = Lan(f"rh-{number}-server", f"rh-{number}-client")
    with ExitStack() as stack:
        for name in (lan.server, lan.client):
            stack.enter_context(namespace(name))
        run_ip(f"-n {lan.server} link add lan0 type veth peer name lan0 netns {lan.client}")
        for name, address in ((lan.server, lan.server_ip), (lan.client, lan.client_ip)):
            run_ip(f"-n {name} address add {address}/24 dev lan0")
            run_ip(f"-n {name} link set lan0 up")
            run_ip(f"-n {name} link set lo up")
            run_ip(f"-n {name} route add 224.0.0.0/4 dev lan0")
        yield lan


@contextmanager
def namespace(name: str) -> Iterator[str]:
    """Make a network namespace, and remove it with everything in it. Skips where none can be made."""
    require("netns", os.geteuid() == 0, "network namespaces need root")
    require("netns", shutil.which("ip") is not None, "ip (Debian's iproute2) is missing")
    result = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    require("netns", result.returncode == 0, f"the kernel refuses a network namespace: {result.stderr.strip()}")
    try:
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def run_ip(arguments: str) -> None:
    """Run `ip` with these arguments."""
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)


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
    number = secrets.token_hex(3)
    name, link = f"rh-{number}", f"rh{number}"
    third = secrets.randbelow(256)
    ours, theirs = f"198.18.{third}.1", f"198.18.{third}.2"
    with ExitStack() as stack:
        stack.enter_context(namespace(name))
        run_ip(f"link add {link} type veth peer name eth0 netns {name}")
        run_ip(f"address add {ours}/30 dev {link}")
        run_ip(f"link set {link} up")
        for command in (f"address add {theirs}/30 dev eth0", "link set eth0 up", "link set lo up"):
            run_ip(f"-n {name} {command}")
        server = subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, text=True
        )
        stack.callback(server.wait)
        stack.callback(server.kill)
        assert server.stdout is not None
        assert server.stdout.readline() == "listens\n"
        yield theirs


PUBLIC = "93.184.216.34"


class Resolver:
    """A name server whose answers change: the n-th question gets the n-th answer, and the last one stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.queries: list[str] = []

    def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.queries.append(host)
        return self.answers[min(len(self.queries), len(self.answers)) - 1]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were connected to. Nobody answers at any."""
    addresses: list[str] = []

    def connect(_self: socket.socket, address: tuple[Any, ...]) -> None:
        addresses.append(str(address[0]))
        raise ConnectionRefusedError(111, "nobody is there")

    monkeypatch.setattr(socket.socket, "connect", connect)
    return addresses


def make_certificate(folder: Path, names: str = "DNS:localhost,IP:127.0.0.1") -> tuple[Path, Path]:
    """A self-signed certificate for `names` and its private key: `a.pem` and `a.key` in `folder`."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    command += f" -addext subjectAltName={names} -keyout a.key -out a.pem"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder / "a.pem", folder / "a.key"
