"""Two private network namespaces with a wire between them, through iproute2."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

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
    require("netns", os.geteuid() == 0, "network namespaces need root")
    require("netns", shutil.which("ip") is not None, "ip (Debian's iproute2) is missing")
    number = secrets.token_hex(3)
    lan = Lan(f"rh-{number}-server", f"rh-{number}-client")
    with ExitStack() as stack:
        for name in (lan.server, lan.client):
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
            require("netns", made.returncode == 0, f"the kernel refuses a network namespace: {made.stderr.strip()}")
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
        _ip(f"-n {lan.server} link add lan0 type veth peer name lan0 netns {lan.client}")
        for name, address in ((lan.server, lan.server_ip), (lan.client, lan.client_ip)):
            _ip(f"-n {name} address add {address}/24 dev lan0")
            _ip(f"-n {name} link set lan0 up")
            _ip(f"-n {name} link set lo up")
            _ip(f"-n {name} route add 224.0.0.0/4 dev lan0")
        yield lan


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)
