"""`up` over stand-ins for the controller and the gateway (tests/fakes/stand_ins.py), as a process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from cli.app import run
from cli.up.supervisor import ProcessRecord, pass_on
from common.listening import LISTENER
from tests.support.http_client import answers
from tests.support.ports import free_port
from tests.support.wait import until

REPOSITORY = Path(__file__).parents[2]
ENDED_IN_ORDER = ["gateway got SIGTERM", "gateway ended", "controller was asked to end", "controller ended"]


class Up:
    """An `up` over stand-ins, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.log_folder = folder
        """Where its output goes."""
        self.events_file = folder / "events"
        self.events_file.touch()
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None
        self.program = "up"
        """Which program of tests/fakes/stand_ins.py it is."""
        self.passed: list[int] = []
        """Descriptors of listening sockets that it is started with, as systemd does it."""

    def start(self, *arguments: str, **env: str) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
        settings = {
            "ROUNDHOUSE_DESIRED": str(self.folder),
            "ROUNDHOUSE_STATE": str(self.state),
            "ROUNDHOUSE_MODELS": str(self.folder),
            "ROUNDHOUSE_RUNTIME": "process",
            "ROUNDHOUSE_PORT": str(self.port),
            "ROUNDHOUSE_STOP_TIMEOUT_S": "1",
            "ROUNDHOUSE_PAGE": "0",  # an `up` without the built page would build it, and leave the build behind
            "EVENTS": str(self.events_file),
        }
        with (self.log_folder / "out").open("w") as out, (self.log_folder / "err").open("w") as err:
            command = [sys.executable, "-m", "tests.fakes.stand_ins", self.program, *arguments]
            argv, passing = pass_on(command, [(LISTENER, each) for each in self.passed])
            self.process = subprocess.Popen(
                argv,
                cwd=REPOSITORY,
                env={**own, **settings, **env, **passing},
                stdout=out,
                stderr=err,
                text=True,
                pass_fds=self.passed,
            )

    @property
    def out(self) -> str:
        return (self.log_folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.log_folder / "err").read_text()

    def events(self) -> list[str]:
        """What happened to the stand-ins, without their pids."""
        return [re.sub(r" \d+$", "", line) for line in self.events_file.read_text().splitlines()]

    def pids(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"started (\d+)", self.events_file.read_text())]

    async def ready(self) -> None:
        await until(f"the first model is announced; stderr: {self.err}", lambda: "\n" in self.out)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self) -> int:
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, 60)

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def answers(self) -> bool:
        """Whether the gateway's port answers as the gateway."""
        return await answers(f"http://127.0.0.1:{self.port}/v1/models")

    def kill_all(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.pids():
            if runs(pid):
                os.kill(pid, signal.SIGKILL)


def runs(pid: int) -> bool:
    record = ProcessRecord.of(pid)
    return record is not None and record.is_alive()


async def down(up: Up, *arguments: str) -> int:
    """The exit code of `roundhouse down` on its state folder."""
    return await asyncio.to_thread(run, ["down", "--state", str(up.state), "--runtime", "process", *arguments])
