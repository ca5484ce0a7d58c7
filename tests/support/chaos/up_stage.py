"""A Roundhouse that `roundhouse up` keeps running: engines as processes, or as containers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from cli.up.supervisor import find_children
from tests.support import mcp_stdio_server
from tests.support.chaos.stage import TICKS_PER_S, Engine, EngineHost, monotonic_of
from tests.support.cli import PROGRAM
from tests.support.fake_hub import FakeHub
from tests.support.http_client import answers
from tests.support.process_engines import (
    engine_processes,
    kill_engine,
    read_records,
    signal_engine,
    what_is_wrong_with_engines,
)
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.shifted_clock import ShiftedClock
from tests.support.small_disk import SmallDisk, find_small_disk

DISK_KIB = 512 * 1024
"""Of the disk: logs of engines, a journal of half an hour, documents and downloads leave most of it free."""
SERVER = Path(mcp_stdio_server.__file__)
ENDS_WITHIN_S = 120


class ProcessHost:
    """Engines as processes of this machine."""

    def __init__(self, stack: RoundhouseStack) -> None:
        self._stack = stack

    def look(self, wanted: Counter[str]) -> tuple[dict[str, Engine], list[str]]:
        """By records and process table."""
        try:
            records = read_records(self._stack)
        except (OSError, ValueError) as error:
            return {}, [f"a record cannot be read now: {error}"]
        engines = {
            name: Engine(
                name=name,
                model=record.model,
                index=record.index,
                identity=f"{record.leader.pid}/{record.leader.start_ticks}",
                started_at=monotonic_of(record.leader.start_ticks / TICKS_PER_S),
                pid=record.leader.pid,
                health_url=f"http://{record.host}:{record.port}/health",
            )
            for name, record in records.items()
            if record.leader is not None
        }
        return engines, what_is_wrong_with_engines(records, wanted)

    async def is_healthy(self, engine: Engine) -> bool:
        return await answers(engine.health_url, timeout=aiohttp.ClientTimeout(total=2))

    async def kill(self, name: str) -> None:
        await kill_engine(self._stack, name)

    def freeze(self, name: str) -> None:
        """SIGSTOP."""
        signal_engine(self._stack, name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        signal_engine(self._stack, name, signal.SIGCONT)

    def find_left(self) -> list[str]:
        """Engines that run, and records of engines."""
        try:
            instance = json.loads((self._stack.state / "identity.json").read_text())["instance"]
        except FileNotFoundError:
            return []
        return [
            *(f"engine {each}" for each in engine_processes(instance)),
            *(f"record {path.name}" for path in (self._stack.state / "replicas").glob("*.json")),
        ]


class UpStage:
    """`roundhouse up` over folders of its own, on a small disk where one can be mounted."""

    def __init__(self, root: Path, runtime: str = "process", env: dict[str, str] | None = None) -> None:
        self._exits = ExitStack()
        self.disk: SmallDisk | None = self._exits.enter_context(find_small_disk(root / "disk", DISK_KIB))
        (root / "disk").chmod(0o755)  # containers read models in it
        self.hub: FakeHub | None = self._exits.enter_context(FakeHub([]))
        settings = {
            "ROUNDHOUSE_ENGINE_LOG_MIB": "1",
            "ROUNDHOUSE_HUB_ENDPOINT": self.hub.endpoint,
            "ROUNDHOUSE_TRANSFERS_ALLOW_HOSTS": "127.0.0.1",
            "ROUNDHOUSE_TRANSFERS_KEEP_FREE_GB": "0",
        }
        self.clock = ShiftedClock(root / "shift")
        self._stack = RoundhouseStack(root / "disk", runtime, {**settings, **self.clock.variables, **(env or {})})
        self.mcp_server: dict[str, Any] = {"command": [sys.executable, str(SERVER)]}
        self._up: subprocess.Popen[bytes] | None = None
        self.models = self._stack.models
        self.desired = self._stack.desired
        self.url = self._stack.url
        self.log = root / "up.log"
        self.host: EngineHost = ProcessHost(self._stack)
        self.left_out = {"dockerd killed": "engines are processes here"}
        if self.disk is None:
            self.left_out["disk full"] = "no small disk could be mounted"
        names = ("journal.db", "responses.db", "up.json", "epoch.json", "controller.sock")
        self.files = {name: self._stack.state / name for name in names}

    async def start(self) -> None:
        """In a session of its own, as from a terminal that nobody types in."""
        self._spawn()

    def _spawn(self) -> None:
        with self.log.open("ab") as log:
            self._up = subprocess.Popen(
                [PROGRAM, "up"],
                env=self._stack.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def end(self) -> None:
        await self.run_command("down")
        if self._up is not None:
            await asyncio.to_thread(self._up.wait, ENDS_WITHIN_S)

    async def run_command(self, *arguments: str) -> None:
        """On this state folder. Raises AssertionError."""
        command = await asyncio.create_subprocess_exec(
            PROGRAM,
            *arguments,
            env=self._stack.environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(command.communicate(), ENDS_WITHIN_S)
        assert command.returncode == 0, f"{arguments} ended with {command.returncode}: {output.decode()}"

    def find_pid(self, program: str) -> int | None:
        """By the marks of `up`'s children, which no file can lack."""
        if program == "up":
            return self._up.pid if self._up is not None and self._up.poll() is None else None
        found = find_children(self._stack.state, program)
        return found[0].pid if found else None

    async def restart_dockerd(self) -> None:
        raise AssertionError("engines are processes here")

    def find_left(self) -> list[str]:
        """Processes that know the folder, engines and records of them."""
        root = str(self._stack.root)
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            shown = " ".join(process.info["cmdline"] or [])
            if root in f"{process.info['cwd']} {shown}" and process.pid != os.getpid():
                found.append(f"process {process.pid}: {shown}")
        for program in ("gateway", "controller", "retrieval", "transfers"):
            found += [f"{program} (process {child.pid})" for child in find_children(self._stack.state, program)]
        up = self.find_pid("up")
        return [*found, *([f"up (process {up})"] if up else []), *self._find_left_engines()]

    def _find_left_engines(self) -> list[str]:
        return ProcessHost(self._stack).find_left()

    async def close(self) -> None:
        """End what a broken campaign left, by its process ids, and take the disk away."""
        if self.disk is not None:
            self.disk.free()
        try:
            await self.end()
        finally:
            if self._up is not None and self._up.poll() is None:
                self._up.kill()
                self._up.wait()
            self._exits.close()
