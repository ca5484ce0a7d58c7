"""An installation of several machines, as an operator makes it: `head` on one, `join` on another, real Ray between."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from controller.runtimes.cluster.material import MATERIAL_NAME, cluster_folder
from tests.support.ray_hosts import RayHost, RayHosts, ray_hosts
from tests.support.wait import eventually

RAYLET = "raylet/raylet"


class Site:
    """A head, `b` and `c`, on none of which anything runs yet."""

    def __init__(self, site: RayHosts) -> None:
        self.site = site
        self.head, self.b, self.c = (site.hosts[each] for each in ("head", "b", "c"))
        for host in (self.head, self.b, self.c):
            (host.folder / "models").mkdir(parents=True)

    def start_head(self) -> subprocess.Popen[bytes]:
        desired = self.head.folder / "desired-state"
        desired.mkdir()
        (desired / "models.yaml").write_text("models: {}\n")
        options = ("--address", self.head.address, "--name", "head", "--runtime", "process")
        head = self.site.run(self.head, "head", *options)
        file = cluster_folder(self.head.state) / MATERIAL_NAME
        eventually("the token is there", file.exists)
        for host in (self.b, self.c):
            shutil.copy(file, host.folder / "join.json")  # with its mode, 0600
        return head

    def join(self, host: RayHost, *options: str) -> subprocess.Popen[bytes]:
        return self.site.run(host, "join", f"{self.head.address}:8093", "--token-file", "join.json", *options)

    def ask(self, host: RayHost, *arguments: str) -> str:
        """Run a command beside what runs on a host, and return what it prints."""
        first = next(pid for pid in host.pids("-m cli.main") if host.process and pid != host.process.pid)
        enter = ["nsenter", "--target", str(first), "--net", "--pid", "--mount"]
        command = [*enter, sys.executable, "-m", "cli.main", *arguments, "--state", str(host.state)]
        if arguments[0] == "leave":
            command[len(enter)] = str(self.site.python)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def states(self) -> dict[str, str]:
        """State of each host, as `roundhouse hosts` on the head says."""
        rows = (line.split() for line in self.ask(self.head, "hosts").splitlines()[1:])
        return {row[0]: row[1] for row in rows if row[0] in self.site.hosts}


def test_a_host_joins_comes_back_and_leaves(tmp_path: Path) -> None:
    with ray_hosts("head", "b", "c", with_ray=False) as hosts:
        site = Site(hosts)
        head = site.start_head()
        join = site.join(site.b, "--name", "b", "--label", "disk=fast")
        eventually("both are ready", lambda: site.states() == {"head": "ready", "b": "ready"})
        [first_line, *_] = (site.b.folder / "join.log").read_text().splitlines()
        assert "can run programs on every host" in first_line

        # A second one of the name starts nothing, and its state folder is nobody's.
        assert site.join(site.c, "--name", "b").wait(30) == 1
        refusal = f"there is a host b at {site.b.address} already, and it is ready: choose another --name"
        assert refusal in (site.c.folder / "join.log").read_text()
        assert refusal in (site.head.folder / "head.log").read_text()
        assert not (site.c.state / "identity.json").exists()
        assert not site.c.pids("ray")

        raylet = site.b.kill(RAYLET)
        eventually("another one runs", lambda: site.b.pids(RAYLET) not in ([], [raylet]))
        eventually("it is back", lambda: site.states() == {"head": "ready", "b": "ready"})

        assert site.ask(site.b, "leave").endswith(f"host b has left {site.head.address}:8093\n")
        assert join.wait(30) == 0
        assert not cluster_folder(site.b.state).exists()
        eventually("the head has forgotten it", lambda: site.states() == {"head": "ready"})

        # With the file it may join again, and the head's end leaves nothing behind.
        site.join(site.b, "--name", "b")
        eventually("it has joined again", lambda: site.states() == {"head": "ready", "b": "ready"})
        os.kill(max(site.head.pids("-m cli.main head")), signal.SIGINT)
        assert head.wait(60) == 0
        assert not site.head.pids("ray")
