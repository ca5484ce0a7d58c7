"""Engines for the process runtime that do one odd thing each: small shell programs in llama-server's place."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from controller.engines import engine_of, spec_hash
from controller.engines.llama_server import LlamaServerDefinition
from controller.runtimes.base import SeenReplica, StartRequest
from controller.runtimes.naming import replica_name, replica_token
from controller.runtimes.process import ProcessRuntime
from controller.runtimes.process_records import Record
from controller.runtimes.process_stat import alive, read_stat, stats
from controller.schema.desired import Definition
from controller.state import Phase, ReplicaId

INSTANCE = "test1"
DEADLINE_S = 60.0
RUN = "exec sleep 600"
STUBBORN = "trap '' TERM; exec sleep 600"


class Place:
    """A state folder, a models folder, and programs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.models = root / "models"
        self.models.mkdir(parents=True)

    def runtime(self, instance: str = INSTANCE, **settings: object) -> ProcessRuntime:
        """A runtime over this place; another object stands for another controller."""
        return ProcessRuntime(instance, self.state, self.models, **settings)  # type: ignore[arg-type]

    def program(self, body: str, name: str = "engine") -> Path:
        """An executable shell script."""
        path = self.root / f"{name}.sh"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def definition(self, body: str, **fields: object) -> LlamaServerDefinition:
        """A model whose engine runs this shell program."""
        content = {"model_path": "m.gguf", "llama_server_binary": str(self.program(body)), **fields}
        return LlamaServerDefinition.model_validate(content)

    def record(self, name: str) -> Record:
        """What the state folder says of a replica."""
        return Record.model_validate_json(self.record_path(name).read_bytes())

    def record_path(self, name: str) -> Path:
        """Where it says so."""
        return self.state / "replicas" / f"{name}.json"

    def log(self, name: str) -> Path:
        """Where the replica's engine writes."""
        return self.state / "logs" / f"{name}.log"


def request_for(
    definition: Definition, model: str = "m", *, attempt: int = 1, claims: Mapping[str, int] | None = None
) -> StartRequest:
    """A start of a model's first replica."""
    assert engine_of(definition).runs
    replica = ReplicaId(model, 0, spec_hash(definition, None, model), attempt)
    name = replica_name(INSTANCE, replica)
    return StartRequest(replica, name, definition, model, None, replica_token(b"secret", name), claims or {})


def running(pid: int) -> bool:
    """Whether a process runs; zombies do not."""
    stat = read_stat(pid)
    return stat is not None and alive(stat.process)


def zombies() -> list[int]:
    """Our ended children that nobody reaped."""
    return [each.process.pid for each in stats() if each.parent == os.getpid() and each.ended]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll a condition, with a deadline."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.01)


async def until(condition: Callable[[], bool], what: str) -> None:
    """The same, while the event loop runs on."""
    await asyncio.to_thread(wait_for, condition, what)


async def only(runtime: ProcessRuntime) -> SeenReplica:
    """The one replica that there is."""
    (seen,) = await runtime.list()
    return seen


async def exited(runtime: ProcessRuntime) -> SeenReplica:
    """The one replica, once it has ended."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            seen = await only(runtime)
            if seen.phase is Phase.EXITED:
                return seen
            await asyncio.sleep(0.01)


def numbers(path: Path) -> list[int]:
    """Pids that a program wrote, one on each line."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def end_all(place: Place) -> None:
    """End what a test that failed has left: every process whose folder or environment is of this place."""
    for stat in stats():
        pid = stat.process.pid
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            home = Path(f"/proc/{pid}/cwd").readlink()
        except OSError:
            continue
        if pid != os.getpid() and (str(place.root).encode() in environ or home.is_relative_to(place.root)):
            os.kill(pid, signal.SIGKILL)
            if stat.parent == os.getpid():
                os.waitpid(pid, 0)
