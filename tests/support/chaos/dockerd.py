"""The Docker Engine's own process: killed, and started again as an init system would."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import docker
import docker.errors
import requests

from controller.runtimes.process.stat import PROC, list_stats, read_stat
from tests.support.wait import until

SYSTEMD = Path("/run/systemd/system")
DOCKER_PIDS = (Path("/var/run/docker.pid"), Path("/var/run/docker/containerd/containerd.pid"))
ANSWERS_WITHIN_S = 90


class Dockerd:
    """The dockerd of this machine. Its command line is remembered from before it is killed."""

    def __init__(self) -> None:
        self._argv: list[str] = []
        self._log: Path | None = None

    def find_pid(self) -> int | None:
        """Its process id; None: none runs."""
        for stat in list_stats():
            with suppress(OSError):
                if not stat.has_ended and _name_of(stat.process.pid) == "dockerd":
                    self._remember(stat.process.pid)
                    return stat.process.pid
        return None

    def _remember(self, pid: int) -> None:
        self._argv = (PROC / str(pid) / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
        output = (PROC / str(pid) / "fd" / "1").readlink()
        self._log = output if output.is_file() else None

    async def restart(self) -> None:
        """With the same command line; systemd does it by itself. Returns when the engine answers."""
        if not SYSTEMD.is_dir():
            self._forget_dead()
            self._spawn()
        await until("the Docker Engine answers", lambda: asyncio.to_thread(_answers), ANSWERS_WITHIN_S)

    def _spawn(self) -> None:
        with (self._log or Path(os.devnull)).open("ab") as log:
            subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _forget_dead(self) -> None:
        """A daemon that was killed leaves its pid in files, and that may be a zombie's, or since be somebody else's."""
        own = [Path(after) for before, after in zip(self._argv, self._argv[1:], strict=False) if before == "--pidfile"]
        for path in (*DOCKER_PIDS, *own):
            with suppress(OSError, ValueError):
                pid = int(path.read_text())
                stat = read_stat(pid)
                if stat is None or stat.has_ended or _name_of(pid) not in ("dockerd", "containerd"):
                    path.unlink()


def _name_of(pid: int) -> str:
    return (PROC / str(pid) / "comm").read_text().strip()


def _answers() -> bool:
    try:
        client = docker.from_env(timeout=5)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except (docker.errors.DockerException, requests.RequestException, OSError):
        return False
