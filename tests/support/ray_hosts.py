"""Hosts that run Ray on this machine: each has a network and processes of its own, and Ray is started again there.

Killing a host ends everything in it; cutting its cable leaves it running, unreached.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from controller.runtimes.cluster.ray_carrier import RayCarrier, build_ray_environment
from tests.support.ci_cache import REPOSITORY, cached_build
from tests.support.networks import make_certificate, namespace, run_ip
from tests.support.require import require
from tests.support.wait import eventually

PORT = 6379
_AGAIN = 'while :; do "$@"; sleep 0.2; done'


@dataclass(slots=True)
class RayHost:
    """One host: the head, or one that joins it."""

    name: str
    address: str
    network: str
    """Name of its network namespace."""
    cable: str
    """Name of its end in the hub's namespace."""
    folder: Path
    is_head: bool
    settings: dict[str, str] = field(default_factory=dict)
    """Further variables of its environment."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def pids(self, mark: str) -> list[int]:
        """Its processes with `mark` in their command lines."""
        listed = subprocess.run(["ip", "netns", "pids", self.network], check=True, capture_output=True, text=True)
        return [pid for pid in map(int, listed.stdout.split()) if mark in _command_line(pid)]

    def kill(self, mark: str) -> int:
        """SIGKILL to its first process with `mark` in its command line, which is returned."""
        pid = self.pids(mark)[0]
        os.kill(pid, signal.SIGKILL)
        return pid

    def end(self) -> None:
        """SIGKILL to all its processes, as if it had lost its power."""
        if self.process is not None:
            self.process.kill()  # `--kill-child`: the kernel ends all others with the first one of the namespace
            self.process.wait()
            self.process = None


class RayHosts:
    """The hosts, on a network of their own."""

    def __init__(self, hosts: Mapping[str, RayHost], folder: Path, hub: str) -> None:
        self.hosts = hosts
        self.folder = folder
        self._hub = hub
        self.python = cached_build("cluster") / "bin" / "python"
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        names = ",".join(f"IP:{each.address}" for each in hosts.values())
        certificate, key = make_certificate(folder, f"DNS:localhost,IP:127.0.0.1,{names}")
        self.environment = build_ray_environment(token, (certificate, key, certificate))
        self.environment["PYTHONPATH"] = str(REPOSITORY)

    @property
    def head(self) -> RayHost:
        return next(each for each in self.hosts.values() if each.is_head)

    def start(self, host: RayHost) -> None:
        """Start a host, with Ray."""
        models = host.folder / "models"
        models.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **self.environment, "ROUNDHOUSE_RUNTIME": "process"}
        environment |= {"ROUNDHOUSE_HOST_NAME": host.name, "ROUNDHOUSE_HOST_ADDRESS": host.address}
        environment |= {"ROUNDHOUSE_STATE": str(host.state), "ROUNDHOUSE_MODELS": str(models), **host.settings}
        place = ["--head", "--port", str(PORT), "--include-dashboard", "false"]
        if not host.is_head:
            place = ["--address", f"{self.head.address}:{PORT}"]
        ray = [str(self.python.with_name("ray")), "start", *place, "--block", "--disable-usage-stats"]
        ray += ["--node-ip-address", host.address, "--node-name", host.name, "--num-cpus", "0", "--num-gpus", "0"]
        ray += ["--object-store-memory", "80000000", "--include-log-monitor", "false"]
        ray += ["--temp-dir", str(self.folder / host.name)]
        inside = ["ip", "netns", "exec", host.network, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        with (self.folder / f"{host.name}.log").open("ab") as log:
            host.process = subprocess.Popen(
                [*inside, "sh", "-c", _AGAIN, "supervisor", *ray], env=environment, stdout=log, stderr=log
            )

    def run(self, host: RayHost, *arguments: str) -> None:
        """Begin to run `roundhouse` with these arguments on a host that `start` has not started, in its folder. There
        `COMMAND.log` gets what it prints, and `COMMAND.code` its exit code. Nobody reaps processes there."""
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "ROUNDHOUSE_RETRIEVAL": "off"}
        environment |= {"ROUNDHOUSE_STATE": str(host.state), "ROUNDHOUSE_DOWNLOADS": "off", **host.settings}
        command = [str(self.python), "-m", "cli.main", *arguments]
        if host.process is None:
            inside = ["ip", "netns", "exec", host.network, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
            host.process = subprocess.Popen([*inside, "sleep", "infinity"])
            eventually("the host is there", lambda: len(host.pids("sleep infinity")) == 2)
        [first] = {*host.pids("sleep infinity")} - {host.process.pid}
        script = f'"$@" >{arguments[0]}.log 2>&1; echo $? >{arguments[0]}.code'
        enter = [
            "nsenter",
            "--target",
            str(first),
            "--net",
            "--pid",
            "--mount",
            f"--wd={host.folder}",
            "setsid",
            "--fork",
        ]
        (host.folder / f"{arguments[0]}.code").unlink(missing_ok=True)
        subprocess.run([*enter, "sh", "-c", script, "sh", *command], env=environment, check=True)

    def carrier(self, instance: str, file: Path) -> RayCarrier:
        """A carrier whose bridge runs on the head."""
        assert self.head.process is not None
        [first] = {*self.head.pids("supervisor")} - {self.head.process.pid}
        enter = ("nsenter", "--target", str(first), "--net", "--pid", "--mount")
        return RayCarrier(
            f"{self.head.address}:{PORT}",
            instance,
            self.environment,
            file=file,
            log_file=self.folder / "bridge.log",
            command=(*enter, str(self.python), "-m", "controller.runtimes.cluster.bridge"),
        )

    def cut(self, host: RayHost) -> None:
        """Pull a host's cable."""
        run_ip(f"-n {self._hub} link set {host.cable} down")

    def heal(self, host: RayHost) -> None:
        """Plug it in again."""
        run_ip(f"-n {self._hub} link set {host.cable} up")


@contextmanager
def ray_hosts(*names: str, with_ray: bool = True) -> Iterator[RayHosts]:
    """Make hosts of these names, the first one the head, and start Ray on them all, or with `with_ray` False nothing.
    Removes them with everything in them. Skips where they cannot be made."""
    require("cluster", (cached_build("cluster") / ".ready").exists(), "Ray is not installed: run .ci/cluster once")
    require("cluster", os.geteuid() == 0, "namespaces need root")
    number = secrets.token_hex(2)
    with ExitStack() as stack:
        # Ray's sockets are below it, and their paths may have 107 characters.
        folder = Path(mkdtemp(prefix="rh-ray-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        hub = stack.enter_context(namespace(f"rh-{number}-hub"))
        run_ip(f"-n {hub} link add hub type bridge")
        run_ip(f"-n {hub} link set hub up")
        hosts: dict[str, RayHost] = {}
        for index, name in enumerate(names, start=1):
            network = stack.enter_context(namespace(f"rh-{number}-{index}"))
            host = RayHost(name, f"10.78.0.{index}", network, f"h{index}", folder / f"host-{name}", index == 1)
            run_ip(f"-n {hub} link add {host.cable} type veth peer name eth0 netns {network}")
            run_ip(f"-n {hub} link set {host.cable} master hub up")
            run_ip(f"-n {network} link set lo up")
            run_ip(f"-n {network} address add {host.address}/24 dev eth0")
            run_ip(f"-n {network} link set eth0 up")
            hosts[name] = host
        site = RayHosts(hosts, folder, hub)
        for host in hosts.values():
            stack.callback(host.end)
            if with_ray:
                site.start(host)
        yield site


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
