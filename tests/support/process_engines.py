"""Engines as processes, for the tests of the process runtime: shell programs, mostly, in llama-server's place."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controller.artifacts.model_roots import ModelRoots
from controller.engines import get_engine
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.stub import StubDefinition
from controller.runtimes.base import Runtime, StartRequest
from controller.runtimes.process.records import ReplicaRecord
from controller.runtimes.process.runtime import ProcessRuntime
from controller.runtimes.process.stat import list_stats, read_stat
from controller.schema.desired import Definition
from tests.support.engine_processes import read_environment
from tests.support.runtime_contract import request_for, running
from tests.support.wait import DEADLINE_S

INSTANCE = "test1"
OTHER_INSTANCE = "test2"


class ProcessEngines:
    """Engines of one test, with a state folder and a models folder below `root`. See ContractEngines."""

    killed_code = -signal.SIGKILL
    tells_codes_of_unseen_ends = False

    def __init__(self, root: Path, instance: str = INSTANCE) -> None:
        self.root = root
        self.instance = instance
        self.state = root / "state"
        self.models = root / "models"
        self.models_inside = str(self.models)
        self.models.mkdir(parents=True, exist_ok=True)
        self._foreign: dict[str, subprocess.Popen[bytes]] = {}

    def runtime(self, **settings: Any) -> ProcessRuntime:
        """A runtime over this place; another object stands for another controller."""
        roots = settings.pop("models", ModelRoots((self.models,)))
        return ProcessRuntime(self.instance, self.state, roots, **settings)

    def other_instance(self) -> ProcessEngines:
        """Another Roundhouse that was given the same folders."""
        return ProcessEngines(self.root, OTHER_INSTANCE)

    def shell(self, body: str, **fields: object) -> LlamaServerDefinition:
        """A model whose engine is a shell program."""
        path = self.root / f"engine-{zlib.crc32(body.encode()):08x}.sh"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        content = {"model_path": "m.gguf", "llama_server_binary": str(path), **fields}
        return LlamaServerDefinition.model_validate(content)

    def stub(self, **fields: object) -> StubDefinition:
        """A model served by the real worker's stub."""
        return StubDefinition.model_validate({"backend": "stub", **fields})

    def llama_server(self, model_path: str) -> LlamaServerDefinition:
        """A model served by llama-server in a worker's process, for a program is only taken where one is named."""
        return LlamaServerDefinition(model_path=model_path)

    def request(
        self, definition: Definition, model: str = "m", *, attempt: int = 1, claims: Mapping[str, int] | None = None
    ) -> StartRequest:
        """A start of a model's first replica."""
        assert get_engine(definition).runs
        return request_for(self.instance, definition, None, model, attempt, claims)

    def unstartable(self) -> tuple[StartRequest, str]:
        definition = self.shell("exit 0")
        Path(str(definition.llama_server_binary)).unlink()
        return self.request(definition), "cannot be started: No such file"

    def record(self, name: str) -> ReplicaRecord:
        """What the state folder says of a replica."""
        return ReplicaRecord.model_validate_json(self.record_path(name).read_bytes())

    def record_path(self, name: str) -> Path:
        return self.state / "replicas" / f"{name}.json"

    def log(self, name: str) -> Path:
        """Where the replica's engine writes."""
        return self.state / "logs" / f"{name}.log"

    def leader(self, name: str) -> int:
        """The engine's own process."""
        pid = self.record(name).pid
        assert pid is not None
        return pid

    def identity(self, name: str) -> str:
        """Process id and start time."""
        stat = read_stat(self.leader(name))
        assert stat is not None
        return str(stat.process)

    def pids(self, name: str) -> list[int]:
        """Every process that has the replica's name in its environment."""
        mark = f"ROUNDHOUSE_REPLICA={name}".encode()
        return [pid for pid, environ, _ in _processes() if mark in environ.split(b"\0")]

    def kill(self, name: str) -> None:
        """SIGKILL to the engine's own process."""
        os.kill(self.leader(name), signal.SIGKILL)

    def log_bytes(self, name: str) -> int:
        return sum(path.stat().st_size for path in self.log(name).parent.glob(f"{name}.log*"))

    def foreign(self, name: str) -> None:
        """A process with a record that has our name and another's instance."""
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self._foreign[name] = process
        stat = read_stat(process.pid)
        assert stat is not None
        record = ReplicaRecord(
            instance=OTHER_INSTANCE,
            name=name,
            model="m",
            index=0,
            spec_hash="0",
            attempt=1,
            start_id="foreign",
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            host="127.0.0.1",
            port=1,
            argv=("sleep",),
            claims={},
            created_at=1.0,
            pid=process.pid,
            start_ticks=stat.process.start_ticks,
        )
        self.record_path(name).write_text(record.model_dump_json())

    def foreign_runs(self, name: str) -> bool:
        process = self._foreign[name]
        return running(process.pid) and self.record(name).pid == process.pid

    async def half_created(self, request: StartRequest) -> None:
        """A record without a process, as it is written before the spawn."""
        runtime = self.runtime()
        await runtime.start_replica(request)
        begun = self.record(request.name)
        await runtime.stop_replica(request.name, 0)
        await runtime.close()
        intent = begun.model_copy(update={"pid": None, "start_ticks": None, "started_at": None})
        self.record_path(request.name).write_text(intent.model_dump_json())

    @contextmanager
    def unreachable(self) -> Iterator[Runtime]:
        """A runtime whose folder of records is away, as on a volume that is not mounted."""
        runtime = self.runtime()
        folder = self.state / "replicas"
        away = folder.rename(self.state / "away")
        yield runtime
        away.rename(folder)

    def left(self) -> list[str]:
        """Records, folders to work in, processes."""
        found = [path.stem for path in (self.state / "replicas").glob("*.json")]
        found += [path.name for path in (self.state / "work").glob("*")]
        mark = f"ROUNDHOUSE_INSTANCE={self.instance}".encode()
        ours = (pid for pid, env, home in _processes() if mark in env.split(b"\0") and home.is_relative_to(self.root))
        return found + [str(pid) for pid in ours]

    async def close(self) -> None:
        """End what a test has left: every process whose folder or environment is of this place."""
        self._end_all()

    def _end_all(self) -> None:
        for process in self._foreign.values():
            process.kill()
            process.wait()
        for pid, environ, home in _processes():
            if pid != os.getpid() and (str(self.root).encode() in environ or home.is_relative_to(self.root)):
                stat = read_stat(pid)
                os.kill(pid, signal.SIGKILL)
                if stat is not None and stat.parent == os.getpid():
                    os.waitpid(pid, 0)


def _processes() -> Iterator[tuple[int, bytes, Path]]:
    """Processes that may be looked at: pid, environment, working folder."""
    for stat in list_stats():
        entry = Path(f"/proc/{stat.process.pid}")
        try:
            yield stat.process.pid, read_environment(entry), (entry / "cwd").readlink()
        except OSError:
            continue


def zombies() -> list[int]:
    """Our ended children that nobody reaped."""
    return [each.process.pid for each in list_stats() if each.parent == os.getpid() and each.has_ended]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll a condition, with a deadline, where there is no event loop."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.01)


def numbers(path: Path) -> list[int]:
    """Pids that a program wrote, one on each line."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []
